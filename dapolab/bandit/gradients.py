"""The exact law of a sampled gradient by enumeration, and samples of it.

The gradient of a batch depends on how often each outcome occurs in each group, not on the order, so
the compositions of a group (multinomial) are enumerated, and the batches of several groups as their
products. Every composition is one replica of the very code that trains.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.bandit.answers import DRAWS_PER_ANSWER, Answers, Bandit
from dapolab.bandit.rollout import Rollout, collect, group_ids, score
from dapolab.bandit.settings import Mode
from dapolab.bandit.update import loss_gradient
from dapolab.errors import ConfigError
from dapolab.rng import stream

MAX_BATCHES = 500_000
"""More batches than this are not enumerated."""


@dataclass(frozen=True)
class GradientLaw:
    """Mean and covariance of the gradient of the first update, as an ascent direction."""

    mean: Tensor
    """(D,) expected −∂loss/∂θ."""
    covariance: Tensor
    """(D, D)."""
    p_trained: float
    """Probability that a group is trained: 1 without a filter."""
    n_batches: int

    @property
    def variance(self) -> float:
        """Trace of the covariance."""
        return float(self.covariance.diagonal().sum())


@torch.no_grad()
def expected_gradient(
    bandit: Bandit, mode: Mode, *, theta: Tensor | None = None, enumerate_groups: int | None = None
) -> GradientLaw:
    """Return the law of the first update's −∂loss/∂θ at ``theta`` (D,), exact to rounding.

    Parameters
    ----------
    theta
        Where; absent: the start.
    enumerate_groups
        Groups of a batch; absent: the mode's. With a filter, each is drawn from the kept ones (an
        endless refill).

    Raises
    ------
    ConfigError
        If there are more than ``MAX_BATCHES`` batches, or the filter keeps no group at all.
    """
    at = bandit.start if theta is None else theta
    n_groups = mode.training.n_groups if enumerate_groups is None else enumerate_groups
    group = _groups(bandit, mode, at)
    n_batches = group.probability.shape[0] ** n_groups
    if n_batches > MAX_BATCHES:
        raise ConfigError(
            f"{n_batches:,} batches are too many to enumerate (at most {MAX_BATCHES:,}); lower "
            "group_size or n_groups, or sample the gradient"
        )
    index = torch.cartesian_prod(*[torch.arange(group.probability.shape[0])] * n_groups)
    index = index.reshape(n_batches, n_groups)
    chance = group.probability[index].prod(dim=-1)
    answers = Answers(*(part[index].flatten(-2) for part in group.parts))
    gradient = -_first_update(bandit, mode, at, answers)
    mean = chance @ gradient
    centred = gradient - mean
    covariance = (centred * chance.unsqueeze(-1)).T @ centred
    return GradientLaw(mean, covariance, group.p_kept, n_batches)


@dataclass(frozen=True)
class _Group:
    probability: Tensor
    """(M,) of each composition, given that it is kept."""
    parts: tuple[Tensor, Tensor, Tensor]
    """choice, right, length, each (M, G)."""
    p_kept: float


def _groups(bandit: Bandit, mode: Mode, theta: Tensor) -> _Group:
    chances, choices, rights, lengths = [], [], [], []
    for prompt in range(bandit.n_prompts):
        outcomes = bandit.outcomes(theta, prompt=prompt)
        n_outcomes = outcomes.probability.shape[0]
        _check_size(n_outcomes, mode.training.group_size)
        members = torch.tensor(list(_compositions(n_outcomes, mode.training.group_size)))
        log_chance = outcomes.probability.log()[members].sum(dim=-1) + _log_orders(
            members, n_outcomes
        )
        chances.append(bandit.prompt_weight(prompt) * log_chance.exp())
        choices.append(outcomes.choice[members])
        rights.append(outcomes.right[members])
        lengths.append(outcomes.length[members])
    chance = torch.cat(chances)
    parts = (torch.cat(choices), torch.cat(rights), torch.cat(lengths))
    kept = _kept(bandit, mode, theta, Answers(*parts))
    total = float(chance[kept].sum())
    if total <= 0.0:
        raise ConfigError("the filter keeps no group of this bandit: nothing is ever trained")
    p_kept = total if mode.training.filter != "none" else 1.0
    choice, right, length = (part[kept] for part in parts)
    return _Group(chance[kept] / p_kept, (choice, right, length), p_kept)


def _kept(bandit: Bandit, mode: Mode, theta: Tensor, answers: Answers) -> Tensor:
    if mode.training.filter == "none":
        return torch.ones(answers.choice.shape[0], dtype=torch.bool)
    if mode.training.filter == "raw":
        judged = answers.right.to(torch.float64)
    else:
        judged = score(bandit, mode, theta.expand(answers.choice.shape[0], -1), answers).rewards
    return judged.amax(dim=-1) > judged.amin(dim=-1)


def _check_size(n_outcomes: int, group_size: int) -> None:
    n = math.comb(group_size + n_outcomes - 1, group_size)
    if n > MAX_BATCHES:
        raise ConfigError(
            f"a group of {group_size} over {n_outcomes} outcomes has {n:,} compositions, more than "
            f"{MAX_BATCHES:,}; lower group_size or sample the gradient"
        )


def _compositions(n_outcomes: int, group_size: int) -> Iterator[tuple[int, ...]]:
    return itertools.combinations_with_replacement(range(n_outcomes), group_size)


def _log_orders(members: Tensor, n_outcomes: int) -> Tensor:
    """Return the log number of orders of each multiset."""
    group_size = members.shape[-1]
    counts = torch.zeros((members.shape[0], n_outcomes), dtype=torch.float64)
    counts.scatter_add_(-1, members, torch.ones_like(members, dtype=torch.float64))
    return math.lgamma(group_size + 1) - torch.lgamma(counts + 1).sum(dim=-1)


def _first_update(bandit: Bandit, mode: Mode, theta: Tensor, answers: Answers) -> Tensor:
    """Return ∂loss/∂θ of each batch at the policy that is also the old one; (R, D)."""
    at = theta.expand(answers.choice.shape[0], -1)
    old_logp = bandit.logp(at, answers)
    reference = old_logp if mode.objective.kl is not None else None
    signal = score(bandit, mode, at, answers, old_logp=old_logp, ref_logp=reference)
    rollout = Rollout(
        answers=answers,
        signal=signal,
        mask=signal.mask,
        group=group_ids(answers, mode.training.group_size),
        old_logp=old_logp,
        sampler_logp=bandit.sampler_logp(at, answers),
        ref_logp=reference,
        filled=torch.ones_like(answers.right),
        effective_share=torch.ones(at.shape[0]),
    )
    return loss_gradient(bandit, at, rollout, mode)


def sampled_gradients(
    bandit: Bandit, mode: Mode, *, n_samples: int, seed: int = 0, theta: Tensor | None = None
) -> Tensor:
    """Return −∂loss/∂θ of the first update of independent batches; (n_samples, D)."""
    training = mode.training
    at = (bandit.start if theta is None else theta).expand(n_samples, -1)
    rng = stream(seed, "bandit", "gradients")
    shape = (n_samples, training.n_candidates, training.group_size, DRAWS_PER_ANSWER)
    draws = (torch.from_numpy(rng.random(shape[:2])), torch.from_numpy(rng.random(shape)))
    reference = at if mode.objective.kl is not None else None
    rollout = collect(bandit, mode, theta=at, sampler_theta=at, draws=draws, reference=reference)
    # for clip_cov: the batches are independent whoever draws for them
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    return -loss_gradient(bandit, at, rollout, mode, generator=generator)
