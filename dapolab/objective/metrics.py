"""What an update tells about itself; every metric is a tensor over the replica axes.

Shares are of all tokens of the update, multiplicities counted, and 0 for an empty update. Names:

``clip/upper_share``   A > 0 and r above its bound: the gradient is gone upwards
``clip/lower_share``   A < 0 and r below its bound (often forgotten: verl#972 counts another)
``clip/dual_share``    A < 0 and r above the dual-clip constant
``clip/active_tokens`` tokens whose surrogate has a gradient: A ≠ 0, not clipped, weight not 0
``clip/covariance_share`` tokens chosen by clip_cov or kl_cov
``ratio/…``            mean, min, max and quantiles of π_current/π_old
``kl/old_k1, k3``      KL(old‖current); ``kl/ref_k1, k3`` KL(current‖reference)
``entropy/token_mean`` a token mean whatever the loss's aggregation
``sampler/…``          k1, k3 of KL(sampler‖trainer), max_abs_log_ratio, ess_share of the weights,
                       truncated_share, rejected_share
``update/…``           tokens, responses with tokens, share of tokens with A = 0, is_empty
"""

import math

import torch
from torch import Tensor

from dapolab.objective.batch import Batch
from dapolab.objective.clipping import (
    Tokens,
    cispo_bounds,
    dppo_keep,
    gmpo_bounds,
    ratio_bounds,
    sequence_log_ratio,
)
from dapolab.objective.masking import inverse, keep_valid
from dapolab.objective.sampler import Correction
from dapolab.scenario import (
    CispoClip,
    Clip,
    ClipCov,
    DppoKlClip,
    DppoTvClip,
    GmpoClip,
    GspoClip,
    LuspoClip,
    PpoClip,
)

QUANTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99, "p999": 0.999}
# Quantiles come from at most so many tokens of a replica: ±0.0003 at p999, no sort of the update.
MAX_SAMPLED_TOKENS = 8192


