"""Unsolvable prompts: found where the data show them, left out where they do not."""

import tomllib

import numpy as np
import pytest
from scipy import integrate, special, stats

from dapolab.check.workload import from_workload
from dapolab.scenario import JointWorkload, build
from dapolab.workload.fit import draws_text, fit_workload, joint, read_draws, to_toml, with_draw
from dapolab.workload.fit.compositions import Compositions
from dapolab.workload.fit.likelihood import Likelihood
from dapolab.workload.fit.problem import Problem
from dapolab.workload.fit.rows import prepare
from dapolab.workload.fit.unsolvable import NEEDED, NEEDED_TOGETHER
from tests.prompt_tables import counts, reasons, table_of, verdicts_of

TRUE = JointWorkload(
    median_tokens=600.0,
    sigma=0.7,
    correct_effect=-0.2,
    mean_logit=1.5,
    sd_logit=1.2,
    unsolvable_share=0.1,
    correlation=-0.4,
)


@pytest.fixture(scope="module")
def with_lengths():
    return fit_workload(table_of(TRUE, n_prompts=260), selection="all", goodness=False, n_draws=300)


@pytest.mark.parametrize("guess", [0.0, 0.15])
def test_compositions_have_the_likelihood_that_scipy_integrates(guess):
    right, judged = np.array([0.0, 3.0, 5.0, 0.0]), np.array([4.0, 4.0, 5.0, 2.0])
    share, sd, accuracy = 0.2, 1.3, 0.4
    mean = accuracy * np.sqrt(1 + 0.346 * sd**2)
    expected = 0.0
    for k, n in zip(right, judged, strict=True):

        def inner(z, k=k, n=n):
            p = special.expit(mean + sd * z)
            return p**k * (1 - p) ** (n - k) * stats.norm.pdf(z)

        atom = guess**k * (1 - guess) ** (n - k)
        expected += np.log(0.8 * integrate.quad(inner, -9, 9, epsabs=1e-12)[0] + share * atom)
    found = Compositions(right, judged, n_nodes=121)
    value, slope = found.log_likelihood(share, np.array([accuracy, np.log(sd)]), guess)
    # the nodes end at ±5 standard deviations, beyond which lies 6e-7 of the mass
    assert value == pytest.approx(expected, abs=5e-6)
    with np.errstate(divide="ignore"):
        x = np.array([accuracy, np.log(sd), special.logit(share), special.logit(guess)])

    def at(x):
        return found.log_likelihood(float(special.expit(x[2])), x[:2], float(special.expit(x[3])))

    for i, step in enumerate(np.eye(4) * 1e-5):
        assert slope[i] == pytest.approx((at(x + step)[0] - at(x - step)[0]) / 2e-5, abs=1e-5)


@pytest.mark.parametrize("guess", [0.0, 0.2])
def test_the_likelihood_mixes_the_law_with_itself_at_the_guess_rate(guess):
    """Its parts are fits without the atom: one at the law's accuracy, one where all are guesses."""
    law = TRUE.model_copy(
        update={
            "loop_share": 0.1,
            "unsolvable_share": 0.3,
            "guess_rate": guess,
            "mean_logit": -0.5,
        }
    )
    rows, _ = prepare(
        table_of(law, n_prompts=40, n=4, cap=900), selection="all", cap_tokens=900, steps=None
    )
    values = {
        "log_median": 6.3,
        "log_between": -0.5,
        "log_within": -1.0,
        "correct_effect": -0.2,
        "accuracy_logit": 0.1,
        "log_sd_logit": 0.3,
        "atanh_correlation": -0.5,
        "loop_logit": -2.0,
        "log_loop_sd": 0.2,
        "atanh_loop_correlation": 0.3,
    }

    def contributions(**changed):
        fixed = {**values, "unsolvable_logit": -np.inf, "guess_logit": -np.inf, **changed}
        return Likelihood(rows, Problem(True, True, fixed=fixed)).contributions(np.empty(0))

    with np.errstate(divide="ignore"):
        at_guess = float(special.logit(guess))
    # no spread of pass rates: all at the guess rate, levels and loops as before
    guessed = contributions(accuracy_logit=max(at_guess, -300.0), log_sd_logit=-300.0)
    plain = contributions()
    expected = np.log(0.7 * np.exp(plain) + 0.3 * np.exp(guessed))
    found = contributions(unsolvable_logit=float(special.logit(0.3)), guess_logit=at_guess)
    assert found == pytest.approx(expected, abs=1e-9)
    assert rows.truncated.any()
    assert np.abs(found - plain).max() > 0.5


def test_the_share_comes_back_and_a_5_percent_larger_one_would_not():
    right, judged = counts(1.5, 1.0, 0.1, n_prompts=400_000, n=16)
    none, best = Compositions(right, judged, n_nodes=61).best()
    # a known solver of each prompt would leave the binomial error of the share alone; p^16 of
    # solvable prompts without a right answer is small beside it
    se = np.sqrt(0.1 * 0.9 / 400_000)
    assert abs(best.share - 0.1) < 4.5 * se
    assert abs(best.share - 1.05 * 0.1) > 4.5 * se
    assert np.exp(best.log_sd_logit) == pytest.approx(1.0, rel=0.02)
    assert np.exp(none.log_sd_logit) > 1.5


@pytest.mark.parametrize(
    "name",
    [
        "unsolvable_share",
        "mean_logit",
        "sd_logit",
        "correlation",
        "median_tokens",
        "sigma",
        "correct_effect",
    ],
)
def test_the_joint_law_comes_back_with_lengths(with_lengths, name):
    """They are like those of other prompts, and the fit takes them so: all else stays right."""
    found = with_lengths.estimates[name]
    se = (found.high - found.low) / (2 * 2.5758)
    assert abs(found.value - getattr(TRUE, name)) < 4.5 * se
    if name == "unsolvable_share":
        assert found.low < TRUE.unsolvable_share < found.high


