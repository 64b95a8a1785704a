"""The guess rate of unsolvable prompts: found where the data show it, and said."""

import tomllib

import numpy as np
import pytest
from scipy import special

from dapolab.scenario import ConfigError, JointWorkload, build
from dapolab.workload.fit import draws_text, fit_workload, read_draws, to_toml, with_draw
from dapolab.workload.fit.compositions import Compositions
from dapolab.workload.fit.problem import location
from dapolab.workload.fit.unsolvable import NEEDED_TOGETHER
from tests.prompt_tables import counts, reasons, table_of, verdicts_of

# Solvable prompts leave room below: most of their groups have seven right or eight.
EASY = JointWorkload(
    median_tokens=600.0,
    sigma=0.7,
    correct_effect=-0.2,
    mean_logit=3.0,
    sd_logit=1.0,
    unsolvable_share=0.15,
    guess_rate=0.25,
    correlation=-0.4,
)


@pytest.fixture(scope="module")
def guessed():
    """Fits of 700 prompts, by the guess rate in them."""
    fits = {}
    for guess in (0.04, 0.25):
        right, _ = counts(3.0, 1.0, 0.15, n_prompts=700, seed=7, guess=guess)
        fits[guess] = fit_workload(verdicts_of(right), selection="all", goodness=False, n_draws=300)
    return fits


@pytest.mark.parametrize("guess", [0.04, 0.25])
def test_the_guess_rate_comes_back(guessed, guess):
    fit = guessed[guess]
    truth = {"guess_rate": guess, "unsolvable_share": 0.15, "mean_logit": 3.0, "sd_logit": 1.0}
    for name, value in truth.items():
        found = fit.estimates[name]
        assert found.low < value < found.high, name
    # told from the other rate, and from none
    found = fit.estimates["guess_rate"]
    assert found.low > 0.0
    assert found.high < 0.11 if guess == 0.04 else found.low > 0.11
    assert "guess_rate" not in reasons(fit)


def test_the_guess_rate_comes_back_with_lengths():
    fit = fit_workload(table_of(EASY, n_prompts=600), selection="all", goodness=False, n_draws=300)
    for name in ("guess_rate", "unsolvable_share", "correct_effect", "correlation", "sigma"):
        found = fit.estimates[name]
        assert found.low < getattr(EASY, name) < found.high, name


def test_a_guess_rate_is_found_sharply_where_prompts_are_many():
    """Within 4.5 standard errors of one who knows each prompt's kind; 5 % off is not."""
    n, guess = 200_000, 0.1
    right, judged = counts(3.0, 0.8, 0.3, n_prompts=n, n=16, guess=guess)
    shapes = Compositions(right, judged, n_nodes=61)
    found = shapes.guessed(shapes.best()[1])
    # nine right or more of sixteen guesses: 6e-6; eight or fewer of a solvable prompt: 1.2e-3
    se = np.sqrt(guess * (1 - guess) / (0.3 * n * 16))
    assert abs(found.guess_rate - guess) < 4.5 * se
    assert abs(found.guess_rate - 1.05 * guess) > 4.5 * se
    assert found.share == pytest.approx(0.3, abs=4.5 * np.sqrt(0.3 * 0.7 / n))


def test_the_largest_guess_rate_is_that_of_groups_known_to_be_unsolvable():
    """Twenty groups of 8 with nothing right among others that nearly all are: odds (1 − g)^160."""
    right = np.array([0.0] * 20 + [8.0] * 300 + [7.0] * 40)
    shapes = Compositions(right, np.full(360, 8.0), n_nodes=61)
    _, best = shapes.best()
    assert best.share == pytest.approx(20 / 360, rel=3e-3)
    # χ²₁/2 at 99 % is 3.317
    expected = 1 - np.exp(-3.317 / 160)
    assert shapes.largest_guess(best) == pytest.approx(expected, abs=1e-3)


def test_an_atom_that_is_easier_than_most_prompts_is_not_called_unsolvable():
    """A third at .45 among hard ones: the data ask for it loudly, but it is not the hard end."""
    mean, sd, share, rate = -2.0, 1.5, 0.3, 0.45
    right, judged = counts(mean, sd, share, n_prompts=1500, seed=2, guess=rate)
    shapes = Compositions(right, judged, n_nodes=61)
    none, best = shapes.best()
    true = np.array([mean / location(1.0, sd), np.log(sd)])
    assert shapes.log_likelihood(share, true, rate)[0] - none.log_likelihood > NEEDED_TOGETHER
    assert shapes.guessed(best).harder
    fit = fit_workload(verdicts_of(right), selection="all", goodness=False, n_draws=20)
    assert fit.workload.guess_rate < special.expit(fit.workload.mean_logit)
    assert fit.workload.guess_rate != pytest.approx(rate, abs=0.1)


def test_a_guess_rate_is_said_and_written(guessed, tmp_path):
    fit = guessed[0.04]
    (said,) = fit.warnings
    assert f"right by guess alone, {fit.workload.guess_rate:.2g} of the time" in said
    assert "of it by the guess rate" in said
    # no group at .25 asks for prompts that are never right
    (said,) = guessed[0.25].warnings
    assert "of it by the guess rate" not in said
    text = to_toml(fit, draws_file="w.draws.csv")
    estimate = fit.estimates["guess_rate"]
    assert f"  # {estimate.low:.4g} … {estimate.high:.4g}" in text.split("guess_rate = ")[1]
    workload = build({"workload": tomllib.loads(text)["workload"]}).workload
    assert workload.guess_rate == fit.workload.guess_rate > 0.01
    (tmp_path / "w.draws.csv").write_text(draws_text(fit))
    draws = read_draws(tmp_path / "w.draws.csv")
    drawn = with_draw(workload, draws, number=3)
    assert drawn.guess_rate == pytest.approx(draws["guess_rate"][3])
    assert drawn.guess_rate != workload.guess_rate


def test_a_guess_rate_without_unsolvable_prompts_is_refused():
    """It would pass for a floor under every prompt's pass rate."""
    with pytest.raises(ConfigError, match="set unsolvable_share too"):
        build({"workload": {"kind": "joint", "guess_rate": 0.25}})
    with pytest.raises(ConfigError, match="guess_rate"):
        build({"workload": {"kind": "joint", "guess_rate": 1.0, "unsolvable_share": 0.1}})
    law = {"kind": "joint", "guess_rate": 0.25, "unsolvable_share": 0.1}
    assert build({"workload": law}).workload.guess_rate == 0.25
