"""Mixed groups: A1, A2, A9 against enumeration, quadrature by scipy, and the oracle table T5."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special, stats

from dapolab.theory import groups


def enumerated(p: float, G: int) -> tuple[float, float]:
    """P(mixed) and E[K/G; mixed] over all 2^G outcomes of one group."""
    mixed = right = 0.0
    for outcome in itertools.product([0, 1], repeat=G):
        K = sum(outcome)
        if 0 < K < G:
            weight = p**K * (1 - p) ** (G - K)
            mixed += weight
            right += weight * K / G
    return mixed, right


@pytest.mark.parametrize("G", [1, 2, 3, 8])
@pytest.mark.parametrize("p", [0.0, 0.03, 0.5, 0.81, 1.0])
def test_one_prompt_equals_enumeration(p: float, G: int) -> None:
    mixed, right = enumerated(p, G)
    assert float(groups.p_mixed(p, group_size=G)) == pytest.approx(mixed, abs=1e-14)
    if mixed > 0:
        got = float(groups.kept_accuracy(p, group_size=G))
        assert got == pytest.approx(right / mixed, abs=1e-12)


def test_published_informative_shares() -> None:
    """CoursIA#10603 (field case B40): p = .1819 and the multipliers 1/q."""
    q = [float(groups.p_mixed(0.1819, group_size=G)) for G in (2, 4, 8, 16)]
    assert q == pytest.approx([0.298, 0.551, 0.799, 0.960], abs=6e-4)
    assert [1 / x for x in q] == pytest.approx([3.36, 1.815, 1.251, 1.042], abs=6e-3)


def test_tiny_pass_rates_keep_their_digits() -> None:
    assert float(groups.p_mixed(1e-18, group_size=16)) == pytest.approx(16e-18, rel=1e-12)
    assert float(groups.kept_accuracy(1e-18, group_size=16)) == pytest.approx(1 / 16, rel=1e-9)


def test_kept_accuracy_small_groups_and_limits() -> None:
    p = np.linspace(0.0, 1.0, 41)
    assert groups.kept_accuracy(p, group_size=2) == pytest.approx(np.full(41, 0.5), abs=1e-12)
    inner = p[1:-1]
    assert groups.kept_accuracy(inner, group_size=3) == pytest.approx((1 + inner) / 3, abs=1e-12)
    assert groups.kept_accuracy([0.0, 1.0], group_size=8) == pytest.approx([1 / 8, 7 / 8])


# theory out_golden T5: (a, b, G), E[q], prior mean, retained mean, kept accuracy, 1/q
T5 = [
    (1, 1, 8, 0.7778, 0.5, 0.5, 0.5, 1.286),
    (1, 1, 16, 0.8824, 0.5, 0.5, 0.5, 1.133),
    (0.3, 0.6, 8, 0.5173, 0.333, 0.4361, 0.4476, 1.933),
    (0.3, 0.6, 16, 0.6217, 0.333, 0.4227, 0.4277, 1.609),
    (0.5, 0.5, 8, 0.6072, 0.5, 0.5, 0.5, 1.647),
    (0.5, 0.5, 16, 0.7201, 0.5, 0.5, 0.5, 1.389),
    (2, 1, 8, 0.7778, 0.667, 0.6182, 0.6, 1.286),
    (2, 1, 16, 0.8824, 0.667, 0.6355, 0.6296, 1.133),
    (0.2, 0.2, 8, 0.3593, 0.5, 0.5, 0.5, 2.783),
    (0.2, 0.2, 16, 0.4436, 0.5, 0.5, 0.5, 2.254),
    (5, 1, 8, 0.6146, 0.833, 0.7743, 0.7301, 1.627),
    (5, 1, 16, 0.7619, 0.833, 0.7955, 0.7813, 1.313),
]


