"""Rollout and training in parallel: cycle times, throughput, staleness (F1 to F6).

D is the time of one batch's rollout, T of one training step. Staleness bound eta: the rollout of
batch n may start once training n - eta - 1 has finished (0 synchronous, 1 one step off). Stages are
iid and independent, the trainer is serial, weight synchronisation is free unless it is in D or T.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dapolab.theory.arguments import (
    require_count,
    require_not_negative,
    require_positive,
    require_probability,
)
from dapolab.theory.quadrature import FloatArray, Survival, mean_from_survival


def sync_cycle_s(rollout_s: float, *, train_s: float) -> float:
    """Return E[D] + E[T], the cycle of a synchronous loop, from the means (F1)."""
    mean = require_positive(rollout_s, name="rollout_s")
    return mean + require_positive(train_s, name="train_s")


def one_step_off_cycle_s(rollout_survival: Survival, *, train_survival: Survival) -> float:
    """Return E[max(D, T)], the cycle one step off, for any two independent laws (F1).

    At eta = 1 rollout n and training n - 1 start together, so each cycle is the longer of the two.
    """

    def running(x: FloatArray) -> FloatArray:
        rollout, train = rollout_survival(x), train_survival(x)
        return rollout + train - rollout * train

    return float(mean_from_survival(running)[0])


def one_step_off_fixed_training_s(mean_rollout_s: float, *, train_s: float) -> float:
    """Return T + theta e^{-T/theta}: E[max(D, T)], D exponential, T fixed (F1)."""
    theta = require_positive(mean_rollout_s, name="mean_rollout_s")
    T = require_not_negative(train_s, name="train_s")
    return T + theta * math.exp(-T / theta)


def one_step_off_exponential_s(mean_rollout_s: float, *, mean_train_s: float) -> float:
    """Return 1/mu1 + 1/mu2 - 1/(mu1+mu2): E[max(D, T)], both exponential (F1)."""
    D = require_positive(mean_rollout_s, name="mean_rollout_s")
    T = require_positive(mean_train_s, name="mean_train_s")
    return D + T - D * T / (D + T)


def fixed_cycle_s(
    rollout_s: float, *, train_s: float, staleness: int, serial_rollout: bool = True
) -> float:
    """Return the cycle of fixed D and T: max(T, D, (D+T)/(eta+1)) (F2, max-plus).

    ``serial_rollout`` false drops D: batches may generate side by side at full speed. With a
    serial engine eta >= 2 buys nothing without randomness.
    """
    D = require_positive(rollout_s, name="rollout_s")
    T = require_positive(train_s, name="train_s")
    eta = require_count(staleness, name="staleness", least=0)
    cycle = max(T, (D + T) / (eta + 1))
    return max(cycle, D) if serial_rollout else cycle


def fixed_staleness(rollout_s: float, *, train_s: float, staleness: int) -> int:
    """Return the versions between start and training of a late batch, fixed D and T (F2).

    Serial engine from an empty start: eta where T > D (the bound is always met), else
    min(eta, 1).
    """
    D = require_positive(rollout_s, name="rollout_s")
    T = require_positive(train_s, name="train_s")
    eta = require_count(staleness, name="staleness", least=0)
    return eta if T > D else min(eta, 1)


def exponential_step_rate(rollout_per_s: float, *, train_per_s: float, staleness: int) -> float:
    """Return training steps per second for exponential D and T, serial rollout (F3).

    A closed network of two queues with eta + 1 permits: mu1 (1 - r^{eta+1})/(1 - r^{eta+2}),
    r = mu1/mu2; for equal rates mu (eta+1)/(eta+2). eta = 1 is 1/E[max(D, T)].
    """
    mu_rollout = require_positive(rollout_per_s, name="rollout_per_s")
    mu_train = require_positive(train_per_s, name="train_per_s")
    permits = require_count(staleness, name="staleness", least=0) + 1
    # Symmetric in the two rates; r <= 1 keeps the powers from overflowing.
    slow, fast = sorted((mu_rollout, mu_train))
    gap = math.log(slow / fast)
    if gap == 0.0:
        return slow * permits / (permits + 1)
    return slow * math.expm1(permits * gap) / math.expm1((permits + 1) * gap)


@dataclass(frozen=True)
class StreamingStaleness:
    """Staleness of K responses always in flight, a FIFO queue and batches of B responses (F4)."""

    mean_versions: float
    slope_versions_per_s: float
    rollout_bound_step_rate: float


def streaming_staleness(
    *, n_slots: int, batch_responses: int, mean_duration_s: float, queue_at_bumps: float = 0.0
) -> StreamingStaleness:
    """Return mean staleness (K + E[queue])/B and its slope in a response's own duration (F4).

    Staleness counts the version bumps between a response's start and the start of its training.
    The mean is an exact sample-path identity (each bump ages all that is in flight or queued):
    ``queue_at_bumps`` is the *event* average of the queue at version bumps, before the next batch
    leaves it, and no time average. Where rollout is the bottleneck there are K/(E[L] B) steps per
    second, and E[staleness | L] grows by (K-1)/(B E[L]) per second of L: the other slots finish on
    in the meantime. Long answers are the stale ones.
    """
    K = require_count(n_slots, name="n_slots")
    B = require_count(batch_responses, name="batch_responses")
    mean = require_positive(mean_duration_s, name="mean_duration_s")
    queue = require_not_negative(queue_at_bumps, name="queue_at_bumps")
    return StreamingStaleness(
        mean_versions=(K + queue) / B,
        slope_versions_per_s=(K - 1) / (B * mean),
        rollout_bound_step_rate=K / (mean * B),
    )


@dataclass(frozen=True)
class StalenessBalance:
    """Both sides of F4's identity over one record, in response * versions."""

    total_staleness: int
    aged_at_bumps: int


