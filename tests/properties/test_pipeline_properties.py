"""Whatever the settings: nothing is lost, nobody waits for ever, bounds hold, runs repeat."""

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.scenario import Scenario, build
from dapolab.sim.pipeline import Pipeline
from dapolab.sim.run import SimRun, simulate
from tests.properties.test_pipeline_judge import controls, thorough
from tests.properties.test_service_properties import befalling

FATES = {"trained", "degenerate", "surplus", "aborted", "stale"}
LEARNER = {"update_s_per_token": 2e-5, "update_fixed_s": 0.3, "validation_s": 1.0}


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    wanted, size = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    cap = draw(st.sampled_from([50, 300]))
    control = draw(controls(wanted=wanted))
    filters = control["kind"] != "quota" and size > 1 and draw(st.booleans())
    schedule = {
        "kind": "fully_async",
        "control": control,
        "queue": draw(
            st.sampled_from(["fifo", "ready_first", "freshest_first", "weight_fifo", "in_order"])
        ),
        "weights": draw(st.sampled_from(["in_flight", "drained"])),
        "kv": draw(st.sampled_from(["kept", "recomputed"])),
        "fetches_per_step": draw(st.integers(1, wanted)),
    }
    lockstep = draw(st.booleans())
    hardware = {
        "law": {
            "kind": "affine",
            "a_s": 0.01,
            "b_s": draw(st.sampled_from([0.0, 1e-3])),
            "c_s": draw(st.sampled_from([0.0, 1e-6])),
            "prefill_s": draw(st.sampled_from([0.0, 1e-4])),
        },
        "replicas": draw(st.integers(1, 3)),
        "slots": draw(st.integers(1, 8)),
        "kv_capacity_tokens": draw(st.none() | st.integers(cap + 200, 3 * (cap + 200))),
        "token_budget": draw(st.none() | st.integers(8, 200)),
        "prefill": draw(st.booleans()),
        "prefix_cache": draw(st.booleans()),
        "dispatch": draw(
            st.sampled_from(["chunks", "round_robin", "least_loaded", "sticky", "shared"])
        ),
        "dispatch_by": draw(st.sampled_from(["group", "response"])),
        "lockstep": lockstep,
        "call_overhead_s": draw(st.sampled_from([0.0, 0.5])),
        "poll_s": draw(st.sampled_from([0.0, 0.0, 0.7])),
    }
    return build(
        {
            "workload": {
                "kind": "joint",
                "median_tokens": 60.0,
                "loop_share": draw(st.sampled_from([0.0, 0.2])),
                "prompts": {
                    "count": draw(st.integers(1, 40)),
                    "tokens_median": 20.0,
                    "tokens_sigma": 0.3,
                    "epochs": draw(st.none() | st.integers(1, 4)),
                    "drop_last": draw(st.booleans()),
                },
                "drift": {
                    "logit_per_step": 0.1,
                    "log_tokens_per_step": 0.05,
                    "logit_per_visit": draw(st.sampled_from([0.0, 0.3])),
                },
            },
            "rollout": {"groups_per_step": wanted, "group_size": size, "cap_tokens": cap},
            "collector": {"kind": "streaming" if filters else "none"},
            "hardware": hardware,
            "learner": LEARNER
            | {
                "gpus": 2,
                "schedule": schedule,
                "sync_s": draw(st.sampled_from([0.0, 0.25])),
                "reward_s_per_response": draw(st.sampled_from([0.0, 0.05])),
                "validation_every": draw(st.none() | st.integers(1, 3)),
                "noise_cv": draw(st.sampled_from([0.0, 0.5])),
                "packing": draw(st.sampled_from([None, {"micro_batch_tokens": 100}])),
            },
            "run": {"steps": draw(st.integers(1, 6))},
        }
    )


@st.composite
def serviced(draw: st.DrawFn) -> Scenario:
    """Return a scenario in which responses fail, wait for scores or call tools; prompts run out."""
    document = draw(scenarios()).model_dump()
    document["rollout"] |= draw(
        befalling(limit_s=0.3, result_tokens=20, probabilities=[0.0, 0.02, 0.2, 0.5])
    )
    document["workload"]["prompts"]["epochs"] = draw(st.integers(1, 4))
    return build(document)


@thorough(60)
@given(config=scenarios(), seed=st.integers(0, 1000))
def test_nothing_is_lost_and_everything_ends(config: Scenario, seed: int) -> None:
    done = simulate(config, seed=seed, record_steps=100)
    assert done.ended in ("completed", "data exhausted")
    check_run(config, done)


@thorough(40)
@given(config=serviced(), seed=st.integers(0, 1000))
def test_nor_where_responses_fail_or_wait(config: Scenario, seed: int) -> None:
    done = simulate(config, seed=seed, record_steps=100)
    assert done.ended.startswith(("completed", "data exhausted", "failed: a "))
    check_run(config, done)
    _check_failures(config, done)


