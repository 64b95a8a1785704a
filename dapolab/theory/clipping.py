"""Which tokens a clip lets through, and how far one rollout can move a policy (D1, D2, D3, D6).

For a tabular softmax the gradient of a clipped surrogate by the logits is m(r, A) A (e_a - pi):
the multiplier m is 1 at r = 1 for every method. r is the ratio of current to old probability.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from dapolab.theory.arguments import (
    require_count,
    require_not_negative,
    require_positive,
    require_probability,
)
from dapolab.theory.quadrature import FloatArray


def _ratios(ratio: ArrayLike) -> FloatArray:
    r = np.asarray(ratio, dtype=np.float64)
    if not np.all(r > 0.0):
        raise ValueError("ratios must be above 0")
    return r


def _open_share(value: float, *, name: str) -> float:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie inside (0, 1), got {value}")
    return float(value)


def ppo_multiplier(
    ratio: ArrayLike,
    *,
    advantage: ArrayLike,
    low: float,
    high: float,
    dual_c: float | None = None,
) -> FloatArray:
    """Return m of PPO's clip: r, or 0 where A > 0 and r > 1 + high, or A < 0 and r < 1 - low (D1).

    ``dual_c`` adds 0 where A < 0 and r > c (verl ``vanilla``: clip_ratio_c, default 3). Broadcasts
    ratio against advantage; m is r at A = 0, where it has no effect. Clip-higher (DAPO, arXiv
    2503.14476, §3.1) is high > low.
    """
    r, A = np.broadcast_arrays(_ratios(ratio), np.asarray(advantage, dtype=np.float64))
    clipped = ((A > 0.0) & (r > 1.0 + high)) | ((A < 0.0) & (r < 1.0 - low))
    if dual_c is not None:
        if not dual_c > 1.0:
            raise ValueError(f"dual_c must be above 1, got {dual_c}")
        clipped |= (A < 0.0) & (r > dual_c)
    return np.where(clipped, 0.0, r)


def cispo_multiplier(ratio: ArrayLike, *, low: float | None, high: float) -> FloatArray:
    """Return m of CISPO: the clipped ratio itself, held constant, whatever the sign of A (D1).

    ``low=None`` bounds from above alone (MiniMax-M1, arXiv 2506.13585); verl clips both ways.
    """
    return np.clip(_ratios(ratio), 0.0 if low is None else 1.0 - low, 1.0 + high)


def gspo_multiplier(
    log_ratio_T: ArrayLike, *, advantage: float, low: float, high: float
) -> FloatArray:
    """Return m of each token of one response under GSPO, shape (T,): s/L, or 0 if clipped (D1).

    s = exp(mean log ratio) over the L tokens; the response is clipped as a whole by PPO's rule
    (arXiv 2507.18071). At s = 1 it is seq-mean-token-mean's 1/L: no cure for its length bias.
    """
    log_ratio = np.asarray(log_ratio_T, dtype=np.float64)
    if log_ratio.ndim != 1 or log_ratio.size == 0:
        raise ValueError("log_ratio_T must be a non-empty row of one response's tokens")
    s = math.exp(float(log_ratio.mean()))
    m = float(ppo_multiplier(s, advantage=advantage, low=low, high=high))
    return np.full(log_ratio.size, m / log_ratio.size)


def sapo_multiplier(
    ratio: ArrayLike, *, advantage: ArrayLike, tau_pos: float = 1.0, tau_neg: float = 1.05
) -> FloatArray:
    """Return m of SAPO: r sech^2(tau (r-1)/2), tau by the sign of A (D1; arXiv 2511.20347).

    Derivative by log r of the gate (4/tau) sigmoid(tau (r-1)); verl's defaults, which take
    ``tau_neg`` at A = 0.
    """
    r, A = np.broadcast_arrays(_ratios(ratio), np.asarray(advantage, dtype=np.float64))
    positive, negative = (
        require_positive(t, name=n) for t, n in ((tau_pos, "tau_pos"), (tau_neg, "tau_neg"))
    )
    tau = np.where(A > 0.0, positive, negative)
    return np.asarray(r / np.cosh(np.minimum(tau * (r - 1.0) / 2.0, 300.0)) ** 2)


@dataclass(frozen=True)
class SapoPeak:
    """Where SAPO exceeds plain REINFORCE: m > 1 for 1 < r < ``until``, largest at ``ratio``."""

    ratio: float
    multiplier: float
    until: float


def sapo_peak(tau: float) -> SapoPeak:
    """Return the peak of r sech^2(tau (r-1)/2) and the r > 1 at which it is back to 1 (D1).

    tau = 1: 1.575 at 2.06, above 1 up to 3.47. SAPO attenuates r A everywhere, but not A.
    """
    require_positive(tau, name="tau")

    def slope(r: float) -> float:
        return 1.0 / r - tau * math.tanh(tau * (r - 1.0) / 2.0)

    def log_m(r: float) -> float:
        half = tau * (r - 1.0) / 2.0
        return math.log(r) - 2.0 * (half + math.log1p(math.exp(-2.0 * half)) - math.log(2.0))

    far = 2.0
    while slope(far) > 0.0 or log_m(far) > 0.0:
        far *= 2.0
    ratio = float(optimize.brentq(slope, 1.0, far, xtol=1e-14))
    until = float(optimize.brentq(log_m, ratio, far, xtol=1e-14))
    return SapoPeak(ratio=ratio, multiplier=math.exp(log_m(ratio)), until=until)


def upper_clip_limit(high: float) -> float:
    """Return 1/(1+high): above this old probability the upper clip cannot bind (D2)."""
    return 1.0 / (1.0 + require_positive(high, name="high"))


def refreshes_to_reach(p_start: float, *, p_target: float, high: float) -> int:
    """Return ceil(ln(target/start)/ln(1+high)), rollouts needed by positive samples alone (D2).

    Each refresh of the old policy allows a factor 1 + high, trained until the clip binds: from
    .01 to .5 takes 22 at .2, 16 at .28. With negative samples see ``rollout_fixed_point``.
    """
    start = _open_share(p_start, name="p_start")
    target = _open_share(p_target, name="p_target")
    factor = math.log1p(require_positive(high, name="high"))
    # A target that is an exact power must not cost a refresh by rounding.
    return max(0, math.ceil(math.log(target / start) / factor - 1e-12))


def rollout_fixed_point(p_old: float, *, low: float, high: float) -> float:
    """Return where inner steps on one rollout end: max((1+high) p, p + low (1-p)) (D2).

    Two arms, the right one of old probability p, expected batch, gradient flow: the right arm's
    own positive gradient stops at r = 1 + high, but the wrong arm goes on being pushed down until
    its ratio is 1 - low. 1 where neither clip binds.
    """
    p = _open_share(p_old, name="p_old")
    low = _open_share(low, name="low")
    return min(1.0, max((1.0 + require_positive(high, name="high")) * p, p + low * (1.0 - p)))


def rollouts_to_reach(p_start: float, *, p_target: float, low: float, high: float) -> int:
    """Return the rollouts that ``rollout_fixed_point`` needs from start to target (D2).

    From .01 to .5 with low .2: 4, for high .2 and .28 alike.
    """
    p, n = _open_share(p_start, name="p_start"), 0
    target = _open_share(p_target, name="p_target")
    while p < target:
        p = rollout_fixed_point(p, low=low, high=high)
        n += 1
    return n


def high_clip_first_below(*, low: float, high: float) -> float:
    """Return low/(low+high): below this p the upper clip binds before the lower, two arms (D2)."""
    low = require_positive(low, name="low")
    return low / (low + require_positive(high, name="high"))


@dataclass(frozen=True)
class InnerSteps:
    """Inner steps until r = 1 + high, in steps of the given learning rate (gradient flow)."""

    natural: float
    plain: float


def inner_steps_to_clip(
    p_old: float, *, high: float, learning_rate: float, n_logits: int = 2
) -> InnerSteps:
    """Return the inner steps until the right arm of two meets the upper clip (D3).

    Expected batch, population-std-normalised advantages of the two arms, D = 1/sqrt(p(1-p)) apart.
    Natural: ln[(1+e)(1-p)/(1-(1+e)p)]/(eta D). Plain: [F((1+e)p) - F(p)]/(n eta D),
    F(x) = (2x-1)/(x(1-x)) + 2 logit x, n = 2 for a softmax over two logits, whose difference both
    move, n = 1 for one logit of a sigmoid. inf where the clip cannot bind. The lower clip is taken
    not to bind before (``high_clip_first_below``).
    """
    p = _open_share(p_old, name="p_old")
    eta = require_positive(learning_rate, name="learning_rate")
    if n_logits not in (1, 2):
        raise ValueError(f"n_logits must be 1 (sigmoid) or 2 (softmax), got {n_logits}")
    end = (1.0 + require_positive(high, name="high")) * p
    if end >= 1.0:
        return InnerSteps(math.inf, math.inf)
    D = 1.0 / math.sqrt(p * (1.0 - p))

    def logit(x: float) -> float:
        return math.log(x) - math.log1p(-x)

    def antiderivative(x: float) -> float:
        return (2.0 * x - 1.0) / (x * (1.0 - x)) + 2.0 * logit(x)

    return InnerSteps(
        natural=(logit(end) - logit(p)) / (eta * D),
        plain=(antiderivative(end) - antiderivative(p)) / (n_logits * eta * D),
    )


@dataclass(frozen=True)
class ClipShares:
    """Share of ratios beyond each bound whatever the sign of A, and KL(old || current), nats."""

    high: float
    low: float
    kl: float

    def clip_fraction(self, *, p_positive: float) -> float:
        """Return P(A>0) high + P(A<0) low, what trainers log, for A independent of r.

        ``p_positive`` is P(A > 0) among nonzero advantages.
        """
        p = require_probability(p_positive, name="p_positive")
        return p * self.high + (1.0 - p) * self.low


def clip_shares(sigma: float, *, low: float, high: float, n_tokens: int = 1) -> ClipShares:
    """Return clip shares for log r ~ N(-sigma^2/2, sigma^2), so that E_old[r] = 1 (D6).

    P(r > 1+high) = Phi(-(ln(1+high) + sigma^2/2)/sigma), P(r < 1-low) = Phi((ln(1-low) +
    sigma^2/2)/sigma), KL = sigma^2/2 per token. ``n_tokens`` > 1 is GSPO's sequence ratio, the
    geometric mean of that many independent token ratios: its log has variance sigma^2/L but
    still mean -sigma^2/2, so s is not a token ratio of smaller sigma and clips low far more
    often than high.
    """
    s = require_positive(sigma, name="sigma")
    L = require_count(n_tokens, name="n_tokens")
    low = _open_share(low, name="low")
    mean, sd = -s * s / 2.0, s / math.sqrt(L)
    return ClipShares(
        high=float(stats.norm.sf(math.log1p(require_not_negative(high, name="high")), mean, sd)),
        low=float(stats.norm.cdf(math.log1p(-low), mean, sd)),
        kl=s * s / 2.0,
    )


def log_symmetric_high(low: float) -> float:
    """Return 1/(1-low) - 1, the upper bound as far from 1 in log ratio as ``low`` (D6): .2, .25."""
    low = _open_share(low, name="low")
    return low / (1.0 - low)
