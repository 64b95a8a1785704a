"""Generate, censor, filter, fit: the truth comes back, and naive estimates would not."""

import numpy as np
import pandas as pd
import pytest

from dapolab.scenario import JointWorkload, Prompts
from dapolab.workload import PromptStream, mixed_probability, mixed_share_of_counts
from dapolab.workload.fit import Degenerate, fit_workload

TRUE = JointWorkload(
    median_tokens=1500.0,
    sigma=0.9,
    prompt_share=0.7,
    correct_effect=-0.2,
    mean_logit=-1.0,
    sd_logit=1.6,
    correlation=-0.4,
)
LOOPS = TRUE.model_copy(
    update={
        "loop_share": 0.08,
        "loop_sd_logit": 1.2,
        "loop_correlation": -0.5,
        "p_correct_if_truncated": 0.15,
    }
)


def table_of(workload, *, n_prompts, n, cap, seed):
    pool = workload.model_copy(update={"prompts": Prompts(count=n_prompts)})
    groups = PromptStream(pool, group_size=n, cap_tokens=cap, seed=seed).draw(0, n_prompts)
    names = np.repeat([f"p{i}" for i in groups.prompt_id_P], n)
    table = pd.DataFrame(
        {
            "prompt_id": names,
            "group_id": names,
            "n_tokens": groups.n_tokens_PG.ravel(),
            "correct": groups.correct_PG.ravel(),
            "truncated": groups.truncated_PG.ravel(),
        }
    )
    return table, groups


def anova_share(table):
    """Between-prompt share of log length by one-way ANOVA on the capped lengths."""
    y = np.log(table["n_tokens"])
    groups = y.groupby(table["prompt_id"])
    n = groups.size().iloc[0]
    within = groups.var(ddof=1).mean()
    between = groups.mean().var(ddof=1) - within / n
    return between / (between + within), np.sqrt(between + within)


def near(estimate, truth):
    """Whether the truth lies within 4.5 standard errors (99 % intervals are ± 2.576)."""
    se = (estimate.high - estimate.low) / (2 * 2.5758)
    return abs(estimate.value - truth) < 4.5 * se


@pytest.fixture(scope="module")
def with_loops():
    table, _ = table_of(LOOPS, n_prompts=150, n=8, cap=5000, seed=11)
    return fit_workload(table, selection="all", goodness=False, n_draws=300)


@pytest.mark.parametrize(
    "name",
    [
        "median_tokens",
        "sigma",
        "prompt_share",
        "correct_effect",
        "mean_logit",
        "sd_logit",
        "correlation",
        "loop_share",
        "loop_sd_logit",
        "loop_correlation",
        "p_correct_if_truncated",
    ],
)
def test_parameters_come_back_through_the_cap(with_loops, name):
    assert near(with_loops.estimates[name], getattr(LOOPS, name))


def test_derived_quantities_come_back(with_loops):
    truth = mixed_probability(LOOPS, group_size=8, cap_tokens=5000)
    estimate = with_loops.estimates["mixed_share"]
    assert estimate.low <= truth <= estimate.high
    observed = with_loops.estimates["mixed_share_observed"]
    assert observed.low <= truth <= observed.high


def test_bounds_enclose_what_loops_could_hide(with_loops):
    none, every = with_loops.loop_bounds["none"], with_loops.loop_bounds["all"]
    assert none["loop_share"] == 0.0
    assert every["loop_share"] > with_loops.estimates["loop_share"].value
    assert none["sigma"] > with_loops.estimates["sigma"].value > every["sigma"]
    assert none["sigma"] > 1.1 * LOOPS.sigma


def test_anova_on_capped_lengths_is_biased_and_the_fit_is_not():
    table, _ = table_of(TRUE, n_prompts=120, n=8, cap=1500, seed=5)
    share, total = anova_share(table)
    fit = fit_workload(table, selection="all", goodness=False, n_draws=300)
    assert total < 0.75 * TRUE.sigma
    assert near(fit.estimates["sigma"], TRUE.sigma)
    assert not near(fit.estimates["sigma"], total)
    assert near(fit.estimates["prompt_share"], TRUE.prompt_share)
    assert abs(share - TRUE.prompt_share) > abs(
        fit.estimates["prompt_share"].value - TRUE.prompt_share
    )


