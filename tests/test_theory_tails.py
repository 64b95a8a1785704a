"""Expected maxima and barrier time: B1-B4 against enumeration, scipy quadrature, table T6."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, special, stats

from dapolab.theory import barrier, capped, sampling, tails

Array = NDArray[np.float64]


def exponential(mean: float) -> tails.Survival:
    return lambda x: np.exp(-x / mean)


def lognormal(mu: float, sigma: float) -> tails.Survival:
    law = stats.lognorm(sigma, scale=math.exp(mu))
    return lambda x: np.asarray(law.sf(x))


def pareto(alpha: float, scale: float) -> tails.Survival:
    return lambda x: (scale / np.maximum(x, scale)) ** alpha


def harmonic(n: int, order: int = 1) -> float:
    return sum(1 / j**order for j in range(1, n + 1))


@pytest.mark.parametrize("n", [1, 8, 32, 1000, 10**6])
def test_exponential_maximum(n: int) -> None:
    digamma = float(special.digamma(n + 1) + np.euler_gamma)
    got = tails.expected_max_tokens(exponential(1500.0), n=n)
    assert got == pytest.approx(1500 * digamma, rel=1e-9)
    assert tails.expected_max_exponential(1500.0, n=n) == pytest.approx(got, rel=1e-9)


def test_barrier_multiples_of_the_field_case() -> None:
    """B53: H_8 = 2.718, H_32 = 4.058, lognormal sigma 1 of 32 is 5.49 means."""
    assert tails.expected_max_exponential(1.0, n=8) == pytest.approx(2.718, abs=5e-4)
    assert tails.expected_max_exponential(1.0, n=32) == pytest.approx(4.058, abs=6e-4)
    ratio = tails.expected_max_tokens(lognormal(0.0, 1.0), n=32) / math.exp(0.5)
    assert ratio == pytest.approx(5.49, abs=5e-3)


@pytest.mark.parametrize(("n", "cap"), [(1, 500.0), (32, 3000.0), (4096, 8192.0), (8, 50.0)])
def test_censored_exponential_two_ways_and_scipy(n: int, cap: float) -> None:
    by_scipy, _ = integrate.quad(
        lambda x: -math.expm1(n * math.log1p(-math.exp(-x / 1000))) if x > 0 else 1.0,
        0, cap, limit=500, epsabs=1e-9,
    )  # fmt: skip
    closed = tails.expected_max_censored_exponential(1000.0, n=n, cap=cap)
    assert closed == pytest.approx(by_scipy, rel=1e-9)
    got = tails.expected_max_tokens(exponential(1000.0), n=n, cap_tokens=cap)
    assert got == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.5])
def test_weibull_closed_form_equals_quadrature(shape: float) -> None:
    def survival(x: Array) -> Array:
        return np.exp(-((x / 900.0) ** shape))

    for n in (1, 2, 8, 16):
        closed = tails.expected_max_weibull(900.0, shape=shape, n=n)
        assert tails.expected_max_tokens(survival, n=n) == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 4.0])
@pytest.mark.parametrize("n", [1, 32, 10_000])
def test_pareto_maximum_has_a_gamma_form(alpha: float, n: int) -> None:
    log = special.gammaln(n + 1) + special.gammaln(1 - 1 / alpha)
    expected = 500 * math.exp(log - special.gammaln(n + 1 - 1 / alpha))
    assert tails.expected_max_tokens(pareto(alpha, 500.0), n=n) == pytest.approx(expected, rel=1e-8)


def test_law_without_a_mean_is_infinite_and_a_cap_heals_it() -> None:
    assert tails.expected_max_tokens(pareto(0.9, 1.0), n=4) == math.inf
    assert tails.expected_max_tokens(pareto(0.9, 1.0), n=4, cap_tokens=100.0) < 100.0


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e9])
def test_any_scale_and_a_kink(scale: float) -> None:
    """Uniform on (0, scale): the maximum of n is n/(n+1) of it."""
    got = tails.expected_max_tokens(lambda x: np.clip(1 - x / scale, 0, 1), n=9)
    assert got == pytest.approx(0.9 * scale, rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_whole_tokens_equal_enumeration(n: int) -> None:
    """X uniform on (0, 4.5), cap 4: ceil(min(X, 4)) is 1, 2, 3, 4 with 2, 2, 2, 3 ninths."""
    law = {1: 2 / 9, 2: 2 / 9, 3: 2 / 9, 4: 3 / 9}
    expected = sum(max(c) * math.prod(law[x] for x in c) for c in itertools.product(law, repeat=n))
    got = tails.expected_max_tokens(
        lambda x: np.clip(1 - x / 4.5, 0, 1), n=n, cap_tokens=4, whole_tokens=True
    )
    assert got == pytest.approx(expected, abs=1e-12)


def test_whole_tokens_without_a_cap() -> None:
    """ceil of an exponential is geometric; a Pareto tail is summed far beyond the direct part."""
    h = 1 - math.exp(-1 / 50)
    expected = sampling.expected_waves(h, n_groups=32)
    got = tails.expected_max_tokens(exponential(50.0), n=32, whole_tokens=True)
    assert got == pytest.approx(expected, rel=1e-9)
    # sum over x >= 0 of P(X > x), X Pareto(3/2) from 500: 500 ones, then a Hurwitz zeta
    zeta = 500 + 500**1.5 * float(special.zeta(1.5, 500))
    heavy = tails.expected_max_tokens(pareto(1.5, 500.0), n=1, whole_tokens=True)
    assert heavy == pytest.approx(zeta, rel=1e-9)


def test_probability_that_a_wave_holds_a_truncated_response() -> None:
    """Table T15, pi = .01, and P(max = cap) as the survival just below the cap."""
    table = {8: 0.0773, 32: 0.275, 128: 0.7237, 512: 0.9942, 8192: 1.0}
    for n, p in table.items():
        assert tails.p_max_truncated(0.01, n=n) == pytest.approx(p, abs=5.1e-5)
    pi = float(lognormal(7.0, 0.9)(np.array([8192.0]))[0])
    assert pi == pytest.approx(0.0127, abs=5e-5)
    assert tails.p_max_truncated(1.0, n=3) == 1.0
    assert tails.p_max_truncated(1e-18, n=10) == pytest.approx(1e-17, rel=1e-12)


def test_empirical_maxima_equal_enumeration() -> None:
    lengths = [7, 3, 3, 11, 5]
    for n in (1, 2, 3):
        drawn = [max(c) for c in itertools.product(lengths, repeat=n)]
        got = tails.expected_max_empirical(lengths, n=n, replace=True)
        assert got == pytest.approx(np.mean(drawn), abs=1e-12)
    for n in (1, 2, 5):
        subsets = [max(c) for c in itertools.combinations(lengths, n)]
        got = tails.expected_max_empirical(lengths, n=n, replace=False)
        assert got == pytest.approx(np.mean(subsets), abs=1e-9)


def level_model(between: float, within: float) -> tails.ConditionalSurvival:
    def survival(x: Array, z: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(stats.norm.sf((np.log(x) - 7.0 - between * z) / within))

    return survival


@pytest.mark.parametrize(("between", "within"), [(0.8, 0.4), (0.3, 0.85)])
def test_grouped_maximum_equals_double_quadrature(between: float, within: float) -> None:
    k, G, cap = 4, 8, 8192.0
    x = np.concatenate([[0.0], np.geomspace(1.0, cap, 1501)])
    z = np.linspace(-9, 9, 1201)
    with np.errstate(divide="ignore"):
        u = (np.log(x)[:, None] - 7.0 - between * z[None, :]) / within
    inner = integrate.simpson(stats.norm.cdf(u) ** G * stats.norm.pdf(z), x=z, axis=1)
    expected = integrate.simpson(1 - inner[1:] ** k, x=x[1:]) + 1.0
    got = tails.expected_max_grouped(
        level_model(between, within), n_groups=k, group_size=G, cap_tokens=cap
    )
    assert got == pytest.approx(expected, rel=1e-7)


def test_grouped_maximum_without_levels_is_iid_and_correlation_lowers_it() -> None:
    total = 0.9
    iid = tails.expected_max_tokens(lognormal(7.0, total), n=32, cap_tokens=8192)
    previous = math.inf
    for share in (0.0, 0.3, 0.7, 0.95):
        between, within = total * math.sqrt(share), total * math.sqrt(1 - share)
        got = tails.expected_max_grouped(
            level_model(between, within), n_groups=4, group_size=8, cap_tokens=8192
        )
        if share == 0.0:
            assert got == pytest.approx(iid, rel=1e-9)
        assert got <= iid * (1 + 1e-9)
        assert got < previous
        previous = got


def test_maxima_of_all_counts_at_once() -> None:
    h = tails.expected_max_by_count(exponential(3.0), n_max=512)
    assert h[0] == 0.0
    assert h[1:] == pytest.approx(3 * np.cumsum(1 / np.arange(1, 513)), rel=1e-9)


# --- barrier ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("B", "q", "G"), [(1, 0.3, 1), (4, 0.5, 8), (7, 0.15, 2), (16, 0.9, 4)])
def test_barrier_time_equals_the_sum_over_waves(B: int, q: float, G: int) -> None:
    """Theory B3 as written: sum over w of the integral of 1 - (1 - (1-q)^w S_G)^B."""
    survival = lognormal(7.0, 0.9)
    x = np.linspace(0.0, 8192.0, 40_001)
    S = 1 - (1 - survival(x)) ** G
    expected = sum(
        integrate.simpson(1 - (1 - (1 - q) ** w * S) ** B, x=x) for w in range(int(40 / q) + 10)
    )
    group = tails.group_survival(survival, group_size=G)
    got = barrier.expected_barrier_time(group, p_mixed=q, n_groups=B, cap=8192.0)
    assert got.expected_time == pytest.approx(expected, rel=1e-8)
    assert got.expected_waves == pytest.approx(sampling.expected_waves(q, n_groups=B), rel=1e-9)


@pytest.mark.parametrize("B", [1, 4, 64])
@pytest.mark.parametrize("q", [1e-4, 0.3, 0.9, 1.0])
def test_barrier_time_of_exponential_groups(B: int, q: float) -> None:
    closed = sum(sampling.expected_waves(q, n_groups=j) / j for j in range(1, B + 1))
    got = barrier.expected_barrier_time(exponential(20.0), p_mixed=q, n_groups=B)
    assert got.expected_time == pytest.approx(20 * closed, rel=1e-8)
    mine = barrier.expected_barrier_time_exponential(q, n_groups=B, mean_duration=20.0)
    assert mine == pytest.approx(20 * closed, rel=1e-12)


def test_barrier_asymptotic_form() -> None:
    B, q = 16, 0.4
    H, H2 = harmonic(B), harmonic(B, 2)
    expected = (H * H + H2) / (-2 * math.log(1 - q)) + H / 2
    got = barrier.expected_barrier_time_exponential_asymptotic(q, n_groups=B, mean_duration=1.0)
    assert got == pytest.approx(expected, rel=1e-12)
    exact = barrier.expected_barrier_time_exponential(q, n_groups=B, mean_duration=1.0)
    # what is missing is mostly the first term's lambda/12, E[W_1] = 1/q = 1/lambda + 1/2 + ..
    assert got == pytest.approx(exact, abs=2 * -math.log(1 - q) / 12)


@pytest.mark.parametrize(("B", "cap", "q"), [(1, 2, 0.4), (3, 9, 0.3), (4, 8, 0.5), (4, 8, 0.0)])
def test_capped_barrier_time_equals_enumerated_waves(B: int, cap: int, q: float) -> None:
    """Replay the loop on all outcomes; a wave of m exponential groups lasts H_m."""
    expected = 0.0
    for outcome in itertools.product([0, 1], repeat=cap):
        used = kept = 0
        time = 0.0
        while kept < B and used < cap:
            size = min(B - kept, cap - used)
            kept += sum(outcome[used : used + size])
            used += size
            time += harmonic(size)
        expected += time * q ** sum(outcome) * (1 - q) ** (cap - sum(outcome))
    law = capped.capped_refill(q, n_groups=B, max_candidates=cap)
    got = barrier.expected_capped_barrier_time(exponential(1.0), refill=law)
    assert got.expected_time == pytest.approx(expected, rel=1e-9)


def test_semaphore_wave_times() -> None:
    times = barrier.semaphore_wave_times(40, n_slots=16, mean_duration=2.0)
    assert times[:17] == pytest.approx([2 * harmonic(m) for m in range(17)])
    assert times[40] == pytest.approx(2 * (24 / 16 + harmonic(16)))
    law = capped.capped_refill(0.5, n_groups=4, max_candidates=8)
    free = barrier.expected_capped_barrier_time(exponential(1.0), refill=law)
    wide = barrier.barrier_time_from_waves(
        law.wave_counts, wave_times=barrier.semaphore_wave_times(4, n_slots=16, mean_duration=1.0)
    )
    assert wide.expected_time == pytest.approx(free.expected_time, rel=1e-9)


# out_golden T6, B = 4, G = 8: A_max at q = .3, .5, .7, .9
T6 = [
    (lognormal(7.0, 0.5), 8192.0, [5.367, 3.013, 1.959, 1.293]),
    (lognormal(7.0, 0.9), 8192.0, [5.088, 2.872, 1.883, 1.265]),
    (lognormal(8.0, 0.9), 8192.0, [6.09, 3.376, 2.152, 1.36]),
    (lambda x: np.exp(-((x / 1500.0) ** 0.7)), 8192.0, [5.347, 3.001, 1.949, 1.287]),
    (exponential(1500.0), math.inf, [5.124, 2.891, 1.893, 1.269]),
    # The oracle integrates its "uncensored" Pareto only to the 1 - 1e-9 quantile, 5e8.
    (pareto(1.5, 500.0), 500.0 * 1e6, [4.006, 2.333, 1.601, 1.169]),
]


@pytest.mark.parametrize(("survival", "cap", "expected"), T6)
def test_amplification_table(survival: tails.Survival, cap: float, expected: list[float]) -> None:
    group = tails.group_survival(survival, group_size=8)
    for q, value in zip((0.3, 0.5, 0.7, 0.9), expected, strict=True):
        got = barrier.expected_barrier_time(group, p_mixed=q, n_groups=4, cap=cap)
        assert got.amplification == pytest.approx(value, abs=5.1e-4)


def test_uncensored_pareto_amplification_has_a_gamma_form() -> None:
    """E[max of N] = x0 G(N+1) G(1-1/a)/G(N+1-1/a): the oracle's 4.006 at q = .3 is 4.0045."""
    N = 8 * np.arange(1, 5)
    h = np.exp(special.gammaln(N + 1) - special.gammaln(N + 1 - 1 / 1.5))
    for q, value in [(0.3, 4.0045), (0.5, 2.3326), (0.7, 1.6005), (0.9, 1.1685)]:
        counts = capped.uncapped_wave_counts(q, n_groups=4)[1:]
        assert counts @ h / h[-1] == pytest.approx(value, abs=5.1e-5)
        group = tails.group_survival(pareto(1.5, 500.0), group_size=8)
        got = barrier.expected_barrier_time(group, p_mixed=q, n_groups=4)
        assert got.amplification == pytest.approx(counts @ h / h[-1], rel=1e-8)


