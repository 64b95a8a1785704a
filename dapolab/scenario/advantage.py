"""Tables of how rewards become advantages; groups are told apart by id, never by position."""

from typing import Annotated, Literal

from pydantic import Field

from dapolab.scenario.config import Config, NonNegative, Positive, Share

Member = Literal["count", "baseline_only", "exclude"]
"""What a member of some status does.

``count``: in the baseline and trained; ``baseline_only``: in the baseline, its own advantage is 0
(open-instruct, which drops rows after normalising); ``exclude``: neither.
"""
Singletons = Literal["zero", "raw", "error"]
"""A group of one: advantage 0, its plain reward (verl grpo, over 1 + eps), or an error."""


class _Advantage(Config):
    truncated: Member = "count"
    aborted: Member = "exclude"
    rejected: Member = "exclude"


class _Grouped(_Advantage):
    singletons: Singletons = "zero"


class GrpoAdvantage(_Grouped):
    """(r − group mean)/(group std + eps) (GRPO; DAPO Eq. 9)."""

    kind: Literal["grpo"] = "grpo"
    ddof: Literal[0, 1] = Field(1, description="1: torch.std (verl, TRL); 0: np.std")
    eps: NonNegative = Field(1e-6, description="verl 1e-6, TRL 1e-4, 06-dapo 1e-8")


class MeanOnlyAdvantage(_Grouped):
    """r − group mean (Dr. GRPO, tinker, prime-rl)."""

    kind: Literal["mean_only"] = "mean_only"


class GpgAdvantage(_Grouped):
    """α·(r − group mean), α = responses over responses with a reward other than 0 (verl gpg).

    α makes up for right-or-wrong groups only where wrong scores 0: with rewards ±1 it is 1.
    """

    kind: Literal["gpg"] = "gpg"


class LeaveOneOutAdvantage(_Grouped):
    """r − mean of the others, over their std + eps where it is > 0 (NeMo RL's default)."""

    kind: Literal["leave_one_out"] = "leave_one_out"
    ddof: Literal[0, 1] = 1
    eps: NonNegative = 1e-6


class RlooAdvantage(_Grouped):
    """r − mean of the others (RLOO)."""

    kind: Literal["rloo"] = "rloo"


class BatchStdAdvantage(_Grouped):
    """(r − group mean)/(std of the batch + eps) (TRL scale_rewards="batch").

    The std is that of all raw rewards, not of the centred ones.
    """

    kind: Literal["batch_std"] = "batch_std"
    ddof: Literal[0, 1] = 1
    eps: NonNegative = 1e-4


class MaxRlAdvantage(_Grouped):
    """(r − group mean)/(group mean + eps) where the mean is not 0 (MaxRL; prime-rl, SkyRL)."""

    kind: Literal["max_rl"] = "max_rl"
    eps: NonNegative = 0.0


class OpoAdvantage(_Grouped):
    """r − length-weighted group mean, Σ n·r/Σ n (OPO)."""

    kind: Literal["opo"] = "opo"


class ReinforcePpAdvantage(_Advantage):
    """Discounted reward-to-go, whitened over the tokens of the batch (REINFORCE++)."""

    kind: Literal["reinforce_pp"] = "reinforce_pp"
    gamma: Share = 1.0
    whiten: bool = True


class ReinforcePpBaselineAdvantage(_Grouped):
    """r − group mean, whitened over the tokens of the batch (REINFORCE++-baseline)."""

    kind: Literal["reinforce_pp_baseline"] = "reinforce_pp_baseline"
    whiten: bool = True


class RemaxAdvantage(_Advantage):
    """Reward-to-go less the reward of the greedy response (ReMax)."""

    kind: Literal["remax"] = "remax"


class PassAtKAdvantage(_Grouped):
    """Only the best of a group learns: best less second best, over std + eps (verl grpo_passk)."""

    kind: Literal["pass_at_k"] = "pass_at_k"
    divide_by_std: bool = True
    eps: NonNegative = 1e-6
    singletons: Singletons = "error"


class GdpoAdvantage(_Grouped):
    """GRPO of each reward on its own, weighted sum, whitened (GDPO; TRL normalize_then_sum)."""

    kind: Literal["gdpo"] = "gdpo"
    weights: tuple[float, ...] = Field((), description="one a reward; empty: all 1")
    ddof: Literal[0, 1] = 1
    eps: NonNegative = 1e-6
    whiten: Literal["tokens", "rows", "none"] = Field(
        "tokens", description="over tokens (verl), over responses (TRL) or not at all"
    )


class OptimalTokenBaselineAdvantage(_Grouped):
    """Reward-to-go less a baseline of each token, Σ G·W/(Σ W + eps) (verl optimal_token_baseline).

    W cumulates 1 − 2π + Σπ² along a response. The group is compared column by column
    (``position``), or its t-th response tokens are (``token``; verl tir_optimal_token_baseline):
    the two differ where tool output leaves holes in a mask. What the longest response has to
    itself has baseline 0, so a group of equal rewards still learns there.
    """

    kind: Literal["optimal_token_baseline"] = "optimal_token_baseline"
    align: Literal["position", "token"] = "position"
    eps: NonNegative = 1e-8


class GaeAdvantage(_Advantage):
    """Generalised advantage estimation, with VAPO's decoupled and length-adaptive λ.

    ``critic_lam`` (VAPO: 1.0) is λ of the value targets, absent: the policy's. With
    ``length_alpha`` (VAPO: 0.05) the policy's λ of a response of l tokens is 1 − 1/(α·l), at
    least 0 (VAPO Eq. 9), and ``lam`` is not used.
    """

    kind: Literal["gae"] = "gae"
    gamma: Share = 1.0
    lam: Share = 1.0
    critic_lam: Share | None = None
    length_alpha: Positive | None = None
    whiten: bool = True


Advantage = Annotated[
    GrpoAdvantage
    | MeanOnlyAdvantage
    | GpgAdvantage
    | LeaveOneOutAdvantage
    | RlooAdvantage
    | BatchStdAdvantage
    | MaxRlAdvantage
    | OpoAdvantage
    | ReinforcePpAdvantage
    | ReinforcePpBaselineAdvantage
    | RemaxAdvantage
    | PassAtKAdvantage
    | GdpoAdvantage
    | OptimalTokenBaselineAdvantage
    | GaeAdvantage,
    Field(discriminator="kind"),
]
