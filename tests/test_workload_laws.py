"""Length and pass-rate laws against scipy and closed forms; each with a twin that must fail."""

import numpy as np
import pytest
from scipy import special, stats

from dapolab.scenario import (
    BetaPassRate,
    ConfigError,
    ConstantLengths,
    EmpiricalLengths,
    ExponentialLengths,
    FixedPassRate,
    GeometricLengths,
    ListedPassRate,
    LogitNormalPassRate,
    LognormalLengths,
    MixedProbability,
    ParetoLengths,
    WeibullLengths,
)
from dapolab.workload import (
    length_law,
    mixed_probability_given,
    pass_rate_for,
    pass_rate_law,
)

CAP = 3000
LAWS = {
    "geometric": (
        GeometricLengths(mean_tokens=700.0),
        stats.geom(1 / 700.0),
        GeometricLengths(mean_tokens=735.0),
    ),
    "exponential": (
        ExponentialLengths(mean_tokens=700.0),
        stats.expon(scale=700.0),
        ExponentialLengths(mean_tokens=735.0),
    ),
    "lognormal": (
        LognormalLengths(median_tokens=800.0, sigma=0.7),
        stats.lognorm(0.7, scale=800.0),
        LognormalLengths(median_tokens=840.0, sigma=0.7),
    ),
    "weibull": (
        WeibullLengths(scale_tokens=900.0, shape=1.2),
        stats.weibull_min(1.2, scale=900.0),
        WeibullLengths(scale_tokens=945.0, shape=1.2),
    ),
    "pareto": (
        ParetoLengths(minimum_tokens=400.0, alpha=1.8),
        stats.pareto(1.8, scale=400.0),
        ParetoLengths(minimum_tokens=420.0, alpha=1.8),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_survival_is_that_of_the_continuous_law_at_whole_tokens(name):
    config, judge, _ = LAWS[name]
    k = np.array([1, 2, 399, 400, 401, 1000, 5000])
    assert np.allclose(length_law(config).survival(k), judge.sf(k), atol=1e-13)
    assert length_law(config).survival(0.7) == 1.0


@pytest.mark.parametrize("name", LAWS)
def test_mean_under_a_cap_is_the_sum_of_the_survival(name):
    config, judge, _ = LAWS[name]
    k = np.arange(1, CAP)
    assert length_law(config).mean(CAP) == pytest.approx(1.0 + judge.sf(k).sum(), rel=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_mean_without_a_cap(name):
    config, judge, _ = LAWS[name]
    # E⌈X⌉ ≈ E[X] + ½ + (density at 0+ terms); geometric is whole already.
    extra = 0.0 if name == "geometric" else 0.5
    assert length_law(config).mean() == pytest.approx(judge.mean() + extra, rel=5e-4)


def test_mean_of_a_pareto_without_mean_is_infinite():
    assert length_law(ParetoLengths(alpha=1.0)).mean() == np.inf
    assert np.isfinite(length_law(ParetoLengths(alpha=1.0)).mean(10**6))


def _z_of_sample(config, judge, seed):
    """Largest |z| of sampled frequencies against the judge at three points."""
    n = 400_000
    sample = length_law(config).sample(np.random.default_rng(seed), n)
    points = np.ceil(judge.ppf([0.25, 0.5, 0.9]))
    p = judge.cdf(points)
    seen = np.array([(sample <= k).mean() for k in points])
    return np.abs((seen - p) / np.sqrt(p * (1 - p) / n)).max()


@pytest.mark.parametrize("name", LAWS)
def test_samples_follow_the_law_and_a_twin_off_by_5_percent_does_not(name):
    config, judge, twin = LAWS[name]
    assert _z_of_sample(config, judge, seed=1) < 4.5
    assert _z_of_sample(twin, judge, seed=1) > 4.5


def test_quantile_inverts_the_cdf():
    for config, _, _ in LAWS.values():
        law = length_law(config)
        u = np.linspace(0.001, 0.999, 333)
        k = law.quantile(u)
        assert (law.cdf(k) >= u - 1e-12).all()
        assert (law.cdf(k - 1) < u + 1e-12).all()


def test_constant_and_empirical_laws():
    constant = length_law(ConstantLengths(tokens=77))
    assert constant.survival(76) == 1.0
    assert constant.survival(77) == 0.0
    assert constant.mean() == 77.0
    law = length_law(EmpiricalLengths(tokens=(5, 2, 5), weights=(1.0, 2.0, 1.0)))
    assert np.allclose(law.survival([1, 2, 4, 5]), [1.0, 0.5, 0.5, 0.0])
    assert law.mean() == pytest.approx(3.5)
    assert list(law.quantile([0.1, 0.6])) == [2, 5]


def test_drift_scales_the_latent_before_rounding():
    law = length_law(LognormalLengths(median_tokens=100.0, sigma=0.5))
    moved = type(law)(law.latent, scale=1.3)
    x = np.array([50.0, 130.0, 400.0])
    assert np.allclose(moved.survival(x), stats.lognorm(0.5, scale=130.0).sf(x))


@pytest.mark.parametrize("group_size", [2, 4, 8, 16])
@pytest.mark.parametrize("q", [0.01, 0.2, 0.45, 0.5])
def test_p_mixed_is_solved_for_the_group_size(group_size, q):
    p = pass_rate_for(q, group_size=group_size)
    assert 0 < p <= 0.5
    assert 1 - p**group_size - (1 - p) ** group_size == pytest.approx(q, abs=1e-12)


def test_field_case_b40_informative_share():
    """p = .1819: n = 2 29.8 %, 4 55.1 %, 8 79.9 %, 16 96.0 % (CoursIA issue 10603)."""
    for n, share in ((2, 0.298), (4, 0.551), (8, 0.799), (16, 0.960)):
        assert mixed_probability_given(0.1819, group_size=n) == pytest.approx(share, abs=5e-4)


def test_p_mixed_out_of_reach_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"p_mixed 0.6 .* groups of 2"):
        pass_rate_for(0.6, group_size=2)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.3), (1.0, 1.0), (2.0, 5.0)])
