"""What every run with slow scores, tools and failures must satisfy, whatever the policy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.scenario import COLLECTOR_KINDS, Scenario, build
from dapolab.sim.replica import Engine
from dapolab.sim.run import SimRun, simulate
from tests.properties.test_decode_calls import nothing_leaks
from tests.properties.test_simulate_properties import (
    CAP,
    GUARDED,
    LEARNER_PARTS,
    as_bytes,
    known,
    run_or_none,
    scenarios,
    total,
)

FATES = {"trained", "degenerate", "surplus", "aborted", "stale", "failed"}
OUTCOMES = {"finished", "truncated", "failed", "aborted", "tool"}
PARTS = ("train_completion", "degenerate", "surplus", "aborted", "failed")
RESUMING = ("segments",)


@st.composite
def befalling(
    draw: st.DrawFn, *, limit_s: float, result_tokens: int, probabilities: list[float]
) -> dict[str, Any]:
    """Return at least one of the three tables of what befalls a response beside its tokens."""
    seconds = {
        "median_s": draw(st.sampled_from([0.0, 0.02, 0.3])),
        "sigma": draw(st.sampled_from([0.0, 1.0])),
        "timeout_s": draw(st.sampled_from([None, limit_s])),
    }
    tables: dict[str, Any] = {
        "reward": seconds
        | {
            "workers": draw(st.sampled_from([None, 1, 3])),
            "on_timeout": draw(st.sampled_from(["wrong", "fail"])),
        },
        "tools": seconds
        | {
            "turns": draw(st.sampled_from([2, 3])),
            "result_tokens": draw(st.sampled_from([0, result_tokens])),
            "kv": draw(st.sampled_from(["recomputed", "kept"])),
            "on_timeout": draw(st.sampled_from(["go_on", "truncate", "fail"])),
        },
        "failures": {
            "probability": draw(st.sampled_from(probabilities)),
            "on_failure": draw(st.sampled_from(["fail_run", "drop_group", "drop_group", "retry"])),
            "max_retries": draw(st.sampled_from([0, 2])),
        },
    }
    chosen = draw(st.sets(st.sampled_from(sorted(tables)), min_size=1))
    return {name: tables[name] for name in chosen}


@st.composite
def served(draw: st.DrawFn) -> Scenario:
    """Return a scenario with at least one of the three tables."""
    kinds = [kind for kind in COLLECTOR_KINDS if kind not in RESUMING]
    scenario = draw(scenarios(draw(st.sampled_from(kinds))))
    tables = draw(befalling(limit_s=0.05, result_tokens=2, probabilities=[0.0, 0.05, 0.5, 1.0]))
    document = scenario.model_dump()
    document["rollout"] |= tables
    if "leftovers" in document["collector"]:
        document["collector"]["leftovers"] = "abort"
    if "tools" in tables and document["hardware"]["kv_capacity_tokens"] is not None:
        document["hardware"]["kv_capacity_tokens"] += 4  # the results of two calls
    for name in ("max_num_gen_batches", "max_sample_batches"):  # 0 waits for ever where all fail
        if document["collector"].get(name) == 0:
            document["collector"][name] = 2
    return build(document)


@given(served())
def test_tokens_and_groups_are_conserved_and_time_has_no_rest(scenario: Scenario) -> None:
    run = run_or_none(scenario)
    if run is None or len(run.groups) == 0:
        return
    steps, groups, responses = run.steps, run.groups, run.responses
    gone = total(steps, *(f"rollout/{part}_tokens" for part in PARTS))
    gone = gone + known(steps, "staleness/dropped_tokens")
    carried = known(steps, "rollout/carried_tokens")
    made = steps["rollout/completion_tokens"].to_numpy()
    np.testing.assert_array_equal(made + np.append(0, carried)[:-1], gone + carried)
    by_step = responses.groupby("step")["generated_tokens"].sum()
    np.testing.assert_array_equal(by_step.reindex(steps["step"], fill_value=0), made)
    by_step = groups.groupby("step")["generated_tokens"].sum().reindex(steps["step"], fill_value=0)
    np.testing.assert_array_equal(by_step, gone)
    assert set(groups["status"]) <= FATES
    assert set(responses["outcome"]) <= OUTCOMES
    assert (responses["generated_tokens"] >= 0).all()
    assert (groups["n_tokens_max"] <= CAP).all()
    _check_failures(scenario, run)
    _check_times(scenario, run)


def _check_failures(scenario: Scenario, run: SimRun) -> None:
    """A failed group has a failed response, a trained one none that was not sampled again."""
    steps, groups, responses = run.steps, run.groups, run.responses
    failed = groups["status"] == "failed"
    late = scenario.rollout.tools or scenario.rollout.reward
    assert (groups.loc[failed, "n_failed"] >= 1).all()
    rule = scenario.rollout.failures
    if rule is None or rule.on_failure != "retry":
        assert (groups.loc[groups["status"] != "failed", "n_failed"] == 0).all()
    if rule is None and not late:
        assert not failed.any()
    counted = groups[failed].groupby("step").size().reindex(steps["step"], fill_value=0)
    np.testing.assert_array_equal(counted, steps["rollout/failed_groups"])
    per_group = groups.groupby("step")["n_failed"].sum().reindex(steps["step"], fill_value=0)
    np.testing.assert_array_equal(per_group, steps["rollout/failed_samplings"])
    trained = responses[responses["status"] == "trained"]
    last = trained.groupby(["step", "group", "member"])["outcome"].last()
    assert set(last) <= {"finished", "truncated"}


def _check_times(scenario: Scenario, run: SimRun) -> None:
    steps, responses = run.steps, run.responses
    parts = [f"time/{part}_seconds" for part in ("overhead", "prefill", "decode", "tail")]
    np.testing.assert_allclose(total(steps, *parts), steps["time/rollout_seconds"], atol=1e-9)
    assert (steps[parts].to_numpy() >= -1e-12).all()
    waits = total(steps, "time/reward_wait_seconds", "time/tool_wait_seconds")
    assert (waits <= steps["time/rollout_seconds"] + 1e-9).all()
    learner = [f"time/{part}_seconds" for part in LEARNER_PARTS]
    whole = total(steps, "time/rollout_seconds", *learner)
    np.testing.assert_allclose(whole, steps["time/step_seconds"], atol=1e-9)
    if scenario.rollout.reward is None:
        assert (steps["time/reward_wait_seconds"] == 0).all()
    if scenario.rollout.tools is None:
        assert (steps["time/tool_wait_seconds"] == 0).all()
    assert (responses["end_s"] >= responses["submit_s"]).all()
    admitted = responses[responses["admit_s"].notna()]
    assert (admitted["admit_s"] >= admitted["submit_s"] - 1e-12).all()
    capacity = scenario.hardware.kv_capacity_tokens
    assert capacity is None or (steps["engine/peak_kv_tokens"] <= capacity).all()
    # the stays of a response follow each other
    stays = responses[responses["submit_s"].notna()]
    for _, own in stays.groupby(["step", "group", "member"]):
        assert (np.diff(own["submit_s"]) >= 0).all()


@settings(max_examples=12)
@given(served())
def test_the_same_seed_gives_the_same_bytes(scenario: Scenario) -> None:
    one, two = run_or_none(scenario), run_or_none(scenario)
    if one is not None and two is not None:
        assert as_bytes(one) == as_bytes(two)


@settings(max_examples=25)
@given(scenarios())
def test_tables_that_change_nothing_change_nothing(scenario: Scenario) -> None:
    """Instant scores and failures of probability 0: the books of a run without either."""
    plain = run_or_none(scenario)
    document = scenario.model_dump()
    document["rollout"] |= {"reward": {}, "failures": {}}
    if document["collector"].get("leftovers", "abort") != "abort":
        return
    if scenario.collector.kind in RESUMING:
        return
    other = run_or_none(build(document))
    if plain is None or other is None:
        return
    new = [f"rollout/failed_{what}" for what in ("groups", "samplings", "tokens")]
    new += ["rollout/timed_out_responses", "time/reward_wait_seconds", "time/tool_wait_seconds"]
    assert (other.steps[new] == 0).all().all()
    pd.testing.assert_frame_equal(
        plain.steps.drop(columns=new), other.steps.drop(columns=new), rtol=1e-9, atol=1e-9
    )
    columns = ["n_failed", "n_timed_out"]
    pd.testing.assert_frame_equal(
        plain.groups.drop(columns=columns), other.groups.drop(columns=columns), rtol=1e-9
    )
    assert plain.ended == other.ended


@settings(max_examples=25)
@given(served())
def test_no_slot_and_no_kv_is_left_at_the_end_of_a_step(scenario: Scenario) -> None:
    document = scenario.model_dump()
    if document["rollout"]["tools"] is None:
        document["rollout"]["tools"] = {"median_s": 0.05, "sigma": 1.0}
    document["rollout"]["tools"]["kv"] = "kept"
    forget = Engine.reset

    def watched(engine: Engine, **settings_: Any) -> None:
        nothing_leaks(engine)
        forget(engine, **settings_)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "reset", watched)
        run_or_none(build(document))


SCHEDULES: list[dict[str, Any]] = [
    {"kind": "sync"},
    {"kind": "one_step_off"},
    {"kind": "fully_async", "weights": "in_flight", "kv": "kept"},
    {"kind": "fully_async", "weights": "in_flight", "kv": "recomputed"},
    {"kind": "fully_async", "weights": "drained"},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_kv_kept_over_calls_saves_prefill_and_nothing_else(schedule: dict[str, Any]) -> None:
    """Without prefill and a limit on memory it changes no time; with prefill it saves some."""

    def rollout_s(kv: str, *, prefill: bool) -> pd.DataFrame:
        tools = {"median_s": 0.3, "sigma": 0.5, "turns": 3, "result_tokens": 50, "kv": kv}
        law = {"kind": "affine", "a_s": 0.01, "b_s": 1e-4, "c_s": 1e-7, "prefill_s": 1e-3}
        scenario = {
            "workload": {"kind": "independent", "prompts": {"tokens_median": 200}},
            "rollout": {"groups_per_step": 3, "group_size": 4, "cap_tokens": 300, "tools": tools},
            "collector": {"kind": "none"},
            "hardware": {"law": law, "prefill": prefill, "replicas": 2, "slots": 8},
            "learner": {"schedule": schedule, "gpus": None if schedule["kind"] == "sync" else 1},
            "run": {"steps": 4},
        }
        return simulate(build(scenario), seed=3).steps

    free = [rollout_s(kv, prefill=False) for kv in ("kept", "recomputed")]
    memory = ["engine/peak_kv_tokens"]
    pd.testing.assert_frame_equal(*(steps.drop(columns=memory) for steps in free))
    assert (free[0][memory] >= free[1][memory]).all(axis=None)
    kept, recomputed = (
        rollout_s(kv, prefill=True)["time/step_seconds"].sum() for kv in ("kept", "recomputed")
    )
    assert kept < recomputed


@pytest.mark.parametrize("kind", [kind for kind in COLLECTOR_KINDS if kind not in RESUMING])
@pytest.mark.parametrize("on_failure", ["drop_group", "retry"])
def test_no_run_hangs_where_everything_fails(kind: str, on_failure: str) -> None:
    """The run ends, by data or by the policy's own error, and nothing was ever trained."""
    scenario = build(
        {
            "workload": {
                "kind": "independent",
                "prompts": {"count": 9, "epochs": 4},
                "lengths": {"kind": "geometric", "mean_tokens": 10.0},
                "pass_rate": {"kind": "fixed", "p": 0.5},
            },
            "rollout": {
                "groups_per_step": 2,
                "group_size": 4,
                "cap_tokens": CAP,
                "reward": {"median_s": 0.1, "workers": 1},
                "tools": {"median_s": 0.1},
                "failures": {"probability": 1.0, "on_failure": on_failure, "max_retries": 1},
            },
            "collector": {"kind": kind} | ({"max_candidates": 50} if kind in GUARDED else {}),
            "hardware": {"law": {"kind": "affine"}},
            "run": {"steps": 30},
        }
    )
    run = simulate(scenario, seed=1)
    assert "trained" not in set(run.groups["status"])
    assert set(run.groups["status"]) & {"failed"}
    assert run.ended == "data exhausted" or run.failed
