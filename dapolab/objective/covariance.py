"""Tokens chosen by the covariance of advantage and log-prob, over the whole update.

Few tokens of high covariance account for most of the loss of entropy (Cui et al. 2025, The Entropy
Mechanism, Eq. 10-12; verl core_algos.py:1743-1925).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.masking import token_mean
from dapolab.scenario import ClipCov, KlCov

if TYPE_CHECKING:
    from dapolab.objective.tokens import Tokens

Generators = torch.Generator | Sequence[torch.Generator]
"""One for all, or one a replica: then no replica's draws depend on who else is in the batch."""


def covariance(tokens: "Tokens") -> Tensor:
    """Return (A − mean A)·(log π − mean log π) of each token, −inf outside the mask."""
    mask = tokens.mask
    logp = tokens.logp.detach()
    A = tokens.advantages.expand(logp.shape)
    above_A = A - token_mean(A, mask=mask)[..., None, None]
    above_logp = logp - token_mean(logp, mask=mask)[..., None, None]
    return (above_A * above_logp).masked_fill(mask == 0, -torch.inf)


def random_covariance(
    tokens: "Tokens", clip: ClipCov, clipped: Tensor, generator: Generators | None
) -> Tensor:
    """Choose max(⌊share·tokens⌋, 1) of the unclipped tokens between the two bounds at random.

    Raises
    ------
    ConfigError
        Without a generator: a draw that cannot be repeated is no experiment. With one a replica,
        unless there are as many as replicas.
    """
    if generator is None:
        raise ConfigError('clip "clip_cov" draws tokens at random; pass generator')
    cov = covariance(tokens).masked_fill(clipped, -torch.inf)
    eligible = (cov > clip.cov_low) & (cov < clip.cov_high)
    draws = _draws(cov, generator)
    return _highest(draws.masked_fill(~eligible, -1.0), _quota(tokens.mask, clip.share)) & eligible


def _draws(like: Tensor, generator: Generators) -> Tensor:
    """Return uniform numbers of the shape of ``like``."""
    if isinstance(generator, torch.Generator):
        return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
    if like.dim() < 3 or len(generator) != like.shape[0]:
        raise ConfigError(
            f"{len(generator)} generators do not fit tokens of shape {tuple(like.shape)}: pass "
            "one, or one a replica"
        )
    own = [
        torch.rand(like.shape[1:], generator=g, dtype=like.dtype, device=like.device)
        for g in generator
    ]
    return torch.stack(own)


def highest_covariance(tokens: "Tokens", clip: KlCov) -> Tensor:
    """Choose the max(⌊share·tokens⌋, 1) tokens of highest covariance; the earlier one of a tie."""
    chosen = _highest(covariance(tokens), _quota(tokens.mask, clip.share))
    return chosen & (tokens.mask != 0)


def _quota(mask: Tensor, share: float) -> Tensor:
    return (mask.sum(dim=(-2, -1)) * share).floor().clamp(min=1)


def _highest(keys: Tensor, n_wanted: Tensor) -> Tensor:
    """Say which entries are among the n highest of their replica, without a loop over replicas."""
    flat = keys.flatten(-2)
    order = flat.argsort(dim=-1, descending=True, stable=True)
    place = torch.arange(flat.shape[-1], device=keys.device).expand(flat.shape)
    rank = torch.empty_like(order).scatter(-1, order, place)
    return (rank < n_wanted[..., None]).reshape(keys.shape)
