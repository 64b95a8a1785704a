"""Integration that the closed forms share: means from survival functions, normal averages."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Survival = Callable[[FloatArray], FloatArray]
"""x >= 0 of shape (n,) -> P(X > x), shape (n,) or (n, k) for k laws at once; decreasing in x."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_MAX_BISECTIONS = 60
_ROWS_PER_BLOCK = 4096
_DIRECT_TOKENS = 65536


def _panel_integrals(f: Survival, left: FloatArray, width: FloatArray) -> FloatArray:
    """Return the 16-point Gauss-Legendre value of each panel, shape (panels,) or (panels, k)."""
    x = (left[:, None] + width[:, None] * (_NODES + 1.0) / 2.0).ravel()
    blocks = [f(x[i : i + _ROWS_PER_BLOCK]) for i in range(0, x.size, _ROWS_PER_BLOCK)]
    values = np.concatenate(blocks).reshape(left.size, _NODES.size, -1)
    return np.asarray(np.einsum("j,pjk->pk", _WEIGHTS, values) * width[:, None] / 2.0)


def integrate(f: Survival, *, edges: FloatArray, rtol: float = 1e-12) -> FloatArray:
    """Integrate a smooth, or piecewise smooth, function over panels, bisecting where needed.

    Parameters
    ----------
    f : callable
        x of shape (n,) to values of shape (n,) or (n, k).
    edges : array
        Increasing panel borders; place them where the function changes scale.
    rtol : float
        A panel is accepted when halving moves it by less than this share of the whole.

    Returns
    -------
    array of shape (k,), k = 1 for a scalar function.
    """
    left, width = edges[:-1], np.diff(edges)
    coarse = _panel_integrals(f, left, width)
    scale = np.abs(coarse).sum(axis=0)
    total = np.zeros_like(scale)
    for _ in range(_MAX_BISECTIONS):
        half = width / 2.0
        left = np.stack([left, left + half], axis=1).ravel()
        width = np.repeat(half, 2)
        fine = _panel_integrals(f, left, width).reshape(half.size, 2, -1)
        both = fine.sum(axis=1)
        rough = (np.abs(both - coarse) > rtol * scale).any(axis=1)
        total += both[~rough].sum(axis=0)
        if not rough.any():
            return np.asarray(total, dtype=np.float64)
        keep = np.repeat(rough, 2)
        left, width = left[keep], width[keep]
        coarse = fine[rough].reshape(left.size, -1)
    result: FloatArray = total + coarse.sum(axis=0)
    return result


def unit_edges() -> FloatArray:
    """Return panel borders on [0, 1] for integrands that pile up at either end."""
    near = 2.0 ** np.arange(-40, 0)
    return np.concatenate([[0.0], near, 1.0 - near[::-1][1:], [1.0]])


def _largest(survival: Survival, x: float) -> float:
    return float(np.max(survival(np.array([x]))))


def _survival_edges(survival: Survival, cap: float) -> FloatArray | None:
    """Return panel borders that double from far below the median to where the tail is spent.

    None where the tail never becomes negligible, that is, where the mean is infinite.
    """
    median = min(1.0, cap)
    while median > 1e-200 and _largest(survival, median) < 0.5:
        median /= 2.0
    while median < cap and _largest(survival, median) >= 0.5:
        median *= 2.0
        if median > 1e200:
            return None
    end = min(median, cap)
    powers = end * 2.0 ** np.arange(-30, 1)
    edges = [0.0, *powers.tolist()]
    while edges[-1] < cap:
        x = edges[-1]
        if x * _largest(survival, x) < 1e-13 * median:
            break
        if x > 1e300:
            return None
        edges.append(min(2.0 * x, cap))
    return np.array(edges)


def _sum_over_tokens(survival: Survival, n_tokens: int) -> FloatArray:
    total = np.zeros(1)
    for start in range(0, n_tokens, _ROWS_PER_BLOCK):
        x = np.arange(start, min(start + _ROWS_PER_BLOCK, n_tokens), dtype=np.float64)
        total = total + survival(x).reshape(x.size, -1).sum(axis=0)
    return total


def mean_from_survival(
    survival: Survival, *, cap: float = math.inf, whole_tokens: bool = False
) -> FloatArray:
    """Return E[min(X, cap)] = integral of P(X > x) over [0, cap], for X >= 0.

    Parameters
    ----------
    survival : callable
        P(X > x). Compute it as a survival function, never as 1 - cdf: the far tail counts.
    cap : float
        Censoring point (what ``max_tokens`` does), in the unit of X; inf for none.
    whole_tokens : bool
        True gives E[min(ceil X, cap)] = sum over x = 0, 1, .. of P(X > x), the law of a
        decoder that works in whole tokens.

    Returns
    -------
    array of shape (k,), inf where the mean is infinite.
    """
    if not cap > 0.0:
        raise ValueError(f"cap must be above 0, got {cap}")
    if whole_tokens and math.isfinite(cap):
        if cap != int(cap):
            raise ValueError(f"cap must be a whole number of tokens, got {cap}")
        return _sum_over_tokens(survival, int(cap))
    if whole_tokens:
        # Beyond the direct sum the law is smooth on the scale of one token: midpoint rule.
        head = _sum_over_tokens(survival, _DIRECT_TOKENS)
        start = _DIRECT_TOKENS - 0.5
        return head + mean_from_survival(lambda x: survival(x + start))
    edges = _survival_edges(survival, cap)
    if edges is None:
        return np.full(survival(np.ones(1)).reshape(1, -1).shape[1], math.inf)
    return integrate(survival, edges=edges)


def normal_nodes(n_nodes: int = 257) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights for averages over a standard normal variable.

    The trapezoidal rule on [-9, 9]: for analytic integrands it converges like Gauss-Hermite,
    and keeps doing so for the sharp ones met here (a logistic curve of a wide normal, where 200
    Gauss-Hermite nodes are still wrong in the sixth digit).
    """
    z = np.linspace(-9.0, 9.0, n_nodes)
    w = np.exp(-0.5 * z * z)
    return z, w / w.sum()
