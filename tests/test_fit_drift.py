"""Drift of pass rates and lengths: recovered from simulated counts, tried on real training runs."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import special

from dapolab.cli import main
from dapolab.scenario import ConfigError, JointWorkload, Prompts, build
from dapolab.sim.run import simulate
from dapolab.workload.fit import (
    PassRateDrift,
    drift_of,
    fit_drift,
    fit_length_drift,
    fit_pass_rate_drift,
)
from dapolab.workload.model import PromptStream

Z99 = 2.5758


def counts(
    *,
    seed: int,
    slope: float,
    groups: int = 40,
    steps: int = 30,
    size: int = 8,
    named: bool = False,
    mean: float = -1.0,
    sd: float = 1.5,
) -> pd.DataFrame:
    """Draw n_correct of each step's groups from the model, written out; named prompts return."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=groups)
    step, prompt = np.repeat(np.arange(1, steps + 1), groups), np.tile(np.arange(groups), steps)
    z = z[prompt] if named else rng.normal(size=len(prompt))
    right = rng.binomial(size, special.expit(mean + sd * z + slope * (step - 1)))
    table = pd.DataFrame({"step": step, "prompt": prompt, "n_samples": size, "n_correct": right})
    return table if named else table.drop(columns="prompt")


@pytest.mark.parametrize("named", [False, True])
def test_the_drift_is_recovered_and_a_five_percent_larger_one_is_not(named: bool) -> None:
    """Mean of 8 (12) fits within 4.5 SE of the truth; the twin moves 5 % faster at equal seeds."""
    n, groups = (8, 250) if named else (12, 400)

    def fits_at(slope: float, n: int) -> list[PassRateDrift]:
        tables = (counts(seed=s, slope=slope, named=named, groups=groups) for s in range(n))
        return [fit_pass_rate_drift(table) for table in tables]

    fits, twins = fits_at(0.1, n), fits_at(0.105, 4)
    found = np.array([f.logit_per_step.value for f in fits])
    se = found.std(ddof=1) / np.sqrt(len(found))
    assert abs(found.mean() - 0.1) < 4.5 * se
    moved = np.array([f.logit_per_step.value for f in twins]) - found[:4]
    assert found.mean() + moved.mean() - 0.1 > 4.5 * se
    # what the fit says of itself is the scatter of the fits
    said = np.mean([(f.logit_per_step.high - f.logit_per_step.low) / (2 * Z99) for f in fits])
    assert 0.5 < said / found.std(ddof=1) < 2.0
    for name, truth in (("mean_logit", -1.0), ("sd_logit", 1.5)):
        value = np.array([getattr(f, name).value for f in fits])
        assert abs(value.mean() - truth) < 4.5 * value.std(ddof=1) / np.sqrt(len(value))


def test_nameless_groups_that_return_would_be_overconfident() -> None:
    """The same 40 prompts in every step: with their names the level is what few prompts allow."""
    table = counts(seed=1, slope=0.05, named=True)
    with_names = fit_pass_rate_drift(table)
    without = fit_pass_rate_drift(table.drop(columns="prompt"))
    width = [f.mean_logit.high - f.mean_logit.low for f in (with_names, without)]
    assert width[0] > 2 * width[1]


def test_order_of_rows_and_origin_of_steps_do_not_matter() -> None:
    table = counts(seed=2, slope=0.08)
    plain = fit_pass_rate_drift(table)
    moved = fit_pass_rate_drift(
        table.sample(frac=1, random_state=0).assign(step=lambda t: t["step"] + 500)
    )
    assert moved.first_step == plain.first_step + 500
    for name in ("mean_logit", "logit_per_step", "sd_logit"):
        assert getattr(moved, name).value == pytest.approx(getattr(plain, name).value, rel=1e-4)


