"""Training in the limit of endless batches: no noise, so that what remains is the rule itself.

Every outcome of the policy is one row whose tokens count as often as the outcome happens; the
advantages are those of an endless group. The surrogate is the objective's (theory.md D2, D3, D5).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dapolab.bandit.answers import Answers
from dapolab.bandit.arms import ArmBandit
from dapolab.bandit.threads import one_thread
from dapolab.errors import ConfigError
from dapolab.objective import Batch, gradient_weights
from dapolab.scenario import Objective, TokenSum


@dataclass(frozen=True)
class Flow:
    """Arms' probabilities and entropy after each refresh of the old policy, the start included."""

    probability: npt.NDArray[np.float64]
    """(n_refreshes + 1, A)."""
    entropy: npt.NDArray[np.float64]
    """(n_refreshes + 1,) in nats."""


@one_thread()
@torch.no_grad()
def population_flow(
    bandit: ArmBandit,
    objective: Objective,
    *,
    n_refreshes: int,
    n_inner: int,
    learning_rate: float,
    geometry: Literal["plain", "natural"] = "plain",
    positive_only: bool = False,
) -> Flow:
    """Follow the expected update: ``n_inner`` steps on each rollout, then a new old policy.

    Parameters
    ----------
    objective
        Its clip and its advantage (``grpo``: over the std; ``mean_only``: not); a token counts
        ``learning_rate`` times its probability, whatever the aggregation.
    positive_only
        Leave out what has a negative advantage.

    Raises
    ------
    ConfigError
        For several prompts, another advantage, or a sampler correction.
    """
    if bandit.n_prompts != 1 or objective.advantage.kind not in ("grpo", "mean_only"):
        raise ConfigError("a flow has one prompt and the advantage grpo or mean_only")
    if objective.sampler.level != "none" or objective.kl is not None:
        raise ConfigError("a flow has no sampler correction and no KL")
    summed = objective.model_copy(update={"aggregation": TokenSum()})
    theta = bandit.start.unsqueeze(0)
    found = [bandit.probabilities(theta)[0, 0]]
    for _ in range(n_refreshes):
        answers, mask, advantage = _population(bandit, summed, theta, positive_only=positive_only)
        old_logp = bandit.logp(theta, answers)
        for _ in range(n_inner):
            batch = Batch(
                logp=bandit.logp(theta, answers),
                old_logp=old_logp,
                mask=mask,
                advantages=advantage,
            )
            gradient = bandit.pull_back(theta, answers, gradient_weights(batch, summed))
            step = bandit.natural(theta, gradient) if geometry == "natural" else gradient
            theta = theta - learning_rate * step
        found.append(bandit.probabilities(theta)[0, 0])
    probability = torch.stack(found)
    entropy = -torch.xlogy(probability, probability).sum(dim=-1)
    return Flow(probability.numpy(), entropy.numpy())


def _population(
    bandit: ArmBandit, objective: Objective, theta: Tensor, *, positive_only: bool
) -> tuple[Answers, Tensor, Tensor]:
    """Return all outcomes as answers (1, O), their mask (1, O, T), their advantages (1, O)."""
    outcomes = bandit.outcomes(theta[0], prompt=0)
    answers = Answers(
        outcomes.choice.unsqueeze(0), outcomes.right.unsqueeze(0), outcomes.length.unsqueeze(0)
    )
    gap = bandit.reward_right - bandit.reward_wrong
    reward = bandit.reward_wrong + gap * outcomes.right.to(torch.float64)
    advantage = reward - (outcomes.probability * reward).sum()
    if objective.advantage.kind == "grpo":
        variance = (outcomes.probability * advantage.square()).sum()
        advantage = advantage / (variance.sqrt() + objective.advantage.eps)
    mask = bandit.mask(answers) * outcomes.probability.unsqueeze(-1)
    if positive_only:
        mask = torch.where(advantage.unsqueeze(-1) > 0, mask, 0.0)
    return answers, mask, advantage.unsqueeze(0)


@torch.no_grad()
def push_without_signal(
    bandit: ArmBandit, objective: Objective, *, theta: Tensor, old_theta: Tensor, size: float = 1.0
) -> Tensor:
    """Return the expected −∂loss/∂θ where rewards say nothing: A = ±size, each half the time.

    What is left is the push of the clip itself (theory.md D5). Answers come from ``old_theta``,
    the policy is ``theta``, both (D,); the aggregation is the token sum of one answer.

    Raises
    ------
    ConfigError
        For several prompts.
    """
    if bandit.n_prompts != 1:
        raise ConfigError("this push is that of one prompt; build the bandit with one")
    summed = objective.model_copy(update={"aggregation": TokenSum()})
    outcomes = bandit.outcomes(old_theta, prompt=0)
    n = outcomes.probability.shape[0]
    answers = Answers(
        *(
            part.repeat(2).unsqueeze(0)
            for part in (outcomes.choice, outcomes.right, outcomes.length)
        )
    )
    signs = torch.ones(2 * n, dtype=torch.float64)
    signs[n:] = -1.0
    chance = outcomes.probability.repeat(2) / 2.0
    current, old = theta.unsqueeze(0), old_theta.unsqueeze(0)
    batch = Batch(
        logp=bandit.logp(current, answers),
        old_logp=bandit.logp(old, answers),
        mask=bandit.mask(answers) * chance.unsqueeze(-1),
        advantages=size * signs.unsqueeze(0),
    )
    return -bandit.pull_back(current, answers, gradient_weights(batch, summed))[0]
