"""The exact derivative of the loss with respect to each token's log-probability.

Closed forms, written down apart from the surrogates, for plots, for the bandit, and as a second
opinion on automatic differentiation (theory.md D1). With u = scale·multiplicity·sampler weight, a
token-level surrogate gives u_t·ℓ'_t; one that is a function of the response's mean log ratio gives
(Σ u·ℓ')·m_t/n to each of its tokens.
"""

import torch
from torch import Tensor

from dapolab.objective.batch import Batch, Structure
from dapolab.objective.clipping import gmpo_bounds, ratio_bounds
from dapolab.objective.covariance import Generators
from dapolab.objective.kl import kl_estimate, kl_slope
from dapolab.objective.loss import Parts, kl_ratio, split_parts
from dapolab.objective.masking import inverse, keep_valid, row_mean
from dapolab.objective.tokens import Tokens, is_shared, sequence_log_ratio
from dapolab.objective.weighting import dppo_keep, sapo_tau, weight_without_gradient
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
    Kl,
    KlCov,
    LuspoClip,
    NoClip,
    Objective,
    PpoClip,
    SapoClip,
    VespoClip,
)

# Surrogates whose weight keeps the gradient of log π beyond a clamp of the ratio, or that say
# themselves what a clamp does.
_OWN_CLAMP = (GpgClip, CispoClip, VespoClip, DroClip, DppoTvClip, DppoKlClip)


@torch.no_grad()
def gradient_weights(
    batch: Batch,
    config: Objective,
    *,
    structure: Structure | None = None,
    scales: Tensor | None = None,
    generator: Generators | None = None,
    selection: Tensor | None = None,
) -> Tensor:
    """Return ∂loss/∂(log π) of every token, KL term included; (..., N, T), 0 outside the mask.

    The arguments, and the errors raised, are those of ``policy_loss``. At a bound itself the
    gradient still counts, as it does for ``torch.clamp``. A minus stands for a token that the step
    makes likelier.
    """
    parts = split_parts(
        batch,
        config,
        structure=structure,
        scales=scales,
        generator=generator,
        selection=selection,
    )
    tokens = parts.tokens
    outer = parts.scales.unsqueeze(-1) * tokens.mask
    weighted = outer if parts.weight is None else outer * parts.weight
    if config.sampler.applies == "replaces":
        gradient = -weighted * tokens.advantages
    else:
        gradient = _surrogate_gradient(tokens, config.clip, weighted, parts.chosen)
    if config.kl is not None and config.kl.place == "loss":
        gradient = gradient + config.kl.coefficient * _kl_gradient(parts, config.kl, outer)
    return gradient


def _surrogate_gradient(tokens: Tokens, clip: Clip, outer: Tensor, chosen: Tensor | None) -> Tensor:
    if isinstance(clip, GmpoClip):
        return _gmpo(tokens, clip, outer)
    slope = _slope(tokens, clip, chosen)
    if is_shared(clip):
        return _shared_by_row(outer * slope, tokens.mask) * _within(tokens, clip)
    if not isinstance(clip, _OWN_CLAMP):
        slope = slope * _within(tokens, clip)
    return outer * slope


def _slope(tokens: Tokens, clip: Clip, chosen: Tensor | None) -> Tensor:
    """Return dℓ/d(log r) of the ratio that a token looks at, its own or its response's.

    Weights without gradient multiply log π, whose own derivative is 1.
    """
    A = tokens.advantages
    match clip:
        case GpgClip() | CispoClip() | VespoClip():
            return -A * weight_without_gradient(tokens, clip)
        case DroClip():
            return clip.beta * tokens.ratio_of(clip) - A
        case GspoClip() | LuspoClip():
            slope = _bounded_slope(sequence_log_ratio(tokens, clip), A, clip)
            length = tokens.mask.sum(dim=-1, keepdim=True)
            return slope * length if isinstance(clip, LuspoClip) else slope
        case PpoClip() | ClipCov():
            slope = _bounded_slope(tokens.ratio_of(clip), A, clip)
            return slope if chosen is None else slope.masked_fill(chosen, 0.0)
        case SapoClip():
            ratio = sequence_log_ratio(tokens, clip).exp()
            gate = torch.sigmoid(sapo_tau(A, clip) * (ratio - 1.0))
            flat = gate * (1.0 - gate)
            return -4.0 * torch.where(flat > 0, flat * ratio, 0.0) * A
        case DppoTvClip() | DppoKlClip():
            return _dppo_slope(tokens, clip, _within(tokens, clip))
        case KlCov():
            log_ratio = tokens.ratio_of(clip)
            pull = clip.coef * log_ratio.sign()
            pull = pull if chosen is None else pull.masked_fill(~chosen, 0.0)
            return pull - A * log_ratio.exp()
        case NoClip():
            return -A * tokens.ratio_of(clip).exp()
        case _:
            raise AssertionError(f"no slope for {clip.kind}")


