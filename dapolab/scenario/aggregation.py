"""Tables of how per-token losses become one number; the names are verl's where verl has one.

With n_i the tokens of response i, N the responses and S a constant, the weight of one token is

=========================  =======================================
token-mean                 1/Σn
seq-mean-token-mean        1/(N·n_i)
seq-mean-token-sum         1/N
seq-mean-token-sum-norm    1/(N·S)
prompt-mean                1/(n_groups·Σ n of its group)
token-sum                  1
=========================  =======================================
"""

from typing import Annotated, Literal

from pydantic import Field

from dapolab.scenario.config import Config, Count, Positive

InOut = Literal["in", "out"]
"""Whether something counts in a denominator."""

Micro = Literal["global", "mean", "rows", "sum"]
"""How micro-batches and ranks are put together.

``global``: denominators of the whole update, whatever the split. Else every micro-batch has its own
denominators and its loss is weighted by 1/(micro-batches of the rank) (``mean``), by its share of
the rank's responses (``rows``) or by 1 (``sum``); ranks are averaged, as DDP and FSDP do.
"""


class TokenMean(Config):
    """Mean over the tokens of the whole update (DAPO Eq. 8 as run; verl ≥ 0.8, OpenRLHF, NeMo RL).

    ``filtered_tokens="in"`` counts the tokens that filtering or rejection took out of the loss
    (ms-swift, TRL before #6439, verl V1 with rejection); ``empty_row_tokens=1`` counts a fully
    masked response as one token (miles#2796, slime). Both shrink the update (field case B07).
    """

    kind: Literal["token-mean"] = "token-mean"
    filtered_tokens: InOut = "out"
    empty_row_tokens: Literal[0, 1] = 0


class TokenMeanMicro(Config):
    """Token mean of each micro-batch, then their average: depends on the packing (field case B01).

    ``mean``: TRL bnpo, SkyRL token_mean_legacy, verl's legacy actor with fixed micro-batches;
    ``rows``: verl's legacy actor with dynamic batch size, weights n_m/n (dp_actor.py, v0.7.0:464).
    """

    kind: Literal["token-mean-micro"] = "token-mean-micro"
    combine: Literal["mean", "rows", "sum"] = "mean"


class GenerationWindow(Config):
    """Token sum over the tokens of a whole generation batch (TRL dapo, cispo, vespo).

    A generation batch holds ``steps_per_generation`` micro-steps, an update
    ``gradient_accumulation_steps`` of them. ``trl-1.16`` divides by the window's average tokens
    (grpo_trainer.py:3168-3173), ``trl-1.10`` by all tokens of the generation, which scales the
    update by accumulation/steps (trl#5619); ``ms-swift`` divides the update's token mean once more
    by the accumulation steps (ms-swift#10117, field case B10).
    """

    kind: Literal["generation-window"] = "generation-window"
    variant: Literal["trl-1.16", "trl-1.10", "ms-swift"] = "trl-1.16"
    gradient_accumulation_steps: Count = 1
    steps_per_generation: Count = 1
    filtered_tokens: InOut = "out"


class SeqMeanTokenMean(Config):
    """Mean over responses of their token means (GRPO; TRL grpo, slime and ROLL default)."""

    kind: Literal["seq-mean-token-mean"] = "seq-mean-token-mean"
    empty_rows: InOut = Field("in", description="fully masked responses in the denominator")
    micro: Micro = "global"


class SeqMeanTokenSum(Config):
    """Mean over responses of their token sums (TRL luspo, ROLL).

    ``verl-3a27a98`` is the first version of verl, which divided by the length here too (verl#911,
    field case B04).
    """

    kind: Literal["seq-mean-token-sum"] = "seq-mean-token-sum"
    empty_rows: InOut = Field("in", description="fully masked responses in the denominator")
    micro: Micro = "global"
    variant: Literal["standard", "verl-3a27a98"] = "standard"


class SeqMeanTokenSumNorm(Config):
    """Mean over responses of their token sums, over a constant (Dr. GRPO).

    The constant has no default: the padded width of a batch is none (field case B03) and must be
    asked for by name. ``rows="sum"`` adds responses instead of averaging them (verl 0.4 to 0.7.0).
    """

    kind: Literal["seq-mean-token-sum-norm"] = "seq-mean-token-sum-norm"
    constant: Positive | Literal["padded-width"] = Field(
        description="S in tokens, usually the cap; or padded-width (verl without a factor, ROLL)"
    )
    rows: Literal["mean", "sum"] = "mean"
    empty_rows: InOut = Field("in", description="fully masked responses in the denominator")
    micro: Micro = "global"


class PromptMean(Config):
    """Token mean inside each prompt's group, then over groups (DAPO Eq. 12, SkyRL prompt_mean)."""

    kind: Literal["prompt-mean"] = "prompt-mean"
    empty_groups: InOut = Field("in", description="fully masked groups in the denominator")


class TokenSum(Config):
    """Plain sum over tokens (tinker; verl ≥ 0.9.0 token-sum)."""

    kind: Literal["token-sum"] = "token-sum"


Aggregation = Annotated[
    TokenMean
    | TokenMeanMicro
    | GenerationWindow
    | SeqMeanTokenMean
    | SeqMeanTokenSum
    | SeqMeanTokenSumNorm
    | PromptMean
    | TokenSum,
    Field(discriminator="kind"),
]
