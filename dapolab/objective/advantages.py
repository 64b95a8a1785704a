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
from dapolab.objective.groups import Groups
from dapolab.objective.masking import inverse
from dapolab.objective.returns import (
    generalised_advantages,
    returns_to_go,
    token_rewards,
    whiten,
    whiten_rows,
)
from dapolab.scenario import (
    Advantage,
    BatchStdAdvantage,
    GaeAdvantage,
    GdpoAdvantage,
    GrpoAdvantage,
    LeaveOneOutAdvantage,
    MaxRlAdvantage,
    MeanOnlyAdvantage,
    OpoAdvantage,
    PassAtKAdvantage,
    ReinforcePpAdvantage,
    ReinforcePpBaselineAdvantage,
    RemaxAdvantage,
    RlooAdvantage,
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


@dataclass(frozen=True)
class _Members:
    """Rewards of the counted members and the sums that every estimator needs; all (..., N)."""

    groups: Groups
    reward: Tensor
    counts: Tensor
    n: Tensor
    mean: Tensor
    centred: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, reward: Tensor, *, groups: Groups, counts: Tensor) -> "_Members":
        counted = counts > 0
        reward = torch.where(counted, reward, 0.0)
        n = groups.total(counts)
        mean = groups.total(reward) * inverse(n)
        centred = torch.where(counted, reward - mean, 0.0)
        high = groups.largest(reward.masked_fill(~counted, -torch.inf))
        low = -groups.largest((-reward).masked_fill(~counted, -torch.inf))
        return cls(groups, reward, counts, n, mean, centred, low, high)

    @property
    def is_constant(self) -> Tensor:
        return self.high <= self.low

    def std(self, ddof: int) -> Tensor:
        squares = self.groups.total(self.centred.square())
        return (squares * inverse(self.n - ddof)).sqrt()


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

    Raises
    ------
    ConfigError
        If an input that the estimator needs is absent, or a group of one meets
        ``singletons = "error"``.
    """
    groups = Groups.by_id(group)
    counts, trained = _roles(rewards, config, status, keyed=isinstance(config, GdpoAdvantage))
    counts = counts.to(mask.dtype)
    if isinstance(config, (ReinforcePpAdvantage, RemaxAdvantage, GaeAdvantage)):
        per_token = token_rewards(
            torch.where(trained, rewards, 0.0), mask=mask, penalty=token_penalty
        )
        mask = torch.where(trained.unsqueeze(-1), mask, 0.0)
        value, returns = _by_token(per_token, config, mask=mask, greedy=greedy, values=values)
    else:
        value, returns = _by_group(rewards, config, groups, counts, mask, token_penalty), None
    scalar = rewards.sum(dim=-1) if isinstance(config, GdpoAdvantage) else rewards
    members = _Members.of(scalar, groups=groups, counts=counts)
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
        return _gdpo(rewards, config, groups, counts, mask)
    members = _Members.of(rewards, groups=groups, counts=counts)
    value = _centred(members, config, mask)
    value = _singletons(value, members, config)
    if isinstance(config, ReinforcePpBaselineAdvantage) and config.whiten:
        counted = torch.where(counts.unsqueeze(-1) > 0, mask, 0.0)
        return whiten(value.unsqueeze(-1).expand(counted.shape), mask=counted)
    return value.unsqueeze(-1)


def _centred(members: _Members, config: Advantage, mask: Tensor) -> Tensor:
    """Return the estimator's value for groups of two or more; (..., N)."""
    centred = members.centred.masked_fill(members.is_constant, 0.0)
    match config:
        case GrpoAdvantage():
            return centred * inverse(members.std(config.ddof) + config.eps)
        case MeanOnlyAdvantage() | ReinforcePpBaselineAdvantage():
            return centred
        case LeaveOneOutAdvantage():
            return _leave_one_out(members, centred, config)
        case RlooAdvantage():
            return centred * members.n * inverse(members.n - 1)
        case BatchStdAdvantage():
            return centred * inverse(_batch_std(members, config.ddof) + config.eps)
        case MaxRlAdvantage():
            mean = members.mean
            safe = torch.where(mean == 0, 1.0, mean + config.eps)
            return torch.where(mean == 0, 0.0, centred / safe)
        case OpoAdvantage():
            length = mask.sum(dim=-1) * members.counts
            total = members.groups.total(length)
            baseline = members.groups.total(length * members.reward) * inverse(total)
            return (members.reward - baseline).masked_fill(members.is_constant, 0.0)
        case PassAtKAdvantage():
            return _best_of_group(members, config)
        case _:
            raise ConfigError(f'advantage "{config.kind}" is no group estimator')