def staleness_balance(
    start_s: ArrayLike, *, trained_s: ArrayLike, bump_s: ArrayLike
) -> StalenessBalance:
    """Return the sum of staleness over responses, and over bumps of what each one aged (F4).

    ``start_s`` and ``trained_s`` are paired by response (inf where it was never trained),
    ``bump_s`` are the version bumps. The second side takes event times alone, without the pairing.
    A bump at the very moment of a start or of a training's start counts as before it.
    """
    start = np.asarray(start_s, dtype=np.float64).ravel()
    trained = np.asarray(trained_s, dtype=np.float64).ravel()
    bumps = np.sort(np.asarray(bump_s, dtype=np.float64).ravel())
    if start.shape != trained.shape or not np.all(trained >= start):
        raise ValueError(
            "start_s and trained_s must be equally long, trained_s never before start_s"
        )
    versions = [np.searchsorted(bumps, t, side="right") for t in (trained, start)]
    started = np.searchsorted(np.sort(start), bumps, side="left")
    gone = np.searchsorted(np.sort(trained), bumps, side="left")
    return StalenessBalance(int(np.sum(versions[0] - versions[1])), int(np.sum(started - gone)))


def in_flight_mean(mean: float, *, second_moment: float) -> float:
    """Return E[L^2]/E[L], the mean total length of what is in flight (size bias) (F5)."""
    require_positive(mean, name="mean")
    if second_moment < mean * mean * (1.0 - 1e-12):
        raise ValueError(f"second_moment {second_moment} is below the square of the mean")
    return second_moment / mean


def residual_mean(mean: float, *, second_moment: float) -> float:
    """Return E[L^2]/(2 E[L]), the mean remaining length of what is in flight (F5).

    Continuous time, stationary. Whole tokens seen between two tokens leave half a token more.
    """
    return in_flight_mean(mean, second_moment=second_moment) / 2.0


@dataclass(frozen=True)
class Split:
    """The best split of the GPUs between rollout and training, one step off (F6).

    ``gain`` = colocated over disaggregated cycle, 1 where nothing is gained.
    """

    rollout_share: float
    cycle_s: float
    colocated_cycle_s: float

    @property
    def gain(self) -> float:
        """Colocated synchronous cycle over the split's."""
        return self.colocated_cycle_s / self.cycle_s


def best_split(rollout_s: float, *, train_s: float, latency_s: float = 0.0) -> Split:
    """Return the split x that balances l + R/x and T/(1-x), cycle max of both (F6).

    R and T are the times on *all* GPUs, scaling perfectly with their share; l is the part of the
    rollout that no GPU shortens. l = 0: x = R/(R+T) and the cycle is R + T, that of the colocated
    synchronous loop, l + R + T: a split gains from l alone. x solves
    -l x^2 + (l-R-T) x + R = 0. Fixed durations.
    """
    R = require_positive(rollout_s, name="rollout_s")
    T = require_positive(train_s, name="train_s")
    wait = require_not_negative(latency_s, name="latency_s")
    # The root in (0, 1), in the form that neither cancels nor divides by l.
    b = R + T - wait
    root = math.sqrt(b * b + 4.0 * wait * R)
    x = 2.0 * R / (b + root) if b >= 0.0 else (root - b) / (2.0 * wait)
    return Split(rollout_share=x, cycle_s=wait + R / x, colocated_cycle_s=wait + R + T)


def gated_step_rate_bound(
    *,
    rollout_s: float,
    train_s: float,
    staleness: int,
    n_slots: int,
    mean_duration_s: float,
    batch_responses: int,
    p_mixed: float = 1.0,
) -> float:
    """Return min(1/T, q K/(B E[L]), (eta+1)/(D+T)), steps per second; NOT checked as one bound.

    The gate floor((N-1)/B) <= version + eta of AReaL (arXiv 2505.24298), from memory. The parts are
    F2 and F4 (checked each for itself); with dynamic sampling only the share q of what is generated
    is trained.
    """
    D = require_positive(rollout_s, name="rollout_s")
    T = require_positive(train_s, name="train_s")
    eta = require_count(staleness, name="staleness", least=0)
    q = require_probability(p_mixed, name="p_mixed")
    streaming = streaming_staleness(
        n_slots=n_slots, batch_responses=batch_responses, mean_duration_s=mean_duration_s
    )
    return min(1.0 / T, q * streaming.rollout_bound_step_rate, (eta + 1) / (D + T))
