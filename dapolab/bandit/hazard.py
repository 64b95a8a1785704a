"""The smallest model of an end-of-sequence token: after every token the answer may stop.

The first token decides right with probability σ(v); each token is the last with probability σ(u),
u its own for right and for wrong answers, so that the length is geometric on 1, 2, … (theory.md
C5). The first token's log-prob is that of both of its choices.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dapolab.bandit.answers import Answers, Outcomes
from dapolab.errors import ConfigError

_TAIL = 1e-16


@dataclass(frozen=True, eq=False, kw_only=True)
class HazardBandit:
    """θ = (v, u_right, u_wrong), logits of being right and of stopping."""

    p_right: float
    hazard_right: float
    hazard_wrong: float
    reward_right: float = 1.0
    reward_wrong: float = 0.0

    def __post_init__(self) -> None:
        for name in ("p_right", "hazard_right", "hazard_wrong"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ConfigError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")

    @property
    def start(self) -> Tensor:
        """(3,) parameters before training."""
        shares = (self.p_right, self.hazard_right, self.hazard_wrong)
        return torch.tensor([math.log(x / (1 - x)) for x in shares], dtype=torch.float64)

    @property
    def n_prompts(self) -> int:
        """One prompt."""
        return 1

    def prompt_weight(self, prompt: int) -> float:
        """Return 1: there is one prompt."""
        return 1.0

    def _stop_logit(self, theta: Tensor, right: Tensor) -> Tensor:
        """Return u of each answer, (R, N)."""
        return torch.where(right, theta[..., 1:2], theta[..., 2:3])

    # ------------------------------------------------------------------------ answers

    def sample(self, theta: Tensor, *, prompt_RC: Tensor, uniform_RCGk: Tensor) -> Answers:
        """Draw answers; see ``Bandit.sample``. The sampler is the policy itself."""
        first, second = uniform_RCGk.flatten(1, 2).unbind(-1)
        right = first < theta[..., :1].sigmoid()
        log_go_on = logsigmoid(-self._stop_logit(theta, right))
        length = (torch.log1p(-second) / log_go_on).ceil().clamp(min=1.0)
        return Answers(right.to(torch.int64), right, length)

    def mask(self, answers: Answers) -> Tensor:
        """Return multiplicities of the first, the middle and (beyond length 1) the last token."""
        length = answers.length
        first = torch.ones_like(length)
        return torch.stack((first, (length - 2.0).clamp(min=0.0), (length > 1).to(length)), dim=-1)

    def truncated(self, answers: Answers) -> Tensor | None:
        """Return None: there is no cap."""
        return None

    # ------------------------------------------------------------------------ policy

    def logp(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, 3) log π of the first, a middle and the last token."""
        v, u = theta[..., :1], self._stop_logit(theta, answers.right)
        go_on, stop = logsigmoid(-u), logsigmoid(u)
        decision = torch.where(answers.right, logsigmoid(v), logsigmoid(-v))
        first = decision + torch.where(answers.length == 1, stop, go_on)
        return torch.stack((first, go_on, stop), dim=-1)

    def sampler_logp(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return the same: the sampler is the policy."""
        return self.logp(theta, answers)

    def token_entropy(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, 3) entropy at each token."""
        stop = _binary_entropy(self._stop_logit(theta, answers.right))
        # Before the first token neither choice is made: the stop's entropy is averaged over both.
        p = theta[..., :1].sigmoid()
        both = p * _binary_entropy(theta[..., 1:2]) + (1.0 - p) * _binary_entropy(theta[..., 2:3])
        first = (_binary_entropy(theta[..., :1]) + both).expand(stop.shape)
        return torch.stack((first, stop, stop), dim=-1)

    def sum_pi_squared(self, theta: Tensor, answers: Answers) -> Tensor:
        """Refuse: a baseline token by token needs the middle tokens one by one."""
        raise ConfigError(
            "eos_hazard has no optimal_token_baseline: its middle tokens share one place; take an "
            "environment of arms"
        )

    def pull_back(self, theta: Tensor, answers: Answers, weights: Tensor) -> Tensor:
        """Return Σ w·∂(log π)/∂θ, (R, 3); ∂ log h/∂u = 1 − h, ∂ log(1 − h)/∂u = −h."""
        right = answers.right.to(weights)
        h = self._stop_logit(theta, answers.right).sigmoid()
        first, middle, last = weights.unbind(-1)
        stops = torch.where(answers.length == 1, first, last)
        slope_u = stops - h * (first + middle + last * (answers.length > 1))
        g_v = ((right - theta[..., :1].sigmoid()) * first).sum(dim=-1)
        g_right, g_wrong = (slope_u * right).sum(dim=-1), (slope_u * (1.0 - right)).sum(dim=-1)
        return torch.stack((g_v, g_right, g_wrong), dim=-1)

    def natural(self, theta: Tensor, gradient: Tensor) -> Tensor:
        """Return F⁻¹·gradient; F = diag(p(1 − p), p(1 − h_right), (1 − p)(1 − h_wrong))."""
        p, h_right, h_wrong = theta.sigmoid().unbind(-1)
        fisher = (p * (1.0 - p), p * (1.0 - h_right), (1.0 - p) * (1.0 - h_wrong))
        return gradient / torch.stack(fisher, dim=-1)

    def greedy_reward(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N) raw reward of the likelier of right and wrong."""
        right = (theta[..., :1] > 0).to(theta).expand(answers.length.shape)
        return self.reward_wrong + (self.reward_right - self.reward_wrong) * right

    def expectations(self, theta: Tensor) -> dict[str, Tensor]:
        """Return exact metrics of the policy, each (R,)."""
        p, h_right, h_wrong = theta.sigmoid().unbind(-1)
        entropy = _binary_entropy(theta).unbind(-1)
        return {
            "length/right": 1.0 / h_right,
            "length/wrong": 1.0 / h_wrong,
            "length/mean": p / h_right + (1.0 - p) / h_wrong,
            "reward/accuracy": p,
            "entropy/answer": entropy[0]
            + p * entropy[1] / h_right
            + (1.0 - p) * entropy[2] / h_wrong,
        }

    def outcomes(self, theta_D: Tensor, *, prompt: int) -> Outcomes:
        """Enumerate right × length until the tail is below 1e-16."""
        p, *hazards = theta_D.sigmoid().tolist()
        parts = []
        for right, h in zip((True, False), hazards, strict=True):
            longest = max(1, math.ceil(math.log(_TAIL) / math.log1p(-h)))
            length = torch.arange(1, longest + 1, dtype=torch.float64)
            chance = (p if right else 1.0 - p) * h * (1.0 - h) ** (length - 1.0)
            parts.append((torch.full_like(length, float(right)), length, chance))
        right_O, length_O, chance_O = (torch.cat(part) for part in zip(*parts, strict=True))
        return Outcomes(
            choice=right_O.to(torch.int64),
            right=right_O > 0,
            length=length_O,
            probability=chance_O,
        )


def _binary_entropy(logit: Tensor) -> Tensor:
    h = logit.sigmoid()
    return -(h * logsigmoid(logit) + (1.0 - h) * logsigmoid(-logit))
