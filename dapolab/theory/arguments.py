"""Checks of arguments: one line that names the argument, what was given and what is allowed."""

import math
import operator

import numpy as np
from numpy.typing import ArrayLike, NDArray


def require_count(value: int, *, name: str, least: int = 1) -> int:
    """Return ``value`` as an int that is at least ``least``, else raise ValueError."""
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {count}")
    return count


def require_probability(value: float, *, name: str) -> float:
    """Return ``value`` as a float in [0, 1], else raise ValueError (NaN included)."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return float(value)


def require_positive(value: float, *, name: str) -> float:
    """Return ``value`` as a finite float above 0, else raise ValueError."""
    if not (value > 0.0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return float(value)


def require_not_negative(value: float, *, name: str) -> float:
    """Return ``value`` as a finite float that is at least 0, else raise ValueError."""
    if not (value >= 0.0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number that is at least 0, got {value}")
    return float(value)


def require_lengths(lengths: ArrayLike) -> NDArray[np.float64]:
    """Return ``lengths`` flat: a non-empty array, finite and at least 0, else raise ValueError."""
    L = np.asarray(lengths, dtype=np.float64).ravel()
    if L.size == 0 or not np.all((L >= 0.0) & np.isfinite(L)):
        raise ValueError("lengths must be a non-empty array of finite numbers that are at least 0")
    return L
