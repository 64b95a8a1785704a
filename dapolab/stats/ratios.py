"""Ratios of totals over replications, alone and paired.

"Seconds per trained group" is all seconds over all trained groups, not the mean of the per-step
ratios: a step that trains nothing has no ratio, yet its seconds are paid. The unit is the
replication, so each gives one numerator and one denominator total.

Interval: the jackknife of the logarithm of the ratio of totals, with Student's t. The logarithm
keeps the interval positive and makes a/b and b/a the same statement; leaving replications out
needs no formula for the covariance of numerator and denominator, and pairs two policies by leaving
out the same replication of both. The t interval on the logs of per-replication ratios was set
aside: it estimates the geometric mean of those ratios, which is another quantity, and it does not
exist when one replication trains nothing. Coverage is measured in tests/validation.

Limit: Student's t wants totals that are not too skewed. With lognormal totals the stated 99 % are
98.8 % at σ = 0.2 and 97.7 % at σ = 0.5 (20 replications, 2,000 studies), so a replication should be
many steps long: its total is then a sum, and nearly symmetric.
"""

import math

import numpy as np
import numpy.typing as npt

from dapolab.stats.estimate import (
    LEVEL,
    Estimate,
    Floats,
    check_level,
    mean_estimate,
    sample,
    t_factor,
)


def log_ratio_jackknife(num: Floats, den: Floats) -> tuple[float, Floats]:
    """Return log(Σnum/Σden) and its values with each replication left out, (n,).

    A value left out may be infinite; the caller decides what that means.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = np.log(_left_out(num)) - np.log(_left_out(den))
        return float(np.log(num.sum()) - np.log(den.sum())), left_out


def _left_out(x: Floats) -> Floats:
    # x.sum() - x loses all digits where one replication holds nearly everything; exact zeros matter
    return np.asarray([x[np.arange(x.size) != i].sum() for i in range(x.size)], dtype=np.float64)


def jackknife_se(left_out: Floats) -> float:
    """Return the jackknife standard error of a statistic from its leave-one-out values (n,)."""
    n = left_out.size
    if np.all(left_out == left_out[0]):
        return 0.0
    return math.sqrt((n - 1) / n * float(np.square(left_out - left_out.mean()).sum()))


def _totals(num: npt.ArrayLike, den: npt.ArrayLike, *, name: str) -> tuple[Floats, Floats]:
    numerator, denominator = sample(num, name=name), sample(den, name=f"{name}'s denominator")
    if numerator.shape != denominator.shape:
        raise ValueError(f"{name} needs one numerator and one denominator per replication")
    if (numerator < 0).any() or (denominator < 0).any():
        raise ValueError(f"{name} needs totals that are not negative")
    if denominator.sum() <= 0:
        raise ValueError(f"{name} has a denominator that is 0 in every replication")
    return numerator, denominator


def ratio_of_totals(
    num: npt.ArrayLike, den: npt.ArrayLike, *, unit: str = "ratio", level: float = LEVEL
) -> Estimate:
    """Return Σnum/Σden with the interval of the log jackknife.

    Parameters
    ----------
    num, den : arrays (n,), totals of each independent replication, not negative.
    unit : unit of the ratio.

    Returns
    -------
    Estimate : without an interval for n = 1, or where one replication alone makes the ratio
        positive or finite; of zero width where every replication has the same ratio.

    Raises
    ------
    ValueError : shapes differ, NaN, a negative total, or a denominator that is 0 throughout.
    """
    numerator, denominator = _totals(num, den, name="a ratio of totals")
    check_level(level)
    n = numerator.size
    ratio = float(numerator.sum() / denominator.sum())
    if n > 1 and not numerator.any():
        return Estimate(0.0, 0.0, 0.0, n, unit)
    if n < 2 or ratio == 0.0:
        return Estimate(ratio, None, None, n, unit)
    _, left_out = log_ratio_jackknife(numerator, denominator)
    return _around(ratio, left_out, unit=unit, level=level)


def ratio_standard_error(num: npt.ArrayLike, den: npt.ArrayLike) -> float | None:
    """Return the standard error of Σnum/Σden: the ratio × the jackknife error of its logarithm.

    None for one repetition, and where one repetition alone makes the ratio positive or finite.

    Raises
    ------
    ValueError : shapes differ, NaN, a negative total, or a denominator that is 0 throughout.
    """
    numerator, denominator = _totals(num, den, name="a ratio of totals")
    if numerator.size < 2 or not numerator.any():
        return 0.0 if numerator.size > 1 else None
    left_out = log_ratio_jackknife(numerator, denominator)[1]
    if not np.isfinite(left_out).all():
        return None
    return float(numerator.sum() / denominator.sum()) * jackknife_se(left_out)


def paired_ratio(
    num_a: npt.ArrayLike,
    den_a: npt.ArrayLike,
    num_b: npt.ArrayLike,
    den_b: npt.ArrayLike,
    *,
    level: float = LEVEL,
) -> Estimate:
    """Return (Σnum_a/Σden_a) / (Σnum_b/Σden_b), replication i of a paired with i of b.

    Parameters
    ----------
    num_a, den_a, num_b, den_b : arrays (n,), totals of each replication, not negative.
    level : confidence; pass ``simultaneous(level, n_comparisons=k)`` for k comparisons at once.

    Raises
    ------
    ValueError : lengths differ, NaN, a negative total, a zero denominator, or a zero baseline.
    """
    a_num, a_den = _totals(num_a, den_a, name="the compared policy")
    b_num, b_den = _totals(num_b, den_b, name="the baseline")
    check_level(level)
    if a_num.size != b_num.size:
        raise ValueError("paired policies need the same replications in the same order")
    if not b_num.any():
        raise ValueError("the baseline's ratio is 0: nothing can be compared with it")
    n = a_num.size
    ratio = float((a_num.sum() / a_den.sum()) / (b_num.sum() / b_den.sum()))
    if n < 2 or ratio == 0.0:
        return Estimate(ratio, None, None, n, "ratio")
    left_out = log_ratio_jackknife(a_num, a_den)[1] - log_ratio_jackknife(b_num, b_den)[1]
    return _around(ratio, left_out, unit="ratio", level=level)


def _around(ratio: float, left_out: Floats, *, unit: str, level: float) -> Estimate:
    n = left_out.size
    if not np.isfinite(left_out).all():
        return Estimate(ratio, None, None, n, unit)
    half = t_factor(n, level=level) * jackknife_se(left_out)
    if half > 700.0:  # exp would overflow: the replications do not bound the ratio
        return Estimate(ratio, None, None, n, unit)
    return Estimate(ratio, ratio * math.exp(-half), ratio * math.exp(half), n, unit)


def paired_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, *, unit: str = "", level: float = LEVEL
) -> Estimate:
    """Return the mean of a - b, replication i of a paired with i of b (Student's t).

    Raises
    ------
    ValueError : lengths differ or NaN.
    """
    first, second = sample(a, name="a"), sample(b, name="b")
    if first.size != second.size:
        raise ValueError("paired policies need the same replications in the same order")
    return mean_estimate(first - second, unit=unit, level=level)
