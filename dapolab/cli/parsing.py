"""How commands read their words: one-line errors, help of at most 80 columns, dotted settings."""

import argparse
import difflib
import itertools
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

WIDTH = 80
NARROWEST = 40


def columns() -> int:
    """Return the width of the terminal, at most 80; 80 where there is none (COLUMNS counts)."""
    return max(NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def wrapped(text: str, *, width: int) -> str:
    """Fill the paragraphs of ``text``; lines that are indented stay as they are."""
    blocks = itertools.groupby(text.strip().splitlines(), key=lambda line: line[:1] in ("", " "))
    parts = []
    for as_it_is, lines in blocks:
        if as_it_is:
            parts += list(lines)
        else:
            parts.append(textwrap.fill(" ".join(lines), width))
    return "\n".join(parts)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs, keeps examples, never wider than the terminal."""

    def __init__(self, prog: str) -> None:
        width = columns()
        super().__init__(prog, width=width, max_help_position=min(26, width // 3))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent(wrapped(text, width=width), indent)


class Parser(argparse.ArgumentParser):
    """Errors are one line that names the help, exit code 2; no abbreviations."""

    def __init__(self, *, prog: str, usage: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong and leave."""
        words = " ".join(message.split()).replace("the following arguments are required", "missing")
        self.exit(2, f"{self.prog}: {words} (see {self.prog} --help)\n")

    def unknown(self, word: str) -> NoReturn:
        """Refuse a word that no option takes, naming the nearest option."""
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        name = word.partition("=")[0]
        known = [option for option in self._option_string_actions if option.startswith("--")]
        self.error(f"unknown option {name}; nearest: {nearest(name, known)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the entry of ``known`` that looks most like ``word``."""
    return difflib.get_close_matches(word, list(known), n=1, cutoff=0.0)[0]


def take_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into a command's own and the settings laid over its scenario.

    A setting is ``--table.key VALUE`` or ``--table.key=VALUE``, wherever it stands; its value goes
    with it, so that it is not taken for the scenario's name.
    """
    own: list[str] = []
    settings: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and "." in name):
            own.append(word)
            continue
        settings.append(word)
        if not equals and rest and not rest[0].startswith("--"):
            settings.append(rest.pop(0))
    return own, settings


def whole_number(*, least: int) -> Callable[[str], int]:
    """Return an argparse type: a whole number of at least ``least``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number of at least {least}, got {text!r}"
            )
        return value

    return read


def positive(text: str) -> float:
    """Read a finite number above 0 (an argparse type)."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def silence_stdout() -> None:
    """Send what is left for stdout nowhere: its reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
