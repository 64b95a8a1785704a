"""Non-negative linear regression of seconds, exact or known to an interval, with its covariance.

seconds_i = Σ_k x_ik θ_k · (1 + σ ε_i), θ ≥ 0, ε normal: the noise of a duration grows with it. An
observation that a poll has rounded up lies in (low, high]; its likelihood is the normal mass of
that interval. Dependent rows (iterations of one run, steps of one training) share a cluster, and
the covariance is the sandwich over clusters.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from dapolab.stats import LEVEL

Floats = NDArray[np.float64]
Loss = Callable[[Floats], tuple[float, Floats]]
_REWEIGHTINGS = 6
_FEWEST_RUNS, _BLOCKS = 10, 40
_SMALLEST_SPREAD = 1e-6
_MOST_STEPS = 60
# Where polls are much coarser than the noise its size is not identified; no engine repeats a wave
# to better than half a per cent.
_LEAST_SIGMA = 0.005


@dataclass(frozen=True, eq=False)
class Solution:
    """A fitted regression.

    Attributes
    ----------
    theta_K : coefficients, 0 where the bound holds them.
    covariance_KK : zero rows where a coefficient is at its bound (one-sided, no normal law).
    fitted_I : seconds of the model at each row.
    sigma : relative standard deviation of a row's noise.
    n_clusters : independent pieces behind the covariance; its t has one degree of freedom fewer.
    """

    theta_K: Floats
    covariance_KK: Floats
    fitted_I: Floats
    sigma: float
    n_clusters: int

    def half_widths(self, *, level: float = LEVEL) -> Floats:
        """Return the half width of each coefficient's interval."""
        factor = special.stdtrit(max(self.n_clusters - 1, 1), 0.5 + level / 2)
        return np.asarray(factor * np.sqrt(np.diag(self.covariance_KK)))


