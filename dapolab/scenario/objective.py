"""Table of the objective: advantage, surrogate, aggregation, sampler correction, KL, length.

Plain frozen data without torch; ``dapolab.objective`` computes it. The parts live in
``advantage``, ``clip`` and ``aggregation`` beside this module.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dapolab.scenario.advantage import Advantage, GrpoAdvantage
from dapolab.scenario.aggregation import Aggregation, InOut, TokenMean
from dapolab.scenario.clip import Clip, PpoClip
from dapolab.scenario.config import Config, Count, NonNegative, Positive


class Rejection(Config):
    """Responses or tokens that leave the loss because sampler and old policy differ too much.

    With d = log(old/sampler) of a token the estimator is k1 = d, k2 = d²/2 or k3 = e^d − 1 − d; or,
    with p the sampler's and q the old policy's probability of the token, the divergence of "this
    token or another": tv = |p − q|, binary_kl = p·log(p/q) + (1 − p)·log((1 − p)/(1 − q)) (OpenRLHF
    is_correction_gating; unlike DPPO's masks, ``clip``, whichever way the advantage pushes).

    Its level is that of any token (``token``), the sum over the response (``sequence``) or the
    mean (``geometric``). For k1 ``lower`` and ``upper`` bound the ratio e^k1, for the others
    ``upper`` bounds the estimate. Outside, the response goes; with scope ``token`` that token alone
    (verl token_k1, token_k2, token_k3; response scope at this level is its seq_max).
    """

    estimator: Literal["k1", "k2", "k3", "tv", "binary_kl"] = "k1"
    level: Literal["token", "sequence", "geometric"] = "geometric"
    scope: Literal["response", "token"] = "response"
    lower: NonNegative = 0.0
    upper: Positive = 2.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.lower > self.upper:
            raise ValueError(f"lower {self.lower} exceeds upper {self.upper}: nothing is left")
        if self.estimator != "k1" and self.lower > 0:
            raise ValueError(f"{self.estimator} is no ratio: it has an upper bound alone")
        if self.scope == "token" and self.level != "token":
            raise ValueError(
                f'scope "token" needs level "token": a {self.level} statistic is one a response'
            )
        return self


class SamplerCorrection(Config):
    """What is done about a sampler that is not the trainer's old policy.

    The weight w is the ratio old/sampler of a token, of the sequence (product) or its geometric
    mean, without gradient. ``truncate``: min(w, upper) (TIS; a lower bound raises what is below);
    ``band``: w inside [lower, upper], 0 outside (IcePop; TRL's mask modes with lower absent);
    ``mask``: 1 inside, 0 outside; ``reject``: as ``mask``, for the whole response as soon as one of
    its weights is outside. An absent bound is open. A response or token stays only if every one of
    the ``rejection`` rules lets it.
    """

    level: Literal["none", "token", "sequence", "geometric"] = "none"
    action: Literal["truncate", "band", "mask", "reject"] = "truncate"
    lower: NonNegative | None = None
    upper: Positive | None = 2.0
    log_ratio_clamp: Positive | None = Field(
        None, description="bound on the |log w| before exp (verl: 20)"
    )
    normalise: Literal["none", "kept", "tokens", "responses"] = Field(
        "none",
        description="divide by the mean weight of the update: of the tokens that are kept, of all "
        "tokens with what a band set to 0 (verl token), or of responses (verl sequence)",
    )
    pooling: Literal["none", "geometric"] = Field(
        "none",
        description="one weight a response, the geometric mean of its tokens' weights + 1e-10 "
        "(verl geo_mean)",
    )
    bypass: bool = Field(
        False, description="the sampler stands in for old: the clip acts on current/sampler"
    )
    applies: Literal["multiplies", "replaces", "enters"] = Field(
        "multiplies",
        description="w times the surrogate, or −A·w·log π with w of current/sampler in its place, "
        "or w enters the sequence weight that VESPO gates (TRL)",
    )
    rejection: tuple[Rejection, ...] = ()
    rejected_in_denominator: bool = Field(
        True,
        description="rejected tokens still count in the denominators. verl counts them in "
        "token-mean alone: its sequence modes are false here, with empty_rows in",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ValueError(f"lower {self.lower} exceeds upper {self.upper}: nothing is left")
        return self


class Kl(Config):
    """KL to the reference policy, as a penalty of the reward or as a loss (Schulman's estimators).

    With d = log π − log π_ref: k1 = d, abs = |d|, k2 = d²/2, k3 = e^(−d) − 1 + d.
    """

    place: Literal["loss", "reward"] = "loss"
    estimator: Literal["k1", "abs", "k2", "k3"] = "k3"
    coefficient: NonNegative = 0.001
    straight_through: bool = Field(
        False, description="value of the estimator, gradient of k2 (verl's suffix +)"
    )
    log_ratio_clamp: Positive | None = Field(None, description="bound on |d| in k3 (verl: 20)")
    value_clamp: Positive | None = Field(None, description="bound on |k3| (verl: 10)")
    ratio_weight: Literal["none", "detached", "attached"] = Field(
        "none", description="times π/π_old without (NeMo RL) or with gradient (TRL bias correction)"
    )
    ratio_level: Literal["token", "sequence"] = Field(
        "token",
        description="that ratio is the token's, or exp of the response's mean log ratio (TRL with "
        "importance_sampling_level sequence)",
    )


class OverlongPenalty(Config):
    """Soft overlong punishment (DAPO Eq. 13): 0 to −factor over the last buffer_tokens.

    Beyond the cap: ``clamped`` stays at −factor (paper, TRL, OpenRLHF, 06-dapo), ``unclamped`` goes
    on falling (verl, AReaL, NeMo RL, ms-swift), ``zero_reward`` sets the whole reward to 0 (SkyRL's
    DAPO example). A buffer of 0 is a step beyond the cap.
    """

    cap_tokens: Count
    buffer_tokens: int = Field(ge=0)
    factor: NonNegative = 1.0
    beyond: Literal["clamped", "unclamped", "zero_reward"] = "clamped"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer_tokens > self.cap_tokens:
            raise ValueError(
                f"buffer_tokens {self.buffer_tokens} exceeds cap_tokens {self.cap_tokens}: every "
                "answer would be punished; lower the buffer"
            )
        return self


class Length(Config):
    """What a response's length does to its reward and to the loss."""

    penalty: OverlongPenalty | None = None
    mask_truncated: bool = Field(
        False, description="overlong filtering: truncated responses leave the loss"
    )
    truncated_scale: float | None = Field(
        None, description="factor on the reward of truncated responses (OpenRLHF, NeMo RL)"
    )
    truncated_reward: float | None = Field(
        None, description="reward of truncated responses, whatever they earned (OpenRLHF)"
    )

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.truncated_scale is not None and self.truncated_reward is not None:
            raise ValueError("truncated_scale and truncated_reward exclude each other; set one")
        return self


class Objective(Config):
    """One objective. The defaults are DAPO's token-level loss with a symmetric clip."""

    advantage: Advantage = GrpoAdvantage()
    clip: Clip = PpoClip()
    aggregation: Aggregation = TokenMean()
    sampler: SamplerCorrection = SamplerCorrection()
    kl: Kl | None = None
    length: Length = Length()
    entropy_coef: NonNegative = 0.0
    entropy_aggregation: Aggregation | None = Field(
        None, description="of the entropy bonus; absent: that of the loss (TRL: token-mean-micro)"
    )
    off_policy_kl: NonNegative | None = Field(
        None,
        description="responses with A < 0 whose mean log(sampler/current) exceeds this lose their "
        "surrogate (DeepSeek-V3.2; TRL off_policy_mask_threshold, slime OPSM)",
    )
    top_entropy_share: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="only this share of tokens, of highest entropy, keeps its surrogate"
    )
    degenerate_groups: InOut = Field(
        "in", description="groups without spread in the loss's denominators, or left out"
    )

    @model_validator(mode="after")
    def _one_ratio(self) -> Self:
        replaced = self.sampler.applies == "replaces"
        if replaced and self.clip.kind not in ("none", "gpg"):
            raise ValueError(
                f'sampler.applies = "replaces" leaves no ratio for clip "{self.clip.kind}"; set '
                'clip.kind = "none" or applies = "multiplies"'
            )
        enters = self.sampler.applies == "enters"
        if enters and (self.clip.kind != "vespo" or self.sampler.level == "none"):
            raise ValueError(
                'sampler.applies = "enters" is for clip "vespo" with sampler.level token, sequence '
                'or geometric; set applies = "multiplies"'
            )
        weighs = self.sampler.level != "none" and self.sampler.action in ("truncate", "band")
        if self.sampler.bypass and weighs and not replaced:
            raise ValueError(
                f'sampler.bypass makes the ratio current/sampler: action "{self.sampler.action}" '
                'would count it twice; set action = "mask" or "reject", or level = "none"'
            )
        return self
