"""Whole runs of policies with a memory or with parts of groups, against times worked out by hand.

Decoding takes one second an iteration whatever the load and prompts cost nothing, so a response of
L tokens takes L seconds.
"""

from typing import Any

import pandas as pd
import pytest

from dapolab.sim.run import SimRun, simulate
from tests.listed_stream import ListedStream
from tests.test_simulate import scenario

MIXED, WRONG = 1, 0


class Play:
    """Runs a collector table on listed groups: two a step, two responses each, unless told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(
        self,
        collector: dict[str, Any],
        lengths: list[list[int]],
        n_correct: list[int],
        *,
        epochs: int | None = 1,
        **settings: Any,
    ) -> SimRun:
        stream = ListedStream(lengths, n_correct, epochs)
        self._patch.setattr("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream)
        return simulate(scenario(collector, **settings), seed=0, record_steps=9)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def column(run: SimRun, name: str) -> list[float]:
    return [float(value) for value in run.steps[name]]


def group(run: SimRun, position: int) -> pd.Series:
    rows = run.groups[run.groups["position"] == position]
    assert len(rows) == 1
    return rows.iloc[0]


def test_partial_rollout_trains_a_long_group_later_with_old_tokens(play: Play) -> None:
    """B = 1, two in flight: group 0 needs 9 s, groups 1, 2, 3 … need 2 s each."""
    collector = {"kind": "streaming", "slots": 2, "leftovers": "resume"}
    lengths = [[9, 1], [2, 2], [2, 2], [2, 2], [2, 2], [2, 2]]
    run = play(collector, lengths, [MIXED] * 6, groups=1, steps=5)
    # steps 0 … 3 take 2 s and train groups 1 … 4; group 0 has 8 tokens then and needs one more
    assert column(run, "time/rollout_seconds") == [2, 2, 2, 2, 1]
    assert column(run, "rollout/completion_tokens") == [3 + 4, 2 + 4, 2 + 4, 2 + 4, 1 + 2]
    assert column(run, "rollout/train_completion_tokens") == [4, 4, 4, 4, 10]
    assert column(run, "rollout/carried_tokens") == [3, 5, 7, 9, 2]
    assert column(run, "rollout/carried_groups") == [1] * 5
    assert column(run, "rollout/candidate_groups") == [1] * 5
    long = group(run, 0)
    assert (long["step"], long["begun_step"], long["status"]) == (4, 0, "trained")
    assert (long["version_submitted"], long["version_trained"]) == (0, 4)
    assert (long["submit_s"], long["end_s"], long["generated_tokens"]) == (0, 9, 10)
    # 3 tokens of version 0, then 2 of each of 1, 2, 3 and 1 of the version that learns
    ages = (3 * 4 + 2 * 3 + 2 * 2 + 2 * 1 + 1 * 0) / 10
    assert long["staleness_mean"] == pytest.approx(ages)
    assert column(run, "staleness/mean_versions") == pytest.approx([0, 0, 0, 0, ages])
    assert column(run, "staleness/mean_versions_by_response") == [0, 0, 0, 0, 4]
    assert column(run, "staleness/max_versions") == [0, 0, 0, 0, 4]
    assert column(run, "staleness/off_policy_token_share") == pytest.approx([0, 0, 0, 0, 0.9])
    # group 5 was begun when group 4 returned and again left over at the end
    rows = run.responses[run.responses["group"] == 0]
    assert rows.groupby("step")["generated_tokens"].sum().tolist() == [3, 2, 2, 2, 1]
    assert rows["submit_s"].tolist() == [0, 0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("resumed", "seconds", "second"), [("first", [2, 6], 1), ("last", [2, 1], 2)]
)
def test_what_was_cut_queues_before_new_prompts_or_behind_them(
    play: Play, resumed: str, seconds: list[float], second: int
) -> None:
    """One slot, two in flight, B = 1, one response each: 2, 6 and 1 s."""
    run = play(
        {"kind": "streaming", "slots": 2, "leftovers": "resume"},
        [[2], [6], [1], [1]],
        [MIXED] * 4,
        groups=1,
        size=1,
        steps=2,
        rollout={"resumed": resumed, "singletons": "keep"},
        hardware={"slots": 1},
    )
    assert column(run, "time/rollout_seconds") == seconds
    trained = run.groups[run.groups["status"] == "trained"]
    assert trained["position"].tolist() == [0, second]


@pytest.mark.parametrize(("leftovers", "again"), [("resume", 12 + 10), ("resume_with_kv", 0)])
def test_resuming_without_kv_prefills_prompt_and_answer(
    play: Play, leftovers: str, again: int
) -> None:
    collector = {"kind": "streaming", "slots": 2, "leftovers": leftovers}
    hardware = {
        "law": {"kind": "affine", "a_s": 1.0, "b_s": 0.0, "c_s": 0.0, "prefill_s": 0.01},
        "prefill": True,
        "prefix_cache": True,
    }
    run = play(
        collector, [[20, 12], [12, 12], [30, 30]], [MIXED] * 3, groups=1, steps=2, hardware=hardware
    )
    # Both prompts (10 tokens) are prefilled once in the first iteration: 12 s + 20 · 0.01.
    assert column(run, "time/rollout_seconds")[0] == pytest.approx(12 + 0.2)
    # Then the one response left has 12 tokens; group 2 begins beside it with its own prompt.
    expected = 8 + 0.01 * (10 + again)
    assert column(run, "time/rollout_seconds")[1] == pytest.approx(expected)
    assert group(run, 0)["status"] == "trained"


def test_groups_beyond_the_batch_open_the_next_one(play: Play) -> None:
    collector = {"kind": "rounds", "gen_groups": 5, "surplus": "carry"}
    lengths = [[3, 3]] * 5 + [[4, 4]] * 5
    run = play(collector, lengths, [MIXED, MIXED, MIXED, WRONG, MIXED] * 2, steps=4)
    # 4 of 5 are mixed: step 0 trains 0 and 1, step 1 what is left without generating anything
    assert column(run, "rollout/waves") == [1, 0, 1, 0]
    assert column(run, "time/rollout_seconds") == [3, 0, 4, 0]
    assert column(run, "rollout/completion_tokens") == [30, 0, 40, 0]
    assert column(run, "rollout/train_completion_tokens") == [12, 12, 16, 16]
    assert column(run, "rollout/carried_groups") == [2, 0, 2, 0]
    assert column(run, "rollout/carried_tokens") == [12, 0, 16, 0]
    assert column(run, "staleness/mean_versions") == [0, 1, 0, 1]
    assert column(run, "staleness/off_policy_token_share") == [0, 1, 0, 1]
    carried = group(run, 4)
    assert (carried["step"], carried["begun_step"], carried["staleness_mean"]) == (1, 0, 1.0)
    assert (carried["submit_s"], carried["end_s"]) == (0, 3)
    assert run.waves["step"].tolist() == [0, 2]


def test_segments_bound_every_step(play: Play) -> None:
    """At most 4 tokens a response and step: lengths 10 and 3 take three steps."""
    collector = {"kind": "segments", "segment_tokens": 4, "eta": 1.0}
    run = play(collector, [[10, 3], [4, 2], [5, 1], [4, 4]], [MIXED] * 4, steps=3)
    # step 0: groups 0 and 1, group 1 ends; step 1: 0 goes on, 2 begins; step 2: both end
    assert column(run, "time/rollout_seconds") == [4, 4, 2]
    assert column(run, "rollout/completion_tokens") == [7 + 6, 4 + 5, 2 + 1]
    assert column(run, "rollout/effective_groups") == [1, 0, 2]
    assert column(run, "train/update_skipped") == [0, 1, 0]
    assert column(run, "rollout/carried_tokens") == [7, 16, 0]
    # one update lies between: 7 tokens of version 0, the rest of group 0 and group 2 of version 1
    assert column(run, "staleness/mean_versions")[2] == pytest.approx(7 / 19)
    assert column(run, "staleness/max_versions")[2] == 1
    assert [group(run, i)["step"] for i in range(3)] == [2, 0, 2]


def test_the_first_responses_of_a_prompt_make_its_group(play: Play) -> None:
    """Two of three responses are wanted; the third is cut off where the second ends."""
    collector = {"kind": "over_provision", "eta": 1.5, "response_eta": 1.5, "filter": False}
    run = play(collector, [[9, 4, 2], [3, 3, 3], [8, 8, 1]], [1, 1, 1], size=2)
    row = run.steps.iloc[0]
    # group 1 is complete at 3 with all three done, group 0 at 4 with responses 1 and 2
    assert row["time/rollout_seconds"] == 4
    assert run.groups["status"].tolist() == ["trained", "trained", "aborted"]
    assert row["rollout/train_completion_tokens"] == 4 + 2 + 3 + 3
    assert row["rollout/surplus_tokens"] == 3
    assert row["rollout/aborted_tokens"] == 4 + (4 + 4 + 1)
    assert row["rollout/completion_tokens"] == 10 + 9 + 9
    assert run.groups["n_correct"].tolist()[0] == 0  # the right answer was the one cut off
    assert row["bias/length_trained"] == 12 / 4
    assert row["rollout/effective_groups"] == 2
    cut = run.responses[run.responses["status"] == "aborted"]
    assert cut["generated_tokens"].tolist() == [4, 4, 4, 1]


def test_tail_batching_runs_the_long_prompts_among_themselves(play: Play) -> None:
    """Short rounds launch 3 for 2; the prompts cut fill a long round when there are two."""
    collector = {"kind": "tail_batching", "eta": 1.5, "response_eta": 1.0}
    # columns 2 and 3 are the draws of a second attempt
    lengths = [
        [20, 1, 7, 6],
        [2, 2, 9, 9],
        [3, 3, 9, 9],
        [2, 2, 9, 9],
        [3, 1, 9, 9],
        [30, 30, 5, 8],
    ]
    run = play(collector, lengths, [1] * 6, steps=3)
    assert column(run, "time/rollout_seconds") == [3, 3, 8]
    assert column(run, "rollout/effective_groups") == [2, 2, 2]
    assert column(run, "rollout/aborted_tokens") == [4, 6, 0]
    assert column(run, "rollout/train_completion_tokens") == [10, 8, 26]
    trained = run.groups[run.groups["status"] == "trained"]
    assert trained["position"].tolist() == [1, 2, 3, 4, 0, 5]
    assert run.groups[run.groups["status"] == "aborted"]["position"].tolist() == [0, 5]
    assert (run.steps["staleness/mean_versions"] == 0).all()
    # the data are at their end: nothing waits, the next step finds nothing
    more = play(collector, lengths, [1] * 6, steps=9)
    assert more.ended == "data exhausted"
    assert len(more.steps) == 3


def test_tail_batching_runs_what_waits_when_the_data_run_out(play: Play) -> None:
    collector = {"kind": "tail_batching", "eta": 1.5, "response_eta": 1.0}
    run = play(collector, [[9, 9, 4, 4], [2, 2, 9, 9], [3, 3, 9, 9]], [1] * 3, steps=9)
    assert column(run, "rollout/effective_groups") == [2, 1]
    assert column(run, "time/rollout_seconds") == [3, 4]
    assert run.ended == "data exhausted"


def test_screening_pays_two_responses_for_a_degenerate_prompt(play: Play) -> None:
    """Four responses are wanted, two screen; the right answers come first."""
    collector = {"kind": "screening", "screen_samples": 2, "screen_groups": 3}
    lengths = [[2, 3, 9, 5], [4, 1, 7, 7], [3, 3, 6, 2], [1, 2, 3, 4]]
    # of 4 right answers: 1 disagrees at once, 0 and 4 never do
    run = play(collector, lengths, [1, 0, 4, 1], groups=1, size=4, steps=1)
    row = run.steps.iloc[0]
    assert row["rollout/waves"] == 2
    assert row["time/rollout_seconds"] == 4 + 9
    assert row["rollout/train_completion_tokens"] == 19
    assert row["rollout/degenerate_tokens"] == 5 + 6
    assert row["rollout/candidate_groups"] == 3
    assert run.groups["wave"].tolist() == [1, 0, 0]
    assert run.groups["generated_tokens"].tolist() == [19, 5, 6]


def test_a_response_whose_peers_agree_is_not_trained(play: Play) -> None:
    run = play({"kind": "nemo_rl"}, [[5, 2, 3, 4]], [1], groups=1, size=4, epochs=None)
    # 3 of 4 are kept from each prompt, so the second prompt gives the one that is missing
    row = run.steps.iloc[0]
    assert row["rollout/waves"] == 2
    assert row["rollout/effective_groups"] == 1.0
    assert row["rollout/train_completion_tokens"] == 9 + 2
    assert row["rollout/degenerate_tokens"] == 14 * 2 - 11
    assert row["reward/trained_accuracy"] == 0
    assert run.groups["status"].tolist() == ["trained", "trained"]


def test_copies_are_paid_by_the_learner_alone(play: Play) -> None:
    learner = {"update_s_per_token": 1.0}
    run = play({"kind": "replace"}, [[3, 4], [5, 5]], [MIXED, WRONG], learner=learner)
    row = run.steps.iloc[0]
    assert row["train/repeated_groups"] == 1
    assert row["rollout/effective_groups"] == 1
    assert row["time/update_seconds"] == 2 * (3 + 4 + 2 * 10)
    assert row["rollout/train_completion_tokens"] == 7


def test_one_step_off_adds_to_the_age_of_what_was_carried(play: Play) -> None:
    collector = {"kind": "rounds", "gen_groups": 4, "surplus": "carry"}
    learner = {"schedule": {"kind": "one_step_off"}, "gpus": 1, "update_fixed_s": 1.0}
    run = play(collector, [[3, 3]] * 8, [MIXED] * 8, steps=4, learner=learner)
    # rollouts 0 … 3 use the versions 0, 0, 1, 2 and are trained by 0, 1, 2, 3; what steps 1 and 3
    # train was generated in the rollout before
    assert column(run, "staleness/mean_versions") == [0, 1 - 0, 2 - 1, 3 - 1]
    assert column(run, "staleness/off_policy_token_share") == [0, 1, 1, 1]


def test_what_is_still_unfinished_at_the_end_is_in_no_row(play: Play) -> None:
    collector = {"kind": "chunked", "leftovers": "resume", "over_sampling_batch_size": 4}
    run = play(collector, [[1, 1], [2, 2], [50, 9], [60, 60]], [MIXED] * 4, steps=1)
    assert run.groups["position"].tolist() == [0, 1]
    assert column(run, "rollout/carried_tokens") == [8]
    assert column(run, "rollout/completion_tokens") == [6 + 8]
