"""Tables of what a step wants and of the policies that collect it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dapolab.scenario.config import Config, Count, NonNegative, Positive

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


class NoFilter(Config):
    """Train every group of one wave."""

    kind: Literal["none"] = "none"
    budget: Budget = Budget()


class FilterNoRefill(Config):
    """One wave; degenerate groups leave, nothing replaces them."""

    kind: Literal["filter_no_refill"] = "filter_no_refill"
    budget: Budget = Budget()


class ExactRefill(Config):
    """Waves of exactly the missing number of groups (agentic-rl-lab 06-dapo)."""

    kind: Literal["exact_refill"] = "exact_refill"
    max_candidate_multiplier: Count | None = Field(
        2, description="M: at most M·B candidates; absent: no cap"
    )
    at_cap: Literal["partial", "error"] = Field(
        "partial", description="train what was kept (4eb1b05), or end the run (6db470a)"
    )
    concurrent_groups: Count | None = Field(None, description="semaphore on groups (06-dapo: 16)")
    max_waves: Count = Field(10_000, description="guard where no cap is set")
    budget: Budget = Budget()


class Rounds(Config):
    """Whole generation batches until enough groups are kept (verl's DAPO recipe)."""

    kind: Literal["rounds"] = "rounds"
    gen_groups: Count | None = Field(None, description="gen_batch_size; absent: 3·B")
    max_num_gen_batches: int = Field(10, description="≤ 0: no limit (verl)")
    at_max: Literal["error", "stop"] = "error"
    max_waves: Count = Field(1_000, description="guard where no limit is set")
    budget: Budget = Budget()


class Replenish(Config):
    """B groups in flight; each dropped group is replaced by one (OpenRLHF)."""

    kind: Literal["replenish"] = "replenish"
    max_candidates: Count | None = Field(
        None, description="guard (OpenRLHF has no limit); absent: 1000·B"
    )
    budget: Budget = Budget()


class Streaming(Config):
    """``slots`` groups always in flight; stop at B kept, abort the rest."""

    kind: Literal["streaming"] = "streaming"
    slots: Count | None = Field(None, description="K groups in flight; absent: 2·B")
    max_candidates: Count | None = Field(None, description="guard; absent: 1000·B")
    budget: Budget = Budget()


class OverProvision(Config):
    """Launch η·B groups at once, the first B that pass win, abort the rest."""

    kind: Literal["over_provision"] = "over_provision"
    eta: float = Field(1.5, ge=1, description="launched groups over wanted groups")
    filter: bool = Field(True, description="only groups with spread may win")
    budget: Budget = Budget()


class VerlV1(Config):
    """Each evicted group buys two new ones, then all in flight are waited for (verl 0.9, V1)."""

    kind: Literal["verl_v1"] = "verl_v1"
    max_inflight_gen_batches: Count = Field(1, description="at most this times B groups in flight")
    max_candidates: Count | None = Field(
        None, description="guard (verl V1 has no limit); absent: 1000·B"
    )
    budget: Budget = Budget()


Collector = Annotated[
    NoFilter
    | FilterNoRefill
    | ExactRefill
    | Rounds
    | Replenish
    | Streaming
    | OverProvision
    | VerlV1,
    Field(discriminator="kind"),
]
COLLECTOR_KINDS: tuple[str, ...] = (
    "none",
    "filter_no_refill",
    "exact_refill",
    "rounds",
    "replenish",
    "streaming",
    "over_provision",
    "verl_v1",
)
