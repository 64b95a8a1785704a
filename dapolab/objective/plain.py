"""The objective on plain arrays: for those who ask what it does and hold no tensor."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dapolab.objective.advantages import advantages
from dapolab.objective.batch import Batch, Structure
from dapolab.objective.length import filter_truncated, shape_rewards
from dapolab.objective.loss import policy_loss
from dapolab.scenario import Advantage, Length, Objective

Floats = npt.NDArray[np.float64]


def token_pushes(
    n_tokens: Sequence[int],
    objective: Objective,
    *,
    advantages: Sequence[float],
    ratios: Sequence[float] | None = None,
    group: Sequence[int] | None = None,
    micro_rows: int | None = None,
    truncated: Sequence[bool] | None = None,
) -> Floats:
    """Return −∂loss/∂(log π) of one token of each response, by automatic differentiation; (N,).

    Parameters
    ----------
    n_tokens
        Length of each response, at least 1.
    advantages
        One a response.
    ratios
        π/π_old of all tokens of each response; absent: 1.
    group
        Prompt of each response; absent: one prompt.
    micro_rows
        Responses a micro-batch; absent: no split.
    truncated
        Responses that overlong filtering takes out of the loss; absent: none.
    """
    n = len(n_tokens)
    mask = torch.zeros((n, max(n_tokens)), dtype=torch.float64)
    for row, length in enumerate(n_tokens):
        mask[row, :length] = 1.0
    log_ratio = torch.tensor(ratios or [1.0] * n, dtype=torch.float64).log().unsqueeze(-1)
    logp = (log_ratio * mask - 1.0).requires_grad_()
    kept = mask if truncated is None else filter_truncated(mask, truncated=torch.tensor(truncated))
    batch = Batch(
        logp=logp,
        old_logp=torch.full_like(mask, -1.0),
        mask=kept,
        full_mask=mask,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        group=torch.tensor(group or [0] * n),
    )
    split = None if micro_rows is None else Structure.split(n, micro_rows=micro_rows)
    loss = policy_loss(batch, objective, structure=split, metrics=False)
    (slope,) = torch.autograd.grad(loss.value, logp)
    return np.asarray(-slope[:, 0].numpy(), dtype=np.float64)


def group_advantages(
    rewards: Sequence[float], config: Advantage, *, group: Sequence[int] | None = None
) -> Floats:
    """Return the advantage of each response, (N,); ``group`` absent: one prompt."""
    n = len(rewards)
    found = advantages(
        torch.tensor(rewards, dtype=torch.float64),
        config,
        group=torch.tensor(group or [0] * n),
        mask=torch.ones((n, 1), dtype=torch.float64),
    )
    return np.asarray(found.value[:, 0].numpy(), dtype=np.float64)


def shaped_rewards(
    rewards: Sequence[float], length: Length, *, n_tokens: Sequence[float]
) -> Floats:
    """Return rewards after the length rules, (N,); nothing is truncated."""
    found = shape_rewards(
        torch.tensor(rewards, dtype=torch.float64),
        lengths=torch.tensor(n_tokens, dtype=torch.float64),
        truncated=None,
        config=length,
    )
    return np.asarray(found.numpy(), dtype=np.float64)
