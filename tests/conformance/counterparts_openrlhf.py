"""Which of dapolab's settings compute what OpenRLHF's ``PolicyLoss`` computes."""

from typing import Any

from dapolab.scenario import Clip, GspoClip, PpoClip, Rejection, SamplerCorrection

LOW, HIGH, DUAL_C = 0.2, 0.28, 3.0
BAND = [0.7, 1.5]

LOSSES: dict[str, tuple[dict[str, Any], Clip]] = {
    "ppo": ({}, PpoClip(low=LOW, high=HIGH, log_ratio_clamp=20.0)),
    "ppo dual": (
        {"dual_clip": DUAL_C},
        PpoClip(low=LOW, high=HIGH, dual_c=DUAL_C, log_ratio_clamp=20.0),
    ),
    "gspo": ({"policy_loss_type": "gspo"}, GspoClip(low=LOW, high=HIGH)),
}


def _gated(estimator: str, level: str, upper: float) -> SamplerCorrection:
    """Return a gate whose survivors keep their tokens' weights."""
    scope = "token" if level == "token" else "response"
    lower = BAND[0] if estimator == "k1" else 0.0
    rule = Rejection(estimator=estimator, level=level, scope=scope, lower=lower, upper=upper)  # type: ignore[arg-type]
    return SamplerCorrection(level="token", upper=None, rejection=(rule,))


CORRECTIONS: dict[str, tuple[dict[str, Any], SamplerCorrection]] = {
    "off": ({"is_correction_level": "off"}, SamplerCorrection()),
    "token clip ratio": (
        {"is_correction_level": "token", "is_correction_mode": "clip"}
        | {"is_correction_threshold": BAND},
        SamplerCorrection(level="token", lower=BAND[0], upper=BAND[1]),
    ),
    "token mask ratio": (
        {"is_correction_level": "token", "is_correction_threshold": BAND},
        SamplerCorrection(level="token", action="band", lower=BAND[0], upper=BAND[1]),
    ),
    "seq mask ratio": (
        {"is_correction_level": "seq", "is_correction_threshold": [0.95, 1.1]},
        SamplerCorrection(level="token", upper=None, rejection=(Rejection(lower=0.95, upper=1.1),)),
    ),
    **{
        f"{level} mask {gating}": (
            {"is_correction_level": level, "is_correction_gating": gating}
            | {"is_correction_threshold": [0.0, delta]},
            _gated(gating, {"token": "token", "seq": "geometric"}[level], delta),
        )
        for level, gating, delta in (
            ("token", "tv", 0.05),
            ("token", "binary_kl", 0.01),
            ("seq", "tv", 0.06),
            ("seq", "binary_kl", 0.015),
        )
    },
}
