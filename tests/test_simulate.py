"""Whole runs with lengths and right answers written down, against times worked out by hand.

Decoding takes one second an iteration whatever the load, prompts cost nothing: a response of L
tokens takes L seconds.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dapolab.rules import overlong_penalty
from dapolab.scenario import ConfigError, Rollout, Scenario, build
from dapolab.sim.cursor import PromptCursor
from dapolab.sim.occupancy import occupancy
from dapolab.sim.run import SimRun, simulate
from dapolab.sim.score import Scores
from dapolab.sim.trace import assign_lanes, perfetto
from tests.listed_stream import ListedStream

MIXED, WRONG = 1, 0


def scenario(
    collector: dict[str, Any] | str,
    *,
    groups: int = 2,
    size: int = 2,
    steps: int = 1,
    cap: int = 1000,
    rollout: dict[str, Any] | None = None,
    hardware: dict[str, Any] | None = None,
    learner: dict[str, Any] | None = None,
    workload: dict[str, Any] | None = None,
) -> Scenario:
    return build(
        {
            "workload": workload or {"kind": "independent"},
            "rollout": {"groups_per_step": groups, "group_size": size, "cap_tokens": cap}
            | (rollout or {}),
            "collector": {"kind": collector} if isinstance(collector, str) else collector,
            "hardware": {
                "law": {"kind": "affine", "a_s": 1.0, "b_s": 0.0, "c_s": 0.0},
                "prefill": False,
            }
            | (hardware or {}),
            "learner": learner or {},
            "run": {"steps": steps},
        }
    )


class Play:
    """Runs scenarios on a listed stream."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(
        self,
        settings: Scenario,
        lengths: Sequence[Sequence[int]],
        n_correct: Sequence[int],
        *,
        epochs: int | None = None,
        record_steps: int = 9,
    ) -> SimRun:
        stream = ListedStream(lengths, n_correct, epochs)
        self._patch.setattr("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream)
        return simulate(settings, seed=0, record_steps=record_steps)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def metrics(run: SimRun, step: int = 0) -> dict[str, Any]:
    return {str(name): value for name, value in run.steps.iloc[step].items()}


# ------------------------------------------------------------------------------ time of a step


def test_two_waves_with_call_overhead_and_polling(play: Play) -> None:
    """Wave 1 decodes 2 … 9 and is seen at 10, wave 2 decodes 12 … 14 and is seen at 15."""
    settings = scenario("exact_refill", hardware={"call_overhead_s": 2.0, "poll_s": 5.0})
    run = play(settings, [[3, 4], [7, 7], [1, 2]], [MIXED, WRONG, MIXED])
    row = metrics(run)
    assert row["ended_by"] == "full"
    assert row["rollout/waves"] == 2
    assert row["time/rollout_seconds"] == 15
    # slot seconds 3 + 4 + 7 + 7 of 4 × 7, then 1 + 2 of 2 × 2: a quarter idle each time
    assert row["time/tail_seconds"] == pytest.approx(0.25 * 7 + 0.25 * 2)
    assert row["time/decode_seconds"] == pytest.approx(0.75 * 9)
    assert row["time/overhead_seconds"] == pytest.approx(2 + 1 + 2 + 1)
    assert row["time/prefill_seconds"] == 0
    assert row["rollout/idle_slot_share"] == pytest.approx(0.25)
    assert row["rollout/wave_seconds"] == 4.5
    assert row["engine/mean_concurrency"] == pytest.approx(24 / 9)
    assert row["rollout/t50_s"] == (4 + 1) / 2
    assert row["rollout/t99_s"] == (7 + 2) / 2
    assert row["rollout/completion_tokens"] == 24
    assert row["rollout/train_completion_tokens"] == 10
    assert row["rollout/degenerate_tokens"] == 14
    assert row["rollout/max_completion_tokens"] == 7
    assert row["bias/length_trained"] == 10 / 4
    assert row["bias/length_candidates"] == 4
    assert row["reward/accuracy"] == 2 / 6
    assert row["reward/trained_accuracy"] == 0.5
    assert run.waves["start_s"].tolist() == [0, 10]
    assert run.waves["end_s"].tolist() == [10, 15]
    assert run.waves["wave_s"].tolist() == [7, 2]
    assert run.groups["wave"].tolist() == [0, 0, 1]
    assert run.groups["status"].tolist() == ["trained", "degenerate", "trained"]


@pytest.mark.parametrize(("length", "seen_s"), [(5, 5), (10, 10), (6, 10), (1, 5)])
@pytest.mark.parametrize("rest_s", [0.0, 1e7 / 3])
def test_an_end_exactly_on_a_poll_is_seen_by_it(
    play: Play, length: int, seen_s: int, rest_s: float
) -> None:
    settings = scenario("none", steps=3, hardware={"poll_s": 5.0}, learner={"fixed_s": rest_s})
    run = play(settings, [[length, 1]], [MIXED])
    np.testing.assert_allclose(run.steps["time/rollout_seconds"], seen_s, atol=1e-6)


def test_overhead_is_paid_once_a_step_without_a_barrier(play: Play) -> None:
    settings = scenario("replenish", hardware={"call_overhead_s": 2.0}, steps=2)
    run = play(settings, [[3, 3], [4, 4], [5, 5]], [MIXED, WRONG, MIXED])
    # group 1 fails at 2 + 4 and group 2 replaces it: 2 + 4 + 5
    row = metrics(run)
    assert row["time/rollout_seconds"] == 11
    assert row["time/overhead_seconds"] == 2
    assert np.isnan(row["rollout/waves"])
    assert run.groups["wave"].isna().all()
    assert run.steps["start_s"].tolist() == [0, 11]


def test_learner_parts(play: Play) -> None:
    learner = {
        "old_logprob_s_per_token": 0.1,
        "reference_s_per_token": 0.2,
        "update_s_per_token": 0.5,
        "update_fixed_s": 3.0,
        "updates_per_step": 2,
        "sync_s": 7.0,
        "reward_s_per_response": 0.25,
        "fixed_s": 1.0,
        "validation_s": 100.0,
        "validation_every": 2,
        "checkpoint_s": 1000.0,
        "checkpoint_every": 3,
        "gpus": 3,
    }
    settings = scenario(
        "filter_no_refill", steps=4, learner=learner, hardware={"gpus_per_replica": 2}
    )
    # odd steps find nothing to train
    run = play(settings, [[3, 4], [5, 5], [2, 2], [2, 2]], [MIXED, WRONG, WRONG, WRONG])
    steps = run.steps
    tokens = 3 + 4 + 2 * 10  # the responses and their prompts
    assert steps["time/old_logprob_seconds"].tolist() == pytest.approx([0.1 * tokens, 0] * 2)
    assert steps["time/reference_seconds"].tolist() == pytest.approx([0.2 * tokens, 0] * 2)
    assert steps["time/update_seconds"].tolist() == pytest.approx([0.5 * tokens + 2 * 3, 0] * 2)
    assert steps["time/sync_seconds"].tolist() == [7, 0, 7, 0]
    assert steps["time/reward_seconds"].tolist() == [1.0] * 4
    assert steps["time/other_seconds"].tolist() == [1.0] * 4
    assert steps["time/validation_seconds"].tolist() == [0, 100, 0, 100]
    assert steps["time/checkpoint_seconds"].tolist() == [0, 0, 1000, 0]
    assert steps["train/update_skipped"].tolist() == [0, 1, 0, 1]
    assert steps["time/gpu_seconds"].tolist() == pytest.approx(
        (5 * steps["time/step_seconds"]).tolist()
    )
    assert metrics(run)["time/step_seconds"] == pytest.approx(5 + 0.8 * tokens + 6 + 7 + 1 + 1)


def test_a_skipped_update_leaves_the_policy_as_it_was() -> None:
    """Drift moves with trained steps, not with steps: with no update it never moves."""
    workload = {
        "kind": "independent",
        "lengths": {"kind": "constant", "tokens": 10},
        "pass_rate": {"kind": "fixed", "p": 0.0},
        "drift": {"log_tokens_per_step": 0.5},
    }
    for kind, last in (("filter_no_refill", 10), ("none", np.ceil(10 * np.exp(0.5 * 3)))):
        run = simulate(scenario(kind, steps=4, workload=workload), seed=1)
        assert run.steps["rollout/max_completion_tokens"].iloc[-1] == last


def test_group_semaphore_of_the_policy_is_the_engines(play: Play) -> None:
    settings = scenario({"kind": "exact_refill", "concurrent_groups": 1})
    run = play(settings, [[3, 3], [4, 4]], [MIXED, MIXED])
    assert metrics(run)["time/rollout_seconds"] == 7
    with pytest.raises(ConfigError, match="concurrent_groups 1 must be a multiple of"):
        simulate(
            scenario({"kind": "exact_refill", "concurrent_groups": 1}, hardware={"replicas": 2}),
            seed=0,
        )


# ------------------------------------------------------------------------------ budgets


@pytest.mark.parametrize(("budget_s", "cut_at"), [(5.0, 5), (4.5, 5), (4.01, 5)])
@pytest.mark.parametrize("kind", ["none", "filter_no_refill", "exact_refill", "rounds"])
def test_a_time_budget_cuts_a_wave_at_the_next_boundary(
    play: Play, kind: str, budget_s: float, cut_at: int
) -> None:
    collector = {"kind": kind, "budget": {"seconds": budget_s}}
    collector |= {"gen_groups": 2} if kind == "rounds" else {}
    run = play(scenario(collector), [[3, 3], [9, 2]], [MIXED, MIXED])
    row = metrics(run)
    assert row["ended_by"] == "seconds"
    assert row["time/rollout_seconds"] == cut_at
    assert row["time/overhead_seconds"] == 0
    assert run.groups["status"].tolist() == ["trained", "aborted"]
    assert run.groups["generated_tokens"].tolist() == [6, cut_at + 2]
    assert row["rollout/aborted_tokens"] == cut_at + 2
    assert row["rollout/idle_slot_share"] == pytest.approx(1 - (3 + 3 + 5 + 2) / (4 * 5))
    assert run.waves["wave_s"].tolist() == [cut_at]


def test_a_time_budget_in_the_second_wave_trains_the_first(play: Play) -> None:
    collector = {"kind": "exact_refill", "budget": {"seconds": 6.0}}
    run = play(scenario(collector), [[3, 3], [4, 4], [9, 9]], [MIXED, WRONG, MIXED])
    row = metrics(run)
    assert (row["ended_by"], row["rollout/waves"]) == ("seconds", 2)
    assert run.groups["status"].tolist() == ["trained", "degenerate", "aborted"]
    assert run.groups["generated_tokens"].tolist() == [6, 8, 4]
    assert row["time/rollout_seconds"] == 6


def test_nothing_is_submitted_at_the_deadline(play: Play) -> None:
    """A wave that returns at the very end of the budget is judged, and no other is begun."""
    collector = {"kind": "exact_refill", "budget": {"seconds": 4.0}}
    run = play(scenario(collector), [[3, 3], [4, 4]], [MIXED, WRONG])
    row = metrics(run)
    assert (row["ended_by"], row["rollout/candidate_groups"]) == ("seconds", 2)
    assert row["time/rollout_seconds"] == 4
    assert row["rollout/effective_groups"] == 1


def test_a_poll_never_looks_beyond_the_deadline(play: Play) -> None:
    collector = {"kind": "exact_refill", "budget": {"seconds": 5.0}}
    settings = scenario(collector, hardware={"poll_s": 3.0})
    row = metrics(play(settings, [[3, 3], [4, 4]], [MIXED, WRONG]))
    assert (row["ended_by"], row["time/rollout_seconds"]) == ("seconds", 5)
    assert (row["rollout/candidate_groups"], row["rollout/effective_groups"]) == (2, 1)


def test_a_wave_whose_call_would_end_after_the_deadline_is_not_begun(play: Play) -> None:
    collector = {"kind": "exact_refill", "budget": {"seconds": 6.0}}
    settings = scenario(collector, hardware={"call_overhead_s": 2.0})
    row = metrics(play(settings, [[3, 3], [3, 3]], [MIXED, WRONG]))
    assert (row["ended_by"], row["time/rollout_seconds"]) == ("seconds", 6)
    assert row["rollout/candidate_groups"] == 2
    assert row["time/overhead_seconds"] == 3
    with pytest.raises(ConfigError, match=r"budget.seconds 6 is spent by hardware.call_overhead_s"):
        simulate(scenario(collector, hardware={"call_overhead_s": 6.0}), seed=0)


def test_a_time_budget_cuts_a_stream(play: Play) -> None:
    collector = {"kind": "streaming", "slots": 2, "budget": {"seconds": 4.0}}
    run = play(scenario(collector), [[2, 2], [9, 9], [2, 2], [9, 9]], [MIXED, MIXED, WRONG, MIXED])
    # group 2 replaces group 0 at 2 and returns at the very deadline: judged, not replaced
    row = metrics(run)
    assert (row["ended_by"], row["time/rollout_seconds"]) == ("seconds", 4)
    assert run.groups["status"].tolist() == ["trained", "aborted", "degenerate"]
    assert run.groups["generated_tokens"].tolist() == [4, 8, 4]


def test_a_replacement_asked_for_at_the_instant_of_the_stop_is_withdrawn(play: Play) -> None:
    """Two groups return together: the first asks for a replacement, the second fills the batch."""
    collector = {"kind": "streaming", "slots": 2}
    run = play(scenario(collector, groups=1), [[4, 4], [4, 4], [99, 99]], [WRONG, MIXED, MIXED])
    assert run.groups["status"].tolist() == ["degenerate", "trained"]
    assert metrics(run)["time/rollout_seconds"] == 4
    assert run.n_prompts_used == 2


def test_groups_that_return_with_the_last_one_are_surplus(play: Play) -> None:
    collector = {"kind": "streaming", "slots": 3}
    run = play(scenario(collector, groups=1), [[4, 4]] * 3, [MIXED, MIXED, WRONG])
    assert run.groups["status"].tolist() == ["trained", "surplus", "degenerate"]


def test_a_poll_judges_in_submission_order(play: Play) -> None:
    """Group 1 returns first, but both are seen by the same poll."""
    collector = {"kind": "over_provision", "eta": 2.0}
    settings = scenario(collector, groups=1, hardware={"poll_s": 10.0})
    run = play(settings, [[8, 8], [1, 1]], [MIXED, MIXED])
    assert run.groups["status"].tolist() == ["trained", "surplus"]
    assert metrics(run)["time/rollout_seconds"] == 10


@pytest.mark.parametrize(
    ("budget", "reason", "waves"),
    [
        ({"candidate_tokens": 14}, "candidate_tokens", 1),
        ({"candidate_tokens": 15}, "candidate_tokens", 2),
        ({"train_tokens": 6}, "train_tokens", 1),
        ({"train_tokens": 7}, "cap", 3),
        ({"train_tokens": 6, "candidate_tokens": 14}, "candidate_tokens", 1),
        ({"seconds": 5.0, "train_tokens": 99}, "seconds", 2),
    ],
)
def test_the_budget_that_ended_the_step_is_shown(
    play: Play, budget: dict[str, Any], reason: str, waves: int
) -> None:
    collector = {"kind": "exact_refill", "budget": budget, "max_candidate_multiplier": 2}
    run = play(scenario(collector), [[3, 3], [4, 4], [2, 2], [2, 2]], [MIXED, WRONG, WRONG, WRONG])
    row = metrics(run)
    assert (row["ended_by"], row["rollout/waves"]) == (reason, waves)
    assert row["rollout/effective_groups"] == 1


def test_token_budgets_of_a_stream_are_checked_at_every_group(play: Play) -> None:
    for budget, n_trained in (({"train_tokens": 8}, 2), ({"candidate_tokens": 13}, 1)):
        collector = {"kind": "streaming", "slots": 1, "budget": budget}
        run = play(
            scenario(collector, groups=3),
            [[2, 2], [5, 5], [3, 3]],
            [MIXED, WRONG, MIXED],
        )
        row = metrics(run)
        assert row["ended_by"] == next(iter(budget))
        assert row["rollout/effective_groups"] == n_trained


# ------------------------------------------------------------------------------ filter metric


def test_shaped_reward_as_filter_keeps_groups_without_signal(play: Play) -> None:
    """Field case B34: all wrong, lengths 50, 90, 95, 100; cap 100, buffer 20."""
    for metric, status, trained in (("correct", "degenerate", 0), ("shaped", "trained", 1)):
        rollout = {"overlong": {"buffer_tokens": 20}, "filter_metric": metric}
        settings = scenario("filter_no_refill", groups=1, size=4, cap=100, rollout=rollout)
        run = play(settings, [[50, 90, 95, 100]], [WRONG])
        row = metrics(run)
        assert run.groups["status"].tolist() == [status]
        assert row["rollout/effective_groups"] == trained
        assert row["train/mixed_groups"] == 0
        # penalties 0, −.5, −.75, −1
        assert row["reward/length_penalty_mean"] == pytest.approx(-2.25 / 4)
        assert row["reward/shaped_mean"] == pytest.approx(-1 - 2.25 / 4)


def test_penalty_is_that_of_the_rules() -> None:
    for cap, buffer, factor in ((100, 20, 1.0), (100, 100, 0.5), (7, 3, 2.0), (4096, 1024, 1.0)):
        rollout = Rollout.model_validate(
            {"cap_tokens": cap, "overlong": {"buffer_tokens": buffer, "factor": factor}}
        )
        lengths = np.unique(np.linspace(1, cap, 300).astype(np.int64))
        expected = [
            overlong_penalty(float(n), cap_tokens=cap, buffer_tokens=buffer, factor=factor)
            for n in lengths
        ]
        np.testing.assert_allclose(Scores(rollout).penalty(lengths), expected, atol=1e-15)
    assert not Scores(Rollout()).penalty(np.array([1, 4096])).any()


def test_filter_without_refill_leaves_an_uneven_batch(play: Play) -> None:
    """Field case B39: 8 prompts × 4, 3 degenerate: 20 rows are trained."""
    settings = scenario("filter_no_refill", groups=8, size=4)
    run = play(settings, [[5] * 4] * 8, [1, 0, 2, 4, 3, 0, 1, 1])
    row = metrics(run)
    assert 4 * row["rollout/effective_groups"] == 20
    assert row["rollout/effective_fill_ratio"] == 5 / 8
    assert row["rollout/all_right_share"] == 1 / 8
    assert row["rollout/all_wrong_share"] == 2 / 8


# ------------------------------------------------------------------------------ field cases


def test_rounds_die_at_the_limit_and_say_why(play: Play) -> None:
    """Field case B41: informative probability 0, limit 10: after exactly 10 waves."""
    collector = {"kind": "rounds", "gen_groups": 4, "max_num_gen_batches": 10}
    run = play(scenario(collector), [[2, 2]] * 4, [0, 2, 2, 2])
    assert run.ended == (
        "failed: no full batch in max_num_gen_batches=10: kept 0 of 2 groups from 40 candidates "
        "(all-wrong 25.0%, all-right 75.0%); check difficulty, or raise max_num_gen_batches"
    )
    assert run.failed
    assert len(run.steps) == 0
    assert len(run.waves) == 10
    assert run.groups["status"].tolist() == ["degenerate"] * 40
    assert run.unlearned_s == 20


def test_rounds_may_fill_in_the_very_last_wave(play: Play) -> None:
    collector = {"kind": "rounds", "gen_groups": 1, "max_num_gen_batches": 10}
    run = play(scenario(collector), [[2, 2]] * 10, [1] + [0] * 8 + [1])
    assert run.ended == "completed"
    assert metrics(run)["rollout/waves"] == 10


def test_rounds_without_a_limit_end_with_the_data_or_with_the_guard(play: Play) -> None:
    collector = {
        "kind": "rounds",
        "gen_groups": 1,
        "max_num_gen_batches": 0,
        "max_waves": 50,
    }
    assert play(scenario(collector), [[2, 2]] * 7, [0] * 7, epochs=1).ended == "data exhausted"
    endless = play(scenario(collector), [[2, 2]] * 7, [0] * 7)
    assert endless.ended.startswith("failed: no full batch in 50 generation batches")


@pytest.mark.parametrize(("epochs", "n_steps", "n_waves"), [(1, 3, 10), (2, 6, 20)])
def test_data_run_out_a_fraction_through_the_schedule(
    play: Play, epochs: int, n_steps: int, n_waves: int
) -> None:
    """Field case B42: 960 prompts, waves of 96 with exactly 12 informative, B = 32."""
    informative = ([MIXED] * 12 + [WRONG] * 84) * 10
    settings = scenario({"kind": "rounds", "gen_groups": 96}, groups=32, steps=100)
    run = play(settings, [[2, 3]] * 960, informative, epochs=epochs)
    assert run.ended == "data exhausted"
    assert len(run.steps) == n_steps
    assert len(run.waves) == n_waves
    assert run.n_prompts_used == 960 * epochs
    status = run.groups["status"].value_counts()
    n_mixed = 12 * n_waves
    assert status["degenerate"] == 84 * n_waves
    assert status["trained"] == 32 * n_steps
    assert status["surplus"] == n_mixed - 32 * n_steps
    # the surplus of full steps, and what was kept when the data ran out
    assert run.steps["rollout/surplus_groups"].tolist() == [4.0] * n_steps
    unlearned = run.groups[run.groups["step"] == n_steps]
    assert (unlearned["status"] == "surplus").sum() == 12 * (n_waves - 3 * n_steps)
    assert run.unlearned_s == 3.0 * (n_waves - 3 * n_steps)


def test_first_finished_trains_short_answers(play: Play) -> None:
    """Field case B47: durations 8 1 16 2 1 8 2 16, batch of 4."""
    lengths = [[d, d] for d in (8, 1, 16, 2, 1, 8, 2, 16)]
    first_finished = {"kind": "over_provision", "eta": 2.0}
    first_submitted = {"kind": "rounds", "gen_groups": 8}
    for collector, trained, ready in ((first_finished, 1.5, 2), (first_submitted, 6.75, 16)):
        row = metrics(play(scenario(collector, groups=4), lengths, [MIXED] * 8))
        assert row["bias/length_trained"] == trained
        assert row["bias/length_candidates"] == 6.75
        assert row["bias/length_ratio_policy"] == pytest.approx(trained / 6.75)
        assert row["time/rollout_seconds"] == ready


def test_one_long_answer_idles_seven_devices(play: Play) -> None:
    """Field case B53: seven answers of 10, one of 40: barrier 40, utilisation 34.4 %."""
    hardware = {"replicas": 8, "slots": 1}
    settings = scenario("none", groups=8, size=1, hardware=hardware)
    row = metrics(play(settings, [[10]] * 7 + [[40]], [1] * 8))
    assert row["time/rollout_seconds"] == 40
    assert 1 - row["rollout/idle_slot_share"] == pytest.approx(0.34375)
    assert row["time/tail_seconds"] == pytest.approx(40 * 0.65625)


# ------------------------------------------------------------------------------ the walk


def test_drop_last_skips_the_tail_of_an_epoch() -> None:
    stream = ListedStream([[1]] * 10, [0] * 10, epochs=2)
    cursor = PromptCursor(n_available=stream.n_available, count=10, drop_last=True)
    assert [cursor.take(4) for _ in range(5)] == [(0, 4), (4, 4), (10, 4), (14, 4), (20, 0)]
    assert cursor.dropped == 4
    with pytest.raises(ConfigError, match="10 prompts with drop_last never fill a batch of 11"):
        cursor.take(11)
    plain = PromptCursor(n_available=stream.n_available, count=10, drop_last=False)
    assert [plain.take(8) for _ in range(4)] == [(0, 8), (8, 8), (16, 4), (20, 0)]


def test_groups_across_a_dropped_tail_keep_their_places(play: Play) -> None:
    prompts = {"prompts": {"drop_last": True}}
    settings = scenario(
        {"kind": "rounds", "gen_groups": 2}, workload={"kind": "independent"} | prompts
    )
    run = play(settings, [[1, 1], [2, 2], [3, 3]], [WRONG, MIXED, MIXED])
    assert run.groups["position"].tolist() == [0, 1, 3, 4]
    assert run.groups["n_tokens_max"].tolist() == [1, 2, 1, 2]


# ------------------------------------------------------------------------------ pieces


def test_occupancy_of_two_stretches() -> None:
    admit = np.array([0.0, 0.0, 2.0, np.nan, 10.0, 10.0])
    end = np.array([2.0, 4.0, 3.0, 4.0, 11.0, 12.0])
    busy = occupancy(
        admit,
        end,
        n_responses_W=np.array([4, 2]),
        start_s_W=np.array([0.0, 10.0]),
        stop_s_W=np.array([4.0, 12.0]),
    )
    assert busy.slot_s_W.tolist() == [7, 3]
    assert busy.peak_W.tolist() == [2, 2]
    assert busy.idle_share_W.tolist() == [1 - 7 / 8, 1 - 3 / 4]
    assert busy.done_after_s(50).tolist() == [3, 1]
    assert busy.done_after_s(99).tolist() == [4, 2]


def test_lanes_never_overlap() -> None:
    starts, ends = np.array([0.0, 0.0, 1.0, 2.0]), np.array([2.0, 1.0, 5.0, 3.0])
    assert assign_lanes(starts, ends).tolist() == [0, 1, 1, 0]


def test_trace_is_well_formed(play: Play) -> None:
    learner = {"sync_s": 1.0, "update_fixed_s": 2.0}
    hardware = {"replicas": 2, "slots": 2, "call_overhead_s": 0.5}
    settings = scenario("exact_refill", steps=3, learner=learner, hardware=hardware)
    run = play(settings, [[3, 4], [7, 7], [1, 2], [5, 1]], [MIXED, WRONG, MIXED, WRONG])
    document = perfetto(run, name="x")
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for span in spans:
        assert span["dur"] >= 0
        end = span["ts"] + span["dur"]
        lanes.setdefault((span["pid"], span["tid"]), []).append((span["ts"], end))
    for lane in lanes.values():
        lane.sort()
        assert all(one[1] <= two[0] + 1e-3 for one, two in pairwise(lane))
    phases, waves = lanes[0, 0], lanes[0, 1]
    last = run.steps.iloc[-1]
    assert phases[-1][1] == pytest.approx(1e6 * (last["start_s"] + last["time/step_seconds"]))
    rollouts = [
        (1e6 * s, 1e6 * (s + d))
        for s, d in zip(run.steps["start_s"], run.steps["time/rollout_seconds"], strict=True)
    ]
    for start, end in waves:
        assert any(a - 1e-3 <= start and end <= b + 1e-3 for a, b in rollouts)
    responses = [lane for (pid, _), spans in lanes.items() if pid > 0 for lane in spans]
    assert len(responses) == len(run.responses)
    for start, end in responses:
        assert any(a - 1e-3 <= start and end <= b + 1e-3 for a, b in waves)
    assert {pid for pid, _ in lanes} == {0, 1, 2}
    assert max(tid for pid, tid in lanes if pid) < 2  # never more lanes than slots
