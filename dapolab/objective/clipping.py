"""Per-token surrogates: what the ratio π_current/π_old does to each token's loss.

All are minimised, so they carry a minus before the advantage. A clip that only acts one way for
each sign of the advantage is a clamp of the ratio between bounds that depend on the sign, which has
the same value and gradient as the usual maximum of two products (verl core_algos.py:1285-1376), and
is what the metrics count.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.covariance import highest_covariance, random_covariance
from dapolab.objective.masking import keep_valid, row_mean
from dapolab.scenario import (
    CispoClip,
    Clip,
    ClipCov,
    DppoKlClip,
    DppoTvClip,
    DroClip,
    GmpoClip,
    GpgClip,
    GspoClip,
    KlCov,
    LuspoClip,
    NoClip,
    PpoClip,
    SapoClip,
    VespoClip,
)

# DPPO's binary KL keeps its logarithms finite by this much (verl core_algos.py:1460-1542).
_KL_FLOOR = 1e-8
# log r at which SAPO's gate is 1 and flat to the last digit, yet exp still finite in float32.
_SATURATED = 80.0


@dataclass(frozen=True)
class Tokens:
    """Inputs of a surrogate, 0 outside the mask; shapes (..., N, T) or (..., N, 1)."""

    raw_logp: Tensor
    """Not clean yet: most surrogates only read the ratio."""
    log_ratio: Tensor | None
    """Current less old; None where the surrogate reads no old policy."""
    advantages: Tensor
    mask: Tensor

    @property
    def logp(self) -> Tensor:
        """Clean log π of the current policy."""
        return keep_valid(self.raw_logp, mask=self.mask)

    def ratio_of(self, clip: Clip) -> Tensor:
        """Return log r, clamped where the clip asks for it."""
        if self.log_ratio is None:
            raise ConfigError(f'clip "{clip.kind}" needs old_logp')
        bound = getattr(clip, "log_ratio_clamp", None)
        return self.log_ratio if bound is None else self.log_ratio.clamp(-bound, bound)


def choose_tokens(
    tokens: Tokens, clip: Clip, *, generator: torch.Generator | None = None
) -> Tensor | None:
    """Return the tokens that a covariance rule chooses in the whole update; None without a rule.

    Raises
    ------
    ConfigError
        If ``clip_cov`` is given no generator.
    """
    if isinstance(clip, ClipCov):
        moved = clipped(tokens.ratio_of(clip).detach(), tokens.advantages, clip)
        return random_covariance(tokens, clip, moved, generator)
    return highest_covariance(tokens, clip) if isinstance(clip, KlCov) else None


def surrogate(tokens: Tokens, clip: Clip, *, chosen: Tensor | None = None) -> Tensor:
    """Return the loss of each token, (..., N, T), or (..., N, 1) where a response has one.

    Parameters
    ----------
    tokens
        Clean inputs.
    clip
        The surrogate.
    chosen
        (..., N, T) tokens of ``choose_tokens``; absent: none is.

    Raises
    ------
    ConfigError
        If the old policy is needed and absent.
    """
    A = tokens.advantages
    match clip:
        case NoClip():
            return -A * tokens.ratio_of(clip).exp()
        case PpoClip():
            return ppo(tokens.ratio_of(clip), advantages=A, bounds=ratio_bounds(clip, A))
        case GspoClip():
            s = sequence_log_ratio(tokens, clip)
            return ppo(s, advantages=A, bounds=ratio_bounds(clip, A))
        case LuspoClip():
            s = sequence_log_ratio(tokens, clip)
            length = tokens.mask.sum(dim=-1, keepdim=True)
            return ppo(s, advantages=A, bounds=ratio_bounds(clip, A)) * length
        case GmpoClip():
            return gmpo(tokens, clip)
        case SapoClip():
            return sapo(tokens.ratio_of(clip), advantages=A, clip=clip)
        case DroClip():
            return 0.5 * clip.beta * tokens.ratio_of(clip).square() - A * tokens.logp
        case DppoTvClip() | DppoKlClip():
            return dppo(tokens, clip)
        case CispoClip() | VespoClip() | GpgClip():
            return -weight_without_gradient(tokens, clip) * A * tokens.logp
        case ClipCov():
            losses = ppo(tokens.ratio_of(clip), advantages=A, bounds=ratio_bounds(clip, A))
            return losses if chosen is None else losses.masked_fill(chosen, 0.0)
        case KlCov():
            log_ratio = tokens.ratio_of(clip)
            losses = -A * log_ratio.exp()
            if chosen is None:
                return losses
            return losses + (clip.coef * log_ratio.abs()).masked_fill(~chosen, 0.0)


# ---------------------------------------------------------------------------- bounded ratios


def ratio_bounds(
    clip: PpoClip | GspoClip | LuspoClip | ClipCov, advantages: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the bounds between which a token's ratio moves its loss; shapes of the advantages.

    A ≥ 0: r ≤ 1 + high (or δ, where that is lower). A < 0: r ≥ 1 − low, and r ≤ c with dual clip;
    δ bounds the unclipped term only, so that it acts at max(δ, 1 + high) (TRL).
    """
    high, low = 1.0 + clip.high, 1.0 - clip.low
    delta = getattr(clip, "delta", None)
    dual_c = getattr(clip, "dual_c", None)
    inf = float("inf")
    top_positive = high if delta is None else min(high, delta)
    top_negative = min(inf if delta is None else max(high, delta), dual_c or inf)
    negative = advantages < 0
    zero = advantages.new_zeros(())
    lower = torch.where(negative, zero + low, zero - inf)
    upper = torch.where(negative, zero + top_negative, zero + top_positive)
    return lower, upper


