"""What commands share in speaking: the JSON envelope, the console, the progress display."""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from dapolab import __version__


def envelope(command: str, *, seed: int | None) -> dict[str, Any]:
    """Return the keys that every JSON document has."""
    return {
        "schema": f"dapolab/{command}/1",
        "command": command,
        "version": __version__,
        "seed": seed,
    }


def emit_json(command: str, *, seed: int | None, body: Mapping[str, Any]) -> None:
    """Print one document on stdout; a NaN in it is a bug and raises."""
    whole = envelope(command, seed=seed) | dict(body)
    print(json.dumps(whole, allow_nan=False, indent=1))


def console(*, stderr: bool = False) -> Console:
    """Return a console at most 80 columns wide."""
    probe = Console(stderr=stderr)
    return Console(stderr=stderr, width=min(probe.width, 80), highlight=False)


@contextmanager
def progress(title: str, total: int) -> Iterator[Any]:
    """Show a bar with ETA on stderr; yields a function that moves it by one."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def print_lines(out: Console, lines: Iterable[str]) -> None:
    """Print each text as it is: no markup, wrapped between words."""
    for line in lines:
        out.print(Text(line))


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
