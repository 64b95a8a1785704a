"""Speculative decoding: published factors, hand arithmetic, draws, a loop over tokens."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapolab.theory.decode import affine_finish_times
from dapolab.theory.speculation import (
    Speculation,
    expected_iterations,
    finish_times_s,
    largest_paying_batch,
    speedup,
)

TABLES = st.builds(
    Speculation,
    draft_tokens=st.integers(1, 7),
    acceptance=st.floats(0, 1),
    draft_s=st.floats(0, 1),
    verify_s=st.floats(0, 1),
)


@pytest.mark.parametrize(
    ("acceptance", "draft_tokens", "factor"),
    [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ],
)
def test_published_speed(acceptance: float, draft_tokens: int, factor: float) -> None:
    """Leviathan et al. 2023, Table 1: speed against the baseline where drafting costs nothing."""
    table = Speculation(draft_tokens=draft_tokens, acceptance=acceptance)
    assert table.tokens_per_iteration == pytest.approx(factor, abs=0.005)
    assert speedup(table, step_s=0.02) == pytest.approx(factor, abs=0.005)


def test_hand_arithmetic() -> None:
    half = Speculation(draft_tokens=3, acceptance=0.5, draft_s=0.1, verify_s=0.2)
    assert half.tokens_pmf.tolist() == [0.5, 0.25, 0.125, 0.125]
    assert half.tokens_per_iteration == 1.875
    # 1.875 tokens in 1 + 0.3 + 0.2 seconds, against one a second
    assert speedup(half, step_s=1.0) == pytest.approx(1.25)
    assert Speculation(draft_tokens=3, acceptance=1.0).tokens_per_iteration == 4
    assert Speculation(draft_tokens=3, acceptance=0.0).tokens_per_iteration == 1


def test_iterations_by_hand() -> None:
    """One or two tokens, each with probability ½: N(2) = 1 + ½, N(3) = 1 + ½·1.5 + ½·1."""
    table = Speculation(draft_tokens=1, acceptance=0.5)
    assert [expected_iterations(n, table) for n in (1, 2, 3)] == [1.0, 1.5, 2.25]


@given(TABLES, st.integers(1, 60))
def test_the_mean_field_is_short_by_less_than_one_draft(table: Speculation, n: int) -> None:
    """Wald: the tokens at the end, n to n + k of them, are E times the mean iterations."""
    tokens = expected_iterations(n, table) * table.tokens_per_iteration
    assert n - 1e-9 <= tokens <= n + table.draft_tokens + 1e-9


def test_iterations_agree_with_draws() -> None:
    table, n, runs = Speculation(draft_tokens=4, acceptance=0.7), 200, 2000
    rng = np.random.default_rng(5)
    accepted = rng.random((runs, n, 4)) < 0.7
    gained = 1 + np.cumprod(accepted, axis=2).sum(axis=2)
    took = 1 + (np.cumsum(gained, axis=1) < n).sum(axis=1)
    error = took.std(ddof=1) / math.sqrt(runs)
    expected = expected_iterations(n, table)
    assert abs(took.mean() - expected) < 4.5 * error
    assert abs(took.mean() - 1.05 * expected) > 4.5 * error


def token_loop(
    lengths: list[int], prompts: list[int], table: Speculation, limit: int, law: list[float]
) -> list[float]:
    """One token of everyone at a time, the yield summed over what may be accepted."""
    a, b, c = law
    k, alpha = table.draft_tokens, table.acceptance
    mean = sum(alpha**j for j in range(k + 1))
    now, ends = 0.0, [0.0] * len(lengths)
    for m in range(max(lengths)):
        left = [i for i, length in enumerate(lengths) if length > m]
        context = c * sum(prompts[i] + m for i in left)
        if len(left) > limit:
            now += a + b * len(left) + context
        else:
            verified = a + b * (k + 1) * len(left) + context
            now += (verified + k * table.draft_s + table.verify_s) / mean
        for i in left:
            if lengths[i] == m + 1:
                ends[i] = now
    return ends


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=9),
    TABLES,
    st.integers(0, 9),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
def test_a_wave_is_the_token_loop(
    responses: list[tuple[int, int]], table: Speculation, limit: int, law: list[float]
) -> None:
    lengths, prompts = [list(column) for column in zip(*responses, strict=True)]
    a, b, c = law
    found = finish_times_s(
        lengths,
        table,
        max_batch=limit,
        step_s=a,
        per_response_s=b,
        per_context_token_s=c,
        prompt_tokens=prompts,
    )
    expected = token_loop(lengths, prompts, table, limit, law)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_wave_that_never_speculates_is_plain() -> None:
    law = {"step_s": 0.01, "per_response_s": 1e-4, "per_context_token_s": 1e-6}
    table = Speculation(draft_tokens=4, acceptance=0.7, draft_s=9.0)
    lengths = [5, 80, 33, 80]
    found = finish_times_s(lengths, table, max_batch=0, **law)
    np.testing.assert_allclose(found, affine_finish_times(lengths, **law), rtol=1e-12)


def test_speculation_pays_below_the_largest_paying_batch() -> None:
    table = Speculation(draft_tokens=3, acceptance=1.0, draft_s=0.1 / 3)
    assert largest_paying_batch(table, step_s=1.0, per_response_s=0.2) == math.inf
    third = Speculation(draft_tokens=2, acceptance=0.5, draft_s=0.25)  # E = 1.75, d = 0.5
    # 0.75·1 − 0.5 = 0.25 against 0.1·(3 − 1.75) = 0.125; a context of 0.05 s takes 0.0375 off it
    assert largest_paying_batch(third, step_s=1.0, per_response_s=0.1) == pytest.approx(2.0)
    found = largest_paying_batch(third, step_s=1.0, per_response_s=0.1, context_s_per_response=0.05)
    assert found == pytest.approx(0.25 / 0.0875)
    dear = Speculation(draft_tokens=2, acceptance=0.5, draft_s=1.0)
    assert largest_paying_batch(dear, step_s=1.0, per_response_s=0.1) == 0.0


@given(TABLES, st.floats(0.01, 1), st.floats(0.001, 1), st.integers(1, 50))
def test_the_largest_paying_batch_is_where_the_wave_gets_slower(
    table: Speculation, a: float, b: float, n: int
) -> None:
    limit = largest_paying_batch(table, step_s=a, per_response_s=b)
    law = {"step_s": a, "per_response_s": b}
    plain = finish_times_s([10] * n, table, max_batch=0, **law)[0]
    speculated = finish_times_s([10] * n, table, max_batch=n, **law)[0]
    if abs(n - limit) > 1e-6 * n and abs(plain - speculated) > 1e-9 * plain:
        assert (speculated < plain) == (n < limit)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"draft_tokens": 0, "acceptance": 0.5}, "draft_tokens"),
        ({"draft_tokens": 1, "acceptance": 1.1}, "acceptance"),
        ({"draft_tokens": 1, "acceptance": 0.5, "draft_s": -1.0}, "draft_s"),
        ({"draft_tokens": 1, "acceptance": 0.5, "verify_s": math.nan}, "verify_s"),
    ],
)
def test_wrong_tables_are_named(settings: dict[str, float], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Speculation(**settings)  # type: ignore[arg-type]
