"""F1 to F6: played schedules, a solved Markov chain, brute-force search."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, optimize

from dapolab.theory import pipeline

Array = NDArray[np.float64]


# --- F1, F3 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("D", "T"), [(3.0, 2.0), (0.5, 4.0)])
def test_one_step_off_by_quadrature(D: float, T: float) -> None:
    def running(x: float) -> float:
        return 1 - (1 - math.exp(-x / D)) * (1 - math.exp(-x / T))

    both, _ = integrate.quad(running, 0, 400, epsabs=1e-12, limit=400)
    assert pipeline.one_step_off_exponential_s(D, mean_train_s=T) == pytest.approx(both, abs=1e-9)
    general = pipeline.one_step_off_cycle_s(
        lambda x: np.exp(-x / D), train_survival=lambda x: np.exp(-x / T)
    )
    assert general == pytest.approx(both, abs=1e-9)
    late, _ = integrate.quad(lambda x: math.exp(-x / D), T, 400, epsabs=1e-12)
    fixed = pipeline.one_step_off_fixed_training_s(D, train_s=T)
    assert fixed == pytest.approx(T + late, abs=1e-9)
    assert pipeline.sync_cycle_s(D, train_s=T) == D + T


def chain_rate(mu_rollout: float, mu_train: float, eta: int) -> float:
    """Stationary rate of training ends of the two-stage network, from its generator matrix."""
    n = eta + 2  # batches waiting for or in training, 0..eta+1
    Q = np.zeros((n, n))
    for i in range(n):
        if i < n - 1:
            Q[i, i + 1] = mu_rollout
        if i > 0:
            Q[i, i - 1] = mu_train
        Q[i, i] = -Q[i].sum()
    system = np.vstack([Q.T, np.ones(n)])
    pi = np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0]
    return float(mu_train * (1 - pi[0]))


@pytest.mark.parametrize("eta", [0, 1, 2, 7])
@pytest.mark.parametrize(("mu1", "mu2"), [(1.0, 1.0), (0.5, 2.0), (3.0, 1.1)])
def test_exponential_rate_is_that_of_the_chain(mu1: float, mu2: float, eta: int) -> None:
    got = pipeline.exponential_step_rate(mu1, train_per_s=mu2, staleness=eta)
    assert got == pytest.approx(chain_rate(mu1, mu2, eta), abs=1e-9)


def test_exponential_rate_goldens_and_limits() -> None:
    """Theory T12: 1/2, 2/3, 3/4, ... at equal rates; eta = 1 is 1/E[max]."""
    rates = [pipeline.exponential_step_rate(1.0, train_per_s=1.0, staleness=k) for k in range(6)]
    assert rates == pytest.approx([1 / 2, 2 / 3, 3 / 4, 4 / 5, 5 / 6, 6 / 7], abs=1e-12)
    one = pipeline.exponential_step_rate(0.4, train_per_s=0.7, staleness=1)
    cycle = pipeline.one_step_off_exponential_s(1 / 0.4, mean_train_s=1 / 0.7)
    assert one == pytest.approx(1 / cycle, abs=1e-12)
    sync = pipeline.exponential_step_rate(0.4, train_per_s=0.7, staleness=0)
    assert sync == pytest.approx(1 / pipeline.sync_cycle_s(1 / 0.4, train_s=1 / 0.7), abs=1e-12)
    far = pipeline.exponential_step_rate(900.0, train_per_s=0.7, staleness=5000)
    assert far == pytest.approx(0.7, rel=1e-12)
    near = pipeline.exponential_step_rate(1.0 + 1e-13, train_per_s=1.0, staleness=3)
    assert near == pytest.approx(0.8, rel=1e-9)


@given(mu=st.floats(0.01, 100), eta=st.integers(0, 30))
@settings(deadline=None)
def test_more_staleness_never_slows_and_never_beats_the_slower_stage(mu: float, eta: int) -> None:
    of = [pipeline.exponential_step_rate(mu, train_per_s=1.0, staleness=k) for k in (eta, eta + 1)]
    assert of[0] <= of[1] * (1 + 1e-12)
    assert of[1] <= min(mu, 1.0)


# --- F2 --------------------------------------------------------------------------------------


def played(D: float, T: float, eta: int, *, serial: bool, n: int = 400) -> tuple[float, int]:
    """Play the schedule batch by batch; the late cycle and the staleness of the last batch."""
    rollout_end: list[float] = []
    train_end: list[float] = []
    starts: list[float] = []
    for k in range(n):
        gate = train_end[k - eta - 1] if k >= eta + 1 else 0.0
        free = rollout_end[-1] if serial and rollout_end else 0.0
        starts.append(max(gate, free))
        rollout_end.append(starts[-1] + D)
        train_end.append(max(rollout_end[-1], train_end[-1] if train_end else 0.0) + T)
    half = n // 2
    cycle = (train_end[-1] - train_end[half]) / (n - 1 - half)
    seen = sum(end <= starts[-1] for end in train_end)
    return cycle, n - 1 - seen


@pytest.mark.parametrize("eta", [0, 1, 2, 3, 5])
@pytest.mark.parametrize(("D", "T"), [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (8.0, 1.0), (1.0, 1.25)])
def test_fixed_cycle_and_staleness_are_those_of_the_schedule(D: float, T: float, eta: int) -> None:
    # dyadic durations: the schedule is exact in binary, the cycle spans a multiple of eta+1
    cycle, stale = played(D, T, eta, serial=True, n=4 * 60 + 1)
    got = pipeline.fixed_cycle_s(D, train_s=T, staleness=eta)
    assert got == pytest.approx(cycle, abs=1e-9)
    assert pipeline.fixed_staleness(D, train_s=T, staleness=eta) == stale
    cycle, _ = played(D, T, eta, serial=False, n=4 * 60 + 1)
    got = pipeline.fixed_cycle_s(D, train_s=T, staleness=eta, serial_rollout=False)
    assert got == pytest.approx(cycle, abs=1e-9)


def test_beyond_one_step_off_nothing_is_gained_without_randomness() -> None:
    for D, T in ((3.0, 1.0), (1.0, 3.0), (2.0, 2.0)):
        cycles = [pipeline.fixed_cycle_s(D, train_s=T, staleness=k) for k in (0, 1, 2, 9)]
        assert cycles[0] == D + T
        assert cycles[1:] == [max(D, T)] * 3


# --- F4 --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """A played stream; queue seen by each bump, spans of all responses (inf: never trained)."""

    start: Array
    trained: Array
    bump: Array
    queue_at_bump: Array
    in_flight_at_bump: Array


def play_stream(lengths: Array, *, K: int, B: int, train: float) -> Stream:
    """K slots, FIFO, batches of B; a slot takes the next response the moment one finishes."""
    n = lengths.size
    start, trained = np.zeros(n), np.full(n, np.inf)
    slots: list[tuple[float, int]] = [(float(lengths[i]), i) for i in range(K)]
    queue: deque[int] = deque()
    bumps, queued, flying = [], [], []
    taken, busy_until = K, math.inf
    while taken < n:
        end, who = min(slots)
        now = min(end, busy_until)
        if busy_until <= end:
            bumps.append(now)
            queued.append(len(queue))
            flying.append(len(slots))
            busy_until = math.inf
        else:
            slots.remove((end, who))
            queue.append(who)
            start[taken] = now
            slots.append((now + float(lengths[taken]), taken))
            taken += 1
        if math.isinf(busy_until) and len(queue) >= B:
            for _ in range(B):
                trained[queue.popleft()] = now
            busy_until = now + train
    return Stream(start, trained, np.array(bumps), np.array(queued), np.array(flying))


@pytest.mark.parametrize("train", [0.2, 1.5])
def test_staleness_identity_of_a_played_stream(train: float) -> None:
    K, B = 7, 3
    lengths = np.random.default_rng(11).lognormal(1.0, 0.9, 2000)
    run = play_stream(lengths, K=K, B=B, train=train)
    balance = pipeline.staleness_balance(run.start, trained_s=run.trained, bump_s=run.bump)
    assert balance.total_staleness == balance.aged_at_bumps
    # every bump ages the K in flight and the queue, the batch that leaves it next included
    aged = int((run.in_flight_at_bump + run.queue_at_bump).sum())
    assert (run.in_flight_at_bump == K).all()
    assert balance.aged_at_bumps == aged
    # mean of what was trained: the identity up to what was left at the end
    done = np.isfinite(run.trained)
    stale = np.searchsorted(run.bump, run.trained[done], side="right") - np.searchsorted(
        run.bump, run.start[done], side="right"
    )
    law = pipeline.streaming_staleness(
        n_slots=K,
        batch_responses=B,
        mean_duration_s=float(lengths.mean()),
        queue_at_bumps=float(run.queue_at_bump.mean()),
    )
    left = balance.total_staleness - int(stale.sum())
    mean = (stale.sum() + left) / (B * run.bump.size)
    assert law.mean_versions == pytest.approx(mean, abs=1e-9)
    assert stale.mean() == pytest.approx(law.mean_versions, rel=0.05)


def test_time_average_of_the_queue_is_not_the_event_average() -> None:
    """Training-bound: bumps find the queue at its fullest, just before a batch leaves it."""
    lengths = np.random.default_rng(12).exponential(1.0, 400)
    K, B = 6, 4
    run = play_stream(lengths, K=K, B=B, train=0.9)
    finished = np.sort(run.start[K:])
    grid = np.linspace(finished[0], finished[-1] * 0.9, 4001)
    finished_by = np.searchsorted(finished, grid)
    taken_by = np.searchsorted(np.sort(run.trained[np.isfinite(run.trained)]), grid)
    time_average = float((finished_by - taken_by).mean())
    assert run.queue_at_bump.mean() > time_average + 0.5


def test_a_record_that_loses_a_response_shows_up() -> None:
    run = play_stream(np.random.default_rng(13).exponential(1.0, 300), K=5, B=2, train=0.1)
    total = pipeline.staleness_balance(run.start, trained_s=run.trained, bump_s=run.bump)
    fewer = pipeline.staleness_balance(run.start[1:], trained_s=run.trained[1:], bump_s=run.bump)
    assert fewer.total_staleness == fewer.aged_at_bumps < total.aged_at_bumps
    assert fewer.aged_at_bumps != int((run.in_flight_at_bump + run.queue_at_bump).sum())


def test_fixed_durations_and_instant_training() -> None:
    """K slots in step, duration 2: K finish every 2 s, K/(2B) steps a second."""
    law = pipeline.streaming_staleness(n_slots=8, batch_responses=4, mean_duration_s=2.0)
    assert law.rollout_bound_step_rate == 1.0
    assert law.mean_versions == 2.0
    assert law.slope_versions_per_s == pytest.approx(7 / 8)


# --- F5, F6 ----------------------------------------------------------------------------------


def test_size_bias_by_looking_at_every_moment() -> None:
    """One slot plays lengths 1, 2, 9 in turn; average over a fine grid of moments."""
    lengths = np.array([1.0, 2.0, 9.0])
    ends = np.cumsum(lengths)
    moments = (np.arange(120_000) + 0.5) / 10_000
    index = np.searchsorted(ends, moments)
    mean, second = float(lengths.mean()), float((lengths**2).mean())
    assert pipeline.in_flight_mean(mean, second_moment=second) == pytest.approx(
        float(lengths[index].mean()), abs=1e-9
    )
    left = float((ends[index] - moments).mean())
    assert pipeline.residual_mean(mean, second_moment=second) == pytest.approx(left, abs=1e-9)
    assert pipeline.in_flight_mean(5.0, second_moment=25.0) == 5.0


@given(R=st.floats(0.1, 100), T=st.floats(0.1, 100), wait=st.floats(0, 300))
@settings(deadline=None)
def test_best_split_by_search(R: float, T: float, wait: float) -> None:
    def cycle(x: float) -> float:
        return max(wait + R / x, T / (1 - x))

    found = optimize.minimize_scalar(
        cycle, bounds=(1e-9, 1 - 1e-9), method="bounded", options={"xatol": 1e-12}
    )
    got = pipeline.best_split(R, train_s=T, latency_s=wait)
    assert got.cycle_s == pytest.approx(found.fun, rel=1e-6)
    assert got.cycle_s <= found.fun * (1 + 1e-9)
    x = got.rollout_share
    assert 0 < x < 1
    assert wait + R / x == pytest.approx(T / (1 - x), rel=1e-7)
    assert got.gain >= 1 - 1e-9


def test_no_free_lunch_with_perfect_scaling() -> None:
    got = pipeline.best_split(30.0, train_s=10.0)
    assert got.rollout_share == pytest.approx(0.75, abs=1e-12)
    assert got.cycle_s == pytest.approx(40.0, abs=1e-12)
    assert got.gain == pytest.approx(1.0, abs=1e-12)
    assert pipeline.best_split(30.0, train_s=10.0, latency_s=20.0).gain > 1.05


def test_gated_bound_is_the_least_of_its_parts() -> None:
    def bound(eta: int, q: float) -> float:
        return pipeline.gated_step_rate_bound(
            rollout_s=4.0,
            train_s=1.0,
            staleness=eta,
            n_slots=8,
            mean_duration_s=2.0,
            batch_responses=8,
            p_mixed=q,
        )

    assert bound(0, 1.0) == pytest.approx(1 / 5)
    assert bound(9, 1.0) == pytest.approx(1 / 2)
    assert bound(9, 0.5) == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: pipeline.fixed_cycle_s(1.0, train_s=1.0, staleness=-1), "staleness"),
        (lambda: pipeline.sync_cycle_s(0.0, train_s=1.0), "rollout_s"),
        (lambda: pipeline.in_flight_mean(2.0, second_moment=3.0), "second_moment"),
        (
            lambda: pipeline.staleness_balance([1.0], trained_s=[0.5], bump_s=[]),
            "trained_s never before",
        ),
        (
            lambda: pipeline.streaming_staleness(n_slots=0, batch_responses=1, mean_duration_s=1.0),
            "n_slots",
        ),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()
    assert "\n" not in str(caught.value)
