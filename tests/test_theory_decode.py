"""Decode time: B5-B8, B11 against a loop over tokens, brute-force schedules, tables T7, T13."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dapolab.theory import barrier, decode, quadrature, sampling, tails

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def token_loop(lengths: list[int], a: float, b: float, c: float, prompts: list[int]) -> list[float]:
    """Decode token by token: each iteration costs a + b n + c (context of all residents)."""
    finish, now = [0.0] * len(lengths), 0.0
    for k in range(max(lengths)):
        alive = [i for i, length in enumerate(lengths) if length > k]
        now += a + b * len(alive) + c * sum(prompts[i] + k for i in alive)
        for i in alive:
            if lengths[i] == k + 1:
                finish[i] = now
    return finish


@given(LENGTHS, st.floats(0, 2), st.floats(0, 1), st.floats(0, 0.1), st.integers(0, 50))
def test_affine_times_equal_the_token_loop(
    lengths: list[int], a: float, b: float, c: float, prompt: int
) -> None:
    prompts = [prompt + i for i in range(len(lengths))]
    expected = token_loop(lengths, a, b, c, prompts)
    law = {"step_s": a, "per_response_s": b, "per_context_token_s": c, "prompt_tokens": prompts}
    got = decode.affine_finish_times(lengths, **law)  # type: ignore[arg-type]
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-12)
    makespan = decode.affine_makespan_s(lengths, **law)  # type: ignore[arg-type]
    assert makespan == pytest.approx(max(expected), rel=1e-9, abs=1e-12)


def test_golden_three_responses() -> None:
    """T13: L = 3, 5, 9, a = 1, b = .5; two slots take 12 iterations and 20.5 s."""
    got = decode.affine_finish_times([3, 5, 9], step_s=1.0, per_response_s=0.5)
    assert got.tolist() == [7.5, 11.5, 17.5]
    assert decode.list_schedule([3, 5, 9], n_slots=2).makespan == 12
    two = decode.slot_limited_makespan_s([3, 5, 9], n_slots=2, step_s=1.0, per_response_s=0.5)
    assert two == 20.5


@given(LENGTHS)
def test_any_step_law_equals_the_token_loop(lengths: list[int]) -> None:
    """A concave law of the number of residents."""
    expected = sum(
        3 + math.sqrt(sum(length > k for length in lengths)) for k in range(max(lengths))
    )
    got = decode.makespan_s(lengths, step_time_s=lambda n: 3 + np.sqrt(n))
    assert got == pytest.approx(expected, rel=1e-9)


def slot_loop(lengths: list[int], m: int, a: float, b: float) -> tuple[float, int]:
    """Token loop with m slots: the queue is admitted at the start of each iteration."""
    queue, running, now, steps = list(lengths), [], 0.0, 0
    while queue or running:
        while queue and len(running) < m:
            running.append(queue.pop(0))
        now += a + b * len(running)
        steps += 1
        running = [left - 1 for left in running if left > 1]
    return now, steps


@given(LENGTHS, st.integers(1, 6), st.floats(0, 2), st.floats(0, 1))
def test_slot_limit_equals_the_token_loop(lengths: list[int], m: int, a: float, b: float) -> None:
    now, steps = slot_loop(lengths, m, a, b)
    assert decode.list_schedule(lengths, n_slots=m).makespan == steps
    got = decode.slot_limited_makespan_s(lengths, n_slots=m, step_s=a, per_response_s=b)
    assert got == pytest.approx(now, rel=1e-9, abs=1e-12)


def optimal(lengths: list[int], m: int) -> int:
    return min(
        max(sum(x for x, slot in zip(lengths, to, strict=True) if slot == s) for s in range(m))
        for to in itertools.product(range(m), repeat=len(lengths))
    )


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 3))
def test_graham_bounds_enclose_the_brute_force_optimum(lengths: list[int], m: int) -> None:
    best = optimal(lengths, m)
    bounds = decode.makespan_bounds(lengths, n_slots=m)
    listed = decode.list_schedule(lengths, n_slots=m).makespan
    assert bounds.lower - 1e-9 <= best <= listed <= bounds.upper + 1e-9
    assert bounds.upper <= (2 - 1 / m) * best + 1e-9
    sorted_first = decode.longest_first_schedule(lengths, n_slots=m).makespan
    assert best <= sorted_first <= (4 / 3 - 1 / (3 * m)) * best + 1e-9


def test_worst_case_examples_of_list_scheduling() -> None:
    for m in (2, 4, 8):
        lengths = [1] * (m * (m - 1)) + [m]
        assert decode.list_schedule(lengths, n_slots=m).makespan == 2 * m - 1
        assert decode.longest_first_schedule(lengths, n_slots=m).makespan == m
    assert decode.longest_first_schedule([3, 3, 2, 2, 2], n_slots=2).makespan == 7
    assert optimal([3, 3, 2, 2, 2], 2) == 6
    lengths = [7, 7, 6, 6, 5, 5, 4, 4, 4]
    assert decode.longest_first_schedule(lengths, n_slots=4).makespan == 15
    assert decode.makespan_bounds(lengths, n_slots=4).lower == 12


def test_schedule_keeps_submission_order() -> None:
    got = decode.longest_first_schedule([2, 9, 4], n_slots=1)
    assert got.starts.tolist() == [13, 0, 9]
    assert got.finishes.tolist() == [15, 9, 13]


def test_busy_share_of_the_field_case() -> None:
    """B53: seven 10-minute answers and one of 40 on 8 devices: 34.4 % busy, 65.6 % bubble."""
    share = decode.slot_utilisation_share([10] * 7 + [40], n_slots=8)
    assert share == pytest.approx(0.344, abs=5e-4)
    assert decode.list_schedule([10] * 7 + [40], n_slots=8).makespan == 40


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 3), (12, 4), (3, 9)])
def test_exponential_makespan_adds_independent_gaps(n: int, m: int) -> None:
    """With k of min(m, left) running, the next completion is exponential at rate k."""
    running = [min(m, left) for left in range(1, n + 1)]
    got = decode.exponential_makespan(n, n_slots=m, mean_duration=5.0)
    assert got.mean == pytest.approx(5 * sum(1 / k for k in running), rel=1e-12)
    assert got.variance == pytest.approx(25 * sum(1 / k**2 for k in running), rel=1e-12)


def wave_costs(q: float) -> tuple[float, float, float, float]:
    """Latency and load, tokens, of refill and of verl 3x rounds: the setting of table T7."""
    law = stats.lognorm(0.9, scale=math.exp(7))
    group = tails.group_survival(lambda x: np.asarray(law.sf(x)), group_size=8)
    mean = float(quadrature.mean_from_survival(lambda x: np.asarray(law.sf(x)), cap=8192)[0])
    refill = barrier.expected_barrier_time(group, p_mixed=q, n_groups=4, cap=8192).expected_time
    rounds = sampling.rounds(q, n_groups=4, gen_groups=12).expected_rounds
    one_round = tails.expected_max_tokens(group, n=12, cap_tokens=8192)
    return refill, rounds * one_round, 8 * mean * 4 / q, 8 * mean * rounds * 12


# out_golden T7: b, q, refill, rounds of 12, ratio
T7 = [
    (0.001, 0.3, 33372, 12221, 2.731),
    (0.001, 0.5, 18845, 8534, 2.208),
    (0.001, 0.7, 12357, 7966, 1.551),
    (0.01, 0.3, 34907, 14344, 2.434),
    (0.01, 0.5, 19766, 10016, 1.973),
    (0.01, 0.7, 13015, 9350, 1.392),
    (0.05, 0.3, 41729, 23779, 1.755),
    (0.05, 0.5, 23858, 16605, 1.437),
    (0.05, 0.7, 15938, 15499, 1.028),
    (0.2, 0.3, 67309, 59160, 1.138),
    (0.2, 0.5, 39207, 41311, 0.949),
    (0.2, 0.7, 26901, 38561, 0.698),
]


@pytest.mark.parametrize("row", T7)
def test_refill_against_rounds_table(row: tuple[float, ...]) -> None:
    b, q, refill_s, rounds_s, ratio = row
    refill_latency, rounds_latency, refill_load, rounds_load = wave_costs(q)
    refill = decode.expected_affine_time_s(
        latency_tokens=refill_latency, load_tokens=refill_load, step_s=1.0, per_response_s=b
    )
    rounds = decode.expected_affine_time_s(
        latency_tokens=rounds_latency, load_tokens=rounds_load, step_s=1.0, per_response_s=b
    )
    assert (refill, rounds) == pytest.approx((refill_s, rounds_s), abs=0.51)
    assert refill / rounds == pytest.approx(ratio, abs=5.1e-4)


def test_break_even_is_where_both_cost_the_same() -> None:
    """Theory B5e: b/a = .166."""
    names = (
        "refill_latency_tokens",
        "rounds_latency_tokens",
        "refill_load_tokens",
        "rounds_load_tokens",
    )
    costs = wave_costs(0.5)
    b = decode.break_even_load_ratio(**dict(zip(names, costs, strict=True)))
    assert b == pytest.approx(0.166, abs=5e-4)
    assert costs[0] + b * costs[2] == pytest.approx(costs[1] + b * costs[3], rel=1e-12)
    assert decode.break_even_load_ratio(**dict(zip(names, (1, 2, 3, 4), strict=True))) == 0.0
    assert decode.break_even_load_ratio(**dict(zip(names, (2, 1, 4, 3), strict=True))) == math.inf
    with pytest.raises(ValueError, match="below"):
        decode.break_even_load_ratio(**dict(zip(names, (1, 2, 4, 3), strict=True)))


@pytest.mark.parametrize("b", [0.0, 0.05, 3.0])
def test_affine_amplification_is_the_ratio_of_both_times(b: float) -> None:
    q = 0.5
    latency, _, load, _ = wave_costs(q)
    law = stats.lognorm(0.9, scale=math.exp(7))
    group = tails.group_survival(lambda x: np.asarray(law.sf(x)), group_size=8)
    first = tails.expected_max_tokens(group, n=4, cap_tokens=8192)
    got = decode.affine_amplification(
        latency / first,
        p_mixed=q,
        first_wave_latency_tokens=first,
        first_wave_load_tokens=load * q,
        step_s=1.0,
        per_response_s=b,
    )
    assert got == pytest.approx((latency + b * load) / (first + b * load * q), rel=1e-12)


def test_response_rates() -> None:
    law = {"mean_tokens": 20.0, "step_s": 1.0, "per_response_s": 0.1}
    assert decode.always_full_response_rate(16, **law) == pytest.approx(16 / (2.6 * 20))
    wave = decode.wave_response_rate(16, expected_max_tokens=60.0, **law)
    assert wave == pytest.approx(16 / (60 + 0.1 * 16 * 20))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: decode.affine_finish_times([], step_s=1.0), "lengths"),
        (lambda: decode.affine_makespan_s([1, -2], step_s=1.0), "lengths"),
        (lambda: decode.affine_makespan_s([1, 2], step_s=-1.0), "step_s"),
        (lambda: decode.list_schedule([1], n_slots=0), "n_slots"),
        (
            lambda: decode.always_full_response_rate(
                4, mean_tokens=1.0, step_s=0.0, per_response_s=0.0
            ),
            "step_s",
        ),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: object, word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@given(LENGTHS, st.randoms())
def test_equal_starts_do_not_care_for_order(lengths: list[int], random: object) -> None:
    shuffled = list(lengths)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one = decode.affine_finish_times(lengths, step_s=1.0, per_response_s=0.3)
    two = decode.affine_finish_times(shuffled, step_s=1.0, per_response_s=0.3)
    assert np.sort(one) == pytest.approx(np.sort(two), rel=1e-12)


@given(LENGTHS, st.integers(1, 6), st.data())
def test_first_come_starts_are_monotone(lengths: list[int], m: int, data: st.DataObject) -> None:
    """Theory B8e: more slots or a shorter job never start or end anything later."""
    before = decode.list_schedule(lengths, n_slots=m)
    assert np.all(decode.list_schedule(lengths, n_slots=m + 1).starts <= before.starts + 1e-9)
    i = data.draw(st.integers(0, len(lengths) - 1))
    shorter = list(lengths)
    shorter[i] -= 1
    after = decode.list_schedule(shorter, n_slots=m)
    assert np.all(after.starts <= before.starts + 1e-9)
    assert after.makespan <= before.makespan


@given(LENGTHS, st.floats(0.1, 9.0))
def test_scaling_lengths_scales_time(lengths: list[int], scale: float) -> None:
    one = decode.affine_makespan_s(lengths, step_s=2.0, per_response_s=0.5)
    big = decode.affine_makespan_s(np.array(lengths) * scale, step_s=2.0, per_response_s=0.5)
    assert big == pytest.approx(scale * one, rel=1e-12)
