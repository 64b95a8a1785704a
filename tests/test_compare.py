"""Comparison, estimates and forecast against tables and figures worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dapolab.compare import (
    Comparison,
    compare,
    document,
    forecast,
    planned_steps,
    select_collectors,
)
from dapolab.compare.estimates import (
    HEADLINES,
    RANKED,
    best_of,
    estimates_of,
    ratios_of,
    totals_of,
    unranked,
    waves_distribution,
)
from dapolab.metrics import BY_NAME, STEP_METRICS
from dapolab.scenario import (
    Budget,
    Collector,
    ConfigError,
    ExactRefill,
    FilterNoRefill,
    JointWorkload,
    NoFilter,
    Rounds,
    Scenario,
    build,
)
from tests.listed_stream import ListedStream


def scenario(**tables: Any) -> Scenario:
    known: dict[str, Any] = {
        "workload": {
            "kind": "independent",
            "lengths": {"kind": "geometric", "mean_tokens": 30.0},
            "pass_rate": {"kind": "p_mixed", "p_mixed": 0.5},
        },
        "rollout": {"groups_per_step": 3, "group_size": 4, "cap_tokens": 200},
        "hardware": {"law": {"kind": "affine", "a_s": 0.01, "b_s": 1e-4, "c_s": 0.0}},
        "run": {"steps": 4, "replications": 6},
    }
    return build({name: known.get(name, {}) | table for name, table in (known | tables).items()})


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    names = ["policy", "replication", "step", "ended_by", *(metric.name for metric in STEP_METRICS)]
    return pd.DataFrame(rows).reindex(columns=names)


def row(policy: str, replication: int, step: int, **values: float) -> dict[str, Any]:
    short = {
        "seconds": "time/step_seconds",
        "gpu_seconds": "time/gpu_seconds",
        "groups": "train/mixed_groups",
        "tokens": "rollout/completion_tokens",
        "trained": "rollout/train_completion_tokens",
        "tail": "time/tail_seconds",
        "waves": "rollout/waves",
        "kept": "rollout/effective_groups",
        "mixed": "rollout/mixed_candidate_groups",
        "length": "bias/length_trained",
        "all_length": "bias/length_effective",
    }
    found: dict[str, Any] = {"policy": policy, "replication": replication, "step": step}
    return found | {"ended_by": "full"} | {short[name]: value for name, value in values.items()}


def endings(policy: str, *n_steps: int, failed: int = 0) -> pd.DataFrame:
    states = ["failed: x"] * failed + ["completed"] * (len(n_steps) - failed)
    return pd.DataFrame(
        {
            "policy": policy,
            "replication": range(len(n_steps)),
            "ended": states,
            "n_steps": n_steps,
            "failed": [state != "completed" for state in states],
        }
    )


# ------------------------------------------------------------------------------ estimates


def test_cost_is_a_ratio_of_totals_not_a_mean_of_ratios() -> None:
    steps = table(
        [
            row("a", 0, 0, seconds=10, groups=4),
            row("a", 0, 1, seconds=30, groups=1),
            row("a", 1, 0, seconds=20, groups=5),
            row("a", 1, 1, seconds=20, groups=0),
        ]
    )
    totals = totals_of(steps, ["a"], 2)
    assert totals["a"]["time/step_seconds"].tolist() == [40, 40]
    assert totals["a"]["train/mixed_groups"].tolist() == [5, 5]
    found = estimates_of(steps, endings("a", 2, 2), totals, "a")
    assert found[RANKED].mean == 80 / 10
    mean_of_ratios = (10 / 4 + 30 / 1 + 20 / 5) / 3
    assert abs(found[RANKED].mean - mean_of_ratios) > 4
    assert found["train/mixed_groups"].mean == 2.5
    assert found["run/steps"].mean == 2
    assert found["run/p_fails"].mean == 0


def test_lengths_are_means_over_groups_not_over_steps() -> None:
    """A step that trains one group counts a fourth of one that trains four; a skipped one not."""
    rows = [row("a", r, 0, kept=4, length=100.0, mixed=4, all_length=100.0) for r in range(2)]
    rows += [row("a", r, 1, kept=1, length=200.0, mixed=2, all_length=500.0) for r in range(2)]
    rows += [row("a", r, 2, kept=0, mixed=2, all_length=300.0) for r in range(2)]
    steps = table(rows)
    totals = totals_of(steps, ["a"], 2)
    trained, effective = (4 * 100 + 200) / 5, (4 * 100 + 2 * 500 + 2 * 300) / 8
    found = estimates_of(steps, endings("a", 3, 3), totals, "a")
    assert found["bias/trained_length"].mean == pytest.approx(trained / effective)


def test_ratios_pair_replications() -> None:
    """b costs 1.2 times what a costs in every replication, whatever the replication costs."""
    rng = np.random.default_rng(1)
    rows = []
    for r, scale in enumerate(rng.lognormal(sigma=1.0, size=8)):
        rows.append(row("a", r, 0, seconds=10 * scale, groups=4))
        rows.append(row("b", r, 0, seconds=12 * scale, groups=4))
    totals = totals_of(table(rows), ["a", "b"], 8)
    ratio = ratios_of(totals, "b", ["a", "b"])[RANKED]
    assert ratio.mean == pytest.approx(1.2)
    assert ratio.low == pytest.approx(1.2)
    assert ratio.high == pytest.approx(1.2)
    assert best_of(totals, ["a", "b"])[RANKED] == ("a",)


def test_intervals_widen_with_the_number_of_policies() -> None:
    rng = np.random.default_rng(2)
    names = ["a", "b", "c", "d"]
    rows = [
        row(name, r, 0, seconds=rng.lognormal(sigma=0.1), groups=1)
        for name in names
        for r in range(9)
    ]
    totals = totals_of(table(rows), names, 9)
    alone, among = (ratios_of(totals, "b", names[:k])[RANKED] for k in (2, 4))
    assert alone.mean == among.mean
    assert among.low is not None
    assert alone.low is not None
    assert among.low < alone.low


def test_policies_that_cannot_be_ranked_are_named_with_the_reason() -> None:
    rows = [row("a", r, 0, seconds=1, groups=2) for r in range(3)]
    rows += [row("idle", r, 0, seconds=1, groups=0) for r in range(3)]
    rows += [row("dies", r, 0, seconds=1, groups=2) for r in range(2)]
    rows += [row("once", r, 0, seconds=1, groups=float(r == 0)) for r in range(3)]
    names = ["a", "idle", "dies", "once"]
    totals = totals_of(table(rows), names, 3)
    assert unranked(totals, names) == {
        "idle": "it trained no group that carries signal",
        "dies": "1 of 3 replications completed no step",
        "once": "only one replication trained a group that carries signal",
    }
    assert best_of(totals, names)[RANKED] == ("a",)
    for name in names[1:]:
        assert RANKED not in ratios_of(totals, name, names)


def test_waves_distribution_counts_steps() -> None:
    rows = [row("a", r, 0, waves=w) for r, w in enumerate([1, 2, 2, 5])] + [row("b", 0, 0)]
    found = waves_distribution(table(rows), ["a", "b"])
    assert found == {"a": ((1, 2, 5), (0.25, 0.5, 0.25))}


# ------------------------------------------------------------------------------ comparisons


@pytest.fixture(scope="module")
def compared() -> Comparison:
    policies: dict[str, Collector] = {
        "refill": ExactRefill(),
        "again": ExactRefill(),
        "rounds": Rounds(gen_groups=3, max_num_gen_batches=2),
        "late": FilterNoRefill(budget=Budget(seconds=0.005)),
        "cut": ExactRefill(budget=Budget(candidate_tokens=1)),
    }
    return compare(scenario(), policies, seed=4, n_jobs=1)


def test_a_policy_under_two_names_is_never_separated(compared: Comparison) -> None:
    for headline, ratio in compared.ratios["again"].items():
        assert (ratio.mean, ratio.low, ratio.high) == (1.0, 1.0, 1.0), headline
    for headline, names in compared.best.items():
        assert ("again" in names) == ("refill" in names), headline
    assert {n: e.mean for n, e in compared.estimates["again"].items()} == {
        n: e.mean for n, e in compared.estimates["refill"].items()
    }


def test_a_policy_that_fails_is_reported_with_its_probability(compared: Comparison) -> None:
    mine = compared.endings[compared.endings["policy"] == "rounds"]
    assert 0 < mine["failed"].sum() <= 6  # P(Bin(6, ½) < 3) = 34 % a step
    assert compared.estimates["rounds"]["run/p_fails"].mean == mine["failed"].mean()
    notes = [note for note in compared.notes if note.startswith("rounds: ")]
    n_failed, n_steps = int(mine["failed"].sum()), mine.loc[mine["failed"], "n_steps"].mean()
    expected = f"rounds: {n_failed} of 6 replications ended after {n_steps:.1f} steps on average: "
    assert notes[0].startswith(expected + "failed: no full batch in max_num_gen_batches=2: kept ")
    assert sum("failed" in note for note in notes) == 1


def test_a_policy_that_trains_nothing_is_not_ranked(compared: Comparison) -> None:
    assert "late: not ranked, it trained no group that carries signal" in compared.notes
    assert RANKED not in compared.ratios["late"]
    assert "late" not in compared.best[RANKED]
    assert compared.estimates["late"]["run/ended_by_seconds"].mean == 1.0
    assert compared.estimates["late"]["train/update_skipped"].mean == 1.0


def test_the_limit_that_ended_steps_is_a_metric(compared: Comparison) -> None:
    rows = compared.steps[compared.steps["policy"] == "cut"]
    share = (rows["ended_by"] == "candidate_tokens").mean()
    assert 0 < share < 1
    assert compared.estimates["cut"]["run/ended_by_candidate_tokens"].mean == pytest.approx(share)
    assert "run/ended_by_candidate_tokens" not in compared.estimates["late"]


def test_nothing_trained_anywhere_is_an_error() -> None:
    workload = {"pass_rate": {"kind": "fixed", "p": 0.0}}
    known = scenario().workload.model_dump() | workload
    settings = scenario(workload=known)
    with pytest.raises(ConfigError, match=r"100\.0% were all wrong and 0\.0% all right"):
        compare(settings, {"refill": ExactRefill()}, seed=1, n_jobs=1)
    endless = ExactRefill(max_candidate_multiplier=None, max_waves=20)
    with pytest.raises(ConfigError, match="kept 0 of 3 groups from 60 candidates"):
        compare(settings, {"refill": endless}, seed=1, n_jobs=1)


def test_document_is_the_contract(compared: Comparison) -> None:
    body = document(compared)
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    keys = {"scenario", "policies", "waves_distribution", "baseline", "ratios", "best", "notes"}
    assert set(body) == keys
    assert body["baseline"] == "refill"
    assert set(body["policies"]) == set(compared.policies)  # type: ignore[call-overload]
    assert set(body["ratios"]) == set(compared.policies[1:])  # type: ignore[call-overload]
    known = set(BY_NAME) | set(HEADLINES)
    for group in ("policies", "ratios"):
        for metrics in body[group].values():  # type: ignore[attr-defined]
            for name, metric in metrics.items():
                assert set(metric) == {"mean", "low", "high", "n", "unit"}
                assert name in known or name.startswith("run/")
                assert metric["low"] is None or metric["low"] <= metric["mean"] <= metric["high"]
    waves = body["waves_distribution"]["refill"]  # type: ignore[index]
    assert sum(waves["shares"]) == pytest.approx(1)
    assert len(waves["waves"]) == len(waves["shares"])


def test_workers_change_no_bit() -> None:
    settings = scenario(run={"steps": 3, "replications": 6})
    policies: dict[str, Collector] = {"none": NoFilter(), "refill": ExactRefill()}
    serial = compare(settings, policies, seed=9, n_jobs=1)
    ticks: list[int] = []
    parallel = compare(settings, policies, seed=9, n_jobs=2, on_done=lambda: ticks.append(1))
    assert len(ticks) == 12
    assert document(serial) == document(parallel)
    for name in ("steps", "groups", "waves", "responses", "endings"):
        one, two = getattr(serial, name), getattr(parallel, name)
        assert one.to_csv(float_format="%.17g") == two.to_csv(float_format="%.17g")


@pytest.mark.parametrize("names", [None, "all", "exact_refill,none"])
def test_an_alternative_never_takes_the_place_of_the_own_policy(names: str | None) -> None:
    own = {"kind": "exact_refill", "max_candidate_multiplier": 3}
    other = {"kind": "exact_refill", "max_candidate_multiplier": 5}
    settings = build({"collector": own, "alternatives": {"exact_refill": other}})
    with pytest.raises(ConfigError, match=r"\[alternatives.exact_refill\] has the name"):
        select_collectors(settings, names)
    same = build({"collector": own, "alternatives": {"exact_refill": own}})
    assert select_collectors(same, names)["exact_refill"] == settings.collector


def test_kinds_by_name_have_the_scenarios_budget_and_alternatives_their_own() -> None:
    budget = {"candidate_tokens": 500}
    settings = build(
        {
            "collector": {"kind": "exact_refill", "budget": budget},
            "alternatives": {"free": {"kind": "rounds"}},
        }
    )
    chosen = select_collectors(settings, "rounds,streaming,free")
    budgets = {name: collector.budget.candidate_tokens for name, collector in chosen.items()}
    assert budgets == {"exact_refill": 500, "rounds": 500, "streaming": 500, "free": None}


def test_intervals_without_the_fits_uncertainty_say_so() -> None:
    law = JointWorkload(draws="w.draws.csv", median_tokens=30.0)
    fitted = scenario().model_copy(update={"workload": law})
    policies = {"none": NoFilter()}
    alone = compare(fitted, policies, seed=0, n_jobs=1)
    assert any("the fit's own uncertainty" in note for note in alone.notes)
    drawn = compare(fitted, policies, seed=0, n_jobs=1, scenario_of=lambda _: fitted)
    assert not any("the fit's own uncertainty" in note for note in drawn.notes)


def test_a_budget_that_nothing_survives_is_said_as_such() -> None:
    settings = scenario(
        collector={"kind": "exact_refill", "budget": {"seconds": 0.5}},
        workload={"lengths": {"kind": "constant", "tokens": 100}},
    )  # 100 tokens take more than a second
    with pytest.raises(ConfigError, match=r"none of \d+ candidate groups returned .*\(seconds\)"):
        compare(settings, {"exact_refill": settings.collector}, seed=0, n_jobs=1)


# ------------------------------------------------------------------------------ forecast


def test_forecast_of_a_run_that_the_data_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case B42: 10 steps planned, 3 done, the LR schedule at 30 %."""
    stream = ListedStream([[2, 3]] * 960, ([1] * 12 + [0] * 84) * 10, epochs=1)
    monkeypatch.setattr("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream)
    settings = build(
        {
            "workload": {"kind": "independent", "prompts": {"count": 960, "epochs": 1}},
            "rollout": {"groups_per_step": 32, "group_size": 2, "cap_tokens": 100},
            "collector": {"kind": "rounds", "gen_groups": 96},
            "hardware": {
                "law": {"kind": "affine", "a_s": 60.0, "b_s": 0.0, "c_s": 0.0},
                "prefill": False,
                "gpus_per_replica": 4,
            },
            "learner": {"fixed_s": 180.0},
            "run": {"steps": 100, "replications": 2, "usd_per_gpu_hour": 2.5},
        }
    )
    done = compare(settings, {"rounds": settings.collector}, seed=0, n_jobs=1)
    assert planned_steps(done, "rounds") == 10
    ahead = forecast(done, "rounds")
    means = {name: estimate.mean for name, estimate in ahead.quantities.items()}
    assert ahead.n_planned_steps == 10
    assert means["run/steps"] == 3
    assert means["run/lr_schedule_share"] == pytest.approx(0.30)
    # 10 waves of 3 minutes, the last one for nothing, and 3 minutes of learning a step
    assert means["run/hours"] == pytest.approx((10 * 3 + 3 * 3) / 60)
    assert means["run/gpu_hours"] == pytest.approx(4 * 39 / 60)
    assert means["run/usd"] == pytest.approx(2.5 * 4 * 39 / 60)
    assert ahead.ended == {"data exhausted": 2}
    # the tenth wave of one minute a token, longest 3 tokens, is paid and trains nothing
    assert "the step that was lost then, 180 s on average" in done.notes[-1]
    assert "30%" in ahead.sentence()
    json.dumps(ahead.to_json(), allow_nan=False)


def planned(collector: dict[str, object], **prompts: object) -> int | None:
    settings = build(
        {
            "workload": {"kind": "independent", "prompts": {"count": 10, **prompts}},
            "rollout": {"groups_per_step": 4, "group_size": 2, "cap_tokens": 100},
            "collector": collector,
            "hardware": {"law": {"kind": "affine", "a_s": 1.0, "b_s": 0.0, "c_s": 0.0}},
            "run": {"steps": 100, "replications": 2},
        }
    )
    kind = settings.collector.kind
    ahead = forecast(compare(settings, {kind: settings.collector}, seed=0, n_jobs=1), kind)
    assert "run/lr_schedule_share" in ahead.quantities
    if kind == "none":
        assert ahead.quantities["run/steps"].mean == ahead.n_planned_steps
    return ahead.n_planned_steps


def test_planned_steps_follow_the_walk_through_the_data() -> None:
    """10 prompts in batches of 4, 3 epochs: 2 a epoch with drop_last, else 30/4 and a rest."""
    assert planned({"kind": "none"}, epochs=3, drop_last=True) == 6
    assert planned({"kind": "none"}, epochs=3) == 8
    assert planned({"kind": "rounds", "gen_groups": 8, "at_max": "stop"}, epochs=3) == 4


def test_a_replay_plans_the_prompts_of_its_file(tmp_path: Path) -> None:
    rows = [f"p{i},{100 + i},{k}" for i in range(12) for k in (0, 1)]
    file = tmp_path / "r.csv"
    file.write_text("\n".join(["prompt_id,n_tokens,correct", *rows]) + "\n")
    settings = build(
        {
            "workload": {"kind": "replay", "file": str(file), "prompts": {"epochs": 2}},
            "rollout": {"groups_per_step": 4, "group_size": 2, "cap_tokens": 200},
            "collector": {"kind": "none"},
            "hardware": {"law": {"kind": "affine", "a_s": 1.0, "b_s": 0.0, "c_s": 0.0}},
            "run": {"steps": 100, "replications": 2},
        }
    )
    ahead = forecast(compare(settings, {"none": settings.collector}, seed=0, n_jobs=1), "none")
    assert ahead.n_planned_steps == 2 * 12 // 4
    assert ahead.quantities["run/lr_schedule_share"].mean == 1


def test_endless_data_have_no_schedule() -> None:
    settings = scenario()
    done = compare(settings, {"none": NoFilter()}, seed=0, n_jobs=1)
    ahead = forecast(done, "none")
    assert planned_steps(done, "none") is None
    assert "run/lr_schedule_share" not in ahead.quantities
    assert "run/usd" not in ahead.quantities
    assert ahead.quantities["run/steps"].mean == settings.run.steps
