"""Which tokens a surrogate clips, and which it still gives a gradient."""

import math

import torch
from torch import Tensor

from dapolab.objective.clipping import gmpo_bounds, ratio_bounds
from dapolab.objective.tokens import Tokens, is_shared, sequence_log_ratio
from dapolab.objective.weighting import cispo_bounds, dppo_keep
from dapolab.scenario import (
    CispoClip,
    Clip,
    ClipCov,
    DppoKlClip,
    DppoTvClip,
    DroClip,
    GmpoClip,
    GspoClip,
    KlCov,
    LuspoClip,
    PpoClip,
    VespoClip,
)


def clip_counts(tokens: Tokens, clip: Clip) -> tuple[Tensor, ...]:
    """Say which tokens are clipped above, below, and by the dual clip; strictly beyond a bound.

    For CISPO above and below are those of the weight, whatever the sign of A; for DPPO they are the
    masked tokens with A > 0 and A < 0, and the cap counts as dual (verl core_algos.py:1379-1457).
    Surrogates without a bound give False everywhere.
    """
    A = tokens.advantages
    positive, negative = A > 0, A < 0
    inf = math.inf
    match clip:
        case PpoClip() | ClipCov() | GspoClip() | LuspoClip():
            if isinstance(clip, (GspoClip, LuspoClip)):
                log_ratio = sequence_log_ratio(tokens, clip)
            else:
                log_ratio = tokens.ratio_of(clip)
            bottom, top = (bound.log() for bound in ratio_bounds(clip, A))
            two_sided = any(getattr(clip, x, None) is not None for x in ("dual_c", "delta"))
            return _beyond(
                log_ratio,
                (bottom, top),
                positive=positive,
                negative=negative,
                two_sided=two_sided,
            )
        case GmpoClip():
            return _beyond(
                tokens.ratio_of(clip),
                gmpo_bounds(clip, A),
                positive=positive,
                negative=negative,
                two_sided=False,
            )
        case CispoClip():
            ratio = sequence_log_ratio(tokens, clip).exp()
            low, high = cispo_bounds(clip)
            valid = tokens.mask != 0
            return (ratio > high) & valid, (ratio < low) & valid, torch.zeros_like(valid)
        case DppoTvClip() | DppoKlClip():
            out = ~dppo_keep(tokens, clip)
            capped = tokens.ratio_of(clip).exp() > (inf if clip.cap is None else clip.cap)
            return out & positive, out & negative, ~out & capped
        case _:
            none = torch.zeros_like(positive)
            return none, none, none


def _beyond(
    log_ratio: Tensor,
    bounds: tuple[Tensor, Tensor],
    *,
    positive: Tensor,
    negative: Tensor,
    two_sided: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compare with one threshold a sign: few bounds are moved out of reach, not many tokens."""
    bottom, top = bounds
    inf = math.inf
    above = log_ratio > torch.where(positive, top, inf)
    below = log_ratio < torch.where(negative, bottom, -inf)
    dual = log_ratio > torch.where(negative, top, inf) if two_sided else torch.zeros_like(negative)
    return above, below, dual


def stopping_sides(clip: Clip, sides: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the sides of ``clip_counts`` that take the gradient: a capped weight keeps it."""
    if isinstance(clip, CispoClip):
        return ()
    return sides[:2] if isinstance(clip, (DppoTvClip, DppoKlClip)) else sides


def is_plain(tokens: Tokens, clip: Clip) -> bool:
    """Say whether a token has a gradient exactly if A ≠ 0 and no side stops it."""
    mixed = is_shared(clip) and tokens.advantages.shape[-1] != 1
    chooses = isinstance(clip, (ClipCov, KlCov))
    return not (mixed or chooses or _is_pulled(clip) or _gradient_bound(clip) is not None)


def active_tokens(
    tokens: Tokens,
    clip: Clip,
    *,
    sides: tuple[Tensor, ...],
    weight: Tensor | None,
    chosen: Tensor | None,
) -> Tensor:
    """Say whose log-prob the surrogate moves; bool, broadcasts to (..., N, T).

    Parameters
    ----------
    tokens
        Clean inputs of the surrogate.
    clip
        The surrogate.
    sides
        What ``clip_counts`` found.
    weight
        Factor of the surrogate, (..., N, T) or (..., N, 1); absent: 1.
    chosen
        Tokens of a covariance rule.
    """
    learns = tokens.advantages != 0
    for side in stopping_sides(clip, sides):
        learns = learns & ~side
    if isinstance(clip, ClipCov) and chosen is not None:
        learns = learns & ~chosen
    if _is_pulled(clip):  # a penalty on log r pulls whatever A is
        learns = learns | (tokens.ratio_of(clip) != 0)
    if isinstance(clip, KlCov) and chosen is not None:
        learns = learns | (chosen & (tokens.ratio_of(clip) != 0))
    counts = tokens.mask != 0 if weight is None else (weight != 0) & (tokens.mask != 0)
    if isinstance(clip, GmpoClip):
        learns = learns & counts.any(dim=-1, keepdim=True)
    elif is_shared(clip):
        learns = (learns & counts).any(dim=-1, keepdim=True)  # the ratio is the response's
    else:
        learns = learns & counts
    bound = _gradient_bound(clip)
    return learns if bound is None else learns & (tokens.ratio_of(clip).abs() < bound)


def _is_pulled(clip: Clip) -> bool:
    return isinstance(clip, DroClip) or getattr(clip, "log_ratio_penalty", 0.0) > 0


def _gradient_bound(clip: Clip) -> float | None:
    """Return the bound on |log r| beyond which no gradient passes."""
    if isinstance(clip, (CispoClip, VespoClip)) or getattr(clip, "surrogate", "") == "log_prob":
        return None  # only a weight without gradient is clamped there
    bound: float | None = getattr(clip, "log_ratio_clamp", None)
    return bound