def test_held_out_intervals_cover_as_they_say() -> None:
    """25 held-out steps of each of 16 runs: 90 % ± 4.5 SE lie inside, SE over runs."""
    inside = []
    for seed in range(16):
        table = counts(seed=seed, slope=0.06, groups=8, steps=50)
        inside.append(covered(table, table["step"] % 2 == 0))
    share = np.mean(inside)
    se = np.std(inside, ddof=1) / np.sqrt(len(inside))
    assert abs(share - 0.9) < 4.5 * se


def covered(table: pd.DataFrame, fitted: "pd.Series[bool]") -> float:
    """Share of the other steps whose accuracy lies in the 90 % interval of the fit."""
    held = table[~fitted]
    share = (held["n_correct"] / held["n_samples"]).groupby(held["step"]).mean()
    fit = fit_pass_rate_drift(table[fitted])
    n_groups = round(len(held) / held["step"].nunique())
    n_samples = int(held["n_samples"].iloc[0])
    told = fit.predict(share.index, n_groups=n_groups, n_samples=n_samples)
    return float(np.mean((told["low"] <= share.to_numpy()) & (share.to_numpy() <= told["high"])))


# ------------------------------------------------------------------ lengths


def test_length_drift_is_recovered_with_its_interval() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(1, 61)
    inside, twins = [], []
    for _ in range(200):
        log_mean = 6.0 + 0.01 * (steps - 1) + 0.05 * rng.normal(size=60)
        fit = fit_length_drift(steps, np.exp(log_mean))
        slope = fit.log_tokens_per_step
        assert slope.low is not None
        assert slope.high is not None
        inside.append(slope.low <= 0.01 <= slope.high)
        twins.append(slope.value)
    # 99 % intervals: of 200, at least 193 (P(fewer) = 1.6e-3 · …: binomial tail 4.5 SE = 6.3)
    assert sum(inside) >= 198 - 6.3
    assert abs(np.mean(twins) - 0.01) < 4.5 * np.std(twins, ddof=1) / np.sqrt(200)
    assert abs(np.mean(twins) - 0.0105) > 4.5 * np.std(twins, ddof=1) / np.sqrt(200)
    line = fit_length_drift(steps, np.exp(5.0 + 0.02 * steps)).predict([1, 100])
    assert line["mean_tokens"].tolist() == pytest.approx(np.exp([5.02, 7.0]))


# ------------------------------------------------------------------ records, simulator


def records(table: pd.DataFrame) -> pd.DataFrame:
    """Write counts out as records, one row a response of 100 tokens, e^(.01) longer each step."""
    rows = []
    for group, row in enumerate(table.itertuples()):
        for sample in range(row.n_samples):
            rows.append(
                {
                    "prompt_id": f"p{group}",
                    "group_id": f"g{group}",
                    "sample": sample,
                    "step": row.step,
                    "correct": sample < row.n_correct,
                    "truncated": False,
                    "n_tokens": round(1000 * np.exp(0.01 * row.step)),
                }
            )
    types = {"step": "Int64", "n_tokens": "Int64", "correct": "boolean", "truncated": "boolean"}
    return pd.DataFrame(rows).astype(types)


def test_records_and_counts_say_the_same() -> None:
    table = counts(seed=3, slope=0.1, groups=20, steps=10)
    rates, lengths, warnings = fit_drift(records(table), selection="all")
    direct = fit_pass_rate_drift(table)
    assert rates.logit_per_step.value == pytest.approx(direct.logit_per_step.value, rel=1e-6)
    assert lengths is not None
    assert not warnings
    drift = drift_of(rates, lengths)
    assert drift.log_tokens_per_step == pytest.approx(0.01, abs=1e-4)
    assert drift.logit_per_step == rates.logit_per_step.value
    cut = records(table).assign(truncated=True)
    assert "cut at the cap" in fit_drift(cut, selection="all")[2][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_correct": 9}, "n_correct"),
        ({"n_correct": 0}, "no drift to see"),
        ({"step": 1}, "at least 4 steps"),
        ({"n_samples": 1, "n_correct": 1}, "groups of one"),
    ],
)
def test_counts_that_tell_nothing_are_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fit_pass_rate_drift(counts(seed=0, slope=0.0, groups=4, steps=6).assign(**change))


