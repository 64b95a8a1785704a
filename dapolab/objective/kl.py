"""Estimators of the KL divergence to a reference policy, token by token."""

import torch
from torch import Tensor

from dapolab.scenario import Kl


def kl_estimate(log_ratio: Tensor, config: Kl) -> Tensor:
    """Estimate KL(π‖reference) at tokens sampled from π (Schulman 2020; verl core_algos:2187-2250).

    Parameters
    ----------
    log_ratio
        d = log π − log π_ref, clean.

    Returns
    -------
    k1 = d, abs = |d|, k2 = d²/2 or k3 = e^(−d) − 1 + d, clamped as the config says; same shape.
    As a loss k1 has zero expected gradient on policy; ``straight_through`` gives any of them that
    of k2, which is the gradient of the true KL (verl's "k3+").
    """
    value = _value(log_ratio, config)
    if not config.straight_through:
        return value
    square = 0.5 * log_ratio.square()
    return square + (value - square).detach()


def _value(d: Tensor, config: Kl) -> Tensor:
    if config.estimator == "k1":
        return d
    if config.estimator == "abs":
        return d.abs()
    if config.estimator == "k2":
        return 0.5 * d.square()
    bound = config.log_ratio_clamp
    inner = d if bound is None else d.clamp(-bound, bound)
    k3 = torch.expm1(-inner) + inner
    return k3 if config.value_clamp is None else k3.clamp(max=config.value_clamp)


def kl_slope(log_ratio: Tensor, config: Kl) -> Tensor:
    """Return the derivative of ``kl_estimate`` with respect to log π."""
    d = log_ratio
    if config.straight_through or config.estimator == "k2":
        return d
    if config.estimator == "k1":
        return torch.ones_like(d)
    if config.estimator == "abs":
        return d.sign()
    slope = -torch.expm1(-d)
    bound = config.log_ratio_clamp
    if bound is not None:
        slope = slope.masked_fill(d.abs() > bound, 0.0)
    if config.value_clamp is not None:
        slope = slope.masked_fill(_value(d, config) >= config.value_clamp, 0.0)
    return slope
