"""Tables of the learner: what a step pays besides the rollout, and when."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dapolab.scenario.config import Config, Count, NonNegative, Share
from dapolab.scenario.schedule import Schedule, Synchronous


class Packing(Config):
    """Micro-batches by a token budget, on ranks that wait for the slowest.

    The learner's seconds a token are those of all ranks together: with equal ranks, no padding and
    no ``micro_batch_s``, packing changes nothing.
    """

    gpus_per_rank: Count = Field(1, description="tensor, pipeline and context parallel together")
    micro_batch_tokens: Count = Field(
        16_384, description="tokens of a micro-batch, padding included (ppo_max_token_len_per_gpu)"
    )
    micro_batch_s: NonNegative = Field(0.0, description="once a micro-batch, on its rank")
    padding: Literal["none", "longest"] = Field(
        "none", description="remove padding, or pad to the longest of the micro-batch"
    )
    padded_token_share: Share = Field(1.0, description="cost of a padded token over a real one")
    balance: Literal["tokens", "order"] = Field(
        "tokens", description="equal counts a rank: by tokens (verl balance_batch), or in order"
    )
    sort: bool = Field(False, description="micro-batches by decreasing length instead of in order")


class Learner(Config):
    """What a step pays besides the rollout; ``schedule`` says whether beside it or after it."""

    schedule: Schedule = Synchronous()
    gpus: Count | None = Field(None, description="absent: the rollout's GPUs (colocated)")
    measured_on_gpus: Count | None = Field(
        None, description="seconds a token are for so many GPUs and scale; absent: for its own"
    )
    packing: Packing | None = None
    noise_cv: NonNegative = Field(
        0.0, description="coefficient of variation of a step's seconds beyond its tokens (Gamma)"
    )
    old_logprob_s_per_token: NonNegative = 0.0
    reference_s_per_token: NonNegative = 0.0
    update_s_per_token: NonNegative = 0.0
    update_fixed_s: NonNegative = Field(0.0, description="once an optimizer update")
    updates_per_step: Count = 1
    sync_s: NonNegative = Field(0.0, description="weights to the rollout engine, once a step")
    reward_s_per_response: NonNegative = Field(
        0.0, description="one after the other; beside the rollout (fully async): group by group"
    )
    fixed_s: NonNegative = Field(0.0, description="anything else, once a step")
    validation_s: NonNegative = 0.0
    validation_every: Count | None = None
    checkpoint_s: NonNegative = 0.0
    checkpoint_every: Count | None = None

    @model_validator(mode="after")
    def _has_gpus(self) -> Self:
        if self.schedule.kind != "sync" and self.gpus is None:
            raise ValueError(
                f'schedule.kind "{self.schedule.kind}" runs the learner beside the rollout: say '
                "learner.gpus, how many are its own"
            )
        return self
