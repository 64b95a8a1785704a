"""What a fit refuses, what it warns of, what it says it cannot know, and what it writes."""

import numpy as np
import pandas as pd
import pytest

from dapolab.scenario import ConfigError, JointWorkload, Prompts, build
from dapolab.workload import PromptStream, length_law, marginals
from dapolab.workload.fit import (
    StepFigures,
    draws_text,
    fit_tables,
    fit_workload,
    from_length_histogram,
    from_step_figures,
    law_toml,
    read_draws,
    to_toml,
    with_draw,
)

LAW = JointWorkload(median_tokens=800.0, sigma=0.6, sd_logit=1.5)


def records(law=LAW, *, n_prompts=40, n=8, cap=10**6, seed=1):
    pool = law.model_copy(update={"prompts": Prompts(count=n_prompts)})
    groups = PromptStream(pool, group_size=n, cap_tokens=cap, seed=seed).draw(0, n_prompts)
    name = np.repeat([f"p{i}" for i in range(n_prompts)], n)
    return pd.DataFrame(
        {
            "prompt_id": pd.array(name, dtype="string"),
            "group_id": pd.array(name, dtype="string"),
            "n_tokens": pd.array(groups.n_tokens_PG.ravel(), dtype="Int64"),
            "n_prompt_tokens": pd.array(np.full(n_prompts * n, 120), dtype="Int64"),
            "correct": pd.array(groups.correct_PG.ravel(), dtype="boolean"),
            "truncated": pd.array(groups.truncated_PG.ravel(), dtype="boolean"),
        }
    )


@pytest.fixture(scope="module")
def plain():
    return fit_workload(records(), selection="all", source='a "quoted" source', n_draws=50)


def reasons(fit):
    return {name: why for names, why in fit.not_identified for name in names.split(", ")}


def test_unknown_selection_asks_for_the_flag():
    with pytest.raises(ConfigError, match="--selection"):
        fit_workload(records(), selection="unknown")


def test_kept_groups_of_three_are_refused():
    table = records(n=3)
    right = table.groupby("prompt_id")["correct"].transform("sum")
    with pytest.raises(ConfigError, match="groups of 3 cannot identify"):
        fit_workload(table[(right > 0) & (right < 3)], selection="kept_mixed", goodness=False)


@pytest.mark.parametrize("n_draws", [0, 1])
def test_without_draws_nothing_has_an_interval(n_draws):
    fit = fit_workload(records(), selection="all", goodness=False, n_draws=n_draws)
    own = {n: e for n, e in fit.estimates.items() if n != "mixed_share_observed"}
    assert {"sigma", "mixed_share", "mean_tokens", "truncated_share"} <= set(own)
    assert all(e.low is None and e.high is None and np.isfinite(e.value) for e in own.values())


def test_kept_mixed_with_degenerate_groups_is_refused():
    with pytest.raises(ConfigError, match="--selection all"):
        fit_workload(records(n_prompts=30), selection="kept_mixed", goodness=False)


def test_first_finished_warns_of_short_bias():
    fit = fit_workload(records(), selection="kept_first_finished", goodness=False, n_draws=20)
    assert any("biased short" in text for text in fit.warnings)


def test_nothing_to_fit_is_one_line():
    table = records().assign(n_tokens=pd.NA, correct=pd.NA)
    with pytest.raises(ConfigError, match="nothing to fit"):
        fit_workload(table, selection="all")
    with pytest.raises(ConfigError, match="neither prompt nor group"):
        fit_workload(records().drop(columns=["prompt_id", "group_id"]), selection="all")


def stepped(slope, n_steps=12):
    parts = []
    for step in range(n_steps):
        law = LAW.model_copy(update={"mean_logit": slope * step})
        part = records(law, n_prompts=30, seed=step)
        part["prompt_id"] = part["group_id"] = part["prompt_id"] + f"@{step}"
        parts.append(part.assign(step=step))
    return pd.concat(parts, ignore_index=True)


def test_drifting_steps_are_never_pooled():
    table = stepped(0.3)
    with pytest.raises(ConfigError, match=r"steps 0 to 11 drift \(accuracy.*--steps"):
        fit_workload(table, selection="all")
    fit = fit_workload(table, selection="all", steps=(0, 1), goodness=False, n_draws=20)
    assert fit.n_prompts == 60
    window = fit_workload(table, selection="all", steps=(0, 11), goodness=False, n_draws=20)
    assert any("drift inside the window" in text for text in window.warnings)
    with pytest.raises(ConfigError, match="no rows in steps"):
        fit_workload(table, selection="all", steps=(90, 99))