def test_lengths_alone_are_precise_enough_to_reject_a_5_percent_twin():
    table, _ = table_of(
        TRUE.model_copy(update={"correct_effect": 0.0}), n_prompts=1400, n=16, cap=10**6, seed=3
    )
    fit = fit_workload(
        table.drop(columns="correct"),
        selection="all",
        goodness=False,
        n_draws=300,
        max_prompts=1400,
    )
    sigma, share = fit.workload.sigma, fit.workload.prompt_share
    within = sigma * np.sqrt(1 - share)
    truth = TRUE.sigma * np.sqrt(1 - TRUE.prompt_share)
    # sd of a pooled within-group sd with 1400 × 15 degrees of freedom.
    se = truth / np.sqrt(2 * 1400 * 15)
    assert abs(within - truth) < 4.5 * se
    assert abs(within - 1.05 * truth) > 4.5 * se
    assert dict(fit.not_identified)["pass rates, correct_effect, correlations"] == "no correctness"


@pytest.fixture(scope="module")
def kept():
    table, groups = table_of(TRUE, n_prompts=900, n=8, cap=10**6, seed=2)
    right = groups.correct_PG.sum(axis=1)
    mixed = np.repeat((right > 0) & (right < 8), 8)
    counts = int((right == 0).sum()), int((right == 8).sum())
    # Pass rates alone: the filter acts on them, and the fit takes a second.
    return table[mixed].drop(columns=["n_tokens", "truncated"]), counts


def test_kept_groups_taken_as_all_give_q_near_92_percent_whatever_the_truth(kept):
    table, _ = kept
    truth = mixed_probability(TRUE, group_size=8, cap_tokens=10**6)
    plain = fit_workload(table, selection="all", goodness=False).estimates["mixed_share"]
    assert plain.value > 0.88
    assert plain.low > truth
    fit = fit_workload(table, selection="kept_mixed", goodness=False)
    estimate = fit.estimates["mixed_share"]
    assert estimate.low <= truth <= estimate.high
    # What kept groups leave open is said, not hidden: the interval is wide.
    assert estimate.high - estimate.low > 0.1


@pytest.mark.parametrize("known", ["each", "total"])
def test_counts_of_dropped_groups_pin_q(kept, known):
    table, (n_wrong, n_right) = kept
    given = Degenerate(n_wrong, n_right) if known == "each" else Degenerate(n_candidates=900)
    truth = mixed_probability(TRUE, group_size=8, cap_tokens=10**6)
    fit = fit_workload(table, selection="kept_mixed", degenerate=given, goodness=False)
    estimate = fit.estimates["mixed_share"]
    assert estimate.low <= truth <= estimate.high
    # 900 Bernoulli groups: the interval cannot be much wider than ± 2.58·√(q(1 − q)/900).
    assert estimate.high - estimate.low < 1.3 * 2 * 2.5758 * np.sqrt(truth * (1 - truth) / 900)
    assert near(fit.estimates["mean_logit"], TRUE.mean_logit)
    assert near(fit.estimates["sd_logit"], TRUE.sd_logit)
    assert fit.draws["sd_logit"].nunique() > 5


def test_kept_groups_with_lengths_correct_the_length_law_too():
    table, groups = table_of(TRUE, n_prompts=260, n=8, cap=10**6, seed=4)
    right = groups.correct_PG.sum(axis=1)
    kept = table[np.repeat((right > 0) & (right < 8), 8)]
    fit = fit_workload(kept, selection="kept_mixed", goodness=False, n_draws=200)
    for name in ("median_tokens", "sigma", "prompt_share", "correct_effect", "correlation"):
        assert near(fit.estimates[name], getattr(TRUE, name)), name


def test_counting_estimate_is_unbiased_where_plugging_in_is_not():
    rng = np.random.default_rng(8)
    p = np.full(200_000, 0.1)
    k = rng.binomial(8, p)
    q = 1 - 0.1**4 - 0.9**4
    counted = mixed_share_of_counts(k, 8, group_size=4)
    se = counted.std() / np.sqrt(len(p))
    assert abs(counted.mean() - q) < 4.5 * se
    assert abs(counted.mean() - 1.05 * q) > 4.5 * se
    plugged = 1 - (k / 8) ** 4 - (1 - k / 8) ** 4
    assert plugged.mean() < q - 4.5 * se
    assert np.isnan(mixed_share_of_counts(3, 8, group_size=16))