def test_filtered_groups_are_refused() -> None:
    table = records(counts(seed=3, slope=0.1, groups=4, steps=5))
    with pytest.raises(ConfigError, match="kept_mixed"):
        fit_drift(table, selection="kept_mixed")
    with pytest.raises(ConfigError, match="correctness"):
        fit_drift(table.assign(correct=pd.NA), selection="all")


def test_a_stream_that_drifts_gives_its_drift_back() -> None:
    """Fit what the workload itself draws at each trained step: the loop closes."""
    workload = JointWorkload(
        mean_logit=-1.0,
        sd_logit=1.5,
        prompts=Prompts(count=2000),
        drift={"logit_per_step": 0.08, "log_tokens_per_step": 0.01},  # type: ignore[arg-type]
        median_tokens=200.0,
    )
    stream = PromptStream(workload, group_size=8, cap_tokens=100_000, seed=1)
    rows, means = [], []
    for step in range(25):
        groups = stream.draw(step * 80, 80, trained_steps=step)
        right = groups.correct_PG.sum(axis=1)
        rows.append(pd.DataFrame({"step": step, "n_samples": 8, "n_correct": right}))
        means.append(float(groups.n_tokens_PG.mean()))
    fit = fit_pass_rate_drift(pd.concat(rows))
    lengths = fit_length_drift(range(25), means)
    for found, truth in (
        (fit.logit_per_step, 0.08),
        (fit.mean_logit, -1.0),
        (fit.sd_logit, 1.5),
        (lengths.log_tokens_per_step, 0.01),
    ):
        assert found.low is not None
        assert found.high is not None
        assert found.low < truth < found.high
    # and the interval is narrow enough to tell half of the drift
    assert fit.logit_per_step.low is not None
    assert fit.logit_per_step.low > 0.04


def test_waves_grow_as_an_easy_workload_gets_easier() -> None:
    """First and last 20 of 80 steps at 0, .03 and −.03 logits a step, from pass rates near 88 %.

    Candidates a step are B/q, q = 1 − E[p^G + (1 − p)^G] with p drifting.
    """
    z, weight = np.polynomial.hermite_e.hermegauss(60)

    def run(slope: float) -> pd.DataFrame:
        scenario = build(
            {
                "workload": {
                    "kind": "joint",
                    "mean_logit": 2.0,
                    "sd_logit": 1.0,
                    "median_tokens": 20.0,
                    "sigma": 0.3,
                    "drift": {"logit_per_step": slope},
                },
                "rollout": {"groups_per_step": 8, "group_size": 8, "cap_tokens": 1000},
                "collector": {"kind": "exact_refill", "max_candidate_multiplier": 1000},
                "run": {"steps": 80},
            }
        )
        return simulate(scenario, seed=4, keep_groups=False).steps

    def expected(slope: float, steps: np.ndarray) -> tuple[float, float]:
        p = special.expit(2.0 + z + slope * steps[:, None])
        q = 1 - (p**8 + (1 - p) ** 8) @ weight / weight.sum()
        return float((8 / q).mean()), float(np.sqrt((8 * (1 - q) / q**2).sum()) / len(steps))

    growth = {}
    for slope in (0.03, 0.0, -0.03):
        steps = run(slope)
        for window in (np.arange(20), np.arange(60, 80)):
            mean, se = expected(slope, window)
            assert (
                abs(steps["rollout/candidate_groups"].to_numpy()[window].mean() - mean) < 4.5 * se
            )
        waves = steps["rollout/waves"].to_numpy()
        growth[slope] = waves[60:].mean() / waves[:20].mean()
    # no drift would not pass for this one
    mean, se = expected(0.03, np.arange(60, 80))
    assert mean - expected(0.0, np.arange(60, 80))[0] > 4.5 * se
    assert growth[0.03] > 1.5
    assert growth[-0.03] < growth[0.0] < growth[0.03]