def test_steady_steps_are_pooled():
    fit = fit_workload(stepped(0.0), selection="all", goodness=False, n_draws=20)
    assert fit.n_prompts == 360


def test_no_tokens_fits_difficulty_only():
    fit = fit_workload(records().drop(columns="n_tokens"), selection="all", n_draws=20)
    assert reasons(fit)["sigma"] == "no token counts"
    assert "median_tokens" not in fit.estimates
    assert {"mean_logit", "sd_logit", "mixed_share"} <= set(fit.estimates)
    assert [g.quantity for g in fit.goodness] == ["mixed share", "accuracy of mixed groups"]


def test_one_response_a_prompt_cannot_split_the_variance():
    table = records(n=1, n_prompts=200)
    fit = fit_workload(table, selection="all", goodness=False, n_draws=20)
    assert fit.workload.prompt_share == pytest.approx(0.75)
    assert "prior" in reasons(fit)["prompt_share"]
    assert fit.estimates["prompt_share"].low is None
    assert "one response a prompt" in reasons(fit)["sd_logit"]


def test_everything_truncated_leaves_lengths_unknown():
    table = records(cap=20).assign(correct=pd.array([True, False] * 160, dtype="boolean"))
    fit = fit_workload(table, selection="all", goodness=False, n_draws=20)
    assert reasons(fit)["median_tokens"] == "every response is cut at the cap"


def test_nothing_truncated_leaves_loops_unknown(plain):
    assert reasons(plain)["loop_share"] == "no truncated response"
    assert plain.workload.loop_share == 0.0
    assert plain.loop_bounds == {}


def test_missing_verdicts_of_truncated_rows_are_missing_not_wrong():
    law = LAW.model_copy(update={"mean_logit": 3.0, "sd_logit": 0.5})
    table = records(law, cap=1500, n_prompts=24)
    table.loc[table["truncated"], "correct"] = pd.NA
    fit = fit_workload(table, selection="all", goodness=False, n_draws=50)
    # A seventh of all rows is cut; treated as wrong, they would give a pass rate near .8.
    rate = marginals(
        fit.workload.model_copy(update={"loop_share": 0.0}), group_size=2, cap_tokens=10**7
    ).accuracy
    assert rate > 0.9
    assert "no verdict" in reasons(fit)["p_correct_if_truncated"]


def test_flags_say_which_truncated_rows_loop():
    law = LAW.model_copy(update={"loop_share": 0.1})
    table = records(law, cap=4000, n_prompts=24)
    table["extra/loop"] = table["truncated"].astype(int)
    fit = fit_workload(table, selection="all", goodness=False, n_draws=50)
    seen = table["truncated"].mean()
    assert fit.workload.loop_share == pytest.approx(seen, rel=0.2)
    assert fit.loop_bounds == {}


def test_rows_out_of_order_and_unequal_groups_change_nothing_but_noise():
    table = records(n_prompts=60).drop(index=range(3, 8))
    shuffled = table.sample(frac=1.0, random_state=4)
    one = fit_workload(table, selection="all", goodness=False, n_draws=20)
    two = fit_workload(shuffled, selection="all", goodness=False, n_draws=20)
    for name in ("median_tokens", "sigma", "prompt_share", "mean_logit", "sd_logit"):
        assert getattr(one.workload, name) == pytest.approx(getattr(two.workload, name), rel=1e-3)


def test_many_prompts_are_sampled_down_and_it_is_said():
    fit = fit_workload(records(n_prompts=80), selection="all", max_prompts=50, goodness=False)
    assert fit.n_prompts == 50
    assert any("random 50 of 80" in text for text in fit.warnings)


def test_the_same_seed_gives_the_same_fit():
    one, two = (
        fit_workload(records(n_prompts=25), selection="all", seed=3, n_draws=20, goodness=False)
        for _ in range(2)
    )
    assert to_toml(one) == to_toml(two)
    assert draws_text(one) == draws_text(two)


def test_toml_goes_through_the_scenario_loader(plain, tmp_path):
    import tomllib

    data = tomllib.loads(to_toml(plain, draws_file="x.draws.csv"))
    workload = build({"workload": data["workload"]}).workload
    assert workload == plain.workload.model_copy(update={"draws": "x.draws.csv"})
    assert workload.source == 'a "quoted" source'
    assert workload.prompts.tokens_median == 120.0
    file = tmp_path / "x.draws.csv"
    file.write_text(draws_text(plain))
    draws = read_draws(file)
    assert len(draws) == 50
    drawn = with_draw(workload, draws, number=51)
    assert drawn.sigma == pytest.approx(plain.draws["sigma"].iloc[1], rel=1e-5)
    assert drawn.prompts == workload.prompts


