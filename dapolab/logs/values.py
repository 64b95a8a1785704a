"""One printed value: numbers as loggers, numpy and Python's ``repr`` write them."""

import math
import re

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf|infinity)"
_PLAIN = re.compile(rf"(?:{_NUMBER})", re.IGNORECASE)
_WRAPPED = re.compile(
    rf"(?:tensor|array|(?:np|numpy)\.\w+)\(\[?\s*({_NUMBER})\s*\]?\s*(?:,[^()]*)?\)", re.IGNORECASE
)
_WORDS = {"true": 1.0, "false": 0.0, "none": math.nan, "null": math.nan, "": math.nan}
# What may follow a number on its line: the next process's prefix, "[repeated 2x across cluster]",
# a word. A digit, sign or dot may not: two numbers printed into each other cannot be told apart.
_MAY_FOLLOW = re.compile(r"(?:\s*[\[(]|[A-Za-z_{])")


def whole_value(text: str) -> float | None:
    """Return the number that a text is, NaN included; None where it is something else."""
    text = text.strip().strip("'\"").strip()
    if _PLAIN.fullmatch(text):
        return float(text)
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped:
        return float(wrapped.group(1))
    return _WORDS.get(text.lower())


def leading_value(text: str) -> float | None:
    """Return the number that a text begins with, where what follows cannot belong to it."""
    text = text.strip()
    for pattern, group in ((_WRAPPED, 1), (_PLAIN, 0)):
        found = pattern.match(text)
        if found:
            rest = text[found.end() :]
            return float(found.group(group)) if not rest or _MAY_FOLLOW.match(rest) else None
    return _WORDS.get(text.lower()) if text else None


def number_of(value: object) -> float | None:
    """Return a JSON or table cell as a number, NaN where it is empty; None where it is text."""
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if value is None:
        return math.nan
    return whole_value(value) if isinstance(value, str) and len(value) <= 64 else None
