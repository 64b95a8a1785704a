"""C1, C2, C8: token weights against a loss written out on a padded table, factors by counting."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dapolab.theory import length_bias

Array = NDArray[np.float64]
MODES: list[Any] = [
    "token-mean",
    "prompt-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "token-sum",
    "token-sum-norm",
]
CONSTANT = 16.0


def loss(table_NT: Array, lengths: list[int], groups: list[int], mode: str) -> float:
    """The aggregation written out on rows of token losses, without a weight in sight."""
    rows = [list(row[:n]) for row, n in zip(table_NT, lengths, strict=True)]
    tokens = [x for row in rows for x in row]
    if mode == "token-mean":
        return sum(tokens) / len(tokens)
    if mode == "token-sum":
        return sum(tokens)
    if mode == "token-sum-norm":
        return sum(sum(row) for row in rows) / CONSTANT
    if mode == "prompt-mean":
        means = []
        for g in set(groups):
            own = [x for row, k in zip(rows, groups, strict=True) if k == g for x in row]
            means.append(sum(own) / len(own) if own else 0.0)
        return sum(means) / len(means)
    per_row = {
        "seq-mean-token-mean": lambda row: sum(row) / len(row) if row else 0.0,
        "seq-mean-token-sum": sum,
        "seq-mean-token-sum-norm": lambda row: sum(row) / CONSTANT,
    }[mode]
    return sum(per_row(row) for row in rows) / len(rows)


def weights_by_difference(of: Callable[[Array], float], lengths: list[int]) -> Array:
    """Raise one token's loss by 1: the loss is linear, so the difference is the weight."""
    zero = np.zeros((len(lengths), max(lengths)))
    base = of(zero)
    out = np.zeros(len(lengths))
    for i, n in enumerate(lengths):
        if n:
            raised = zero.copy()
            raised[i, n - 1] = 1.0
            out[i] = of(raised) - base
    return out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("lengths", "groups"), [([3, 9, 1, 5, 2, 2], [7, 7, 7, 1, 1, 4]), ([4, 0, 8], [0, 1, 0])]
)
def test_weight_is_the_derivative_of_the_loss(
    mode: Any, lengths: list[int], groups: list[int]
) -> None:
    got = length_bias.token_weights(lengths, mode=mode, group_N=groups, constant_tokens=CONSTANT)
    expected = weights_by_difference(lambda table: loss(table, lengths, groups, mode), lengths)
    assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", ["mean", "rows", "sum"])
def test_micro_weights_are_the_derivative_of_the_combined_loss(mode: Any, rule: Any) -> None:
    lengths, groups, micro = [3, 9, 1, 5, 2, 2, 7], [0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 2]

    def combined(table: Array) -> float:
        total = 0.0
        for m in range(3):
            rows = [i for i, k in enumerate(micro) if k == m]
            share = {"mean": 1 / 3, "rows": len(rows) / len(lengths), "sum": 1.0}[rule]
            own = [lengths[i] for i in rows]
            total += share * loss(table[rows], own, [groups[i] for i in rows], mode)
        return total

    got = length_bias.micro_token_weights(
        lengths, micro_N=micro, mode=mode, rule=rule, group_N=groups, constant_tokens=CONSTANT
    )
    assert got == pytest.approx(weights_by_difference(combined, lengths), abs=1e-12)


def test_micro_batches_of_one_response_turn_token_mean_into_grpo() -> None:
    lengths = [3, 9, 1, 5]
    got = length_bias.micro_token_weights(
        lengths, micro_N=[0, 1, 2, 3], mode="token-mean", rule="mean"
    )
    grpo = length_bias.token_weights(lengths, mode="seq-mean-token-mean")
    assert got == pytest.approx(grpo, abs=1e-15)
    whole = length_bias.micro_token_weights(
        lengths, micro_N=[0] * 4, mode="token-mean", rule="rows"
    )
    assert whole == pytest.approx(np.full(4, 1 / 18), abs=1e-15)


def test_packing_sorted_lengths_by_tokens_recreates_the_length_bias() -> None:
    """Legacy dynamic batch size: 1/(n mean length): long answers weigh 1/8 of the short ones."""
    lengths = [10] * 8 + [80]
    got = length_bias.micro_token_weights(
        lengths, micro_N=[0] * 8 + [1], mode="token-mean", rule="rows"
    )
    assert got == pytest.approx([1 / (9 * n) for n in lengths], abs=1e-15)


def test_old_sum_norm_grows_with_the_micro_batch() -> None:
    lengths = [5] * 12
    of = [
        length_bias.micro_token_weights(
            lengths,
            micro_N=np.arange(12) // k,
            mode="token-sum-norm",
            rule="mean",
            constant_tokens=CONSTANT,
        )[0]
        for k in (1, 2, 4, 12)
    ]
    assert of == pytest.approx([k / (12 * CONSTANT) for k in (1, 2, 4, 12)], abs=1e-15)