def ppo(log_ratio: Tensor, *, advantages: Tensor, bounds: tuple[Tensor, Tensor]) -> Tensor:
    """Return −A·r with r held between bounds (PPO Eq. 7, DAPO Eq. 8, dual clip).

    A ratio far beyond its upper bound is cut before exp as well: it would overflow, and the 0 of
    the clip times infinity is no gradient.
    """
    lower, upper = bounds
    reachable = log_ratio.clamp(max=upper.log() + 1.0)
    return -advantages * reachable.exp().clamp(lower, upper)


def clipped(log_ratio: Tensor, advantages: Tensor, clip: ClipCov | PpoClip) -> Tensor:
    """Say which tokens the clip takes the gradient from, strictly beyond a bound."""
    lower, upper = ratio_bounds(clip, advantages)
    ratio = log_ratio.exp()
    return ((ratio < lower) | (ratio > upper)) & (advantages != 0)


def sequence_log_ratio(tokens: Tokens, clip: GspoClip | LuspoClip) -> Tensor:
    """Return log s: the mean log ratio of the response, (..., N, 1), or (..., N, T) per token.

    Per token (GSPO-token, Eq. 14) the value is that of the response without gradient, the gradient
    the token's own.
    """
    log_ratio = tokens.ratio_of(clip)
    if clip.level == "token":
        return log_ratio
    s = row_mean(log_ratio, mask=tokens.mask)
    if clip.level == "sequence_token":
        s = s.detach() + (log_ratio - log_ratio.detach())
    cap = getattr(clip, "log_ratio_cap", None)
    return s if cap is None else s.clamp(max=cap)


def gmpo(tokens: Tokens, clip: GmpoClip) -> Tensor:
    """Return −Ā·exp(mean of clipped log r), (..., N, 1) (GMPO Eq. 4; verl core_algos:1928-2011).

    log r is cut above high where A > 0 and below −low where A < 0, and counts as 0 where A = 0.
    """
    A = tokens.advantages
    log_ratio = tokens.ratio_of(clip).clamp(*gmpo_bounds(clip, A)).masked_fill(A == 0, 0.0)
    return -row_mean(A, mask=tokens.mask) * row_mean(log_ratio, mask=tokens.mask).exp()


