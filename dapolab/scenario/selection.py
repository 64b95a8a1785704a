"""Which prompts of the stream are sampled at all: decided before the rollout, from the past."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dapolab.scenario.config import Config, Positive, Share


class UniformSelection(Config):
    """Every prompt in its turn."""

    kind: Literal["uniform"] = "uniform"


class GresoSelection(Config):
    """Prompts that gave no signal lately are skipped with a probability that adapts (GRESO).

    A prompt whose last z outcomes were all-right groups is sampled with probability
    max(p_easy^z, p_sampled_min), one whose last z were all-wrong with max(p_hard^z, …). After each
    step from the second epoch on, each p moves by ``step``: down where the share of such groups in
    the step reached its target, else up (arXiv 2506.02177; its code,
    verl/trainer/ppo/ray_trainer.py, "adjust exploration factor").
    """

    kind: Literal["greso"] = "greso"
    target_degenerate_share: Share = Field(0.25, description="of the groups of a step")
    easy_share_of_target: Share = Field(1 / 3, description="of the target: all-right groups")
    p_easy: Share = Field(0.5, description="base of the chance after all-right groups, at first")
    p_hard: Share = Field(0.5, description="base of the chance after all-wrong groups, at first")
    step: Share = Field(0.01, description="by which a base moves, a training step")
    p_min: Share = Field(0.05, description="lowest base")
    p_max: Share = Field(0.95, description="highest base")
    p_sampled_min: Positive = Field(0.01, le=1, description="lowest chance of any prompt")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.p_min > self.p_max:
            raise ValueError(f"p_min {self.p_min:g} lies above p_max {self.p_max:g}")
        return self


class OracleSelection(Config):
    """Only prompts whose true pass rate lies in a band now: a bound on what selection can give."""

    kind: Literal["oracle"] = "oracle"
    lowest: Share = Field(0.1, description="smallest pass rate that is sampled")
    highest: Share = Field(0.9, description="largest pass rate that is sampled")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lowest > self.highest:
            raise ValueError(f"lowest {self.lowest:g} lies above highest {self.highest:g}")
        return self


class SolvedOutSelection(Config):
    """A prompt once answered right at this rate leaves for good (open-instruct).

    ``no_resampling_pass_rate`` of open_instruct/data_loader.py: one visit decides, by ``>=``; hard
    prompts stay.
    """

    kind: Literal["solved_out"] = "solved_out"
    pass_rate: Share = Field(0.875, description="share of right answers in one visit that ends it")


class MoppsSelection(Config):
    """Of many candidates those whose drawn pass rate lies nearest the target (MoPPS).

    Each prompt has a Beta posterior. A submission of n prompts looks at the next
    candidate_ratio·n of the stream, draws a pass rate of each from its posterior (Thompson) and
    takes the n nearest the target; the others are passed over. Of a prompt that returned with s
    right answers of k, α ← λ·α + (1 − λ)·α₀ + s and β ← λ·β + (1 − λ)·β₀ + k − s (arXiv
    2507.04632; verl recipe/mopps/mopps.py, strategy "topk"). There the batch is in order of
    distance, here in the stream's.
    """

    kind: Literal["mopps"] = "mopps"
    candidate_ratio: float = Field(
        8.0, ge=1, description="candidates over prompts taken (ts_ratio; its scripts: 8 and 16)"
    )
    target_pass_rate: Share = 0.5
    decay: Share = Field(
        1.0, description="λ, weight of what was heard before (bandit_decay_ratio; countdown: .5)"
    )
    prior_right: Positive = Field(1.0, description="α₀")
    prior_wrong: Positive = Field(1.0, description="β₀")


Selection = Annotated[
    UniformSelection | GresoSelection | OracleSelection | SolvedOutSelection | MoppsSelection,
    Field(discriminator="kind"),
]
