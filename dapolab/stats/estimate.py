"""One number with its interval, and the intervals of a mean, a share and a quantile."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

LEVEL = 0.99
"""Confidence of every published interval."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A METRIC of the JSON contract: a value, its interval, and on how many repetitions it rests.

    Attributes
    ----------
    mean : the value, in ``unit``; also where it is a ratio of totals or a quantile.
    low, high : ends of the interval; None where there is none (one repetition, or exact).
    n : independent repetitions behind the value.
    unit : unit of mean, low and high.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    unit: str

    def __post_init__(self) -> None:
        for name in ("mean", "low", "high"):
            value = getattr(self, name)
            if value is None and name != "mean":
                continue
            if not math.isfinite(value):
                raise ValueError(f"{name} of an estimate is {value}: leave a missing metric out")
            object.__setattr__(self, name, float(value))
        object.__setattr__(self, "n", int(self.n))

    @classmethod
    def exact(cls, value: float, *, unit: str, n: int = 1) -> "Estimate":
        """Return an estimate without an interval: a closed form, or one deterministic run."""
        return cls(mean=value, low=None, high=None, n=n, unit=unit)

    @property
    def has_interval(self) -> bool:
        """Whether both ends of the interval exist."""
        return self.low is not None and self.high is not None

    def covers(self, value: float) -> bool:
        """Whether ``value`` lies in the closed interval, or equals the mean where there is none."""
        if self.low is None or self.high is None:
            return value == self.mean
        return self.low <= value <= self.high

    def to_json(self) -> dict[str, float | int | str | None]:
        """Return the METRIC document ``{"mean", "low", "high", "n", "unit"}``."""
        return {
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "n": self.n,
            "unit": self.unit,
        }


def sample(x: npt.ArrayLike, *, name: str = "x") -> Floats:
    """Return ``x`` as a 1-d float array, one entry a repetition.

    Raises
    ------
    ValueError : empty, not one-dimensional, or not finite (a missing metric is left out, not NaN).
    """
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name} must be a non-empty list of numbers, one a repetition")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinity: leave the missing repetitions out")
    return values


def check_level(level: float) -> None:
    """Raise ValueError unless ``level`` lies strictly between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, not {level}")


def t_factor(n: int, *, level: float) -> float:
    """Return the two-sided Student factor for ``n`` repetitions, n - 1 degrees of freedom."""
    check_level(level)
    return float(special.stdtrit(n - 1, 0.5 + level / 2))


def simultaneous(level: float = LEVEL, *, n_comparisons: int) -> float:
    """Return the level of each of ``n_comparisons`` intervals that hold together at ``level``.

    Bonferroni: 1 - (1 - level)/k, whatever the dependence between the comparisons.

    Raises
    ------
    ValueError : no comparison, or a level outside (0, 1).
    """
    check_level(level)
    if n_comparisons < 1:
        raise ValueError("simultaneous intervals need at least one comparison")
    return 1.0 - (1.0 - level) / n_comparisons


def t_interval(
    mean: float, standard_error: float, *, n: int, level: float = LEVEL
) -> tuple[float, float]:
    """Return both ends of Student's interval of a mean whose standard error is known.

    Raises
    ------
    ValueError : n < 2, or a level outside (0, 1).
    """
    if n < 2:
        raise ValueError("an interval needs two repetitions")
    half = t_factor(n, level=level) * standard_error
    return mean - half, mean + half


def mean_estimate(x: npt.ArrayLike, *, unit: str = "", level: float = LEVEL) -> Estimate:
    """Return the mean of independent repetitions with Student's t interval.

    Parameters
    ----------
    x : array (n,), one value a repetition, in ``unit``.
    unit : unit of the values.
    level : confidence.

    Returns
    -------
    Estimate : without an interval for n = 1; of zero width where all values are equal.

    Raises
    ------
    ValueError : empty, NaN, or a level outside (0, 1).
    """
    values = sample(x)
    check_level(level)
    n = values.size
    if n > 1 and np.all(values == values[0]):
        # exactly: the mean of equal floats may differ from them in the last digit
        return Estimate(values[0], values[0], values[0], n, unit)
    mean = float(values.mean())
    if n < 2:
        return Estimate(mean, None, None, n, unit)
    half = t_factor(n, level=level) * float(values.std(ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n, unit)


def wilson(k: int, n: int, *, unit: str = "share", level: float = LEVEL) -> Estimate:
    """Return the share k/n with Wilson's score interval.

    Source: E. B. Wilson, JASA 22 (1927) 209, the roots of (p - k/n)² = z² p(1 - p)/n.

    Raises
    ------
    ValueError : n < 1 or k outside 0..n.
    """
    check_level(level)
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"a share needs 0 <= k <= n and n >= 1, not k={k}, n={n}")
    z = float(special.ndtri(0.5 + level / 2))
    p = k / n
    scale = 1.0 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if k == 0 else max(0.0, centre - half)
    high = 1.0 if k == n else min(1.0, centre + half)
    return Estimate(p, low, high, n, unit)


def quantile_estimate(
    x: npt.ArrayLike, p: float, *, unit: str = "", level: float = LEVEL
) -> Estimate:
    """Return the p-quantile of independent values with the order-statistic interval.

    No distribution is assumed: P(X_(l) <= quantile <= X_(u)) = P(l <= Bin(n, p) <= u - 1). Where n
    is too small for an end to exist at this level, that end is None.

    Parameters
    ----------
    x : array (n,), independent values in ``unit`` (responses of one run are not independent).
    p : probability of the quantile, in (0, 1).

    Raises
    ------
    ValueError : empty, NaN, p or level outside (0, 1).
    """
    values = np.sort(sample(x))
    check_level(level)
    if not 0.0 < p < 1.0:
        raise ValueError(f"the quantile's probability must lie between 0 and 1, not {p}")
    n = values.size
    tail = (1.0 - level) / 2
    below = special.bdtr(np.arange(n + 1), n, p)  # P(Bin <= j), j = 0..n
    n_low = int(np.searchsorted(below, tail, side="right"))  # largest l with P(Bin <= l-1) <= tail
    # smallest u with P(Bin >= u) <= tail
    n_high = int(np.searchsorted(-(1.0 - below), -tail, side="left")) + 1
    low = float(values[n_low - 1]) if n_low >= 1 else None
    high = float(values[n_high - 1]) if n_high <= n else None
    return Estimate(float(np.quantile(values, p)), low, high, n, unit)
