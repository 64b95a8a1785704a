"""What a clip does to the gradient of one token, in closed form (theory.md D1)."""

import math

from dapolab.scenario.clip import (
    CispoClip,
    Clip,
    ClipCov,
    DppoKlClip,
    DppoTvClip,
    DroClip,
    GmpoClip,
    GpgClip,
    GspoClip,
    KlCov,
    LuspoClip,
    NoClip,
    PpoClip,
    SapoClip,
    VespoClip,
)

# Probability under the old policy where a mask looks at probabilities and not at ratios.
OLD_PROBABILITY = 0.5


def slope(clip: Clip, ratio: float, *, advantage: float, p_old: float = OLD_PROBABILITY) -> float:
    """Return −∂loss/∂log π over the advantage, for a response of one token at this ratio.

    1 is plain policy gradient, 0 a token without a gradient. For sequence-level clips all tokens of
    the response have this ratio; VESPO's weight is that of the whole sequence. LUSPO's factor of
    length is left out. Of Clip-Cov and KL-Cov it is that of a token that was not chosen.

    Parameters
    ----------
    clip
        The surrogate.
    ratio
        π_current/π_old of the token, above 0.
    advantage
        Not 0; its sign decides for most, its size for DRO alone.
    p_old
        Probability of the token under the old policy; only DPPO looks at it.
    """
    bound = getattr(clip, "log_ratio_clamp", None)
    if bound is not None and abs(math.log(ratio)) > bound:
        return _beyond_clamp(clip, ratio, bound, advantage)
    match clip:
        case NoClip() | KlCov():
            return ratio
        case PpoClip() | GspoClip() | LuspoClip() | ClipCov():
            return ratio if _inside(clip, ratio, advantage) else 0.0
        case CispoClip():
            low, high = _cispo_bounds(clip)
            return min(max(ratio, low), high)
        case SapoClip():
            tau = clip.tau_positive if advantage > 0 else clip.tau_negative
            return ratio / math.cosh(tau * (ratio - 1) / 2) ** 2
        case GmpoClip():
            log_ratio = math.log(ratio)
            stays = log_ratio <= clip.high if advantage > 0 else log_ratio >= -clip.low
            return ratio if stays else 0.0
        case VespoClip():
            k, lam = (
                (clip.k_positive, clip.lambda_positive)
                if advantage >= 0
                else (clip.k_negative, clip.lambda_negative)
            )
            log_w = math.log(ratio)
            if clip.log_weight_clamp:
                log_w = min(max(log_w, math.log(1e-8)), 20.0)
            return math.exp(lam + k * log_w - lam * math.exp(log_w))
        case DppoTvClip() | DppoKlClip():
            capped = ratio if clip.cap is None else min(ratio, clip.cap)
            return capped if _dppo_keeps(clip, ratio, advantage, p_old) else 0.0
        case GpgClip():
            return 1.0
        case DroClip():
            return 1.0 - clip.beta * math.log(ratio) / advantage


def _beyond_clamp(clip: Clip, ratio: float, bound: float, advantage: float) -> float:
    """Weights without gradient stay at the clamped ratio, everything else loses its gradient."""
    if isinstance(clip, CispoClip | VespoClip | DppoTvClip | DppoKlClip):
        nearest = math.exp(math.copysign(bound, math.log(ratio)) * (1 - 1e-12))
        return slope(clip, nearest, advantage=advantage)
    return 0.0


def _inside(clip: PpoClip | GspoClip | LuspoClip | ClipCov, ratio: float, advantage: float) -> bool:
    """Say whether the ratio still moves the loss."""
    delta: float | None = getattr(clip, "delta", None)
    dual_c: float | None = getattr(clip, "dual_c", None)
    if advantage > 0:
        return ratio <= min(1 + clip.high, math.inf if delta is None else delta)
    top = math.inf if delta is None else max(1 + clip.high, delta)
    return 1 - clip.low <= ratio <= min(top, dual_c or math.inf)


def _cispo_bounds(clip: CispoClip) -> tuple[float, float]:
    if clip.bounds == "absolute":
        return clip.low or 0.0, clip.high
    return (0.0 if clip.low is None else 1 - clip.low), 1 + clip.high


def _dppo_keeps(
    clip: DppoTvClip | DppoKlClip, ratio: float, advantage: float, p_old: float
) -> bool:
    p = min(ratio * p_old, 1.0)
    if isinstance(clip, DppoTvClip):
        return p - p_old <= clip.high if advantage > 0 else p - p_old >= -clip.low
    floor = 1e-8  # verl core_algos.py:1460-1542
    rest = (1 - p_old) * math.log((1 - p_old + floor) / (1 - p + floor))
    divergence = p_old * math.log(p_old / p) + rest
    if advantage > 0:
        return divergence <= clip.high or p <= p_old
    return divergence <= clip.low or p >= p_old
