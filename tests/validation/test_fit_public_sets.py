"""Fits of the public per-response sets: what is known of them comes out, and what cannot does not.

The figures of data.md are naive ones (ANOVA on capped log lengths, shares as recorded); the fits
are on the latent scale, before the cap.
"""

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dapolab.records import ReadOptions, read_records
from dapolab.scenario import ConfigError, JointWorkload, build
from dapolab.workload import PromptStream, marginals
from dapolab.workload.fit import fit_workload, read_draws

WORKLOADS = Path(__file__).resolve().parents[2] / "sims" / "workloads"
GEMMA = "gemma4_12b_reasoning_n10/lengths.csv"
QWEN = "cot_loop_qwen3_1p7b/gpqa_n10_lengths.csv"
MMLU = {"set": "matched_controls_gemma4_12b/mmlu_pro"}


def read(folder, path, **options):
    return read_records(folder / path, options=ReadOptions(selection="all", **options))


def shares(table):
    """Between-prompt share of log length: as a ratio of sums of squares, and by unbiased ANOVA."""
    y = np.log(table["n_tokens"].astype(float))
    groups = y.groupby(table["prompt_id"])
    n, mean = groups.size().iloc[0], groups.mean()
    ratio = n * ((mean - y.mean()) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    within = groups.var(ddof=1).mean()
    between = mean.var(ddof=1) - within / n
    return ratio, between / (between + within)


@pytest.fixture(scope="module")
def qwen(shared_data):
    records = read(shared_data, QWEN, cap_tokens=30000)
    fit = fit_workload(
        records.table, selection="all", cap_tokens=30000, goodness=False, n_draws=300
    )
    return records.table, fit


def test_naive_shares_of_the_data_sheet_are_ratios_of_sums_of_squares(shared_data, qwen):
    """.75 (MMLU-Pro), .69 (GPQA), .81 (Qwen3 GPQA) in data.md section 2 count 1/n of the within
    variance as between; unbiased, and still on capped lengths, they are .02 to .03 lower."""
    mmlu = read(shared_data, GEMMA, where=MMLU, cap_tokens=16384).table
    gpqa = read(
        shared_data,
        "gemma4_12b_reasoning_n10/gpqa_lengths_from_trajectory.csv",
        where={"set": "matched_controls_gemma4_12b/gpqa_diamond"},
    ).table
    for table, sheet in ((mmlu, 0.75), (gpqa, 0.69), (qwen[0], 0.81)):
        ratio, unbiased = shares(table)
        assert ratio == pytest.approx(sheet, abs=0.006)
        assert 0.015 < ratio - unbiased < 0.035


def test_flagged_loops_leave_the_latent_share_near_the_naive_one(qwen):
    """All 34 truncated answers are flagged loops, so the naive share mixes two things; without
    them the stopped answers alone say .82, and the cap does not bind on them."""
    _, fit = qwen
    share = fit.estimates["prompt_share"]
    assert share.low < 0.81 < share.high
    loops = fit.estimates["loop_share"]
    assert loops.low < 34 / 480 < loops.high
    assert fit.workload.loop_correlation < 0
    # Within-prompt sd(log) .34 to .43 in data.md; the stopped rows are the lower end.
    within = fit.workload.sigma * np.sqrt(1 - fit.workload.prompt_share)
    assert 0.28 < within < 0.43


def test_loops_are_found_without_the_flags(qwen):
    """No answer stops between 18.6k and the cap of 30k: the likelihood sees the gap."""
    table, flagged = qwen
    blind = fit_workload(
        table.drop(columns="extra/loop"),
        selection="all",
        cap_tokens=30000,
        goodness=False,
        n_draws=50,
    )
    for name in ("loop_share", "sigma", "prompt_share", "median_tokens"):
        assert blind.estimates[name].value == pytest.approx(flagged.estimates[name].value, rel=0.05)
    assert blind.loop_bounds["none"]["sigma"] > 1.1 * flagged.workload.sigma


def test_group_composition_of_the_data_sheet(qwen):
    """Qwen3 GPQA: all-correct .17, all-wrong .38, mixed .46 at n = 10 (data.md section 2)."""
    _, fit = qwen
    law = marginals(fit.workload, group_size=10, cap_tokens=30000)
    for value, seen in (
        (law.all_right_probability, 0.17),
        (law.all_wrong_probability, 0.38),
        (law.mixed_probability, 0.46),
    ):
        # 48 prompts: one standard error of a share of .4 is .07.
        assert abs(value - seen) < 0.07
    observed = fit.estimates["mixed_share_observed"]
    assert observed.value == pytest.approx(0.458, abs=0.002)


def test_pass_counts_predict_a_smaller_group(shared_data):
    """k = 64 answers fix every pass rate: the fitted law gives the counted q at G = 8."""
    records = read(
        shared_data, "qwen_grpo_passcounts/pass_counts.csv", where={"task": "gsm8k", "k": "64"}
    )
    fit = fit_workload(records.table, selection="all", group_size=8, goodness=False, n_draws=300)
    law, counted = fit.estimates["mixed_share"], fit.estimates["mixed_share_observed"]
    assert counted.low < law.value < counted.high
    assert "median_tokens" not in fit.estimates


def test_training_steps_drift_and_are_refused(shared_data):
    records = read(shared_data, "gsm8k_grpo_ablation/groups.csv", where={"run": "baseline"})
    with pytest.raises(ConfigError, match="drift"):
        fit_workload(records.table, selection="all")
    early, late = (
        fit_workload(records.table, selection="all", steps=steps, goodness=False, n_draws=200)
        for steps in ((1, 5), (46, 50))
    )
    # All-correct 0 -> .46 within 50 steps (data.md section 3).
    assert early.workload.mean_logit < late.workload.mean_logit
    assert marginals(_free(early), group_size=8, cap_tokens=10).all_right_probability < 0.05
    right = marginals(_free(late), group_size=8, cap_tokens=10).all_right_probability
    assert right == pytest.approx(0.46, abs=0.12)


def _free(fit):
    """The difficulty law alone: lengths are not in the data and must not cut anything."""
    return fit.workload.model_copy(update={"median_tokens": 1.0, "sigma": 0.0})


def test_the_toy_runs_unsolvable_prompts_are_those_with_hidden_digits():
    """Known by name: the masked ones can only be guessed; most groups of them have nothing right.

    A tenth of the prompts is masked, the rest is solved nine times of ten. The law without an atom
    foresees .63 right in mixed groups, where .81 are (theory A9 at both fits). The guess rate found
    is the masked prompts' mean: four of five can never be right, the fifth is one time in five.
    """
    records = read_records(
        WORKLOADS.parent / "rollouts" / "toy_run.parquet", options=ReadOptions(selection="all")
    )
    table = records.table.drop(columns=["n_tokens", "truncated"])
    fit = fit_workload(table, selection="all", goodness=False, n_draws=300)
    found = fit.estimates["unsolvable_share"]
    right = table.groupby("prompt_id")["correct"].sum().astype(int)
    masked = table.groupby("prompt_id")["extra/stratum"].first() == "masked"
    assert right[~masked].min() > 3
    assert found.low < masked.mean() < found.high
    guess = fit.estimates["guess_rate"]
    assert guess.low < right[masked].mean() / 8 < guess.high
    mixed = (right > 0) & (right < 8)
    law = marginals(_free(fit), group_size=8, cap_tokens=10)
    assert abs(law.accuracy_mixed - right[mixed].mean() / 8) < 0.05
    assert abs(law.mixed_probability - mixed.mean()) < 0.05
    wide = JointWorkload(mean_logit=3.68, sd_logit=3.36, median_tokens=1.0, sigma=0.0)
    without = marginals(wide, group_size=8, cap_tokens=10)
    assert abs(without.mixed_probability - mixed.mean()) < 0.05
    assert without.accuracy_mixed < right[mixed].mean() / 8 - 0.15


def test_prompts_fitted_as_never_solved_are_hardly_solved_in_fifty_epochs(shared_data):
    """DeepScaleR at epoch 0, and what became of the same prompts while the model learnt."""
    file = shared_data / "one_shot_rlvr_acc_history/acc_history.csv"
    history = pd.read_csv(file).set_index("prompt_id")
    right = (history["e0"] * 8).round().to_numpy()
    table = pd.DataFrame({"prompt_id": np.repeat(np.arange(len(right)), 8)})
    table["correct"] = (np.arange(8) < right[:, None]).ravel()
    fit = fit_workload(table, selection="all", goodness=False, n_draws=300)
    found = fit.estimates["unsolvable_share"]
    assert "guess_rate" not in fit.estimates
    rate = history.mean(axis=1)
    never, hardly = (rate == 0).mean(), (rate < 0.03).mean()
    assert never < found.value < hardly
    assert found.low < (rate < 0.01).mean() < found.high
    # the share of groups without a right answer is twice as large: most are solved some time
    assert (right == 0).mean() > found.high


@pytest.mark.parametrize("file", sorted(WORKLOADS.glob("*.toml")), ids=lambda f: f.stem)
def test_committed_workloads_load_and_state_their_source(file):
    data = tomllib.loads(file.read_text())["workload"]
    workload = build({"workload": data}).workload
    # a public set names its commit, our own data the command that made them
    assert "@" in workload.source or workload.source.startswith("gpu_runs train")
    cap = workload.native_cap_tokens or 1000
    law = marginals(workload, group_size=8, cap_tokens=cap)
    assert 0 <= law.mixed_probability <= 1
    groups = PromptStream(workload, group_size=8, cap_tokens=cap, seed=0).draw(0, 4000)
    q = (groups.correct_PG.any(axis=1) & ~groups.correct_PG.all(axis=1)).mean()
    assert abs(q - law.mixed_probability) < 4.5 * np.sqrt(0.25 / 4000)
    if isinstance(workload, JointWorkload) and workload.draws:
        draws = read_draws(file.parent / workload.draws)
        assert len(draws) >= 100
        # The estimate lies inside its own draws.
        for name in draws:
            value = getattr(workload, str(name))
            assert draws[name].min() <= value + 1e-6
            assert draws[name].max() >= value - 1e-6


def test_a_fit_cut_at_16k_foresees_the_32k_run(shared_data):
    """GPQA traces of Gemma-4-12B, cut at 16k and run on to 32k: the first foresees the second."""
    laws = {}
    for name in ("gemma4-12b-gpqa", "gemma4-12b-gpqa-32k"):
        file = WORKLOADS / f"{name}.toml"
        laws[name] = build({"workload": tomllib.loads(file.read_text())["workload"]}).workload
    short, long = laws.values()
    assert short.median_tokens == pytest.approx(long.median_tokens, rel=0.15)
    assert short.sigma == pytest.approx(long.sigma, rel=0.15)
    table = pd.read_csv(shared_data / "gemma4_12b_reasoning_n10/gpqa_lengths_from_trajectory.csv")
    extended = table[table["set"] == "matched_controls_gemma4_12b_extended/gpqa_diamond"]
    seen = np.minimum(extended["trace_tokens"], 32768).mean()
    predicted = marginals(short, group_size=1, cap_tokens=32768).mean_tokens
    # Beyond its cap the lognormal tail is too heavy for this model, by less than a fifth.
    assert predicted == pytest.approx(seen, rel=0.2)
