"""Do the intervals cover as often as they say, and would the test notice if they did not?

Each coverage is a share over independent simulated studies at a fixed seed; it must lie within
4.5 standard errors of 99 %. Every one has a twin that must be rejected: the truth moved by 5 %, or
the normal factor where Student's belongs.
"""

import math

import numpy as np
import pytest

from dapolab import stats

N_STUDIES = 3000
SLACK = 4.5 * math.sqrt(0.99 * 0.01 / N_STUDIES)


def covers_as_stated(hits: int) -> bool:
    return abs(hits / N_STUDIES - 0.99) <= SLACK


def at_least_as_stated(hits: int) -> bool:
    return hits / N_STUDIES >= 0.99 - SLACK


def totals(rng: np.random.Generator, *, n: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and trained groups of n replications of ten steps, 30·scale seconds a group."""
    groups_NS = rng.binomial(4, 0.75, size=(n, 10))
    seconds_NS = scale * 30.0 * (1.5 + 0.5 * groups_NS) * rng.lognormal(-0.08, 0.4, size=(n, 10))
    return seconds_NS.sum(axis=1), groups_NS.sum(axis=1).astype(float)


def test_mean_interval_covers_and_the_normal_factor_does_not():
    rng = np.random.default_rng(101)
    hits = twin = 0
    for _ in range(N_STUDIES):
        x = rng.normal(3.0, 2.0, size=6)
        got = stats.mean_estimate(x)
        hits += got.covers(3.0)
        twin += abs(x.mean() - 3.0) <= 2.5758 * x.std(ddof=1) / math.sqrt(6)
    assert covers_as_stated(hits)
    assert not covers_as_stated(twin)


def test_wilson_covers_a_share():
    rng = np.random.default_rng(102)
    n, p = 20_000, 0.2
    intervals = [stats.wilson(int(k), n) for k in rng.binomial(n, p, size=N_STUDIES)]
    assert covers_as_stated(sum(interval.covers(p) for interval in intervals))
    assert not covers_as_stated(sum(interval.covers(p * 1.05) for interval in intervals))


def test_quantile_interval_covers():
    rng = np.random.default_rng(103)
    truth = math.log(10)  # the 90 % point of a unit exponential
    hits = twin = 0
    for _ in range(N_STUDIES):
        got = stats.quantile_estimate(rng.exponential(size=3000), 0.9)
        hits += got.covers(truth)
        twin += got.covers(truth * 1.05)
    assert at_least_as_stated(hits)  # order statistics are discrete: never less than stated
    assert not at_least_as_stated(twin)


@pytest.mark.parametrize("n", [8, 20])
def test_ratio_of_totals_covers(n):
    # E seconds = 30 (1.5 + 0.5·3) = 90 a step and E groups = 3, so 30 s a group
    rng = np.random.default_rng(104)
    hits = twin = 0
    for _ in range(N_STUDIES):
        got = stats.ratio_of_totals(*totals(rng, n=n, scale=1.0))
        hits += got.covers(30.0)
        twin += got.covers(30.0 * 1.05)
    assert covers_as_stated(hits)
    assert not covers_as_stated(twin)


def test_paired_ratio_covers():
    rng = np.random.default_rng(105)
    hits = twin = 0
    for _ in range(N_STUDIES):
        base = totals(rng, n=20, scale=1.0)
        other = totals(rng, n=20, scale=0.8)
        common = rng.lognormal(0.0, 0.5, size=20)  # a workload that is hard for both
        a = (other[0] * common, other[1] * common)
        b = (base[0] * common, base[1] * common)
        got = stats.paired_ratio(*a, *b)
        hits += got.covers(0.8)
        twin += got.covers(0.8 * 1.05)
    assert covers_as_stated(hits)
    assert not covers_as_stated(twin)


def autoregression(rng: np.random.Generator, *, n: int, rho: float) -> np.ndarray:
    from scipy.signal import lfilter

    x, _ = lfilter(
        [1.0], [1.0, -rho], rng.normal(size=n), zi=[rng.normal() * rho / math.sqrt(1 - rho**2)]
    )
    return x


def test_batch_means_cover_a_dependent_series_and_single_values_do_not():
    rng = np.random.default_rng(106)
    hits = twin = flagged = 0
    for _ in range(N_STUDIES):
        x = autoregression(rng, n=2000, rho=0.6)
        got = stats.batch_means(x)
        hits += got.estimate.covers(0.0)
        flagged += got.correlated
        twin += stats.mean_estimate(x).covers(0.0)
    assert covers_as_stated(hits)
    assert not covers_as_stated(twin)
    assert flagged / N_STUDIES < 0.10  # 5 % by its definition, and little correlation remains


def test_batch_means_flag_batches_that_are_too_short():
    rng = np.random.default_rng(107)
    flags = [stats.batch_means(autoregression(rng, n=100, rho=0.95)).correlated for _ in range(300)]
    assert np.mean(flags) > 0.8


@pytest.mark.parametrize("n_policies", [2, 7, 40])
def test_identical_policies_have_no_winner(n_policies):
    rng = np.random.default_rng(108)
    winners = 0
    for _ in range(100):
        common = rng.normal(size=20)
        values = {f"p{i}": common + rng.normal(size=20) for i in range(n_policies)}
        winners += not stats.best_set(values).is_tie
    assert winners <= 1


def test_identical_policies_have_no_winner_by_ratio():
    rng = np.random.default_rng(109)
    winners = sum(
        not stats.best_set_of_ratios(
            {f"p{i}": totals(rng, n=20, scale=1.0) for i in range(6)}
        ).is_tie
        for _ in range(100)
    )
    assert winners <= 1


def test_the_best_is_in_the_set_and_a_clear_loser_is_not():
    rng = np.random.default_rng(110)
    lost = kept_loser = 0
    for _ in range(400):
        values = {"best": rng.normal(10.0, 1.0, 20), "near": rng.normal(10.1, 1.0, 20)}
        values["far"] = rng.normal(10.0 * 1.3, 1.0, 20)
        names = stats.best_set(values).names
        lost += "best" not in names
        kept_loser += "far" in names
    assert lost <= 400 * 0.005 + 4.5 * math.sqrt(400 * 0.005)
    assert kept_loser <= 4