@given(
    data=st.lists(
        st.tuples(st.integers(1, 5000), st.floats(-10, 10), st.floats(-10, 10)), min_size=1
    )
)
@settings(deadline=None)
def test_micro_batch_gap_is_the_difference(data: list[tuple[int, float, float]]) -> None:
    tokens = [T for T, _, _ in data]
    means = np.array([[a, b] for _, a, b in data])
    got = length_bias.micro_batch_gap(tokens, token_mean_M=means)
    naive = [math.fsum(col) / len(data) for col in means.T]
    overall = [
        math.fsum(T * x for T, x in zip(tokens, col, strict=True)) / sum(tokens) for col in means.T
    ]
    assert got.naive == pytest.approx(naive, abs=1e-9)
    assert got.overall == pytest.approx(overall, abs=1e-9)
    assert got.gap == pytest.approx(np.subtract(naive, overall), abs=1e-9)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
    mode=st.sampled_from(MODES),
)
@settings(deadline=None)
def test_weights_follow_their_response_and_spend_the_whole_mean(
    lengths: list[int], order: Any, mode: Any
) -> None:
    groups = [i // 2 for i in range(len(lengths))]
    rows = list(zip(lengths, groups, strict=True))

    def of(pairs: list[tuple[int, int]]) -> Array:
        return length_bias.token_weights(
            [n for n, _ in pairs],
            mode=mode,
            group_N=[g for _, g in pairs],
            constant_tokens=CONSTANT,
        )

    weights = of(rows)
    index = list(range(len(rows)))
    order.shuffle(index)
    assert of([rows[i] for i in index]) == pytest.approx(weights[index], abs=1e-12)
    if mode in ("token-mean", "prompt-mean", "seq-mean-token-mean"):
        assert weights @ np.array(lengths) == pytest.approx(1.0, abs=1e-9)


def outcomes(pi: Array, n: int) -> list[tuple[tuple[int, ...], float]]:
    arms = range(len(pi))
    return [(a, math.prod(pi[i] for i in a)) for a in itertools.product(arms, repeat=n)]


@pytest.mark.parametrize("baseline", ["none", "group-mean", "leave-one-out"])
def test_unbiasedness_factor_by_enumeration(baseline: Any) -> None:
    z, r, G = np.array([0.3, -0.7, 1.1]), np.array([1.0, -0.4, 0.2]), 4
    pi = np.exp(z) / np.exp(z).sum()
    expected = np.zeros(3)
    for arms, weight in outcomes(pi, G):
        reward = r[list(arms)]
        others = (reward.sum() - reward) / (G - 1)
        base = {"none": 0.0, "group-mean": reward.mean(), "leave-one-out": others}[baseline]
        for a, advantage in zip(arms, reward - base, strict=True):
            expected += weight * advantage * (np.eye(3)[a] - pi) / G
    gradient = pi * (r - pi @ r)
    factor = length_bias.unbiasedness_factor(baseline, n_responses=G)
    assert expected == pytest.approx(factor * gradient, abs=1e-12)


def test_batch_mean_baseline_over_two_prompts() -> None:
    """Two prompts with policies of their own, two responses each, one mean over all four."""
    policies = [np.array([0.2, 0.8]), np.array([0.6, 0.4])]
    r = np.array([1.0, 0.0])
    expected = [np.zeros(2), np.zeros(2)]
    for arms in itertools.product(range(2), repeat=4):
        pis = [policies[0], policies[0], policies[1], policies[1]]
        weight = math.prod(pi[a] for pi, a in zip(pis, arms, strict=True))
        reward = r[list(arms)]
        for i, a in enumerate(arms):
            score = np.eye(2)[a] - pis[i]
            expected[i // 2] += weight * (reward[i] - reward.mean()) * score / 4
    factor = length_bias.unbiasedness_factor("batch-mean", n_responses=4)
    for pi, got in zip(policies, expected, strict=True):
        assert got == pytest.approx(factor * pi * (r - pi @ r) / 2, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_micro_inflation_by_enumeration(k: int) -> None:
    lengths = np.array([3.0, 50.0, 400.0, 3.0])
    totals = [sum(draw) for draw in itertools.product(lengths, repeat=k)]
    limit = np.mean(totals) * np.mean([1 / T for T in totals])
    got = length_bias.expected_micro_inflation(lengths, micro_size=k)
    assert got == pytest.approx(limit, rel=1e-9)
    pairs = list(itertools.product(totals, repeat=2)) if k < 4 else []
    for_two = [(a + b) / 2 / a for a, b in pairs]
    if pairs:
        finite = length_bias.expected_micro_inflation(lengths, micro_size=k, n_micro=2)
        assert finite == pytest.approx(np.mean(for_two), rel=1e-9)


def test_second_order_inflation_is_approached_from_above() -> None:
    lengths = np.exp(np.linspace(0.0, 2.0, 50))
    cv = float(lengths.std() / lengths.mean())
    gap = [
        length_bias.expected_micro_inflation(lengths, micro_size=k)
        - length_bias.micro_inflation_second_order(cv, micro_size=k)
        for k in (4, 16, 64, 256)
    ]
    # the next term is of order 1/k^2: a sixteenth for four times the responses
    assert [a / b for a, b in itertools.pairwise(gap)][-1] == pytest.approx(16, rel=0.1)
    assert gap[-1] < 1e-4


def test_equal_lengths_have_no_inflation() -> None:
    got = length_bias.expected_micro_inflation([512, 512], micro_size=8)
    assert got == pytest.approx(1.0, abs=1e-12)
    assert length_bias.micro_inflation_second_order(0.0, micro_size=8) == 1.0


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: length_bias.token_weights([0, 0], mode="token-mean"), "no token"),
        (lambda: length_bias.token_weights([1, -2], mode="token-mean"), "n_tokens_N"),
        (lambda: length_bias.token_weights([1, 2], mode="prompt-mean"), "group_N"),
        (lambda: length_bias.token_weights([1, 2], mode="token-sum-norm"), "constant_tokens"),
        (lambda: length_bias.token_weights([1], mode="mean"), "mean"),  # type: ignore[arg-type]
        (lambda: length_bias.micro_batch_gap([1, 0], token_mean_M=[0.0, 1.0]), "above 0"),
        (lambda: length_bias.unbiasedness_factor("group-mean"), "n_responses"),
        (lambda: length_bias.expected_micro_inflation([0, 1], micro_size=2), "shortest"),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()
    assert "\n" not in str(caught.value)
