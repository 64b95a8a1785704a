"""What every simulated run must satisfy, whatever the policy, workload and hardware."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.compare import run_policies
from dapolab.scenario import (
    COLLECTOR_KINDS,
    Collector,
    ConfigError,
    ExactRefill,
    NoFilter,
    Scenario,
    Streaming,
    build,
)
from dapolab.sim.run import SimRun, simulate

CAP = 40
PROMPT = 6
LEARNER = {
    "old_logprob_s_per_token": 1e-4,
    "reference_s_per_token": 5e-5,
    "update_s_per_token": 3e-4,
    "update_fixed_s": 0.02,
    "sync_s": 0.05,
    "reward_s_per_response": 1e-3,
    "fixed_s": 0.01,
    "validation_s": 0.3,
    "validation_every": 2,
    "checkpoint_s": 0.2,
    "checkpoint_every": 3,
}
LEARNER_PARTS = (
    "reward",
    "old_logprob",
    "reference",
    "update",
    "sync",
    "validation",
    "checkpoint",
    "other",
)
GUARDED = ("replenish", "streaming", "chunked", "verl_v1")
COLLECTORS: dict[str, dict[str, list[Any]]] = {
    "none": {},
    "filter_no_refill": {},
    "exact_refill": {"max_candidate_multiplier": [1, 2, 3], "at_cap": ["partial", "error"]},
    "rounds": {
        "gen_groups": [1, 2, 5],
        "max_num_gen_batches": [0, 1, 3],
        "max_waves": [4],
        "at_max": ["error", "stop", "original"],
        "rounds_past_max": [0, 1],
        "examine_last": [True, False],
        "judge": ["group", "group", "sample"],
        "surplus": ["drop", "carry"],
    },
    "replace": {"min_replace_ratio": [0.0, 0.3], "max_sample_batches": [0, 2], "max_waves": [4]},
    "adaptive_wave": {
        "gen_groups": [1, 2, 5],
        "min_groups": [1, 3],
        "max_num_gen_batches": [0, 1, 3],
        "max_waves": [4],
    },
    "screening": {"screen_samples": [2, 3], "screen_groups": [1, 3], "max_waves": [5]},
    "segments": {
        "segment_tokens": [None, 3, 15],
        "eta": [1.0, 2.0],
        "filter": [True, False],
        "keep_kv": [True, False],
    },
    "replenish": {
        "min_in_flight": [0, 3],
        "at_data_end": ["drop", "train"],
        "max_candidates": [12],
    },
    "streaming": {
        "slots": [1, 2, 5],
        "filter": [True, False],
        "leftovers": ["abort", "resume", "resume_with_kv"],
        "surplus": ["drop", "carry"],
        "max_age": [None, 1],
        "max_candidates": [12],
    },
    "chunked": {
        "over_sampling_batch_size": [None, 5],
        "fallback": [True, False],
        "leftovers": ["abort", "resume", "resume_with_kv"],
        "max_candidates": [12],
    },
    "over_provision": {
        "eta": [1.0, 1.5, 2.6],
        "response_eta": [1.0, 1.25, 2.0],
        "filter": [True, False],
    },
    "tail_batching": {
        "eta": [1.0, 1.5],
        "response_eta": [1.0, 1.25],
        "filter": [True, False],
    },
    "verl_v1": {"max_inflight_gen_batches": [1, 2], "max_candidates": [12]},
}

BARRIER_FREE = (
    "replenish",
    "streaming",
    "chunked",
    "over_provision",
    "tail_batching",
    "verl_v1",
)


@st.composite
def collectors(draw: st.DrawFn, kind: str | None = None) -> dict[str, Any]:
    kind = kind or draw(st.sampled_from(COLLECTOR_KINDS))
    found: dict[str, Any] = {"kind": kind}
    for name, values in COLLECTORS[kind].items():
        found[name] = draw(st.sampled_from(values))
    budgets = {
        "seconds": st.sampled_from([0.06, 0.1, 0.35, 0.5]),
        "candidate_tokens": st.sampled_from([1, 60, 200]),
        "train_tokens": st.sampled_from([1, 60, 200]),
    }
    limit = draw(st.sampled_from([None, None, *budgets]))
    if limit:
        found["budget"] = {limit: draw(budgets[limit])}
    return found


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    prompts: dict[str, Any] = {
        "count": draw(st.sampled_from([7, 50, 4000])),
        "tokens_median": PROMPT,
        "epochs": draw(st.sampled_from([None, 1, 2])),
        "drop_last": draw(st.booleans()),
    }
    drift = {"logit_per_step": draw(st.sampled_from([0.0, 0.3]))}
    if draw(st.booleans()):
        joint = {"median_tokens": 15.0, "correlation": -0.5, "correct_effect": -0.3}
        joint |= {"loop_share": draw(st.sampled_from([0.0, 0.1]))}
        return {"kind": "joint", "prompts": prompts, "drift": drift, **joint}
    lengths = draw(
        st.sampled_from(
            [
                {"kind": "constant", "tokens": 10},
                {"kind": "geometric", "mean_tokens": 12.0},
                {"kind": "lognormal", "median_tokens": 12.0, "sigma": 1.0, "prompt_share": 0.5},
                {"kind": "empirical", "tokens": [1, 10, 30]},
            ]
        )
    )
    pass_rate = draw(
        st.sampled_from([{"kind": "fixed", "p": p} for p in (0.0, 0.5, 1.0)])
        | st.just({"kind": "beta", "a": 0.5, "b": 0.5})
    )
    return {
        "kind": "independent",
        "prompts": prompts,
        "lengths": lengths,
        "pass_rate": pass_rate,
        "drift": drift,
    }


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "law": {"kind": "affine", "a_s": 0.01, "b_s": 1e-4, "c_s": 1e-7, "prefill_s": 1e-4},
        "replicas": draw(st.sampled_from([1, 2, 3])),
        "slots": draw(st.sampled_from([1, 3, 64])),
        "kv_capacity_tokens": draw(st.sampled_from([None, CAP + PROMPT, 2 * CAP + 30])),
        "token_budget": draw(st.sampled_from([None, 64])),
        "prefill": draw(st.booleans()),
        "prefix_cache": draw(st.booleans()),
        "max_groups_in_flight": draw(st.sampled_from([None, 1, 2])),
        "dispatch": draw(
            st.sampled_from(["chunks", "round_robin", "least_loaded", "sticky", "shared"])
        ),
        "dispatch_by": draw(st.sampled_from(["group", "response"])),
        "lockstep": draw(st.booleans()),
        "call_overhead_s": draw(st.sampled_from([0.0, 0.03])),
        "poll_s": draw(st.sampled_from([0.0, 0.04, 0.1])),
        "gpus_per_replica": draw(st.sampled_from([1, 2])),
    }


@st.composite
def scenarios(draw: st.DrawFn, kind: str | None = None) -> Scenario:
    size = draw(st.sampled_from([1, 2, 4]))
    rollout = {
        "groups_per_step": draw(st.sampled_from([1, 2, 4])),
        "group_size": size,
        "singletons": "keep",
        "cap_tokens": CAP,
        "overlong": draw(st.sampled_from([None, {"buffer_tokens": 20}])),
        "filter_metric": draw(st.sampled_from(["correct", "shaped"])),
    }
    return build(
        {
            "workload": draw(workloads()),
            "rollout": rollout,
            "collector": draw(collectors(kind)),
            "hardware": draw(engines()),
            "learner": LEARNER,
            "run": {"steps": draw(st.sampled_from([1, 4]))},
        }
    )


def run_or_none(scenario: Scenario, **options: Any) -> SimRun | None:
    """Simulate; None where an epoch is too short for a batch, an error that names the setting."""
    try:
        return simulate(scenario, seed=3, record_steps=99, **options)
    except ConfigError as error:
        if "drop_last" not in str(error):
            raise
        return None


def total(steps: pd.DataFrame, *names: str) -> np.ndarray:
    return np.sum([steps[name].to_numpy() for name in names], axis=0)


def known(steps: pd.DataFrame, name: str) -> np.ndarray:
    """Return a metric that some policies do not have, 0 where it is absent."""
    return steps[name].fillna(0).to_numpy()


FATES = ("trained", "degenerate", "surplus", "aborted", "stale")


@given(scenarios())
def test_groups_and_tokens_are_conserved(scenario: Scenario) -> None:
    """Tokens of a step and those carried into it are trained, lost or carried on; so are groups."""
    run = run_or_none(scenario)
    if run is None or len(run.groups) == 0:
        return
    steps, groups, responses = run.steps, run.groups, run.responses
    parts = ("train_completion", "degenerate", "surplus", "aborted")
    gone = total(steps, *(f"rollout/{part}_tokens" for part in parts))
    gone = gone + known(steps, "staleness/dropped_tokens")
    carried = known(steps, "rollout/carried_tokens")
    made = steps["rollout/completion_tokens"].to_numpy()
    np.testing.assert_array_equal(made + np.append(0, carried)[:-1], gone + carried)
    by_step = groups.groupby("step")["generated_tokens"].sum().reindex(steps["step"], fill_value=0)
    np.testing.assert_array_equal(by_step, gone)
    by_step = responses.groupby("step")["generated_tokens"].sum()
    np.testing.assert_array_equal(by_step.reindex(steps["step"], fill_value=0), made)
    ended = groups.groupby("step").size().reindex(steps["step"], fill_value=0)
    np.testing.assert_array_equal(ended, steps["rollout/candidate_groups"])
    submitted = ended.to_numpy() + np.diff(known(steps, "rollout/carried_groups"), prepend=0)
    assert (submitted >= 0).all()
    assert set(groups["status"]) <= set(FATES)
    for status, column in (
        ("degenerate", "rollout/degenerate_groups"),
        ("surplus", "rollout/surplus_groups"),
        ("aborted", "rollout/aborted_groups"),
        ("stale", "staleness/dropped_groups"),
    ):
        rows = groups[groups["status"] == status].groupby("step").size()
        counted = rows.reindex(steps["step"], fill_value=0)
        np.testing.assert_array_equal(counted, known(steps, column), err_msg=column)
    assert (steps["rollout/effective_groups"] <= scenario.rollout.groups_per_step + 1e-9).all()
    _check_lengths_and_places(scenario, run)


def _check_lengths_and_places(scenario: Scenario, run: SimRun) -> None:
    groups, collector = run.groups, scenario.collector
    size = scenario.rollout.group_size
    restarts = collector.kind == "tail_batching"
    remembers = run.steps["rollout/carried_groups"].notna().any()
    done = groups[groups["status"] != "aborted"]
    if getattr(collector, "response_eta", 1.0) > 1:
        full = np.rint(done["n_tokens_mean"] * size)
        assert (full <= done["generated_tokens"]).all()
    elif collector.kind == "screening":
        assert (done["n_tokens_max"] <= done["generated_tokens"]).all()
    else:
        full = np.rint(done["n_tokens_mean"] * size)
        np.testing.assert_array_equal(full, done["generated_tokens"])
        if not remembers and not restarts:
            assert len(run.responses) == len(groups) * size
    if restarts:
        assert (groups["position"].value_counts() <= 2).all()
        assert not groups[groups["status"] == "trained"]["position"].duplicated().any()
    else:
        assert groups["position"].is_unique
        assert groups["position"].is_monotonic_increasing or remembers


@given(scenarios())
def test_time_is_split_without_a_rest_and_steps_follow_each_other(scenario: Scenario) -> None:
    run = run_or_none(scenario)
    if run is None:
        return
    steps = run.steps
    parts = [f"time/{part}_seconds" for part in ("overhead", "prefill", "decode", "tail")]
    rollout = steps["time/rollout_seconds"].to_numpy()
    np.testing.assert_allclose(total(steps, *parts), rollout, atol=1e-9)
    learner = [f"time/{part}_seconds" for part in LEARNER_PARTS]
    whole = total(steps, "time/rollout_seconds", *learner)
    np.testing.assert_allclose(whole, steps["time/step_seconds"], atol=1e-9)
    assert (steps[[*parts, *learner]].to_numpy() >= -1e-12).all()
    n_gpus = scenario.hardware.replicas * scenario.hardware.gpus_per_replica
    np.testing.assert_allclose(steps["time/gpu_seconds"], whole * n_gpus)
    ends = steps["start_s"].to_numpy() + steps["time/step_seconds"].to_numpy()
    np.testing.assert_allclose(steps["start_s"].to_numpy()[1:], ends[:-1], atol=1e-9)
    budget_s = scenario.collector.budget.seconds
    if budget_s is not None:
        # the deadline acts at the next boundary: one iteration, prefills of all slots included
        assert (rollout <= budget_s + 0.1).all()


@given(scenarios())
def test_shares_times_and_memory_stay_in_their_ranges(scenario: Scenario) -> None:
    run = run_or_none(scenario)
    if run is None:
        return
    steps, groups, waves, responses = run.steps, run.groups, run.waves, run.responses
    shares = [name for name in steps if name.endswith("_share") or name.startswith("bias/pass")]
    shares += ["rollout/effective_fill_ratio", "rollout/effective_group_ratio", "reward/accuracy"]
    values = steps[shares].to_numpy()
    assert ((values >= 0) & (values <= 1 + 1e-12) | np.isnan(values)).all()
    capacity = scenario.hardware.kv_capacity_tokens
    if capacity is not None:
        assert (steps["engine/peak_kv_tokens"] <= capacity).all()
    assert (groups["end_s"] >= groups["submit_s"]).all()
    assert (responses["end_s"] >= responses["submit_s"]).all()
    admitted = responses[responses["admit_s"].notna()]
    assert (admitted["admit_s"] >= admitted["submit_s"]).all()
    assert (admitted["end_s"] >= admitted["admit_s"]).all()
    barrier = scenario.collector.kind not in BARRIER_FREE
    assert barrier or len(waves) == 0
    if barrier and len(waves):
        times = waves[["t50_s", "t90_s", "t95_s", "t99_s", "wave_s"]].to_numpy()
        assert (np.diff(times, axis=1) >= -1e-9).all()
        assert (times >= -1e-9).all()
        assert waves["idle_slot_share"].between(0, 1).all()
        assert (np.diff(waves["start_s"]) > 0).all()
        assert (waves["end_s"].to_numpy()[:-1] <= waves["start_s"].to_numpy()[1:] + 1e-9).all()
    assert (groups["wave"].notna() == barrier).all()


SOMETIMES_ABSENT = {
    "rollout/unbiased_effective_ratio",
    "reward/trained_accuracy",
    "bias/length_trained",
    "bias/length_effective",
    "bias/pass_rate_trained",
    "bias/pass_rate_effective",
    "bias/length_ratio_policy",
    "bias/length_ratio_total",
}
BARRIER_ONLY = {"rollout/waves", "rollout/wave_seconds"}
BARRIER_ONLY |= {f"rollout/t{percent}_s" for percent in (50, 90, 95, 99)}
OTHERS_ONLY = {"rollout/carried_groups", "rollout/carried_tokens", "train/repeated_groups"}
OTHERS_ONLY |= {f"rollout/failed_{what}" for what in ("groups", "samplings", "tokens")}
OTHERS_ONLY |= {"rollout/skipped_prompts", "rollout/timed_out_responses"}
OTHERS_ONLY |= {"time/reward_wait_seconds", "time/tool_wait_seconds"}
"""Of policies with a memory, or that copy groups; of scenarios with a selection of prompts, scores
that take time, tools or failures; so are ages and what is left of a pipeline."""
NEEDS_A_FINISHED_GROUP = {
    "rollout/mean_completion_tokens",
    "rollout/max_completion_tokens",
    "rollout/truncated_share",
    "rollout/all_right_share",
    "rollout/all_wrong_share",
    "rollout/mixed_share",
    "reward/accuracy",
    "reward/length_penalty_mean",
    "reward/shaped_mean",
}


@given(scenarios())
def test_metrics_are_absent_only_where_they_have_no_meaning(scenario: Scenario) -> None:
    run = run_or_none(scenario)
    if run is None:
        return
    # what is carried over may be all that a step trains, and it may decide no group's fate at all
    active = (run.steps["rollout/candidate_groups"] > 0) & (run.steps["rollout/waves"] != 0)
    steps = run.steps[active & (run.steps["rollout/completion_tokens"] > 0)]
    barrier = scenario.collector.kind not in BARRIER_FREE
    for name in set(steps) - SOMETIMES_ABSENT - OTHERS_ONLY:
        if name.startswith(("staleness/", "pipeline/")) or name == "bias/length_dropped":
            continue
        present = steps[name].notna()
        if name in BARRIER_ONLY:
            assert (present == barrier).all(), name
        elif name in NEEDS_A_FINISHED_GROUP:
            returned = steps["rollout/aborted_groups"] < steps["rollout/candidate_groups"]
            np.testing.assert_array_equal(present, returned, err_msg=name)
        elif name == "rollout/token_utilisation":
            np.testing.assert_array_equal(present, steps["rollout/completion_tokens"] > 0)
        else:
            assert present.all(), name
    trained = steps["rollout/effective_groups"] > 0
    for name in ("reward/trained_accuracy", "bias/length_trained", "bias/pass_rate_trained"):
        np.testing.assert_array_equal(steps[name].notna(), trained, err_msg=name)


def as_bytes(run: SimRun) -> list[bytes]:
    tables = (run.steps, run.groups, run.waves, run.responses)
    return [table.to_csv(float_format="%.17g").encode() for table in tables]


@given(scenarios(), st.integers(0, 3))
def test_the_same_seed_gives_the_same_bytes(scenario: Scenario, replication: int) -> None:
    one = run_or_none(scenario, replication=replication)
    two = run_or_none(scenario, replication=replication)
    if one is None or two is None:
        return
    assert as_bytes(one) == as_bytes(two)
    assert one.ended == two.ended


@settings(max_examples=25)
@given(scenarios(), st.data())
def test_batches_of_the_books_do_not_show(scenario: Scenario, data: st.DataObject) -> None:
    whole = run_or_none(scenario)
    n_responses = data.draw(st.sampled_from([1, 17]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dapolab.sim.account._BATCH_RESPONSES", n_responses)
        cut = run_or_none(scenario)
    if whole is None or cut is None:
        return
    for one, other in zip(
        (whole.steps, whole.groups, whole.waves, whole.responses),
        (cut.steps, cut.groups, cut.waves, cut.responses),
        strict=True,
    ):
        pd.testing.assert_frame_equal(one, other, rtol=1e-12)


@settings(max_examples=20)
@given(scenarios(), st.permutations(COLLECTOR_KINDS))
def test_policies_see_the_same_draws_in_any_order(scenario: Scenario, kinds: list[str]) -> None:
    drifting = scenario.workload.drift.logit_per_step != 0  # type: ignore[union-attr]
    known: dict[int, tuple[float, ...]] = {}
    for kind in kinds:
        if kind in ("screening", "tail_batching"):  # a row speaks of some of a prompt's responses
            continue
        collector = {"kind": kind}
        if kind in GUARDED:
            collector |= {"max_candidates": 12}
        other = build(scenario.model_dump() | {"collector": collector})
        run = run_or_none(other)
        if run is None:
            continue
        begun = run.groups["begun_step"].fillna(run.groups["step"])
        groups = run.groups if not drifting else run.groups[begun == 0]
        columns = ["pass_rate", "n_correct", "n_tokens_mean", "n_tokens_max"]
        for row in groups[["position", *columns]].itertuples(index=False):
            position, *draws = row
            assert known.setdefault(position, tuple(draws)) == tuple(draws)


@settings(max_examples=15)
@given(scenarios(), st.permutations(("none", "exact_refill", "streaming")))
def test_the_order_of_policies_changes_nothing(scenario: Scenario, kinds: list[str]) -> None:
    prompts = {"count": 50, "tokens_median": PROMPT}
    scenario = build(
        scenario.model_dump()
        | {"run": {"steps": 2, "replications": 2}}
        | {"workload": {"kind": "joint", "median_tokens": 15.0, "prompts": prompts}}
    )
    policies: dict[str, Collector] = {
        "none": NoFilter(),
        "exact_refill": ExactRefill(),
        "streaming": Streaming(max_candidates=12),
    }
    forward = run_policies(scenario, policies, seed=5, n_jobs=1)
    permuted = run_policies(scenario, {kind: policies[kind] for kind in kinds}, seed=5, n_jobs=1)
    assert forward.keys() == permuted.keys()
    for key, run in forward.items():
        assert as_bytes(run) == as_bytes(permuted[key])


NEEDS_MIXED = {
    "rounds": "no full batch in max_num_gen_batches=10",
    "adaptive_wave": "no full batch in max_num_gen_batches=10",
    "replace": "never more than 30% good groups in max_sample_batches=30",
    "screening": "fewer than 2 prompts qualified in 100 waves",
}


@pytest.mark.parametrize("kind", COLLECTOR_KINDS)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("epochs", [None, 1])
def test_no_run_hangs(kind: str, p: float, epochs: int | None) -> None:
    """All right, all wrong, or out of data: the run ends and says how."""
    scenario = build(
        {
            "workload": {
                "kind": "independent",
                "prompts": {"count": 9, "epochs": epochs},
                "lengths": {"kind": "geometric", "mean_tokens": 10.0},
                "pass_rate": {"kind": "fixed", "p": p},
            },
            "rollout": {"groups_per_step": 2, "group_size": 4, "cap_tokens": CAP},
            "collector": {"kind": kind} | ({"max_candidates": 50} if kind in GUARDED else {}),
            "hardware": {"law": {"kind": "affine"}},
            "run": {"steps": 30},
        }
    )
    run = simulate(scenario, seed=1)
    if epochs == 1:
        assert run.ended == "data exhausted"
        assert run.n_prompts_used == 9
    elif p in (0.0, 1.0) and kind in (*GUARDED, *NEEDS_MIXED):
        assert run.ended.startswith(f"failed: {NEEDS_MIXED.get(kind, 'no full batch in')}")
        assert "kept 0 of 2 groups" in run.ended
        assert len(run.steps) == 0
    else:
        assert run.ended == "completed"
        assert len(run.steps) == 30
