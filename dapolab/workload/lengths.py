"""Length laws of single responses: a continuous latent X, whole tokens L = max(1, ⌈X⌉).

Every law offers ``survival, cdf, quantile, mean, sample``. The latent is what drift scales and what
censoring acts on; whole tokens are what an engine decodes. For a whole k ≥ 1, P(L > k) = P(X > k),
so the two laws agree at whole numbers.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, special

from dapolab.scenario import (
    ConstantLengths,
    EmpiricalLengths,
    ExponentialLengths,
    GeometricLengths,
    Lengths,
    LognormalLengths,
    ParetoLengths,
    WeibullLengths,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# E[L] sums P(L > k) exactly up to this many tokens and integrates the tail beyond.
_EXACT_TOKENS = 1 << 17


class Latent(Protocol):
    """A law of the latent X > 0, in tokens."""

    def survival(self, x: Floats) -> Floats:
        """P(X > x) for x ≥ 0."""
        ...

    def quantile(self, u: Floats) -> Floats:
        """Smallest x with P(X ≤ x) ≥ u, for u in [0, 1)."""
        ...


@dataclass(frozen=True)
class Exponential:
    """Exponential latent of a given mean."""

    mean_tokens: float

    def survival(self, x: Floats) -> Floats:
        """P(X > x)."""
        return np.asarray(np.exp(-x / self.mean_tokens))

    def quantile(self, u: Floats) -> Floats:
        """Inverse cdf."""
        return np.asarray(-self.mean_tokens * np.log1p(-u))


@dataclass(frozen=True)
class Geometric:
    """Geometric on 1, 2, …: stops at each token with probability 1/mean."""

    mean_tokens: float

    def survival(self, x: Floats) -> Floats:
        """P(X > x) = (1 − 1/mean)^⌊x⌋."""
        return np.asarray((1.0 - 1.0 / self.mean_tokens) ** np.floor(x), dtype=np.float64)

    def quantile(self, u: Floats) -> Floats:
        """Smallest whole k with 1 − (1 − 1/mean)^k ≥ u."""
        if self.mean_tokens == 1.0:
            return np.ones_like(u)
        stop = np.log1p(-1.0 / self.mean_tokens)
        return np.asarray(np.maximum(1.0, np.ceil(np.log1p(-u) / stop)))


@dataclass(frozen=True)
class Lognormal:
    """Lognormal latent: log X ~ N(log median, sigma²)."""

    median_tokens: float
    sigma: float

    def survival(self, x: Floats) -> Floats:
        """P(X > x)."""
        if self.sigma == 0.0:
            return (x < self.median_tokens).astype(np.float64)
        with np.errstate(divide="ignore"):
            z = (np.log(x) - np.log(self.median_tokens)) / self.sigma
        return np.asarray(special.ndtr(-z), dtype=np.float64)

    def quantile(self, u: Floats) -> Floats:
        """Inverse cdf."""
        if self.sigma == 0.0:
            return np.full(u.shape, self.median_tokens, dtype=np.float64)
        return np.asarray(self.median_tokens * np.exp(self.sigma * special.ndtri(u)))


@dataclass(frozen=True)
class Weibull:
    """Weibull latent: P(X > x) = exp(−(x/scale)^shape)."""

    scale_tokens: float
    shape: float

    def survival(self, x: Floats) -> Floats:
        """P(X > x)."""
        return np.asarray(np.exp(-((x / self.scale_tokens) ** self.shape)))

    def quantile(self, u: Floats) -> Floats:
        """Inverse cdf."""
        return np.asarray(self.scale_tokens * (-np.log1p(-u)) ** (1.0 / self.shape))


@dataclass(frozen=True)
class Pareto:
    """Pareto latent: P(X > x) = (minimum/x)^alpha beyond the minimum."""

    minimum_tokens: float
    alpha: float

    def survival(self, x: Floats) -> Floats:
        """P(X > x)."""
        return np.asarray((self.minimum_tokens / np.maximum(x, self.minimum_tokens)) ** self.alpha)

    def quantile(self, u: Floats) -> Floats:
        """Inverse cdf."""
        return np.asarray(self.minimum_tokens * (1.0 - u) ** (-1.0 / self.alpha))


@dataclass(frozen=True, eq=False)
class Empirical:
    """A finite law on sorted whole tokens; a single point is the constant law."""

    tokens: Floats
    cumulative: Floats

    def survival(self, x: Floats) -> Floats:
        """P(X > x), right-continuous."""
        below = np.concatenate([[0.0], self.cumulative])
        return 1.0 - below[np.searchsorted(self.tokens, x, side="right")]

    def quantile(self, u: Floats) -> Floats:
        """Smallest listed token count whose cumulative weight exceeds u."""
        index = np.searchsorted(self.cumulative, u, side="right")
        return self.tokens[np.minimum(index, len(self.tokens) - 1)]


def latent_law(config: Lengths) -> Latent:
    """Return the latent law of a ``[workload.lengths]`` table (marginal over prompts)."""
    match config:
        case ConstantLengths():
            return Empirical(np.array([float(config.tokens)]), np.array([1.0]))
        case GeometricLengths():
            return Geometric(config.mean_tokens)
        case ExponentialLengths():
            return Exponential(config.mean_tokens)
        case LognormalLengths():
            return Lognormal(config.median_tokens, config.sigma)
        case WeibullLengths():
            return Weibull(config.scale_tokens, config.shape)
        case ParetoLengths():
            return Pareto(config.minimum_tokens, config.alpha)
        case EmpiricalLengths():
            tokens, inverse = np.unique(np.asarray(config.tokens, float), return_inverse=True)
            given = config.weights
            weights = np.ones(len(config.tokens)) if given is None else np.asarray(given, float)
            cumulative = np.cumsum(np.bincount(inverse, weights=weights))
            return Empirical(tokens, cumulative / cumulative[-1])


@dataclass(frozen=True)
class LengthLaw:
    """Whole-token law L = max(1, ⌈scale·X⌉) of a latent X; drift is a scale.

    Build it with :func:`length_law`. All token arguments may be arrays; results follow their shape.
    """

    latent: Latent
    scale: float = 1.0

    def survival(self, tokens: ArrayLike) -> Floats:
        """P(L > tokens); 1 below one token."""
        k = np.floor(np.asarray(tokens, dtype=np.float64))
        return np.where(k < 1, 1.0, self.latent.survival(np.maximum(k, 1.0) / self.scale))

    def cdf(self, tokens: ArrayLike) -> Floats:
        """P(L ≤ tokens)."""
        return 1.0 - self.survival(tokens)

    def quantile(self, u: ArrayLike) -> Ints:
        """Smallest whole k with P(L ≤ k) ≥ u, for u in [0, 1)."""
        return whole_tokens(self.scale * self.latent.quantile(np.asarray(u, dtype=np.float64)))

    def mean(self, cap_tokens: int | None = None) -> float:
        """E[min(L, cap)] in tokens; without a cap E[L], infinite for a Pareto with alpha ≤ 1.

        E[min(L, c)] = Σ_{k=0}^{c−1} P(L > k), exact; the tail beyond 2¹⁷ tokens is integrated.
        """
        stop = _EXACT_TOKENS if cap_tokens is None else cap_tokens
        head = float(self.survival(np.arange(min(stop, _EXACT_TOKENS))).sum())
        if stop < _EXACT_TOKENS or self.survival(stop) == 0.0:
            return head
        if isinstance(self.latent, Pareto) and cap_tokens is None and self.latent.alpha <= 1.0:
            return float("inf")
        upper = np.inf if cap_tokens is None else np.log(cap_tokens / _EXACT_TOKENS)
        # Euler–Maclaurin: Σ_{k≥n} S(k) ≈ ∫_n S + S(n)/2, with x = n·e^t in the integral.
        tail, _ = integrate.quad(self._tail_integrand, 0.0, min(upper, 200.0), limit=200)
        return head + float(tail) + float(self.survival(_EXACT_TOKENS)) / 2

    def _tail_integrand(self, t: float) -> float:
        x = np.asarray(_EXACT_TOKENS * np.exp(t))
        return float(self.latent.survival(x / self.scale)) * float(x)

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> Ints:
        """Draw whole-token lengths, shape ``size``."""
        return self.quantile(rng.random(size))


def whole_tokens(latent: Floats) -> Ints:
    """Round latent lengths up to whole tokens, at least one."""
    # 2^62 keeps the draw of an absurdly heavy tail inside int64; any cap is far below.
    return np.clip(np.ceil(latent), 1.0, 2.0**62).astype(np.int64)


def length_law(config: Lengths) -> LengthLaw:
    """Return the whole-token law of a ``[workload.lengths]`` table (marginal over prompts)."""
    return LengthLaw(latent_law(config))


@dataclass(frozen=True, eq=False)
class LogNormalPart:
    """A weighted lognormal per node: mass ``mass_N`` on log X ~ N(log_median_N, sigma²)."""

    log_median_N: Floats
    sigma: float
    mass_N: Floats

    def cdf(self, tokens: Floats) -> Floats:
        """Return mass_N · P(L ≤ tokens), shape (N, X); 0 below one token."""
        with np.errstate(divide="ignore"):
            log_x = np.where(tokens < 1, -np.inf, np.log(np.maximum(tokens, 1.0)))
        return self.mass_N[:, None] * self._standard(log_x[None, :] - self.log_median_N[:, None])

    def _standard(self, gap: Floats) -> Floats:
        if self.sigma == 0.0:
            return (gap >= 0.0).astype(np.float64)
        return np.asarray(special.ndtr(gap / self.sigma), dtype=np.float64)

    def below(self, cap_tokens: int) -> tuple[Floats, Floats]:
        """Return mass_N·P(L ≤ cap) and mass_N·E[L; L ≤ cap], each shape (N,).

        The mean of whole tokens is the latent's plus one half (Euler–Maclaurin; the next term is a
        twelfth of the density at one token and at the cap).
        """
        gap = np.log(cap_tokens) - self.log_median_N
        done = self._standard(gap)
        if self.sigma == 0.0:
            return self.mass_N * done, self.mass_N * done * np.ceil(np.exp(self.log_median_N))
        mean = np.exp(self.log_median_N + self.sigma**2 / 2)
        partial = mean * special.ndtr(gap / self.sigma - self.sigma)
        return self.mass_N * done, self.mass_N * (partial + done / 2)
