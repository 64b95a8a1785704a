"""From rewards to advantages (verl core_algos.py:213-1121, trainers.md §14.4, theory.md C6).

A group without any spread has advantage exactly 0: the mean of n equal rewards need not equal them
once their sum is rounded, and a small ε would blow the difference up (verl.md §3: 16 rewards of 0.1
give −0.0074 in float32).
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.estimators import Members, apply_singletons, gdpo, group_advantage
from dapolab.objective.groups import Groups
from dapolab.objective.returns import (
    generalised_advantages,
    returns_to_go,
    token_rewards,
    whiten,
)
from dapolab.objective.token_baseline import TokenEnergy, optimal_token_advantage
from dapolab.scenario import (
    Advantage,
    GaeAdvantage,
    GdpoAdvantage,
    OptimalTokenBaselineAdvantage,
    ReinforcePpAdvantage,
    ReinforcePpBaselineAdvantage,
    RemaxAdvantage,
)


class Status(IntEnum):
    """How a response ended."""

    COMPLETED = 0
    TRUNCATED = 1
    ABORTED = 2
    REJECTED = 3


@dataclass(frozen=True)
class Advantages:
    """Advantages and what became of the members; see ``advantages``."""

    value: Tensor
    """(..., N, 1) where a response has one, else (..., N, T)."""
    trained: Tensor
    """(..., N) bool: False for members whose status takes them out."""
    constant: Tensor
    """(..., N) bool: the response's group has no spread, or is one response alone."""
    n_singletons: Tensor
    """(...) groups with a single counted member."""
    returns: Tensor | None = None
    """(..., N, T) targets of the value function, for ``gae``."""


def advantages(
    rewards: Tensor,
    config: Advantage,
    *,
    group: Tensor,
    mask: Tensor,
    status: Tensor | None = None,
    token_penalty: Tensor | None = None,
    greedy: Tensor | None = None,
    values: Tensor | None = None,
    energy: TokenEnergy | None = None,
) -> Advantages:
    """Turn rewards into advantages.

    Parameters
    ----------
    rewards
        (..., N) reward of each response, already shaped; (..., N, K) for ``gdpo``. Rewards of
        excluded members may be NaN.
    group
        (N,) int64 prompt ids, in any order, groups of any size.
    mask
        (..., N, T) multiplicities of the response's tokens.
    status
        (..., N) or (N,) ``Status`` of each response; absent: all completed.
    token_penalty
        (..., N, T) added to the rewards token by token, such as −β·KL (``kl_in_reward``); group
        estimators add its sum to the response's reward, as verl does.
    greedy
        (..., N) reward of the greedy response of the same prompt, for ``remax``.
    values
        (..., N, T) value estimates, for ``gae``.
    energy
        The policy at each token, for ``optimal_token_baseline``.

    Raises
    ------
    ConfigError
        If an input that the estimator needs is absent, or a group of one meets
        ``singletons = "error"``.
    """
    groups = Groups.by_id(group.to(rewards.device))
    counts, trained = _roles(rewards, config, status, keyed=isinstance(config, GdpoAdvantage))
    counts = counts.to(mask.dtype)
    if isinstance(config, (ReinforcePpAdvantage, RemaxAdvantage, GaeAdvantage)):
        per_token = token_rewards(
            torch.where(trained, rewards, 0.0), mask=mask, penalty=token_penalty
        )
        mask = torch.where(trained.unsqueeze(-1), mask, 0.0)
        value, returns = _by_token(per_token, config, mask=mask, greedy=greedy, values=values)
    elif isinstance(config, OptimalTokenBaselineAdvantage):
        counted = torch.where(counts > 0, rewards, 0.0)
        per_token = token_rewards(counted, mask=mask, penalty=token_penalty)
        returns = None
        value = optimal_token_advantage(
            per_token, config, groups=groups, counts=counts, mask=mask, energy=energy
        )
    else:
        value, returns = _by_group(rewards, config, groups, counts, mask, token_penalty), None
    scalar = rewards.sum(dim=-1) if isinstance(config, GdpoAdvantage) else rewards
    members = Members.of(scalar, groups=groups, counts=counts)
    single = groups.sum(counts) == 1
    value = torch.where(trained.unsqueeze(-1), value, 0.0)
    constant = members.is_constant | (members.n <= 1)
    return Advantages(value, trained, constant, single.sum(dim=-1), returns)


def _roles(
    rewards: Tensor, config: Advantage, status: Tensor | None, *, keyed: bool
) -> tuple[Tensor, Tensor]:
    """Say who is in the baseline and who is trained; both (..., N)."""
    shape = rewards.shape[:-1] if keyed else rewards.shape
    if status is None:
        everyone = torch.ones(shape, dtype=torch.bool, device=rewards.device)
        return everyone, everyone
    roles = ("count", config.truncated, config.aborted, config.rejected)
    baseline = torch.tensor([role != "exclude" for role in roles], device=rewards.device)
    trains = torch.tensor([role == "count" for role in roles], device=rewards.device)
    return baseline[status].expand(shape), trains[status].expand(shape)


# ---------------------------------------------------------------------------- per response


def _by_group(
    rewards: Tensor,
    config: Advantage,
    groups: Groups,
    counts: Tensor,
    mask: Tensor,
    penalty: Tensor | None,
) -> Tensor:
    if penalty is not None:
        extra = torch.where(mask != 0, penalty * mask, 0.0).sum(dim=-1)
        rewards = rewards + (extra.unsqueeze(-1) if isinstance(config, GdpoAdvantage) else extra)
    if isinstance(config, GdpoAdvantage):
        return gdpo(rewards, config, groups, counts, mask)
    members = Members.of(rewards, groups=groups, counts=counts)
    value = group_advantage(members, config, mask)
    value = apply_singletons(value, members, config)
    if isinstance(config, ReinforcePpBaselineAdvantage) and config.whiten:
        counted = torch.where(counts.unsqueeze(-1) > 0, mask, 0.0)
        return whiten(value.unsqueeze(-1).expand(counted.shape), mask=counted)
    return value.unsqueeze(-1)


# ---------------------------------------------------------------------------- per token


def _by_token(
    per_token: Tensor,
    config: ReinforcePpAdvantage | RemaxAdvantage | GaeAdvantage,
    *,
    mask: Tensor,
    greedy: Tensor | None,
    values: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    if isinstance(config, ReinforcePpAdvantage):
        value = returns_to_go(per_token, mask=mask, gamma=config.gamma)
        return (whiten(value, mask=mask) if config.whiten else value), None
    if isinstance(config, RemaxAdvantage):
        if greedy is None:
            raise ConfigError("remax needs greedy, the reward of each prompt's greedy response")
        value = returns_to_go(per_token, mask=mask, gamma=1.0) - greedy.unsqueeze(-1)
        return torch.where(mask != 0, value, 0.0), None
    if values is None:
        raise ConfigError("gae needs values, the value function's estimate at each token")
    return generalised_advantages(per_token, config, values=values, mask=mask)
