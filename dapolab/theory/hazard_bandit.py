"""The smallest policy with an end-of-sequence token: length bias when length is learned (C5).

A decision (right with probability p = sigmoid(v)) has no token of its own; the answer then stops
after each token with hazard h_c if right, h_w if wrong, h = sigmoid(u), so L ~ Geo(h) on 1, 2, ...
The score of u is 1 - h L. First on-policy step of one group of G, group-mean baseline.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from dapolab.theory.arguments import require_count, require_positive
from dapolab.theory.difficulty import expected_group_std, sum_abs_advantage
from dapolab.theory.quadrature import FloatArray, integrate, unit_edges

Mode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def _hazards(hazard: ArrayLike) -> FloatArray:
    h = np.asarray(hazard, dtype=np.float64)
    if not np.all((h > 0.0) & (h <= 1.0)):
        raise ValueError("hazards must lie in (0, 1]")
    return h


def expected_inverse_length(hazard: ArrayLike) -> FloatArray:
    """Return E[1/L] = h ln(1/h)/(1-h) of L ~ Geo(h), in 1/tokens; 1 at h = 1 (C5)."""
    h = _hazards(hazard)
    rest = 1.0 - h
    safe = np.where(rest > 0.0, rest, 0.5)
    return np.asarray(h * np.where(rest > 0.0, -np.log1p(-safe) / safe, 1.0))


def inverse_length_excess(hazard: ArrayLike) -> FloatArray:
    """Return beta(h) = E[1/L] - h, above 0 for 0 < h < 1: the pull of per-response means (C5).

    It is Cov(1/L, score of u), since E[(1 - hL)/L] = E[1/L] - h.
    """
    h = _hazards(hazard)
    return expected_inverse_length(h) - h


@dataclass(frozen=True)
class HazardGradient:
    """Expected gradient of the hazard bandit, and the drift of its lengths under it.

    ``hazard_right``, ``hazard_wrong``, ``decision``: E[g] by u_c, u_w and v. The drifts are the
    derivatives of 1/h_c, 1/h_w and E[L] along that gradient, tokens per unit of learning rate
    (small steps).
    """

    hazard_right: float
    hazard_wrong: float
    decision: float
    length_right_drift_tokens: float
    length_wrong_drift_tokens: float
    length_drift_tokens: float


def hazard_gradient(
    p_correct: float,
    *,
    hazard_right: float,
    hazard_wrong: float,
    mode: Mode,
    group_size: int,
    std_ddof: int | None = None,
    constant_tokens: float | None = None,
) -> HazardGradient:
    """Return the expected gradient of one group by mode (C5).

    With s = (1-1/G) p(1-p), or the mean group std E[sd] where advantages are divided by it
    (``std_ddof``; times sqrt((G-1)/G) at ddof 1):

    * seq-mean-token-mean: u_w: -s beta(h_w), u_c: +s beta(h_c), v: s[(1-p)E1/L_c + p E1/L_w];
    * token sums: u exactly 0, v: s (over C for seq-mean-token-sum-norm);
    * token-mean over the group's tokens: a residue of the same sign of order 1/n^2 per response,
      see ``token_mean_residue``; v: sum_K P(K) K A_c(K) E[1/sum L | K].
    """
    G = require_count(group_size, name="group_size", least=2)
    h_c, h_w = (float(_hazards(h)) for h in (hazard_right, hazard_wrong))
    p = p_correct
    if not 0.0 < p < 1.0:
        raise ValueError(f"p_correct must lie inside (0, 1), got {p}")
    if mode == "token-mean":
        right, wrong, decision = _token_mean(p, h_c, h_w, G, std_ddof)
        return _with_drifts(p, h_c, h_w, right, wrong, decision)
    scale = (1.0 - 1.0 / G) * p * (1.0 - p)
    if std_ddof is not None:
        shrink = float(sum_abs_advantage(1, group_size=G, ddof=std_ddof)) / (2 * math.sqrt(G - 1))
        scale = shrink * float(expected_group_std(p, group_size=G))
    if mode == "seq-mean-token-mean":
        right = scale * float(inverse_length_excess(h_c))
        wrong = -scale * float(inverse_length_excess(h_w))
        means = [float(expected_inverse_length(h)) for h in (h_c, h_w)]
        return _with_drifts(
            p, h_c, h_w, right, wrong, scale * ((1.0 - p) * means[0] + p * means[1])
        )
    if mode == "seq-mean-token-sum-norm":
        if constant_tokens is None:
            raise ValueError(f"{mode} needs constant_tokens, the length it divides by")
        scale /= require_positive(constant_tokens, name="constant_tokens")
    elif mode != "seq-mean-token-sum":
        raise ValueError(f"mode {mode!r} is not known to the hazard bandit")
    return _with_drifts(p, h_c, h_w, 0.0, 0.0, scale)


def _with_drifts(
    p: float, h_c: float, h_w: float, right: float, wrong: float, decision: float
) -> HazardGradient:
    """d(1/h) = -(1-h)/h du, and dp = p(1-p) dv."""
    drift_c, drift_w = -right * (1.0 - h_c) / h_c, -wrong * (1.0 - h_w) / h_w
    composition = p * (1.0 - p) * decision * (1.0 / h_c - 1.0 / h_w)
    return HazardGradient(
        hazard_right=right,
        hazard_wrong=wrong,
        decision=decision,
        length_right_drift_tokens=drift_c,
        length_wrong_drift_tokens=drift_w,
        length_drift_tokens=p * drift_c + (1.0 - p) * drift_w + composition,
    )


def token_mean_residue(
    n_correct: int, *, hazard_right: float, hazard_wrong: float, group_size: int
) -> float:
    """Return I(K) = E[(1 - h_w L_w)/sum L | K right] of one wrong response of the group (C5).

    int_0^1 phi_c^K phi_w^(G-K-1) h_w(1-h_w)(1-t)/(1-(1-h_w)t)^2 dt, phi = h t/(1-(1-h)t); above 0:
    a long wrong answer enlarges the denominator of its own penalty. Size about h(1-h)/n^2 for n
    responses, against 1/n for a per-response mean.
    """
    G = require_count(group_size, name="group_size")
    K = require_count(n_correct, name="n_correct", least=0)
    if K >= G:
        raise ValueError(f"n_correct {K} leaves no wrong response in a group of {G}")
    return float(_residues(float(_hazards(hazard_wrong)), float(_hazards(hazard_right)), G)[K])


def _residues(h: float, h_other: float, G: int) -> FloatArray:
    """Return E[(1 - hL)/sum L] of one response with hazard h, by the number of others, 0..G-1."""
    others = np.arange(G)

    def integrand(t: FloatArray) -> FloatArray:
        phi, phi_other = (_generating(t, hazard)[:, None] for hazard in (h, h_other))
        own = h * (1.0 - h) * (1.0 - t) / (1.0 - (1.0 - h) * t) ** 2
        return np.asarray(phi_other**others * phi ** (G - 1 - others) * own[:, None])

    return integrate(integrand, edges=unit_edges())


def _generating(t: FloatArray, h: float) -> FloatArray:
    return h * t / (1.0 - (1.0 - h) * t)


def _token_mean(
    p: float, h_c: float, h_w: float, G: int, std_ddof: int | None
) -> tuple[float, float, float]:
    """Return E[g] by u_c, u_w and v under the token mean of one group."""
    K = np.arange(1, G)
    pmf = stats.binom.pmf(K, G, p)
    total = K * (G - K) / G  # sum of r - K/G over the right responses
    if std_ddof is not None:
        total = sum_abs_advantage(K, group_size=G, ddof=std_ddof) / 2.0

    def inverse(t: FloatArray) -> FloatArray:
        phi_c, phi_w = (_generating(t, h)[:, None] for h in (h_c, h_w))
        return np.asarray(phi_c**K * phi_w ** (G - K) / t[:, None])

    wrong = -float(pmf @ (total * _residues(h_w, h_c, G)[K]))
    right = float(pmf @ (total * _residues(h_c, h_w, G)[G - K]))
    decision = float(pmf @ (total * integrate(inverse, edges=unit_edges())))
    return right, wrong, decision
