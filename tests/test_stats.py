"""Exact and small: intervals against scipy or a formula written here."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from dapolab import stats


def test_json_is_the_metric_of_the_contract():
    document = json.loads(json.dumps(stats.mean_estimate([1.0, 2.0, 3.0], unit="s").to_json()))
    assert list(document) == ["mean", "low", "high", "n", "unit"]
    assert (document["mean"], document["n"], document["unit"]) == (2.0, 3, "s")
    exact = stats.Estimate.exact(np.float64(4.0), unit="waves").to_json()
    assert exact == {"mean": 4.0, "low": None, "high": None, "n": 1, "unit": "waves"}
    assert type(exact["mean"]) is float


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_never_becomes_an_estimate(bad):
    with pytest.raises(ValueError, match="missing metric"):
        stats.Estimate(bad, None, None, 3, "s")
    with pytest.raises(ValueError, match="high"):
        stats.Estimate(1.0, 0.5, bad, 3, "s")
    with pytest.raises(ValueError, match="leave"):
        stats.mean_estimate([1.0, bad])


def test_mean_is_scipys_t_interval():
    x = [3.0, 4.5, 7.0, 2.0, 9.0, 4.0]
    got = stats.mean_estimate(x, level=0.95)
    low, high = scipy_stats.t.interval(0.95, 5, loc=np.mean(x), scale=scipy_stats.sem(x))
    assert (got.mean, got.low, got.high) == pytest.approx((np.mean(x), low, high))


def test_one_repetition_has_no_interval_and_equal_ones_have_zero_width():
    assert stats.mean_estimate([5.0]) == stats.Estimate(5.0, None, None, 1, "")
    assert not stats.mean_estimate([5.0]).has_interval
    tie = stats.mean_estimate([0.1] * 7, unit="s")
    assert (tie.mean, tie.low, tie.high) == (0.1, 0.1, 0.1)
    assert tie.covers(0.1)
    assert not tie.covers(0.2)


@pytest.mark.parametrize(("k", "n"), [(0, 20), (20, 20), (7, 20), (1, 3000)])
def test_wilson_is_scipys(k, n):
    judge = scipy_stats.binomtest(k, n).proportion_ci(0.99, method="wilson")
    got = stats.wilson(k, n)
    assert (got.mean, got.low, got.high) == pytest.approx((k / n, judge.low, judge.high), abs=1e-12)


def test_quantile_ends_satisfy_the_binomial_bound():
    n, p, level = 60, 0.5, 0.95
    got = stats.quantile_estimate(np.arange(1, n + 1), p, level=level)
    assert got.low is not None
    assert got.high is not None
    low, high = int(got.low), int(got.high)
    law = scipy_stats.binom(n, p)
    assert law.cdf(low - 1) <= 0.025 < law.cdf(low)
    assert law.sf(high - 1) <= 0.025 < law.sf(high - 2)
    assert law.cdf(high - 1) - law.cdf(low - 1) >= level


def test_a_quantile_end_that_does_not_exist_is_none():
    got = stats.quantile_estimate(np.arange(20.0), 0.99)
    assert got.high is None
    assert got.low is not None


def test_ratio_of_totals_is_the_log_jackknife():
    num, den = np.array([10.0, 14.0, 9.0, 20.0]), np.array([4.0, 5.0, 4.0, 6.0])
    got = stats.ratio_of_totals(num, den, unit="s/group", level=0.9)
    logs = [
        math.log(np.delete(num, i).sum() / np.delete(den, i).sum()) for i in range(4)
    ]  # by hand
    se = math.sqrt(3 / 4 * sum((v - sum(logs) / 4) ** 2 for v in logs))
    t = scipy_stats.t.ppf(0.95, 3)
    assert got.mean == pytest.approx(53 / 19)
    assert got.low == pytest.approx(53 / 19 * math.exp(-t * se))
    assert got.high == pytest.approx(53 / 19 * math.exp(t * se))
    assert got.unit == "s/group"


def test_ratio_of_totals_at_its_edges():
    assert stats.ratio_of_totals([0, 0], [3, 4]) == stats.Estimate(0.0, 0.0, 0.0, 2, "ratio")
    assert not stats.ratio_of_totals([0, 5], [3, 4]).has_interval  # one replication decides
    assert not stats.ratio_of_totals([5], [3]).has_interval
    same = stats.ratio_of_totals([2, 4, 6], [1, 2, 3])
    assert same.low == pytest.approx(2)
    assert same.high == pytest.approx(2)
    with pytest.raises(ValueError, match="0 in every"):
        stats.ratio_of_totals([1, 2], [0, 0])
    with pytest.raises(ValueError, match="not negative"):
        stats.ratio_of_totals([1, -2], [1, 1])
    with pytest.raises(ValueError, match="one numerator"):
        stats.ratio_of_totals([1, 2], [1])


def test_a_replication_that_trains_nothing_still_pays_its_seconds():
    got = stats.ratio_of_totals([100.0, 100.0, 100.0], [4, 0, 4])
    assert got.mean == pytest.approx(300 / 8)
    assert got.has_interval


def test_paired_ratio_of_a_policy_with_itself_is_exactly_one():
    num, den = [3.0, 5.0, 8.0], [1.0, 2.0, 2.0]
    got = stats.paired_ratio(num, den, num, den)
    assert (got.mean, got.low, got.high) == (1.0, 1.0, 1.0)


def test_pairing_removes_the_common_noise():
    rng = np.random.default_rng(5)
    common = rng.lognormal(sigma=1.0, size=30)
    a, b = common * 1.2 * rng.lognormal(sigma=0.01, size=30), common
    ones = np.ones(30)
    paired = stats.paired_ratio(a, ones, b, ones)
    shuffled = stats.paired_ratio(a, ones, b[::-1], ones)
    assert paired.high - paired.low < (shuffled.high - shuffled.low) / 20
    assert paired.covers(1.2)


def test_paired_ratio_refuses_what_cannot_be_compared():
    with pytest.raises(ValueError, match="same replications"):
        stats.paired_ratio([1, 2], [1, 1], [1], [1])
    with pytest.raises(ValueError, match="nothing can be compared"):
        stats.paired_ratio([1, 2], [1, 1], [0, 0], [1, 1])
    assert stats.paired_ratio([0, 0], [1, 1], [1, 2], [1, 1]).mean == 0.0


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=2, max_size=12),
    st.floats(0.01, 100),
)
def test_ratio_scales_with_its_unit_and_inverts(pairs, scale):
    num, den = (np.array(part) for part in zip(*pairs, strict=True))
    got = stats.ratio_of_totals(num, den)
    if not got.has_interval or got.low < 1e-100 or got.high > 1e100:
        return
    scaled = stats.ratio_of_totals(num * scale, den)
    assert scaled.low == pytest.approx(got.low * scale, rel=1e-6)
    inverse = stats.ratio_of_totals(den, num)
    assert inverse.low == pytest.approx(1 / got.high, rel=1e-6)


@given(st.permutations(range(8)))
def test_order_of_replications_does_not_matter(order):
    rng = np.random.default_rng(1)
    num, den = rng.random(8) + 1, rng.random(8) + 1
    first = stats.paired_ratio(num, den, den, num)
    again = stats.paired_ratio(num[order], den[order], den[order], num[order])
    assert again.low == pytest.approx(first.low)
    assert again.high == pytest.approx(first.high)


def test_bonferroni_level():
    assert stats.simultaneous(0.99, n_comparisons=1) == pytest.approx(0.99)
    assert stats.simultaneous(0.99, n_comparisons=5) == pytest.approx(0.998)
    with pytest.raises(ValueError, match="at least one"):
        stats.simultaneous(n_comparisons=0)


def test_best_set_by_hand():
    rng = np.random.default_rng(2)
    noise = rng.normal(size=20)
    values = {
        "slow": 10 + noise + rng.normal(scale=0.1, size=20),
        "fast": 5 + noise + rng.normal(scale=0.1, size=20),
        "also fast": 5.01 + noise + rng.normal(scale=0.1, size=20),
    }
    got = stats.best_set(values)
    assert set(got.names) == {"fast", "also fast"}
    assert got.is_tie
    assert got.beaten_by["slow"] in {"fast", "also fast"}
    assert stats.best_set(values, minimise=False).names == ("slow",)


def test_best_set_exact_ties_and_exact_differences():
    tie = stats.best_set({"a": [0.1, 0.2, 0.3], "b": [0.1, 0.2, 0.3]})
    assert set(tie.names) == {"a", "b"}
    shifted = stats.best_set({"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0, 4.0]})
    assert shifted.names == ("a",)
    scaled = stats.best_set_of_ratios(
        {"a": ([0.1, 0.2, 0.7], [1, 1, 1]), "b": ([0.3, 0.6, 2.1], [3, 3, 3])}
    )
    assert set(scaled.names) == {"a", "b"}
    assert stats.best_set({"a": [1.0], "b": [9.0]}).names == ("a", "b")
    assert stats.best_set({"only": [1.0, 2.0]}).names == ("only",)


def test_best_set_of_ratios_agrees_with_the_paired_ratio():
    rng = np.random.default_rng(8)
    den = rng.integers(3, 6, size=20).astype(float)
    totals = {
        "a": (den * rng.lognormal(sigma=0.05, size=20), den),
        "b": (den * 1.3 * rng.lognormal(sigma=0.05, size=20), den),
    }
    got = stats.best_set_of_ratios(totals)
    assert stats.paired_ratio(*totals["a"], *totals["b"]).high < 1
    assert got.names == ("a",)


def test_best_set_refuses_unpaired_and_empty_input():
    with pytest.raises(ValueError, match="at least one policy"):
        stats.best_set({})
    with pytest.raises(ValueError, match="same replications"):
        stats.best_set({"a": [1.0, 2.0], "b": [1.0]})
    with pytest.raises(ValueError, match="total of 0"):
        stats.best_set_of_ratios({"a": ([1.0, 2.0], [0, 0])})


def test_batch_means_by_hand_and_its_limits():
    x = np.arange(43.0)
    got = stats.batch_means(x, n_batches=20)
    means = x[3:].reshape(20, 2).mean(axis=1)  # the remainder goes from the start
    assert got.estimate.mean == pytest.approx(means.mean())
    assert got.batch_size == 2
    assert got.correlated  # a trend
    assert "run longer" in (got.warning or "")
    assert not stats.batch_means(np.full(40, 0.3)).correlated
    with pytest.raises(ValueError, match="at least 20"):
        stats.batch_means(x, n_batches=10)
    with pytest.raises(ValueError, match="too few"):
        stats.batch_means(x[:5])


def test_bad_levels_shares_and_quantiles_are_refused():
    for call in (
        lambda: stats.mean_estimate([1.0, 2.0], level=1.0),
        lambda: stats.wilson(3, 2),
        lambda: stats.wilson(0, 0),
        lambda: stats.quantile_estimate([1.0], 1.0),
        lambda: stats.mean_estimate([]),
        lambda: stats.mean_estimate([[1.0]]),
        lambda: stats.paired_difference([1.0], [1.0, 2.0]),
        lambda: stats.best_set_of_ratios({"a": ([1.0], [1.0, 2.0])}),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            call()


def test_paired_difference_is_the_t_interval_of_differences():
    got = stats.paired_difference([3.0, 5.0, 4.0], [1.0, 2.0, 3.0], unit="s")
    low, high = scipy_stats.t.interval(0.99, 2, loc=2.0, scale=1.0 / math.sqrt(3))
    assert (got.mean, got.low, got.high) == pytest.approx((2.0, low, high))
