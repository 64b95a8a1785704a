"""Length bias of the aggregation modes in a policy small enough to solve (C3, C4).

Class bandit: one decision token picks an arm a of reward r_a and length l_a; the other tokens
carry no gradient. First on-policy step, group-mean baseline; tabular softmax over the arms.
Per-response modes: mean over the G responses of w(L) A, w = 1/L for seq-mean-token-mean, 1 for
seq-mean-token-sum, 1/C for Dr. GRPO.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from dapolab.theory.arguments import require_count, require_positive, require_probability
from dapolab.theory.difficulty import std_weight, sum_abs_advantage
from dapolab.theory.quadrature import FloatArray, integrate, unit_edges

Mode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
Geometry = Literal["natural", "plain"]


@dataclass(frozen=True)
class ClassBandit:
    """Arms of a decision token: rewards and lengths, both of shape (A,)."""

    reward_A: FloatArray
    n_tokens_A: FloatArray

    def __post_init__(self) -> None:
        if self.reward_A.ndim != 1 or self.reward_A.shape != self.n_tokens_A.shape:
            raise ValueError("reward_A and n_tokens_A must be rows of equal length")
        if not np.all(self.n_tokens_A > 0.0):
            raise ValueError("n_tokens_A must be above 0")


def class_bandit(reward_A: ArrayLike, *, n_tokens_A: ArrayLike) -> ClassBandit:
    """Return the bandit of arms with these rewards and lengths, each of shape (A,) (C4)."""
    return ClassBandit(np.array(reward_A, dtype=np.float64), np.array(n_tokens_A, dtype=np.float64))


def _policy(policy_A: ArrayLike, bandit: ClassBandit) -> FloatArray:
    pi = np.asarray(policy_A, dtype=np.float64)
    if pi.shape != bandit.reward_A.shape or not np.all(pi >= 0.0):
        raise ValueError(f"policy_A must be {bandit.reward_A.size} probabilities")
    if abs(pi.sum() - 1.0) > 1e-9:
        raise ValueError(f"policy_A must sum to 1, got {pi.sum()}")
    return pi


def _weight(bandit: ClassBandit, mode: Mode, constant_tokens: float | None) -> FloatArray:
    """Return the per-token weight w(l_a) of the per-response modes, times G."""
    if mode == "seq-mean-token-mean":
        return 1.0 / bandit.n_tokens_A
    if mode == "seq-mean-token-sum":
        return np.ones(bandit.n_tokens_A.size)
    if mode != "seq-mean-token-sum-norm":
        raise ValueError(f"mode {mode!r} is not taken per response here")
    if constant_tokens is None:
        raise ValueError(f"{mode} needs constant_tokens, the length it divides by")
    constant = require_positive(constant_tokens, name="constant_tokens")
    return np.full(bandit.n_tokens_A.size, 1.0 / constant)


def fitness(
    policy_A: ArrayLike,
    *,
    bandit: ClassBandit,
    mode: Mode,
    constant_tokens: float | None = None,
) -> FloatArray:
    """Return d_a = (r_a - rbar) w(l_a), what the expected update selects for, shape (A,) (C4).

    For every group size at once: E[g] = (1-1/G) pi (d - pi.d), and a natural-gradient step moves
    the logits by d. token-mean has no such form (see ``expected_gradient``).
    """
    pi = _policy(policy_A, bandit)
    return (bandit.reward_A - pi @ bandit.reward_A) * _weight(bandit, mode, constant_tokens)


def expected_gradient(
    policy_A: ArrayLike,
    *,
    bandit: ClassBandit,
    mode: Mode,
    group_size: int,
    std_ddof: int | None = None,
    constant_tokens: float | None = None,
) -> FloatArray:
    """Return E[g] by the logits, shape (A,), for one group of G (C4).

    Per-response modes: f pi (d - pi.d) with f = 1 - 1/G, or c_G(p) where the advantage is divided
    by the group's std (0/1 rewards only; ``difficulty.std_weight``). token-mean over the group:
    (G-1) pi_a int_0^inf e^{-t l_a} [r_a M^{G-1} - R M^{G-2}] dt with M = sum pi e^{-tl} and
    R = sum pi r e^{-tl}, since 1/sum L = int e^{-t sum L} dt and the advantages sum to 0; with std
    the same by the number of right responses.
    """
    G = require_count(group_size, name="group_size", least=2)
    pi = _policy(policy_A, bandit)
    if std_ddof is not None and not np.all(np.isin(bandit.reward_A, (0.0, 1.0))):
        raise ValueError("std_ddof needs rewards of 0 and 1")
    if mode == "token-mean":
        if std_ddof is not None:
            return _token_mean_std_gradient(pi, bandit, G, std_ddof)
        return _token_mean_gradient(pi, bandit, G)
    d = fitness(pi, bandit=bandit, mode=mode, constant_tokens=constant_tokens)
    factor = 1.0 - 1.0 / G
    if std_ddof is not None:
        p = float(np.clip(pi @ bandit.reward_A, 0.0, 1.0))
        factor = float(std_weight(p, group_size=G, ddof=std_ddof))
    return factor * pi * (d - pi @ d)


def _token_mean_gradient(pi: FloatArray, bandit: ClassBandit, G: int) -> FloatArray:
    shortest = float(bandit.n_tokens_A.min())
    excess = bandit.n_tokens_A / shortest - 1.0

    def integrand(x: FloatArray) -> FloatArray:
        # x = exp(-t*shortest); the factor x^G of the G lengths loses one power to dt
        powers = np.exp(np.log(x)[:, None] * excess)
        M, R = powers @ pi, powers @ (pi * bandit.reward_A)
        bracket = bandit.reward_A * M[:, None] - R[:, None]
        return np.asarray((x ** (G - 1) * M ** (G - 2))[:, None] * powers * bracket)

    return pi * integrate(integrand, edges=unit_edges()) * (G - 1) / shortest


def _token_mean_std_gradient(
    pi: FloatArray, bandit: ClassBandit, G: int, std_ddof: int
) -> FloatArray:
    right = bandit.reward_A == 1.0
    p = float(pi[right].sum())
    if not 0.0 < p < 1.0:
        return np.zeros(pi.size)
    shortest = float(bandit.n_tokens_A.min())
    excess = bandit.n_tokens_A / shortest - 1.0
    K = np.arange(1, G)
    # Sum of A over the K right responses; over the wrong ones it is its negative.
    total = sum_abs_advantage(K, group_size=G, ddof=std_ddof) / 2.0 * stats.binom.pmf(K, G, p)

    def integrand(x: FloatArray) -> FloatArray:
        powers = np.exp(np.log(x)[:, None] * excess)
        m_right = (powers[:, right] @ pi[right] / p)[:, None]
        m_wrong = (powers[:, ~right] @ pi[~right] / (1.0 - p))[:, None]
        for_right = (m_right ** (K - 1) * m_wrong ** (G - K)) @ total / p
        for_wrong = -(m_right**K * m_wrong ** (G - K - 1)) @ total / (1.0 - p)
        outer = np.where(right, for_right[:, None], for_wrong[:, None])
        return np.asarray((x ** (G - 1))[:, None] * powers * outer)

    return pi * integrate(integrand, edges=unit_edges()) / shortest


@dataclass(frozen=True)
class OddsGrowth:
    """d/dt of log odds(long : short) given the outcome, one unit of natural-gradient time."""

    wrong: float
    right: float


def odds_growth(p_correct: float, *, short_tokens: float, long_tokens: float) -> OddsGrowth:
    """Return how seq-mean-token-mean moves long against short under natural gradient (C4).

    Wrong answers lengthen at p (1/S - 1/l), right ones shorten at (1-p)(1/S - 1/l); both are 0
    under token sums. Limit of large groups; times 1 - 1/G for groups of G.
    """
    p = require_probability(p_correct, name="p_correct")
    gap = 1.0 / require_positive(short_tokens, name="short_tokens") - 1.0 / require_positive(
        long_tokens, name="long_tokens"
    )
    return OddsGrowth(wrong=p * gap, right=-(1.0 - p) * gap)


def length_drift_tokens(
    policy_A: ArrayLike,
    *,
    bandit: ClassBandit,
    mode: Mode,
    geometry: Geometry,
    constant_tokens: float | None = None,
) -> float:
    """Return dE[L]/dt, tokens, in the limit of large groups (times 1 - 1/G for groups of G) (C4).

    Natural gradient: Cov(l, d), which is -E[l] Cov(r, 1/l) for seq-mean-token-mean and Cov(l, r)
    for token sums. Plain gradient: Cov(l, pi (d - pi.d)), for equal classes
    p(1-p)/2 (1-2p)(l-S)^2/(4 S l): mean length grows while accuracy is below 1/2, then falls.
    """
    pi = _policy(policy_A, bandit)
    d = fitness(pi, bandit=bandit, mode=mode, constant_tokens=constant_tokens)
    step = d if geometry == "natural" else pi * (d - pi @ d)
    centred = bandit.n_tokens_A - pi @ bandit.n_tokens_A
    return float((pi * centred) @ step)


def plain_drift_equal_classes_tokens(
    p_correct: float, *, short_tokens: float, long_tokens: float
) -> float:
    """Return dE[L]/dt of plain gradient, seq-mean-token-mean, both lengths equally likely (C4).

    p(1-p)/2 (1-2p)(l-S)^2/(4 S l): its sign is that of 1 - 2p.
    """
    p = require_probability(p_correct, name="p_correct")
    S = require_positive(short_tokens, name="short_tokens")
    long = require_positive(long_tokens, name="long_tokens")
    return p * (1.0 - p) / 2.0 * (1.0 - 2.0 * p) * (long - S) ** 2 / (4.0 * S * long)


@dataclass(frozen=True)
class LengthPath:
    """Training path of a class bandit with 0/1 rewards, arrays of shape (steps + 1,).

    ``length_right_T`` and ``length_wrong_T`` are E[L | outcome], tokens.
    """

    time_T: FloatArray
    policy_TA: FloatArray
    accuracy_T: FloatArray
    length_T: FloatArray
    length_right_T: FloatArray
    length_wrong_T: FloatArray


def length_path(
    policy_A: ArrayLike,
    *,
    bandit: ClassBandit,
    mode: Mode,
    geometry: Geometry,
    until: float,
    step: float,
    constant_tokens: float | None = None,
) -> LengthPath:
    """Return the Euler path of dz/dt = d (natural) or pi (d - pi.d) (plain) up to ``until`` (C4).

    Large groups, no 1 - 1/G. Needs 0/1 rewards with both outcomes possible.
    """
    pi = _policy(policy_A, bandit)
    right = bandit.reward_A == 1.0
    if not np.all(np.isin(bandit.reward_A, (0.0, 1.0))) or not 0.0 < pi[right].sum() < 1.0:
        raise ValueError("length_path needs rewards of 0 and of 1, both of them possible")
    n_steps = round(require_positive(until, name="until") / require_positive(step, name="step"))
    with np.errstate(divide="ignore"):
        logits = np.log(pi)
    path = np.empty((n_steps + 1, pi.size))
    path[0] = pi
    for t in range(1, n_steps + 1):
        d = fitness(pi, bandit=bandit, mode=mode, constant_tokens=constant_tokens)
        logits = logits + step * (d if geometry == "natural" else pi * (d - pi @ d))
        pi = path[t] = special.softmax(logits)
    long, accuracy = bandit.n_tokens_A, path @ bandit.reward_A
    return LengthPath(
        time_T=np.arange(n_steps + 1, dtype=np.float64) * step,
        policy_TA=path,
        accuracy_T=accuracy,
        length_T=path @ long,
        length_right_T=path[:, right] @ long[right] / path[:, right].sum(axis=1),
        length_wrong_T=path[:, ~right] @ long[~right] / path[:, ~right].sum(axis=1),
    )


def shared_length_drift(
    p_long: float,
    *,
    accuracy_short: float,
    accuracy_long: float,
    short_tokens: float,
    long_tokens: float,
    mode: Mode,
    group_size: int,
    std_ddof: int | None = None,
    constant_tokens: float | None = None,
) -> float:
    """Return E[g] by the one logit of P(long) = x, accuracy depending on the length alone (C3).

    Exactly 0 in every mode, with or without std, where both lengths are equally accurate. Else,
    with D = accuracy_long - accuracy_short: token sums (1-1/G) x(1-x) D; seq-mean-token-mean that
    times (1-x)/l + x/S, so never a wrong sign, but a rare long class is adopted l times slower.
    """
    x = require_probability(p_long, name="p_long")
    c_short = require_probability(accuracy_short, name="accuracy_short")
    c_long = require_probability(accuracy_long, name="accuracy_long")
    bandit = class_bandit(
        [1.0, 0.0, 1.0, 0.0], n_tokens_A=[short_tokens, short_tokens, long_tokens, long_tokens]
    )
    policy = [(1 - x) * c_short, (1 - x) * (1 - c_short), x * c_long, x * (1 - c_long)]
    is_long = np.array([0.0, 0.0, 1.0, 1.0])
    if mode == "token-mean":
        g = expected_gradient(
            policy, bandit=bandit, mode=mode, group_size=group_size, std_ddof=std_ddof
        )
        return float(is_long @ g)
    # The score of arm a by the shared logit is 1[long] - x in place of the e_a - pi of free arms.
    G = require_count(group_size, name="group_size", least=2)
    d = fitness(policy, bandit=bandit, mode=mode, constant_tokens=constant_tokens)
    p = float(np.clip(policy[0] + policy[2], 0.0, 1.0))
    factor = 1.0 - 1.0 / G
    if std_ddof is not None:
        factor = float(std_weight(p, group_size=G, ddof=std_ddof))
    return factor * float(np.asarray(policy) @ (d * (is_long - x)))