@pytest.mark.parametrize("row", T5)
def test_beta_prior_matches_the_oracle_table(row: tuple[float, ...]) -> None:
    a, b, G, q, mean, retained, kept, oversample = row
    got = groups.mixed_groups_beta(a, b, group_size=int(G))
    assert got.p_mixed == pytest.approx(q, abs=5.1e-5)
    assert got.mean_pass_rate == pytest.approx(mean, abs=5.1e-4)
    assert got.retained_pass_rate == pytest.approx(retained, abs=5.1e-5)
    assert got.kept_accuracy == pytest.approx(kept, abs=5.1e-5)
    assert got.oversample == pytest.approx(oversample, abs=5.1e-4)


@pytest.mark.parametrize(("a", "b", "G"), [(0.3, 0.6, 8), (2.0, 0.7, 16), (1.0, 1.0, 5)])
def test_beta_prior_equals_the_product_and_shift_formulas(a: float, b: float, G: int) -> None:
    w1 = math.prod((a + i) / (a + b + i) for i in range(G))
    w0 = math.prod((b + i) / (a + b + i) for i in range(G))
    q, m, n = 1 - w1 - w0, a / (a + b), a + b
    got = groups.mixed_groups_beta(a, b, group_size=G)
    assert (got.p_all_right, got.p_all_wrong) == pytest.approx((w1, w0), abs=1e-12)
    assert got.p_mixed == pytest.approx(q, abs=1e-12)
    shift = G / (n + G) * (w0 * m - w1 * (1 - m)) / q
    assert got.retained_pass_rate == pytest.approx(m + shift, abs=1e-11)
    assert got.kept_accuracy == pytest.approx((m - w1) / q, abs=1e-11)


def test_retained_density_is_the_signed_mixture_and_beta_for_small_groups() -> None:
    p = np.linspace(0.02, 0.98, 25)
    a, b, G = 0.4, 1.3, 8
    law = groups.mixed_groups_beta(a, b, group_size=G)
    mixture = (
        stats.beta.pdf(p, a, b)
        - law.p_all_right * stats.beta.pdf(p, a + G, b)
        - law.p_all_wrong * stats.beta.pdf(p, a, b + G)
    ) / law.p_mixed
    assert groups.retained_density_beta(p, a, b, group_size=G) == pytest.approx(mixture, rel=1e-9)
    for small in (2, 3):
        got = groups.retained_density_beta(p, a, b, group_size=small)
        assert got == pytest.approx(stats.beta.pdf(p, a + 1, b + 1), rel=1e-9)


def test_retained_mean_moves_towards_one_half_and_never_crosses() -> None:
    grid = [0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0]
    for a, b, G in itertools.product(grid, grid, [2, 3, 4, 8, 16, 64]):
        law = groups.mixed_groups_beta(a, b, group_size=G)
        assert law.retained_pass_rate is not None
        before, after = law.mean_pass_rate - 0.5, law.retained_pass_rate - 0.5
        assert abs(after) <= abs(before) + 1e-12
        assert before * after >= -1e-12


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.6), (2.0, 5.0)])
def test_any_prior_by_quantile_agrees_with_beta(a: float, b: float) -> None:
    by_quantile = groups.mixed_groups_quantile(lambda u: stats.beta.ppf(u, a, b), group_size=8)
    exact = groups.mixed_groups_beta(a, b, group_size=8)
    assert by_quantile.p_mixed == pytest.approx(exact.p_mixed, abs=1e-9)
    assert by_quantile.retained_pass_rate == pytest.approx(exact.retained_pass_rate, abs=1e-9)
    assert by_quantile.kept_accuracy == pytest.approx(exact.kept_accuracy, abs=1e-9)


def test_quantile_prior_with_atoms() -> None:
    """30 % never solved, the rest uniform on (.2, .6)."""

    def quantile(u: np.ndarray) -> np.ndarray:
        return np.where(u < 0.3, 0.0, 0.2 + 0.4 * (u - 0.3) / 0.7)

    got = groups.mixed_groups_quantile(quantile, group_size=6)
    inner, _ = integrate.quad(lambda p: (1 - p**6 - (1 - p) ** 6) / 0.4, 0.2, 0.6)
    assert got.p_mixed == pytest.approx(0.7 * inner, abs=1e-9)


