"""Collection policies without a refill barrier (A10-A14) and their hierarchy.

Groups are mixed independently with probability q; group durations are independent. Forms for
exponential durations take the mean and return its unit; the others take survival functions.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import fft, special, stats

from dapolab.theory.arguments import require_count, require_positive, require_probability
from dapolab.theory.barrier import expected_barrier_time_exponential
from dapolab.theory.quadrature import FloatArray, Survival, mean_from_survival
from dapolab.theory.sampling import harmonic

_MAX_GRID_TOKENS = 2**24


@dataclass(frozen=True)
class Streaming:
    """K busy slots until the B-th mixed group, the rest aborted (A10).

    Times and work in the unit of the mean duration; ``expected_aborted_work`` is the time that
    aborted groups had run; ``completed_duration_ratio`` is the mean duration of *completed*
    groups over the nominal mean, below 1: a bias towards short answers.
    """

    expected_time: float
    sd_time: float
    expected_launched: float
    expected_aborted_work: float
    completed_duration_ratio: float


def streaming(p_mixed: float, *, n_groups: int, n_slots: int, mean_duration: float) -> Streaming:
    """Return the law of streaming with abort for exponential durations (A10).

    T is Erlang(B, K q / mean). Validity must not depend on duration. inf at q = 0.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    K = require_count(n_slots, name="n_slots")
    mean = require_positive(mean_duration, name="mean_duration")
    if q == 0.0:
        return Streaming(math.inf, math.inf, math.inf, (K - 1) * mean, 1.0)
    z = 1.0 - 1.0 / K
    # E[z^N], N negative binomial: probability that a group in flight has been there from the start
    phi = (q * z / (1.0 - (1.0 - q) * z)) ** B
    aborted = (K - 1) * (1.0 - phi)
    return Streaming(
        expected_time=mean * B / (K * q),
        sd_time=mean * math.sqrt(B) / (K * q),
        expected_launched=B / q + K - 1,
        expected_aborted_work=mean * aborted,
        completed_duration_ratio=1.0 - aborted * q / B,
    )


def p_streaming_time_at_most(
    time: ArrayLike, *, p_mixed: float, n_groups: int, n_slots: int, mean_duration: float
) -> FloatArray:
    """Return P(T <= t) of streaming with exponential durations: Erlang(B, K q/mean) (A10)."""
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    rate = require_count(n_slots, name="n_slots") * q
    scaled = np.asarray(time, dtype=np.float64) * rate
    mean = require_positive(mean_duration, name="mean_duration")
    return np.asarray(special.gammainc(B, np.maximum(scaled, 0.0) / mean), dtype=np.float64)


def expected_replenish_time(p_mixed: float, *, n_groups: int, mean_duration: float) -> float:
    """Return E[T] = mean H_B/q of one-for-one replacement, exponential durations (A11).

    Slot refill: a replacement starts only where that slot's group was not mixed (OpenRLHF), so T
    is the largest of B geometric sums; inf at q = 0.
    """
    q = require_probability(p_mixed, name="p_mixed")
    mean = require_positive(mean_duration, name="mean_duration")
    return mean * harmonic(n_groups) / q if q > 0.0 else math.inf


def expected_replenish_tokens(
    survival_mixed: Survival,
    *,
    n_groups: int,
    p_mixed: float,
    cap_tokens: int,
    survival_degenerate: Survival | None = None,
) -> float:
    """Return E[T], token steps, of one-for-one replacement for any whole-token law (A11).

    ``survival_mixed`` is P(group duration > x | mixed), ``survival_degenerate`` the same for
    groups that are dropped (default: the same law); durations are ceil(min(X, cap)), at least
    one token. The law of the geometric sum per slot comes from its generating function
    q F_mixed/(1 - (1-q) F_degenerate) by FFT; T is the largest of B such sums.

    Raises
    ------
    ValueError
        Where q is so small that the grid would exceed 2^24 tokens.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    cap = require_count(cap_tokens, name="cap_tokens")
    if q == 0.0:
        return math.inf
    trials = 1.0 if q == 1.0 else 2.0 + (40.0 + math.log(B)) / -math.log1p(-q)
    n_grid = fft.next_fast_len(int(cap * trials) + 1, real=True)
    if n_grid > _MAX_GRID_TOKENS:
        raise ValueError(f"p_mixed {q:g} with cap_tokens {cap} is too rare for the token grid")
    mixed = fft.rfft(_whole_token_pmf(survival_mixed, cap), n_grid)
    degenerate = mixed
    if survival_degenerate is not None:
        degenerate = fft.rfft(_whole_token_pmf(survival_degenerate, cap), n_grid)
    slot_pmf = fft.irfft(q * mixed / (1.0 - (1.0 - q) * degenerate), n_grid)
    above = np.clip(np.cumsum(slot_pmf[::-1])[::-1] - slot_pmf, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        return float(np.sum(-np.expm1(B * np.log1p(-above))))


def _whole_token_pmf(survival: Survival, cap: int) -> FloatArray:
    """Return P(ceil(min(X, cap)) = x) for x = 0 .. cap; the mass at 0 tokens moves to 1."""
    above = np.append(survival(np.arange(cap, dtype=np.float64)), 0.0)
    above[0] = 1.0
    return np.append(0.0, -np.diff(above))


@dataclass(frozen=True)
class OverProvision:
    """One oversized wave stopped at the B-th mixed group (A12).

    ``expected_time`` covers all steps (a step that falls short waits for all its groups);
    ``expected_time_if_full`` only those that find B, None where that cannot happen.
    """

    p_full: float
    expected_time: float
    expected_time_if_full: float | None


def p_over_provision_full_by(
    survival_mixed: ArrayLike, *, n_groups: int, n_candidates: int, p_mixed: float
) -> FloatArray:
    """Return P(B-th mixed group is back by x) = P(Bin(N0, q F_mixed(x)) >= B) (A12).

    ``survival_mixed`` holds P(duration > x | mixed) at the wanted x. Exact for any law.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    N0 = require_count(n_candidates, name="n_candidates")
    back = q * (1.0 - np.asarray(survival_mixed, dtype=np.float64))
    return np.asarray(stats.binom.sf(B - 1, N0, back), dtype=np.float64)


