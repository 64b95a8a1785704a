"""One small example in numbers, so that two recipes can be told apart by what they do."""

import math
from collections.abc import Sequence
from statistics import fmean

from dapolab.scenario.advantage import (
    Advantage,
    BatchStdAdvantage,
    GpgAdvantage,
    GrpoAdvantage,
    LeaveOneOutAdvantage,
    MaxRlAdvantage,
    MeanOnlyAdvantage,
    OpoAdvantage,
    PassAtKAdvantage,
    RlooAdvantage,
)
from dapolab.scenario.objective import OverlongPenalty

# Lengths whose weights show every aggregation apart: two prompts, one response ten times the next.
LENGTHS = (10, 100, 1000)
GROUPS = (0, 0, 1)
# One right answer of eight, rewards ±1 (DAPO Eq. 7).
REWARDS = (1.0,) + (-1.0,) * 7


def advantages(
    advantage: Advantage, rewards: Sequence[float], *, lengths: Sequence[int] | None = None
) -> tuple[float, ...] | None:
    """Return the advantage of each response of one group of at least two.

    None where more than the group is needed: a critic, a greedy response, the tokens of a batch.
    ``batch_std`` takes the group for the whole batch.

    Parameters
    ----------
    advantage
        The estimator.
    rewards
        One a response.
    lengths
        Tokens of each response, for OPO; absent: all alike.
    """
    mean = fmean(rewards)
    centred = [r - mean for r in rewards]
    n = len(rewards)
    match advantage:
        case GrpoAdvantage() | BatchStdAdvantage():
            scale = _std(rewards, advantage.ddof) + advantage.eps
            return tuple(c / scale if c else 0.0 for c in centred)
        case MeanOnlyAdvantage():
            return tuple(centred)
        case RlooAdvantage():
            return tuple(c * n / (n - 1) for c in centred)
        case LeaveOneOutAdvantage():
            return tuple(_leave_one_out(advantage, rewards, i) for i in range(n))
        case MaxRlAdvantage():
            return tuple(c / (mean + advantage.eps) if mean else 0.0 for c in centred)
        case OpoAdvantage():
            tokens = lengths or (1,) * n
            total = sum(tokens)
            baseline = sum(t * r for t, r in zip(tokens, rewards, strict=True)) / total
            return tuple(r - baseline for r in rewards)
        case GpgAdvantage():
            alpha = n / max(sum(r != 0 for r in rewards), 1)
            return tuple(alpha * c for c in centred)
        case PassAtKAdvantage():
            return _best_only(advantage, rewards)
        case _:
            return None


def penalty_at(rule: OverlongPenalty | None, n_tokens: float) -> float | None:
    """Return what the length adds to the reward; None where it sets the reward instead."""
    if rule is None:
        return 0.0
    exceed = n_tokens - (rule.cap_tokens - rule.buffer_tokens)
    if n_tokens > rule.cap_tokens and rule.beyond == "zero_reward":
        return None
    if exceed <= 0:
        return 0.0
    share = exceed / rule.buffer_tokens if rule.buffer_tokens else 1.0
    return -rule.factor * (share if rule.beyond == "unclamped" else min(share, 1.0))


def _std(values: Sequence[float], ddof: int) -> float:
    if len(values) <= ddof:
        return 0.0
    mean = fmean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - ddof))


def _leave_one_out(rule: LeaveOneOutAdvantage, rewards: Sequence[float], i: int) -> float:
    others = [*rewards[:i], *rewards[i + 1 :]]
    std = _std(others, rule.ddof)
    difference = rewards[i] - fmean(others)
    return difference / (std + rule.eps) if std > 0 else difference


def _best_only(rule: PassAtKAdvantage, rewards: Sequence[float]) -> tuple[float, ...]:
    order = sorted(range(len(rewards)), key=lambda i: -rewards[i])
    lead = rewards[order[0]] - rewards[order[1]]
    scale = _std(rewards, 1) + rule.eps if rule.divide_by_std else 1.0
    return tuple(lead / scale if i == order[0] else 0.0 for i in range(len(rewards)))
