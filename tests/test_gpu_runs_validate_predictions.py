"""What is stable enough to gate: drift of one step, mixed share, waves, and their arithmetic."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

pytest.importorskip("torch")

from dapolab.theory.groups import mixed_groups, p_mixed_recorded
from dapolab.theory.sampling import expected_waves
from gpu_runs.preset import Preset, load
from gpu_runs.validate import drift, live, waves
from gpu_runs.validate import first_update as first
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.forecast import pseudo_values, replay, run_means, scenario_of, write_records
from gpu_runs.validate.frozen import Job, answers, play
from gpu_runs.validate.law import wave_seconds
from gpu_runs.validate.waves_predict import chances, kept_accuracy
from gpu_runs.weights import TOY

WRONG = "length of wrong answers"


@pytest.fixture(scope="module")
def sample() -> first.Sample:
    return first.draw(load("toy_cpu"), seed=901, n_groups=48, device="cpu")


# ---------------------------------------------------------------------- drift


def test_score_weights_are_the_gradient_of_a_conditional_mean() -> None:
    """A softmax over four answers: the exact gradient of E[X | wrong] by its logits."""
    logits = np.array([0.3, -0.2, 0.5, 0.0])
    value, wrong = np.array([1.0, 4.0, 2.0, 7.0]), np.array([True, False, True, True])
    p = np.exp(logits) / np.exp(logits).sum()
    mean = (p * value)[wrong].sum() / p[wrong].sum()
    exact = p * wrong * (value - mean) / p[wrong].sum()
    rng = np.random.default_rng(3)
    drawn = rng.choice(4, size=200_000, p=p)
    w = drift.score_weights(value[drawn], wrong[drawn]).double().numpy()
    # Σ w·∇log π with ∇log π(y) = e_y − p, and Σ w = 0
    estimate = np.bincount(drawn, weights=w, minlength=4)
    scale = np.abs(value - mean).max() / p[wrong].sum() / np.sqrt(drawn.size)
    assert np.all(np.abs(estimate - exact) < 4.5 * scale)
    assert not np.all(np.abs(1.05 * estimate - exact) < 4.5 * scale)


def test_one_real_step_does_what_the_gradient_says(tmp_path: Path, sample: first.Sample) -> None:
    preset = load("toy_cpu")
    weights = {mode: first.pushes(sample, drift.objective_of(mode)) for mode in drift.MODES}
    directions = {
        mode: (g / g.norm()).double().numpy()
        for mode, g in first.gradients(sample, weights).items()
    }
    np.savez(tmp_path / "directions.npz", **{m: d[None] for m, d in directions.items()})
    others = [drift.gradients((preset, seed, 48, "cpu")).of_mean[WRONG] for seed in (902, 903)]
    changes = {}
    for mode in drift.MODES:
        said = np.array([drift.EPSILON * directions[mode] @ g for g in others])
        steps = [
            drift.take(
                drift.Step(
                    vary(preset, {"run.seed": seed}),
                    tmp_path / "directions.npz",
                    mode,
                    0,
                    48,
                    "cpu",
                )
            )[WRONG]
            for seed in (904, 905)
        ]
        real = np.array(steps)
        error = np.hypot(said.std(ddof=1), real.std(ddof=1)) / np.sqrt(2)
        assert abs(real.mean() - said.mean()) <= 0.3 * abs(said.mean()) + 3 * error
        changes[mode] = real.mean()
    # the first order lets token-mean leave wrong answers the shorter
    assert changes["token-mean"] < changes["seq-mean-token-mean"]


def _verdicts(tmp_path: Path, *, by_answer_does: float) -> dict[str, str]:
    """Verdicts where token-mean moves all by −1 as predicted and a mean by answer by so much."""
    noise = np.random.default_rng(0).normal(scale=0.05, size=(2, len(drift.OBSERVABLES), 12))
    rows = [
        {"sample": i, "mode": mode, "quantity": name, "predicted": says, "measured": does + e}
        for m, (mode, says, does) in enumerate(
            [(drift.MODES[0], -1.0, -1.0), (drift.MODES[1], 0.0, by_answer_does)]
        )
        for q, name in enumerate(drift.OBSERVABLES)
        for i, e in enumerate(noise[m, q].tolist())
    ]
    samples = pd.DataFrame(rows)
    # accuracy rises under both, as ratios
    of_accuracy = samples["quantity"] == "accuracy"
    samples.loc[of_accuracy, ["predicted", "measured"]] = 1.0
    context = Context(load("toy_cpu"), False, 0, "cpu", 1, tmp_path, tmp_path)
    found = drift.judge(context, pd.DataFrame(), {"samples": samples})
    return {outcome.claim.id: outcome.verdict for outcome in found}


def test_a_loss_that_hardly_moves_lengths_is_judged_in_the_units_of_one_that_does(
    tmp_path: Path,
) -> None:
    as_said = _verdicts(tmp_path, by_answer_does=0.05)
    assert as_said["v-drift-token-mean"] == "holds"
    assert as_said["v-drift-seq-mean-token-mean"] == "holds"
    twin = _verdicts(tmp_path, by_answer_does=-0.5)
    assert twin["v-drift-token-mean"] == "holds"
    assert twin["v-drift-seq-mean-token-mean"] == "fails"


# ---------------------------------------------------------------------- waves


@pytest.fixture(scope="module")
def pool() -> Preset:
    return vary(
        load("toy_cpu"),
        {"data.n_prompts": 192, "rollout.groups_per_step": 8, "run.seed": 11, "run.dump": False},
    )


@pytest.fixture(scope="module")
def recorded(pool: Preset) -> pd.DataFrame:
    return answers(Job(pool, TOY, "cpu", n_samples=16))


def test_answers_never_share_noise_with_the_rollout(pool: Preset, recorded: pd.DataFrame) -> None:
    other = answers(Job(vary(pool, {"run.seed": 12}), TOY, "cpu", n_samples=1))
    assert len(recorded) == 16 * 192
    assert recorded["prompt_id"].nunique() == 192
    first_of = recorded[recorded["sample"] == 0]["n_tokens"].to_numpy()
    assert not np.array_equal(first_of, other["n_tokens"].to_numpy())


def test_the_unbiased_mixed_share_is_what_groups_really_are(
    pool: Preset, recorded: pd.DataFrame
) -> None:
    size = pool.rollout.group_size
    fresh = answers(Job(vary(pool, {"run.seed": 12}), TOY, "cpu", n_samples=2 * size))
    by_prompt = fresh.groupby(["prompt_id", fresh["sample"] // size])["correct"].sum()
    mixed = ((by_prompt > 0) & (by_prompt < size)).groupby("prompt_id").mean()
    right = recorded.groupby("prompt_id")["correct"].sum().reindex(mixed.index)
    said = p_mixed_recorded(right.to_numpy(int), 16, group_size=size)
    few = recorded[recorded["sample"] < size].groupby("prompt_id")["correct"].mean()
    plug_in = np.array(
        [mixed_groups(p, group_size=size).p_mixed for p in few.reindex(mixed.index).to_numpy(float)]
    )
    z = {
        name: (mixed.to_numpy() - of).mean() / ((mixed.to_numpy() - of).std(ddof=1) / np.sqrt(192))
        for name, of in {"unbiased": said, "plug-in": plug_in}.items()
    }
    assert abs(z["unbiased"]) < 4
    assert z["plug-in"] > 4


def test_simulated_waves_of_recorded_answers_are_the_real_ones(
    pool: Preset, recorded: pd.DataFrame, tmp_path: Path
) -> None:
    path = write_records(recorded, tmp_path / "answers.parquet")
    metrics = ["rollout/waves", "rollout/candidate_groups", "rollout/token_utilisation"]
    n_steps = 12
    said = run_means(
        scenario_of(pool, replay(path), n_steps=n_steps), seeds=range(60), metrics=metrics
    )
    runs = [
        play(Job(vary(pool, {"run.seed": seed}), TOY, "cpu", n_steps=n_steps)) for seed in (21, 22)
    ]
    real = pd.concat(runs)
    for name in metrics:
        # simulated runs give the error of a mean over as many steps, two of them here
        error = said[name].std(ddof=1) / np.sqrt(2)
        assert abs(real[name].mean() - said[name].mean()) < 4 * error
    q = float(
        (real["rollout/mixed_candidate_groups"].sum()) / real["rollout/candidate_groups"].sum()
    )
    assert 0.4 < q < 0.98


def test_pseudo_values_of_a_mean_are_the_samples() -> None:
    x = np.array([1.0, 4.0, 2.0, 8.0, 5.0])
    without = np.array([np.delete(x, i).mean() for i in range(x.size)])
    assert pseudo_values(float(x.mean()), without) == pytest.approx(x)


def test_pseudo_values_keep_the_centre_whatever_the_noise_of_the_left_out_ones() -> None:
    noisy = np.array([0.3, 0.9, 0.1, 0.4])
    assert pseudo_values(0.5, noisy).mean() == pytest.approx(0.5)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_chances_of_a_prompt_are_unbiased(p: float) -> None:
    """Mean over K ~ Bin(n, p) of what K right of n answers say: q(p), p and p^G exactly."""
    n, size = 12, 8
    table = pd.DataFrame(
        {"prompt_id": str(k), "correct": i < k} for k in range(n + 1) for i in range(n)
    )
    found = chances(table, size)
    order = table.groupby("prompt_id")["correct"].sum().to_numpy(int)
    weight = stats.binom.pmf(order, n, p)
    exact = [1 - p**size - (1 - p) ** size, p, p**size]
    assert found @ weight == pytest.approx(exact, abs=1e-12)


def test_the_kept_batch_of_a_pool_by_hand() -> None:
    """Two prompts, G = 2, p = 1/2 and 1: the second is never mixed, mixed pairs are half right."""
    assert kept_accuracy(*np.array([[0.5, 0.0], [0.5, 1.0], [0.25, 1.0]])) == pytest.approx(0.5)


# ---------------------------------------------------------------------- live forecast, law


def test_the_line_through_the_logits_follows_a_logistic_fall() -> None:
    steps = np.arange(20)
    q = 1.0 / (1.0 + np.exp(0.2 * steps - 2.0))
    assert live.ahead(q[:15]) == pytest.approx(q[15], rel=1e-9)


def test_forecasts_use_only_the_steps_before(pool: Preset) -> None:
    n = 12
    steps = pd.DataFrame(
        {
            "seed": 1,
            "step": range(n),
            "rollout/effective_groups": 8.0,
            "rollout/candidate_groups": [10.0] * 8 + [16.0] * 4,
            "rollout/waves": 2.0,
        }
    )
    found = live.forecasts(steps, pool).set_index("step")
    q = 7.0 / 9.0  # (B − 1)/(N − 1)
    uncapped = expected_waves(q, n_groups=8)
    for step in range(5, 9):
        assert found.loc[step, "trailing"] == pytest.approx(uncapped, rel=0.02)
        assert found.loc[step, "extrapolated"] == pytest.approx(uncapped, rel=0.02)
    assert found.loc[11, "trailing"] > uncapped * 1.1


def test_a_law_adds_up_over_a_wave() -> None:
    waves = pd.DataFrame(
        {"iterations": [10], "tokens": [100], "sum_context": [1000], "prefill_tokens": [50]}
    )
    law = {"a_s": 1e-3, "b_s": 1e-4, "c_s": 1e-6, "prefill_s": 2e-5}
    assert wave_seconds(waves, law) == pytest.approx([0.01 + 0.01 + 0.001 + 0.001])


def test_a_run_that_never_trained_has_no_accuracy_and_spoils_no_mean() -> None:
    known = dict.fromkeys(waves.QUANTITIES, 1.0)
    runs = pd.DataFrame(
        [
            {"setting": "late, rounds", **known, waves.KEPT: 0.5},
            {"setting": "late, rounds", **known, waves.KEPT: 0.7},
            {"setting": "late, rounds", **known, waves.KEPT: float("nan")},
            {"setting": "later, rounds", **known, waves.KEPT: float("nan")},
        ]
    )
    rows = [row for row in waves._means(runs) if row["quantity"] == waves.KEPT]
    assert [(row["setting"], row["n"]) for row in rows] == [("late, rounds", 2)]
    assert rows[0]["value"] == pytest.approx(0.6)
