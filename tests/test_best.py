"""Rankings of a sweep: a set, confirmed on fresh seeds, no winner inside the noise."""

import numpy as np
import pandas as pd
import pytest
from cli_cases import Desk
from scipy import stats as judge

from dapolab import sweep
from dapolab.scenario import ConfigError
from dapolab.stats import screen
from dapolab.sweep.best import contenders

QUICK = ("--jobs", "1")
METRIC = "time/step_seconds"
SLOTS = """\
name = "s"
base = "tiny.toml"
[fixed]
"workload.lengths" = { kind = "lognormal", median_tokens = 20, sigma = 0.5 }
"run.replications" = 8
[grid]
"hardware.law.a_s" = [0.01, 0.02, 0.04]
"""


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    desk = Desk(tmp_path, capsys)
    desk.write("s.toml", SLOTS)
    return desk


def best(desk, *words, file="s.toml"):
    desk.done("sweep", file, "--json", *QUICK)
    return desk.done("best", file, "--json", *QUICK, *words).document


# stage 1


@pytest.mark.parametrize("n", [2, 20])
def test_a_thousand_equal_points_name_no_winner(n):
    rng = np.random.default_rng(1)
    winners = 0
    for _ in range(100):
        x = rng.normal(10.0, 1.0, (1000, n))
        kept = screen(x.mean(1), x.std(1, ddof=1) / n**0.5, np.full(1000, n))
        winners += kept.sum() == 1
    assert winners <= 1


def test_a_point_that_is_better_is_found_and_the_naive_ranking_is_wrong():
    rng = np.random.default_rng(2)
    found = naive = 0
    for _ in range(50):
        x = rng.normal(10.0, 1.0, (1000, 20))
        naive += x.mean(1).argmin() != 0  # all are equal, yet the lowest mean is always someone
        x[0] -= 5.0
        kept = screen(x.mean(1), x.std(1, ddof=1) / 20**0.5, np.full(1000, 20))
        found += kept.tolist() == [True] + [False] * 999
    assert found == 50
    assert naive > 40


def test_screening_agrees_with_welch_pair_by_pair():
    rng = np.random.default_rng(3)
    x = rng.normal(np.linspace(0, 3, 12)[:, None], rng.uniform(0.3, 2, 12)[:, None], (12, 9))
    level = 0.99
    kept = screen(x.mean(1), x.std(1, ddof=1) / 3, np.full(12, 9), level=level)
    wanted = []
    for mine in x:
        p = [judge.ttest_ind(mine, other, equal_var=False) for other in x if other is not mine]
        beaten = any(t.pvalue < (1 - level) / 11 and t.statistic > 0 for t in p)
        wanted.append(not beaten)
    assert kept.tolist() == wanted
    assert 1 < sum(wanted) < 12
    assert (
        screen(-x.mean(1), x.std(1, ddof=1) / 3, np.full(12, 9), minimise=False).tolist() == wanted
    )


def test_one_repetition_neither_wins_nor_loses():
    kept = screen([1.0, 5.0, 9.0], [0.0, 0.1, 0.1], [1, 20, 20])
    assert kept.tolist() == [True, True, False]
    assert screen([7.0], [0.1], [3]).tolist() == [True]
    with pytest.raises(ValueError, match="one entry each"):
        screen([1.0, 2.0], [0.1], [3])


def test_means_that_are_known_exactly_are_compared_as_numbers():
    assert screen([1.0, 1.0, 1.0 + 1e-15, 2.0], [0.0] * 4, [5] * 4).tolist() == [True] * 3 + [False]


# both stages


def test_the_best_is_named_and_its_numbers_are_of_fresh_seeds(desk):
    said = best(desk, "--metric", METRIC)
    name = "hardware.law.a_s=0.01"
    assert said["best_set"] == [name]
    assert said["winner"] == name
    assert said["baseline"] == name
    desk.write("fresh.toml", SLOTS.replace('name = "s"', 'name = "f"\nseeds = [1000]'))
    fresh = pd.read_parquet(desk.done("sweep", "fresh.toml", "--json", *QUICK).document["table"])
    own = pd.read_parquet("runs/s/s.parquet")
    assert said["confirmed"][name][METRIC]["mean"] == pytest.approx(fresh[METRIC][0], rel=1e-12)
    assert said["confirmed"][name][METRIC]["mean"] != own[METRIC][0]


def test_points_that_differ_in_nothing_are_a_tie(desk):
    desk.write(
        "t.toml",
        SLOTS.replace(
            '"hardware.law.a_s" = [0.01, 0.02, 0.04]',
            '"hardware.poll_s" = [0, 0.0]\n"hardware.replicas" = [1]',
        ).replace('"hardware.poll_s" = [0, 0.0]', '"learner.validation_s" = [0.0, 1.0, 2.0]'),
    )
    said = best(desk, "--metric", METRIC, file="t.toml")
    assert len(said["best_set"]) == 3
    assert said["winner"] is None
    ratio = said["confirmed"]["learner.validation_s=1, hardware.replicas=1"]["ratio"]
    assert (ratio["low"], ratio["mean"], ratio["high"]) == pytest.approx((1, 1, 1))


