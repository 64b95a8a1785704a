"""From raw rewards to what the loss reads, in one order: shaping, KL, advantage, mask."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.advantages import Advantages, Status, advantages
from dapolab.objective.batch import Batch
from dapolab.objective.kl import kl_estimate
from dapolab.objective.length import filter_truncated, lengths_of, shape_rewards
from dapolab.objective.masking import keep_valid
from dapolab.objective.token_baseline import TokenEnergy
from dapolab.scenario import Kl, Length, Objective


@dataclass(frozen=True)
class Signal:
    """What ``learning_signal`` found; its first three fields go into a Batch."""

    advantages: Tensor
    """(..., N, 1) or (..., N, T)."""
    mask: Tensor
    """The mask of the loss: without filtered, excluded and (where asked) degenerate responses."""
    full_mask: Tensor
    """The mask as it came, for denominators that count what was filtered."""
    rewards: Tensor
    """(..., N) rewards after shaping, before any KL."""
    details: Advantages
    truncated_share: Tensor
    """(...) truncated responses over all."""

    def apply(self, batch: Batch) -> Batch:
        """Return the batch with this signal's advantages and masks."""
        return replace(batch, advantages=self.advantages, mask=self.mask, full_mask=self.full_mask)


def learning_signal(
    rewards: Tensor,
    config: Objective,
    *,
    group: Tensor,
    mask: Tensor,
    status: Tensor | None = None,
    old_logp: Tensor | None = None,
    ref_logp: Tensor | None = None,
    greedy: Tensor | None = None,
    values: Tensor | None = None,
    energy: TokenEnergy | None = None,
) -> Signal:
    """Turn raw rewards into advantages and the mask of the loss.

    Parameters
    ----------
    rewards
        (..., N) raw rewards; (..., N, K) for ``gdpo``.
    config
        The objective: its length rules, its KL where that is in the reward, its advantage.
    group, mask, status, greedy, values, energy
        See ``advantages``; the status also says what was truncated.
    old_logp, ref_logp
        (..., N, T), for a KL in the reward: it is that of the policy which made the responses.

    Raises
    ------
    ConfigError
        If an input is needed and absent, or length rules meet several rewards (``gdpo``).
    """
    truncated = None if status is None else status == Status.TRUNCATED
    lengths = lengths_of(mask)
    several = config.advantage.kind == "gdpo"
    if several and config.length != Length(mask_truncated=config.length.mask_truncated):
        raise ConfigError("gdpo has several rewards; apply the length rule to the one it is for")
    shaped = rewards
    if not several:
        shaped = shape_rewards(rewards, lengths=lengths, truncated=truncated, config=config.length)
    details = advantages(
        shaped,
        config.advantage,
        group=group,
        mask=mask,
        status=status,
        token_penalty=_reward_kl(config.kl, old_logp, ref_logp, mask),
        greedy=greedy,
        values=values,
        energy=energy,
    )
    trained = torch.where(details.trained.unsqueeze(-1), mask, 0.0)
    if config.length.mask_truncated and truncated is not None:
        trained = filter_truncated(trained, truncated=truncated)
    if config.degenerate_groups == "out":
        trained = torch.where(details.constant.unsqueeze(-1), 0.0, trained)
    share = torch.zeros_like(lengths) if truncated is None else truncated.to(lengths.dtype)
    return Signal(
        details.value, trained, mask, shaped, details, share.expand(lengths.shape).mean(dim=-1)
    )


def _reward_kl(
    config: Kl | None, old_logp: Tensor | None, ref_logp: Tensor | None, mask: Tensor
) -> Tensor | None:
    """Return −β·kl of each token (verl ray_trainer.py:78-117)."""
    if config is None or config.place != "reward":
        return None
    if old_logp is None or ref_logp is None:
        raise ConfigError('kl.place = "reward" needs old_logp and ref_logp; pass both')
    log_ratio = keep_valid(old_logp - ref_logp, mask=mask)
    return -config.coefficient * kl_estimate(log_ratio, config)
