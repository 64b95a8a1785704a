"""What a response's length does to its reward and to the loss mask, on tensors.

The same rules on plain numbers are in ``dapolab.rules``; the two are compared by the tests.
"""

import torch
from torch import Tensor

from dapolab.scenario import Length, OverlongPenalty


def lengths_of(mask: Tensor) -> Tensor:
    """Count response tokens from the mask, multiplicities included; (..., N).

    Never from text and never from the padded width (field case B59; open-r1#567).
    """
    return mask.sum(dim=-1)


def overlong_penalty(lengths: Tensor, config: OverlongPenalty) -> Tensor:
    """Return the soft overlong punishment of each length (DAPO Eq. 13; trainers.md §14.3).

    With x = length − (cap − buffer): 0 for x ≤ 0, then −factor·x/buffer, at the cap −factor. Beyond
    the cap as ``beyond`` says; under ``zero_reward`` the penalty itself stays at −factor and
    ``shape_rewards`` sets the reward. A buffer of 0 is a step: −factor beyond the cap alone (TRL).
    """
    exceed = lengths - (config.cap_tokens - config.buffer_tokens)
    if config.buffer_tokens == 0:
        return torch.where(exceed > 0, -config.factor, torch.zeros_like(lengths))
    share = (exceed / config.buffer_tokens).clamp(min=0.0)
    return -config.factor * (share if config.beyond == "unclamped" else share.clamp(max=1.0))


def shape_rewards(
    rewards: Tensor, *, lengths: Tensor, truncated: Tensor | None, config: Length
) -> Tensor:
    """Return rewards after the length rules: first truncation, then the overlong penalty; (..., N).

    Parameters
    ----------
    rewards
        (..., N) raw rewards.
    lengths
        (..., N) tokens, from the mask before any filtering.
    truncated
        (..., N) bool, from the finish reason; None if nothing was truncated.
    """
    if truncated is not None and config.truncated_scale is not None:
        rewards = torch.where(truncated, rewards * config.truncated_scale, rewards)
    if truncated is not None and config.truncated_reward is not None:
        rewards = torch.where(truncated, config.truncated_reward, rewards)
    if config.penalty is None:
        return rewards
    shaped = rewards + overlong_penalty(lengths, config.penalty)
    if config.penalty.beyond == "zero_reward":
        return torch.where(lengths > config.penalty.cap_tokens, 0.0, shaped)
    return shaped


def filter_truncated(mask: Tensor, *, truncated: Tensor) -> Tensor:
    """Take truncated responses out of the loss (overlong filtering, DAPO §3.4); (..., N, T)."""
    return torch.where(truncated.unsqueeze(-1), torch.zeros_like(mask), mask)
