"""Per-token surrogates: what the ratio π_current/π_old does to each token's loss.

All are minimised, so they carry a minus before the advantage. A clip that only acts one way for
each sign of the advantage is a clamp of the ratio between bounds that depend on the sign, which has
the same value and gradient as the usual maximum of two products (verl core_algos.py:1285-1376), and
is what the metrics count.
"""

import torch
from torch import Tensor

from dapolab.objective.covariance import Generators, highest_covariance, random_covariance
from dapolab.objective.masking import row_mean
from dapolab.objective.tokens import Tokens, sequence_log_ratio
from dapolab.objective.weighting import dppo, sapo, weight_without_gradient
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


def choose_tokens(
    tokens: Tokens, clip: Clip, *, generator: Generators | None = None
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
            return sapo(sequence_log_ratio(tokens, clip), advantages=A, clip=clip)
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
