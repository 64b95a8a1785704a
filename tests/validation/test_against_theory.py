"""``check_against_theory``: policies agree where assumptions hold, a twin 5 % off does not."""

import json
from typing import Any

import pytest

from dapolab.compare import Comparison, compare
from dapolab.compare.against_theory import AgainstTheory, check_against_theory, document
from dapolab.compare.quantities import quantities_of
from dapolab.scenario import Scenario, build

KEPT_ACCURACY = "reward/trained_accuracy"
SHARES = {"rollout/mixed_share", "rollout/all_right_share", "rollout/all_wrong_share"}


def scenario(collector: dict[str, Any], **tables: dict[str, Any]) -> Scenario:
    known: dict[str, dict[str, Any]] = {
        "workload": {
            "kind": "independent",
            "prompts": {"count": 30_000},
            "lengths": {"kind": "lognormal", "median_tokens": 60.0, "sigma": 0.9},
            "pass_rate": {"kind": "p_mixed", "p_mixed": 0.5},
        },
        "rollout": {"groups_per_step": 4, "group_size": 8, "cap_tokens": 400},
        "hardware": {
            "law": {"kind": "affine", "a_s": 0.01, "b_s": 1e-4, "c_s": 0.0},
            "prefill": False,
            "call_overhead_s": 0.5,
        },
        "run": {"steps": 100, "replications": 20},
    }
    merged = {name: known.get(name, {}) | tables.get(name, {}) for name in known | tables}
    return build(merged | {"collector": collector})


def checked(settings: Scenario, seed: int = 12) -> AgainstTheory:
    done = compare(settings, {settings.collector.kind: settings.collector}, seed=seed, n_jobs=1)
    return check_against_theory(done)


def values(found: AgainstTheory) -> dict[str, float]:
    return {row.name: row.theory for row in found.rows}


CAPPED = {"kind": "exact_refill", "max_candidate_multiplier": 2}
UNCAPPED = {"kind": "exact_refill", "max_candidate_multiplier": None}
POLICIES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "none": ({"kind": "none"}, {"time/rollout_seconds", *SHARES}),
    "filter": ({"kind": "filter_no_refill"}, {"time/rollout_seconds", KEPT_ACCURACY, *SHARES}),
    "capped": (
        CAPPED,
        {"time/rollout_seconds", "P(5 waves)", "P(full)", "token utilisation (totals)"},
    ),
    "uncapped": (UNCAPPED, {"time/rollout_seconds", "rollout/waves", "E[kept/N]"}),
    "rounds": (
        {"kind": "rounds", "gen_groups": 6},
        {"time/rollout_seconds", "rollout/surplus_groups", "candidate utilisation (totals)"},
    ),
    "stopped rounds": (
        {"kind": "rounds", "gen_groups": 6, "max_num_gen_batches": 1, "at_max": "stop"},
        {"time/rollout_seconds", "rollout/surplus_groups", "candidate utilisation (totals)"},
    ),
    "replenish": ({"kind": "replenish"}, {"rollout/candidate_groups", KEPT_ACCURACY}),
    "streaming": ({"kind": "streaming", "slots": 6}, {"rollout/candidate_groups"}),
    "over_provision": ({"kind": "over_provision", "eta": 2.0}, {"P(full)"}),
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_agrees(name: str) -> None:
    collector, expected = POLICIES[name]
    found = checked(scenario(collector))
    assert [row.name for row in found.rows if not row.agrees] == []
    assert expected <= set(values(found))


def test_the_seed_configuration_comes_out() -> None:
    """Theory P1, B = 4, M = 2, q = ½."""
    found = values(checked(scenario(CAPPED, run={"steps": 2, "replications": 2})))
    assert found["rollout/waves"] == pytest.approx(2.75)
    assert found["P(5 waves)"] == pytest.approx(0.03125)
    assert found["P(full)"] == pytest.approx(0.63671875)
    assert found["train/update_skipped"] == pytest.approx(0.00390625)
    assert found["rollout/oversample_ratio"] == pytest.approx(1.7265625)
    assert found["rollout/effective_fill_ratio"] == pytest.approx(0.86328125)
    assert found["E[kept/N]"] == pytest.approx(0.53759300595)


@pytest.mark.parametrize("q", [0.0, 0.02, 0.98, 1.0])
def test_what_a_short_run_cannot_see_does_not_differ(q: float) -> None:
    """P(skip) is 1e-14 at q = .98: a run without one agrees; at q = 0 and 1 everything is sure."""
    workload = {"pass_rate": {"kind": "p_mixed", "p_mixed": q}}
    if q == 1.0:
        workload = {"pass_rate": {"kind": "fixed", "p": 0.5}}
    kind = {"kind": "none"} if q == 0.0 else CAPPED
    size = {"group_size": 40} if q in (0.98, 1.0) else {}
    found = checked(scenario(kind, workload=workload, rollout=size, run={"steps": 10}))
    assert [row.name for row in found.rows if not row.agrees] == []


def test_a_joint_workload_with_cut_answers_agrees() -> None:
    joint = {
        "kind": "joint",
        "median_tokens": 80.0,
        "correlation": -0.7,
        "correct_effect": -0.4,
        "mean_logit": 0.5,
        "loop_share": 0.05,
        "prompts": {"count": 30_000},
    }
    base = scenario(CAPPED)
    for collector in (CAPPED, UNCAPPED, {"kind": "rounds", "gen_groups": 6}):
        settings = build(base.model_dump() | {"workload": joint, "collector": collector})
        found = checked(settings)
        assert [row.name for row in found.rows if not row.agrees] == []
        assert {KEPT_ACCURACY, "time/rollout_seconds"} <= set(values(found))


