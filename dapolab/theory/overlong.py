"""Soft overlong punishment: flipped signs, penalties of solved groups, what a filter keeps (E1-E6).

Reward R = r_wrong + Delta [right] - f u with u = clip((L - (cap - buffer))/buffer, 0, 1) (DAPO,
arXiv 2503.14476, Eq. 13: Delta = 2, f = 1). The decoder stops at the cap: L never exceeds it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dapolab.theory.arguments import (
    require_count,
    require_not_negative,
    require_positive,
    require_probability,
)
from dapolab.theory.groups import MixedGroups
from dapolab.theory.quadrature import FloatArray, Survival, integrate


def _buffer(cap_tokens: int, buffer_tokens: int) -> tuple[int, int]:
    cap = require_count(cap_tokens, name="cap_tokens")
    buffer = require_count(buffer_tokens, name="buffer_tokens")
    if buffer > cap:
        raise ValueError(f"buffer_tokens {buffer} exceeds cap_tokens {cap}")
    return cap, buffer


def penalty_share(n_tokens: ArrayLike, *, cap_tokens: int, buffer_tokens: int) -> FloatArray:
    """Return u of each length: 0 up to cap - buffer, 1 at the cap, linear between (Eq. 13)."""
    cap, buffer = _buffer(cap_tokens, buffer_tokens)
    lengths = np.asarray(n_tokens, dtype=np.float64)
    return np.clip((lengths - (cap - buffer)) / buffer, 0.0, 1.0)


@dataclass(frozen=True)
class SignFlips:
    """Responses whose advantage has the sign opposite to their outcome, masks of shape (G,)."""

    right_punished_G: NDArray[np.bool_]
    wrong_rewarded_G: NDArray[np.bool_]


def sign_flips(
    correct_G: ArrayLike,
    *,
    penalty_share_G: ArrayLike,
    reward_gap: float = 2.0,
    factor: float = 1.0,
) -> SignFlips:
    """Return who gets the wrong sign in one group (E1).

    A right response iff f (u_i - ubar) > Delta (1 - K/G), a wrong one iff f (ubar - u_i) >
    Delta K/G, ubar the group's mean u. Dividing by the group's std changes no sign.
    """
    right = np.asarray(correct_G, dtype=bool)
    u = np.asarray(penalty_share_G, dtype=np.float64)
    if right.ndim != 1 or right.size == 0 or right.shape != u.shape:
        raise ValueError("correct_G and penalty_share_G must be rows of equal length")
    if not np.all((u >= 0.0) & (u <= 1.0)):
        raise ValueError("penalty_share_G must lie in [0, 1]")
    gap = require_positive(reward_gap, name="reward_gap")
    excess = require_not_negative(factor, name="factor") * (u - u.mean())
    share = right.mean()
    return SignFlips(
        right_punished_G=right & (excess > gap * (1.0 - share)),
        wrong_rewarded_G=~right & (-excess > gap * share),
    )


def flip_threshold(
    n_correct: int, *, group_size: int, reward_gap: float = 2.0, factor: float = 1.0
) -> float:
    """Return the u above which the only penalised response, a right one, gets A < 0 (E1).

    (Delta/f)(G-K)/(G-1). Above 1 it cannot happen: with DAPO's rewards it needs K > (G+1)/2; one
    wrong among 8 sets it at .286, among 16 at .133.
    """
    G = require_count(group_size, name="group_size", least=2)
    K = require_count(n_correct, name="n_correct")
    if K > G:
        raise ValueError(f"n_correct {K} exceeds group_size {G}")
    gap = require_positive(reward_gap, name="reward_gap")
    return gap / require_positive(factor, name="factor") * (G - K) / (G - 1)


@dataclass(frozen=True)
class PenalisedGroup:
    """Advantages in a group of equal outcomes of which some bear one equal penalty."""

    penalised: float
    others: float


def uniform_group_advantages(n_penalised: int, *, group_size: int, ddof: int) -> PenalisedGroup:
    """Return std-normalised advantages of an all-right (or all-wrong) group, m penalised (E2).

    Penalised -sqrt((G-m)/m), others sqrt(m/(G-m)), times sqrt((G-1)/G) at ddof 1: whatever the
    size of the penalty above 0 and of f. One penalised right answer gets -(G-1)/sqrt(G), the
    largest advantage there is. The eps that frameworks add to the std is left out.
    """
    G = require_count(group_size, name="group_size", least=2)
    m = require_count(n_penalised, name="n_penalised")
    if m >= G:
        raise ValueError(f"n_penalised {m} leaves no other response in a group of {G}")
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    ratio = 1.0 if ddof == 0 else float(np.sqrt((G - 1) / G))
    return PenalisedGroup(
        penalised=-ratio * float(np.sqrt((G - m) / m)),
        others=ratio * float(np.sqrt(m / (G - m))),
    )


def p_kept_uniform(
    survival: Survival,
    *,
    group_size: int,
    cap_tokens: int,
    buffer_tokens: int,
    whole_tokens: bool = True,
) -> float:
    """Return P(shaped rewards differ | all G outcomes equal) = 1 - sum_v P(u = v)^G (E3).

    A filter on shaped reward keeps such a group, one on correctness drops it. ``survival`` is
    P(X > x) of the uncut length given that outcome; L = ceil(min(X, cap)) iid. With
    ``whole_tokens`` false lengths are continuous and only u = 0 and u = 1 have mass:
    1 - (1-beta)^G - pi^G, beta = P(X > cap - buffer), pi = P(X > cap).
    """
    G = require_count(group_size, name="group_size")
    cap, buffer = _buffer(cap_tokens, buffer_tokens)
    if whole_tokens:
        above = survival(np.arange(cap - buffer, cap, dtype=np.float64))
        masses = np.concatenate([[1.0 - above[0]], above[:-1] - above[1:], [above[-1]]])
    else:
        beta, pi = survival(np.array([cap - buffer, cap], dtype=np.float64))
        masses = np.array([1.0 - beta, pi])
    return float(1.0 - np.sum(np.maximum(masses, 0.0) ** G)) if G > 1 else 0.0


@dataclass(frozen=True)
class ShapedFilter:
    """What a filter on shaped reward keeps of all groups, against ``p_mixed`` of one on outcomes.

    ``degenerate_share`` is the part of the kept groups without any difference in correctness;
    None where nothing is kept.
    """

    retention: float
    degenerate_share: float | None
    p_mixed: float


def shaped_filter(
    groups: MixedGroups, *, p_kept_all_right: float, p_kept_all_wrong: float
) -> ShapedFilter:
    """Return retention E[q] + w1 k_right + w0 k_wrong and the degenerate share of it (E4).

    w1, w0 are the shares of all-right and all-wrong groups, k from ``p_kept_uniform``. Lengths
    iid given the outcome, the same for all prompts; Delta > f, so that mixed groups always differ.
    """
    extra = groups.p_all_right * require_probability(p_kept_all_right, name="p_kept_all_right")
    extra += groups.p_all_wrong * require_probability(p_kept_all_wrong, name="p_kept_all_wrong")
    retention = groups.p_mixed + extra
    return ShapedFilter(
        retention=retention,
        degenerate_share=extra / retention if retention > 0.0 else None,
        p_mixed=groups.p_mixed,
    )


def expected_penalty_share(
    survival: Survival, *, cap_tokens: int, buffer_tokens: int, whole_tokens: bool = True
) -> float:
    """Return E[u] = (1/buffer) int P(X > x) dx over the buffer, any law of lengths (E5).

    ``survival`` is P(X > x) of the uncut length. With ``whole_tokens`` the integral is the sum over
    x = cap - buffer, ..., cap - 1, exact for L = ceil(min(X, cap)).
    """
    cap, buffer = _buffer(cap_tokens, buffer_tokens)
    if whole_tokens:
        return float(np.mean(survival(np.arange(cap - buffer, cap, dtype=np.float64))))
    edges = np.linspace(cap - buffer, cap, 9)
    return float(integrate(survival, edges=edges)[0]) / buffer


def expected_penalty_share_geometric(
    hazard: float, *, cap_tokens: int, buffer_tokens: int
) -> float:
    """Return E[u] = ((1-h)^(cap-buffer) - (1-h)^cap)/(h buffer) of L ~ Geo(h) on 1, 2, ... (E5)."""
    cap, buffer = _buffer(cap_tokens, buffer_tokens)
    h = require_probability(hazard, name="hazard")
    if h in (0.0, 1.0):
        return 1.0 - h if buffer < cap else (1.0 if h == 0.0 else 1.0 / buffer)
    stay = np.log1p(-h)
    return float(np.exp((cap - buffer) * stay) * -np.expm1(buffer * stay) / (h * buffer))


def order_margin(*, reward_gap: float, factor: float) -> float:
    """Return Delta - f, the least advantage of any right answer over any wrong one in reward (E6).

    Above 0 (rewards +1/-1, f = 1) no length ever puts a wrong answer first; 0 (rewards 1/0, f = 1)
    ties a right answer at the cap with a short wrong one.
    """
    gap = require_positive(reward_gap, name="reward_gap")
    return gap - require_not_negative(factor, name="factor")


def p_tied_mixed_group(
    p_correct: float, *, group_size: int, p_right_full: float, p_wrong_free: float
) -> float:
    """Return P(group is mixed, yet all shaped rewards are equal) at Delta = f (E6).

    That is when each right answer bears u = 1 (``p_right_full``, given right) and each wrong one
    u = 0 (``p_wrong_free``, given wrong). Such a group is lost to a filter on shaped reward.
    """
    G = require_count(group_size, name="group_size")
    p = require_probability(p_correct, name="p_correct")
    full = require_probability(p_right_full, name="p_right_full")
    free = require_probability(p_wrong_free, name="p_wrong_free")
    K = np.arange(1, G)
    return float(stats.binom.pmf(K, G, p) @ (full**K * free ** (G - K)))
