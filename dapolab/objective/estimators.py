"""Estimators that compare a response with its group, on the counted members (``advantages``)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.groups import Groups
from dapolab.objective.masking import inverse
from dapolab.objective.returns import whiten, whiten_rows
from dapolab.scenario import (
    Advantage,
    BatchStdAdvantage,
    GdpoAdvantage,
    GpgAdvantage,
    GrpoAdvantage,
    LeaveOneOutAdvantage,
    MaxRlAdvantage,
    MeanOnlyAdvantage,
    OpoAdvantage,
    PassAtKAdvantage,
    ReinforcePpBaselineAdvantage,
    RlooAdvantage,
)


@dataclass(frozen=True)
class Members:
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
    def of(cls, reward: Tensor, *, groups: Groups, counts: Tensor) -> "Members":
        """Sum up (..., N) rewards of the members whose (..., N) count is 1; others may be NaN."""
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
        """Say whose group has no spread, by comparing rewards, not a rounded std."""
        return self.high <= self.low

    def std(self, ddof: int) -> Tensor:
        """Return the std of each response's group; 0 where too few members leave none."""
        squares = self.groups.total(self.centred.square())
        return (squares * inverse(self.n - ddof)).sqrt()


def group_advantage(members: Members, config: Advantage, mask: Tensor) -> Tensor:
    """Return the estimator's value for groups of two or more; (..., N)."""
    centred = members.centred.masked_fill(members.is_constant, 0.0)
    match config:
        case GrpoAdvantage():
            return centred * inverse(members.std(config.ddof) + config.eps)
        case MeanOnlyAdvantage() | ReinforcePpBaselineAdvantage():
            return centred
        case GpgAdvantage():
            return centred * _all_over_rewarded(members)
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


def _leave_one_out(members: Members, centred: Tensor, config: LeaveOneOutAdvantage) -> Tensor:
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


def _all_over_rewarded(members: Members) -> Tensor:
    """Return responses over responses with a reward other than 0 (verl core_algos.py:770-830)."""
    rewarded = ((members.reward != 0) & (members.counts > 0)).sum(dim=-1, keepdim=True)
    return members.counts.sum(dim=-1, keepdim=True) / rewarded.clamp(min=1)


def _batch_std(members: Members, ddof: int) -> Tensor:
    """Return the std of all counted rewards of a replica, at each response."""
    n = members.counts.sum(dim=-1, keepdim=True)
    mean = members.reward.sum(dim=-1, keepdim=True) * inverse(n)
    squares = ((members.reward - mean).square() * members.counts).sum(dim=-1, keepdim=True)
    return (squares * inverse(n - ddof)).sqrt()


def _best_of_group(members: Members, config: PassAtKAdvantage) -> Tensor:
    """Give the one best member its lead over the second (verl core_algos.py:471-530); ties: 0."""
    counted = members.counts > 0
    is_best = counted & (members.reward == members.high)
    alone = members.groups.total(is_best.to(members.n)) == 1
    second = members.groups.largest(members.reward.masked_fill(~counted | is_best, -torch.inf))
    has_second = alone & is_best & (second > -torch.inf)
    lead = torch.where(has_second, members.reward - second, 0.0)
    return lead * inverse(members.std(1) + config.eps) if config.divide_by_std else lead


def apply_singletons(value: Tensor, members: Members, config: Advantage) -> Tensor:
    """Apply the policy for groups with one counted member (field case B24)."""
    policy = getattr(config, "singletons", "zero")
    alone = (members.n == 1) & (members.counts > 0)
    if policy == "error" and bool(alone.any()):
        raise ConfigError(
            f'advantage "{config.kind}" met a group of one response, which has no baseline; sample '
            'more a prompt, or set singletons = "zero"'
        )
    if policy == "raw":
        raw = members.reward
        if isinstance(config, GrpoAdvantage):
            raw = raw / (1.0 + config.eps)
        elif isinstance(config, GpgAdvantage):
            raw = raw * _all_over_rewarded(members)
        return torch.where(alone, raw, value)
    return torch.where(alone, 0.0, value)


def gdpo(
    rewards: Tensor, config: GdpoAdvantage, groups: Groups, counts: Tensor, mask: Tensor
) -> Tensor:
    """Normalise each reward inside its groups, add up, whiten (verl core_algos.py:361-468)."""
    n_keys = rewards.shape[-1]
    weights = config.weights or (1.0,) * n_keys
    if len(weights) != n_keys:
        raise ConfigError(f"gdpo has {len(weights)} weights for {n_keys} rewards; give one each")
    total = torch.zeros_like(counts)
    for key, weight in enumerate(weights):
        members = Members.of(rewards[..., key], groups=groups, counts=counts)
        one = members.centred.masked_fill(members.is_constant, 0.0)
        one = one * inverse(members.std(config.ddof) + config.eps)
        if config.singletons != "zero":
            as_grpo = GrpoAdvantage(singletons=config.singletons, eps=config.eps)
            one = apply_singletons(one, members, as_grpo)
        total = total + weight * one
    if config.whiten == "none":
        return total.unsqueeze(-1)
    if config.whiten == "rows":
        return whiten_rows(total, counts=counts, eps=config.eps).unsqueeze(-1)
    counted = torch.where(counts.unsqueeze(-1) > 0, mask, 0.0)
    return whiten(total.unsqueeze(-1).expand(counted.shape), mask=counted)