def _leave_one_out(members: _Members, centred: Tensor, config: LeaveOneOutAdvantage) -> Tensor:
    """Divide by the spread of the others; where they are all equal, leave the difference as it is.

    (NeMo RL advantage_estimator.py:57-98.) Whether the others are equal is counted, not computed
    from a variance that rounding keeps from 0.
    """
    n, groups = members.n, members.groups
    difference = centred * n * inverse(n - 1)
    squares = groups.total(centred.square()) - centred.square() * n * inverse(n - 1)
    std = (squares.clamp(min=0.0) * inverse(n - 1 - config.ddof)).sqrt()
    counted = members.counts > 0
    at_low = groups.total((counted & (members.reward == members.low)).to(n))
    at_high = groups.total((counted & (members.reward == members.high)).to(n))
    odd_high = (at_low == n - 1) & (members.reward != members.low)
    odd_low = (at_high == n - 1) & (members.reward != members.high)
    others_equal = members.is_constant | odd_high | odd_low
    return difference * torch.where(others_equal, 1.0, inverse(std + config.eps))


def _batch_std(members: _Members, ddof: int) -> Tensor:
    """Return the std of all counted rewards of a replica, at each response."""
    n = members.counts.sum(dim=-1, keepdim=True)
    mean = members.reward.sum(dim=-1, keepdim=True) * inverse(n)
    squares = ((members.reward - mean).square() * members.counts).sum(dim=-1, keepdim=True)
    return (squares * inverse(n - ddof)).sqrt()


def _best_of_group(members: _Members, config: PassAtKAdvantage) -> Tensor:
    """Give the one best member its lead over the second (verl core_algos.py:471-530); ties: 0."""
    counted = members.counts > 0
    is_best = counted & (members.reward == members.high)
    alone = members.groups.total(is_best.to(members.n)) == 1
    second = members.groups.largest(members.reward.masked_fill(~counted | is_best, -torch.inf))
    has_second = alone & is_best & (second > -torch.inf)
    lead = torch.where(has_second, members.reward - second, 0.0)
    return lead * inverse(members.std(1) + config.eps) if config.divide_by_std else lead


def _singletons(value: Tensor, members: _Members, config: Advantage) -> Tensor:
    """Apply the policy for groups with one counted member (field case B24)."""
    policy = getattr(config, "singletons", "zero")
    alone = (members.n == 1) & (members.counts > 0)
    if policy == "error" and bool(alone.any()):
        raise ConfigError(
            f'advantage "{config.kind}" met a group of one response, which has no baseline; sample '
            'more a prompt, or set singletons = "zero"'
        )
    if policy == "raw":
        scale = 1.0 / (1.0 + config.eps) if isinstance(config, GrpoAdvantage) else 1.0
        return torch.where(alone, members.reward * scale, value)
    return torch.where(alone, 0.0, value)


def _gdpo(
    rewards: Tensor, config: GdpoAdvantage, groups: Groups, counts: Tensor, mask: Tensor
) -> Tensor:
    """Normalise each reward inside its groups, add up, whiten (verl core_algos.py:361-468)."""
    n_keys = rewards.shape[-1]
    weights = config.weights or (1.0,) * n_keys
    if len(weights) != n_keys:
        raise ConfigError(f"gdpo has {len(weights)} weights for {n_keys} rewards; give one each")
    total = torch.zeros_like(counts)
    for key, weight in enumerate(weights):
        members = _Members.of(rewards[..., key], groups=groups, counts=counts)
        one = members.centred.masked_fill(members.is_constant, 0.0)
        one = one * inverse(members.std(config.ddof) + config.eps)
        if config.singletons != "zero":
            as_grpo = GrpoAdvantage(singletons=config.singletons, eps=config.eps)
            one = _singletons(one, members, as_grpo)
        total = total + weight * one
    if config.whiten == "none":
        return total.unsqueeze(-1)
    if config.whiten == "rows":
        return whiten_rows(total, counts=counts).unsqueeze(-1)
    counted = torch.where(counts.unsqueeze(-1) > 0, mask, 0.0)
    return whiten(total.unsqueeze(-1).expand(counted.shape), mask=counted)


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
