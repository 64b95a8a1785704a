"""Softmax policies over a few arms: an answer is one decision token and tokens without a choice.

An arm has a length, a probability of being right and may be truncated. The first token carries the
choice, log π = log softmax(Φθ); the others are there, count in every denominator and have ratio 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.bandit.answers import Answers, Outcomes
from dapolab.errors import ConfigError
from dapolab.metrics import PROMPT_ACCURACY


@dataclass(frozen=True, eq=False, kw_only=True)
class ArmBandit:
    """Arms with lengths; axes P prompts, A arms, D parameters."""

    length_PA: Tensor
    """Tokens of each arm's answer, at least 1."""
    success_PA: Tensor
    """Probability of being right."""
    start: Tensor
    """(D,) parameters before training."""
    feature_PAD: Tensor | None = None
    """Logits are Φθ; absent: one free logit an arm (D = P·A)."""
    truncated_PA: Tensor | None = None
    weight_P: Tensor | None = None
    """How often each prompt is drawn; absent: equally often."""
    sampler_temperature: float = 1.0
    """The sampler's logits are the policy's over this …"""
    sampler_shift_PA: Tensor | None = None
    """… plus this: what quantisation or another kernel does to them."""
    reward_right: float = 1.0
    reward_wrong: float = 0.0

    def __post_init__(self) -> None:
        n_prompts, n_arms = self.length_PA.shape
        wanted = n_prompts * n_arms if self.feature_PAD is None else self.feature_PAD.shape[-1]
        if self.start.shape != (wanted,):
            raise ConfigError(f"start has shape {tuple(self.start.shape)}, not ({wanted},)")
        if bool((self.length_PA < 1).any()):
            raise ConfigError("an answer has at least 1 token: raise the lengths")
        if bool(((self.success_PA < 0) | (self.success_PA > 1)).any()):
            raise ConfigError("success is a probability: keep it within 0 and 1")

    @property
    def n_prompts(self) -> int:
        """Number of prompts."""
        return int(self.length_PA.shape[0])

    @property
    def n_arms(self) -> int:
        """Number of arms of a prompt."""
        return int(self.length_PA.shape[1])

    @property
    def weights(self) -> Tensor:
        """(P,) shares of the prompts."""
        if self.weight_P is None:
            return torch.full((self.n_prompts,), 1.0 / self.n_prompts, dtype=torch.float64)
        return self.weight_P / self.weight_P.sum()

    def prompt_weight(self, prompt: int) -> float:
        """Return how often the prompt is drawn."""
        return float(self.weights[prompt])

    def logits(self, theta: Tensor) -> Tensor:
        """Return (..., P, A)."""
        if self.feature_PAD is None:
            return self._by_prompt(theta)
        return torch.einsum("...d,pad->...pa", theta, self.feature_PAD)

    def _by_prompt(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], self.n_prompts, self.n_arms)

    def probabilities(self, theta: Tensor) -> Tensor:
        """Return π, (..., P, A)."""
        return self.logits(theta).softmax(dim=-1)

    def _sampler_logits(self, theta: Tensor) -> Tensor:
        logits = self.logits(theta) / self.sampler_temperature
        return logits if self.sampler_shift_PA is None else logits + self.sampler_shift_PA

    # ------------------------------------------------------------------------ answers

    def sample(self, theta: Tensor, *, prompt_RC: Tensor, uniform_RCGk: Tensor) -> Answers:
        """Draw answers; see ``Bandit.sample``."""
        cdf_RPA = self._sampler_logits(theta).softmax(dim=-1).cumsum(dim=-1)
        n_candidates = prompt_RC.shape[-1]
        if self.n_prompts == 1:
            cdf_RCA = cdf_RPA.expand(-1, n_candidates, -1)
            prompt = torch.zeros_like(prompt_RC, dtype=torch.int64)
        else:
            edges = self.weights.cumsum(dim=0)
            prompt = torch.searchsorted(edges, prompt_RC.contiguous(), right=True)
            prompt = prompt.clamp(max=self.n_prompts - 1)
            index = prompt.unsqueeze(-1).expand(-1, -1, self.n_arms)
            cdf_RCA = cdf_RPA.gather(1, index)
        which = uniform_RCGk[..., 0].contiguous()
        arm = torch.searchsorted(cdf_RCA.contiguous(), which, right=True)
        arm = arm.clamp(max=self.n_arms - 1)
        choice = (prompt.unsqueeze(-1) * self.n_arms + arm).flatten(-2)
        right = uniform_RCGk[..., 1].flatten(-2) < self.success_PA.flatten()[choice]
        return Answers(choice, right, self.length_PA.flatten()[choice])

    def mask(self, answers: Answers) -> Tensor:
        """Return multiplicities: 1 for the decision, the rest of the length for the others."""
        one = torch.ones_like(answers.length)
        if not self._has_fillers:
            return one.unsqueeze(-1)
        return torch.stack((one, answers.length - 1.0), dim=-1)

    @property
    def _has_fillers(self) -> bool:
        return bool((self.length_PA > 1).any())

    def truncated(self, answers: Answers) -> Tensor | None:
        """Return (R, N) bool, or None where no arm is truncated."""
        if self.truncated_PA is None:
            return None
        return self.truncated_PA.flatten()[answers.choice]

    # ------------------------------------------------------------------------ policy

    def logp(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, T) log π of each token, 0 for tokens without a choice."""
        return self._placed(self.logits(theta), answers)

    def sampler_logp(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, T) log-probs under the sampler's policy."""
        return self._placed(self._sampler_logits(theta), answers)

    def _placed(self, logits_RPA: Tensor, answers: Answers) -> Tensor:
        chosen = logits_RPA.log_softmax(dim=-1).flatten(-2).gather(-1, answers.choice)
        return self._with_fillers(chosen)

    def _with_fillers(self, decision_RN: Tensor) -> Tensor:
        if not self._has_fillers:
            return decision_RN.unsqueeze(-1)
        return torch.stack((decision_RN, torch.zeros_like(decision_RN)), dim=-1)

    def token_entropy(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, T) entropy at each token, 0 for tokens without a choice."""
        entropy_RP = _entropy(self.logits(theta))
        prompt = answers.choice // self.n_arms
        return self._with_fillers(entropy_RP.gather(-1, prompt))

    def sum_pi_squared(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, T) Σπ² at each token, 1 for tokens without a choice."""
        squared_RP = self.probabilities(theta).square().sum(dim=-1)
        decision = squared_RP.gather(-1, answers.choice // self.n_arms)
        if not self._has_fillers:
            return decision.unsqueeze(-1)
        return torch.stack((decision, torch.ones_like(decision)), dim=-1)

    def pull_back(self, theta: Tensor, answers: Answers, weights: Tensor) -> Tensor:
        """Return Σ w·(e_choice − π) through Φ; (R, D)."""
        pi_RPA = self.probabilities(theta)
        pulled = torch.zeros_like(pi_RPA.flatten(-2))
        pulled = pulled.scatter_add(-1, answers.choice, weights[..., 0])
        pulled_RPA = self._by_prompt(pulled)
        slope = pulled_RPA - pi_RPA * pulled_RPA.sum(dim=-1, keepdim=True)
        if self.feature_PAD is None:
            return slope.flatten(-2)
        return torch.einsum("...pa,pad->...d", slope, self.feature_PAD)

    def natural(self, theta: Tensor, gradient: Tensor) -> Tensor:
        """Return F⁺·gradient; for free logits gradient/π, centred (a constant moves nothing)."""
        pi_RPA = self.probabilities(theta)
        if self.feature_PAD is None:
            share = self.weights[:, None] * pi_RPA
            step = self._by_prompt(gradient) / share
            return (step - step.mean(dim=-1, keepdim=True)).flatten(-2)
        mean = torch.einsum("...pa,pad->...pd", pi_RPA, self.feature_PAD)
        second = torch.einsum("...pa,pad,pae->...pde", pi_RPA, self.feature_PAD, self.feature_PAD)
        spread = second - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        fisher = torch.einsum("p,...pde->...de", self.weights, spread)
        inverse: Tensor = torch.linalg.pinv(fisher, hermitian=True)
        return torch.einsum("...de,...e->...d", inverse, gradient)

    def greedy_reward(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N) expected raw reward of the likeliest arm of each answer's prompt."""
        likeliest = self.logits(theta).argmax(dim=-1)
        success = self.success_PA.expand(*likeliest.shape, -1)
        right_RP = success.gather(-1, likeliest.unsqueeze(-1)).squeeze(-1)
        right = right_RP.gather(-1, answers.choice // self.n_arms)
        return self.reward_wrong + (self.reward_right - self.reward_wrong) * right

    def expectations(self, theta: Tensor) -> dict[str, Tensor]:
        """Return exact metrics of the policy, each (R,)."""
        logits = self.logits(theta)
        joint = logits.softmax(dim=-1) * self.weights[:, None]
        # Right and wrong are summed apart: 1 − right would lose the digits of a rare wrong answer.
        sides = (joint * self.success_PA, joint * (1.0 - self.success_PA))
        right, wrong = (side.sum(dim=(-2, -1)) for side in sides)
        right_tokens, wrong_tokens = ((s * self.length_PA).sum(dim=(-2, -1)) for s in sides)
        found = {
            "length/right": right_tokens / right,
            "length/wrong": wrong_tokens / wrong,
            "length/mean": right_tokens + wrong_tokens,
            "reward/accuracy": right,
            "entropy/answer": (_entropy(logits) * self.weights).sum(dim=-1),
        }
        if self.n_prompts == 1:
            return found
        by_prompt = (logits.softmax(dim=-1) * self.success_PA).sum(dim=-1)
        return found | {
            f"{PROMPT_ACCURACY}{k + 1}": by_prompt[..., k] for k in range(self.n_prompts)
        }

    def outcomes(self, theta_D: Tensor, *, prompt: int) -> Outcomes:
        """Enumerate arm × right or wrong, those that can happen."""
        pi_A = self._sampler_logits(theta_D)[prompt].softmax(dim=-1)
        success = self.success_PA[prompt]
        arm = torch.arange(self.n_arms).repeat(2)
        right = torch.arange(2 * self.n_arms) < self.n_arms
        chance = torch.cat((pi_A * success, pi_A * (1.0 - success)))
        happens = chance > 0
        arm = arm[happens]
        return Outcomes(
            choice=prompt * self.n_arms + arm,
            right=right[happens],
            length=self.length_PA[prompt][arm],
            probability=chance[happens],
        )


def _entropy(logits: Tensor) -> Tensor:
    log_pi = logits.log_softmax(dim=-1)
    return -(log_pi.exp() * log_pi).sum(dim=-1)