def check_run(config: Scenario, done: SimRun) -> None:
    steps, groups, wanted = done.steps, done.groups, config.rollout.groups_per_step
    assert (done.ended == "completed") == (len(steps) == config.run.steps)
    # every prompt that was taken is one group, with one fate
    assert sorted(groups["position"]) == list(range(done.n_prompts_used))
    assert set(groups["status"]) <= {*FATES, "failed"}
    inside = groups[groups["step"] < len(steps)]
    for column, total in (
        ("rollout/candidate_groups", len(inside)),
        ("rollout/completion_tokens", inside["generated_tokens"].sum()),
        ("staleness/dropped_groups", (inside["status"] == "stale").sum()),
    ):
        assert steps[column].sum() == total, column
    fates = ["train_completion", "degenerate", "surplus", "aborted"]
    by_fate = sum(steps[f"rollout/{fate}_tokens"] for fate in fates)
    by_fate = by_fate + steps["rollout/failed_tokens"].fillna(0.0)
    assert (by_fate + steps["staleness/dropped_tokens"]).equals(steps["rollout/completion_tokens"])
    assert (steps["rollout/effective_groups"] == wanted).all()
    outside = groups[groups["step"] >= len(steps)]
    assert not (outside["status"] == "trained").any()
    _check_responses(done.responses, inside, size=config.rollout.group_size)
    _check_times(steps, groups)
    _check_ages(config, steps, groups)


def _check_responses(responses: pd.DataFrame, groups: pd.DataFrame, *, size: int) -> None:
    # tools and retries give a response more than one stay
    one_each = responses.drop_duplicates(["step", "group", "member"])
    assert len(one_each) == size * len(groups)
    assert responses["generated_tokens"].sum() == groups["generated_tokens"].sum()
    started = responses[np.isfinite(responses["admit_s"])]
    assert (started["admit_s"] >= started["submit_s"]).all()
    assert (started["end_s"] >= started["admit_s"]).all()


def _check_failures(config: Scenario, done: SimRun) -> None:
    steps, groups, responses = done.steps, done.groups, done.responses
    failed = groups["status"] == "failed"
    assert (groups.loc[failed, "n_failed"] >= 1).all()
    rule = config.rollout.failures
    if rule is None or rule.on_failure != "retry":
        returned = groups["status"].isin(["trained", "degenerate", "stale", "surplus"])
        assert (groups.loc[returned, "n_failed"] == 0).all()
    if rule is not None and rule.on_failure == "fail_run":
        assert done.ended.startswith("failed") or not failed.any()
    inside = groups[groups["step"] < len(steps)]
    for column, counted in (
        ("rollout/failed_groups", inside["status"] == "failed"),
        ("rollout/failed_samplings", inside["n_failed"]),
        ("rollout/timed_out_responses", inside["n_timed_out"]),
    ):
        assert steps[column].sum() == counted.sum(), column
    last = responses[responses["status"] == "trained"]
    last = last.groupby(["step", "group", "member"])["outcome"].last()
    assert set(last) <= {"finished", "truncated"}
    waits = steps["time/reward_wait_seconds"] + steps["time/tool_wait_seconds"]
    assert (waits <= steps["time/step_seconds"] + 1e-9).all()
    for _, own in responses.groupby(["step", "group", "member"]):
        assert (np.diff(own["submit_s"]) >= 0).all()


def _check_times(steps: pd.DataFrame, groups: pd.DataFrame) -> None:
    ends = (steps["start_s"] + steps["time/step_seconds"]).to_numpy()
    assert np.allclose(ends[:-1], steps["start_s"].to_numpy()[1:])
    shares = ["learner_busy", "rollout_busy", "rollout_slot"]
    for share in shares:
        assert steps[f"pipeline/{share}_share"].dropna().between(0, 1).all(), share
    parts = sum(steps[name] for name in steps if name in _PARTS)
    wait = steps["pipeline/learner_wait_seconds"]
    assert np.allclose(parts + wait, steps["time/step_seconds"])
    trained = groups[groups["status"] == "trained"]
    # a group is trained after its end, within its version
    opened = np.concatenate([[0.0], ends])[trained["version_trained"].astype(int) + 1]
    assert (trained["end_s"].to_numpy() <= opened + 1e-9).all()


_PARTS = {
    f"time/{part}_seconds"
    for part in ("old_logprob", "reference", "update", "sync", "validation", "checkpoint", "other")
}


def _check_ages(config: Scenario, steps: pd.DataFrame, groups: pd.DataFrame) -> None:
    trained = groups[groups["status"] == "trained"]
    age = trained["version_trained"] - trained["version_submitted"]
    assert (age >= 0).all()
    assert (trained["staleness_mean"] <= age + 1e-12).all()
    assert (trained["version_trained"] == trained["step"]).all()
    schedule: Any = config.learner.schedule
    control = schedule.control
    if control.kind == "age_drop":
        assert (age <= control.max_age).all()
    if control.kind in ("pacing", "admission") and schedule.queue in ("in_order", "weight_fifo"):
        assert (age <= control.staleness).all()
    elif control.kind == "pacing":  # more than B groups may come due at once
        assert (age <= max(control.staleness, 2 * control.staleness - 1)).all()
    if len(steps):
        assert (steps["staleness/max_versions"] <= age.max()).all()
        share = steps["staleness/off_policy_token_share"]
        assert share.between(0, 1).all()
        assert (share <= steps["staleness/mean_versions"] + 1e-12).all()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(config=st.one_of(scenarios(), serviced()), seed=st.integers(0, 1000))
def test_runs_repeat_and_counters_add_up(config: Scenario, seed: int) -> None:
    one, other = (simulate(config, seed=seed) for _ in range(2))
    pd.testing.assert_frame_equal(one.steps, other.steps)
    pd.testing.assert_frame_equal(one.groups, other.groups)
    pipeline = Pipeline(config, seed=seed, replication=0)
    pipeline.env.process(pipeline.rollout())
    pipeline.env.process(pipeline.learning())
    pipeline.env.run()
    pipeline.pipe.check()