def test_limits_exclude_and_say_so(desk):
    said = best(desk, "--metric", METRIC, "--maximise", "--subject-to", f"{METRIC} <= 1.5")
    names = [f"hardware.law.a_s={a}" for a in (0.01, 0.02, 0.04)]
    assert said["set_aside"] == {names[2]: "breaks a limit"}
    assert said["best_set"] == [names[1]]
    message = desk.refused("best", "s.toml", "--subject-to", f"{METRIC} < 0.001", *QUICK)
    assert "no point satisfies time/step_seconds < 0.001" in message


def test_no_update_and_failed_runs_are_not_ranked(desk):
    text = SLOTS.replace(
        '"hardware.law.a_s" = [0.01, 0.02, 0.04]', '"workload.pass_rate.p" = [0.0, 0.5]'
    )
    desk.write("s.toml", text)
    said = best(desk, "--metric", METRIC)  # the fastest step is the one that trains nothing
    assert said["set_aside"] == {"workload.pass_rate.p=0": "no update happened"}
    assert said["best_set"] == ["workload.pass_rate.p=0.5"]
    failing = (
        '"collector.kind" = "rounds"\n"collector.max_num_gen_batches" = 1\n'
        '"collector.gen_groups" = 2\n[grid]'
    )
    desk.write(
        "f.toml",
        text.replace("[grid]", failing).replace('"s"', '"f"').replace("[0.0, 0.5]", "[0.0, 0.9]"),
    )
    desk.done("sweep", "f.toml", "--json", *QUICK)
    message = desk.refused("best", "f.toml", *QUICK)
    assert "no point can be ranked" in message
    assert "of its runs failed" in message or "failed:" in message


def test_the_front_holds_what_nothing_beats_twice(desk):
    desk.write(
        "p.toml",
        SLOTS.replace(
            '"hardware.law.a_s" = [0.01, 0.02, 0.04]',
            '"rollout.groups_per_step" = [2, 4]\n"hardware.law.a_s" = [0.01, 0.04]',
        ),
    )
    said = best(desk, "--metric", METRIC, "--pareto", "rollout/candidate_groups", file="p.toml")
    # at each law fewer groups are cheaper and quicker; the slow law is beaten by the fast one
    assert said["pareto"] == ["rollout.groups_per_step=2, hardware.law.a_s=0.01"]
    other = best(
        desk, "--metric", METRIC, "--pareto", "rollout/mean_completion_tokens", file="p.toml"
    )
    assert set(other["pareto"]) >= set(said["pareto"])


def test_seeds_of_a_setting_count_together(desk):
    two = sweep.read_sweep(
        desk.write("s.toml", SLOTS.replace('name = "s"', 'name = "s"\nseeds = [0, 1]'))
    )
    points = sweep.expand(two, folder=desk.folder)
    table = sweep.run_sweep(points, desk.folder / "out", n_jobs=1).table
    found, aside = contenders(points, table)
    assert (len(found), aside) == (3, {})
    mean, error, n = found[0].values[METRIC]
    rows = table[table["set/hardware.law.a_s"] == 0.01]
    assert mean == pytest.approx(rows[METRIC].mean())
    assert error == pytest.approx(np.sqrt((rows[f"{METRIC}/se"] ** 2).sum()) / 2)
    assert n == 16
    with pytest.raises(ConfigError, match="fresh"):
        sweep.select(points, table, metric=METRIC, fresh_seed=1)


def test_too_many_ties_are_said_not_hidden(desk, monkeypatch):
    monkeypatch.setattr("dapolab.sweep.best.MOST_CONFIRMED", 2)
    desk.write(
        "t.toml",
        SLOTS.replace(
            '"hardware.law.a_s" = [0.01, 0.02, 0.04]', '"learner.validation_s" = [0.0, 1.0, 2.0]'
        ),
    )
    said = best(desk, "--metric", METRIC, file="t.toml")
    assert len(said["not_confirmed"]) == 1
    assert said["winner"] is None
    out = desk.done("best", "t.toml", "--metric", METRIC, *QUICK).out
    assert "1 more could not be told apart" in " ".join(out.split())


def test_what_cannot_be_ranked_is_refused(desk):
    assert "run dapolab sweep first" in desk.refused("best", "s.toml", *QUICK)
    message = desk.refused("best", "s.toml", "--metric", "time/step_secondz", *QUICK)
    assert "nearest: time/step_seconds" in message
    assert "METRIC <= NUMBER" in desk.refused("best", "s.toml", "--subject-to", "waves", *QUICK)


def test_text_fits_and_names_the_set(desk):
    desk.done("sweep", "s.toml", *QUICK)
    out = desk.done("best", "s.toml", "--metric", METRIC, *QUICK).out
    assert "best of 3 points by time/step_seconds: hardware.law.a_s=0.01" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
