"""The first update at the start policy: gradients of several losses, and which way they push.

Responses are sampled with run seeds of their own; on-policy, every ratio is 1 and the gradient of a
loss is that of Σ w·log π with the weights of ``dapolab.objective.gradient_weights``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dapolab.objective import Batch, Status, gradient_weights, learning_signal
from dapolab.scenario import Objective
from gpu_runs.batch import TrainBatch, chunks
from gpu_runs.collect import collect_step
from gpu_runs.forward import Policy
from gpu_runs.preset import Preset
from gpu_runs.rollout import Candidate
from gpu_runs.setup import build_world, choose_device
from gpu_runs.validate.context import vary
from gpu_runs.validate.standard_length import WEIGHTS, class_of


@dataclass(frozen=True)
class Sample:
    """Answers of the start policy, one row each."""

    policy: Policy
    batch: TrainBatch
    candidates: list[Candidate]
    micro_tokens: int

    @property
    def lengths(self) -> Tensor:
        """Response tokens."""
        return self.batch.mask_NT.sum(dim=-1)

    @property
    def classes(self) -> list[str]:
        """Class of each row's problem."""
        return [
            class_of(c.problem.difficulty, c.problem.stratum)
            for c in self.candidates
            for _ in c.completions
        ]


def draw(preset: Preset, *, seed: int, n_groups: int, device: str) -> Sample:
    """Sample groups from the preset's start policy, without any filter."""
    changes = {
        "run.seed": seed,
        "rollout.groups_per_step": n_groups,
        "collector": {"kind": "none"},
    }
    world = build_world(vary(preset, changes), choose_device(device))
    rollout = collect_step(
        world.generator,
        world.prompts,
        scores=world.scores,
        collector=world.preset.collector,
        rollout=world.preset.rollout,
        step=0,
    )
    batch = TrainBatch.of(rollout.trained, pad_token=world.task.pad_token, device=world.device)
    policy = Policy(world.model, temperature=preset.engine.temperature)
    return Sample(policy, batch, rollout.trained, preset.train.micro_tokens)


def pushes(sample: Sample, objective: Objective) -> Tensor:
    """Return −∂loss/∂log π of every token, (N, T): what makes a token likelier is positive."""
    batch = sample.batch
    signal = learning_signal(
        batch.reward_N,
        objective,
        group=batch.group_N,
        mask=batch.mask_NT,
        status=batch.status_N,
        old_logp=batch.sampler_logp_NT,
    )
    whole = Batch(
        logp=batch.sampler_logp_NT,
        mask=batch.mask_NT,
        advantages=signal.advantages,
        old_logp=batch.sampler_logp_NT,
        group=batch.group_N,
    )
    return -gradient_weights(signal.apply(whole), objective)


def wrong_length_weights(sample: Sample) -> Tensor:
    """Return w with E[Σ w·∇log π] = ∇ of the standardised length of wrong answers, (N, T)."""
    wrong = sample.batch.reward_N < 0
    lengths, classes = sample.lengths, np.array(sample.classes, dtype=object)
    row_N = torch.zeros_like(lengths)
    total = 0.0
    for name, weight in WEIGHTS.items():
        here = wrong & torch.tensor(classes == name, device=wrong.device)
        n = int(here.sum())
        if n > 1:
            total += weight
            row_N = torch.where(here, weight * (lengths - lengths[here].mean()) / (n - 1), row_N)
    return row_N.unsqueeze(-1) * sample.batch.mask_NT / max(total, 1e-12)


def gradients(sample: Sample, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return Σ w·∇log π of each set of token weights, one vector of all parameters each."""
    parameters = list(sample.policy.model.parameters())
    totals = {name: torch.zeros(sum(p.numel() for p in parameters)) for name in weights}
    batch = sample.batch
    for at in chunks(batch.length_N, most_tokens=sample.micro_tokens):
        width = int(batch.length_N[at].max())
        logp, _ = sample.policy(batch, at, width=width)
        rows = at.to(logp.device)
        for number, (name, weight_NT) in enumerate(weights.items(), start=1):
            value = (weight_NT[rows, :width] * logp).sum()
            found = torch.autograd.grad(value, parameters, retain_graph=number < len(weights))
            totals[name] += torch.cat([g.flatten() for g in found]).cpu()
    return totals


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two vectors, in double precision."""
    a, b = a.double(), b.double()
    return float(a @ b / (a.norm() * b.norm()))


@dataclass(frozen=True)
class Shares:
    """Shares of Σ|push| that fall on some responses."""

    wrong: float
    truncated: float
    longest_tenth: float


def shares(sample: Sample, row_weight_N: Tensor) -> Shares:
    """Return where the absolute pushes of a loss fall; ``row_weight_N`` are theirs by response."""
    weight = row_weight_N / row_weight_N.sum()
    lengths = sample.lengths
    order = torch.argsort(lengths, descending=True, stable=True)
    longest = order[: max(1, len(order) // 10)]
    truncated = sample.batch.status_N == int(Status.TRUNCATED)
    return Shares(
        wrong=float(weight[sample.batch.reward_N < 0].sum()),
        truncated=float(weight[truncated].sum()),
        longest_tenth=float(weight[longest].sum()),
    )


def slopes(
    preset: Preset,
    *,
    seeds: Sequence[int],
    n_groups: int,
    arms: Mapping[str, Objective],
    device: str,
) -> dict[str, float]:
    """Return the first-order change of the standardised wrong length per unit of ‖Δθ‖, per arm.

    Loss gradients from the first seed's responses, the length's gradient from the second's: one
    sample for both would be biased by what they share.
    """
    first, second = (draw(preset, seed=s, n_groups=n_groups, device=device) for s in seeds)
    steps = gradients(first, {arm: pushes(first, rule) for arm, rule in arms.items()})
    length = gradients(second, {"length": wrong_length_weights(second)})["length"].double()
    return {
        arm: float(step.double() @ length / step.double().norm()) for arm, step in steps.items()
    }