@pytest.mark.parametrize("text", ["sigma,nonsense\n1,2\n", "sigma\n", "sigma,mean_logit\n1,\n"])
def test_a_foreign_table_of_draws_is_refused(tmp_path, text):
    file = tmp_path / "d.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"not a table of workload draws"):
        read_draws(file)
    with pytest.raises(ConfigError, match="no such file"):
        read_draws(tmp_path / "absent.csv")


def test_tables_hold_what_a_report_draws(plain):
    tables = fit_tables(plain)
    assert set(tables) >= {"parameters", "goodness", "not_identified", "length_cdf", "composition"}
    cdf = tables["length_cdf"]
    assert (np.diff(cdf["observed"]) >= 0).all()
    assert (np.diff(cdf["model"]) >= -1e-12).all()
    assert np.abs(cdf["observed"] - cdf["model"]).max() < 0.15
    assert tables["composition"][["observed", "model"]].sum().tolist() == pytest.approx([1, 1])
    assert {g.quantity for g in plain.goodness} == {
        "wave maximum",
        "truncated share",
        "mixed share",
        "accuracy of mixed groups",
        "within-prompt spread",
    }
    assert {g.verdict for g in plain.goodness} <= {"holds", "fails", "undecided"}


def test_a_law_of_the_wrong_shape_fails_on_held_out_prompts():
    # Three answers of a hundred are thirty times as long: the lognormal that fits the variance
    # misses the maximum of a wave.
    rng = np.random.default_rng(0)
    n, group = 150, 8
    long = rng.random(n * group) < 0.03
    tokens = np.ceil(np.where(long, 3000, 100) * rng.lognormal(0.0, 0.05, n * group))
    table = pd.DataFrame({"prompt_id": np.repeat(np.arange(n), group), "n_tokens": tokens})
    fit = fit_workload(table, selection="all", n_draws=100)
    verdicts = {g.quantity: g.verdict for g in fit.goodness}
    assert verdicts["wave maximum"] == "fails"


def test_step_figures_are_reproduced():
    figures = StepFigures(8, 16, 0.163, 0.228, 1677.0, 6468.0, 8192)
    law = from_step_figures(figures)
    found = marginals(law, group_size=8, cap_tokens=8192)
    assert found.mean_tokens == pytest.approx(1677.0, rel=1e-3)
    assert found.all_right_probability == pytest.approx(0.163, abs=1e-4)
    assert found.all_wrong_probability == pytest.approx(0.228, abs=1e-4)
    groups = PromptStream(law, group_size=8, cap_tokens=8192, seed=0).draw(0, 16 * 800)
    longest = groups.n_tokens_PG.max(axis=1).reshape(-1, 16).max(axis=1)
    se = longest.std() / np.sqrt(800)
    # The pool of 17126 prompts is itself a sample; 1 % allows for it.
    assert abs(longest.mean() - 6468.0) < 4.5 * se + 65
    with pytest.raises(ConfigError, match="shares"):
        from_step_figures(StepFigures(8, 16, 0.0, 0.2, 1677.0, 6468.0, 8192))


def test_histograms_keep_mean_and_maxima():
    rng = np.random.default_rng(1)
    tokens, weights = np.unique(np.ceil(rng.lognormal(6, 1.2, 50_000)), return_counts=True)
    law = from_length_histogram(tokens, weights, n_points=200)
    assert len(law.lengths.tokens) <= 200
    mean = (tokens * weights).sum() / weights.sum()
    assert length_law(law.lengths).mean(int(tokens.max())) == pytest.approx(mean, rel=2e-3)
    below = np.cumsum(weights) / weights.sum()
    for n in (16, 256):
        exact = (tokens * np.diff(below**n, prepend=0.0)).sum()
        points = np.array(law.lengths.tokens, float)
        share = np.cumsum(law.lengths.weights) / np.sum(law.lengths.weights)
        assert (points * np.diff(share**n, prepend=0.0)).sum() == pytest.approx(exact, rel=5e-3)
    import tomllib

    data = tomllib.loads(law_toml(law, comments=["from a test"]))
    assert build({"workload": data["workload"]}).workload.lengths.tokens == law.lengths.tokens