@pytest.mark.parametrize(("mu", "sigma"), [(0.0, 0.5), (-1.5, 2.0), (0.7, 5.0), (3.0, 10.0)])
def test_logit_normal_prior_equals_scipy_quadrature(mu: float, sigma: float) -> None:
    def q_at(z: float) -> float:
        p = 1 / (1 + math.exp(-(mu + sigma * z)))
        return (1 - p**8 - (1 - p) ** 8) * stats.norm.pdf(z)

    centre = -mu / sigma
    points = [centre - 4 / sigma, centre, centre + 4 / sigma]
    expected, _ = integrate.quad(q_at, -12, 12, points=points, limit=400, epsabs=1e-13)
    got = groups.mixed_groups_logit_normal(mu, sigma, group_size=8)
    assert got.p_mixed == pytest.approx(expected, abs=1e-9)


def test_logit_normal_without_spread_is_one_prompt() -> None:
    got = groups.mixed_groups_logit_normal(0.0, 0.0, group_size=4)
    assert got.p_mixed == pytest.approx(1 - 2 / 16)


@pytest.mark.parametrize(
    ("mu", "sigma", "share", "guess"),
    [(3.3, 1.3, 0.09, 0.0), (-1.0, 2.5, 0.4, 0.0), (3.3, 1.3, 0.09, 0.04), (-1.0, 2.5, 0.4, 0.25)],
)
def test_unsolvable_prompts_are_an_atom_of_the_prior(
    mu: float, sigma: float, share: float, guess: float
) -> None:
    """The same prior by its quantile function: flat at the guess rate, then the logit-normal law.

    Only the area under it counts, so it need not rise from one to the other.
    """

    def quantile(u: np.ndarray) -> np.ndarray:
        rest = np.clip((u - share) / (1 - share), 1e-300, None)
        return np.where(u < share, guess, special.expit(mu + sigma * special.ndtri(rest)))

    got = groups.mixed_groups_logit_normal(
        mu, sigma, group_size=8, unsolvable_share=share, guess_rate=guess
    )
    judge = groups.mixed_groups_quantile(quantile, group_size=8)
    for name in ("p_mixed", "p_all_right", "p_all_wrong", "mean_pass_rate", "retained_pass_rate"):
        assert getattr(got, name) == pytest.approx(getattr(judge, name), abs=2e-7), name
    assert got.kept_accuracy == pytest.approx(judge.kept_accuracy, abs=2e-7)
    assert got.p_mixed + got.p_all_right + got.p_all_wrong == pytest.approx(1.0, abs=1e-12)


def test_nothing_but_unsolvable_prompts_has_no_mixed_group() -> None:
    got = groups.mixed_groups_logit_normal(1.0, 2.0, group_size=8, unsolvable_share=1.0)
    assert (got.p_mixed, got.p_all_wrong, got.mean_pass_rate) == (0.0, 1.0, 0.0)
    assert (got.retained_pass_rate, got.kept_accuracy) == (None, None)


def test_guessed_prompts_by_hand() -> None:
    """Pass rate 3/4 for three prompts of four, guesses at 1/2 for the fourth; groups of 4."""
    law = {"group_size": 4, "unsolvable_share": 0.25}
    got = groups.mixed_groups_logit_normal(math.log(3), 0.0, guess_rate=0.5, **law)
    own, guess = 1 - (81 + 1) / 256, 1 - 2 / 16
    q = 0.75 * own + 0.25 * guess
    assert got.p_mixed == pytest.approx(q)
    assert got.p_all_right == pytest.approx(0.75 * 81 / 256 + 0.25 / 16)
    assert got.p_all_wrong == pytest.approx(0.75 / 256 + 0.25 / 16)
    assert got.mean_pass_rate == pytest.approx(0.75 * 0.75 + 0.25 * 0.5)
    retained = (0.75 * own * 0.75 + 0.25 * guess * 0.5) / q
    assert got.retained_pass_rate == pytest.approx(retained)
    # E[K/4; mixed] = p - P(K = 4)
    kept = (0.75 * (3 / 4 - 81 / 256) + 0.25 * (1 / 2 - 1 / 16)) / q
    assert got.kept_accuracy == pytest.approx(kept)
    alone = groups.mixed_groups_logit_normal(
        3.0, 1.0, group_size=4, unsolvable_share=1.0, guess_rate=0.5
    )
    assert (alone.p_mixed, alone.kept_accuracy) == (pytest.approx(guess), pytest.approx(0.5))
    none = groups.mixed_groups_logit_normal(3.0, 1.0, group_size=4, guess_rate=0.5)
    assert none == groups.mixed_groups_logit_normal(3.0, 1.0, group_size=4)


