"""What a sampler that is not the policy does to the first gradient, exactly."""

from dataclasses import dataclass, replace

from dapolab.bandit.answers import Bandit
from dapolab.bandit.arms import ArmBandit
from dapolab.bandit.gradients import expected_gradient
from dapolab.bandit.settings import Mode
from dapolab.errors import ConfigError
from dapolab.scenario import SamplerCorrection
from dapolab.stats import Estimate


@dataclass(frozen=True)
class GradientError:
    """Of the first update, relative to the length of the expected on-policy gradient."""

    bias_share: float
    """|E[g] − E[g on-policy]|."""
    cosine: float
    """Between the two expectations."""
    sd_share: float
    """√trace Cov(g)."""
    sd_on_policy_share: float
    """The same where the sampler is the policy."""


def gradient_error(bandit: ArmBandit, mode: Mode) -> GradientError:
    """Compare the mode with the same objective, uncorrected, under a sampler that is the policy.

    Raises
    ------
    ConfigError
        If there are too many groups to enumerate (``expected_gradient``).
    """
    exact = replace(bandit, sampler_temperature=1.0, sampler_shift_PA=None)
    plain = mode.objective.model_copy(update={"sampler": SamplerCorrection()})
    ideal = expected_gradient(exact, mode.model_copy(update={"objective": plain}))
    found = expected_gradient(bandit, mode)
    size = float(ideal.mean.norm())
    product = float(found.mean @ ideal.mean)
    return GradientError(
        bias_share=float((found.mean - ideal.mean).norm()) / size,
        cosine=product / (float(found.mean.norm()) * size),
        sd_share=found.variance**0.5 / size,
        sd_on_policy_share=ideal.variance**0.5 / size,
    )


def gradient_estimates(bandit: Bandit, mode: Mode) -> dict[str, Estimate]:
    """Return ``gradient/…``: the errors as exact numbers; none where the sampler is the policy.

    None either where there are too many groups to enumerate: the curves remain.
    """
    if not isinstance(bandit, ArmBandit) or (
        bandit.sampler_temperature == 1.0 and bandit.sampler_shift_PA is None
    ):
        return {}
    try:
        error = gradient_error(bandit, mode)
    except ConfigError:
        return {}
    return {
        "gradient/bias_share": Estimate.exact(error.bias_share, unit="share"),
        "gradient/cosine": Estimate.exact(error.cosine, unit="cosine"),
        "gradient/sd_share": Estimate.exact(error.sd_share, unit="ratio"),
    }
