"""E1 to E6 against shaped rewards written out, and the enumeration of every group."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dapolab.theory import groups, overlong

Array = NDArray[np.float64]
CAP, BUFFER = 20, 8


def penalty(length: int) -> float:
    """DAPO Eq. 13 by its three cases."""
    if length <= CAP - BUFFER:
        return 0.0
    if length <= CAP:
        return (length - (CAP - BUFFER)) / BUFFER
    return 1.0


def test_penalty_share_by_its_cases() -> None:
    lengths = np.arange(1, CAP + 3)
    got = overlong.penalty_share(lengths, cap_tokens=CAP, buffer_tokens=BUFFER)
    assert got.tolist() == [penalty(int(n)) for n in lengths]


@given(
    group=st.lists(st.tuples(st.booleans(), st.integers(1, CAP)), min_size=2, max_size=16),
    gap=st.sampled_from([0.5, 1.0, 2.0]),
    factor=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)
@settings(deadline=None, max_examples=300)
def test_sign_flips_are_the_signs_of_the_advantages(
    group: list[tuple[bool, int]], gap: float, factor: float
) -> None:
    right = np.array([x for x, _ in group])
    u = np.array([penalty(n) for _, n in group])
    reward = -1.0 + gap * right - factor * u
    advantage = reward - math.fsum(reward) / len(group)
    got = overlong.sign_flips(right, penalty_share_G=u, reward_gap=gap, factor=factor)
    clear = np.abs(advantage) > 1e-12
    assert np.array_equal(got.right_punished_G[clear], (right & (advantage < 0))[clear])
    assert np.array_equal(got.wrong_rewarded_G[clear], (~right & (advantage > 0))[clear])
    # the mechanism off: without a penalty no sign is flipped
    none = overlong.sign_flips(right, penalty_share_G=u, reward_gap=gap, factor=0.0)
    assert not none.right_punished_G.any()
    assert not none.wrong_rewarded_G.any()


def test_flip_threshold() -> None:
    """Theory E1: one wrong of 8 puts it at .286, of 16 at .133; K > (G+1)/2 or never."""
    of = [overlong.flip_threshold(G - 1, group_size=G) for G in (8, 16)]
    assert of == pytest.approx([0.286, 0.133], abs=5.1e-4)
    for G in (5, 8, 16):
        for K in range(1, G):
            limit = overlong.flip_threshold(K, group_size=G)
            assert (limit < 1) == (K > (G + 1) / 2)
            right = [True] * K + [False] * (G - K)
            for u, flipped in ((limit - 1e-9, False), (limit + 1e-9, True)):
                if u <= 1.0:
                    shares = [u] + [0.0] * (G - 1)
                    got = overlong.sign_flips(right, penalty_share_G=shares)
                    assert bool(got.right_punished_G[0]) is flipped


def test_short_wrong_answers_rewarded_for_being_short() -> None:
    """Theory E1: G = 8, K = 1, four truncated wrongs: the three short wrongs get A = +.24."""
    right, u = [True] + [False] * 7, [0.0] + [1.0] * 4 + [0.0] * 3
    got = overlong.sign_flips(right, penalty_share_G=u)
    assert got.wrong_rewarded_G.tolist() == [False] * 5 + [True] * 3
    reward = np.where(right, 1.0, -1.0) - np.array(u)
    advantage = (reward - reward.mean()) / reward.std(ddof=1)
    assert advantage[-1] == pytest.approx(0.24, abs=5e-3)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("G", [2, 5, 16])
@pytest.mark.parametrize("size", [1e-6, 0.3, 1.0])
def test_solved_group_is_a_full_strength_penalty_whatever_its_size(
    G: int, ddof: int, size: float
) -> None:
    for m in range(1, G):
        reward = np.array([1.0 - size] * m + [1.0] * (G - m))
        advantage = (reward - reward.mean()) / reward.std(ddof=ddof)
        got = overlong.uniform_group_advantages(m, group_size=G, ddof=ddof)
        assert (got.penalised, got.others) == pytest.approx((advantage[0], advantage[-1]), rel=1e-7)
    first = overlong.uniform_group_advantages(1, group_size=G, ddof=1)
    assert first.penalised == pytest.approx(-(G - 1) / math.sqrt(G), rel=1e-12)
    assert first.others == pytest.approx(1 / math.sqrt(G), rel=1e-12)


# --- the filter ------------------------------------------------------------------------------


def geometric(h: float) -> Callable[[Array], Array]:
    return lambda x: np.exp(np.floor(x) * math.log1p(-h))


def length_law(h: float, cap: int) -> dict[int, float]:
    law = {n: h * (1 - h) ** (n - 1) for n in range(1, cap)}
    law[cap] = (1 - h) ** (cap - 1)
    return law


@pytest.mark.parametrize("h", [0.02, 0.1, 0.4])
def test_kept_uniform_groups_by_enumeration(h: float) -> None:
    cap, buffer, G = 9, 5, 3
    law = length_law(h, cap)
    kept = 0.0
    for lengths in itertools.product(law, repeat=G):
        u = {min(max((n - (cap - buffer)) / buffer, 0.0), 1.0) for n in lengths}
        if len(u) > 1:
            kept += math.prod(law[n] for n in lengths)
    got = overlong.p_kept_uniform(geometric(h), group_size=G, cap_tokens=cap, buffer_tokens=buffer)
    assert got == pytest.approx(kept, abs=1e-12)


def test_published_example_of_the_shaped_filter() -> None:
    """Theory E3/E4: beta .22, pi .135, G = 8: k = .865 and 29 % for Beta(2, .7)."""
    beta, pi = 0.22, 0.135

    def survival(x: Array) -> Array:
        return np.where(x < CAP, beta, pi)

    k = overlong.p_kept_uniform(
        survival, group_size=8, cap_tokens=CAP, buffer_tokens=BUFFER, whole_tokens=False
    )
    assert k == pytest.approx(1 - 0.78**8 - 0.135**8, abs=1e-12)
    assert k == pytest.approx(0.865, abs=5e-3)  # beta is printed with two digits
    law = groups.mixed_groups_beta(2.0, 0.7, group_size=8)
    got = overlong.shaped_filter(law, p_kept_all_right=k, p_kept_all_wrong=k)
    assert got.degenerate_share == pytest.approx(0.29, abs=6e-3)
    assert got.p_mixed == law.p_mixed
    raw = overlong.shaped_filter(law, p_kept_all_right=0.0, p_kept_all_wrong=0.0)
    assert (raw.retention, raw.degenerate_share) == (law.p_mixed, 0.0)


def test_retention_by_enumeration_of_outcomes_and_lengths() -> None:
    p, G, cap, buffer, gap, factor = 0.7, 3, 6, 3, 2.0, 1.0
    laws = {True: length_law(0.15, cap), False: length_law(0.05, cap)}
    kept = degenerate = 0.0
    one = [
        (right, n, (p if right else 1 - p) * mass)
        for right, law in laws.items()
        for n, mass in law.items()
    ]
    for group in itertools.product(one, repeat=G):
        weight = math.prod(w for _, _, w in group)
        rewards = {
            round(gap * right - factor * min(max((n - cap + buffer) / buffer, 0), 1), 9)
            for right, n, _ in group
        }
        if len(rewards) > 1:
            kept += weight
            degenerate += weight * (len({right for right, _, _ in group}) == 1)
    k = [
        overlong.p_kept_uniform(geometric(h), group_size=G, cap_tokens=cap, buffer_tokens=buffer)
        for h in (0.15, 0.05)
    ]
    law = groups.mixed_groups([p], group_size=G)
    got = overlong.shaped_filter(law, p_kept_all_right=k[0], p_kept_all_wrong=k[1])
    assert got.retention == pytest.approx(kept, abs=1e-12)
    assert got.degenerate_share == pytest.approx(degenerate / kept, abs=1e-12)


@given(h=st.floats(0.01, 0.9), G=st.integers(1, 32), buffer=st.integers(1, 40))
@settings(deadline=None)
def test_kept_share_grows_with_the_group_and_is_a_probability(
    h: float, G: int, buffer: int
) -> None:
    of = [
        overlong.p_kept_uniform(geometric(h), group_size=g, cap_tokens=40, buffer_tokens=buffer)
        for g in (G, G + 1)
    ]
    assert 0.0 <= of[0] <= of[1] + 1e-12 <= 1.0 + 1e-12
    if G == 1:
        assert of[0] == 0.0


# --- expected penalty, order -----------------------------------------------------------------


@pytest.mark.parametrize(("cap", "buffer"), [(9, 5), (20, 8), (7, 7)])
@pytest.mark.parametrize("h", [0.01, 0.2, 1.0])
def test_expected_penalty_by_summation(h: float, cap: int, buffer: int) -> None:
    law = length_law(h, cap)
    mean = sum(mass * min(max((n - (cap - buffer)) / buffer, 0.0), 1.0) for n, mass in law.items())
    closed = overlong.expected_penalty_share_geometric(h, cap_tokens=cap, buffer_tokens=buffer)
    assert closed == pytest.approx(mean, abs=1e-12)
    if h < 1:
        got = overlong.expected_penalty_share(geometric(h), cap_tokens=cap, buffer_tokens=buffer)
        assert got == pytest.approx(mean, abs=1e-12)


def test_expected_penalty_of_endless_answers() -> None:
    got = overlong.expected_penalty_share_geometric(0.0, cap_tokens=100, buffer_tokens=20)
    assert got == 1.0


def test_expected_penalty_of_a_continuous_law() -> None:
    """Exponential lengths: mean 1000, cap 2000, buffer 500."""
    got = overlong.expected_penalty_share(
        lambda x: np.exp(-x / 1000), cap_tokens=2000, buffer_tokens=500, whole_tokens=False
    )
    assert got == pytest.approx(2 * (math.exp(-1.5) - math.exp(-2)), abs=1e-12)


def test_order_is_kept_only_above_the_factor() -> None:
    shares = [penalty(n) for n in range(1, CAP + 1)]
    for gap, factor in ((2.0, 1.0), (1.0, 1.0), (0.5, 1.0)):
        least = min(gap - factor * u for u in shares) - max(-factor * u for u in shares)
        margin = overlong.order_margin(reward_gap=gap, factor=factor)
        assert margin == pytest.approx(least, abs=1e-15)


def test_tied_mixed_groups_by_enumeration() -> None:
    """Rewards 1/0, f = 1: a right answer at the cap is worth a short wrong one."""
    p, G, full, free = 0.6, 4, 0.3, 0.8
    tied = 0.0
    kinds = [(True, p * full, 0.0), (True, p * (1 - full), 0.5)]
    kinds += [(False, (1 - p) * free, 0.0), (False, (1 - p) * (1 - free), -0.5)]
    for group in itertools.product(kinds, repeat=G):
        if len({r for r, _, _ in group}) == 2 and {x for _, _, x in group} == {0.0}:
            tied += math.prod(w for _, w, _ in group)
    got = overlong.p_tied_mixed_group(p, group_size=G, p_right_full=full, p_wrong_free=free)
    assert got == pytest.approx(tied, abs=1e-12)
    assert got > 0.01


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: overlong.penalty_share(3, cap_tokens=4, buffer_tokens=5), "buffer_tokens"),
        (lambda: overlong.sign_flips([True], penalty_share_G=[2.0]), r"\[0, 1\]"),
        (lambda: overlong.sign_flips([True], penalty_share_G=[0.5, 0.5]), "equal length"),
        (lambda: overlong.flip_threshold(9, group_size=8), "exceeds"),
        (lambda: overlong.uniform_group_advantages(8, group_size=8, ddof=0), "leaves no other"),
        (lambda: overlong.uniform_group_advantages(1, group_size=8, ddof=2), "ddof"),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()
    assert "\n" not in str(caught.value)
