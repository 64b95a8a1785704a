"""Values as a configuration writes them: numbers, words, lists, and what cannot be known."""

import re
from dataclasses import dataclass

NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SPECIAL = {"nan": "nan", ".nan": "nan", "inf": "inf", ".inf": "inf", "+.inf": "inf"}
_SPECIAL |= {"-inf": "-inf", "-.inf": "-inf", "infinity": "inf"}
_LONGEST_NUMBER = 60
_DEEPEST_LIST = 8


@dataclass(frozen=True)
class Unknown:
    """A value that the text alone does not tell; ``reason`` says why.

    ``known`` is what can be read of it, e.g. the file name of a path below an unset folder.
    """

    reason: str
    known: str = ""


Value = bool | int | float | str | None | list["Value"] | Unknown


def read_scalar(text: str) -> Value:
    """Read one written value: null, true/false, a number, a [list], else the word itself.

    Numbers follow Python (1e-6 is a float, as in Hydra, unlike YAML 1.1); quotes are taken off.
    ``None`` is a word, as in YAML and Hydra.
    """
    return _read(text.strip(), 0)


def _read(text: str, depth: int) -> Value:
    lower = text.lower()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if lower in ("null", "~", ""):
        return None
    if lower in ("true", "false"):
        return lower == "true"
    if lower in _SPECIAL:
        return float(_SPECIAL[lower])
    if len(text) <= _LONGEST_NUMBER and NUMBER.fullmatch(text):
        return _number(text)
    if text[0] == "[" and text[-1] == "]" and depth < _DEEPEST_LIST:
        return [_read(part.strip(), depth + 1) for part in split_list(text[1:-1])]
    return text


def _number(text: str) -> int | float:
    digits = text.replace("_", "")
    try:
        return int(digits)
    except ValueError:
        return float(digits)


def split_list(text: str) -> list[str]:
    """Split at the commas that stand outside brackets and quotes; empty text is an empty list."""
    parts: list[str] = []
    depth, quote, start = 0, "", 0
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "[{(":
            depth += 1
        elif c in "]})":
            depth -= 1
        elif c == "," and depth <= 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [] if parts == [""] else parts
