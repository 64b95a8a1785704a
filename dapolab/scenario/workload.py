"""Tables of the workload: prompts, lengths, pass rates, and how they hang together."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dapolab.scenario.config import Config, Count, NonNegative, Positive, Share


class Prompts(Config):
    """The prompt set and how an epoch walks through it."""

    count: Count = Field(17_126, description="prompts in the set")
    tokens_median: Positive = Field(150.0, description="median prompt length, tokens")
    tokens_sigma: NonNegative = Field(0.0, description="sd of log prompt length between prompts")
    reshuffle: bool = Field(True, description="new order each epoch (verl); false: 06-dapo wraps")
    drop_last: bool = Field(
        False, description="drop the tail of an epoch that does not fill a generation batch (verl)"
    )
    epochs: Count | None = Field(None, description="epochs until the data run out; absent: endless")


class Drift(Config):
    """How the workload moves: with the trained steps, or with a prompt's own visits.

    By step it moves the same for all policies. By visit a prompt moves each time that one of its
    groups is trained, and policies part with what they train: an assumption, since no measurement
    tells how much of a prompt's gain is its own. Where every prompt is trained once an epoch both
    are the same from epoch to epoch: B/N of a visit a step (B groups a step, N prompts).
    """

    logit_per_step: float = Field(0.0, description="added to each prompt's logit pass rate, a step")
    log_tokens_per_step: float = Field(0.0, description="added to each log length, a step")
    logit_per_visit: float = Field(
        0.0, description="added to a prompt's logit each time it is trained (an assumption)"
    )
    log_tokens_per_visit: float = Field(
        0.0, description="added to its log length each time it is trained (an assumption)"
    )

    @property
    def by_visit(self) -> bool:
        """Whether a prompt moves with its own visits."""
        return bool(self.logit_per_visit or self.log_tokens_per_visit)

    @property
    def moves(self) -> bool:
        """Whether anything moves."""
        return self.by_visit or bool(self.logit_per_step or self.log_tokens_per_step)


class JointWorkload(Config):
    """Length level and logit pass rate of a prompt jointly normal; stop or loop; then the cap.

    log length of a response that stops = log(median_tokens) + level + correct_effect·correct + ε,
    with level ~ N(0, prompt_share·sigma²) and ε ~ N(0, (1 − prompt_share)·sigma²).

    An unsolvable prompt (too hard, mislabelled, its answer not parsed) is one like the others whose
    pass rate is ``guess_rate``: 0 where nothing can be guessed, 1/4 of four choices. Its own logit
    still moves its lengths and loops, a right guess is as long as a right answer, and its cut
    answers are judged like all cut answers. Training teaches no guess: drift of pass rates leaves
    ``guess_rate`` where it is, that of lengths moves it like all.
    """

    kind: Literal["joint"] = "joint"
    prompts: Prompts = Prompts()
    median_tokens: Positive = Field(2000.0, description="median length of wrong answers that stop")
    sigma: NonNegative = Field(0.8, description="sd of log length, latent (before the cap)")
    prompt_share: Share = Field(0.75, description="share of sigma² that lies between prompts")
    correct_effect: float = Field(0.0, description="δ: log-length shift of correct answers")
    mean_logit: float = Field(0.0, description="mean of the prompts' logit pass rate")
    sd_logit: NonNegative = Field(2.0, description="sd of the prompts' logit pass rate")
    unsolvable_share: Share = Field(
        0.0, description="share of prompts whose pass rate is guess_rate whatever their logit"
    )
    guess_rate: float = Field(
        0.0, ge=0, lt=1, description="pass rate of unsolvable prompts: their answers are guesses"
    )
    correlation: float = Field(0.0, ge=-1, le=1, description="of length level and logit pass rate")
    loop_share: Share = Field(0.0, description="mean probability that a response never stops")
    loop_sd_logit: NonNegative = Field(0.0, description="sd between prompts of the loop's logit")
    loop_correlation: float = Field(
        0.0, ge=-1, le=1, description="of the loop's logit and the logit pass rate"
    )
    p_correct_if_truncated: Share = Field(0.0, description="P(judged correct | cut at the cap)")
    native_cap_tokens: Count | None = Field(
        None, description="cap of the data behind the fit; a larger cap extrapolates"
    )
    drift: Drift = Drift()
    draws: str | None = Field(
        None, description="table of bootstrap draws of these parameters, relative to this file"
    )
    source: str = Field("", description="where the numbers come from")

    @model_validator(mode="after")
    def _some_guess(self) -> Self:
        # Ignored, it would be taken for a floor under every prompt's pass rate.
        if self.guess_rate > 0.0 and self.unsolvable_share == 0.0:
            raise ValueError("guess_rate is that of unsolvable prompts: set unsolvable_share too")
        return self


class ConstantLengths(Config):
    """Every response has the same length."""

    kind: Literal["constant"] = "constant"
    tokens: Count = 1000


class GeometricLengths(Config):
    """Geometric on 1, 2, …: a constant chance to stop at each token."""

    kind: Literal["geometric"] = "geometric"
    mean_tokens: float = Field(1000.0, ge=1)


class ExponentialLengths(Config):
    """Exponential, rounded up to whole tokens."""

    kind: Literal["exponential"] = "exponential"
    mean_tokens: Positive = 1000.0


class LognormalLengths(Config):
    """Lognormal, rounded up; ``prompt_share`` of sigma² is common to a group."""

    kind: Literal["lognormal"] = "lognormal"
    median_tokens: Positive = 1000.0
    sigma: NonNegative = 0.9
    prompt_share: Share = 0.0


class WeibullLengths(Config):
    """Weibull, rounded up."""

    kind: Literal["weibull"] = "weibull"
    scale_tokens: Positive = 1500.0
    shape: Positive = 0.7


class ParetoLengths(Config):
    """Pareto, rounded up."""

    kind: Literal["pareto"] = "pareto"
    minimum_tokens: Positive = 500.0
    alpha: Positive = 1.5


class EmpiricalLengths(Config):
    """Any finite law: ``tokens`` with their ``weights`` (equal where absent)."""

    kind: Literal["empirical"] = "empirical"
    tokens: tuple[Count, ...] = Field(min_length=1)
    weights: tuple[NonNegative, ...] | None = None

    @model_validator(mode="after")
    def _weights_match(self) -> Self:
        if self.weights is not None:
            if len(self.weights) != len(self.tokens):
                raise ValueError("weights and tokens differ in number")
            if sum(self.weights) <= 0:
                raise ValueError("weights sum to zero")
        return self


Lengths = Annotated[
    ConstantLengths
    | GeometricLengths
    | ExponentialLengths
    | LognormalLengths
    | WeibullLengths
    | ParetoLengths
    | EmpiricalLengths,
    Field(discriminator="kind"),
]


class FixedPassRate(Config):
    """Every prompt has the same pass rate."""

    kind: Literal["fixed"] = "fixed"
    p: Share = 0.5


class MixedProbability(Config):
    """The pass rate ≤ ½ at which a group is mixed with probability ``p_mixed`` (theory's q)."""

    kind: Literal["p_mixed"] = "p_mixed"
    p_mixed: Share = 0.5


class BetaPassRate(Config):
    """Pass rates ~ Beta(a, b) over prompts."""

    kind: Literal["beta"] = "beta"
    a: Positive = 1.0
    b: Positive = 1.0


class LogitNormalPassRate(Config):
    """Logit pass rates ~ N(mean_logit, sd_logit²) over prompts."""

    kind: Literal["logit_normal"] = "logit_normal"
    mean_logit: float = 0.0
    sd_logit: NonNegative = 2.0


class ListedPassRate(Config):
    """A finite list of pass rates, one drawn for each prompt."""

    kind: Literal["listed"] = "listed"
    values: tuple[Share, ...] = Field(min_length=1)


PassRate = Annotated[
    FixedPassRate | MixedProbability | BetaPassRate | LogitNormalPassRate | ListedPassRate,
    Field(discriminator="kind"),
]


class IndependentWorkload(Config):
    """Lengths independent of correctness: the assumption of most closed forms."""

    kind: Literal["independent"] = "independent"
    prompts: Prompts = Prompts()
    lengths: Lengths = LognormalLengths()
    pass_rate: PassRate = FixedPassRate()
    p_correct_if_truncated: Share | None = Field(
        None, description="P(judged correct | cut at the cap); absent: the cut changes nothing"
    )
    native_cap_tokens: Count | None = Field(
        None, description="cap of the data behind the law; a larger cap extrapolates"
    )
    drift: Drift = Drift()
    source: str = ""


class ReplayWorkload(Config):
    """Recorded groups: G of a group's n responses, without replacement."""

    kind: Literal["replay"] = "replay"
    prompts: Prompts = Field(
        Prompts(), description="count is taken from the file; the walk is as stated"
    )
    file: str = Field(description="table of records (Parquet, CSV, JSONL), relative to this file")
    p_correct_if_truncated: Share = Field(
        0.0, description="for truncated rows whose correctness is missing"
    )
    source: str = ""


Workload = Annotated[
    JointWorkload | IndependentWorkload | ReplayWorkload, Field(discriminator="kind")
]