def test_pareto_limit_table_and_approach() -> None:
    limits = [barrier.pareto_amplification_limit(q, alpha=1.5) for q in (0.3, 0.5, 0.7, 0.9)]
    assert limits == pytest.approx([4.725, 2.702, 1.812, 1.275], abs=5.1e-4)
    previous = 0.0
    for B in (4, 32, 256, 1024):
        group = tails.group_survival(pareto(1.5, 1.0), group_size=8)
        now = barrier.expected_barrier_time(group, p_mixed=0.5, n_groups=B).amplification
        assert previous < now < limits[1]
        previous = now
    assert previous == pytest.approx(limits[1], rel=0.02)


@pytest.mark.parametrize("B", [1, 4, 16, 128])
@pytest.mark.parametrize("q", [0.05, 0.3, 0.7, 1.0])
def test_amplification_lies_in_its_bounds(B: int, q: float) -> None:
    for survival, cap, _ in T6:
        group = tails.group_survival(survival, group_size=4)
        got = barrier.expected_barrier_time(group, p_mixed=q, n_groups=B, cap=cap)
        assert 1.0 - 1e-9 <= got.amplification <= got.expected_waves * (1 + 1e-9)
        assert got.expected_time >= got.lower_bound * (1 - 1e-9)
        assert 0.0 - 1e-9 <= got.tail_wave_share < 1.0


