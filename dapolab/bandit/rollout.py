"""One rollout: sample groups, filter them, score them, fix what the updates will compare with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.bandit.answers import DRAWS_PER_ANSWER, Answers, Bandit
from dapolab.bandit.settings import Mode
from dapolab.objective import Signal, Status, learning_signal
from dapolab.objective.token_baseline import TokenEnergy
from dapolab.rng import stream

_BLOCK_BYTES = 1 << 26


@dataclass(frozen=True)
class Rollout:
    """Answers of a step with everything that its updates read; (R, N, …)."""

    answers: Answers
    signal: Signal
    mask: Tensor
    """The loss mask of the signal, without the slots that no group filled."""
    group: Tensor
    """(N,) int64."""
    old_logp: Tensor
    sampler_logp: Tensor | None
    ref_logp: Tensor | None
    filled: Tensor
    """(R, N) bool: the answer's slot holds a group; without a filter all do."""
    effective_share: Tensor
    """(R,) candidate groups that the filter keeps, or would keep: right and wrong in one."""


class Draws:
    """Uniform numbers of each seed, step by step.

    A seed's numbers depend on nothing but the seed and the numbers a step, so that a replica among
    thousands equals the same seed alone, and modes are compared on the same draws.
    """

    def __init__(self, seed: int, seeds: Sequence[int], *, n_groups: int, group_size: int) -> None:
        self.n_groups, self.group_size = n_groups, group_size
        self._per_step = n_groups * (1 + group_size * DRAWS_PER_ANSWER)
        self._generators = [stream(seed, "bandit", index) for index in seeds]
        per_row = len(self._generators) * self._per_step * 8
        self._block = max(1, min(256, _BLOCK_BYTES // per_row))
        self._held = torch.empty(0)
        self._next = self._block

    def step(self) -> tuple[Tensor, Tensor]:
        """Return the prompts' numbers (R, C) and the answers' (R, C, G, 2)."""
        if self._next >= self._block:
            size = (self._block, self._per_step)
            rows = [torch.from_numpy(g.random(size)) for g in self._generators]
            self._held, self._next = torch.stack(rows, dim=1), 0
        flat = self._held[self._next]
        self._next += 1
        prompt = flat[:, : self.n_groups]
        shape = (-1, self.n_groups, self.group_size, DRAWS_PER_ANSWER)
        return prompt, flat[:, self.n_groups :].reshape(shape)


def collect(
    bandit: Bandit,
    mode: Mode,
    *,
    theta: Tensor,
    sampler_theta: Tensor,
    draws: tuple[Tensor, Tensor],
    reference: Tensor | None = None,
) -> Rollout:
    """Sample from ``sampler_theta``, keep groups, and score for the policy ``theta``; both (R, D).

    Parameters
    ----------
    draws
        Of ``Draws.step``; more candidate groups than the mode needs are left alone.
    reference
        (R, D) reference policy, for an objective with a KL.
    """
    training = mode.training
    prompt, uniform = (part[:, : training.n_candidates] for part in draws)
    answers = bandit.sample(sampler_theta, prompt_RC=prompt, uniform_RCGk=uniform)
    mixed = _spread(answers.right.to(torch.float64), training.group_size)
    effective = mixed.to(torch.float64).mean(dim=-1)
    filled = torch.ones((1, 1), dtype=torch.bool).expand(mixed.shape[0], training.n_groups)
    if training.filter != "none":
        kept = mixed
        if training.filter == "shaped":
            shaped = score(bandit, mode, theta, answers).rewards
            kept = _spread(shaped, training.group_size)
            effective = kept.to(torch.float64).mean(dim=-1)
        answers, filled = _first_kept(answers, kept, training.n_groups, training.group_size)
    return _scored(
        bandit, mode, theta, sampler_theta, reference, answers, filled=filled, effective=effective
    )


def _scored(
    bandit: Bandit,
    mode: Mode,
    theta: Tensor,
    sampler_theta: Tensor,
    reference: Tensor | None,
    answers: Answers,
    *,
    filled: Tensor,
    effective: Tensor,
) -> Rollout:
    old_logp = bandit.logp(theta, answers)
    ref_logp = None if reference is None else bandit.logp(reference, answers)
    signal = score(bandit, mode, theta, answers, old_logp=old_logp, ref_logp=ref_logp)
    rows = filled.repeat_interleave(mode.training.group_size, dim=-1)
    mask = signal.mask
    if mode.training.filter != "none":
        mask = torch.where(rows.unsqueeze(-1), mask, 0.0)
    return Rollout(
        answers=answers,
        signal=signal,
        mask=mask,
        group=group_ids(answers, mode.training.group_size),
        old_logp=old_logp,
        sampler_logp=bandit.sampler_logp(sampler_theta, answers),
        ref_logp=ref_logp,
        filled=rows,
        effective_share=effective,
    )


def group_ids(answers: Answers, group_size: int) -> Tensor:
    """Return (N,) ids of contiguous groups."""
    return torch.arange(answers.choice.shape[-1]) // group_size


def score(
    bandit: Bandit,
    mode: Mode,
    theta: Tensor,
    answers: Answers,
    *,
    old_logp: Tensor | None = None,
    ref_logp: Tensor | None = None,
) -> Signal:
    """Reward the answers and turn rewards into advantages, as the objective says."""
    objective = mode.objective
    gap = bandit.reward_right - bandit.reward_wrong
    rewards = bandit.reward_wrong + gap * answers.right.to(torch.float64)
    truncated = bandit.truncated(answers)
    status = None if truncated is None else truncated.to(torch.int64) * int(Status.TRUNCATED)
    mask = bandit.mask(answers)
    kind = objective.advantage.kind
    values = None
    if kind == "gae":
        expected = bandit.expectations(theta)["reward/accuracy"]
        values = (bandit.reward_wrong + gap * expected)[:, None, None].expand(mask.shape)
    energy = None
    if kind == "optimal_token_baseline":
        energy = TokenEnergy(
            old_logp=bandit.logp(theta, answers),
            sum_pi_squared=bandit.sum_pi_squared(theta, answers),
        )
    in_reward = objective.kl is not None and objective.kl.place == "reward"
    return learning_signal(
        rewards.unsqueeze(-1) if kind == "gdpo" else rewards,
        objective,
        group=group_ids(answers, mode.training.group_size),
        mask=mask,
        status=status,
        old_logp=old_logp if in_reward else None,
        ref_logp=ref_logp if in_reward else None,
        greedy=bandit.greedy_reward(theta, answers) if kind == "remax" else None,
        values=values,
        energy=energy,
    )


def _spread(values_RN: Tensor, group_size: int) -> Tensor:
    """Return (R, C) bool: the group's values differ."""
    grouped = values_RN.reshape(*values_RN.shape[:-1], -1, group_size)
    return grouped.amax(dim=-1) > grouped.amin(dim=-1)


def _first_kept(
    answers: Answers, kept: Tensor, n_groups: int, group_size: int
) -> tuple[Answers, Tensor]:
    """Return the first kept groups in the order of sampling, and which slots they fill (R, B)."""
    order = (~kept).to(torch.int64).argsort(dim=-1, stable=True)[:, :n_groups]
    filled = kept.gather(-1, order)
    rows = order.unsqueeze(-1) * group_size + torch.arange(group_size)
    return answers.gather(rows.flatten(-2)), filled