def clusters_of(run_I: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a cluster a row: the run where there are ten or more, else blocks in file order."""
    runs, index = np.unique(run_I, return_inverse=True)
    if len(runs) >= _FEWEST_RUNS:
        return np.asarray(index, dtype=np.int64)
    n = len(run_I)
    return np.arange(n, dtype=np.int64) * min(n, _BLOCKS) // max(n, 1)


def solve(
    x_IK: Floats, low_I: Floats, high_I: Floats, *, cluster_I: NDArray[np.int64] | None = None
) -> Solution:
    """Return the maximum-likelihood coefficients, all ≥ 0.

    Parameters
    ----------
    x_IK : design; a column that is all zero gets coefficient 0.
    low_I, high_I : seconds; equal where exact, else the truth lies in (low, high].
    cluster_I : cluster of each row; absent: every row its own.
    """
    scale_K = np.sqrt((x_IK**2).mean(axis=0))
    scale_K[scale_K == 0] = 1.0
    x = x_IK / scale_K
    middle = (low_I + high_I) / 2
    theta = _weighted(x, middle)
    cluster = np.arange(len(x)) if cluster_I is None else cluster_I
    if (high_I > low_I).any():
        theta, sigma, covariance = _censored(x, low_I, high_I, theta)
    else:
        sigma = _spread(middle / (x @ theta) - 1, n_used=int((theta > 0).sum()))
        covariance = _sandwich(x, middle, theta, cluster)
    return Solution(
        theta_K=theta / scale_K,
        covariance_KK=covariance / np.outer(scale_K, scale_K),
        fitted_I=x @ theta,
        sigma=sigma,
        n_clusters=len(np.unique(cluster)),
    )


def _weighted(x: Floats, y: Floats) -> Floats:
    """Least squares of relative residuals under θ ≥ 0, weights 1/fitted² (reweighted)."""
    weight = 1.0 / y
    theta = np.zeros(x.shape[1])
    for _ in range(_REWEIGHTINGS):
        theta = optimize.nnls(x * weight[:, None], y * weight)[0]
        fitted = x @ theta
        weight = 1.0 / np.maximum(fitted, 1e-3 * y)
    return np.asarray(theta)


def _spread(relative: Floats, *, n_used: int) -> float:
    freedom = max(len(relative) - n_used, 1)
    return max(float(np.sqrt((relative**2).sum() / freedom)), _SMALLEST_SPREAD)


def _sandwich(x: Floats, y: Floats, theta: Floats, cluster: NDArray[np.int64]) -> Floats:
    """Cluster-robust covariance of the coefficients inside the bound, Liang and Zeger's form."""
    covariance = np.zeros((len(theta), len(theta)))
    free = np.flatnonzero(theta > 0)
    fitted = x @ theta
    xw = x[:, free] / fitted[:, None]
    score = xw * (y / fitted - 1)[:, None]
    groups = np.unique(cluster, return_inverse=True)[1]
    total = np.zeros((groups.max() + 1, len(free)))
    np.add.at(total, groups, score)
    bread = np.linalg.pinv(xw.T @ xw)
    n, g, k = len(x), len(total), len(free)
    widen = g / max(g - 1, 1) * (n - 1) / max(n - k, 1)
    covariance[np.ix_(free, free)] = widen * bread @ (total.T @ total) @ bread
    return covariance


def _censored(x: Floats, low: Floats, high: Floats, start: Floats) -> tuple[Floats, float, Floats]:
    """Maximise the interval likelihood over θ ≥ 0 and log σ; covariance from the curvature."""
    width = float((high - low).mean() / ((low + high) / 2).mean())
    begin = np.append(np.maximum(start, 1e-9), np.log(max(width / 2, _LEAST_SIGMA)))

    def loss(parameters: Floats) -> tuple[float, Floats]:
        value, gradient = _log_likelihood(x, low, high, parameters)
        return -value, -gradient

    best, least = begin, np.inf
    # several spreads to start from: with wide intervals the likelihood is flat in σ
    for shift in (0.0, -1.5):
        found, value = _newton(loss, np.append(begin[:-1], begin[-1] + shift))
        if value < least:
            best, least = found, value
    theta, sigma = best[:-1], float(np.exp(best[-1]))
    tiny = 1e-6 * max(float(theta.max()), 1e-12)
    free = [k for k in range(len(theta)) if theta[k] > tiny]
    theta = np.where(theta > tiny, theta, 0.0)
    pick = [*free, len(theta)] if sigma > 1.001 * _LEAST_SIGMA else free
    size, axes = np.linalg.eigh(_curvature(loss, np.append(theta, best[-1]), pick))
    # a direction without curvature is unknown, not exact
    inverse = (axes / np.maximum(size, 1e-9 * max(size.max(), 1e-300))) @ axes.T
    covariance = np.zeros((len(theta), len(theta)))
    inverse = inverse[: len(free), : len(free)]
    # a normal likelihood divides by n where least squares divides by n − k
    covariance[np.ix_(free, free)] = inverse * len(x) / max(len(x) - len(pick), 1)
    return theta, sigma, covariance


def _newton(loss: Loss, start: Floats) -> tuple[Floats, float]:
    """Minimise by Newton steps under θ ≥ 0 (last coordinate: log σ, in its range)."""
    low = np.append(np.zeros(len(start) - 1), np.log(_LEAST_SIGMA))
    high = np.append(np.full(len(start) - 1, np.inf), 0.0)
    at = np.clip(start, low, high)
    value, gradient = loss(at)
    for _ in range(_MOST_STEPS):
        size, axes = np.linalg.eigh(_curvature(loss, at, list(range(len(at)))))
        root = axes * np.sqrt(np.maximum(size, 1e-9 * size.max() + 1e-12))
        # the quadratic's minimum inside the bounds, as a least-squares problem in its root
        target = root.T @ at - np.linalg.solve(root, gradient)
        move = optimize.lsq_linear(root.T, target, bounds=(low - 1e-15, high)).x - at
        scale = 1.0
        while scale > 1e-6 and loss(np.maximum(at + scale * move, low))[0] > value:
            scale /= 2
        reached = np.clip(at + scale * move, low, high)
        gain = value - loss(reached)[0]
        if not gain > 0:
            break
        at = reached
        value, gradient = loss(at)
        if gain < 1e-10:
            break
    return at, value


def _log_likelihood(
    x: Floats, low: Floats, high: Floats, parameters: Floats
) -> tuple[float, Floats]:
    """Return the log likelihood and its gradient in (θ, log σ).

    With u = (t/μ − 1)/σ at either end, log P = log(Φ(u_high) − Φ(u_low)).
    """
    mean, sigma = np.maximum(x @ parameters[:-1], 1e-9), np.exp(parameters[-1])
    upper, lower = (high / mean - 1) / sigma, (low / mean - 1) / sigma
    # in the upper tail 1 − Φ cancels: mirror it
    flip = lower > 0
    big = special.log_ndtr(np.where(flip, -lower, upper))
    small = special.log_ndtr(np.where(flip, -upper, lower))
    wide = high > low
    mass = big + np.log(-np.expm1(np.minimum(small - big, -1e-300)))
    value = np.where(wide, mass, -0.5 * upper**2 - np.log(mean * sigma))

    def density(u: Floats) -> Floats:
        log_ratio = -0.5 * u**2 - 0.5 * np.log(2 * np.pi) - mass
        return np.asarray(np.exp(np.minimum(log_ratio, 300.0)))

    at_high, at_low = density(upper), density(lower)
    slope = (at_low * low - at_high * high) / (mean**2 * sigma)
    by_mean = np.where(wide, slope, upper * high / (mean**2 * sigma) - 1 / mean)
    by_sigma = np.where(wide, at_low * lower - at_high * upper, upper**2 - 1)
    return float(value.sum()), np.append(x.T @ by_mean, by_sigma.sum())


def _curvature(loss: Loss, at: Floats, pick: list[int]) -> Floats:
    """Central differences of the gradient in the picked coordinates, made symmetric."""
    step = np.where(np.abs(at) > 0, 1e-4 * np.abs(at), 1e-7)
    rows = []
    for i in pick:
        move = np.zeros_like(at)
        move[i] = step[i]
        rows.append((loss(at + move)[1] - loss(at - move)[1])[pick] / (2 * step[i]))
    hessian = np.array(rows)
    return np.asarray((hessian + hessian.T) / 2)
