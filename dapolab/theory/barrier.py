"""Time of barrier refill: the waves one after another, each as long as its longest group (B3).

The mean depends only on q and on the marginal law of group durations, not on the correlation of
length and validity (B4): what a wave asks for is decided by earlier waves. Durations are
independent between groups and decoding speed is constant per token; ``decode`` adds load.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dapolab.theory.arguments import require_count, require_positive, require_probability
from dapolab.theory.capped import CappedRefill, uncapped_wave_counts
from dapolab.theory.quadrature import FloatArray, Survival
from dapolab.theory.sampling import expected_waves, harmonic
from dapolab.theory.tails import expected_max_by_count


@dataclass(frozen=True)
class BarrierTime:
    """Mean time of a refill step, unit of the durations (tokens or seconds).

    ``amplification`` is time over first wave; it lies between 1 and ``expected_waves``.
    ``lower_bound`` is h(B) + (E[W] - 1) h(1).
    """

    expected_time: float
    expected_first_wave: float
    expected_waves: float
    lower_bound: float

    @property
    def amplification(self) -> float:
        """E[T]/h(B); inf where the first wave or the number of waves is infinite."""
        if not math.isfinite(self.expected_time):
            return math.inf
        return self.expected_time / self.expected_first_wave

    @property
    def tail_wave_share(self) -> float:
        """Share of the step spent after the first wave."""
        return 1.0 - 1.0 / self.amplification


def barrier_time_from_waves(wave_counts: ArrayLike, *, wave_times: ArrayLike) -> BarrierTime:
    """Return E[T] = sum over s of (expected waves of size s) * (expected time of such a wave).

    Both arrays run over s = 0 .. B: counts from ``capped_refill(...).wave_counts`` or
    ``uncapped_wave_counts``, times from ``expected_max_by_count`` (no limit on what runs at
    once), ``semaphore_wave_times`` or measurements.
    """
    counts = np.asarray(wave_counts, dtype=np.float64)
    times = np.asarray(wave_times, dtype=np.float64)
    if counts.shape != times.shape or counts.ndim != 1 or counts.size < 2:
        raise ValueError("wave_counts and wave_times must be equally long, s = 0 .. B with B >= 1")
    # A size that never occurs contributes nothing, however long its wave would be.
    used = counts > 0.0
    used[0] = False
    waves = float(counts[1:].sum())
    first = float(times[-1])
    rest = (waves - 1.0) * float(times[1]) if waves > 1.0 else 0.0
    return BarrierTime(
        expected_time=float(counts[used] @ times[used]),
        expected_first_wave=first,
        expected_waves=waves,
        lower_bound=first + rest,
    )


def expected_barrier_time(
    group_survival: Survival,
    *,
    p_mixed: float,
    n_groups: int,
    cap: float = math.inf,
    whole_tokens: bool = False,
) -> BarrierTime:
    """Return the mean time of exact refill without a candidate cap (B3).

    Equal to the sum over waves w of the integral of 1 - (1 - (1-q)^w S_G(x))^B, evaluated by
    wave size so that tiny q costs nothing. ``group_survival`` is S_G(x) = P(longest of the
    group > x), censored at ``cap``. inf at q = 0.
    """
    B = require_count(n_groups, name="n_groups")
    counts = uncapped_wave_counts(p_mixed, n_groups=B)
    times = expected_max_by_count(group_survival, n_max=B, cap=cap, whole_tokens=whole_tokens)
    return barrier_time_from_waves(counts, wave_times=times)


def expected_capped_barrier_time(
    group_survival: Survival,
    *,
    refill: CappedRefill,
    cap: float = math.inf,
    whole_tokens: bool = False,
) -> BarrierTime:
    """Return the mean time of exact refill along the capped chain (A4, B3).

    ``refill`` comes from ``capped.capped_refill``; ``cap`` censors durations.
    """
    times = expected_max_by_count(
        group_survival, n_max=refill.n_groups, cap=cap, whole_tokens=whole_tokens
    )
    return barrier_time_from_waves(refill.wave_counts, wave_times=times)


def expected_tail_time(law: BarrierTime, *, mean_response: float) -> float:
    """Return E[sum over waves of (wave time - mean response of that wave)], unit of ``law``.

    What a step spends waiting for the longest answers: a slot of a wave is idle for
    1 - mean/max of it, so the tail is E[T] - E[W] E[L], with or without a candidate cap.
    Assumes that all responses of a wave start together and a step time free of load (b = 0).
    """
    mean = require_positive(mean_response, name="mean_response")
    if not math.isfinite(law.expected_time):
        return math.inf
    return law.expected_time - law.expected_waves * mean


def expected_barrier_time_exponential(
    p_mixed: float, *, n_groups: int, mean_duration: float
) -> float:
    """Return mean * sum over j <= B of E[W_j]/j, exponential group durations, no cap (B3)."""
    B = require_count(n_groups, name="n_groups")
    mean = require_positive(mean_duration, name="mean_duration")
    return mean * math.fsum(expected_waves(p_mixed, n_groups=j) / j for j in range(1, B + 1))


def expected_barrier_time_exponential_asymptotic(
    p_mixed: float, *, n_groups: int, mean_duration: float
) -> float:
    """Return mean * [(H_B^2 + H_B^(2))/(2 lambda) + H_B/2], lambda = -ln(1-q) (B3)."""
    q = require_probability(p_mixed, name="p_mixed")
    if not 0.0 < q < 1.0:
        raise ValueError(f"p_mixed must lie strictly between 0 and 1, got {q}")
    H, H2 = harmonic(n_groups), harmonic(n_groups, order=2)
    mean = require_positive(mean_duration, name="mean_duration")
    return mean * ((H * H + H2) / (-2.0 * math.log1p(-q)) + H / 2.0)


def semaphore_wave_times(n_groups: int, *, n_slots: int, mean_duration: float) -> FloatArray:
    """Return E[time] of waves of m = 0 .. B groups, c at once, exponential durations (B3, B7).

    H_m where m <= c, (m-c)/c + H_c above: the group semaphore of 06-dapo (c = 16).
    """
    B = require_count(n_groups, name="n_groups")
    c = require_count(n_slots, name="n_slots")
    mean = require_positive(mean_duration, name="mean_duration")
    m = np.arange(B + 1)
    H = np.append(0.0, np.cumsum(1.0 / np.arange(1, B + 1)))
    return np.asarray(mean * (H[np.minimum(m, c)] + np.maximum(m - c, 0) / c))


def pareto_amplification_limit(p_mixed: float, *, alpha: float) -> float:
    """Return 1/(1 - (1-q)^(1/alpha)), the limit of A for Pareto(alpha) tails as B grows (B3).

    Heavier uncapped tails amplify less; needs alpha > 1. inf at q = 0.
    """
    q = require_probability(p_mixed, name="p_mixed")
    if not alpha > 1.0:
        raise ValueError(f"alpha must be above 1 (a finite mean), got {alpha}")
    if q in (0.0, 1.0):
        return math.inf if q == 0.0 else 1.0
    return -1.0 / math.expm1(math.log1p(-q) / alpha)