def over_provision(
    survival_mixed: Survival,
    *,
    n_groups: int,
    n_candidates: int,
    p_mixed: float,
    cap: float = math.inf,
    survival_degenerate: Survival | None = None,
    whole_tokens: bool = False,
) -> OverProvision:
    """Return the time of N0 candidates of which the first B mixed groups win (A12).

    Survival functions of the *group* duration given mixed and given degenerate (default: equal),
    censored at ``cap``. A step that falls short of B waits for its slowest group.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    N0 = require_count(n_candidates, name="n_candidates", least=B)
    other = survival_degenerate or survival_mixed
    p_full = float(stats.binom.sf(B - 1, N0, q))

    def running(x: FloatArray) -> FloatArray:
        """P(full, not yet) and P(short, some group still runs), shape (n, 2)."""
        s_mixed, s_other = survival_mixed(x), other(x)
        late = p_full - p_over_provision_full_by(s_mixed, n_groups=B, n_candidates=N0, p_mixed=q)
        back = 1.0 - q * s_mixed - (1.0 - q) * s_other
        share = np.divide(q * (1.0 - s_mixed), back, out=np.zeros_like(back), where=back > 0.0)
        all_back = back**N0 * stats.binom.cdf(B - 1, N0, np.minimum(share, 1.0))
        return np.stack([np.maximum(late, 0.0), np.maximum(1.0 - p_full - all_back, 0.0)], axis=1)

    full, short = mean_from_survival(running, cap=cap, whole_tokens=whole_tokens).tolist()
    return OverProvision(
        p_full=p_full,
        expected_time=full + short,
        expected_time_if_full=full / p_full if p_full > 0.0 else None,
    )


@dataclass(frozen=True)
class FirstFinished:
    """The k earliest of V mixed groups, exponential durations (A13)."""

    expected_stop_time: float
    expected_kept_duration: float


def first_finished(n_mixed: int, *, n_kept: int, mean_duration: float) -> FirstFinished:
    """Return stop time and mean kept duration when the k earliest of V mixed groups win (A13).

    Stop = H_V - H_{V-k}; mean kept duration = 1 - ((V-k)/k)(H_V - H_{V-k}), in units of the mean.
    """
    V = require_count(n_mixed, name="n_mixed")
    k = require_count(n_kept, name="n_kept")
    if k > V:
        raise ValueError(f"n_kept {k} exceeds n_mixed {V}")
    mean = require_positive(mean_duration, name="mean_duration")
    stop = math.fsum(1.0 / j for j in range(V - k + 1, V + 1))
    return FirstFinished(mean * stop, mean * (1.0 - (V - k) / k * stop))


def expected_rounds_time(expected_rounds: float, *, expected_round_max: float) -> float:
    """Return E[T] = E[R] h(Bg): whole rounds, each a barrier over Bg groups (A14, Wald).

    Holds even when validity and duration are correlated. Unit of ``expected_round_max``.
    """
    require_positive(expected_round_max, name="expected_round_max")
    return expected_rounds * expected_round_max


@dataclass(frozen=True)
class Hierarchy:
    """Expected time of one step by policy, exponential group durations, unit of the mean."""

    barrier_refill: float
    slot_refill: float
    streaming: float
    one_wave: float


def hierarchy(p_mixed: float, *, n_groups: int, mean_duration: float) -> Hierarchy:
    """Return barrier refill > slot refill > streaming with K = B slots, beside one wave H_B."""
    stream = streaming(p_mixed, n_groups=n_groups, n_slots=n_groups, mean_duration=mean_duration)
    return Hierarchy(
        barrier_refill=expected_barrier_time_exponential(
            p_mixed, n_groups=n_groups, mean_duration=mean_duration
        ),
        slot_refill=expected_replenish_time(
            p_mixed, n_groups=n_groups, mean_duration=mean_duration
        ),
        streaming=stream.expected_time,
        one_wave=mean_duration * harmonic(n_groups),
    )
