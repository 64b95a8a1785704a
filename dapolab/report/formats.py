"""Numbers and intervals as people read them."""

import math
import numbers
from typing import Any

import pandas as pd

from dapolab.stats import Estimate

MISSING = "—"
_NARROW = 0.02


def decimals_for(value: float, *, half_width: float) -> int:
    """Return the decimals that show two digits of the half width, at most five of the value.

    Without a width (exact, or zero) three digits of the value are shown.
    """
    size = abs(value)
    magnitude = math.floor(math.log10(size)) if size > 0 else 0
    if half_width > 0:
        wanted = 1 - math.floor(math.log10(half_width))
    else:
        wanted = 2 - magnitude
    return max(0, min(wanted, 4 - magnitude, 6))


def number(value: float, *, decimals: int | None = None) -> str:
    """Return a number with thousands separators; three significant digits unless told otherwise."""
    if decimals is None and 0 < abs(value) < 5e-7:
        return ("−" if value < 0 else "") + f"{abs(value):.1e}"
    if decimals is None:
        whole = float(value).is_integer() and abs(value) < 1e15
        decimals = 0 if whole else decimals_for(value, half_width=0.0)
    text = f"{value:,.{decimals}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) != 0 else text.lstrip("-")


def tick(value: float) -> str:
    """Return a number of an axis: at most four digits, never a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"


def estimate(value: Estimate) -> str:
    """Return ``mean [low, high]`` in the digits that the interval supports; shares in per cent."""
    scale, suffix = (100.0, " %") if value.unit == "share" else (1.0, "")
    mean = value.mean * scale
    if value.low is None or value.high is None:
        return number(mean) + suffix
    low, high = value.low * scale, value.high * scale
    if max(abs(low), abs(high)) < 1e-12:  # what rounding leaves of a difference that is 0
        return "0" + suffix
    decimals = decimals_for(mean, half_width=(high - low) / 2)
    if high == low:
        return number(mean) + suffix
    text = number(mean, decimals=decimals) + suffix
    return f"{text} [{number(low, decimals=decimals)}, {number(high, decimals=decimals)}]"


def brief(value: Estimate) -> str:
    """Return an estimate for running text: three digits, the interval only where they hide it.

    An interval narrower than two per cent of the mean on either side is left to the tables.
    """
    if value.low is None or value.high is None:
        return estimate(value)
    if (value.high - value.low) / 2 > _NARROW * abs(value.mean):
        return estimate(value)
    scale, suffix = (100.0, " %") if value.unit == "share" else (1.0, "")
    return number(value.mean * scale) + suffix


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: None, NaN or <NA>."""
    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def cell(value: Any, *, spec: str | None = None) -> str:
    """Return a table cell as text; a missing value as a dash."""
    if isinstance(value, Estimate):
        return estimate(value)
    if is_missing(value):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Real):
        return format(value, spec) if spec else number(float(value))
    return str(value)


def sort_key(value: Any) -> str:
    """Return what a table column sorts by: the number where there is one, else the text."""
    if isinstance(value, Estimate):
        return repr(value.mean)
    if is_missing(value):
        return ""
    if isinstance(value, numbers.Real):
        return repr(float(value))
    return str(value)


def is_number(value: Any) -> bool:
    """Whether a cell is set flush right."""
    return isinstance(value, Estimate) or (
        isinstance(value, numbers.Real) and not isinstance(value, bool)
    )
