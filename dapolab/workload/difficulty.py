"""Pass-rate laws over prompts, and the probability that a group is mixed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from dapolab.scenario import (
    BetaPassRate,
    ConfigError,
    FixedPassRate,
    ListedPassRate,
    LogitNormalPassRate,
    MixedProbability,
    PassRate,
)

Floats = NDArray[np.float64]
# Half-width and spacing of the trapezoid rule for expectations over a standard normal. On the
# whole line the rule is exponentially accurate for analytic integrands and, unlike Gauss–Hermite
# of the same size, keeps even resolution where pass rates switch quickly.
_NORMAL_REACH = 6.5


def mixed_probability_given(pass_rate: ArrayLike, *, group_size: int) -> Floats:
    """Return q(p) = 1 − p^G − (1 − p)^G: a group is neither all right nor all wrong (A1)."""
    p = np.asarray(pass_rate, dtype=np.float64)
    return np.asarray(1.0 - p**group_size - (1.0 - p) ** group_size)


def mixed_share_of_counts(n_correct: ArrayLike, n: ArrayLike, *, group_size: int) -> Floats:
    """Return 1 − [C(K, G) + C(n − K, G)]/C(n, G) per prompt: unbiased for q where G ≤ n.

    Putting K/n into q(p) instead is biased low, as q is concave. nan where G > n: only a fitted
    law can say what a larger group does.
    """
    k, m = np.asarray(n_correct, dtype=np.float64), np.asarray(n, dtype=np.float64)
    right, wrong = np.ones_like(m), np.ones_like(m)
    with np.errstate(divide="ignore", invalid="ignore"):
        for j in range(group_size):
            right = right * np.maximum(k - j, 0.0) / (m - j)
            wrong = wrong * np.maximum(m - k - j, 0.0) / (m - j)
    return np.where(m >= group_size, 1.0 - right - wrong, np.nan)


def pass_rate_for(p_mixed: float, *, group_size: int) -> float:
    """Return the p ≤ ½ at which a group of ``group_size`` is mixed with probability ``p_mixed``.

    Raises
    ------
    ConfigError
        If the value exceeds the largest reachable one, 1 − 2^(1−G), which p = ½ gives.
    """
    top = 1.0 - 2.0 ** (1 - group_size)
    if p_mixed > top:
        raise ConfigError(
            f"workload.pass_rate.p_mixed {p_mixed:g} is out of reach for groups of {group_size}: "
            f"the largest is {top:.6g} (at a pass rate of one half); lower it or raise "
            "rollout.group_size"
        )
    if p_mixed in (0.0, top):
        return 0.0 if p_mixed == 0.0 else 0.5

    def gap(p: float) -> float:
        return float(mixed_probability_given(p, group_size=group_size)) - p_mixed

    return float(optimize.brentq(gap, 0.0, 0.5, xtol=1e-15, rtol=1e-14))


def normal_nodes(n: int, *, reach: float = _NORMAL_REACH) -> tuple[Floats, Floats]:
    """Return ``n`` nodes and weights for an expectation over N(0, 1); n = 1 gives the mean.

    Nodes are evenly spaced over ±``reach`` standard deviations.
    """
    if n == 1:
        return np.zeros(1), np.ones(1)
    z = np.linspace(-reach, reach, n)
    weight = np.exp(-0.5 * z * z)
    return z, weight / weight.sum()


def logit_mean_for(mean: float, *, sd: float) -> float:
    """Return m with E[expit(m + sd·Z)] = mean for standard normal Z; ±inf at mean 0 and 1."""
    if mean in (0.0, 1.0):
        return -np.inf if mean == 0.0 else np.inf
    if sd == 0.0:
        return float(special.logit(mean))
    z, weight = normal_nodes(129)

    def gap(m: float) -> float:
        return float(weight @ special.expit(m + sd * z)) - mean

    reach = abs(float(special.logit(mean))) + 8.0 * sd + 1.0
    return float(optimize.brentq(gap, -reach, reach, xtol=1e-12))


@dataclass(frozen=True, eq=False)
class PassRateLaw:
    """Pass rates of prompts as a function of one standard normal or one uniform per prompt.

    ``nodes`` (p, weight) integrate any smooth function of the pass rate, exactly for polynomials
    up to degree 127 where the law is a Beta.
    """

    config: FixedPassRate | BetaPassRate | LogitNormalPassRate | ListedPassRate

    def logits(self, uniform: Floats) -> Floats:
        """Return logit pass rates for uniforms in (0, 1); ±inf where p is 0 or 1."""
        match self.config:
            case FixedPassRate(p=p):
                return np.full(uniform.shape, special.logit(p))
            case BetaPassRate(a=a, b=b):
                return np.asarray(special.logit(special.betaincinv(a, b, uniform)))
            case LogitNormalPassRate(mean_logit=mean, sd_logit=sd):
                return np.asarray(mean + sd * special.ndtri(uniform))
            case ListedPassRate(values=values):
                index = np.minimum((uniform * len(values)).astype(np.int64), len(values) - 1)
                return np.asarray(special.logit(np.asarray(values, dtype=np.float64)[index]))

    def nodes(self) -> tuple[Floats, Floats]:
        """Return pass rates and their weights (sum 1)."""
        match self.config:
            case FixedPassRate(p=p):
                return np.array([p]), np.ones(1)
            case BetaPassRate(a=a, b=b):
                x, weight = special.roots_jacobi(64, b - 1.0, a - 1.0)
                return np.asarray((1.0 + x) / 2.0), np.asarray(weight / weight.sum())
            case LogitNormalPassRate(mean_logit=mean, sd_logit=sd):
                z, weight = normal_nodes(1 if sd == 0.0 else 129)
                return np.asarray(special.expit(mean + sd * z)), weight
            case ListedPassRate(values=values):
                return np.asarray(values, float), np.full(len(values), 1.0 / len(values))


def pass_rate_law(config: PassRate, *, group_size: int) -> PassRateLaw:
    """Return the law of a ``[workload.pass_rate]`` table; ``p_mixed`` is solved for this G."""
    if isinstance(config, MixedProbability):
        config = FixedPassRate(p=pass_rate_for(config.p_mixed, group_size=group_size))
    return PassRateLaw(config)
