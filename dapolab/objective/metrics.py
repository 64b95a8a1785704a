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

import torch
from torch import Tensor

from dapolab.objective.activity import active_tokens, clip_counts, is_plain, stopping_sides
from dapolab.objective.batch import Batch
from dapolab.objective.masking import inverse
from dapolab.objective.quantiles import sampled_quantiles
from dapolab.objective.sampler import Correction
from dapolab.objective.tokens import Tokens
from dapolab.scenario import Clip

QUANTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99, "p999": 0.999}


class _Shares:
    """Sums over the tokens of one update, as shares of it."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.outside = mask == 0
        self.per_row = mask.sum(dim=-1, keepdim=True)
        self.n_tokens = self.per_row.sum(dim=(-2, -1))
        self.per_token = inverse(self.n_tokens)

    def total(self, values: Tensor) -> Tensor:
        """Sum clean values (or count what is True), one a token or one a response."""
        one_a_row = values.shape[-1] == 1 != self.mask.shape[-1]
        return (values * (self.per_row if one_a_row else self.mask)).sum(dim=(-2, -1))

    def mean(self, values: Tensor) -> Tensor:
        return self.total(values) * self.per_token

    def mean_in_place(self, own: Tensor) -> Tensor:
        """Return the mean of an array that nobody needs afterwards: half the memory traffic."""
        larger = own.dim() > self.mask.dim() and own.shape[-1] == self.mask.shape[-1]
        if own.shape != self.mask.shape and not larger:
            return self.mean(own)
        return own.mul_(self.mask).sum(dim=(-2, -1)) * self.per_token

    def clean(self, values: Tensor) -> Tensor:
        return values.masked_fill(self.outside, 0.0)


@torch.no_grad()
def update_metrics(
    batch: Batch,
    tokens: Tokens,
    *,
    clip: Clip,
    correction: Correction | None = None,
    weight: Tensor | None = None,
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
    weight
        All that multiplies the surrogate; a token of weight 0 is not active.
    chosen
        Tokens that a covariance rule chose.
    """
    shares = _Shares(tokens.mask)
    out = {
        "update/tokens": shares.n_tokens,
        "update/responses": (shares.per_row > 0).sum(dim=(-2, -1)),
        "update/is_empty": shares.n_tokens == 0,
        "update/zero_advantage_share": shares.mean(tokens.advantages == 0),
    }
    out |= _clip_metrics(tokens, clip, shares, weight, chosen)
    if tokens.log_ratio is not None:
        out |= _ratio_metrics(tokens.log_ratio, shares)
    if batch.ref_logp is not None:
        d = shares.clean(batch.logp - batch.ref_logp)
        out["kl/ref_k1"] = shares.mean(d)
        out["kl/ref_k3"] = shares.mean_in_place((-d).exp_().sub_(1.0)) + out["kl/ref_k1"]
    if batch.entropy is not None:
        out["entropy/token_mean"] = shares.mean_in_place(shares.clean(batch.entropy))
    out |= _sampler_metrics(batch, shares, correction)
    replicas = batch.logp.shape[:-2]
    return {name: value.expand(replicas) for name, value in out.items()}


# ---------------------------------------------------------------------------- clipping


def _clip_metrics(
    tokens: Tokens,
    clip: Clip,
    shares: _Shares,
    weight: Tensor | None,
    chosen: Tensor | None,
) -> dict[str, Tensor]:
    sides = clip_counts(tokens, clip)
    counts = [shares.total(side) for side in sides]
    out = {
        f"clip/{name}_share": count * shares.per_token
        for name, count in zip(("upper", "lower", "dual"), counts, strict=True)
    }
    if chosen is not None:
        out["clip/covariance_share"] = shares.mean(chosen)
    if weight is None and is_plain(tokens, clip):
        # The sides exclude each other and A = 0, so that counts will do.
        stopped = sum(counts[: len(stopping_sides(clip, sides))])
        out["clip/active_tokens"] = shares.total(tokens.advantages != 0) - stopped
        return out
    active = active_tokens(tokens, clip, sides=sides, weight=weight, chosen=chosen)
    out["clip/active_tokens"] = shares.total(active)
    return out


# ---------------------------------------------------------------------------- ratios


def _ratio_metrics(log_ratio: Tensor, shares: _Shares) -> dict[str, Tensor]:
    mean = shares.mean(log_ratio)
    excess = shares.mean_in_place(log_ratio.exp().sub_(1.0))
    # The mean lies between the extremes, so it may stand where there is no token.
    inside = torch.where(shares.outside, mean[..., None, None], log_ratio)
    out = {
        "ratio/mean": excess + 1.0,
        "ratio/min": inside.amin(dim=(-2, -1)).exp(),
        "ratio/max": inside.amax(dim=(-2, -1)).exp(),
        "kl/old_k1": -mean,
        "kl/old_k3": excess - mean,
    }
    tails = sampled_quantiles(log_ratio, mask=shares.mask, levels=tuple(QUANTILES.values()))
    for name, tail in zip(QUANTILES, tails.unbind(-1), strict=True):
        out[f"ratio/{name}"] = tail.exp()
    return out


def _sampler_metrics(
    batch: Batch, shares: _Shares, correction: Correction | None
) -> dict[str, Tensor]:
    if correction is not None:
        d = shares.clean(correction.log_ratio)
        weight = correction.weight
    elif batch.sampler_logp is not None and batch.old_logp is not None:
        d = shares.clean(batch.old_logp - batch.sampler_logp)
        weight = d.exp()
    else:
        return {}
    mean_d, mean_weight = shares.mean(d), shares.mean(weight)
    excess = shares.mean_in_place(d.exp().sub_(1.0))
    mean_square = shares.mean_in_place(weight * weight)
    smallest, largest = d.amin(dim=(-2, -1)), d.amax(dim=(-2, -1))
    out = {
        "sampler/k1": -mean_d,
        "sampler/k3": excess - mean_d,
        "sampler/max_abs_log_ratio": torch.maximum(-smallest, largest),
        "sampler/ess_share": mean_weight.square() * inverse(mean_square),
    }
    if correction is not None:
        out["sampler/truncated_share"] = shares.mean(correction.bounded)
        out["sampler/rejected_share"] = shares.mean(~correction.keep)
    return out


def present_mean(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of what is not NaN and how many are not; NaN only where all are missing.

    A reward that some tasks do not have must not make the mean of the others missing (field case
    B28; TRL#4501). Over the last axis.
    """
    n = (~values.isnan()).sum(dim=-1)
    return values.nanmean(dim=-1), n
