"""Policies without a barrier: A10-A14 against enumeration, other closed laws, table T3."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from dapolab.theory import collection, sampling

# out_golden T3: B, q, barrier refill, slot refill, streaming (K = B), one wave, short-length bias
T3 = [
    (4, 0.3, 9.151, 6.944, 3.333, 2.083, 0.786),
    (4, 0.5, 5.257, 4.167, 2.0, 2.083, 0.674),
    (4, 0.7, 3.536, 2.976, 1.429, 2.083, 0.586),
    (16, 0.3, 19.963, 11.269, 3.333, 3.381, 0.73),
    (16, 0.5, 11.136, 6.761, 2.0, 3.381, 0.595),
    (16, 0.7, 7.195, 4.83, 1.429, 3.381, 0.497),
    (64, 0.3, 36.233, 15.813, 3.333, 4.744, 0.716),
    (64, 0.5, 19.839, 9.488, 2.0, 4.744, 0.574),
    (64, 0.7, 12.495, 6.777, 1.429, 4.744, 0.475),
    (512, 0.3, 70.877, 22.722, 3.333, 6.817, 0.711),
    (512, 0.5, 38.169, 13.633, 2.0, 6.817, 0.569),
    (512, 0.7, 23.487, 9.738, 1.429, 6.817, 0.469),
]


@pytest.mark.parametrize("row", T3)
def test_hierarchy_table(row: tuple[float, ...]) -> None:
    B, q, *times, bias = row
    got = collection.hierarchy(q, n_groups=int(B), mean_duration=1.0)
    mine = [got.barrier_refill, got.slot_refill, got.streaming, got.one_wave]
    assert mine == pytest.approx(times, abs=5.1e-4)
    stream = collection.streaming(q, n_groups=int(B), n_slots=int(B), mean_duration=1.0)
    assert stream.completed_duration_ratio == pytest.approx(bias, abs=5.1e-4)
    assert got.barrier_refill > got.slot_refill > got.streaming


def test_streaming_moments_follow_from_its_law() -> None:
    law = {"p_mixed": 0.4, "n_groups": 6, "n_slots": 5, "mean_duration": 30.0}
    got = collection.streaming(0.4, n_groups=6, n_slots=5, mean_duration=30.0)

    def above(t: float) -> float:
        return 1.0 - float(collection.p_streaming_time_at_most(t, **law))  # type: ignore[arg-type]

    mean, _ = integrate.quad(above, 0, 2000, limit=300)
    second, _ = integrate.quad(lambda t: 2 * t * above(t), 0, 2000, limit=300)
    assert got.expected_time == pytest.approx(mean, rel=1e-9)
    assert got.sd_time == pytest.approx(math.sqrt(second - mean**2), rel=1e-8)


def test_streaming_aborted_work_is_the_sum_over_completions() -> None:
    """A group in flight at the end survived i completions, each with probability 1 - 1/K."""
    q, B, K = 0.5, 16, 16
    n = np.arange(B, 2000)
    law = stats.nbinom.pmf(n - B, B, q)
    phi = law @ (1 - 1 / K) ** n
    got = collection.streaming(q, n_groups=B, n_slots=K, mean_duration=2.0)
    assert got.expected_aborted_work == pytest.approx(2.0 * (K - 1) * (1 - phi), rel=1e-12)
    total = K * got.expected_time
    completed = B / q * got.completed_duration_ratio * 2.0
    assert total == pytest.approx(completed + got.expected_aborted_work, rel=1e-12)


def test_one_slot_aborts_nothing() -> None:
    got = collection.streaming(0.3, n_groups=4, n_slots=1, mean_duration=1.0)
    assert (got.expected_aborted_work, got.completed_duration_ratio) == (0.0, 1.0)
    assert got.expected_launched == pytest.approx(4 / 0.3)


@pytest.mark.parametrize("B", [1, 4, 50])
@pytest.mark.parametrize("q", [0.15, 0.6, 1.0])
def test_replenish_of_geometric_tokens_is_geometric(q: float, B: int) -> None:
    """A geometric(q) number of Geo(h) lengths is Geo(q h), so T is a maximum of geometrics."""
    h = 0.05
    got = collection.expected_replenish_tokens(
        lambda x: (1 - h) ** np.floor(x), n_groups=B, p_mixed=q, cap_tokens=700
    )
    x = np.arange(30_000)
    expected = np.sum(1 - (1 - (1 - q * h) ** x) ** B)
    assert got == pytest.approx(expected, rel=1e-9)


def test_replenish_with_lengths_that_depend_on_the_judgement() -> None:
    """Mixed groups take 3 tokens, the others 1: the slot time is 3 + geometric misses."""
    B, q = 5, 0.3

    def mixed(x: np.ndarray) -> np.ndarray:
        return np.where(x < 3, 1.0, 0.0)

    def degenerate(x: np.ndarray) -> np.ndarray:
        return np.where(x < 1, 1.0, 0.0)

    got = collection.expected_replenish_tokens(
        mixed, n_groups=B, p_mixed=q, cap_tokens=3, survival_degenerate=degenerate
    )
    assert got == pytest.approx(2 + sampling.expected_waves(q, n_groups=B), rel=1e-9)


def test_replenish_time_exponential_is_a_maximum() -> None:
    B, q, mean = 7, 0.4, 90.0
    above = lambda t: 1 - (1 - math.exp(-q * t / mean)) ** B  # noqa: E731
    expected, _ = integrate.quad(above, 0, 50_000, limit=500)
    got = collection.expected_replenish_time(q, n_groups=B, mean_duration=mean)
    assert got == pytest.approx(expected, rel=1e-9)
    assert collection.expected_replenish_time(0.0, n_groups=B, mean_duration=mean) == math.inf


@pytest.mark.parametrize(("B", "N0"), [(1, 3), (2, 4), (3, 4), (4, 4)])
def test_over_provision_equals_enumeration(B: int, N0: int) -> None:
    """Durations 1..3 whose law depends on the judgement: all (2*3)^N0 outcomes."""
    q, p_mixed, p_other = 0.6, [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]
    one = [(True, d, q * p_mixed[d - 1]) for d in (1, 2, 3)]
    one += [(False, d, (1 - q) * p_other[d - 1]) for d in (1, 2, 3)]
    full = total = full_time = 0.0
    by_two = 0.0
    for outcome in itertools.product(one, repeat=N0):
        weight = math.prod(o[2] for o in outcome)
        mixed = sorted(o[1] for o in outcome if o[0])
        if len(mixed) >= B:
            full += weight
            full_time += weight * mixed[B - 1]
            by_two += weight * (mixed[B - 1] <= 2)
            total += weight * mixed[B - 1]
        else:
            total += weight * max(o[1] for o in outcome)
    above_mixed = np.array([1.0, 0.8, 0.5])
    above_other = np.array([1.0, 0.3, 0.1])
    got = collection.over_provision(
        lambda x: above_mixed[np.minimum(x.astype(int), 2)],
        n_groups=B,
        n_candidates=N0,
        p_mixed=q,
        cap=3,
        survival_degenerate=lambda x: above_other[np.minimum(x.astype(int), 2)],
        whole_tokens=True,
    )
    assert got.p_full == pytest.approx(full, abs=1e-12)
    assert got.expected_time == pytest.approx(total, abs=1e-9)
    assert got.expected_time_if_full == pytest.approx(full_time / full, abs=1e-9)
    law = collection.p_over_provision_full_by(0.5, n_groups=B, n_candidates=N0, p_mixed=q)
    assert float(law) == pytest.approx(by_two, abs=1e-12)


def test_over_provision_when_all_are_mixed_is_an_order_statistic() -> None:
    """q = 1, exponential: the B-th of N0 finishes at H_N0 - H_(N0-B)."""
    got = collection.over_provision(
        lambda x: np.exp(-x / 20.0), n_groups=3, n_candidates=10, p_mixed=1.0
    )
    assert got.expected_time == pytest.approx(20 * (1 / 10 + 1 / 9 + 1 / 8), rel=1e-9)
    first = collection.first_finished(10, n_kept=3, mean_duration=20.0)
    assert first.expected_stop_time == pytest.approx(got.expected_time, rel=1e-9)


def test_over_provision_with_no_mixed_group_waits_for_all() -> None:
    got = collection.over_provision(lambda x: np.exp(-x), n_groups=2, n_candidates=6, p_mixed=0.0)
    assert (got.p_full, got.expected_time_if_full) == (0.0, None)
    assert got.expected_time == pytest.approx(sum(1 / j for j in range(1, 7)), rel=1e-9)


@pytest.mark.parametrize(("V", "k"), [(1, 1), (8, 4), (10, 10), (40, 7)])
def test_first_finished_equals_the_mean_of_order_statistics(V: int, k: int) -> None:
    order = [sum(1 / j for j in range(V - i + 1, V + 1)) for i in range(1, k + 1)]
    got = collection.first_finished(V, n_kept=k, mean_duration=10.0)
    assert got.expected_stop_time == pytest.approx(10 * order[-1], rel=1e-12)
    assert got.expected_kept_duration == pytest.approx(10 * sum(order) / k, rel=1e-9)


def test_rounds_time_is_rounds_times_a_round() -> None:
    assert collection.expected_rounds_time(1.5, expected_round_max=4000.0) == 6000.0


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (
            lambda: collection.streaming(0.5, n_groups=4, n_slots=0, mean_duration=1.0),
            "n_slots",
        ),
        (
            lambda: collection.streaming(0.5, n_groups=4, n_slots=4, mean_duration=0.0),
            "mean_duration",
        ),
        (
            lambda: collection.over_provision(np.exp, n_groups=4, n_candidates=3, p_mixed=0.5),
            "n_candidates",
        ),
        (lambda: collection.first_finished(3, n_kept=4, mean_duration=1.0), "n_kept"),
        (
            lambda: collection.expected_replenish_tokens(
                lambda x: np.exp(-x), n_groups=4, p_mixed=1e-6, cap_tokens=8192
            ),
            "token grid",
        ),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: object, word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@given(q=st.floats(0.02, 1.0), B=st.integers(1, 64), K=st.integers(1, 64))
def test_streaming_bounds(q: float, B: int, K: int) -> None:
    got = collection.streaming(q, n_groups=B, n_slots=K, mean_duration=1.0)
    assert 0.0 < got.completed_duration_ratio <= 1.0 + 1e-12
    assert 0.0 <= got.expected_aborted_work <= K - 1 + 1e-9
    more = collection.streaming(q, n_groups=B, n_slots=K + 1, mean_duration=1.0)
    assert more.expected_time < got.expected_time
    assert more.completed_duration_ratio <= got.completed_duration_ratio + 1e-12


@given(q=st.floats(0.0, 0.99), B=st.integers(1, 8), extra=st.integers(0, 12), above=st.floats(0, 1))
def test_more_candidates_and_more_mixed_groups_fill_sooner(
    q: float, B: int, extra: int, above: float
) -> None:
    def full_by(p: float, N0: int, S: float) -> float:
        law = collection.p_over_provision_full_by(S, n_groups=B, n_candidates=N0, p_mixed=p)
        return float(law)

    now = full_by(q, B + extra, above)
    assert 0.0 <= now <= 1.0
    assert full_by(q, B + extra + 1, above) >= now - 1e-12
    assert full_by(q + 0.01, B + extra, above) >= now - 1e-12
    assert full_by(q, B + extra, above / 2) >= now - 1e-12