@pytest.mark.parametrize("group_size", [2, 8, 16])
def test_beta_mixed_probability_is_a1(a, b, group_size):
    p, weight = pass_rate_law(BetaPassRate(a=a, b=b), group_size=group_size).nodes()
    got = float(weight @ mixed_probability_given(p, group_size=group_size))
    i = np.arange(group_size)
    right, wrong = np.prod((a + i) / (a + b + i)), np.prod((b + i) / (a + b + i))
    assert got == pytest.approx(1 - right - wrong, abs=1e-12)


@pytest.mark.parametrize(
    ("config", "mean"),
    [
        (FixedPassRate(p=0.3), 0.3),
        (MixedProbability(p_mixed=0.5), pass_rate_for(0.5, group_size=8)),
        (BetaPassRate(a=0.4, b=0.8), 1 / 3),
        (LogitNormalPassRate(mean_logit=0.0, sd_logit=2.5), 0.5),
        (ListedPassRate(values=(0.0, 0.25, 1.0)), 1.25 / 3),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_pass_rate_laws_sample_what_their_nodes_say(config, mean):
    law = pass_rate_law(config, group_size=8)
    n = 200_000
    uniform = np.random.default_rng(3).random(n)
    with np.errstate(divide="ignore"):
        p = special.expit(law.logits(uniform))
    nodes, weight = law.nodes()
    assert weight @ nodes == pytest.approx(mean, abs=1e-9)
    se = max(p.std() / np.sqrt(n), 1e-12)
    assert abs(p.mean() - mean) < 4.5 * se
    if se > 1e-9:
        assert abs(p.mean() - 1.05 * mean) > 4.5 * se
