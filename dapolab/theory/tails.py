"""The longest of many responses, truncated at a cap (B1), and correlated groups (B2).

Lengths are L = min(X, cap): censoring, which is what ``max_tokens`` does. Survival functions
P(X > x) take arrays of shape (n,) and return the same. ``whole_tokens=True`` gives the law of
ceil(L), for a decoder that works in whole tokens.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dapolab.theory.arguments import require_count, require_positive, require_probability
from dapolab.theory.quadrature import FloatArray, Survival, mean_from_survival, normal_nodes
from dapolab.theory.sampling import harmonic

ConditionalSurvival = Callable[[FloatArray, FloatArray], FloatArray]
"""(x of shape (n, 1), z of shape (1, m)) -> P(X > x | prompt level z), broadcast to (n, m)."""

_MAX_WEIBULL_N = 25


def survival_of_max(survival: ArrayLike, *, n: ArrayLike) -> FloatArray:
    """Return 1 - (1-S)^n elementwise, accurate for tiny S and large n (B1)."""
    s = np.asarray(survival, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(np.asarray(n) * np.log1p(-s)), dtype=np.float64)


def expected_max_tokens(
    survival: Survival, *, n: int, cap_tokens: float = math.inf, whole_tokens: bool = False
) -> float:
    """Return E[max of n iid lengths], integral over [0, cap] of 1 - F(x)^n (B1).

    inf where the law has no mean and there is no cap.
    """
    N = require_count(n, name="n")
    mean = mean_from_survival(
        lambda x: survival_of_max(survival(x), n=N), cap=cap_tokens, whole_tokens=whole_tokens
    )
    return float(mean[0])


def expected_max_by_count(
    survival: Survival, *, n_max: int, cap: float = math.inf, whole_tokens: bool = False
) -> FloatArray:
    """Return h(m) = E[max of m iid durations] for m = 0 .. n_max at once, h(0) = 0 (B1).

    What the barrier sums need; pass a group's survival to get the time of a wave of m groups.
    """
    m = np.arange(1, require_count(n_max, name="n_max") + 1)
    means = mean_from_survival(
        lambda x: survival_of_max(survival(x)[:, None], n=m[None, :]),
        cap=cap,
        whole_tokens=whole_tokens,
    )
    return np.append(0.0, means)


def p_max_truncated(p_truncated: float, *, n: int) -> float:
    """Return P(max of n lengths = cap) = 1 - (1-pi)^n, pi the share of lengths at the cap (B1).

    pi is S(cap) for continuous lengths. In whole tokens a response may stop exactly at the cap:
    S(cap) is then the truncated share, S(cap - 1) the share at the cap.
    """
    pi = require_probability(p_truncated, name="p_truncated")
    N = require_count(n, name="n")
    return 1.0 if pi == 1.0 else -math.expm1(N * math.log1p(-pi))


def expected_max_exponential(mean: float, *, n: int) -> float:
    """Return theta H_n, the expected maximum of n exponentials without a cap (B1)."""
    return require_positive(mean, name="mean") * harmonic(require_count(n, name="n"))


def expected_max_censored_exponential(mean: float, *, n: int, cap: float) -> float:
    """Return theta * sum over j <= n of (1 - exp(-c/theta))^j / j (B1)."""
    theta = require_positive(mean, name="mean")
    reach = -math.expm1(-require_positive(cap, name="cap") / theta)
    return theta * math.fsum(reach**j / j for j in range(1, require_count(n, name="n") + 1))


def expected_max_weibull(scale: float, *, shape: float, n: int) -> float:
    """Return s Gamma(1+1/k) sum_j (-1)^(j+1) C(n,j) j^(-1/k) for n <= 25, no cap (B1).

    Raises ValueError above n = 25, where the alternating sum loses its digits: use
    ``expected_max_tokens``.
    """
    s, k = require_positive(scale, name="scale"), require_positive(shape, name="shape")
    N = require_count(n, name="n")
    if N > _MAX_WEIBULL_N:
        raise ValueError(f"n must be at most {_MAX_WEIBULL_N} here, got {N}: use quadrature")
    terms = ((-1) ** (j + 1) * math.comb(N, j) * j ** (-1.0 / k) for j in range(1, N + 1))
    return s * math.gamma(1.0 + 1.0 / k) * math.fsum(terms)


def expected_max_empirical(lengths: ArrayLike, *, n: int, replace: bool) -> float:
    """Return E[max of n draws from recorded lengths] (B1), with or without replacement.

    With: sum of x_(i) [(i/m)^n - ((i-1)/m)^n]; without: sum of x_(i) C(i-1, n-1)/C(m, n), which
    needs n <= m and is the mean over all subsets.
    """
    x = np.sort(np.asarray(lengths, dtype=np.float64).ravel())
    N, m = require_count(n, name="n"), x.size
    if m == 0 or not np.all(np.isfinite(x)):
        raise ValueError("lengths must be a non-empty array of finite numbers")
    i = np.arange(1, m + 1)
    if replace:
        return float(x @ ((i / m) ** N - ((i - 1) / m) ** N))
    if m < N:
        raise ValueError(f"n {N} exceeds the {m} recorded lengths: draw with replacement")
    log_comb = special.gammaln(i[N - 1 :]) - special.gammaln(i[N - 1 :] - N + 1)
    weight = np.exp(log_comb - log_comb[-1])
    # C(i-1, N-1)/C(m, N) is N/m at i = m; the others follow by their ratio to it
    return float(x[N - 1 :] @ weight) * N / m


def group_survival(survival: Survival, *, group_size: int) -> Survival:
    """Return S_G(x) = 1 - F(x)^G, survival of the longest of a group's G iid responses."""
    G = require_count(group_size, name="group_size")
    return lambda x: survival_of_max(survival(x), n=G)


def mixture_group_survival(
    conditional_survival: ConditionalSurvival, *, group_size: int, n_nodes: int = 257
) -> Survival:
    """Return S_G(x) = 1 - E_z[F_z(x)^G], responses iid given the prompt's level z ~ N(0,1) (B2).

    Correlation inside a group makes a wave of k groups shorter than its iid value (Jensen).
    The law between prompts is the average over z; feed any prompt level through its quantile.
    """
    G = require_count(group_size, name="group_size")
    z, w = normal_nodes(n_nodes)

    def survival(x: FloatArray) -> FloatArray:
        s = conditional_survival(x[:, None], z[None, :])
        return np.asarray(survival_of_max(np.broadcast_to(s, (x.size, z.size)), n=G) @ w)

    return survival


def expected_max_grouped(
    conditional_survival: ConditionalSurvival,
    *,
    n_groups: int,
    group_size: int,
    cap_tokens: float = math.inf,
    whole_tokens: bool = False,
    n_nodes: int = 257,
) -> float:
    """Return the expected maximum over k groups of G responses, correlated inside a group (B2).

    Integral of 1 - (E_z F_z(x)^G)^k; at most the iid value of the same marginal law.
    """
    groups = mixture_group_survival(conditional_survival, group_size=group_size, n_nodes=n_nodes)
    return expected_max_tokens(groups, n=n_groups, cap_tokens=cap_tokens, whole_tokens=whole_tokens)
