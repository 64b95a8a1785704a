"""The optimal token baseline: reward-to-go less a baseline of its own at each token of a group.

The score of a sampled token has the expected squared length 1 − 2π + Σπ² (in logits); cumulated
along a response it says how much its return-to-go weighs in the baseline that leaves the least
variance (verl core_algos.py:871-1121).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.groups import Groups
from dapolab.objective.masking import inverse, keep_valid
from dapolab.objective.returns import returns_to_go
from dapolab.scenario import OptimalTokenBaselineAdvantage


@dataclass(frozen=True, kw_only=True)
class TokenEnergy:
    """What a token's squared score is made of; all (..., N, T), read inside the mask alone."""

    old_logp: Tensor
    """log π of the sampled token under the policy whose score it is."""
    sum_pi_squared: Tensor
    """Σπ² over the vocabulary at that token."""
    sampler_weight: Tensor | None = None
    """Weights of a sampler correction, squared in the energy; absent: 1."""

    def along(self, valid: Tensor) -> Tensor:
        """Return the energy cumulated up to each token, 0 outside ``valid``."""
        one = 1.0 - 2.0 * self.old_logp.exp() + self.sum_pi_squared
        if self.sampler_weight is not None:
            one = one * self.sampler_weight.square()
        return torch.where(valid, keep_valid(one, mask=valid).cumsum(dim=-1), 0.0)


def optimal_token_advantage(
    per_token: Tensor,
    config: OptimalTokenBaselineAdvantage,
    *,
    groups: Groups,
    counts: Tensor,
    mask: Tensor,
    energy: TokenEnergy | None,
) -> Tensor:
    """Return G_t − B_t with B_t = Σ G·W/(Σ W + eps) over the group; (..., N, T), 0 outside.

    Parameters
    ----------
    per_token
        (..., N, T) rewards of the tokens.
    counts
        (..., N) 1 for members of the baseline, else 0.
    mask
        (..., N, T) multiplicities; a token of any multiplicity is one step.
    energy
        Policy at the tokens.

    Raises
    ------
    ConfigError
        Without ``energy``, or a group of one under ``singletons = "error"``.
    """
    if energy is None:
        raise ConfigError(
            "optimal_token_baseline needs energy: log π of each token and Σπ² over the vocabulary "
            "(verl: actor.calculate_sum_pi_squared)"
        )
    valid = (mask != 0) & (counts > 0).unsqueeze(-1)
    returns = returns_to_go(per_token, mask=valid, gamma=1.0)
    weight = energy.along(valid)
    if config.align == "position":
        baseline = _baseline(returns, weight, valid=valid, groups=groups, eps=config.eps)
    else:
        # Response tokens moved to the front, so that the t-th of each stand in one column.
        order = valid.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        packed = (values.gather(-1, order) for values in (returns, weight))
        found = _baseline(*packed, valid=valid.gather(-1, order), groups=groups, eps=config.eps)
        baseline = torch.zeros_like(found).scatter(-1, order, found)
    value = torch.where(valid, returns - baseline, 0.0)
    return _alone(value, returns, groups.total(counts) == 1, config)


def _baseline(
    returns: Tensor, weight: Tensor, *, valid: Tensor, groups: Groups, eps: float
) -> Tensor:
    """Return the group's baseline in each column; 0 in the tail that the longest has to itself."""

    def over_group(values: Tensor) -> Tensor:
        return groups.total(values.transpose(-1, -2)).transpose(-1, -2)

    baseline = over_group(returns * weight) * inverse(over_group(weight) + eps)
    lengths = valid.sum(dim=-1).to(returns.dtype)
    longest = lengths == groups.largest(lengths)
    unique = longest & (groups.total(longest.to(lengths.dtype)) == 1)
    second = groups.largest(lengths.masked_fill(longest, -torch.inf)).clamp(min=0.0)
    column = torch.arange(valid.shape[-1], device=valid.device)
    tail = unique.unsqueeze(-1) & (column >= second.unsqueeze(-1))
    return baseline.masked_fill(tail, 0.0)


def _alone(
    value: Tensor, returns: Tensor, single: Tensor, config: OptimalTokenBaselineAdvantage
) -> Tensor:
    """Apply the policy for groups with one counted member (field case B24)."""
    if config.singletons == "error" and bool(single.any()):
        raise ConfigError(
            'advantage "optimal_token_baseline" met a group of one response, which has no '
            'baseline; sample more a prompt, or set singletons = "raw"'
        )
    alone = returns if config.singletons == "raw" else torch.zeros_like(returns)
    return torch.where(single.unsqueeze(-1), alone, value)
