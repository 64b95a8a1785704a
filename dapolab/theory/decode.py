"""Time of a wave of responses under a decode law, and under a slot limit (B5-B8, B11).

One decode iteration with n responses takes t(n) = a + b n seconds (``step_s``,
``per_response_s``), optionally plus c seconds per context token. No prefill, no preemption.
Latency in tokens is the longest chain of iterations; load in tokens is all that is generated.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dapolab.theory.arguments import (
    require_count,
    require_lengths,
    require_not_negative,
    require_positive,
    require_probability,
)
from dapolab.theory.quadrature import FloatArray
from dapolab.theory.sampling import harmonic


def affine_finish_times(
    lengths: ArrayLike,
    *,
    step_s: float,
    per_response_s: float = 0.0,
    per_context_token_s: float = 0.0,
    prompt_tokens: ArrayLike = 0,
) -> FloatArray:
    """Return when each response ends if all start together, seconds, order of ``lengths`` (B5).

    finish_i = a L_i + b sum_j min(L_i, L_j) + c sum_j [P_j m + m(m-1)/2], m = min(L_i, L_j).
    Exact token by token for whole lengths; O(n log n).
    """
    L = require_lengths(lengths)
    a = require_not_negative(step_s, name="step_s")
    b = require_not_negative(per_response_s, name="per_response_s")
    c = require_not_negative(per_context_token_s, name="per_context_token_s")
    P = np.broadcast_to(np.asarray(prompt_tokens, dtype=np.float64), L.shape)
    order = np.argsort(L, kind="stable")
    x, p = L[order], P[order]
    n_longer = np.arange(x.size - 1, -1, -1.0)
    p_longer = p.sum() - np.cumsum(p)
    done = np.cumsum(x)
    context_done = np.cumsum(p * x + x * (x - 1.0) / 2.0)
    context = context_done + p_longer * x + n_longer * x * (x - 1.0) / 2.0
    finish = np.empty_like(L)
    finish[order] = a * x + b * (done + n_longer * x) + c * context
    return finish


def affine_makespan_s(
    lengths: ArrayLike,
    *,
    step_s: float,
    per_response_s: float = 0.0,
    per_context_token_s: float = 0.0,
    prompt_tokens: ArrayLike = 0,
) -> float:
    """Return a max L + b sum L + c sum (P L + L(L-1)/2), all start together, seconds (B5)."""
    L = require_lengths(lengths)
    a = require_not_negative(step_s, name="step_s")
    b = require_not_negative(per_response_s, name="per_response_s")
    c = require_not_negative(per_context_token_s, name="per_context_token_s")
    P = np.broadcast_to(np.asarray(prompt_tokens, dtype=np.float64), L.shape)
    return float(a * L.max() + b * L.sum() + c * np.sum(P * L + L * (L - 1.0) / 2.0))


def makespan_s(lengths: ArrayLike, *, step_time_s: Callable[[FloatArray], FloatArray]) -> float:
    """Return the sum over iterations k of t(#{L_j >= k}), all start together, seconds (B5).

    ``step_time_s`` maps numbers of decoding responses to seconds, for instance a concave
    mixture-of-experts law.
    """
    x = np.sort(require_lengths(lengths))
    alive = np.arange(x.size, 0, -1.0)
    return float(np.diff(x, prepend=0.0) @ step_time_s(alive))


@dataclass(frozen=True, eq=False)
class Schedule:
    """Start and finish of each job in submission order, unit of the lengths."""

    starts: FloatArray
    finishes: FloatArray

    @property
    def makespan(self) -> float:
        """When the last job ends."""
        return float(self.finishes.max())


def list_schedule(lengths: ArrayLike, *, n_slots: int) -> Schedule:
    """Return first-come list scheduling on m slots: each job takes the slot free first (B6)."""
    L = require_lengths(lengths)
    free = [0.0] * min(require_count(n_slots, name="n_slots"), L.size)
    starts = np.empty_like(L)
    for i, length in enumerate(L.tolist()):
        starts[i] = free[0]
        heapq.heapreplace(free, free[0] + length)
    return Schedule(starts, starts + L)


def longest_first_schedule(lengths: ArrayLike, *, n_slots: int) -> Schedule:
    """Return list scheduling with the longest job first, within 4/3 - 1/(3m) of optimal (B8)."""
    L = require_lengths(lengths)
    order = np.argsort(-L, kind="stable")
    sorted_run = list_schedule(L[order], n_slots=n_slots)
    starts = np.empty_like(L)
    starts[order] = sorted_run.starts
    return Schedule(starts, starts + L)


def slot_limited_makespan_s(
    lengths: ArrayLike, *, n_slots: int, step_s: float, per_response_s: float = 0.0
) -> float:
    """Return a LS_m(L) + b sum L: m slots, first come, admission between iterations (B6)."""
    steps = list_schedule(lengths, n_slots=n_slots).makespan
    a = require_not_negative(step_s, name="step_s")
    b = require_not_negative(per_response_s, name="per_response_s")
    return a * steps + b * float(require_lengths(lengths).sum())


@dataclass(frozen=True)
class MakespanBounds:
    """Graham's bounds: lower <= optimal <= list scheduling <= upper (B8)."""

    lower: float
    upper: float


def makespan_bounds(lengths: ArrayLike, *, n_slots: int) -> MakespanBounds:
    """Return max(max L, sum L/m) and sum L/m + (1 - 1/m) max L (B8; Graham 1966)."""
    L, m = require_lengths(lengths), require_count(n_slots, name="n_slots")
    longest, even = float(L.max()), float(L.sum()) / m
    return MakespanBounds(max(longest, even), even + (1.0 - 1.0 / m) * longest)


def slot_utilisation_share(lengths: ArrayLike, *, n_slots: int) -> float:
    """Return sum L/(m makespan), the busy share of the slots until the last job ends."""
    makespan = list_schedule(lengths, n_slots=n_slots).makespan
    return float(require_lengths(lengths).sum()) / (n_slots * makespan) if makespan > 0.0 else 1.0


@dataclass(frozen=True)
class MakespanMoments:
    """Mean and variance of a makespan, unit of the mean duration and its square."""

    mean: float
    variance: float


def exponential_makespan(n_jobs: int, *, n_slots: int, mean_duration: float) -> MakespanMoments:
    """Return list scheduling of n exponential jobs on m slots (B7).

    Mean (n-m)/m + H_m, variance (n-m)/m^2 + H_m^(2), times the mean and its square; n < m runs
    on n slots.
    """
    n = require_count(n_jobs, name="n_jobs")
    m = min(require_count(n_slots, name="n_slots"), n)
    mean = require_positive(mean_duration, name="mean_duration")
    return MakespanMoments(
        mean=mean * ((n - m) / m + harmonic(m)),
        variance=mean**2 * ((n - m) / m**2 + harmonic(m, order=2)),
    )


def expected_affine_time_s(
    *, latency_tokens: float, load_tokens: float, step_s: float, per_response_s: float
) -> float:
    """Return a E[sum of wave maxima] + b E[tokens generated], any barrier policy, seconds (B5).

    Refill: latency ``BarrierTime.expected_time``, load G E[L] E[N] (B/q without a cap). Rounds:
    latency E[R] h(Bg), load G E[L] E[R] Bg. Waves must fit the slots.
    """
    require_not_negative(latency_tokens, name="latency_tokens")
    require_not_negative(load_tokens, name="load_tokens")
    a = require_not_negative(step_s, name="step_s")
    return a * latency_tokens + load_tokens * require_not_negative(
        per_response_s, name="per_response_s"
    )


def affine_amplification(
    latency_amplification: float,
    *,
    p_mixed: float,
    first_wave_latency_tokens: float,
    first_wave_load_tokens: float,
    step_s: float,
    per_response_s: float,
) -> float:
    """Return w A_max + (1-w)/q, w = a E[max]/(a E[max] + b B G E[L]), uncapped refill (B5)."""
    q = require_probability(p_mixed, name="p_mixed")
    if q == 0.0:
        return math.inf
    latency = step_s * require_positive(first_wave_latency_tokens, name="first_wave_latency_tokens")
    load = per_response_s * require_positive(first_wave_load_tokens, name="first_wave_load_tokens")
    w = require_positive(latency, name="step_s") / (latency + load)
    return w * latency_amplification + (1.0 - w) / q


def break_even_load_ratio(
    *,
    refill_latency_tokens: float,
    rounds_latency_tokens: float,
    refill_load_tokens: float,
    rounds_load_tokens: float,
) -> float:
    """Return the b/a above which refill beats oversized rounds (B5).

    (refill latency - rounds latency)/(rounds load - refill load). 0 where refill has both the
    lower latency and the lower load, inf where it never wins.
    """
    latency = refill_latency_tokens - rounds_latency_tokens
    load = rounds_load_tokens - refill_load_tokens
    if latency <= 0.0 <= load:
        return 0.0
    if load <= 0.0 <= latency:
        return math.inf
    if latency < 0.0:
        raise ValueError(
            "refill has the lower latency and the higher load: it wins below, not above"
        )
    return latency / load


def always_full_response_rate(
    n_slots: int, *, mean_tokens: float, step_s: float, per_response_s: float
) -> float:
    """Return K/((a + b K) E[L]) responses per second with K always in flight (B11)."""
    K = require_count(n_slots, name="n_slots")
    step = require_not_negative(step_s, name="step_s") + K * require_not_negative(
        per_response_s, name="per_response_s"
    )
    return K / (require_positive(step, name="step_s + n_slots * per_response_s") * mean_tokens)


def wave_response_rate(
    n_responses: int,
    *,
    expected_max_tokens: float,
    mean_tokens: float,
    step_s: float,
    per_response_s: float,
) -> float:
    """Return N/(a E[max] + b N E[L]) responses per second of waves one after another (B11)."""
    N = require_count(n_responses, name="n_responses")
    wave = expected_affine_time_s(
        latency_tokens=expected_max_tokens,
        load_tokens=N * mean_tokens,
        step_s=step_s,
        per_response_s=per_response_s,
    )
    return N / require_positive(wave, name="wave time")
