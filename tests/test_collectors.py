"""Every policy against hand-made sequences, exact chains and field cases."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import chain, cycle, islice, product, repeat

import numpy as np
import pytest
from collector_play import MIXED, RIGHT, WRONG, Candidate, Played, play, stream

from dapolab.collectors import Drop, Finished, Keep, is_degenerate, new_collector
from dapolab.scenario import (
    Budget,
    ExactRefill,
    FilterNoRefill,
    NoFilter,
    OverProvision,
    Replenish,
    Rollout,
    Rounds,
    Streaming,
)

FOUR = Rollout(groups_per_step=4, group_size=8)


def end(played: Played) -> tuple[str, bool]:
    assert played.failure is None, played.failure
    assert played.stop is not None
    return played.stop.reason, played.stop.train


# ---------------------------------------------------------------------------- one policy at a time


def test_no_filter_trains_degenerate_groups_too() -> None:
    played = play(NoFilter(), stream("mwrm" + "m"), rollout=FOUR)
    assert played.submits == [4]
    assert played.kept == [0, 1, 2, 3]
    assert end(played) == ("one_wave", True)


def test_filter_no_refill_shrinks_and_skips() -> None:
    played = play(FilterNoRefill(), stream("mwrm" + "m"), rollout=FOUR)
    assert (played.submits, played.kept) == ([4], [0, 3])
    assert end(played) == ("one_wave", True)
    assert end(play(FilterNoRefill(), stream("wrwr"), rollout=FOUR)) == ("one_wave", False)
    assert end(play(FilterNoRefill(), stream("mmmm"), rollout=FOUR)) == ("full", True)


def test_exact_refill_asks_for_the_deficit() -> None:
    played = play(ExactRefill(), stream("mwwm" + "wm" + "m"), rollout=FOUR)
    assert played.submits == [4, 2, 1]
    assert played.kept == [0, 3, 5, 6]
    assert played.n_dropped("degenerate") == 3
    assert end(played) == ("full", True)


def test_exact_refill_takes_five_waves_at_worst() -> None:
    # Misses exactly one in the first wave, then one at a time: 1 + (M−1)·B waves.
    played = play(ExactRefill(), stream("mmmw" + "wwww" + "m"), rollout=FOUR)
    assert played.submits == [4, 1, 1, 1, 1]
    assert len(played.trained) == 3
    assert end(played) == ("cap", True)


def test_exact_refill_clips_the_last_wave_to_the_cap() -> None:
    played = play(ExactRefill(), stream("wwwm" + "wwm" + "mm"), rollout=FOUR)
    assert played.submits == [4, 3, 1]
    assert (played.kept, end(played)) == ([3, 6, 7], ("cap", True))


def test_exact_refill_at_the_cap_skips_or_raises() -> None:
    assert end(play(ExactRefill(), stream("w" * 8), rollout=FOUR)) == ("cap", False)
    older = ExactRefill(at_cap="error")
    failure = play(older, stream("wwwwwwrr"), rollout=FOUR).failure
    assert failure is not None
    assert "kept 0 of 4 groups from 8 candidates" in failure
    assert "all-wrong 75.0%, all-right 25.0%" in failure
    assert end(play(older, stream("mwwwwmmm"), rollout=FOUR)) == ("full", True)


def test_exact_refill_without_a_cap_is_guarded() -> None:
    config = ExactRefill(max_candidate_multiplier=None, max_waves=7)
    failure = play(config, repeat(WRONG), rollout=FOUR).failure
    assert failure is not None
    assert "7 waves" in failure
    assert "kept 0 of 4 groups from 28 candidates (all-wrong 100.0%" in failure


def test_rounds_keep_the_first_in_loader_order() -> None:
    config = Rounds(gen_groups=6)
    slow_first = [Candidate(4, 9.0), *stream("wmwww"), *stream("mmmrmm")]
    played = play(config, slow_first, rollout=FOUR)
    assert played.submits == [6, 6]
    assert played.kept == [0, 2, 6, 7]
    assert played.n_dropped("surplus") == 3
    assert played.n_dropped("degenerate") == 5
    assert end(played) == ("full", True)


def test_a_wave_is_judged_in_submission_order_however_it_is_told() -> None:
    collector = new_collector(Rounds(gen_groups=6), FOUR)
    collector.on_start()
    actions = collector.on_wave_end([MIXED.finished(i) for i in (5, 2, 0, 4, 1, 3)])
    assert actions[:4] == [Keep(0), Keep(1), Keep(2), Keep(3)]
    assert actions[4:6] == [Drop(4, "surplus"), Drop(5, "surplus")]


def test_rounds_generate_three_times_the_batch_unless_told() -> None:
    assert play(Rounds(), repeat(MIXED), rollout=FOUR).submits == [12]


def test_rounds_may_stop_at_the_limit_instead_of_dying() -> None:
    config = Rounds(gen_groups=4, max_num_gen_batches=2, at_max="stop")
    assert end(play(config, stream("mwww" + "wwww"), rollout=FOUR)) == ("cap", True)
    assert end(play(config, stream("wwww" + "wwww"), rollout=FOUR)) == ("cap", False)


def test_replenish_replaces_one_for_one() -> None:
    groups = [WRONG, Candidate(4, 5.0), MIXED, MIXED, Candidate(0, 1.0), Candidate(4, 1.0), MIXED]
    played = play(Replenish(), groups, rollout=FOUR)
    assert played.submits == [4, 1, 1]
    assert played.kept == [2, 3, 5, 1]  # in the order of completion
    assert (played.aborted, played.n_dropped("surplus")) == ([], 0)
    assert end(played) == ("full", True)


def test_replenish_loses_all_when_the_data_run_out() -> None:
    played = play(Replenish(), stream("mmmw"), rollout=FOUR)
    assert len(played.kept) == 3
    assert (played.trained, end(played)) == ([], ("data", False))


def test_replenish_has_a_guard() -> None:
    failure = play(Replenish(max_candidates=50), repeat(RIGHT), rollout=FOUR).failure
    assert failure is not None
    assert "max_candidates=50" in failure
    assert "all-right 100.0%" in failure


def test_streaming_refills_every_slot_and_aborts_the_rest() -> None:
    groups = [Candidate(4, 9.0), MIXED, WRONG, MIXED, MIXED, MIXED]
    played = play(Streaming(slots=3), chain(groups, repeat(Candidate(4, 9.0))), rollout=FOUR)
    # t=1: #1 kept (refill #3), #2 dropped (refill #4). t=2: #3 (refill #5), #4 (refill #6).
    # t=3: #5 is the fourth; #0 and #6 are cut off.
    assert played.kept == [1, 3, 4, 5]
    assert played.aborted == [0, 6]
    assert (played.end_s, end(played)) == (3.0, ("full", True))


def test_streaming_lets_the_last_groups_return_when_the_data_run_out() -> None:
    groups = [MIXED, WRONG, Candidate(4, 5.0)]
    played = play(Streaming(slots=2), groups, rollout=FOUR)
    assert (played.kept, played.aborted) == ([0, 2], [])
    assert (played.end_s, end(played)) == (6.0, ("data", True))
    assert end(play(Streaming(slots=8), stream("mm"), rollout=FOUR)) == ("data", True)
    assert end(play(Streaming(), stream(""), rollout=FOUR)) == ("data", False)


def test_streaming_has_a_guard() -> None:
    failure = play(
        Streaming(slots=3, max_candidates=9), cycle([WRONG, RIGHT]), rollout=FOUR
    ).failure
    assert failure is not None
    assert "max_candidates=9" in failure


@pytest.mark.parametrize(
    ("eta", "n_target", "n"), [(1.0, 10, 10), (1.25, 10, 13), (1.5, 10, 15), (1.1, 50, 55)]
)
def test_over_provision_launches_eta_times_the_batch(eta: float, n_target: int, n: int) -> None:
    rollout = Rollout(groups_per_step=n_target, group_size=8)
    assert play(OverProvision(eta=eta), repeat(MIXED), rollout=rollout).submits == [n]


def test_over_provision_first_that_pass_win() -> None:
    groups = [Candidate(4, float(10 - i)) for i in range(5)] + [Candidate(0, 1.0)]
    played = play(OverProvision(eta=1.5), groups, rollout=FOUR)
    assert played.kept == [4, 3, 2, 1]
    assert (played.aborted, played.dropped, played.end_s) == ([0], {5: "degenerate"}, 9.0)
    unfiltered = play(OverProvision(eta=1.5, filter=False), groups, rollout=FOUR)
    assert unfiltered.kept == [5, 4, 3, 2]


def test_over_provision_trains_what_passed_when_all_have_returned() -> None:
    assert end(play(OverProvision(), stream("mwmwww"), rollout=FOUR)) == ("returned", True)
    assert end(play(OverProvision(), stream("wwwwww"), rollout=FOUR)) == ("returned", False)
    assert end(play(OverProvision(), stream("mwm"), rollout=FOUR)) == ("data", True)


def test_a_policy_refuses_the_other_rhythm() -> None:
    group = MIXED.finished(0)
    with pytest.raises(TypeError, match="whole waves"):
        new_collector(ExactRefill(), FOUR).on_group(group)
    with pytest.raises(TypeError, match="group by group"):
        new_collector(Streaming(), FOUR).on_wave_end([group])


# ---------------------------------------------------------------------------- what is degenerate


def test_degenerate_is_a_matter_of_spread() -> None:
    def degenerate(spread: float, n_samples: int = 8, keep: bool = True) -> bool:
        return is_degenerate(Finished(0, n_samples, 0, spread, 1), keep_singletons=keep)

    assert degenerate(0.0)
    assert degenerate(3e-9)
    assert degenerate(math.nan)
    assert not degenerate(1e-5)
    assert not degenerate(0.0, n_samples=1)
    assert degenerate(0.0, n_samples=1, keep=False)


def test_degenerate_groups_are_told_apart_in_the_message() -> None:
    # A constant metric over right and wrong answers (shaped ties) is a cause of its own.
    tie = Candidate(4, spread=0.0)
    config = ExactRefill(at_cap="error", max_candidate_multiplier=1)
    unscored = Candidate(0, spread=math.nan)
    failure = play(config, [WRONG, RIGHT, tie, unscored], rollout=FOUR).failure
    assert failure is not None
    causes = "all-wrong 25.0%, all-right 25.0%, tied 25.0%, without a reward 25.0%"
    assert f"({causes})" in failure


# ---------------------------------------------------------------------------- budgets

SLOW = [Candidate(4, 1.0), Candidate(4, 2.0), Candidate(0, 1.0), Candidate(4, 50.0)]


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (NoFilter(), [0, 1, 2]),
        (FilterNoRefill(), [0, 1]),
        (ExactRefill(), [0, 1]),
        (Rounds(gen_groups=4), [0, 1]),
        (Replenish(), [0, 1]),
        (Streaming(slots=4), [0, 1]),
        (OverProvision(eta=1.0), [0, 1]),
    ],
)
def test_a_time_budget_trains_what_has_returned(config: object, kept: list[int]) -> None:
    groups = chain(SLOW, repeat(Candidate(4, 50.0)))
    played = play(config, groups, rollout=FOUR, deadline_s=10.0)
    assert played.kept == kept
    assert (played.end_s, end(played)) == (10.0, ("seconds", True))
    assert 3 in played.aborted
    nothing = play(config, repeat(Candidate(4, 50.0)), rollout=FOUR, deadline_s=10.0)
    assert end(nothing) == ("seconds", False)


def test_a_time_budget_outranks_a_limit_that_the_cut_wave_would_break() -> None:
    config = Rounds(gen_groups=4, max_num_gen_batches=1)
    slow = repeat(Candidate(4, 50.0))
    assert end(play(config, slow, rollout=FOUR, deadline_s=10.0)) == ("seconds", False)


@pytest.mark.parametrize("config", [ExactRefill, Rounds, Replenish, Streaming, OverProvision])
@pytest.mark.parametrize("limit", ["candidate_tokens", "train_tokens"])
def test_a_token_budget_ends_the_step(config: type, limit: str) -> None:
    # 100 tokens a group: the third candidate, or the second kept group, is the one that reaches it.
    budget = Budget(**{limit: 300 if limit == "candidate_tokens" else 200})
    played = play(config(budget=budget), cycle(stream("mwmwwwwwwwww")), rollout=FOUR)
    assert end(played) == (limit, True)
    assert len(played.trained) == 2


def test_a_token_budget_never_hides_a_full_batch_or_the_cap() -> None:
    budget = Budget(candidate_tokens=1)
    assert end(play(ExactRefill(budget=budget), stream("mmmm"), rollout=FOUR)) == ("full", True)
    capped = ExactRefill(budget=budget, max_candidate_multiplier=1)
    assert end(play(capped, stream("mmmw"), rollout=FOUR)) == ("cap", True)


@pytest.mark.parametrize(
    ("config", "trains"), [(ExactRefill(), True), (Rounds(gen_groups=4), False)]
)
def test_a_barrier_policy_when_the_data_run_out(config: object, trains: bool) -> None:
    assert end(play(config, stream("mmmw"), rollout=FOUR)) == ("data", trains)


# ---------------------------------------------------------------------------- exact chains

# B=4, M=2: q, E[waves], P(waves = 5), P(full), P(skip), E[candidates]/B, E[kept]/B,
# E[kept/candidates]; computed by an independent program for the lab's theory notes.
GOLDEN_B4_M2 = [
    (0.2, 2.641472, 0.0131072, 0.0562816, 0.16777216, 1.985344, 0.3970688, 0.20374735238095232),
    (0.3, 2.82686, 0.0259308, 0.19410435, 0.05764801, 1.9411535, 0.58234605, 0.312611025),
    (0.5, 2.75, 0.03125, 0.63671875, 0.00390625, 1.7265625, 0.86328125, 0.5375930059523811),
    (0.9, 1.387352, 0.00029160, 0.99956835, 1e-8, 1.1109845, 0.99988605, 0.9185973107142857),
]


def all_sequences(n: int) -> Iterator[tuple[str, int]]:
    for letters in product("mw", repeat=n):
        yield "".join(letters), letters.count("m")


def played_law(q: float) -> Counter[tuple[int, int, int]]:
    """Law of (waves, candidates, kept) over all 2^8 validity sequences."""
    law: Counter[tuple[int, int, int]] = Counter()
    for letters, n_mixed in all_sequences(8):
        played = play(ExactRefill(), stream(letters), rollout=FOUR)
        key = (len(played.submits), len(played.candidates), len(played.kept))
        law[key] += q**n_mixed * (1 - q) ** (8 - n_mixed)  # type: ignore[assignment]
    return law


def chain_law(q: float) -> Counter[tuple[int, int, int]]:
    """The same law from the Markov chain on (missing, used)."""
    law: Counter[tuple[int, int, int]] = Counter()
    states = {(4, 0): 1.0}
    wave = 0
    while states:
        wave += 1
        following: Counter[tuple[int, int]] = Counter()
        for (missing, used), p in states.items():
            size = min(missing, 8 - used)
            for k in range(size + 1):
                p_k = p * math.comb(size, k) * q**k * (1 - q) ** (size - k)
                if k == missing or used + size == 8:
                    law[wave, used + size, 4 - missing + k] += p_k  # type: ignore[assignment]
                else:
                    following[missing - k, used + size] += p_k  # type: ignore[assignment]
        states = dict(following)
    return law


@pytest.mark.parametrize("golden", GOLDEN_B4_M2, ids=lambda g: f"q={g[0]}")
def test_exact_refill_is_the_chain(golden: tuple[float, ...]) -> None:
    q = golden[0]
    law = played_law(q)
    reference = chain_law(q)
    assert set(law) == set(reference)
    for key, p in reference.items():
        assert law[key] == pytest.approx(p, abs=1e-12)
    found = (
        sum(p * waves for (waves, _, _), p in law.items()),
        sum(p for (waves, _, _), p in law.items() if waves == 5),
        sum(p for (_, _, kept), p in law.items() if kept == 4),
        sum(p for (_, _, kept), p in law.items() if kept == 0),
        sum(p * n for (_, n, _), p in law.items()) / 4,
        sum(p * kept for (_, _, kept), p in law.items()) / 4,
        sum(p * kept / n for (_, n, kept), p in law.items()),
    )
    assert found == pytest.approx(golden[1:], abs=1e-12)
    assert found[1] == pytest.approx(4 * q**3 * (1 - q) ** 4, abs=1e-12)  # A5


@pytest.mark.parametrize("q", [0.2, 0.3, 0.5, 0.9])
def test_rounds_follow_the_binomial(q: float) -> None:
    three = Rollout(groups_per_step=3, group_size=8)
    config = Rounds(gen_groups=4, max_num_gen_batches=3)
    p_rounds: Counter[int] = Counter()
    p_fails = surplus = 0.0
    for letters, n_mixed in all_sequences(12):
        p = q**n_mixed * (1 - q) ** (12 - n_mixed)
        played = play(config, stream(letters), rollout=three)
        if played.failure is not None:
            p_fails += p
            continue
        p_rounds[len(played.submits)] += p  # type: ignore[assignment]
        surplus += p * played.n_dropped("surplus")

    def p_at_least_3(n: int) -> float:
        return sum(math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(3, n + 1))

    filled = [p_at_least_3(4 * r) for r in (1, 2, 3)]
    assert p_fails == pytest.approx(1 - filled[-1], abs=1e-12)
    assert np.cumsum([p_rounds[r] for r in (1, 2, 3)]) == pytest.approx(filled, abs=1e-12)
    # A6, stopped at three rounds: kept + surplus + what a failed step had kept = q·Bg·E[R].
    mean_rounds = sum(r * p for r, p in p_rounds.items()) + 3 * p_fails
    kept_by_failed = sum(k * math.comb(12, k) * q**k * (1 - q) ** (12 - k) for k in range(3))
    trained = 3 * (1 - p_fails)
    assert trained + surplus + kept_by_failed == pytest.approx(q * 4 * mean_rounds, abs=1e-12)


# ---------------------------------------------------------------------------- field cases

BATCH_32 = Rollout(groups_per_step=32, group_size=8)


def test_b41_dies_after_exactly_ten_waves_and_says_why() -> None:
    config = Rounds(gen_groups=96, max_num_gen_batches=10)
    played = play(config, cycle([WRONG, WRONG, WRONG, RIGHT]), rollout=BATCH_32)
    assert played.submits == [96] * 10
    assert played.failure is not None
    assert "max_num_gen_batches=10" in played.failure
    assert "kept 0 of 32 groups from 960 candidates" in played.failure
    assert "all-wrong 75.0%, all-right 25.0%" in played.failure


def test_b41_filled_by_the_tenth_wave_is_a_success() -> None:
    config = Rounds(gen_groups=96, max_num_gen_batches=10)
    groups = chain(repeat(WRONG, 9 * 96 + 64), repeat(MIXED, 32), repeat(WRONG))
    played = play(config, groups, rollout=BATCH_32)
    assert len(played.submits) == 10
    assert end(played) == ("full", True)
    short = play(config, chain(islice(repeat(WRONG), 9 * 96 + 65), repeat(MIXED)), rollout=BATCH_32)
    assert short.failure is not None
    assert "kept 31 of 32" in short.failure


@pytest.mark.parametrize("limit", [0, -1])
def test_b41_no_limit_ends_with_the_data_or_the_guard(limit: int) -> None:
    config = Rounds(gen_groups=96, max_num_gen_batches=limit, max_waves=40)
    played = play(config, repeat(WRONG, 960), rollout=BATCH_32)
    assert len(played.submits) == 10
    assert end(played) == ("data", False)
    endless = play(config, repeat(WRONG), rollout=BATCH_32)
    assert endless.failure is not None
    assert "40 generation batches without a limit" in endless.failure


@pytest.mark.parametrize(("n_epochs", "steps", "waves", "unused"), [(1, 3, 10, 12), (2, 6, 20, 24)])
def test_b42_every_prompt_is_accounted_for(
    n_epochs: int, steps: int, waves: int, unused: int
) -> None:
    # 960 prompts, waves of 96 with 12 informative groups each, 32 wanted. A partly filled batch
    # goes on into the next epoch, because one collector serves one step and the stream flows on.
    wave = [MIXED] * 12 + [WRONG] * 84
    prompts = iter(wave * 10 * n_epochs)
    played = [play(Rounds(gen_groups=96), prompts, rollout=BATCH_32) for _ in range(steps + 1)]
    assert [end(step) for step in played] == [("full", True)] * steps + [("data", False)]
    assert sum(len(step.submits) for step in played) == waves
    filtered = sum(step.n_dropped("degenerate") for step in played)
    surplus = sum(step.n_dropped("surplus") for step in played)
    trained = sum(len(step.trained) for step in played)
    assert (filtered, trained, surplus) == (840 * n_epochs, 32 * steps, 4 * steps)
    assert len(played[-1].kept) == unused
    assert filtered + trained + surplus + unused == 960 * n_epochs


DURATIONS = (8, 1, 16, 2, 1, 8, 2, 16)
EIGHT = [Candidate(4, float(d)) for d in DURATIONS]


def mean_trained_s(played: Played) -> float:
    return sum(group.duration_s for group in played.trained) / len(played.trained)


@pytest.mark.parametrize(
    "config", [OverProvision(eta=2.0), OverProvision(eta=2.0, filter=False), Streaming(slots=8)]
)
def test_b47_first_finished_trains_on_the_short_ones(config: object) -> None:
    played = play(config, chain(EIGHT, repeat(Candidate(4, 99.0))), rollout=FOUR)
    assert (mean_trained_s(played), played.end_s) == (1.5, 2.0)
    assert mean_trained_s(played) / (sum(DURATIONS) / 8) == pytest.approx(0.2222, abs=1e-4)


def test_b47_first_submitted_trains_on_what_was_generated() -> None:
    played = play(Rounds(gen_groups=8), EIGHT, rollout=FOUR)
    assert (mean_trained_s(played), played.end_s) == (6.75, 16.0)
    assert sum(DURATIONS) / 8 == 6.75


def test_b53_one_slow_answer_holds_the_barrier() -> None:
    eight = Rollout(groups_per_step=8, group_size=8)
    groups = [Candidate(4, 10.0)] * 7 + [Candidate(4, 40.0)]
    played = play(NoFilter(), groups, rollout=eight)
    used = sum(group.duration_s for group in groups) / (8 * played.end_s)
    assert (played.end_s, used, 1 - used) == (40.0, 0.34375, 0.65625)


def barrier_z(*, n_groups: int, mean: float, n_steps: int) -> float:
    """Distance in standard errors between the mean barrier of exponential groups and H_n."""
    rollout = Rollout(groups_per_step=n_groups, group_size=8)
    rng = np.random.default_rng(53)
    ends = [
        play(
            NoFilter(),
            [Candidate(4, float(d)) for d in rng.exponential(mean, n_groups)],
            rollout=rollout,
        ).end_s
        for _ in range(n_steps)
    ]
    harmonic = sum(1 / j for j in range(1, n_groups + 1))
    return float((np.mean(ends) - harmonic) / (np.std(ends, ddof=1) / math.sqrt(n_steps)))


def test_b53_exponential_barrier_is_harmonic() -> None:
    assert sum(1 / j for j in range(1, 9)) == pytest.approx(2.718, abs=5e-4)
    assert abs(barrier_z(n_groups=8, mean=1.0, n_steps=9000)) < 4.5


def test_b53_a_law_five_percent_off_is_rejected() -> None:
    assert abs(barrier_z(n_groups=8, mean=1.05, n_steps=9000)) > 4.5
