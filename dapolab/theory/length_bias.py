"""What one token weighs in the loss, and what a baseline and micro-batches do to it (C1, C2, C8).

Names of modes are those of verl's ``loss_agg_mode`` where verl has one. Lengths are the tokens
that count in the loss; a response without any has weight 0.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dapolab.theory.arguments import require_count, require_not_negative, require_positive
from dapolab.theory.quadrature import FloatArray, integrate, unit_edges

Mode = Literal[
    "token-mean",
    "prompt-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "token-sum",
    "token-sum-norm",
]
"""``token-sum-norm`` is what verl 0.4.0 to 0.7.0 called ``seq-mean-token-sum-norm``."""

MicroRule = Literal["mean", "rows", "sum"]
"""Weight of a micro-batch's loss: 1/(micro-batches), its share of the responses, or 1."""

Baseline = Literal["none", "group-mean", "batch-mean", "leave-one-out"]


def _lengths(n_tokens: ArrayLike) -> FloatArray:
    lengths = np.asarray(n_tokens, dtype=np.float64)
    if lengths.ndim != 1 or lengths.size == 0 or not np.all(lengths >= 0.0):
        raise ValueError("n_tokens_N must be a non-empty row of lengths, none negative")
    if not lengths.sum() > 0.0:
        raise ValueError("n_tokens_N holds no token: the mean of nothing has no weights")
    return lengths


def _members(group_N: ArrayLike, n: int, *, name: str) -> tuple[NDArray[np.int64], int]:
    """Return the index 0..n_groups-1 of every response's group, and n_groups."""
    labels = np.asarray(group_N)
    if labels.shape != (n,):
        raise ValueError(f"{name} must name one group for each of the {n} responses")
    values, index = np.unique(labels, return_inverse=True)
    return index.astype(np.int64), int(values.size)


def token_weights(
    n_tokens_N: ArrayLike,
    *,
    mode: Mode,
    group_N: ArrayLike | None = None,
    constant_tokens: float | None = None,
) -> FloatArray:
    """Return the weight of one token of each response in the loss, shape (N,) (C1).

    With n responses of L_j tokens: token-mean 1/sum L; prompt-mean 1/(n_groups sum of L in the
    group) (DAPO, arXiv 2503.14476, Eq. 12); seq-mean-token-mean 1/(n L_i) (GRPO);
    seq-mean-token-sum 1/n; seq-mean-token-sum-norm 1/(n C) (Dr. GRPO; verl from 0.7.1);
    token-sum-norm 1/C, a sum over responses and no mean (verl 0.4.0 to 0.7.0,
    ``core_algos.agg_loss``); token-sum 1. Responses without tokens stay in n.

    Raises
    ------
    ValueError
        Where prompt-mean has no ``group_N``, a norm mode no ``constant_tokens``, or no token is
        left.
    """
    lengths = _lengths(n_tokens_N)
    n = lengths.size
    some = (lengths > 0.0).astype(np.float64)
    if mode == "token-mean":
        return np.asarray(some / lengths.sum())
    if mode == "prompt-mean":
        if group_N is None:
            raise ValueError("prompt-mean needs group_N, the group of each response")
        index, n_groups = _members(group_N, n, name="group_N")
        of_group = np.bincount(index, weights=lengths, minlength=n_groups)[index]
        return np.divide(some, n_groups * of_group, out=np.zeros(n), where=some > 0.0)
    if mode == "seq-mean-token-mean":
        return np.divide(some, n * lengths, out=np.zeros(n), where=some > 0.0)
    if mode == "seq-mean-token-sum":
        return some / n
    if mode == "token-sum":
        return some
    if mode not in ("seq-mean-token-sum-norm", "token-sum-norm"):
        raise ValueError(f"mode {mode!r} is none of the aggregations")
    if constant_tokens is None:
        raise ValueError(f"{mode} needs constant_tokens, the length it divides by")
    constant = require_positive(constant_tokens, name="constant_tokens")
    return some / (constant * n if mode == "seq-mean-token-sum-norm" else constant)


def micro_token_weights(
    n_tokens_N: ArrayLike,
    *,
    micro_N: ArrayLike,
    mode: Mode,
    rule: MicroRule,
    group_N: ArrayLike | None = None,
    constant_tokens: float | None = None,
) -> FloatArray:
    """Return per-token weights when every micro-batch has its own denominators, shape (N,) (C8).

    token-mean with rule ``mean`` gives 1/(M T_m), T_m tokens of micro-batch m of M; with ``rows``
    (verl's legacy ``dp_actor`` with dynamic batch size: n_m/n) it gives 1/(n Lbar_m), Lbar_m the
    mean length inside the micro-batch, so packing by equal token counts brings the 1/L bias back.
    Micro-batches of one response turn token-mean into seq-mean-token-mean exactly. token-sum-norm
    under ``mean`` grows with the micro-batch size. A micro-batch without tokens weighs nothing but
    counts in M.
    """
    lengths = _lengths(n_tokens_N)
    index, n_micro = _members(micro_N, lengths.size, name="micro_N")
    weights = np.zeros(lengths.size)
    for m in range(n_micro):
        rows = index == m
        if not lengths[rows].any():
            continue
        groups = None if group_N is None else np.asarray(group_N)[rows]
        share = {"mean": 1.0 / n_micro, "rows": float(rows.mean()), "sum": 1.0}[rule]
        weights[rows] = share * token_weights(
            lengths[rows], mode=mode, group_N=groups, constant_tokens=constant_tokens
        )
    return weights