def gmpo_bounds(clip: GmpoClip, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds of log r, one-sided by the sign of the advantage."""
    zero = torch.zeros_like(advantages)
    inf = float("inf")
    lower = torch.where(advantages < 0, zero - clip.low, zero).masked_fill(advantages > 0, -inf)
    upper = torch.where(advantages > 0, zero + clip.high, zero).masked_fill(advantages < 0, inf)
    return lower, upper


# ---------------------------------------------------------------------------- soft gates, weights


def sapo(log_ratio: Tensor, *, advantages: Tensor, clip: SapoClip) -> Tensor:
    """Return −(4/τ)·σ(τ(r − 1))·A (SAPO Eq. 5; verl core_algos.py:1622-1704)."""
    tau = sapo_tau(advantages, clip)
    ratio = log_ratio.clamp(max=_SATURATED).exp()
    return -torch.sigmoid(tau * (ratio - 1.0)) * (4.0 / tau) * advantages


def sapo_tau(advantages: Tensor, clip: SapoClip) -> Tensor:
    """Return τ of each advantage: tau_positive for A > 0, else tau_negative."""
    zero = advantages.new_zeros(())
    return torch.where(advantages > 0, zero + clip.tau_positive, zero + clip.tau_negative)


def weight_without_gradient(tokens: Tokens, clip: CispoClip | VespoClip | GpgClip) -> Tensor:
    """Return the factor of A·log π that carries no gradient."""
    if isinstance(clip, GpgClip):
        return torch.ones_like(tokens.advantages)
    log_ratio = tokens.ratio_of(clip).detach()
    if isinstance(clip, CispoClip):
        return log_ratio.exp().clamp(*cispo_bounds(clip))
    log_w = (log_ratio * tokens.mask).sum(dim=-1, keepdim=True)
    positive = tokens.advantages >= 0
    zero = tokens.advantages.new_zeros(())
    k = torch.where(positive, zero + clip.k_positive, zero + clip.k_negative)
    lam = torch.where(positive, zero + clip.lambda_positive, zero + clip.lambda_negative)
    return (lam + k * log_w - lam * log_w.exp()).exp()


def cispo_bounds(clip: CispoClip) -> tuple[float, float]:
    """Return the bounds of the ratio itself."""
    if clip.bounds == "absolute":
        return (0.0 if clip.low is None else clip.low), clip.high
    return (0.0 if clip.low is None else 1.0 - clip.low), 1.0 + clip.high


def dppo(tokens: Tokens, clip: DppoTvClip | DppoKlClip) -> Tensor:
    """Return −A·min(r, cap) of the tokens that may still move (verl core_algos.py:1379-1542)."""
    log_ratio = tokens.ratio_of(clip)
    weight = log_ratio.detach().exp()
    weight = weight if clip.cap is None else weight.clamp(max=clip.cap)
    weight = weight.masked_fill(~dppo_keep(tokens, clip), 0.0)
    moved = tokens.logp
    if clip.surrogate == "ratio":
        moved = 1.0 + log_ratio - log_ratio.detach()
    losses = -tokens.advantages * weight * moved
    if clip.log_ratio_penalty:
        losses = losses + clip.log_ratio_penalty * log_ratio.square()
    return losses


def dppo_keep(tokens: Tokens, clip: DppoTvClip | DppoKlClip) -> Tensor:
    """Say which tokens have not yet moved too far the way their advantage pushes."""
    log_p = tokens.logp.detach()
    if tokens.log_ratio is None:
        raise ConfigError(f'clip "{clip.kind}" needs old_logp')
    log_q = log_p - tokens.log_ratio.detach()  # the old probability, whatever the ratio's clamp
    p, q = log_p.exp(), log_q.exp()
    if isinstance(clip, DppoTvClip):
        return torch.where(tokens.advantages > 0, p - q <= clip.high, p - q >= -clip.low)
    rest = torch.log((1.0 - q + _KL_FLOOR) / (1.0 - p + _KL_FLOOR))
    kl = q * (log_q - log_p) + (1.0 - q) * rest
    rising = (kl <= clip.high) | (p <= q)
    falling = (kl <= clip.low) | (p >= q)
    return torch.where(tokens.advantages > 0, rising, falling)


def clean_tokens(logp: Tensor, *, old: Tensor | None, advantages: Tensor, mask: Tensor) -> Tokens:
    """Build the inputs of a surrogate with everything outside the mask replaced by 0.

    Advantages that are one a response are cleaned by response: an empty one may hold NaN.
    """
    per_row = advantages.shape[-1] == 1 and mask.shape[-1] != 1
    advantage_mask = mask.sum(dim=-1, keepdim=True) if per_row else mask
    return Tokens(
        raw_logp=logp,
        log_ratio=None if old is None else keep_valid(logp - old.detach(), mask=mask),
        advantages=keep_valid(advantages, mask=advantage_mask).detach(),
        mask=mask,
    )