def test_a_cap_raises_amplification_and_hard_caps_reach_the_bound() -> None:
    group = tails.group_survival(lognormal(7.0, 0.9), group_size=8)
    values = [
        barrier.expected_barrier_time(group, p_mixed=0.5, n_groups=4, cap=cap).amplification
        for cap in (math.inf, 16384.0, 4096.0, 1024.0, 128.0)
    ]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(sampling.expected_waves(0.5, n_groups=4), rel=1e-3)


def test_waiting_time_of_one_wave_is_maximum_minus_mean() -> None:
    got = barrier.expected_barrier_time(exponential(2.0), p_mixed=1.0, n_groups=5)
    tail = barrier.expected_tail_time(got, mean_response=2.0)
    assert tail == pytest.approx(2 * (harmonic(5) - 1), rel=1e-9)
    endless = barrier.expected_barrier_time(exponential(2.0), p_mixed=0.0, n_groups=5)
    assert barrier.expected_tail_time(endless, mean_response=2.0) == math.inf


def test_no_mixed_groups_make_the_barrier_infinite() -> None:
    got = barrier.expected_barrier_time(exponential(1.0), p_mixed=0.0, n_groups=4)
    assert (got.expected_time, got.amplification) == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: tails.expected_max_tokens(exponential(1.0), n=0), "n must"),
        (lambda: tails.expected_max_tokens(exponential(1.0), n=2, cap_tokens=0.0), "cap"),
        (
            lambda: tails.expected_max_tokens(
                exponential(1.0), n=2, cap_tokens=2.5, whole_tokens=True
            ),
            "whole number",
        ),
        (lambda: tails.expected_max_weibull(1.0, shape=1.0, n=26), "quadrature"),
        (lambda: tails.expected_max_empirical([1, 2], n=3, replace=False), "replacement"),
        (lambda: tails.expected_max_empirical([], n=1, replace=True), "lengths"),
        (lambda: barrier.pareto_amplification_limit(0.5, alpha=1.0), "alpha"),
        (lambda: barrier.barrier_time_from_waves([0.0, 1.0], wave_times=[0.0]), "wave_times"),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: object, word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@given(
    sigma=st.floats(0.2, 2.0),
    n=st.integers(1, 10_000),
    cap=st.floats(1.0, 1e6),
    scale=st.floats(0.1, 10.0),
)
def test_maximum_is_monotone_bounded_and_scales(
    sigma: float, n: int, cap: float, scale: float
) -> None:
    one = tails.expected_max_tokens(lognormal(6.0, sigma), n=n, cap_tokens=cap)
    more = tails.expected_max_tokens(lognormal(6.0, sigma), n=n + 1, cap_tokens=cap)
    assert 0.0 < one <= more * (1 + 1e-9) <= cap * (1 + 1e-8)
    mu = 6.0 + math.log(scale)
    scaled = tails.expected_max_tokens(lognormal(mu, sigma), n=n, cap_tokens=cap * scale)
    assert scaled == pytest.approx(one * scale, rel=1e-8)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(1, 20))
def test_drawing_without_replacement_finds_longer_maxima(lengths: list[int], n: int) -> None:
    n = min(n, len(lengths))
    without = tails.expected_max_empirical(lengths, n=n, replace=False)
    with_replacement = tails.expected_max_empirical(lengths, n=n, replace=True)
    assert with_replacement <= without + 1e-6
    assert without <= max(lengths) + 1e-6


@given(q=st.floats(0.02, 0.98), B=st.integers(1, 40))
def test_barrier_time_falls_with_q_and_grows_with_the_batch(q: float, B: int) -> None:
    def time(p: float, n: int) -> float:
        return barrier.expected_barrier_time_exponential(p, n_groups=n, mean_duration=1.0)

    assert time(min(1.0, q * 1.02), B) < time(q, B) < time(q, B + 1)
