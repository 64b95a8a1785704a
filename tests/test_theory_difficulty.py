"""C6, C7: std normalisation and dynamic sampling against enumeration of every group."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.theory import difficulty

# theory out_golden T9: c_G(p)/c_G(.5) by G and p
T9 = {
    4: {0.01: 1.069, 0.05: 1.058, 0.1: 1.046, 0.2: 1.026},
    8: {0.01: 1.406, 0.05: 1.333, 0.1: 1.254, 0.2: 1.135},
    16: {0.01: 1.93, 0.05: 1.689, 0.1: 1.472, 0.2: 1.213},
    64: {0.01: 3.395, 0.05: 2.185, 0.1: 1.64, 0.2: 1.244},
}


def enumerated(p: float, G: int, ddof: int | None) -> tuple[float, float]:
    """Expected gradient of the loss by the logit of p, and E[population std]; every outcome."""
    gradient = spread = 0.0
    for outcome in itertools.product([0.0, 1.0], repeat=G):
        r = np.array(outcome)
        weight = math.prod(p if x else 1 - p for x in outcome)
        spread += weight * r.std()
        if r.std() == 0.0:
            continue
        A = r - r.mean() if ddof is None else (r - r.mean()) / r.std(ddof=ddof)
        gradient += weight * float(A @ (r - p)) / G
    return gradient, spread


@pytest.mark.parametrize("G", [2, 3, 8])
@pytest.mark.parametrize("p", [0.02, 0.5, 0.83])
def test_std_weight_by_enumeration(p: float, G: int) -> None:
    for ddof in (0, 1):
        gradient, spread = enumerated(p, G, ddof)
        got = float(difficulty.std_weight(p, group_size=G, ddof=ddof))
        assert got * p * (1 - p) == pytest.approx(gradient, abs=1e-12)
        std = float(difficulty.expected_group_std(p, group_size=G))
        assert std == pytest.approx(spread, abs=1e-12)
    mean_only, _ = enumerated(p, G, None)
    assert mean_only == pytest.approx((1 - 1 / G) * p * (1 - p), abs=1e-12)


@pytest.mark.parametrize("G", sorted(T9))
def test_tilt_matches_the_oracle_table(G: int) -> None:
    rates = list(T9[G])
    got = difficulty.std_weight(rates, group_size=G) / difficulty.std_weight(0.5, group_size=G)
    assert got == pytest.approx(list(T9[G].values()), abs=5.1e-4)


def test_large_group_form_is_the_limit_and_diverges_where_finite_groups_do_not() -> None:
    limit = difficulty.std_weight_large_group([0.01, 0.5])
    assert limit[0] / limit[1] == pytest.approx(5.03, abs=0.005)
    finite = difficulty.std_weight([0.3, 0.5], group_size=4096)
    assert finite == pytest.approx(difficulty.std_weight_large_group([0.3, 0.5]), rel=1e-3)
    assert difficulty.std_weight_large_group([0.0])[0] == math.inf
    assert difficulty.std_weight([0.0, 1.0], group_size=8) == pytest.approx([math.sqrt(7)] * 2)


@given(p=st.floats(0.0, 1.0), G=st.integers(2, 64))
@settings(deadline=None)
def test_std_weight_is_symmetric_and_bounded(p: float, G: int) -> None:
    here = float(difficulty.std_weight(p, group_size=G))
    assert here == pytest.approx(float(difficulty.std_weight(1 - p, group_size=G)), rel=1e-9)
    assert here <= difficulty.std_weight_bound(group_size=G) * (1 + 1e-12)
    # Jensen: E sqrt(K(G-K)) is at most the root of its mean, so c_G stays below the limit too
    limit = float(difficulty.std_weight_large_group(p))
    assert here <= limit * (1 + 1e-12)


def test_the_actual_logit_step_vanishes_at_the_ends() -> None:
    steps = difficulty.expected_group_std([0.0, 1e-6, 1 - 1e-6, 1.0], group_size=16)
    assert steps[[0, 3]] == pytest.approx([0.0, 0.0], abs=1e-15)
    # one right answer in a million: P(K=1) = G p, std sqrt(G-1)/G
    assert steps[1:3] == pytest.approx([1e-6 * math.sqrt(15)] * 2, rel=1e-4)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("G", [2, 5, 16])
def test_advantage_sizes_of_every_count(G: int, ddof: int) -> None:
    largest = 0.0
    for K in range(1, G):
        r = np.array([1.0] * K + [0.0] * (G - K))
        A = (r - r.mean()) / r.std(ddof=ddof)
        largest = max(largest, float(np.abs(A).max()))
        got = float(difficulty.sum_abs_advantage(K, group_size=G, ddof=ddof))
        assert got == pytest.approx(float(np.abs(A).sum()), abs=1e-12)
    got = difficulty.max_abs_advantage(group_size=G, ddof=ddof)
    assert got == pytest.approx(largest, abs=1e-12)
    assert difficulty.sum_abs_advantage([0, G], group_size=G, ddof=ddof).tolist() == [0.0, 0.0]


@given(r=st.lists(st.integers(-1000, 1000), min_size=2, max_size=20))
@settings(deadline=None)
def test_no_reward_vector_exceeds_the_largest_advantage(r: list[int]) -> None:
    x = np.array(r, dtype=float)
    if x.std() > 0:
        A = (x - x.mean()) / x.std()
        bound = difficulty.max_abs_advantage(group_size=x.size, ddof=0)
        assert np.abs(A).max() <= bound * (1 + 1e-12)


@pytest.mark.parametrize("ddof", [None, 0, 1])
def test_dynamic_sampling_rescales_the_expected_gradient(ddof: int | None) -> None:
    """Three prompts with a logit each; a candidate draws a prompt, then its group of G."""
    rates, w, G = [0.05, 0.4, 0.9], np.array([0.5, 0.2, 0.3]), 5
    plain = np.array([enumerated(p, G, ddof)[0] for p in rates]) * w
    kept_gradient, kept_share = np.zeros(3), np.zeros(3)
    for i, p in enumerate(rates):
        for outcome in itertools.product([0.0, 1.0], repeat=G):
            r = np.array(outcome)
            if 0 < r.sum() < G:
                A = r - r.mean() if ddof is None else (r - r.mean()) / r.std(ddof=ddof)
                weight = w[i] * math.prod(p if x else 1 - p for x in outcome)
                kept_share[i] += weight
                kept_gradient[i] += weight * float(A @ (r - p)) / G
    law = difficulty.dynamic_sampling_gradient(rates, group_size=G, weights=w)
    assert kept_gradient / kept_share.sum() == pytest.approx(law.gain * plain, abs=1e-12)
    assert law.kept_share_P == pytest.approx(kept_share / kept_share.sum(), abs=1e-12)


def test_nothing_to_keep() -> None:
    law = difficulty.dynamic_sampling_gradient([0.0, 1.0], group_size=8)
    assert law.gain == math.inf
    assert law.kept_share_P.tolist() == [0.0, 0.0]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="ddof"):
        difficulty.std_weight(0.5, group_size=4, ddof=2)
    with pytest.raises(ValueError, match="pass rates"):
        difficulty.expected_group_std(1.5, group_size=4)
    with pytest.raises(ValueError, match="n_correct"):
        difficulty.sum_abs_advantage(9, group_size=8, ddof=0)
