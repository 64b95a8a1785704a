"""What commands share in speaking: the JSON envelope, the console, the progress display."""

import argparse
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from dapolab import __version__
from dapolab.cli.parsing import columns
from dapolab.errors import ConfigError


def envelope(command: str, *, seed: int | None) -> dict[str, Any]:
    """Return the keys that every JSON document has."""
    return {
        "schema": f"dapolab/{command}/1",
        "command": command,
        "version": __version__,
        "seed": seed,
    }


def json_text(command: str, *, seed: int | None, body: Mapping[str, Any]) -> str:
    """Return one whole document as text; a NaN in it is a bug and raises ValueError."""
    whole = envelope(command, seed=seed) | dict(body)
    return json.dumps(whole, allow_nan=False, indent=1, ensure_ascii=False) + "\n"


def emit_json(command: str, *, seed: int | None, body: Mapping[str, Any]) -> None:
    """Print one document on stdout."""
    print(json_text(command, seed=seed, body=body), end="")


class _Trimmed:
    """A stream whose lines end where their text does: rich pads tables and paragraphs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r"[ \t]+(?=\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, 80 columns at most."""
    stream = cast(TextIO, _Trimmed(sys.stderr if stderr else sys.stdout))
    return Console(file=stream, stderr=stderr, width=columns(), highlight=False)


@contextmanager
def progress(title: str, total: int) -> Iterator[Any]:
    """Show a bar with ETA on stderr, on a terminal alone; yields a function that moves it on."""
    parts = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *parts, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def torch_needed(what: str) -> Iterator[None]:
    """Refuse ``what`` in one line that names the extra, where an import finds no torch."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            f"{what} needs torch; install the extra: pip install 'dapolab[train]'"
        ) from None


def print_lines(out: Console, lines: Iterable[str]) -> None:
    """Print each text as it is: no markup, wrapped between words."""
    for line in lines:
        out.print(Text(line))


def print_notes(out: Console, title: str, lines: Iterable[str]) -> None:
    """Print texts as a list under a title; nothing where there is none."""
    lines = list(lines)
    if lines:
        out.print(Text(f"\n{title}", style="bold"))
    for line in lines:
        text = Text(line).wrap(out, max(out.width - 4, 20))
        for i, part in enumerate(text):
            out.print(Text("  · " if i == 0 else "    ") + part)


def print_files(out: Console, words: str, paths: Iterable[Path | str]) -> None:
    """Print one file a line, never broken: it is there to be copied."""
    for path in paths:
        out.print(Text(f"{words} {path}"), soft_wrap=True)


def output_folder(text: str) -> Path:
    """Return a folder that can be written, before any work is spent; nothing is created.

    Raises
    ------
    ConfigError
        It is a file, or neither it nor the folder that it would be made in can be written.
    """
    folder = Path(text)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"-o {folder}: is a file, name a folder")
    _check_writable(folder, text)
    return folder


def output_file(text: str, *, option: str = "-o", suffix: str = ".json") -> Path:
    """Return a file that can be written, before any work is spent; nothing is created.

    Raises
    ------
    ConfigError
        It is a folder, has another suffix, or its folder cannot be written.
    """
    path = Path(text)
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder, name a {suffix} file")
    if path.suffix != suffix:
        raise ConfigError(f"{option} {path}: name a {suffix} file")
    _check_writable(path.parent, f"{option} {path}")
    return path


def _check_writable(folder: Path, shown: str) -> None:
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not there.is_dir():
        raise ConfigError(f"{shown}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{shown}: {there} cannot be written")


def command_line(options: argparse.Namespace) -> str:
    """Return the command as it was given, for provenance; folders of this machine left out."""
    words = (Path(w).name if w.startswith("/") else w for w in options.given)
    return shlex.join(["dapolab", *words])


def number(value: float, *, digits: int = 4) -> str:
    """Format for people: four significant digits, thousands separated."""
    if not math.isfinite(value):
        return "–"
    if value and (abs(value) >= 10**digits):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
