"""Which way the first update pushes lengths, pass rate and entropy, per unit of learning rate.

The expected gradient's own direction: exact where the batches can be enumerated or a closed form
exists, else the mean over sampled gradients with its interval.
"""

import torch
from torch import Tensor

from dapolab.bandit.answers import Bandit
from dapolab.bandit.curves import POLICY_METRICS, UNITS
from dapolab.bandit.gradients import expected_gradient, sampled_gradients
from dapolab.bandit.hazard import HazardBandit
from dapolab.bandit.hazard_exact import expected_hazard_gradient
from dapolab.bandit.settings import Mode
from dapolab.errors import ConfigError
from dapolab.stats import Estimate, mean_estimate

PREFIX = "first/"
"""Of the names of these metrics: ``first/length/right`` is d(length/right) by the first update."""


def first_drift(
    bandit: Bandit, mode: Mode, *, seed: int = 0, n_samples: int = 2000
) -> dict[str, Estimate]:
    """Return d(metric)/d(learning rate) at the start for each exact metric of the policy.

    In the metric's unit per unit of learning rate, along the mode's geometry: the gradient, the
    natural gradient, or Adam's first step, which is g/(|g| + eps) of each sampled batch and has no
    closed form. With a filter the exact number is that of an endless refill.

    Parameters
    ----------
    n_samples
        Gradients that are sampled where there is no exact expectation.
    """
    slopes = _slopes(bandit)
    expected = None if mode.training.geometry == "adam" else _expected(bandit, mode)
    if expected is not None:
        step = _step(bandit, mode, expected.unsqueeze(0))
        found = _whole_zeros(slopes @ step.T)[:, 0].tolist()
        exact = zip(POLICY_METRICS, found, strict=True)
        return {f"{PREFIX}{m}": Estimate.exact(x, unit=UNITS[m]) for m, x in exact}
    gradients = sampled_gradients(bandit, mode, n_samples=n_samples, seed=seed)
    samples = _whole_zeros(_step(bandit, mode, gradients) @ slopes.T).numpy()
    return {
        f"{PREFIX}{metric}": mean_estimate(samples[:, k], unit=UNITS[metric])
        for k, metric in enumerate(POLICY_METRICS)
    }


def _expected(bandit: Bandit, mode: Mode) -> Tensor | None:
    """Return E[−∂loss/∂θ], (D,), or None where it is not to be had exactly."""
    try:
        if isinstance(bandit, HazardBandit):
            return expected_hazard_gradient(bandit, mode)
        return expected_gradient(bandit, mode).mean
    except ConfigError:
        return None


def _step(bandit: Bandit, mode: Mode, gradient_RD: Tensor) -> Tensor:
    geometry = mode.training.geometry
    if geometry == "natural":
        return bandit.natural(bandit.start.expand_as(gradient_RD), gradient_RD)
    if geometry == "adam":
        return gradient_RD / (gradient_RD.abs() + mode.training.adam_eps)
    return gradient_RD


def _whole_zeros(drift: Tensor) -> Tensor:
    """Return the drift with what is a rounding error of zero set to it."""
    return torch.where(drift.abs() < 1e-12, 0.0, drift)


def _slopes(bandit: Bandit) -> Tensor:
    """Return ∂metric/∂θ at the start, (metrics, D)."""

    def metrics(theta: Tensor) -> Tensor:
        found = bandit.expectations(theta.unsqueeze(0))
        return torch.stack([found[name][0] for name in POLICY_METRICS])

    slopes: Tensor = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
        metrics, bandit.start
    )
    return slopes
