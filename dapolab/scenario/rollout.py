"""What one training step wants and may spend, whatever the policy that collects it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dapolab.scenario.config import Config, Count, NonNegative, Positive
from dapolab.scenario.selection import Selection, UniformSelection
from dapolab.scenario.service import Failures, RewardService, ToolCalls

# A group whose filter metric spreads (max − min) by no more than this has no signal. Sums of equal
# non-dyadic floats give a std of 1e-17 to 3e-8; the smallest spread meant by anyone is 1e-5.
SPREAD_TOLERANCE = 1e-8


class Overlong(Config):
    """Soft overlong punishment (DAPO Eq. 13): 0 to −factor over the last buffer_tokens."""

    buffer_tokens: Count = 1024
    factor: NonNegative = 1.0


class Rollout(Config):
    """The batch that one training step wants."""

    groups_per_step: Count = Field(4, description="B: groups (prompts) trained in a step")
    group_size: Count = Field(8, description="G: responses a prompt (rollout.n)")
    cap_tokens: Count = Field(4096, description="longest response; longer ones are truncated")
    overlong: Overlong | None = None
    filter_metric: Literal["correct", "shaped"] = Field(
        "correct", description="what the group filter compares: raw correctness or shaped reward"
    )
    singletons: Literal["keep", "drop"] = Field(
        "keep", description="a group of one has no spread; verl keeps it"
    )
    reward: RewardService | None = None
    failures: Failures | None = None
    tools: ToolCalls | None = None
    selection: Selection = UniformSelection()
    order: Literal["submission", "longest_first"] = Field(
        "submission",
        description="in which the groups of a submission enter the engine; longest_first by "
        "predicted length (deal replicas by round_robin or one shared queue: chunks would give all "
        "long ones to the first)",
    )
    predictor_sigma: NonNegative = Field(
        0.0, description="sd of the predicted log length about the group's true mean; 0: oracle"
    )

    resumed: Literal["first", "last"] = Field(
        "first",
        description="where unfinished answers queue when they go on (partial rollout, interrupted "
        "by new weights): before the new prompts of that instant (slime's buffer, APRIL, verl's "
        "cancel_queue) or behind them",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.overlong is not None and self.overlong.buffer_tokens > self.cap_tokens:
            raise ValueError(
                f"overlong.buffer_tokens {self.overlong.buffer_tokens} exceeds cap_tokens "
                f"{self.cap_tokens}: every answer would be punished; lower the buffer"
            )
        return self


class Budget(Config):
    """What may be spent on one step; the first limit reached ends the collection."""

    seconds: Positive | None = None
    candidate_tokens: Count | None = None
    train_tokens: Count | None = None