def test_the_command_writes_a_workload_with_its_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = counts(seed=3, slope=0.1, groups=20, steps=10)
    records(table).to_csv(tmp_path / "r.csv", index=False)
    target = tmp_path / "w.toml"
    given = ["fit", str(tmp_path / "r.csv"), "--selection", "all", "--drift"]
    assert main([*given, "-o", str(target), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    direct = fit_pass_rate_drift(table)
    slope = document["parameters"]["logit_per_step"]
    assert slope["mean"] == pytest.approx(direct.logit_per_step.value, rel=1e-6)
    assert slope["low"] < slope["mean"] < slope["high"]
    workload = build(tomllib.loads(target.read_text())).workload
    assert isinstance(workload, JointWorkload)
    assert workload.mean_logit == pytest.approx(direct.mean_logit.value, rel=1e-4)
    assert workload.drift.logit_per_step == pytest.approx(direct.logit_per_step.value, rel=1e-4)
    assert workload.drift.log_tokens_per_step == pytest.approx(0.01, abs=1e-4)
    assert "Assumption" in target.read_text()
    assert main(given) == 0
    assert "logit_per_step" in capsys.readouterr().out
    few = tmp_path / "few.toml"
    assert main([*given, "--steps", "1:2", "-o", str(few)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not few.exists()


# ------------------------------------------------------------------ real runs


def test_held_out_steps_of_real_runs(shared_data: Path) -> None:
    """17 GRPO runs, fitted on even steps: 90 % intervals hold 90 ± 7 % of the odd steps.

    425 held-out steps; runs share their prompts, so the half width is not that of 425 draws.
    """
    runs = ablation(shared_data).groupby("run")
    share = np.mean([covered(rows, rows["step"] % 2 == 0) for _, rows in runs])
    assert 0.83 <= share <= 0.97


def test_a_line_cannot_follow_a_run_that_saturates(shared_data: Path) -> None:
    """Fitted on steps 1–35, judged on 36–50: slow runs hold, fast ones that level off do not."""
    runs = ablation(shared_data).groupby("run")
    cover = {}
    for name in ("baseline", "lora_rank_8", "lr_2e-5"):
        rows = runs.get_group(name)
        cover[name] = covered(rows, rows["step"] <= 35)
    assert min(cover["baseline"], cover["lora_rank_8"]) >= 0.8
    assert cover["lr_2e-5"] < 0.6  # levels off near .86


def ablation(shared_data: Path) -> pd.DataFrame:
    table = pd.read_csv(shared_data / "gsm8k_grpo_ablation" / "groups.csv")
    return table.rename(columns={"n": "n_samples"})


def test_a_long_run_is_straight_on_the_logit_scale(shared_data: Path) -> None:
    """1209 prompts × 48 epochs: fitted on the first 32, accuracy of the last 16 within .02."""
    wide = pd.read_csv(shared_data / "one_shot_rlvr_acc_history" / "acc_history.csv")
    table = wide.melt(id_vars="prompt_id", var_name="epoch", value_name="share").dropna()
    table["step"] = table["epoch"].str[1:].astype(int)
    table = table[table["step"] < 48].assign(n_samples=8)
    table["n_correct"] = (table["share"] * 8).round().astype(int)
    named = table.rename(columns={"prompt_id": "prompt"})
    fit = fit_pass_rate_drift(named[named["step"] < 32])
    assert isinstance(fit, PassRateDrift)
    held = table[table["step"] >= 32].groupby("step")["share"].mean()
    told = fit.predict(held.index, n_groups=1209, n_samples=8)
    # the prompts are those of the fit, so their own spread, in the interval, is not at play
    assert ((told["low"] <= held.to_numpy()) & (held.to_numpy() <= told["high"])).all()
    assert np.abs(told["accuracy"] - held.to_numpy()).max() < 0.02
    # without a drift the last epochs would be missed by several times that
    assert held.max() - table.loc[table["step"] < 32, "share"].mean() > 0.06
