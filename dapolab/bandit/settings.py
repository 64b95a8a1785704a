"""What a mode is: an objective and the loop that it trains in. Frozen, closed to unknown keys."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dapolab.scenario import Objective
from dapolab.scenario.config import Config, Count, Positive, Share

Geometry = Literal["plain", "natural", "adam"]
Filter = Literal["none", "raw", "shaped"]


class Training(Config):
    """The loop around the objective; one step is one rollout and all updates made of it."""

    n_steps: Count = 200
    n_groups: Count = Field(1, description="groups trained a step")
    group_size: Count = 8
    learning_rate: Positive = 1.0
    geometry: Geometry = Field(
        "plain",
        description="θ moves along the gradient, along F⁺·gradient (natural), or as Adam says",
    )
    adam_beta1: Share = 0.9
    adam_beta2: Share = 0.95
    adam_eps: Positive = 1e-8
    n_epochs: Count = 1
    n_mini_batches: Count = Field(1, description="updates an epoch; they cut the rollout in order")
    micro_rows: Count | None = Field(None, description="answers a micro-batch; absent: no split")
    staleness: int = Field(0, ge=0, description="steps by which the sampler's policy lags")
    filter: Filter = Field(
        "none",
        description="dynamic sampling: keep groups whose raw or shaped rewards differ",
    )
    max_candidates: Count = Field(
        8, description="with a filter: candidate groups at most, per trained group"
    )

    @property
    def n_rows(self) -> int:
        """Answers of a step."""
        return self.n_groups * self.group_size

    @property
    def n_candidates(self) -> int:
        """Groups sampled in a step."""
        return self.n_groups * (1 if self.filter == "none" else self.max_candidates)

    @property
    def n_updates(self) -> int:
        """Optimizer updates of a step."""
        return self.n_epochs * self.n_mini_batches

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.n_rows % self.n_mini_batches:
            raise ValueError(
                f"{self.n_rows} answers a step do not divide by n_mini_batches "
                f"{self.n_mini_batches}; choose a divisor"
            )
        return self


class Mode(Config):
    """One line of a comparison."""

    name: str
    objective: Objective = Objective()
    training: Training = Training()
