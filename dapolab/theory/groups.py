"""How many prompt groups are mixed, and what a filter on mixed groups keeps (A1, A2, A9).

A group is *mixed* when its G binary-judged responses are neither all right nor all wrong: the
groups that dynamic sampling keeps (DAPO, arXiv 2503.14476, Eq. 11).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from dapolab.theory.arguments import (
    require_count,
    require_not_negative,
    require_positive,
    require_probability,
)
from dapolab.theory.quadrature import FloatArray, integrate, normal_nodes


@dataclass(frozen=True)
class MixedGroups:
    """What the filter does to a population of prompts.

    ``retained_pass_rate`` (E[p | mixed]) and ``kept_accuracy`` (E[K/G | mixed]) are None where no
    group can be mixed. They differ from each other and from ``mean_pass_rate``.
    """

    p_mixed: float
    p_all_right: float
    p_all_wrong: float
    mean_pass_rate: float
    retained_pass_rate: float | None
    kept_accuracy: float | None

    @property
    def oversample(self) -> float:
        """Candidates per kept group, 1/q; inf where no group can be mixed."""
        return 1.0 / self.p_mixed if self.p_mixed > 0.0 else math.inf


def _pass_rates(p: ArrayLike) -> FloatArray:
    rates = np.asarray(p, dtype=np.float64)
    if rates.size == 0 or not np.all((rates >= 0.0) & (rates <= 1.0)):
        raise ValueError("pass rates must be a non-empty array of numbers in [0, 1]")
    return rates


def p_mixed(p: ArrayLike, *, group_size: int) -> FloatArray:
    """Return q(p) = 1 - p^G - (1-p)^G, the shape of ``p`` (A1; DAPO Eq. 11).

    Assumes G iid right-or-wrong responses. Accurate to machine precision for tiny p and 1-p.
    """
    G = require_count(group_size, name="group_size")
    rates = _pass_rates(p)
    small = np.minimum(rates, 1.0 - rates)
    q = -np.expm1(G * np.log1p(-small)) - small**G
    return np.asarray(np.maximum(q, 0.0))


def kept_accuracy(p: ArrayLike, *, group_size: int) -> FloatArray:
    """Return E[K/G | mixed] = (p - p^G)/q(p) of a prompt with pass rate p (A9).

    Goes to 1/G as p falls to 0 and to 1 - 1/G as p rises to 1; those limits are returned at p = 0
    and p = 1 exactly. A batch of kept groups therefore says little about accuracy. Needs G >= 2.
    """
    G = require_count(group_size, name="group_size", least=2)
    rates = _pass_rates(p)
    q = p_mixed(rates, group_size=G)
    with np.errstate(divide="ignore"):
        log_p = np.log(rates)
    right = rates * -np.expm1((G - 1) * log_p)
    limit = np.where(rates < 0.5, 1.0 / G, 1.0 - 1.0 / G)
    return np.asarray(np.divide(right, q, out=limit, where=q > 1e-300))


def mixed_groups(
    pass_rates: ArrayLike, *, group_size: int, weights: ArrayLike | None = None
) -> MixedGroups:
    """Return the filter's effect on prompts with given pass rates (A1, A2, A9).

    ``weights`` (default equal) are the prompts' shares. Pass *true* pass rates: recorded K/n put
    in here understate q (see ``p_mixed_recorded``).
    """
    G = require_count(group_size, name="group_size")
    p = _pass_rates(pass_rates).ravel()
    w = np.full(p.size, 1.0) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
    if w.size != p.size or not np.all(w >= 0.0) or not w.sum() > 0.0:
        raise ValueError("weights must be as many as pass_rates, none negative, not all zero")
    w = w / w.sum()
    q = p_mixed(p, group_size=G)
    return _summary(
        p_all_right=float(w @ p**G),
        p_all_wrong=float(w @ (1.0 - p) ** G),
        p_mixed_mean=float(w @ q),
        mean_pass_rate=float(w @ p),
        retained=float(w @ (q * p)),
        right=float(w @ (kept_accuracy(p, group_size=G) * q)) if G > 1 else 0.0,
    )


def _summary(
    *,
    p_all_right: float,
    p_all_wrong: float,
    p_mixed_mean: float,
    mean_pass_rate: float,
    retained: float,
    right: float,
) -> MixedGroups:
    """Build the result; ``retained`` and ``right`` are E[p; mixed] and E[K/G; mixed]."""
    some = p_mixed_mean > 0.0
    return MixedGroups(
        p_mixed=p_mixed_mean,
        p_all_right=p_all_right,
        p_all_wrong=p_all_wrong,
        mean_pass_rate=mean_pass_rate,
        retained_pass_rate=retained / p_mixed_mean if some else None,
        kept_accuracy=right / p_mixed_mean if some else None,
    )


def mixed_groups_beta(a: float, b: float, *, group_size: int) -> MixedGroups:
    """Return the filter's effect under pass rates p ~ Beta(a, b) (A1, A2, A9).

    Summed over the beta-binomial counts K = 1..G-1, with E[p | K] = (a+K)/(a+b+G), so nothing
    cancels when nearly all groups are all right or all wrong. For the uniform prior q is
    (G-1)/(G+1).
    """
    require_positive(a, name="a")
    require_positive(b, name="b")
    G = require_count(group_size, name="group_size")
    k = np.arange(G + 1)
    pmf = np.asarray(stats.betabinom.pmf(k, G, a, b), dtype=np.float64)
    inner, k_inner = pmf[1:G], k[1:G]
    return _summary(
        p_all_right=float(pmf[G]),
        p_all_wrong=float(pmf[0]),
        p_mixed_mean=float(inner.sum()),
        mean_pass_rate=a / (a + b),
        retained=float(inner @ ((a + k_inner) / (a + b + G))),
        right=float(inner @ (k_inner / G)),
    )


def retained_density_beta(p: ArrayLike, a: float, b: float, *, group_size: int) -> FloatArray:
    """Return the density of the pass rate of kept prompts, prior Beta(a, b) (A2).

    prior * q / E[q], which is the signed mixture of Beta(a, b), Beta(a+G, b) and Beta(a, b+G);
    for G = 2 and G = 3 it is exactly Beta(a+1, b+1). Needs G >= 2.
    """
    G = require_count(group_size, name="group_size", least=2)
    share = mixed_groups_beta(a, b, group_size=G).p_mixed
    rates = _pass_rates(p)
    return np.asarray(stats.beta.pdf(rates, a, b) * p_mixed(rates, group_size=G) / share)


def mixed_groups_quantile(
    quantile: Callable[[FloatArray], FloatArray], *, group_size: int
) -> MixedGroups:
    """Return the filter's effect under any prior, given its quantile function on (0, 1).

    Integrates over u in (0, 1), where densities that blow up at 0 or 1 (Beta with a < 1) do no
    harm. An atom of the prior is a flat piece of the quantile function and is integrated as such.
    """
    G = require_count(group_size, name="group_size")

    def moments(u: FloatArray) -> FloatArray:
        p = np.clip(quantile(u), 0.0, 1.0)
        q = p_mixed(p, group_size=G)
        right = kept_accuracy(p, group_size=G) * q if G > 1 else np.zeros_like(p)
        return np.stack([p**G, (1.0 - p) ** G, q, p, q * p, right], axis=1)

    edges = np.concatenate([[0.0], 2.0 ** np.arange(-20, 0), 1.0 - 2.0 ** np.arange(-2, -21, -1.0)])
    values = integrate(moments, edges=np.append(edges, 1.0))
    names = ("p_all_right", "p_all_wrong", "p_mixed_mean", "mean_pass_rate", "retained", "right")
    return _summary(**dict(zip(names, values.tolist(), strict=True)))


def mixed_groups_logit_normal(
    mu: float,
    sigma: float,
    *,
    group_size: int,
    unsolvable_share: float = 0.0,
    guess_rate: float = 0.0,
) -> MixedGroups:
    """Return the filter's effect when logit(p) ~ Normal(mu, sigma^2); sigma = 0 is one prompt.

    ``unsolvable_share`` of the prompts have p = ``guess_rate`` instead. At 0 they leave no mixed
    group: they thin the mixed share and the mean pass rate by their share and do not touch what
    mixed groups hold. Guessed, they leave groups with few right answers among the mixed ones. With
    no unsolvable prompts the guess rate has no effect.
    """
    if not math.isfinite(mu):
        raise ValueError(f"mu must be finite, got {mu}")
    require_not_negative(sigma, name="sigma")
    u = require_probability(unsolvable_share, name="unsolvable_share")
    guess = require_probability(guess_rate, name="guess_rate")
    z, w = normal_nodes()
    p = 1.0 / (1.0 + np.exp(-np.clip(mu + sigma * z, -700.0, 700.0)))
    if u > 0.0 and guess > 0.0:
        p, w = np.append(p, guess), np.append((1.0 - u) * w / w.sum(), u)
        return mixed_groups(p, group_size=group_size, weights=w)
    law = mixed_groups(p, group_size=group_size, weights=w)
    if u == 0.0:
        return law
    return MixedGroups(
        p_mixed=(1.0 - u) * law.p_mixed,
        p_all_right=(1.0 - u) * law.p_all_right,
        p_all_wrong=u + (1.0 - u) * law.p_all_wrong,
        mean_pass_rate=(1.0 - u) * law.mean_pass_rate,
        retained_pass_rate=law.retained_pass_rate if u < 1.0 else None,
        kept_accuracy=law.kept_accuracy if u < 1.0 else None,
    )


def p_mixed_recorded(n_correct: ArrayLike, n_recorded: ArrayLike, *, group_size: int) -> FloatArray:
    """Return the unbiased estimate of q(p) from K right of n recorded responses, G <= n.

    1 - [C(K,G) + C(n-K,G)] / C(n,G): the share of mixed groups among all draws of G of the n
    recorded responses without replacement. Its mean over K ~ Bin(n, p) is q(p) exactly, whereas
    q(K/n) is biased low. Broadcasts K against n.
    """
    G = require_count(group_size, name="group_size")
    K, n = np.broadcast_arrays(np.asarray(n_correct), np.asarray(n_recorded))
    if np.any(n < G):
        raise ValueError(
            f"group_size {G} exceeds the {int(n.min())} responses recorded: fit a law of pass rates"
        )
    if np.any((K < 0) | (n < K)):
        raise ValueError("n_correct must lie between 0 and n_recorded")
    right, wrong = np.ones(K.shape), np.ones(K.shape)
    for i in range(G):
        right *= np.maximum(K - i, 0) / (n - i)
        wrong *= np.maximum(n - K - i, 0) / (n - i)
    # A group of one is never mixed; rounding must not say otherwise.
    return np.maximum(1.0 - right - wrong, 0.0) if G > 1 else np.zeros(K.shape)