class _Shares:
    """Sums over the tokens of one update, as shares of it."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.n_tokens = mask.sum(dim=(-2, -1))
        self.per_token = inverse(self.n_tokens)
        self.per_row = mask.sum(dim=-1, keepdim=True)

    def count(self, where: Tensor) -> Tensor:
        """Count tokens; ``where`` is (..., N, T), or (..., N, 1) for whole responses."""
        if where.shape[-1] == 1 != self.mask.shape[-1]:
            return self.per_row.masked_fill(~where, 0.0).sum(dim=(-2, -1))
        return (self.mask * where).sum(dim=(-2, -1))

    def of(self, where: Tensor) -> Tensor:
        return self.count(where) * self.per_token

    def mean(self, clean: Tensor) -> Tensor:
        return (clean * self.mask).sum(dim=(-2, -1)) * self.per_token


@torch.no_grad()
def update_metrics(
    batch: Batch,
    tokens: Tokens,
    *,
    clip: Clip,
    correction: Correction | None = None,
    chosen: Tensor | None = None,
) -> dict[str, Tensor]:
    """Measure one update; see the module for the names.

    Parameters
    ----------
    batch
        The update, for the policies and the entropy that it holds: what is absent is not measured.
    tokens
        Its clean tokens, as the surrogate saw them.
    clip
        The surrogate, for the bounds that count as clipped.
    correction
        The sampler's weights, where there are any.
    chosen
        Tokens that a covariance rule chose.
    """
    shares = _Shares(tokens.mask)
    out = {
        "update/tokens": shares.n_tokens,
        "update/responses": (shares.per_row > 0).sum(dim=(-2, -1)),
        "update/is_empty": shares.n_tokens == 0,
        "update/zero_advantage_share": shares.of(tokens.advantages == 0),
    }
    out |= _clip_metrics(tokens, clip, shares, correction, chosen)
    if tokens.log_ratio is not None:
        out |= _ratio_metrics(tokens.log_ratio, shares)
    if batch.ref_logp is not None:
        d = keep_valid(batch.logp - batch.ref_logp, mask=tokens.mask)
        out["kl/ref_k1"] = shares.mean(d)
        out["kl/ref_k3"] = shares.mean(torch.expm1(-d)) + out["kl/ref_k1"]
    if batch.entropy is not None:
        out["entropy/token_mean"] = shares.mean(keep_valid(batch.entropy, mask=tokens.mask))
    out |= _sampler_metrics(batch, shares, correction)
    replicas = batch.logp.shape[:-2]
    return {name: value.expand(replicas) for name, value in out.items()}


# ---------------------------------------------------------------------------- clipping


def _clip_metrics(
    tokens: Tokens,
    clip: Clip,
    shares: _Shares,
    correction: Correction | None,
    chosen: Tensor | None,
) -> dict[str, Tensor]:
    upper, lower, dual = clip_counts(tokens, clip)
    stopped = upper | lower | dual
    if isinstance(clip, CispoClip):
        stopped = torch.zeros_like(stopped)  # CISPO bounds the weight and keeps the gradient
    if isinstance(clip, ClipCov) and chosen is not None:
        stopped = stopped | chosen
    active = ~stopped & (tokens.advantages != 0)
    if correction is not None:
        active = active & (correction.weight != 0)
    out = {
        "clip/upper_share": shares.of(upper),
        "clip/lower_share": shares.of(lower),
        "clip/dual_share": shares.of(dual),
        "clip/active_tokens": shares.count(active),
    }
    if chosen is not None:
        out["clip/covariance_share"] = shares.of(chosen)
    return out


def clip_counts(tokens: Tokens, clip: Clip) -> tuple[Tensor, Tensor, Tensor]:
    """Say which tokens are clipped above, below, and by the dual clip; strictly beyond a bound.

    For CISPO above and below are those of the weight, whatever the sign of A; for DPPO they are the
    masked tokens with A > 0 and A ≤ 0, and the cap counts as dual (verl core_algos.py:1379-1457).
    Surrogates without a bound give False everywhere.
    """
    A = tokens.advantages
    positive, negative = A > 0, A < 0
    match clip:
        case PpoClip() | ClipCov() | GspoClip() | LuspoClip():
            if isinstance(clip, (GspoClip, LuspoClip)):
                log_ratio = sequence_log_ratio(tokens, clip)
            else:
                log_ratio = tokens.ratio_of(clip)
            bottom, top = (bound.log() for bound in ratio_bounds(clip, A))
            above = log_ratio > top
            return above & positive, (log_ratio < bottom) & negative, above & negative
        case GmpoClip():
            bottom, top = gmpo_bounds(clip, A)
            log_ratio = tokens.ratio_of(clip)
            upper = (log_ratio > top) & positive
            return upper, (log_ratio < bottom) & negative, torch.zeros_like(upper)
        case CispoClip():
            ratio = tokens.ratio_of(clip).exp()
            low, high = cispo_bounds(clip)
            valid = tokens.mask != 0
            upper = (ratio > high) & valid
            return upper, (ratio < low) & valid, torch.zeros_like(upper)
        case DppoTvClip() | DppoKlClip():
            out = ~dppo_keep(tokens, clip)
            cap = math.inf if clip.cap is None else clip.cap
            return out & positive, out & ~positive, ~out & (tokens.ratio_of(clip).exp() > cap)
        case _:
            none = torch.zeros_like(positive)
            return none, none, none


# ---------------------------------------------------------------------------- ratios


def _ratio_metrics(log_ratio: Tensor, shares: _Shares) -> dict[str, Tensor]:
    excess = shares.mean(torch.expm1(log_ratio))
    k1 = -shares.mean(log_ratio)
    valid = shares.mask != 0
    lowest = log_ratio.masked_fill(~valid, math.inf).amin(dim=(-2, -1))
    highest = log_ratio.masked_fill(~valid, -math.inf).amax(dim=(-2, -1))
    empty = shares.n_tokens == 0
    out = {
        "ratio/mean": excess + 1.0,
        "ratio/min": lowest.masked_fill(empty, 0.0).exp(),
        "ratio/max": highest.masked_fill(empty, 0.0).exp(),
        "kl/old_k1": k1,
        "kl/old_k3": excess + k1,
    }
    tails = sampled_quantiles(log_ratio, mask=shares.mask, levels=tuple(QUANTILES.values()))
    for name, tail in zip(QUANTILES, tails.unbind(-1), strict=True):
        out[f"ratio/{name}"] = tail.exp()
    return out


def sampled_quantiles(values: Tensor, *, mask: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Return weighted quantiles over tokens, from a sample of fixed stride; (..., len(levels)).

    The quantile is the smallest value at which the cumulated weight reaches its share (exact for up
    to ``MAX_SAMPLED_TOKENS`` token places); 0 where the sample holds no token. The stride is odd so
    that it visits all columns of widths that are powers of two.
    """
    flat = values.flatten(-2)
    weights = mask.expand(values.shape).flatten(-2)
    stride = -(-flat.shape[-1] // MAX_SAMPLED_TOKENS)
    stride += 1 - stride % 2
    flat, weights = flat[..., ::stride], weights[..., ::stride]
    ordered, order = flat.masked_fill(weights == 0, math.inf).sort(dim=-1)
    cumulated = weights.gather(-1, order).cumsum(dim=-1)
    total = cumulated[..., -1:]
    wanted = total * torch.tensor(levels, dtype=total.dtype, device=total.device)
    # A cumulated share may miss its level by rounding alone.
    wanted = wanted * (1.0 - 4.0 * torch.finfo(total.dtype).eps)
    place = torch.searchsorted(cumulated, wanted.contiguous()).clamp(max=flat.shape[-1] - 1)
    found = ordered.gather(-1, place)
    return found.masked_fill(total == 0, 0.0)


def _sampler_metrics(
    batch: Batch, shares: _Shares, correction: Correction | None
) -> dict[str, Tensor]:
    if correction is not None:
        d, weight = correction.log_ratio, correction.weight
    elif batch.sampler_logp is not None and batch.old_logp is not None:
        d = keep_valid(batch.old_logp - batch.sampler_logp, mask=shares.mask)
        weight = d.exp()
    else:
        return {}
    d = keep_valid(d, mask=shares.mask)
    weight = weight.expand(d.shape)
    mean_d = shares.mean(d)
    out = {
        "sampler/k1": -mean_d,
        "sampler/k3": shares.mean(torch.expm1(d)) - mean_d,
        "sampler/max_abs_log_ratio": d.abs().amax(dim=(-2, -1)),
        "sampler/ess_share": shares.mean(weight).square() * inverse(shares.mean(weight.square())),
    }
    if correction is not None:
        out["sampler/truncated_share"] = shares.of(correction.bounded)
        out["sampler/rejected_share"] = shares.of(~correction.keep)
    return out


def present_mean(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of what is not NaN and how many are not; NaN only where all are missing.

    A reward that some tasks do not have must not make the mean of the others missing (field case
    B28; TRL#4501). Over the last axis.
    """
    n = (~values.isnan()).sum(dim=-1)
    return values.nanmean(dim=-1), n