def test_recorded_estimate_is_unbiased_and_plug_in_is_not() -> None:
    n, G, p = 10, 4, 0.23
    K = np.arange(n + 1)
    law = stats.binom.pmf(K, n, p)
    truth = 1 - p**G - (1 - p) ** G
    assert law @ groups.p_mixed_recorded(K, n, group_size=G) == pytest.approx(truth, abs=1e-12)
    assert law @ groups.p_mixed(K / n, group_size=G) < truth - 0.02


def test_recorded_estimate_counts_subsets() -> None:
    responses = [1, 1, 0, 0, 0, 0]
    draws = [sum(s) for s in itertools.combinations(responses, 3)]
    share = sum(0 < k < 3 for k in draws) / len(draws)
    got = groups.p_mixed_recorded([2, 4], [6, 6], group_size=3)
    assert got == pytest.approx([share, share], abs=1e-14)


def test_population_without_mixed_groups_gives_none_not_nan() -> None:
    got = groups.mixed_groups([0.0, 1.0], group_size=8)
    assert (got.p_mixed, got.retained_pass_rate, got.kept_accuracy) == (0.0, None, None)
    assert got.oversample == math.inf


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: groups.p_mixed([0.5, float("nan")], group_size=2), "pass rates"),
        (lambda: groups.p_mixed(0.5, group_size=0), "group_size"),
        (lambda: groups.kept_accuracy(0.5, group_size=1), "group_size"),
        (lambda: groups.p_mixed_recorded(2, 4, group_size=5), "fit a law"),
        (lambda: groups.mixed_groups_beta(0.0, 1.0, group_size=4), "a must"),
        (lambda: groups.mixed_groups([0.5], group_size=4, weights=[0.0]), "weights"),
        (lambda: groups.mixed_groups_logit_normal(0.0, -1.0, group_size=4), "sigma"),
        (
            lambda: groups.mixed_groups_logit_normal(0.0, 1.0, group_size=4, unsolvable_share=1.1),
            "unsolvable_share",
        ),
        (
            lambda: groups.mixed_groups_logit_normal(
                0.0, 1.0, group_size=4, unsolvable_share=0.1, guess_rate=-0.1
            ),
            "guess_rate",
        ),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: object, word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@given(p=st.floats(0.0, 1.0), G=st.integers(2, 64))
def test_mixed_probability_is_symmetric_and_grows_with_the_group(p: float, G: int) -> None:
    q = float(groups.p_mixed(p, group_size=G))
    assert 0.0 <= q <= 1.0
    assert float(groups.p_mixed(1.0 - p, group_size=G)) == pytest.approx(q, abs=1e-9)
    assert float(groups.p_mixed(p, group_size=G + 1)) >= q - 1e-15


@given(p=st.floats(0.0, 1.0), G=st.integers(2, 64))
def test_kept_accuracy_lives_between_one_and_all_but_one(p: float, G: int) -> None:
    kept = float(groups.kept_accuracy(p, group_size=G))
    assert 1 / G - 1e-9 <= kept <= 1 - 1 / G + 1e-9
    assert abs(kept - 0.5) <= abs(p - 0.5) + 1e-9 or kept in (1 / G, 1 - 1 / G)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=12), st.randoms())
def test_population_does_not_depend_on_order(rates: list[float], random: object) -> None:
    shuffled = list(rates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one = groups.mixed_groups(rates, group_size=4)
    two = groups.mixed_groups(shuffled, group_size=4)
    assert one.p_mixed == pytest.approx(two.p_mixed, abs=1e-12)
