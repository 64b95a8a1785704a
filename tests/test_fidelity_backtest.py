"""Backtest: what one run tells of another, with intervals that hold and twins that do not."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dapolab.cli import main
from dapolab.errors import ConfigError
from dapolab.fidelity.backtest import Backtest, Row, backtest, scenario_of, split_in_time
from dapolab.fidelity.given import given_lengths
from dapolab.fidelity.pairs import M20_DAPO, m20_dapo_scenario, m20_grpo_steps
from dapolab.fidelity.waves import compare_waves, read_waves
from dapolab.logs import LogOptions, read_log
from dapolab.scenario import (
    AffineLaw,
    Hardware,
    JointWorkload,
    Learner,
    NoFilter,
    Rollout,
    Rounds,
    Run,
    Scenario,
)
from dapolab.sim.run import simulate

TRUTH = Scenario(
    workload=JointWorkload(median_tokens=900, sigma=0.7, mean_logit=-0.2, sd_logit=2.2),
    rollout=Rollout(groups_per_step=8, group_size=8, cap_tokens=4096),
    collector=NoFilter(),
    hardware=Hardware(law=AffineLaw(a_s=0.006, b_s=8e-5, c_s=0, prefill_s=0), prefill=False),
    learner=Learner(old_logprob_s_per_token=2e-5, update_s_per_token=1.3e-4, sync_s=4.0),
    run=Run(steps=40, replications=2),
)
FILTERED = TRUTH.model_copy(update={"collector": Rounds(gen_groups=8)})


def _log(scenario: Scenario, seed: int, *, n_steps: int = 40) -> pd.DataFrame:
    run = scenario.run.model_copy(update={"steps": n_steps})
    steps = simulate(scenario.model_copy(update={"run": run}), seed=seed).steps
    n = 64 * steps["rollout/effective_groups"] / 8
    tokens = steps["rollout/train_completion_tokens"] + 150 * n
    return steps.assign(run="a", **{"trained/total_tokens": tokens})


@pytest.fixture(scope="module")
def predicted() -> Backtest:
    return backtest(_log(TRUTH, 1), FILTERED, against=_log(FILTERED, 2), replications=16)


def test_a_prediction_covers_runs_of_the_same_system_and_not_of_a_slower_one(
    predicted: Backtest,
) -> None:
    rows = {row.quantity: row for row in predicted.rows}
    columns = {
        "waves": "rollout/waves",
        "rollout seconds": "time/rollout_seconds",
        "step seconds": "time/step_seconds",
        "update seconds": "time/update_seconds",
        "generated tokens": "rollout/completion_tokens",
    }
    n_runs, inside, twins = 16, dict.fromkeys(columns, 0), dict.fromkeys(columns, 0)
    for seed in range(n_runs):
        log = _log(FILTERED, 50 + seed)
        for name, column in columns.items():
            value = float(log[column].mean())
            inside[name] += rows[name].low <= value <= rows[name].high
            twins[name] += rows[name].low <= 1.35 * value <= rows[name].high
    # 90 % nominal, but one LOG_A stands behind all sixteen: its own luck is in each of them
    assert sum(inside.values()) >= 0.8 * n_runs * len(columns)
    assert sum(twins.values()) <= 0.2 * n_runs * len(columns)


def test_intervals_hold_chance_and_ignorance(predicted: Backtest) -> None:
    for row in predicted.rows:
        assert row.low <= row.predicted <= row.high
        # what LOG_A leaves open can only widen; both are estimated from 16 runs each
        assert row.high - row.low > 0.7 * (row.chance_high - row.chance_low)
    lengths = next(row for row in predicted.rows if row.quantity == "trained length")
    assert lengths.high - lengths.low > 1.1 * (lengths.chance_high - lengths.chance_low)
    share, n = predicted.step_coverage()
    assert n >= 200
    assert 0.75 < share <= 1.0


def test_what_scenario_b_sets_to_zero_stays_zero_and_the_rest_comes_from_the_log(
    predicted: Backtest,
) -> None:
    stated = FILTERED.model_copy(
        update={"learner": Learner(old_logprob_s_per_token=0.0, update_s_per_token=7.0)}
    )
    made = scenario_of(predicted.calibration, stated, n_steps=3, polled_s=2.0)
    assert made.learner.old_logprob_s_per_token == 0.0
    assert made.learner.update_s_per_token == pytest.approx(1.3e-4, rel=1e-6)
    assert made.learner.sync_s == pytest.approx(4.0)
    assert made.hardware.law.a_s == pytest.approx(0.006, rel=1e-4)  # type: ignore[union-attr]
    assert made.hardware.poll_s == 2.0
    assert made.run.steps == 3
    assert made.collector == FILTERED.collector


def test_a_log_without_composition_says_what_is_missing() -> None:
    log = _log(TRUTH, 3).drop(columns=["rollout/all_right_share", "rollout/all_wrong_share"])
    with pytest.raises(ConfigError, match="needs all_right_share"):
        backtest(log, FILTERED, replications=2)


def test_command_predicts_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, scenario in (("a", TRUTH), ("b", FILTERED)):
        log = _log(scenario, 4, n_steps=12)
        drop = [c for c in log if c.startswith("rollout/all_") and name == "a"]
        log.drop(columns=[*drop, "start_s", "ended_by"]).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    (tmp_path / "b.toml").write_text(
        "[rollout]\ngroups_per_step = 8\ngroup_size = 8\ncap_tokens = 4096\n"
        '[collector]\nkind = "rounds"\ngen_groups = 8\n[hardware]\nprefill = false\n'
    )
    words = ["backtest", "--calibrate", str(tmp_path / "a.csv"), "--predict"]
    words += [str(tmp_path / "b.toml"), "--against", str(tmp_path / "b.csv"), "--json"]
    assert main([*words, "--replications", "10"]) == 2
    assert "all_right_share" in capsys.readouterr().err
    assert main([*words, "--shares", ".2,.9"]) == 2
    assert "--shares" in capsys.readouterr().err
    assert main([*words, "--shares", ".2,.25", "--replications", "10"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["quantity"]: row for row in document["rows"]}
    assert {"quantity", "unit", "predicted", "low", "high", "measured", "error_share"} <= set(
        rows["waves"]
    )
    row = rows["step seconds"]
    assert row["error_share"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    assert document["coverage"]["of"] == sum(r["measured"] is not None for r in rows.values())


@pytest.mark.parametrize("columns", [80, 40])
def test_the_text_shows_each_prediction_with_its_interval(
    columns: int,
    predicted: Backtest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (
        Row("waves", "waves", 2.07, 1.95, 2.19, 2.0, 2.1, 2.1, 0.5, 20),
        Row("rollout seconds", "s", 80.0, 70.0, 90.0, 75.0, 85.0, 100.0, 0.8, 20),
        Row("update seconds", "s", 30.0, 20.0, 40.0, 29.0, 31.0),
    )
    known = replace(predicted, rows=rows, n_steps=20, notes=("the filter is new",))
    monkeypatch.setattr("dapolab.fidelity.backtest.backtest", lambda *_, **__: known)
    monkeypatch.setenv("COLUMNS", str(columns))
    (tmp_path / "a.csv").write_text("step,time/step_seconds\n0,1\n1,1\n", encoding="utf-8")
    (tmp_path / "b.toml").write_text('[collector]\nkind = "rounds"\n', encoding="utf-8")
    words = ["backtest", "--calibrate", str(tmp_path / "a.csv")]
    assert main([*words, "--predict", str(tmp_path / "b.toml")]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    said = " ".join(out.split())
    assert said.startswith("calibrated on a.csv, predicting 20 steps of b.toml")
    # 2.07/2.1 − 1 and 80/100 − 1; what was not measured has neither value nor error
    for shown in ("2.07", "[1.95, 2.19]", "2.10", "−1.4%", "−20.0%", "100", "[20, 40]"):
        # a narrow cell wraps between the ends of an interval
        for part in [shown] if columns == 80 else shown.split():
            assert part in said.replace("-", "−"), part
    assert "1 of 2 run means lie in their 90 % intervals." in said
    assert "65% of 40 single-step values lie in theirs." in said  # (.5 + .8)/2
    assert "to know · the filter is new" in said
    lost = [name for name, _ in predicted.calibration.not_identified]
    assert lost
    for name in lost:
        assert f"· {name}: " in said


def test_seconds_given_lengths_recover_a_line_and_notice_another_system() -> None:
    log = _log(TRUTH, 5, n_steps=60)
    rng = np.random.default_rng(0)
    log["time/rollout_seconds"] *= 1 + 0.02 * rng.standard_normal(60)
    first, second = split_in_time(log)
    found = given_lengths(first, second, seconds="time/rollout_seconds", rollout=TRUTH.rollout)
    # mean |error| of 2 % normal noise is 1.6 %
    assert found.error_share < 0.025
    assert found.coverage > 0.9 - 4.5 * np.sqrt(0.9 * 0.1 / 30)
    slower = second.assign(**{"time/rollout_seconds": 1.1 * second["time/rollout_seconds"]})
    twin = given_lengths(first, slower, seconds="time/rollout_seconds", rollout=TRUTH.rollout)
    assert twin.coverage < 0.5


# --------------------------------------------------------------------------- real runs


def test_from_a_grpo_run_the_cost_of_dynamic_sampling(shared_data: Path) -> None:
    log = m20_grpo_steps(shared_data / "verl_grpo_qwen3_8b")
    found = backtest(log, m20_dapo_scenario(), polled_s=2.0, fixed={"c_s": 2.3e-8}, replications=16)
    rows = {row.quantity: row for row in found.rows}
    for name, most in (
        ("waves", 0.05),
        ("rollout seconds", 0.15),
        ("step seconds", 0.10),
        ("update seconds", 0.05),
        ("trained tokens", 0.05),
    ):
        assert abs(rows[name].predicted / M20_DAPO[name] - 1) < most
    # the rival: a filter costs nothing but the waves it adds to the same update
    grpo = float(log["time/rollout_seconds"].mean())
    assert rows["rollout seconds"].low > 1.5 * grpo


def test_real_logs_given_their_lengths(shared_data: Path) -> None:
    log = read_log(
        shared_data / "verl_official_logs" / "Qwen2.5-0.5B-bsz256_2-prompt1024-resp512-0.567.log",
        options=LogOptions(progress=False),
    ).one_run()
    first, second = split_in_time(log)
    rollout = Rollout(groups_per_step=256, group_size=1, cap_tokens=512)
    for seconds in ("time/rollout_seconds", "time/update_seconds"):
        found = given_lengths(first, second, seconds=seconds, rollout=rollout)
        assert abs(found.total_error_share) < 0.01
        assert found.coverage >= 0.85


def test_completion_curves_of_real_waves(shared_data: Path) -> None:
    folder = shared_data / "openrs_vllm_wave_curves"
    table, law, scale = compare_waves(folder)
    waves = pd.read_csv(folder / "waves.csv").set_index("wave")
    for wave in read_waves(folder):  # our times are the file's own, to a second
        t50, t90, t95, _, wall = wave.times()
        own = waves.loc[wave.number, ["t50_s", "t90_s", "t95_s", "wall_s"]].to_numpy(float)
        np.testing.assert_allclose([t50, t90, t95, wall], own, atol=15, rtol=0.02)
    # bytes over bandwidth at 80 % is right to a few per cent without being fitted to a time
    assert scale == pytest.approx(1.0, abs=0.12)
    small = table[table["n"] <= 40].groupby("percent")["error_share"]
    assert small.apply(lambda e: e.abs().mean()).max() < 0.08
    big = table[table["n"] == 500].groupby("percent")["error_share"]
    assert big.apply(lambda e: e.abs().mean()).max() < 0.2
    assert law.b_knots_s[-1] > 1e-4
