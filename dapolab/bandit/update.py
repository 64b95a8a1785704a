"""The gradient of one optimizer update: the objective's weights through the policy's slope."""

from dataclasses import replace

import torch
from torch import Tensor

from dapolab.bandit.answers import Answers, Bandit
from dapolab.bandit.rollout import Rollout
from dapolab.bandit.settings import Mode
from dapolab.objective import Batch, Structure, gradient_weights, policy_loss, row_scales
from dapolab.objective.covariance import Generators

# Scales in which a response or a group counts whether or not it has tokens, by default.
_COUNT_ROWS = ("seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


def update_batch(
    bandit: Bandit, theta: Tensor, rollout: Rollout, *, rows: Tensor | None, entropy: bool = False
) -> tuple[Answers, Batch]:
    """Return the answers of an update and their batch under the policy ``theta`` (R, D)."""
    answers = rollout.answers if rows is None else rollout.answers.rows(rows)
    batch = Batch(
        logp=rollout.old_logp,
        mask=rollout.mask,
        advantages=rollout.signal.advantages,
        old_logp=rollout.old_logp,
        sampler_logp=rollout.sampler_logp,
        ref_logp=rollout.ref_logp,
        group=rollout.group,
        full_mask=rollout.signal.full_mask,
    )
    if rows is not None:
        batch = batch.rows(rows)
    token_entropy = bandit.token_entropy(theta, answers) if entropy else None
    return answers, replace(batch, logp=bandit.logp(theta, answers), entropy=token_entropy)


def loss_gradient(
    bandit: Bandit,
    theta: Tensor,
    rollout: Rollout,
    mode: Mode,
    *,
    rows: Tensor | None = None,
    generator: Generators | None = None,
    automatic: bool = False,
) -> Tensor:
    """Return ∂loss/∂θ, (R, D).

    The objective's ``gradient_weights`` times ∂(log π)/∂θ; an entropy bonus, whose gradient no
    log-prob carries, needs automatic differentiation, which ``automatic`` asks for elsewhere too.
    """
    objective = mode.objective
    scales = _scales(rollout, mode, rows)
    structure = _structure(rollout, mode, rows)
    if not automatic and not objective.entropy_coef:
        answers, batch = update_batch(bandit, theta, rollout, rows=rows)
        weights = gradient_weights(
            batch, objective, structure=structure, scales=scales, generator=generator
        )
        return bandit.pull_back(theta, answers, weights)
    leaf = theta.detach().requires_grad_()
    _, batch = update_batch(bandit, leaf, rollout, rows=rows, entropy=True)
    loss = policy_loss(
        batch,
        objective,
        structure=structure,
        scales=scales,
        generator=generator,
        metrics=False,
    )
    # Replicas share no parameter, so the gradient of the sum holds each replica's own.
    (gradient,) = torch.autograd.grad(loss.value.sum(), leaf)
    return gradient


@torch.no_grad()
def update_metrics(
    bandit: Bandit,
    theta: Tensor,
    rollout: Rollout,
    mode: Mode,
    *,
    rows: Tensor | None,
    generator: Generators | None = None,
) -> dict[str, Tensor]:
    """Return the objective's metrics of an update, each (R,)."""
    _, batch = update_batch(bandit, theta, rollout, rows=rows, entropy=True)
    return policy_loss(
        batch,
        mode.objective,
        structure=_structure(rollout, mode, rows),
        scales=_scales(rollout, mode, rows),
        generator=generator,
    ).metrics


def _structure(rollout: Rollout, mode: Mode, rows: Tensor | None) -> Structure | None:
    n_rows = rollout.group.shape[0] if rows is None else rows.shape[0]
    micro = mode.training.micro_rows
    return None if micro is None else Structure.split(n_rows, micro_rows=micro)


def _scales(rollout: Rollout, mode: Mode, rows: Tensor | None) -> Tensor | None:
    """Return token weights where a filter left slots empty: the batch is smaller, not diluted.

    A collector that ran out of candidates trains on the groups that it has; their answers alone
    are in the denominators. Absent where every slot is filled by construction.
    """
    aggregation = mode.objective.aggregation
    if mode.training.filter == "none" or mode.objective.sampler.rejection:
        return None
    counts_all = getattr(aggregation, "empty_rows", "") == "in" and aggregation.kind in _COUNT_ROWS
    counts_all |= getattr(aggregation, "empty_groups", "") == "in"
    if not counts_all:
        return None
    mask, full, group = rollout.mask, rollout.signal.full_mask, rollout.group
    filled = rollout.filled
    if rows is not None:
        mask, full, group = mask[..., rows, :], full[..., rows, :], group[rows]
        filled = filled[..., rows]
    scales = row_scales(
        mask,
        aggregation,
        group=group,
        structure=_structure(rollout, mode, rows),
        full_mask=full,
    )
    n_filled = filled.to(scales).sum(dim=-1, keepdim=True).clamp(min=1.0)
    return scales * (filled.shape[-1] / n_filled)
