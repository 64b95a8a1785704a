"""What every bandit offers: answers, their tokens, and a policy whose gradient is in closed form.

Axes: R replicas (independent seeds), N answers, T token places, D parameters of the policy,
C candidate groups, G answers a group.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

DRAWS_PER_ANSWER = 2
"""Uniform numbers that one answer needs, whatever the bandit."""


@dataclass(frozen=True)
class Answers:
    """Sampled answers; every tensor is (R, N)."""

    choice: Tensor
    """int64: what the policy chose; for arms, prompt × arms + arm."""
    right: Tensor
    """bool."""
    length: Tensor
    """Tokens of the answer, float."""

    def rows(self, index: Tensor) -> "Answers":
        """Return the answers with these indices, the same for all replicas (n,)."""
        return Answers(self.choice[..., index], self.right[..., index], self.length[..., index])

    def gather(self, index_RN: Tensor) -> "Answers":
        """Return the answers with these indices, each replica its own (R, n)."""
        return Answers(
            self.choice.gather(-1, index_RN),
            self.right.gather(-1, index_RN),
            self.length.gather(-1, index_RN),
        )


@dataclass(frozen=True)
class Outcomes:
    """Everything that one answer to one prompt can be; every tensor is (O,)."""

    choice: Tensor
    right: Tensor
    length: Tensor
    probability: Tensor
    """Under the policy that samples; sums to 1, or to 1 − 1e-16 where a tail is cut."""


class Bandit(Protocol):
    """A toy policy in its environment.

    ``theta`` is (R, D) throughout; an answer's reward is ``reward_right`` or ``reward_wrong``
    before any shaping.
    """

    @property
    def reward_right(self) -> float:
        """Raw reward of a right answer."""

    @property
    def reward_wrong(self) -> float:
        """Raw reward of a wrong answer."""

    @property
    def start(self) -> Tensor:
        """(D,) parameters before training."""

    @property
    def n_prompts(self) -> int:
        """Number of prompts."""

    def sample(self, theta: Tensor, *, prompt_RC: Tensor, uniform_RCGk: Tensor) -> Answers:
        """Draw answers from the sampler's policy; rows in the order of the groups, N = C·G.

        ``prompt_RC`` and ``uniform_RCGk`` are uniform numbers, the latter ``DRAWS_PER_ANSWER`` an
        answer.
        """

    def mask(self, answers: Answers) -> Tensor:
        """Return (R, N, T) multiplicities of the tokens."""

    def truncated(self, answers: Answers) -> Tensor | None:
        """Return (R, N) bool, or None where no answer of this bandit is ever truncated."""

    def logp(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, T) log π of each token."""

    def sampler_logp(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, T) log-probs under the policy that samples when trained is ``theta``."""

    def token_entropy(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, T) entropy of the policy at each token, in nats."""

    def sum_pi_squared(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N, T) Σπ² of the policy's choices at each token, 1 where it has none.

        Raises ConfigError where places stand for tokens that differ in it.
        """

    def pull_back(self, theta: Tensor, answers: Answers, weights: Tensor) -> Tensor:
        """Return Σ weights·∂(log π)/∂θ, (R, D), for weights (R, N, T)."""

    def natural(self, theta: Tensor, gradient: Tensor) -> Tensor:
        """Return F⁺·gradient, F the Fisher information of one answer; (R, D)."""

    def greedy_reward(self, theta: Tensor, answers: Answers) -> Tensor:
        """Return (R, N) expected raw reward of the likeliest answer to each answer's prompt."""

    def expectations(self, theta: Tensor) -> dict[str, Tensor]:
        """Return exact metrics of the policy, each (R,): lengths, pass rate, entropy."""

    def outcomes(self, theta_D: Tensor, *, prompt: int) -> Outcomes:
        """Enumerate the answers to a prompt under the sampler's policy."""

    def prompt_weight(self, prompt: int) -> float:
        """Return how often the prompt is drawn."""
