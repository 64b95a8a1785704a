"""Rewards along the tokens of a response: placement, reward-to-go, GAE, whitening.

Tokens outside the mask are stepped over: what comes after them counts as the next token. A token of
any multiplicity is one step of discounting.
"""

import torch
from torch import Tensor

from dapolab.objective.masking import inverse, keep_valid, token_mean
from dapolab.scenario import GaeAdvantage

# Floor of a variance under a root (verl torch_functional.py:329-346).
_WHITEN_FLOOR = 1e-8


def token_rewards(rewards: Tensor, *, mask: Tensor, penalty: Tensor | None) -> Tensor:
    """Put each response's reward on its last token and add the per-token penalty; (..., N, T).

    A response without tokens has nowhere to put its reward and none to learn from it.
    """
    valid = mask != 0
    n_after = valid.flip(-1).cumsum(dim=-1).flip(-1)
    last = valid & (n_after == 1)
    placed = torch.where(last, rewards.unsqueeze(-1), 0.0)
    return placed if penalty is None else placed + keep_valid(penalty, mask=mask)


def returns_to_go(per_token: Tensor, *, mask: Tensor, gamma: float) -> Tensor:
    """Return G_t = r_t + γ·G of the next token, 0 outside the mask; (..., N, T)."""
    per_token = keep_valid(per_token, mask=mask)
    if gamma == 1.0:
        return keep_valid(per_token.flip(-1).cumsum(dim=-1).flip(-1), mask=mask)
    valid = mask != 0
    ahead = torch.zeros_like(per_token[..., 0])
    out = []
    for t in range(per_token.shape[-1] - 1, -1, -1):
        ahead = torch.where(valid[..., t], per_token[..., t] + gamma * ahead, ahead)
        out.append(torch.where(valid[..., t], ahead, 0.0))
    return torch.stack(out[::-1], dim=-1)


def generalised_advantages(
    per_token: Tensor, config: GaeAdvantage, *, values: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return advantages and value targets; both (..., N, T) (GAE Eq. 16; VAPO Eq. 7-9)."""
    values = keep_valid(values, mask=mask).detach()
    lengths = mask.sum(dim=-1)
    lam = torch.full_like(lengths, config.lam)
    if config.length_alpha is not None:
        lam = (1.0 - inverse(config.length_alpha * lengths)).clamp(min=0.0)
    advantage = _gae(per_token, values, mask, config.gamma, lam)
    if config.critic_lam is None:
        targets = advantage + values
    else:
        critic = torch.full_like(lengths, config.critic_lam)
        targets = _gae(per_token, values, mask, config.gamma, critic) + values
    return (whiten(advantage, mask=mask) if config.whiten else advantage), targets


def _gae(per_token: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: Tensor) -> Tensor:
    valid = mask != 0
    next_value = torch.zeros_like(values[..., 0])
    ahead = torch.zeros_like(next_value)
    out = []
    for t in range(values.shape[-1] - 1, -1, -1):
        here = valid[..., t]
        delta = per_token[..., t] + gamma * next_value - values[..., t]
        ahead = torch.where(here, delta + gamma * lam * ahead, ahead)
        next_value = torch.where(here, values[..., t], next_value)
        out.append(torch.where(here, ahead, 0.0))
    return torch.stack(out[::-1], dim=-1)


def whiten(values: Tensor, *, mask: Tensor) -> Tensor:
    """Centre over the tokens of the update and divide by their std (ddof 1); 0 outside the mask."""
    values = keep_valid(values, mask=mask)
    n = mask.sum(dim=(-2, -1))[..., None, None]
    mean = token_mean(values, mask=mask)[..., None, None]
    squares = (keep_valid(values - mean, mask=mask).square() * mask).sum(dim=(-2, -1))
    variance = squares[..., None, None] * inverse(n - 1)
    return keep_valid((values - mean) * torch.rsqrt(variance + _WHITEN_FLOOR), mask=mask)


def whiten_rows(values: Tensor, *, counts: Tensor, eps: float) -> Tensor:
    """Centre over responses and divide by their std (ddof 1) + eps; (..., N).

    (TRL grpo_trainer.py 1.16.0, normalize_then_sum.)
    """
    n = counts.sum(dim=-1, keepdim=True)
    mean = (values * counts).sum(dim=-1, keepdim=True) * inverse(n)
    centred = torch.where(counts > 0, values - mean, 0.0)
    variance = (centred.square() * counts).sum(dim=-1, keepdim=True) * inverse(n - 1)
    return centred * inverse(variance.sqrt() + eps)