@dataclass(frozen=True)
class MicroBatchGap:
    """Mean of micro-batch token means against the token mean of all (C8).

    ``gap`` = ``naive`` - ``overall``, computed as -Cov(T_m/Tbar, g_m) over the micro-batches.
    """

    naive: FloatArray
    overall: FloatArray
    gap: FloatArray


def micro_batch_gap(n_tokens_M: ArrayLike, *, token_mean_M: ArrayLike) -> MicroBatchGap:
    """Return what averaging M local token means changes: -Cov_m(T_m/Tbar, g_m) exactly (C8).

    Parameters
    ----------
    n_tokens_M : array (M,)
        Loss tokens T_m of each micro-batch, above 0.
    token_mean_M : array (M,) or (M, k)
        Token mean g_m of loss or gradient in each. The covariance is the population one.
    """
    tokens = np.asarray(n_tokens_M, dtype=np.float64)
    means = np.asarray(token_mean_M, dtype=np.float64)
    if tokens.ndim != 1 or means.shape[:1] != tokens.shape or not np.all(tokens > 0.0):
        raise ValueError("n_tokens_M must be M counts above 0, token_mean_M as many means")
    share = tokens / tokens.mean()
    naive = means.mean(axis=0)
    gap = -np.tensordot(share - 1.0, means - naive, axes=(0, 0)) / tokens.size
    overall = np.tensordot(share, means, axes=(0, 0)) / tokens.size
    return MicroBatchGap(np.asarray(naive), np.asarray(overall), np.asarray(gap))


def expected_micro_inflation(
    n_tokens: ArrayLike, *, micro_size: int, n_micro: int | None = None
) -> float:
    """Return E[Tbar/T_m], the mean token weight under local means over the global one (C8).

    Responses are iid draws (with replacement) from the lengths ``n_tokens``, k of them a
    micro-batch. For many micro-batches it is E[T] E[1/T] = k mu int_0^inf phi(t)^k dt, phi the
    Laplace transform of the length; with M = ``n_micro`` it is 1/M + (1-1/M) times that, since
    Tbar holds T_m itself. Second order: ``micro_inflation_second_order``.
    """
    lengths = _lengths(np.ravel(n_tokens))
    k = require_count(micro_size, name="micro_size")
    shortest = float(lengths.min())
    require_positive(shortest, name="the shortest of n_tokens")
    values, counts = np.unique(lengths, return_counts=True)
    p = counts / counts.sum()
    # With x = exp(-t*shortest) the integrand is x^(k-1) times a power of a bounded mixture.
    excess = values / shortest - 1.0

    def integrand(x: FloatArray) -> FloatArray:
        log_x = np.log(x)[:, None]
        return np.asarray(x ** (k - 1) * (np.exp(log_x * excess) @ p) ** k)

    inverse = float(integrate(integrand, edges=unit_edges())[0]) / shortest
    limit = float(k * (values @ p) * inverse)
    if n_micro is None:
        return limit
    M = require_count(n_micro, name="n_micro")
    return 1.0 / M + (1.0 - 1.0 / M) * limit


def micro_inflation_second_order(cv: float, *, micro_size: int) -> float:
    """Return 1 + cv^2/k, the second-order form of ``expected_micro_inflation`` (C8).

    ``cv`` is the coefficient of variation of one length. For Gamma lengths the exact value is
    1/(1 - cv^2/k), above it; skewed laws at small k are further off.
    """
    k = require_count(micro_size, name="micro_size")
    return 1.0 + require_not_negative(cv, name="cv") ** 2 / k


def unbiasedness_factor(baseline: Baseline, *, n_responses: int | None = None) -> float:
    """Return f of E[g] = f grad J on-policy with advantages r - baseline, without std (C2).

    Loss: mean over responses of token sums (divide by C for Dr. GRPO's constant). A mean that
    contains the response itself gives 1 - 1/n, n = G for the group mean and all N responses for
    the batch mean; leaving it out (RLOO) or no baseline gives 1. Any iid rewards, any policy.
    """
    if baseline in ("none", "leave-one-out"):
        return 1.0
    if baseline not in ("group-mean", "batch-mean"):
        raise ValueError(
            f"baseline {baseline!r} is none of none, group-mean, batch-mean, leave-one-out"
        )
    if n_responses is None:
        raise ValueError(f"{baseline} needs n_responses, the responses in the mean")
    return 1.0 - 1.0 / require_count(n_responses, name="n_responses")
