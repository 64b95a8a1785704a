"""Tables of the machines: decode laws, speculative decoding, rollout replicas."""

import itertools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dapolab.scenario.config import Config, Count, NonNegative, Positive, Share


class PresetLaw(Config):
    """Published coefficients, by name (see dapolab/sim/hardware.py for the list and sources)."""

    kind: Literal["preset"] = "preset"
    name: str = "qwen3-8b-h100-tp1"
    scale: Positive = Field(1.0, description="one scalar on every term (calibration)")


class AffineLaw(Config):
    """Seconds of an iteration: a + b·n + c·K + max(0, s·x − slack) + q·Σ x_j·context_j."""

    kind: Literal["affine"] = "affine"
    a_s: NonNegative = Field(0.00659, description="fixed seconds of an iteration")
    b_s: NonNegative = Field(1.19e-5, description="seconds per decoding response")
    c_s: NonNegative = Field(4.68e-8, description="seconds per context token")
    prefill_s: NonNegative = Field(1.87e-5, description="s: seconds per prefilled token")
    prefill_slack_s: NonNegative = Field(0.0, description="prefill hidden in the iteration")
    prefill_context_s: NonNegative = Field(0.0, description="q: seconds per token × context")
    source: str = ""

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.a_s == 0 and self.b_s == 0 and self.c_s == 0:
            raise ValueError("a_s, b_s and c_s are all zero: decoding would take no time")
        return self


class PiecewiseLaw(Config):
    """As affine, with b(n) piecewise linear and concave (mixture of experts)."""

    kind: Literal["piecewise"] = "piecewise"
    a_s: NonNegative = 0.0
    n_knots: tuple[NonNegative, ...] = Field(min_length=2, description="batch sizes, increasing")
    b_knots_s: tuple[NonNegative, ...] = Field(min_length=2, description="b(n) at the knots")
    c_s: NonNegative = 0.0
    prefill_s: NonNegative = 0.0
    prefill_slack_s: NonNegative = 0.0
    prefill_context_s: NonNegative = 0.0
    source: str = ""

    @model_validator(mode="after")
    def _concave(self) -> Self:
        n, b = self.n_knots, self.b_knots_s
        if len(n) != len(b):
            raise ValueError("n_knots and b_knots_s differ in number")
        if any(right <= left for left, right in itertools.pairwise(n)):
            raise ValueError("n_knots must increase")
        slopes = [(b[i + 1] - b[i]) / (n[i + 1] - n[i]) for i in range(len(n) - 1)]
        if any(slope < 0 for slope in slopes):
            raise ValueError("b_knots_s must not decrease")
        if any(later > earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(slopes)):
            raise ValueError("b(n) must be concave: its slopes must not increase")
        return self


class FirstPrinciplesLaw(Config):
    """Weights and KV bytes over bandwidth, flops over peak (see sim/hardware.py)."""

    kind: Literal["first_principles"] = "first_principles"
    gpu: str = Field("h100", description="a GPU of the table in sim/hardware.py")
    tensor_parallel: Count = 1
    parameters: Positive = Field(8.19e9, description="weights read by a decode iteration")
    layers: Count = 36
    kv_heads: Count = 8
    head_dim: Count = 128
    bytes_per_weight: Positive = 2.0
    bytes_per_kv: Positive = 2.0
    bandwidth_efficiency: Share = 0.8
    flops_efficiency: Share = 0.5
    launch_s: NonNegative = Field(0.0005, description="fixed overhead of an iteration")
    per_sequence_s: NonNegative = Field(1e-5, description="sampler and scheduling, per response")


Law = Annotated[
    PresetLaw | AffineLaw | PiecewiseLaw | FirstPrinciplesLaw, Field(discriminator="kind")
]


class Speculation(Config):
    """Speculative decoding while few responses decode, as in the long tail of a rollout.

    A response drafts k tokens an iteration and has k + 1 verified, of which it gains
    E = (1 − α^(k+1))/(1 − α) on average (Leviathan et al., arXiv 2211.17192, Eq. 1). Time is a mean
    field: a token takes 1/E of such an iteration, without luck. While a response has not prefilled
    all of its context the others decode plainly, with lockstep those of other replicas too. Drafted
    tokens take no KV.
    """

    draft_tokens: Count = Field(description="k: drafted an iteration (num_speculative_tokens)")
    acceptance: Share = Field(description="α: probability that a drafted token is accepted")
    draft_s: NonNegative = Field(
        description="seconds of each of the k draft passes over a batch; 0: n-gram lookup"
    )
    verify_s: NonNegative = Field(
        0.0, description="seconds of a verification beyond those of (k + 1)·n tokens in b(n)"
    )
    max_batch: Count = Field(
        description="speculates while a replica (with lockstep: each one) decodes at most so many "
        "(disable_by_batch_size)"
    )


class Hardware(Config):
    """The rollout engine: replicas that run continuous batching."""

    law: Law = PresetLaw()
    replicas: Count = 1
    gpus_per_replica: Count = 1
    slots: Count = Field(256, description="responses a replica decodes at once (max_num_seqs)")
    kv_capacity_tokens: Count | None = Field(None, description="per replica; absent: no limit")
    token_budget: Count | None = Field(
        None, description="max_num_batched_tokens: tokens an iteration may take; absent: no limit"
    )
    prefill: bool = Field(
        True, description="false: a prompt costs nothing, L tokens take L iterations"
    )
    prefix_cache: bool = Field(True, description="a group's prompt is computed and stored once")
    max_groups_in_flight: Count | None = Field(None, description="per replica; absent: no limit")
    dispatch: Literal["chunks", "round_robin", "least_loaded", "sticky", "shared"] = "chunks"
    dispatch_by: Literal["group", "response"] = "group"
    lockstep: bool = Field(False, description="one clock for all replicas (data + expert parallel)")
    call_overhead_s: NonNegative = Field(0.0, description="once before each barrier wave")
    poll_s: NonNegative = Field(0.0, description="an end is seen at the next multiple of this")
    speculation: Speculation | None = None

    @model_validator(mode="after")
    def _speculates(self) -> Self:
        if self.speculation is None:
            return self
        verified = (self.speculation.draft_tokens + 1) * self.speculation.max_batch
        if self.token_budget is not None and self.token_budget < verified:
            raise ValueError(
                f"token_budget {self.token_budget} cannot hold the {verified} tokens that "
                "speculation verifies at its max_batch; raise the budget or lower max_batch"
            )
        return self
