"""Surrogates that weigh log π or gate it softly; none has a bound that the loss is held at."""

import math

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.tokens import Tokens, sequence_log_ratio
from dapolab.scenario import CispoClip, DppoKlClip, DppoTvClip, GpgClip, SapoClip, VespoClip

# DPPO's binary KL keeps its logarithms finite by this much (verl core_algos.py:1460-1542).
_KL_FLOOR = 1e-8
# log r at which SAPO's gate is 1 and flat to the last digit, yet exp still finite in float32.
_SATURATED = 80.0
# What TRL keeps the logarithms of VESPO's weights within (grpo_trainer.py:2972-3018, 1.16.0).
_VESPO_LOG_BOUNDS = (math.log(1e-8), 20.0)


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
    if isinstance(clip, CispoClip):
        return sequence_log_ratio(tokens, clip).detach().exp().clamp(*cispo_bounds(clip))
    log_w = (tokens.ratio_of(clip).detach() * tokens.mask).sum(dim=-1, keepdim=True)
    if tokens.sampler_log_weight is not None:
        log_w = log_w + tokens.sampler_log_weight
    if clip.log_weight_clamp:
        log_w = log_w.clamp(*_VESPO_LOG_BOUNDS)
    positive = tokens.advantages >= 0
    zero = tokens.advantages.new_zeros(())
    k = torch.where(positive, zero + clip.k_positive, zero + clip.k_negative)
    lam = torch.where(positive, zero + clip.lambda_positive, zero + clip.lambda_negative)
    return (lam + k * log_w - lam * log_w.exp()).exp()


def entering_weight(weight: Tensor, *, mask: Tensor, by_token: bool) -> Tensor:
    """Return the logarithm of a sampler's weights as VESPO's sequence weight takes it; (..., N, 1).

    A weight of 0 counts as 1e-8: the gate is then shut, and stays finite.
    """
    log_weight = weight.log().clamp(*_VESPO_LOG_BOUNDS)
    return (log_weight * mask).sum(dim=-1, keepdim=True) if by_token else log_weight


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
