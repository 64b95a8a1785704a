"""One cell at a time: numbers, booleans and ids as real dumps write them.

Missing is None, NaN, an empty cell, or one of the usual words. Numbers may be strings, and may
carry the wrapping that ``json.dumps(default=str)`` leaves around tensors and numpy scalars
(verl 0.8 to 0.9 legacy dumps: ``"tensor(-1.)"``).
"""

import hashlib
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MISSING_WORDS = frozenset({"", "nan", "null", "none", "na", "n/a", "<na>"})
TRUE_WORDS = frozenset({"true", "yes", "t", "y", "1"})
FALSE_WORDS = frozenset({"false", "no", "f", "n", "0"})
CUT_WORDS = frozenset({"length", "max_tokens", "max_length", "max_new_tokens", "truncated"})
LONGEST_EXTRA_TEXT = 200

_WRAPPED = re.compile(
    r"^(?:tensor|array|(?:np|numpy)\.\w+)\(\[?\s*([^\],()\s]+)\s*\]?\s*(?:,.*)?\)$"
)
_NUMBER = re.compile(r"^-?(?:0|[1-9]\d*)(?:\.\d*)?(?:[eE][+-]?\d+)?$")
_EXACT_LIMIT = 2**53
_SURE_DIGITS = 19  # fewer decimal digits always fit 64 bits


class CellError(ValueError):
    """A cell that is neither missing nor what its column holds."""


def is_missing(value: object) -> bool:
    """Tell whether a cell holds nothing: None, NaN, or a word for it."""
    if value is None:
        return True
    if isinstance(value, float):
        return math.isnan(value)
    return isinstance(value, str) and value.strip().lower() in MISSING_WORDS


def number(value: object) -> float | None:
    """Read a finite number, or None where missing.

    Raises
    ------
    CellError
        Text that is no number, an infinity, a list or an object.
    """
    if isinstance(value, int | float):  # bool too
        found = float(value)
    elif value is None:
        return None
    elif isinstance(value, str):
        read = _float_of(value)
        if read is None:
            return None
        found = read
    else:
        raise CellError(f"{_shown(value)} is not a number")
    if math.isnan(found):
        return None
    if math.isinf(found):
        raise CellError(f"{_shown(value)} is not finite")
    return found


def _float_of(text: str) -> float | None:
    try:
        found = float(text)  # the usual case first; "nan" and "inf" are judged by the caller
    except ValueError:
        pass
    else:
        if "_" not in text:  # Python's digit separators are no data
            return found
    if is_missing(text):
        return None
    wrapped = _WRAPPED.match(text.strip())
    try:
        if wrapped is not None:
            return float(wrapped.group(1))
    except ValueError:
        pass
    raise CellError(f"{_shown(text)} is not a number")


def whole(value: object) -> int | None:
    """Read a whole number that is not negative, or None where missing; "14.0" counts as 14.

    Raises
    ------
    CellError
        No number, a fraction, or a negative.
    """
    if type(value) is int:
        found = value
    elif type(value) is str and len(value) < _SURE_DIGITS and value.isdecimal():
        found = int(value)
    else:
        read = number(value)
        if read is None:
            return None
        if not read.is_integer():
            raise CellError(f"{_shown(value)} is not a whole number")
        found = int(read)
    if not 0 <= found < 2**63:
        raise CellError(f"{_shown(value)} is negative or too large")
    return found


def boolean(value: object) -> bool | None:
    """Read true/false, 1/0, yes/no, or None where missing.

    Raises
    ------
    CellError
        Anything else, 0.5 included.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in TRUE_WORDS:
            return True
        if word in FALSE_WORDS:
            return False
        if word in MISSING_WORDS:
            return None
    found = number(value)
    if found is None:
        return None
    if found in (0.0, 1.0):
        return found == 1.0
    raise CellError(f"{_shown(value)} is neither true/false nor 1/0")


def text_id(value: object) -> str | None:
    """Read an id as text, or None where missing; 3 and 3.0 are the id "3".

    Raises
    ------
    CellError
        A list or an object.
    """
    if isinstance(value, str):
        return None if is_missing(value) else value.strip()
    if value is None:
        return None
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    raise CellError(f"{_shown(value)} cannot be an id")


def scalar_text(value: object) -> str | None:
    """Write an extra cell in one canonical way, whatever the file format it came from.

    Long text becomes a hash and a character count, so memory stays bounded. None where missing.

    Raises
    ------
    CellError
        A list or an object: only scalars are kept.
    """
    if type(value) is int:
        return repr(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        if isinstance(value, float) and not math.isfinite(value):
            return None if math.isnan(value) else repr(value)
        return canonical_number(value)
    if value is None:
        return None
    if not isinstance(value, str):
        raise CellError("not a scalar")
    if len(value) > LONGEST_EXTRA_TEXT:
        return f"text:{text_hash(value)}:{len(value)}"
    return _canonical_text(value)


@lru_cache(maxsize=1 << 14)  # columns repeat their few values in most rows
def _canonical_text(value: str) -> str | None:
    stripped = value.strip()
    lowered = stripped.lower()
    if lowered in MISSING_WORDS:
        return None
    if lowered in ("true", "false"):
        return lowered
    wrapped = _WRAPPED.match(stripped)
    inner = wrapped.group(1) if wrapped else stripped
    if _NUMBER.match(inner):
        read = float(inner)
        if abs(read) < _EXACT_LIMIT:
            return canonical_number(read)
    return stripped


def canonical_number(value: float) -> str:
    """Write a number so that 1, 1.0 and "1" look the same."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_LIMIT:
        return str(int(value))
    return repr(value)


def cut_by_limit(value: object) -> bool | None:
    """Read a stop reason: True where the length limit ended the response, None where missing."""
    if is_missing(value):
        return None
    return str(value).strip().lower() in CUT_WORDS


def text_hash(text: str) -> str:
    """Hash a text to 16 hex digits (blake2b, 64 bits); lone surrogates are allowed."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def flatten(row: dict[str, Any]) -> dict[str, Any]:
    """Lift scalars one level deep out of objects: ``{"a": {"b": 1}}`` gives ``{"a.b": 1}``."""
    if not any(type(value) is dict for value in row.values()):
        return row
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update((f"{key}.{below}", inner) for below, inner in value.items())
        else:
            flat[key] = value
    return flat


def table_at(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object under a key, or an empty one where there is none."""
    found = row.get(name)
    return found if isinstance(found, dict) else {}


def tables_at(row: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects of the list under a key; anything else in it is passed over."""
    found = row.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
