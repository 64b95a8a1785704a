"""Correction for a sampler that is not the trainer's old policy.

The engine that samples computes other log-probs than the trainer does for the same weights, and may
hold older weights; the ratio old/sampler says by how much (verl rollout_corr_helper.py:565-657, TRL
vLLM importance sampling, OpenRLHF and NeMo RL tis | icepop | seq-mask-tis).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.objective.masking import inverse, keep_valid, row_mean, token_mean
from dapolab.scenario import Rejection, SamplerCorrection

# Keeps the logarithm of a weight of 0 finite (verl core_algos.py:1993-1998).
_POOLING_FLOOR = 1e-10
# Probabilities stay this far from 0 and 1, so that the logarithms of a binary KL are finite
# (OpenRLHF 0.11.2 models/loss.py:219-226).
_RAREST = 1e-6


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
    weight = torch.where(keep, weight, 0.0)
    if config.normalise in ("tokens", "responses"):
        weight = weight * inverse(_mean_weight(weight, mask=mask, over=config.normalise))
    if config.pooling == "geometric":
        log_weight = keep_valid((weight + _POOLING_FLOOR).log().expand(mask.shape), mask=mask)
        weight = row_mean(log_weight, mask=mask).exp()
    # verl weighs before it rejects: what goes still counts in its mean, not in that of the kept.
    stays = _not_rejected(log_ratio, sampler_logp=sampler_logp, mask=mask, config=config)
    weight, keep = torch.where(stays, weight, 0.0), keep & stays
    if config.normalise == "kept":
        weight = weight * inverse(_mean_weight(weight, mask=mask * keep, over="tokens"))
    return Correction(log_ratio, weight, keep, outside)


def _ratio(log_ratio: Tensor, *, mask: Tensor, level: str, bound: float | None) -> Tensor:
    if level == "none":
        return torch.ones_like(log_ratio[..., :1])
    if level != "token":
        total = (log_ratio * mask).sum(dim=-1, keepdim=True)
        count = inverse(mask.sum(dim=-1, keepdim=True)) if level == "geometric" else 1.0
        log_ratio = total * count
    return (log_ratio if bound is None else log_ratio.clamp(-bound, bound)).exp()


def _mean_weight(weight: Tensor, *, mask: Tensor, over: str) -> Tensor:
    """Return the mean that the weights are divided by (verl rollout_corr_helper.py:628-651)."""
    weight = weight.expand(mask.shape)
    if over == "responses":
        weight = row_mean(weight, mask=mask)
        mask = (mask != 0).any(dim=-1, keepdim=True).to(mask.dtype)
    return token_mean(weight, mask=mask)[..., None, None]


# ---------------------------------------------------------------------------- rejection


def _not_rejected(
    log_ratio: Tensor, *, sampler_logp: Tensor, mask: Tensor, config: SamplerCorrection
) -> Tensor:
    """Return what every rule lets through; (..., N, 1), or (..., N, T) where one is of tokens."""
    keep = torch.ones_like(log_ratio[..., :1], dtype=torch.bool)
    for rule in config.rejection:
        if rule.estimator in ("tv", "binary_kl"):
            estimate = _divergence(log_ratio, sampler_logp=sampler_logp, mask=mask, rule=rule)
            outside = _pooled(estimate, mask=mask, level=rule.level) > rule.upper
        else:
            outside = _beyond(log_ratio, mask=mask, rule=rule, bound=config.log_ratio_clamp)
        counted = mask != 0 if rule.level == "token" else (mask != 0).any(dim=-1, keepdim=True)
        outside = outside & counted
        keep = keep & ~(outside if rule.scope == "token" else outside.any(dim=-1, keepdim=True))
    return keep


def _beyond(log_ratio: Tensor, *, mask: Tensor, rule: Rejection, bound: float | None) -> Tensor:
    """Say where the statistic is out of bounds (verl rollout_corr_helper.py:197-413)."""
    if rule.estimator == "k1":
        ratio = _ratio(log_ratio, mask=mask, level=rule.level, bound=bound)
        return (ratio < rule.lower) | (ratio > rule.upper)
    d = log_ratio if bound is None else log_ratio.clamp(-bound, bound)
    estimate = 0.5 * d.square() if rule.estimator == "k2" else torch.expm1(d) - d
    return _pooled(estimate, mask=mask, level=rule.level) > rule.upper


def _divergence(
    log_ratio: Tensor, *, sampler_logp: Tensor, mask: Tensor, rule: Rejection
) -> Tensor:
    """Return the divergence of "this token or another"; (..., N, T)."""
    log_p = keep_valid(sampler_logp.detach(), mask=mask)
    p, q = (x.exp().clamp(_RAREST, 1.0 - _RAREST) for x in (log_p, log_p + log_ratio))
    if rule.estimator == "tv":
        return (p - q).abs()
    return p * (p / q).log() + (1.0 - p) * (torch.log1p(-p) - torch.log1p(-q))


def _pooled(estimate: Tensor, *, mask: Tensor, level: str) -> Tensor:
    """Return the statistic of a level: the token's, or the response's sum or mean."""
    if level == "sequence":
        return (estimate * mask).sum(dim=-1, keepdim=True)
    return row_mean(estimate, mask=mask) if level == "geometric" else estimate
