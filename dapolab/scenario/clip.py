"""Tables of the per-token surrogate: what the ratio r = π_current/π_old may do to the gradient.

``low`` and ``high`` are distances from 1 (0.2 and 0.28, not 0.8 and 1.28) unless said otherwise.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dapolab.scenario.config import Config, NonNegative, Positive

Share = Annotated[float, Field(gt=0, le=1)]
DualC = Annotated[float, Field(gt=1)]


class _Ratio(Config):
    """A surrogate of the ratio; log r may be clamped to ±log_ratio_clamp, gradient 0 outside."""

    log_ratio_clamp: Positive | None = Field(
        None, description="bound on |log r| (verl and OpenRLHF: 20); absent: none"
    )


class _Band(_Ratio):
    low: NonNegative = Field(0.2, description="ε_low")
    high: NonNegative = Field(0.2, description="ε_high")


class NoClip(_Ratio):
    """Importance sampling without a clip: −A·r (tinker importance_sampling)."""

    kind: Literal["none"] = "none"


class PpoClip(_Band):
    """PPO's pessimistic clip; high > low is DAPO's clip-higher (DAPO Eq. 8).

    ``dual_c`` bounds the loss of A < 0 at −c·A (dual clip, Ye et al. 2019; verl 3.0 by default);
    ``delta`` caps the ratio of the unclipped term (two-sided clip, TRL).
    """

    kind: Literal["ppo"] = "ppo"
    dual_c: DualC | None = None
    delta: Positive | None = None


class GspoClip(_Band):
    """Clip of the sequence ratio s = exp(mean log r) (GSPO; use with seq-mean-token-mean).

    ``sequence_token`` (GSPO-token; verl) keeps the value s and sends each token its own gradient;
    the two have one gradient where A is constant over a response. ``log_ratio_cap`` bounds log s
    from above (verl: 10). TRL with importance_sampling_level "sequence" is ``sequence``.
    """

    kind: Literal["gspo"] = "gspo"
    low: NonNegative = 3e-4
    high: NonNegative = 4e-4
    level: Literal["sequence", "sequence_token"] = "sequence"
    log_ratio_cap: float | None = None
    dual_c: DualC | None = None
    delta: Positive | None = None


class LuspoClip(_Band):
    """GSPO's clipped surrogate times the response's length (LUSPO; use with seq-mean-token-mean).

    The product makes every response count by its tokens; GSPO with seq-mean-token-sum is the same.
    TRL takes the ratio's level from importance_sampling_level.
    """

    kind: Literal["luspo"] = "luspo"
    low: NonNegative = 3e-4
    high: NonNegative = 4e-4
    level: Literal["token", "sequence"] = "sequence"


class CispoClip(_Ratio):
    """Truncated weight without gradient, −sg(clip(r))·A·log π (CISPO, MiniMax-M1 Eq. 4).

    ``band``: r in [1 − low, 1 + high] (verl, slime); ``absolute``: r in [low, high] (TRL: cap only;
    tinker: 0 and 4). An absent low leaves the lower side open. Level ``sequence``: r = exp(mean log
    ratio) for all tokens of a response (TRL with importance_sampling_level sequence).
    """

    kind: Literal["cispo"] = "cispo"
    level: Literal["token", "sequence"] = "token"
    bounds: Literal["band", "absolute"] = "band"
    low: NonNegative | None = None
    high: NonNegative = 0.2


class SapoClip(_Ratio):
    """Soft gate instead of a clip: −(4/τ)·σ(τ(r − 1))·A, τ by the sign of A (SAPO).

    Level ``sequence`` gates exp(mean log ratio), of which all tokens of a response share the
    gradient (TRL with importance_sampling_level sequence; the paper gates tokens).
    """

    kind: Literal["sapo"] = "sapo"
    level: Literal["token", "sequence"] = "token"
    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05


class GmpoClip(_Band):
    """Geometric mean of ratios that are clipped in log space (GMPO; verl geo_mean).

    log r is kept within [−low, high]. The loss of a response is −Ā·exp(mean), on each of its
    tokens: use with seq-mean-token-mean. verl ignores its aggregation setting here and adds
    micro-batches up: seq-mean-token-mean with micro "sum".
    """

    kind: Literal["gmpo"] = "gmpo"
    low: NonNegative = 0.4
    high: NonNegative = 0.4


class VespoClip(_Ratio):
    """Smooth gate of the sequence weight w: −sg(e^λ·w^k·e^(−λw))·A·log π (VESPO; TRL vespo)."""

    kind: Literal["vespo"] = "vespo"
    k_positive: Positive = 2.0
    lambda_positive: Positive = 3.0
    k_negative: Positive = 3.0
    lambda_negative: Positive = 2.0
    log_weight_clamp: bool = Field(False, description="log w kept within [log 1e-8, 20] (TRL)")


class _Dppo(_Band):
    cap: Positive | None = Field(20.0, description="upper cap of r (verl: clip_ratio_c, 3.0)")
    surrogate: Literal["log_prob", "ratio"] = Field(
        "log_prob", description="−A·sg(r)·log π (verl) or −A·r (prime-rl): one gradient, two values"
    )
    log_ratio_penalty: NonNegative = Field(0.0, description="times (log r)² (prime-rl: 1e-3)")


class DppoTvClip(_Dppo):
    """A token is left out once its probability moved too far the way A pushes (DPPO, binary TV)."""

    kind: Literal["dppo_tv"] = "dppo_tv"


class DppoKlClip(_Dppo):
    """The same with the binary KL divergence of old from current (DPPO, binary KL)."""

    kind: Literal["dppo_kl"] = "dppo_kl"


class GpgClip(Config):
    """Plain policy gradient, −A·log π; no ratio, no old policy (GPG)."""

    kind: Literal["gpg"] = "gpg"


class DroClip(Config):
    """Direct reward optimisation, −(A·log π − β/2·(log r)²) (DRO; verl dro)."""

    kind: Literal["dro"] = "dro"
    beta: Positive


class ClipCov(_Band):
    """PPO clip, and a random few tokens of high covariance lose their loss (Clip-Cov).

    Of the unclipped tokens whose centred product of advantage and log π lies between the two
    bounds, max(⌊share·tokens⌋, 1) drawn at random get loss 0.
    """

    kind: Literal["clip_cov"] = "clip_cov"
    share: Share = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.cov_high <= self.cov_low:
            raise ValueError("cov_high must exceed cov_low, or no token can be chosen")
        return self


class KlCov(_Ratio):
    """−A·r, and the tokens of highest covariance pay coef·|log r| (KL-Cov)."""

    kind: Literal["kl_cov"] = "kl_cov"
    share: Share = 2e-4
    coef: NonNegative = 0.1


Clip = Annotated[
    NoClip
    | PpoClip
    | GspoClip
    | LuspoClip
    | CispoClip
    | SapoClip
    | GmpoClip
    | VespoClip
    | DppoTvClip
    | DppoKlClip
    | GpgClip
    | DroClip
    | ClipCov
    | KlCov,
    Field(discriminator="kind"),
]