def _bounded_slope(
    log_ratio: Tensor, advantages: Tensor, clip: PpoClip | GspoClip | LuspoClip | ClipCov
) -> Tensor:
    """Return −A·r inside the bounds, 0 beyond."""
    lower, upper = ratio_bounds(clip, advantages)
    ratio = log_ratio.exp()
    slope = torch.where((ratio >= lower) & (ratio <= upper), -advantages * ratio, 0.0)
    cap = getattr(clip, "log_ratio_cap", None)
    # At the cap itself the clamped log ratio equals it and torch still lets the gradient through;
    # beyond it the clamped value equals it too, so the cap must be asked of what went in.
    return slope if cap is None else slope.masked_fill(log_ratio >= cap, 0.0)


def _within(tokens: Tokens, clip: Clip) -> Tensor:
    """Return 1 where log r is within its clamp, else 0."""
    bound = getattr(clip, "log_ratio_clamp", None)
    if bound is None or tokens.log_ratio is None:
        return torch.ones_like(tokens.raw_logp)
    inside: Tensor = tokens.log_ratio.abs() <= bound
    return inside.to(tokens.raw_logp.dtype)


def _dppo_slope(tokens: Tokens, clip: DppoTvClip | DppoKlClip, inside: Tensor) -> Tensor:
    log_ratio = tokens.ratio_of(clip)
    ratio = log_ratio.exp()
    ratio = ratio if clip.cap is None else ratio.clamp(max=clip.cap)
    slope = torch.where(dppo_keep(tokens, clip), -tokens.advantages * ratio, 0.0)
    slope = slope if clip.surrogate == "log_prob" else slope * inside
    return slope + 2.0 * clip.log_ratio_penalty * log_ratio * inside


def _gmpo(tokens: Tokens, clip: GmpoClip, outer: Tensor) -> Tensor:
    A = tokens.advantages
    log_ratio = tokens.ratio_of(clip)
    lower, upper = gmpo_bounds(clip, A)
    moves = (log_ratio >= lower) & (log_ratio <= upper) & (A != 0)
    mean = row_mean(log_ratio.clamp(lower, upper), mask=tokens.mask)
    slope = -row_mean(A, mask=tokens.mask) * mean.exp()
    return _shared_by_row(outer * slope, tokens.mask) * moves * _within(tokens, clip)


def _shared_by_row(upstream: Tensor, mask: Tensor) -> Tensor:
    total = upstream.sum(dim=-1, keepdim=True)
    return total * mask * inverse(mask.sum(dim=-1, keepdim=True))


def _kl_gradient(parts: Parts, config: Kl, outer: Tensor) -> Tensor:
    """Return the KL term's gradient; a ratio with gradient passes the estimate on as well."""
    reference = parts.batch.need("ref_logp", what_for="kl")
    d = keep_valid(parts.batch.logp - reference, mask=parts.tokens.mask)
    slope = outer * kl_slope(d, config)
    if config.ratio_weight == "none":
        return slope
    ratio = kl_ratio(parts.tokens, config)
    if config.ratio_weight == "detached":
        return slope * ratio
    through = outer * kl_estimate(d, config) * ratio
    if config.ratio_level == "sequence":
        through = _shared_by_row(through, parts.tokens.mask)
    return slope * ratio + through