TWINS = {
    "filter": {"rollout/effective_groups", "rollout/mixed_share"},
    "capped": {"rollout/candidate_groups", "rollout/unbiased_effective_ratio"},
    "uncapped": {"rollout/candidate_groups", "time/rollout_seconds"},
    "rounds": {"candidate utilisation (totals)"},
    "replenish": {"rollout/candidate_groups"},
    "streaming": {"rollout/candidate_groups"},
    "over_provision": {"P(full)"},
}


@pytest.mark.parametrize("name", TWINS)
def test_a_simulation_five_percent_off_differs(name: str) -> None:
    collector, _ = POLICIES[name]
    stated = scenario(collector, run={"steps": 150})
    twin = {"pass_rate": {"kind": "p_mixed", "p_mixed": 0.475}}
    simulated = scenario(collector, workload=twin, run={"steps": 150})
    done = compare(simulated, {simulated.collector.kind: simulated.collector}, seed=3, n_jobs=1)
    found = check_against_theory(with_scenario(done, stated))
    assert TWINS[name] <= {row.name for row in found.rows if not row.agrees}


def with_scenario(done: Comparison, stated: Scenario) -> Comparison:
    fields = {name: getattr(done, name) for name in Comparison.__dataclass_fields__}
    return Comparison(**(fields | {"scenario": stated}))


LEFT_OUT: list[tuple[dict[str, Any], dict[str, dict[str, Any]], str]] = [
    ({**CAPPED, "budget": {"seconds": 9.0}}, {}, "everything: a budget ends steps"),
    (
        CAPPED,
        {"rollout": {"filter_metric": "shaped", "overlong": {"buffer_tokens": 50}}},
        "everything: the filter on shaped reward",
    ),
    (CAPPED, {"workload": {"drift": {"logit_per_step": 0.1}}}, "everything: the workload drifts"),
    (CAPPED, {"workload": {"drift": {"logit_per_visit": 0.1}}}, "everything: the workload drifts"),
    (CAPPED, {"rollout": {"failures": {"probability": 0.1}}}, "everything: responses fail"),
    (CAPPED, {"rollout": {"reward": {"timeout_s": 1.0}}}, "everything: a time limit changes"),
    (CAPPED, {"rollout": {"reward": {"median_s": 1.0}}}, "seconds: scores and calls of tools"),
    (CAPPED, {"rollout": {"tools": {"median_s": 1.0}}}, "seconds: scores and calls of tools"),
    (CAPPED, {"workload": {"prompts": {"count": 300}}}, "everything: 300 prompts come round"),
    (CAPPED, {"rollout": {"group_size": 1, "singletons": "keep"}}, "everything: groups of one"),
    ({**CAPPED, "at_cap": "error"}, {}, "step means: at_cap = error ends runs"),
    (
        {"kind": "rounds", "gen_groups": 4, "max_num_gen_batches": 1},
        {},
        "step means: at_max = error ends runs",
    ),
    (CAPPED, {"hardware": {"prefill": True}}, "seconds: needs --hardware.prefill false"),
    (CAPPED, {"hardware": {"replicas": 2}}, "seconds: needs one replica"),
    (CAPPED, {"hardware": {"slots": 31}}, "seconds: needs a slot for every response"),
    (CAPPED, {"hardware": {"poll_s": 1.0}}, "seconds: needs poll_s = 0"),
    (CAPPED, {"hardware": {"law": {"kind": "preset"}}}, "seconds: needs an affine law"),
    (CAPPED, {"hardware": {"kv_capacity_tokens": 9000}}, "seconds: needs an engine without KV"),
    (
        CAPPED,
        {
            "hardware": {
                "speculation": {
                    "draft_tokens": 2,
                    "acceptance": 0.5,
                    "draft_s": 0.0,
                    "max_batch": 8,
                }
            }
        },
        "seconds: needs an engine that does not speculate",
    ),
    ({**CAPPED, "concurrent_groups": 2}, {}, "seconds: needs collector.concurrent_groups absent"),
    ({"kind": "streaming"}, {}, "seconds: a race of groups"),
    (
        {"kind": "streaming"},
        {"workload": {"p_correct_if_truncated": 0.0}},
        "candidate_groups: lengths depend on correctness",
    ),
    ({"kind": "over_provision", "filter": False}, {}, "P(full): without a filter"),
]


@pytest.mark.parametrize(("collector", "tables", "reason"), LEFT_OUT)
def test_what_is_left_out_says_why(
    collector: dict[str, Any], tables: dict[str, dict[str, Any]], reason: str
) -> None:
    quantities, left_out = quantities_of(scenario(collector, **tables))
    assert any(reason in line for line in left_out), left_out
    if reason.startswith("everything"):
        assert quantities == []


def test_runs_that_end_early_are_not_compared() -> None:
    """The steps before an end are a selection: those that did not end it."""
    collector = {"kind": "rounds", "gen_groups": 4, "max_num_gen_batches": 1, "max_waves": 5}
    found = checked(scenario(collector, run={"steps": 30, "replications": 4}))
    assert found.rows == ()
    assert found.left_out[0].startswith("everything: 4 of 4 replications ended early (failed: ")


def test_document_is_the_contract() -> None:
    found = checked(scenario(CAPPED, run={"steps": 5, "replications": 3}))
    body = document(found)
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    for quantity in body["quantities"].values():  # type: ignore[attr-defined]
        assert set(quantity) == {"theory", "simulator", "agrees"}
        assert set(quantity["simulator"]) == {"mean", "low", "high", "n", "unit"}
