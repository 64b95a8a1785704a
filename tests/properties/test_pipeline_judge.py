"""The asynchronous pipeline against the plain judge: every group, every version, every time."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapolab.scenario import Scenario, build
from dapolab.sim.pipe import Place
from dapolab.sim.pipeline import Pipeline
from dapolab.sim.pipeline_tables import tables
from dapolab.sim.run import SimRun
from tests.judge_pipeline import Judge, Luck, Settings
from tests.listed_stream import ListedDraws, ListedStream

A_S = 0.0625  # a power of two: sums of iterations are exact on both sides
NAMES = {
    Place.RUNNING: "running",
    Place.READY: "ready",
    Place.TRAINING: "training",
    Place.TRAINED: "trained",
    Place.DEGENERATE: "degenerate",
    Place.STALE: "stale",
    Place.ABORTED: "cancelled",
    Place.FAILED: "failed",
}


Case = tuple[Settings, dict[str, Any], np.ndarray, np.ndarray]
Serviced = tuple[Settings, dict[str, Any], np.ndarray, np.ndarray, list[Luck]]


@st.composite
def controls(draw: st.DrawFn, *, wanted: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(["admission", "pacing", "age_drop", "quota"]))
    if kind == "age_drop":
        return {
            "kind": kind,
            "max_age": draw(st.integers(0, 3)),
            "ahead_groups": draw(st.integers(wanted, 3 * wanted)),
            "counts": draw(st.sampled_from(["running", "running_and_ready"])),
            "cancel": draw(st.booleans()),
        }
    staleness: Any = draw(st.integers(0, 3))
    if kind == "quota":
        staleness = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.5]))
    table = {"kind": kind, "staleness": staleness}
    limit = draw(st.none() | st.integers(1, 2 * wanted))
    return table if limit is None else table | {"max_running_groups": limit}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    wanted, size = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    control = draw(controls(wanted=wanted))
    weights = draw(st.sampled_from(["in_flight", "drained"]))
    kv = draw(st.sampled_from(["kept", "recomputed"]))
    sync_s = draw(st.sampled_from([0.0, 0.25, 0.40625]))
    played = Settings(
        groups_per_step=wanted,
        steps=draw(st.integers(1, 8)),
        slots=draw(st.integers(1, 12)),
        a_s=A_S,
        filters=control["kind"] != "quota" and size > 1 and draw(st.booleans()),
        control=control,
        queue=draw(
            st.sampled_from(["fifo", "ready_first", "freshest_first", "weight_fifo", "in_order"])
        ),
        weights=weights,
        pauses=weights == "in_flight" and (sync_s > 0 or kv == "recomputed"),
        sync_s=sync_s,
        fixed_s=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        s_per_token=draw(st.sampled_from([0.0, 0.015625])),
        fetches=draw(st.integers(1, wanted)),
        reward_s=draw(st.sampled_from([0.0, 0.0, 0.125])),
        resumed=draw(st.sampled_from(["first", "last"])),
    )
    n = draw(st.integers(1, 60))
    lengths = st.lists(st.integers(1, 30), min_size=size, max_size=size)
    lengths_NG = np.array(draw(st.lists(lengths, min_size=n, max_size=n)))
    right_N = np.array(draw(st.lists(st.integers(0, size), min_size=n, max_size=n)))
    return played, {"weights": weights, "kv": kv}, lengths_NG, right_N


@st.composite
def serviced(draw: st.DrawFn) -> Serviced:
    """Return a case in which responses fail, call tools and wait for their scores."""
    played, how, lengths_NG, right_N = draw(cases())
    played.on_failure = draw(st.sampled_from(["drop_group", "retry", "retry", "fail_run"]))
    played.max_retries = draw(st.integers(0, 2)) if played.on_failure == "retry" else 0
    played.turns, played.workers = draw(st.integers(1, 3)), draw(st.none() | st.integers(1, 3))
    rare = played.on_failure == "fail_run"
    share = st.sampled_from([*[None] * (30 if rare else 5), 0.0, 0.3, 0.9])
    seconds = st.sampled_from([0.0, 0.0625, 0.25, 0.3125, 1.0])
    lists = [
        (share, played.max_retries + 1),
        (seconds, max(played.turns - 1, 1)),
    ]
    n, size = lengths_NG.shape
    luck = []
    for _ in range(n):
        fails_at, call_s = (
            [draw(st.lists(law, min_size=k, max_size=k)) for _ in range(size)] for law, k in lists
        )
        luck.append(Luck(fails_at, call_s, draw(st.lists(seconds, min_size=size, max_size=size))))
    return played, how, lengths_NG, right_N, luck


def scenario(
    played: Settings, how: dict[str, Any], size: int, *, is_serviced: bool = False
) -> Scenario:
    tables = {}
    if is_serviced:
        tables["reward"] = {"workers": played.workers}
        retries = {"max_retries": played.max_retries}
        tables["failures"] = {"on_failure": played.on_failure} | retries
        if played.turns > 1:
            tables["tools"] = {"turns": played.turns, "result_tokens": 7}
    return build(
        {
            "workload": {"kind": "independent"},
            "rollout": {
                "groups_per_step": played.groups_per_step,
                "group_size": size,
                "cap_tokens": 1000,
                "resumed": played.resumed,
            }
            | tables,
            "collector": {"kind": "streaming" if played.filters else "none"},
            "hardware": {
                "law": {"kind": "affine", "a_s": A_S, "b_s": 0.0, "c_s": 0.0},
                "prefill": False,
                "slots": played.slots,
            },
            "learner": {
                "gpus": 1,
                "schedule": {
                    "kind": "fully_async",
                    "control": played.control,
                    "queue": played.queue,
                    "fetches_per_step": played.fetches,
                }
                | how,
                "update_s_per_token": played.s_per_token,
                "fixed_s": played.fixed_s,
                "sync_s": played.sync_s,
                "reward_s_per_response": played.reward_s,
            },
            "run": {"steps": played.steps},
        }
    )


def played_by_simulator(
    config: Scenario, stream: ListedStream, luck: list[Luck] | None = None
) -> Pipeline:
    with (
        patch("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream),
        patch("dapolab.sim.traffic.Draws", lambda *_, **__: ListedDraws(luck or [])),
    ):
        pipeline = Pipeline(config, seed=0, replication=0)
    pipeline.env.process(pipeline.rollout())
    pipeline.env.process(pipeline.learning())
    pipeline.env.run()
    return pipeline


def thorough(n: int) -> settings:
    few = [HealthCheck.too_slow]
    return settings(max_examples=n, deadline=None, derandomize=True, suppress_health_check=few)


@thorough(150)
@given(case=cases())
def test_every_group_version_and_time_agrees(case: Case) -> None:
    check_agreement(*case, None)


@thorough(50)
@given(case=serviced())
def test_with_failures_tools_and_scores_too(case: Serviced) -> None:
    judge, pipeline = check_agreement(*case)
    pipeline.close()
    check_tokens(judge, pipeline, tables(pipeline.record, record_steps=100, keep_groups=True))


def check_agreement(
    played: Settings,
    how: dict[str, Any],
    lengths_NG: np.ndarray,
    right_N: np.ndarray,
    luck: list[Luck] | None,
) -> tuple[Judge, Pipeline]:
    size = lengths_NG.shape[1]
    source = [
        (row.tolist(), 0 < int(right) < size)
        for row, right in zip(lengths_NG, right_N, strict=True)
    ]
    judge = Judge(played, source, luck)
    ended = judge.play()
    pipeline = played_by_simulator(
        scenario(played, how, size, is_serviced=luck is not None),
        ListedStream(lengths_NG, right_N, epochs=1),
        luck,
    )
    pipe = pipeline.pipe
    pipe.check()
    assert pipeline.record.ended.startswith(ended)
    assert [update.at_s for update in pipeline.record.updates] == pytest.approx(
        judge.bumps, rel=1e-9
    )
    assert pipe.version_of == [one.version for one in judge.groups]
    assert [NAMES[place] for place in pipe.place] == [one.state for one in judge.groups]
    assert pipe.step_of == [one.step for one in judge.groups]
    ends = pipeline.engine.facts().end_s.reshape(-1, size).max(axis=1, initial=-1.0)
    finished = [g for g, one in enumerate(judge.groups) if one.state in ("trained", "degenerate")]
    assert ends[finished] == pytest.approx([judge.groups[g].end_s for g in finished], rel=1e-9)
    return judge, pipeline


def check_tokens(judge: Judge, pipeline: Pipeline, run: SimRun) -> None:
    """Every token of every group that had its fate within a step, and every failure."""
    rows = run.groups.set_index("position").sort_index()
    for group, row in zip(judge.groups, rows.itertuples(), strict=True):
        assert row.n_failed == group.n_failures
        if 0 <= group.step < len(run.steps):
            assert row.generated_tokens == sum(group.got) + group.lost_tokens
    failed = [g for g in judge.groups if g.state == "failed" and g.step < len(run.steps)]
    assert run.steps["rollout/failed_groups"].sum() == len(failed)
