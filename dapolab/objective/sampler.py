"""Correction for a sampler that is not the trainer's old policy.

The engine that samples computes other log-probs than the trainer does for the same weights, and may
hold older weights; the ratio old/sampler says by how much (verl rollout_corr_helper.py:565-657, TRL
vLLM importance sampling, OpenRLHF and NeMo RL tis | icepop | seq-mask-tis).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.objective.masking import inverse, keep_valid, token_mean
from dapolab.scenario import SamplerCorrection


@dataclass(frozen=True)
class Correction:
    """Weights without gradient; everything outside the mask is 0 or True."""

    log_ratio: Tensor
    """log of the ratio to the sampler, token by token, clean."""
    weight: Tensor
    """(..., N, T) or (..., N, 1) factor of the surrogate, 0 for what was rejected."""
    keep: Tensor
    """Same shape: False for tokens that are out (zero band, mask, rejected responses)."""
    bounded: Tensor
    """Same shape: True where a cap or a band changed the weight."""


def correct(
    numerator: Tensor, *, sampler_logp: Tensor, mask: Tensor, config: SamplerCorrection
) -> Correction:
    """Weigh tokens by how much likelier the trainer finds them than the sampler did.

    Parameters
    ----------
    numerator
        (..., N, T) log-probs: old policy, or current where the sampler stands in for old.
    sampler_logp
        The same tokens under the sampler.
    mask
        (..., N, T) multiplicities.
    """
    log_ratio = keep_valid(numerator.detach() - sampler_logp.detach(), mask=mask)
    raw = _ratio(log_ratio, mask=mask, level=config.level, bound=config.log_ratio_clamp)
    too_high = raw > (torch.inf if config.upper is None else config.upper)
    too_low = raw < (-torch.inf if config.lower is None else config.lower)
    counted = mask != 0 if config.level == "token" else (mask != 0).any(dim=-1, keepdim=True)
    outside = (too_high | too_low) & counted
    if config.action == "reject":
        outside = outside.any(dim=-1, keepdim=True)
    keep = torch.ones_like(outside) if config.action == "truncate" else ~outside
    if config.action == "truncate":
        weight = raw.clamp(min=config.lower or 0.0, max=config.upper)
    elif config.action == "band":
        weight = raw
    else:
        weight = torch.ones_like(raw)
    keep = keep & _not_rejected(log_ratio, mask=mask, config=config)
    weight = torch.where(keep, weight, 0.0)
    if config.normalise:
        mean = token_mean(weight.expand(log_ratio.shape), mask=mask * keep)
        weight = weight * inverse(mean)[..., None, None]
    return Correction(log_ratio, weight, keep, outside)


def _ratio(log_ratio: Tensor, *, mask: Tensor, level: str, bound: float | None) -> Tensor:
    if level == "none":
        return torch.ones_like(log_ratio[..., :1])
    if level != "token":
        total = (log_ratio * mask).sum(dim=-1, keepdim=True)
        count = inverse(mask.sum(dim=-1, keepdim=True)) if level == "geometric" else 1.0
        log_ratio = total * count
    return (log_ratio if bound is None else log_ratio.clamp(-bound, bound)).exp()


def _not_rejected(log_ratio: Tensor, *, mask: Tensor, config: SamplerCorrection) -> Tensor:
    rule = config.rejection
    if rule is None:
        return torch.ones_like(log_ratio[..., :1], dtype=torch.bool)
    ratio = _ratio(log_ratio, mask=mask, level=rule.level, bound=config.log_ratio_clamp)
    outside = (ratio < rule.lower) | (ratio > rule.upper)
    counted = mask != 0 if rule.level == "token" else (mask != 0).any(dim=-1, keepdim=True)
    return ~(outside & counted).any(dim=-1, keepdim=True)
