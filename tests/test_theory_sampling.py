"""Refill and rounds: A3-A8 against enumeration of all outcomes, Markov chains, oracle tables."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from dapolab.theory import capped, sampling


@cache
def paths(B: int, cap: int) -> list[tuple[int, int, int, int, int]]:
    """Replay the loop on all 2^cap outcomes: (hits among the used, used, waves, kept, misses)."""
    rows = []
    for outcome in itertools.product([0, 1], repeat=cap):
        used = kept = waves = 0
        while kept < B and used < cap:
            size = min(B - kept, cap - used)
            kept += sum(outcome[used : used + size])
            used += size
            waves += 1
        rows.append((sum(outcome), used, waves, kept, cap - sum(outcome)))
    return rows


def enumerated(B: int, cap: int, q: float) -> dict[tuple[int, int, int], float]:
    """Joint law of (waves, candidates, kept) by brute force."""
    law: dict[tuple[int, int, int], float] = {}
    for hits, used, waves, kept, misses in paths(B, cap):
        key = (waves, used, kept)
        law[key] = law.get(key, 0.0) + q**hits * (1 - q) ** misses
    return law


@pytest.mark.parametrize(("B", "cap"), [(1, 1), (1, 2), (2, 3), (2, 8), (3, 12), (4, 4), (4, 8)])
@pytest.mark.parametrize("q", [0.0, 0.2, 3 / 7, 0.8, 1.0])
def test_capped_joint_law_equals_enumeration(B: int, cap: int, q: float) -> None:
    got = capped.capped_refill(q, n_groups=B, max_candidates=cap)
    law = enumerated(B, cap, q)
    for (waves, used, kept), p in law.items():
        if waves >= got.p_full_WN.shape[0]:
            assert p < 1e-30
        elif kept == B:
            assert got.p_full_WN[waves, used] == pytest.approx(p, abs=1e-12)
        else:
            assert used == cap
            assert got.p_partial_WK[waves, kept] == pytest.approx(p, abs=1e-12)
    means = [sum(p * key[i] for key, p in law.items()) for i in range(3)]
    got_means = [got.expected_waves, got.expected_candidates, got.expected_kept]
    assert got_means == pytest.approx(means, abs=1e-9)
    ratio = sum(p * kept / used for (_, used, kept), p in law.items())
    assert got.expected_kept_ratio == pytest.approx(ratio, abs=1e-9)
    assert max(key[0] for key in enumerated(B, cap, 0.5)) == got.max_waves
    worst = sum(p for key, p in law.items() if key[0] == got.max_waves)
    assert got.p_worst == pytest.approx(worst, abs=1e-12)
    assert got.p_full == pytest.approx(sum(p for k, p in law.items() if k[2] == B), abs=1e-12)
    assert got.p_skip == pytest.approx(sum(p for k, p in law.items() if k[2] == 0), abs=1e-12)


# golden.json: (B, M) q, E[waves], P(worst), P(full), P(skip), E[N]/B, E[kept]/B, E[kept/N]
GOLDEN = [
    (4, 2, 0.2, 2.6414719999999994, 0.013107199999999994, 0.0562816, 0.16777215999999992,
     1.985344, 0.3970687999999999, 0.20374735238095232),
    (4, 2, 0.3, 2.8268600000000004, 0.025930800000000025, 0.19410435, 0.05764801000000003,
     1.9411535000000002, 0.5823460500000001, 0.312611025),
    (4, 2, 0.4, 2.8683520000000007, 0.0331776, 0.4059136000000001, 0.016796160000000025,
     1.8545920000000007, 0.7418368000000002, 0.4254098285714287),
    (4, 2, 0.5, 2.750000000000001, 0.03125000000000003, 0.6367187500000001, 0.003906250000000002,
     1.7265625000000004, 0.8632812500000002, 0.5375930059523811),
    (4, 2, 0.6, 2.4940160000000007, 0.022118400000000017, 0.8263296000000001,
     0.0006553599999999997, 1.5697280000000005, 0.9418368000000001, 0.6443355428571431),
    (4, 2, 0.7, 2.149492000000001, 0.011113200000000012, 0.9420323500000002, 6.56100000000001e-05,
     1.4033515000000003, 0.9823460500000003, 0.7429350250000002),
    (4, 2, 0.8, 1.7696000000000005, 0.0032768000000000025, 0.9895936000000002,
     2.5599999999999933e-06, 1.2463360000000003, 0.9970688000000003, 0.8336262095238096),
    (4, 2, 0.9, 1.3873520000000001, 0.00029160000000000026, 0.99956835, 9.999999999999974e-09,
     1.1109845, 0.99988605, 0.9185973107142857),
    (16, 8, 0.1, 17.07281957098878, 1.2002757721772946e-19, 0.20878368141289216,
     1.390084523771441e-06, 7.787357174296154, 0.7787357174296152, 0.10163259003836642),
    (16, 8, 0.2, 15.589240953748618, 7.339195571168154e-21, 0.9904431225614461,
     3.9402006196394355e-13, 4.994417497925677, 0.9988834995851352, 0.21031302070429692),
    (16, 8, 0.3, 9.978456299856795, 1.0278252559194762e-24, 0.9999991537119733,
     1.487815647197764e-20, 3.3333330852886878, 0.9999999255866063, 0.3134378619763775),
    (16, 8, 0.5, 5.377377901752758, 9.403954806578542e-38, 0.9999999999999998,
     2.9387358770556796e-39, 2.0, 0.9999999999999999, 0.515594716990481),
    (16, 8, 0.7, 3.3069633205644338, 2.0805162463880587e-60, 1.0000000000000004,
     1.1790184577738782e-67, 1.4285714285714293, 1.0000000000000004, 0.7127854719301101),
]  # fmt: skip


@pytest.mark.parametrize("row", GOLDEN)
def test_golden_rows_to_nine_digits(row: tuple[float, ...]) -> None:
    B, M, q, *expected = row
    got = capped.capped_refill(q, n_groups=int(B), max_candidates=int(M * B))
    numbers = [
        got.expected_waves,
        got.p_worst,
        got.p_full,
        got.p_skip,
        got.oversample,
        got.expected_fill,
        got.expected_kept_ratio,
    ]
    assert numbers == pytest.approx(expected, rel=1e-9)


# trainers.md 1.2: B, M, q, E waves, E candidates, E trained, P full, P skip
TRAINERS = [
    (4, 2, 0.2, 2.6415, 7.9414, 1.5883, 0.0563, 0.1678),
    (4, 2, 0.35, 2.8675, 7.6137, 2.6648, 0.2936, 0.0319),
    (4, 2, 0.5, 2.7500, 6.9062, 3.4531, 0.6367, 0.0039),
    (4, 2, 0.7, 2.1495, 5.6134, 3.9294, 0.9420, 0.0001),
    (4, 2, 0.9, 1.3874, 4.4439, 3.9995, 0.9996, 0.0),
    (4, 3, 0.5, 3.3555, 7.8086, 3.9043, 0.9270, 0.0002),
    (16, 2, 0.5, 4.2998, 29.7608, 14.8804, 0.5700, 0.0),
]


@pytest.mark.parametrize("row", TRAINERS)
def test_reference_values_of_the_collection_loop(row: tuple[float, ...]) -> None:
    B, M, q, *expected = row
    got = capped.capped_refill(q, n_groups=int(B), max_candidates=int(M * B))
    numbers = [got.expected_waves, got.expected_candidates, got.expected_kept]
    assert [*numbers, got.p_full, got.p_skip] == pytest.approx(expected, abs=5.1e-5)


def test_seed_configuration_statements() -> None:
    """Theory P1: B = 4, M = 2."""
    half = capped.capped_refill(0.5, n_groups=4, max_candidates=8)
    assert half.max_waves == 5
    assert half.waves_pmf[5] == pytest.approx(0.03125)
    assert half.p_full == pytest.approx(0.63671875, abs=1e-12)
    assert half.expected_candidates == pytest.approx(6.90625, abs=1e-12)
    assert half.expected_kept_ratio == pytest.approx(0.538, abs=5e-4)
    assert capped.capped_refill(0.5, n_groups=4, max_candidates=12).max_waves == 9
    low = capped.capped_refill(0.3, n_groups=4, max_candidates=8)
    assert low.expected_waves == pytest.approx(2.83, abs=5e-3)
    assert (low.p_full, low.p_skip) == pytest.approx((0.19, 0.058), abs=5e-3)


def test_worst_case_peaks_at_three_sevenths() -> None:
    q = np.linspace(0.01, 0.99, 981)
    p = [capped.capped_refill(x, n_groups=4, max_candidates=8).p_worst for x in q[::20]]
    peak = capped.capped_refill(3 / 7, n_groups=4, max_candidates=8).p_worst
    assert peak == pytest.approx(0.0336, abs=5e-5)
    assert max(p) <= peak


@pytest.mark.parametrize(("B", "cap", "q"), [(5, 13, 0.3), (16, 128, 0.1), (64, 256, 0.35)])
def test_closed_forms_that_need_no_chain(B: int, cap: int, q: float) -> None:
    got = capped.capped_refill(q, n_groups=B, max_candidates=cap)
    n, k = np.arange(cap), np.arange(B)
    assert got.kept_pmf[:B] == pytest.approx(stats.binom.pmf(k, cap, q), abs=1e-12)
    expected = stats.binom.cdf(B - 1, n, q).sum()
    assert got.expected_candidates == pytest.approx(expected, rel=1e-10)
    assert got.expected_kept == pytest.approx(q * got.expected_candidates, rel=1e-10)
    before = np.arange(B, cap)
    law = stats.nbinom.pmf(before - B, B, q)
    assert got.candidates_pmf[before] == pytest.approx(law, abs=1e-12)
    for pmf in (got.waves_pmf, got.candidates_pmf, got.kept_pmf):
        assert pmf.sum() == pytest.approx(1.0, abs=1e-12)
    assert got.wave_counts.sum() == pytest.approx(got.expected_waves, rel=1e-12)
    sizes = np.arange(B + 1)
    assert got.wave_counts @ sizes == pytest.approx(got.expected_candidates, rel=1e-10)


def test_capped_refill_meets_the_uncapped_law_at_paper_scale() -> None:
    got = capped.capped_refill(0.5, n_groups=512, max_candidates=5120)
    assert got.expected_waves == pytest.approx(sampling.expected_waves(0.5, n_groups=512), rel=1e-9)
    assert got.p_full == 1.0


# out_golden T2: uncapped E[W], rows B, columns q = .2 .3 .5 .7 .9
T2 = {
    4: [9.836, 6.341, 3.505, 2.224, 1.388],
    16: [15.65, 9.978, 5.377, 3.307, 1.981],
    64: [21.759, 13.8, 7.344, 4.44, 2.542],
    512: [31.048, 19.611, 10.334, 6.162, 3.451],
}


@pytest.mark.parametrize("B", T2)
def test_uncapped_waves_table(B: int) -> None:
    got = [sampling.expected_waves(q, n_groups=B) for q in (0.2, 0.3, 0.5, 0.7, 0.9)]
    assert got == pytest.approx(T2[B], abs=5.1e-4)


@pytest.mark.parametrize("q", [1e-9, 1e-4, 9e-4, 0.01, 0.3, 0.97, 1.0])
@pytest.mark.parametrize("B", [1, 2, 3, 7, 40])
def test_expected_waves_two_routes(B: int, q: float) -> None:
    """The series of A3 against first-passage sums of the chain on the deficit."""
    missing = np.zeros(B + 1)
    for m in range(1, B + 1):
        law = stats.binom.pmf(np.arange(m + 1), m, q)
        stay = -math.expm1(m * math.log1p(-q)) if q < 1 else 1.0
        missing[m] = (1.0 + law[1:] @ missing[m - np.arange(1, m + 1)]) / stay
    assert sampling.expected_waves(q, n_groups=B) == pytest.approx(missing[B], rel=1e-9)
    counts = capped.uncapped_wave_counts(q, n_groups=B)
    assert counts.sum() == pytest.approx(missing[B], rel=1e-9)
    assert counts @ np.arange(B + 1) == pytest.approx(B / q, rel=1e-9)


def test_distribution_of_waves_equals_the_power_of_the_chain() -> None:
    B, q = 5, 0.37
    step = np.array([[stats.binom.pmf(m - k, m, q) for k in range(B + 1)] for m in range(B + 1)])
    for w in range(9):
        filled = np.linalg.matrix_power(step, w)[B, 0]
        got = float(sampling.p_waves_at_most(w, p_mixed=q, n_groups=B))
        assert got == pytest.approx(filled, abs=1e-12)


def test_waves_bounds_and_asymptotics() -> None:
    for B, q in itertools.product([1, 2, 4, 16, 512], [0.05, 0.3, 0.5, 0.9]):
        low, high = sampling.expected_waves_bounds(q, n_groups=B)
        assert low <= sampling.expected_waves(q, n_groups=B) <= high
    exact = sampling.expected_waves(0.5, n_groups=4)
    assert sampling.expected_waves_asymptotic(0.5, n_groups=4) == pytest.approx(exact, abs=1e-3)


def test_nothing_mixed_is_infinite_and_never_nan() -> None:
    assert sampling.expected_waves(0.0, n_groups=4) == math.inf
    assert sampling.expected_candidates(0.0, n_groups=4) == math.inf
    assert sampling.candidates_needed(0.0, n_groups=4) == math.inf
    assert sampling.expected_kept_ratio(0.0, n_groups=4) == 0.0
    endless = sampling.rounds(0.0, n_groups=4, gen_groups=12)
    assert (endless.p_abort, endless.expected_rounds) == (1.0, math.inf)
    stopped = sampling.rounds(0.0, n_groups=4, gen_groups=12, max_rounds=10)
    assert (stopped.p_abort, stopped.expected_rounds) == (1.0, 10.0)
    dead = capped.capped_refill(0.0, n_groups=4, max_candidates=8)
    assert (dead.expected_waves, dead.p_skip, dead.expected_kept) == (2.0, 1.0, 0.0)


def test_candidates_law_is_the_trial_of_the_last_hit() -> None:
    B, q = 3, 0.4
    n = np.arange(3, 400)
    pmf = sampling.candidates_pmf(n, p_mixed=q, n_groups=B)
    direct = [math.comb(int(x) - 1, B - 1) * q**B * (1 - q) ** (int(x) - B) for x in n]
    assert pmf == pytest.approx(direct, abs=1e-12)
    assert pmf @ n == pytest.approx(sampling.expected_candidates(q, n_groups=B), rel=1e-12)


def rounds_chain(B: int, Bg: int, q: float, limit: int) -> tuple[list[float], float]:
    """P(R = r) by convolving rounds, and E[surplus; filled], with no closed form."""
    hits = stats.binom.pmf(np.arange(Bg + 1), Bg, q)
    below, pmf, surplus = np.array([1.0]), [0.0], 0.0
    for _ in range(limit):
        law = np.convolve(below, hits)
        pmf.append(float(law[B:].sum()))
        surplus += float(law[B:] @ np.arange(law.size - B)) if law.size > B else 0.0
        below = law[:B]
    return pmf, surplus


@pytest.mark.parametrize(("B", "Bg", "q"), [(4, 3, 0.3), (5, 12, 0.5), (1, 2, 0.2), (16, 8, 0.9)])
def test_rounds_equal_the_convolution_of_rounds(B: int, Bg: int, q: float) -> None:
    pmf, surplus = rounds_chain(B, Bg, q, 400)
    got = sampling.rounds(q, n_groups=B, gen_groups=Bg)
    assert got.expected_rounds == pytest.approx(np.dot(pmf, np.arange(401)), rel=1e-9)
    assert got.expected_surplus == pytest.approx(surplus, abs=1e-9)
    assert got.expected_surplus == pytest.approx(q * Bg * got.expected_rounds - B, abs=1e-9)
    assert got.candidate_utilisation == pytest.approx(B / (Bg * got.expected_rounds), rel=1e-12)
    law = sampling.rounds_pmf(30, p_mixed=q, n_groups=B, gen_groups=Bg)
    assert law == pytest.approx(pmf[:31], abs=1e-12)
    pmf, surplus = rounds_chain(B, Bg, q, 3)
    limited = sampling.rounds(q, n_groups=B, gen_groups=Bg, max_rounds=3)
    assert limited.p_abort == pytest.approx(1 - sum(pmf), abs=1e-9)
    assert limited.expected_surplus == pytest.approx(surplus, abs=1e-9)
    rounds_used = np.dot(pmf, np.arange(4)) + 3 * (1 - sum(pmf))
    assert limited.expected_rounds == pytest.approx(rounds_used, abs=1e-9)
    assert limited.expected_trained == pytest.approx(B * sum(pmf), abs=1e-9)


# out_golden T4 (Bt 512, Bg 1536): q, E[R], P(R <= 1), discarded share, surplus per step
T4 = [
    (0.15, 2.9943, 0.0, 0.889, 177.9),
    (0.2, 2.0, 0.0, 0.833, 102.4),
    (0.25, 2.0, 0.0, 0.833, 256.0),
    (0.3, 1.9974, 0.0026, 0.833, 408.4),
    (0.32, 1.8626, 0.1374, 0.821, 403.5),
    (0.333, 1.5015, 0.4985, 0.778, 256.0),
    (0.34, 1.2821, 0.7179, 0.74, 157.6),
    (0.36, 1.0134, 0.9866, 0.671, 48.4),
    (0.4, 1.0, 1.0, 0.667, 102.4),
    (0.5, 1.0, 1.0, 0.667, 256.0),
    (0.7, 1.0, 1.0, 0.667, 563.2),
]


@pytest.mark.parametrize("row", T4)
def test_rounds_at_paper_scale(row: tuple[float, ...]) -> None:
    q, mean_rounds, at_once, discarded, surplus = row
    got = sampling.rounds(q, n_groups=512, gen_groups=1536)
    assert got.expected_rounds == pytest.approx(mean_rounds, abs=5.1e-5)
    first = sampling.p_rounds_at_most(1, p_mixed=q, n_groups=512, gen_groups=1536)
    assert float(first) == pytest.approx(at_once, abs=5.1e-5)
    assert 1 - got.candidate_utilisation == pytest.approx(discarded, abs=5.1e-4)
    assert got.expected_surplus == pytest.approx(surplus, abs=0.051)


def test_rare_rounds_meet_their_limit() -> None:
    """Bt = 1 is geometric in rounds; the uniform-residue form must join it and the sum."""
    assert sampling.rounds(1e-7, n_groups=1, gen_groups=3).expected_rounds == pytest.approx(
        1 / (1 - (1 - 1e-7) ** 3), rel=1e-7
    )
    q, B, Bg = 2e-3, 6, 4
    n_terms = np.arange(40_000)
    direct = stats.binom.cdf(B - 1, n_terms * Bg, q).sum()
    got = sampling.rounds(q, n_groups=B, gen_groups=Bg).expected_rounds
    assert got == pytest.approx(direct, rel=1e-9)


# out_golden T8
T8 = {
    (4, 0.3): 24, (4, 0.5): 13, (4, 0.7): 9, (16, 0.3): 73, (16, 0.5): 42, (16, 0.7): 28,
    (64, 0.3): 252, (64, 0.5): 147, (64, 0.7): 102,
}  # fmt: skip


@pytest.mark.parametrize(("B", "q"), T8)
def test_candidates_needed_table(B: int, q: float) -> None:
    need = sampling.candidates_needed(q, n_groups=B)
    assert need == T8[B, q]
    assert sampling.p_enough(int(need) - 1, p_mixed=q, n_groups=B) < 0.95


@pytest.mark.parametrize(("B", "q"), [(1, 0.3), (4, 0.5), (16, 0.05), (512, 0.5)])
def test_effective_ratio_is_biased_up(B: int, q: float) -> None:
    n = np.arange(B, int(B / q * 8 + 400 / q))
    direct = stats.nbinom.pmf(n - B, B, q) @ (B / n)
    got = sampling.expected_kept_ratio(q, n_groups=B)
    assert got == pytest.approx(direct, abs=1e-10)
    by_theory, _ = integrate.quad(
        lambda t: B * (q * t / (1 - (1 - q) * t)) ** B / t, 0, 1, limit=500, epsabs=1e-12
    )
    assert got == pytest.approx(by_theory, abs=1e-9)
    assert got > q
    if (B, q) == (4, 0.5):
        assert got == pytest.approx(0.561, abs=5e-4)


@pytest.mark.parametrize(("B", "cap"), [(1, 3), (2, 3), (4, 8), (3, 12)])
@pytest.mark.parametrize("q", [0.15, 0.5, 0.9])
def test_unbiased_estimate_is_unbiased_exactly(B: int, cap: int, q: float) -> None:
    law = enumerated(B, cap, q)
    used = np.array([key[1] for key in law])
    kept = np.array([key[2] for key in law])
    estimate = sampling.p_mixed_unbiased(kept, used, n_groups=B)
    assert np.array(list(law.values())) @ estimate == pytest.approx(q, abs=1e-12)


def test_token_accounts() -> None:
    assert sampling.expected_tokens_generated(8.0, tokens_per_candidate=1500.0) == 12_000
    share = sampling.token_utilisation(0.5, tokens_per_mixed=900.0, tokens_per_candidate=1200.0)
    assert share == pytest.approx(0.375)
    law = sampling.rounds(0.5, n_groups=4, gen_groups=12)
    got = sampling.rounds_token_utilisation(
        law, tokens_per_mixed=900.0, tokens_per_candidate=1200.0
    )
    assert got == pytest.approx(4 * 900 / (law.expected_rounds * 12 * 1200))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: sampling.expected_waves(-0.1, n_groups=4), "p_mixed"),
        (lambda: sampling.expected_waves(float("nan"), n_groups=4), "p_mixed"),
        (lambda: sampling.expected_waves(0.5, n_groups=0), "n_groups"),
        (lambda: sampling.expected_waves(0.5, n_groups=2.5), "n_groups"),  # type: ignore[arg-type]
        (lambda: capped.capped_refill(0.5, n_groups=4, max_candidates=3), "max_candidates"),
        (lambda: sampling.rounds(0.5, n_groups=4, gen_groups=4, max_rounds=0), "max_rounds"),
        (lambda: sampling.p_mixed_unbiased(5, 8, n_groups=4), "n_kept"),
        (lambda: sampling.candidates_needed(0.5, n_groups=4, confidence=1.0), "confidence"),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: object, word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@given(q=st.floats(0.01, 0.98), B=st.integers(1, 12), extra=st.integers(0, 20))
def test_capped_refill_invariants(q: float, B: int, extra: int) -> None:
    law = capped.capped_refill(q, n_groups=B, max_candidates=B + extra)
    assert law.waves_pmf.sum() == pytest.approx(1.0, abs=1e-12)
    assert 1.0 - 1e-12 <= law.expected_waves <= law.max_waves + 1e-12
    assert law.expected_waves <= sampling.expected_waves(q, n_groups=B) + 1e-9
    assert law.expected_kept_ratio >= q - 1e-12
    looser = capped.capped_refill(q, n_groups=B, max_candidates=B + extra + 1)
    assert looser.expected_waves >= law.expected_waves - 1e-12
    assert looser.p_full >= law.p_full - 1e-12


@given(q=st.floats(0.001, 0.99), B=st.integers(1, 600))
def test_more_mixed_groups_never_cost_waves(q: float, B: int) -> None:
    waves = sampling.expected_waves(q, n_groups=B)
    assert sampling.expected_waves(min(q * 1.01, 1.0), n_groups=B) <= waves
    assert sampling.expected_waves(q, n_groups=B + 1) > waves
    assert math.isfinite(waves)
