"""Failures, scores and tools beside a learner that never stops: cases worked by hand."""

from typing import Any

import numpy as np
import pytest

from dapolab.errors import ConfigError
from dapolab.scenario import build
from dapolab.sim.run import SimRun, simulate
from tests.judge_pipeline import Luck
from tests.listed_stream import ListedDraws, ListedStream
from tests.test_pipeline import A_S, quota, scenario, update_s

NEVER = Luck([[None, None]], [[0.0]], [0.0])
HALFWAY = Luck([[0.5, None]], [[0.0]], [0.0])


class Played:
    """Simulate one-answer groups with written-down lengths (in seconds) and luck."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(
        self,
        schedule: dict[str, Any],
        seconds: list[float],
        luck: dict[int, Luck],
        *,
        rollout: dict[str, Any],
        otherwise: Luck = NEVER,
        **settings: Any,
    ) -> SimRun:
        document = scenario(schedule, **settings).model_dump()
        document["rollout"] |= rollout
        tokens = np.array([[round(s / A_S)] for s in seconds])
        stream = ListedStream(tokens, np.ones(len(seconds), dtype=int))
        draws = ListedDraws([luck.get(k, otherwise) for k in range(len(seconds))])
        self._patch.setattr("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream)
        for where in ("traffic", "run"):
            self._patch.setattr(f"dapolab.sim.{where}.Draws", lambda *_, **__: draws)
        return simulate(build(document), seed=0, record_steps=10)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def failures(how: str) -> dict[str, Any]:
    return {"failures": {"on_failure": how, "max_retries": 1}}


@pytest.mark.parametrize(
    "control",
    [
        {"kind": "quota", "staleness": 0.0},
        {"kind": "admission", "staleness": 0},
        {"kind": "pacing", "staleness": 0},
        {"kind": "age_drop", "ahead_groups": 2},
        {"kind": "age_drop", "ahead_groups": 2, "counts": "running"},
    ],
)
def test_a_failed_group_makes_room_for_another(played: Played, control: dict[str, Any]) -> None:
    """Two groups at once; the first fails at 0.5 s, so a third one runs from 0.5 to 1.5 s."""
    schedule = {"kind": "fully_async", "control": control}
    done = played(
        schedule,
        [1.0, 2.0, 1.0, *[1.0] * 30],
        {0: HALFWAY},
        rollout=failures("drop_group"),
        groups=2,
        steps=1,
        learner={"fixed_s": 1.0},
    )
    trained = done.groups[done.groups["status"] == "trained"]
    assert sorted(trained["position"]) == [1, 2]
    assert update_s(done) == [3.0]
    first = done.groups.set_index("position").loc[0]
    assert (first["status"], first["n_failed"], first["generated_tokens"]) == ("failed", 1, 4)
    assert first["end_s"] == 0.5
    assert done.groups.set_index("position").loc[2, "submit_s"] == 0.5
    step = done.steps.iloc[0]
    assert (step["rollout/failed_groups"], step["rollout/failed_tokens"]) == (1, 4)
    assert step["rollout/candidate_groups"] == 3


def test_of_a_retried_answer_only_the_last_sampling_ages(played: Played) -> None:
    """4 s of answer, failed at 2 s: sampled again from 2 to 6 s, through the update at 2.5 s."""
    done = played(
        {"kind": "fully_async", "control": {"kind": "admission", "staleness": 3}},
        [4.0, 0.5, 0.5, *[9.0] * 4],
        {0: HALFWAY},
        rollout=failures("retry"),
        groups=1,
        learner={"fixed_s": 1.0},
    )
    assert update_s(done) == [1.5, 2.5, 7.0]
    old = done.groups.set_index("position").loc[0]
    assert (old["version_submitted"], old["version_trained"]) == (0, 2)
    # 4 tokens between 2 and 2.5 s are by version 1, 28 by version 2; 16 were lost
    assert old["staleness_mean"] == 1 * 4 / 32
    assert (old["n_failed"], old["generated_tokens"]) == (1, 32 + 16)
    step = done.steps.iloc[2]
    assert step["staleness/off_policy_token_share"] == 4 / 32
    assert step["staleness/max_versions"] == 1
    assert step["staleness/mean_versions_by_response"] == 2
    assert step["rollout/failed_tokens"] == 16
    stays = done.responses[done.responses["step"] == 2]
    assert stays["outcome"].tolist() == ["failed", "finished"]
    assert stays["submit_s"].tolist() == [0.0, 2.0]
    assert stays["generated_tokens"].tolist() == [16, 32]


def test_a_failure_can_end_the_run(played: Played) -> None:
    done = played(
        quota(0.0),
        [1.0, 1.0, 2.0, 2.0, *[1.0] * 8],
        {3: HALFWAY},
        rollout=failures("fail_run"),
        groups=2,
    )
    assert done.ended == "failed: a response failed and rollout.failures.on_failure is fail_run"
    assert update_s(done) == [1.0]
    assert done.unlearned_s == 1.0
    assert done.groups["status"].tolist() == ["trained", "trained", "aborted", "failed"]


@pytest.mark.parametrize(
    ("tables", "second_update_s"),
    [
        # both answers are out at 3 s; the first is scored at 3 s and trains until 4 s
        ({"reward": {}}, 4.0),
        # two turns with 2 s between them: 3 s and 5 s; the copy waits for the call, then
        ({"tools": {"turns": 2}}, 5.0),
    ],
)
def test_drained_updates_wait_for_calls_and_not_for_scores(
    played: Played, tables: dict[str, Any], second_update_s: float
) -> None:
    luck = Luck([[None]], [[2.0]], [2.0 if "reward" in tables else 0.0])
    done = played(
        quota(1.0, weights="drained"),
        [1.0, 3.0, *[1.0] * 8],
        {},
        rollout=tables,
        otherwise=luck,
        groups=1,
        steps=1,
        learner={"fixed_s": 1.0},
    )
    assert update_s(done) == [second_update_s]
    # the learner looks on while the engine is empty: from 3 to 4 s, or while both call
    waits = done.steps[["time/reward_wait_seconds", "time/tool_wait_seconds"]].iloc[0].tolist()
    assert waits == ([1.0, 0.0] if "reward" in tables else [0.0, 1.5])


def test_one_step_off_trains_what_a_failure_leaves(played: Played) -> None:
    """Rollouts of 2 and 1 s; the second group of the first batch fails at 1.5 s."""
    done = played(
        {"kind": "one_step_off"},
        [2.0, 3.0, 1.0, 1.0],
        {1: HALFWAY},
        rollout=failures("drop_group"),
        groups=2,
        steps=2,
        learner={"fixed_s": 2.0, "sync_s": 0.5},
    )
    assert done.steps["rollout/effective_groups"].tolist() == [1, 2]
    assert done.steps["rollout/failed_groups"].tolist() == [1, 0]
    # 2 s alone, then max(1, 2) and a copy; the last trains alone
    assert done.steps["time/step_seconds"].tolist() == [2 + 2 + 0.5, 2.5]


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        ({"failures": {"probability": 1.0}}, r"failures\.probability 1: every group fails"),
        (
            {"reward": {"median_s": 2.0, "timeout_s": 1.0, "on_timeout": "fail"}},
            r"reward\.timeout_s 1 below its constant 2",
        ),
    ],
)
def test_where_all_fail_the_learner_would_wait_for_ever(rollout: dict[str, Any], says: str) -> None:
    document = scenario({"kind": "fully_async"}).model_dump()
    document["rollout"] |= rollout
    with pytest.raises(ConfigError, match=says):
        simulate(build(document), seed=0)
    document["rollout"]["failures"] = {"probability": 1.0, "on_failure": "fail_run"}
    assert simulate(build(document), seed=0).failed
