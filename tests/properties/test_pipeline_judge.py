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
from tests.judge_pipeline import Judge, Settings
from tests.listed_stream import ListedStream

A_S = 0.0625  # a power of two: sums of iterations are exact on both sides
NAMES = {
    Place.RUNNING: "running",
    Place.READY: "ready",
    Place.TRAINING: "training",
    Place.TRAINED: "trained",
    Place.DEGENERATE: "degenerate",
    Place.STALE: "stale",
    Place.ABORTED: "cancelled",
}


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
def cases(draw: st.DrawFn) -> tuple[Settings, dict[str, Any], np.ndarray, np.ndarray]:
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
    )
    n = draw(st.integers(1, 60))
    lengths = st.lists(st.integers(1, 30), min_size=size, max_size=size)
    lengths_NG = np.array(draw(st.lists(lengths, min_size=n, max_size=n)))
    right_N = np.array(draw(st.lists(st.integers(0, size), min_size=n, max_size=n)))
    return played, {"weights": weights, "kv": kv}, lengths_NG, right_N


def scenario(played: Settings, how: dict[str, Any], size: int) -> Scenario:
    return build(
        {
            "workload": {"kind": "independent"},
            "rollout": {
                "groups_per_step": played.groups_per_step,
                "group_size": size,
                "cap_tokens": 1000,
            },
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


def played_by_simulator(config: Scenario, stream: ListedStream) -> Pipeline:
    with patch("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream):
        pipeline = Pipeline(config, seed=0, replication=0)
    pipeline.env.process(pipeline.rollout())
    pipeline.env.process(pipeline.learning())
    pipeline.env.run()
    return pipeline


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(case=cases())
def test_every_group_version_and_time_agrees(
    case: tuple[Settings, dict[str, Any], np.ndarray, np.ndarray],
) -> None:
    played, how, lengths_NG, right_N = case
    size = lengths_NG.shape[1]
    source = [
        (row.tolist(), 0 < int(right) < size)
        for row, right in zip(lengths_NG, right_N, strict=True)
    ]
    judge = Judge(played, source)
    ended = judge.play()
    pipeline = played_by_simulator(
        scenario(played, how, size), ListedStream(lengths_NG, right_N, epochs=1)
    )
    pipe = pipeline.pipe
    pipe.check()
    assert pipeline.record.ended == ended
    assert [update.at_s for update in pipeline.record.updates] == pytest.approx(
        judge.bumps, rel=1e-9
    )
    assert pipe.version_of == [one.version for one in judge.groups]
    assert [NAMES[place] for place in pipe.place] == [one.state for one in judge.groups]
    assert pipe.step_of == [one.step for one in judge.groups]
    ends = pipeline.engine.group_end_s()
    finished = [g for g, one in enumerate(judge.groups) if one.state in ("trained", "degenerate")]
    assert ends[finished] == pytest.approx([judge.groups[g].end_s for g in finished], rel=1e-9)
