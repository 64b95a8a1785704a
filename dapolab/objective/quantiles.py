"""Quantiles over the tokens of an update, each as often as its multiplicity says."""

import math

import torch
from torch import Tensor

# Quantiles come from at most so many tokens of a replica: ±0.0003 at p999, no sort of the update.
MAX_SAMPLED_TOKENS = 8192


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


def weighted_quantile(values: Tensor, *, mask: Tensor, level: float) -> Tensor:
    """Return the quantile over all tokens of an update, each as often as it counts; (...).

    Interpolated between neighbours as numpy and torch do by default: place level·(n − 1) from 0 in
    the sorted list of n tokens. 0 for an empty update.
    """
    flat, weights = values.flatten(-2), mask.expand(values.shape).flatten(-2)
    ordered, order = flat.masked_fill(weights == 0, math.inf).sort(dim=-1)
    cumulated = weights.gather(-1, order).cumsum(dim=-1).contiguous()
    place = level * (cumulated[..., -1:] - 1.0).clamp(min=0.0)
    ends = [
        ordered.gather(-1, _token_at(cumulated, whole)) for whole in (place.floor(), place.ceil())
    ]
    found = torch.lerp(ends[0], ends[1], place - place.floor())
    return torch.where(cumulated[..., -1:] > 0, found, 0.0).squeeze(-1)


def _token_at(cumulated: Tensor, place: Tensor) -> Tensor:
    """Return the index of the entry that holds the token at a place counted from 0."""
    index = torch.searchsorted(cumulated, place.contiguous(), right=True)
    return index.clamp(max=cumulated.shape[-1] - 1)