def test_never_solved_prompts_ask_for_no_guess_rate(with_lengths):
    assert with_lengths.workload.guess_rate == 0.0
    assert "guess_rate" not in with_lengths.estimates
    why = reasons(with_lengths)["guess_rate"]
    assert why.startswith("0 fits these data; up to ")
    assert 0.001 < float(why.split("up to ")[1].split()[0]) < 0.25


def test_it_is_said_and_written(with_lengths, tmp_path):
    (said,) = with_lengths.warnings
    assert "fitted as never solved" in said
    assert "unsolvable_share" not in reasons(with_lengths)
    text = to_toml(with_lengths, draws_file="w.draws.csv")
    workload = build({"workload": tomllib.loads(text)["workload"]}).workload
    assert workload.unsolvable_share == with_lengths.workload.unsolvable_share > 0.05
    (tmp_path / "w.draws.csv").write_text(draws_text(with_lengths))
    draws = read_draws(tmp_path / "w.draws.csv")
    assert 0 < draws["unsolvable_share"].min() < draws["unsolvable_share"].max() < 1
    drawn = with_draw(workload, draws, number=3)
    assert drawn.unsolvable_share == pytest.approx(draws["unsolvable_share"][3])


@pytest.mark.parametrize("mean", [-1.0, 0.5])
def test_solvable_prompts_alone_ask_for_no_atom(mean):
    """One seed in a thousand may, by the level of the test; of these sixteen none does."""
    for seed in range(8):
        right, judged = counts(mean, 1.8, 0.0, n_prompts=200, seed=seed)
        shapes = Compositions(right, judged, n_nodes=61)
        none, best = shapes.best()
        assert best.log_likelihood - none.log_likelihood < NEEDED
        assert shapes.guessed(best).log_likelihood - none.log_likelihood < NEEDED_TOGETHER


def test_what_does_not_ask_for_it_is_fitted_as_if_it_were_unknown(monkeypatch):
    right, _ = counts(2.0, 0.8, 0.0, n_prompts=200, seed=4)
    asked = fit_workload(verdicts_of(right), selection="all", goodness=False, n_draws=50)
    monkeypatch.setattr(joint, "ask_unsolvable", lambda rows, settled: (settled, ()))
    unasked = fit_workload(verdicts_of(right), selection="all", goodness=False, n_draws=50)
    assert asked.estimates == unasked.estimates
    assert asked.draws.equals(unasked.draws)
    assert asked.workload == unasked.workload
    why = reasons(asked)["unsolvable_share"]
    assert "wide logit law" not in why
    # Every group has a right answer, which has odds (1 − u)^200: χ²₁/2 at 99 % is 3.317.
    largest = float(why.removeprefix("0 fits these data; up to ").split()[0])
    assert largest == pytest.approx(3.317 / 200, abs=0.001)


def test_hard_prompts_in_small_groups_hide_it_and_that_is_said():
    right, _ = counts(-1.0, 1.5, 0.1, n_prompts=200, n=4, seed=1)
    fit = fit_workload(verdicts_of(right, 4), selection="all", goodness=False, n_draws=50)
    assert fit.workload.unsolvable_share == 0.0
    why = reasons(fit)["unsolvable_share"]
    assert "groups of 4 judged answers hardly tell it from a wide logit law" in why
    assert float(why.split("up to ")[1].split()[0]) > 0.1


def test_kept_groups_and_single_answers_cannot_show_it():
    right, _ = counts(0.5, 1.5, 0.2, n_prompts=200, seed=5)
    kept = verdicts_of(right[(right > 0) & (right < 8)])
    fit = fit_workload(kept, selection="kept_mixed", goodness=False, n_draws=50)
    assert reasons(fit)["unsolvable_share"] == (
        "such prompts leave no kept group, or guessed ones that look hard; 0 is assumed"
    )
    one = verdicts_of(right).groupby("prompt_id").head(1)
    fit = fit_workload(one, selection="all", goodness=False, n_draws=50)
    assert reasons(fit)["unsolvable_share"] == "one response a prompt; 0 is assumed"


def test_held_out_accuracy_of_mixed_groups_holds_with_it_and_fails_without(monkeypatch):
    right, _ = counts(3.2, 1.2, 0.1, n_prompts=500, seed=6)
    table = verdicts_of(right)
    held = fit_workload(table, selection="all", n_draws=100)
    monkeypatch.setattr(joint, "ask_unsolvable", lambda rows, settled: (settled, ()))
    without = fit_workload(table, selection="all", n_draws=100)
    verdicts = [
        {g.quantity: g.verdict for g in fit.goodness}["accuracy of mixed groups"]
        for fit in (held, without)
    ]
    assert verdicts == ["holds", "fails"]


def test_the_checker_counts_fewer_mixed_groups(tmp_path):
    """Half of the prompts never solved, the others at 1/2: 1/2 · (1 − 2/16) of groups of 4."""
    file = tmp_path / "w.toml"
    half = "[workload]\nmean_logit = 0.0\nsd_logit = 0.0\nunsolvable_share = 0.5\n"
    file.write_text(half)
    own = 0.5 * (1 - 2 / 16)
    assert from_workload(file, group_size=4).p_mixed == pytest.approx(own)
    file.write_text(half + "guess_rate = 0.25\n")
    guessed = 0.5 * (1 - (1 + 81) / 256)
    assert from_workload(file, group_size=4).p_mixed == pytest.approx(own + guessed)
