"""Sums over a mask of multiplicities that nothing outside the mask can reach."""

import torch
from torch import Tensor


def keep_valid(values: Tensor, *, mask: Tensor) -> Tensor:
    """Return the values, 0 where the mask is 0; NaN there reaches neither value nor gradient.

    A product with the mask would not do: 0·NaN is NaN, forwards and backwards.
    """
    return values.masked_fill(mask == 0, 0.0)


def inverse(count: Tensor) -> Tensor:
    """Return 1/count, and 0 where nothing was counted: an empty mean is 0, never NaN."""
    return torch.where(count > 0, 1.0 / count.clamp(min=torch.finfo(count.dtype).tiny), 0.0)


def token_sum(values: Tensor, *, mask: Tensor) -> Tensor:
    """Sum clean values over responses and tokens, multiplicities counted; (...)."""
    return (values * mask).sum(dim=(-2, -1))


def token_mean(values: Tensor, *, mask: Tensor) -> Tensor:
    """Mean of clean values over the tokens of an update; 0 where there is none; (...)."""
    return token_sum(values, mask=mask) * inverse(mask.sum(dim=(-2, -1)))


def row_mean(values: Tensor, *, mask: Tensor) -> Tensor:
    """Mean of clean values over the tokens of each response, 0 where it has none; (..., N, 1)."""
    total = (values * mask).sum(dim=-1, keepdim=True)
    return total * inverse(mask.sum(dim=-1, keepdim=True))
