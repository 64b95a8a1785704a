"""What std normalisation and dynamic sampling do to prompts of different pass rates (C6, C7).

One prompt with G iid right-or-wrong responses of pass rate p, K of them right; first on-policy
step. ddof 0 is the population standard deviation of a group's rewards, ddof 1 the sample one.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from dapolab.theory.arguments import require_count
from dapolab.theory.groups import mixed_groups, p_mixed
from dapolab.theory.quadrature import FloatArray


def _std_ratio(group_size: int, ddof: int) -> float:
    """Return population std over the std used."""
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    return 1.0 if ddof == 0 else math.sqrt((group_size - 1) / group_size)


def _rates(p: ArrayLike) -> FloatArray:
    rates = np.asarray(p, dtype=np.float64)
    if not np.all((rates >= 0.0) & (rates <= 1.0)):
        raise ValueError("pass rates must lie in [0, 1]")
    return rates


def expected_group_std(p: ArrayLike, *, group_size: int) -> FloatArray:
    """Return E[sqrt(K(G-K))]/G, the mean population std of a group's 0/1 rewards (C6).

    This is also the expected step of the prompt's logit under std-normalised advantages: it goes
    to 0 at p = 0 and p = 1 however large the advantages get.
    """
    G = require_count(group_size, name="group_size", least=2)
    rates = _rates(p)
    K = np.arange(1, G)
    pmf = stats.binom.pmf(K, G, rates[..., None])
    return np.asarray(pmf @ np.sqrt(K * (G - K)) / G)


def std_weight(p: ArrayLike, *, group_size: int, ddof: int = 0) -> FloatArray:
    """Return c_G(p): the expected std-normalised gradient of a prompt is c_G(p) grad p (C6).

    c_G = E[sqrt(K(G-K))]/(G p(1-p)), times sqrt((G-1)/G) with the sample std; mean-only
    advantages have the constant 1 - 1/G in its place. At p = 0 and p = 1 the limit sqrt(G-1) is
    returned, its largest value.
    """
    G = require_count(group_size, name="group_size", least=2)
    rates = _rates(p)
    ratio = _std_ratio(G, ddof)
    K = np.arange(1, G)
    # pmf(K; G, p)/(p(1-p)) as the binomial of two fewer trials: no 0/0 at the ends.
    pmf = stats.binom.pmf(K - 1, G - 2, rates[..., None])
    factor = np.sqrt(K * (G - K)) * G * (G - 1) / (K * (G - K))
    return np.asarray(ratio * (pmf @ factor) / G)


def std_weight_large_group(p: ArrayLike) -> FloatArray:
    """Return 1/sqrt(p(1-p)), the limit of c_G for G without bound; inf at 0 and 1 (C6).

    The form in circulation. It diverges at the ends, where c_G stays below sqrt(G-1).
    """
    rates = _rates(p)
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / np.sqrt(rates * (1.0 - rates)))


def std_weight_bound(*, group_size: int, ddof: int = 0) -> float:
    """Return sup over p of c_G(p) = sqrt(G-1), reached as p goes to 0 or 1 (C6)."""
    G = require_count(group_size, name="group_size", least=2)
    return math.sqrt(G - 1) * _std_ratio(G, ddof)


def max_abs_advantage(*, group_size: int, ddof: int) -> float:
    """Return the largest |A| of a binary group: sqrt(G-1), or (G-1)/sqrt(G) at ddof 1 (C6).

    It is that of the one right (or wrong) response of a group; no reward vector whatever exceeds
    it. The eps that frameworks add to the std is left out.
    """
    G = require_count(group_size, name="group_size", least=2)
    return math.sqrt(G - 1) * _std_ratio(G, ddof)


def sum_abs_advantage(n_correct: ArrayLike, *, group_size: int, ddof: int) -> FloatArray:
    """Return the sum of |A| over a group with K right: 2 sqrt(K(G-K)), ddof 0 (C6).

    At ddof 1 it is smaller by sqrt((G-1)/G). 0 for groups that are all right or all wrong.
    """
    G = require_count(group_size, name="group_size", least=2)
    K = np.asarray(n_correct, dtype=np.float64)
    if not np.all((K >= 0) & (K <= G)):
        raise ValueError(f"n_correct must lie between 0 and group_size {G}")
    return np.asarray(2.0 * np.sqrt(K * (G - K)) * _std_ratio(G, ddof))


@dataclass(frozen=True)
class DynamicSamplingGradient:
    """Expected gradient under the filter over the one without: a number, no direction (C7).

    ``gain`` = 1/E[q]; inf where no group can be mixed. ``kept_share_P`` is each prompt's share of
    the kept groups, w q(p)/E[q]; its expected gradient *given* that it is kept is 1/q(p) times
    its unconditional one, so both together leave the direction as it was.
    """

    gain: float
    kept_share_P: FloatArray


def dynamic_sampling_gradient(
    pass_rates_P: ArrayLike, *, group_size: int, weights: ArrayLike | None = None
) -> DynamicSamplingGradient:
    """Return E[g | filter] / E[g] = 1/E[q] (C7).

    Holds for aggregation per group (any of the modes, with or without std), iid prompts,
    on-policy, a fixed number of kept groups: dropped groups had gradient 0. A token mean over the
    whole batch differs through its random denominator.
    """
    G = require_count(group_size, name="group_size")
    p = _rates(pass_rates_P).ravel()
    w = np.full(p.size, 1.0) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
    law = mixed_groups(p, group_size=G, weights=w)
    if law.p_mixed == 0.0:
        return DynamicSamplingGradient(math.inf, np.zeros(p.size))
    share = w / w.sum() * p_mixed(p, group_size=G) / law.p_mixed
    return DynamicSamplingGradient(law.oversample, share)
