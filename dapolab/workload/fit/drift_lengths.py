"""How lengths move with trained steps: log mean length is a line, fitted to a mean a step."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from dapolab.scenario import ConfigError
from dapolab.workload.fit.result import Estimate

FEWEST_STEPS = 4


@dataclass(frozen=True)
class LengthDrift:
    """Fitted drift of log mean length; ``residual_sd`` is that of the steps about the line."""

    first_step: int
    log_mean_tokens: Estimate
    log_tokens_per_step: Estimate
    residual_sd: float
    n_steps: int
    mean_step: float = field(repr=False)
    spread: float = field(repr=False)

    def predict(self, step: ArrayLike, *, level: float = 0.9) -> pd.DataFrame:
        """Return the mean length of steps, tokens: ``step, mean_tokens, low, high``."""
        steps = np.asarray(step, dtype=np.float64)
        slope = self.log_tokens_per_step.value
        line = self.log_mean_tokens.value + slope * (steps - self.first_step)
        far = (steps - self.mean_step) ** 2 / self.spread
        quantile = float(stats.t.ppf(0.5 + level / 2, self.n_steps - 2))
        half = quantile * self.residual_sd * np.sqrt(1.0 + 1.0 / self.n_steps + far)
        return pd.DataFrame(
            {
                "step": steps,
                "mean_tokens": np.exp(line),
                "low": np.exp(line - half),
                "high": np.exp(line + half),
            }
        )


def fit_length_drift(step: ArrayLike, mean_tokens: ArrayLike) -> LengthDrift:
    """Fit log mean length as a line in the step, one row a step (ordinary least squares).

    It is the drift of the latent lengths only while few answers reach the cap.

    Raises
    ------
    ConfigError
        Fewer than 4 steps, or a mean that is not positive.
    """
    steps, tokens = np.asarray(step, dtype=np.float64), np.asarray(mean_tokens, dtype=np.float64)
    if len(np.unique(steps)) < FEWEST_STEPS:
        raise ConfigError(f"a drift needs at least {FEWEST_STEPS} steps")
    if not (np.isfinite(tokens) & (tokens > 0)).all():
        raise ConfigError("mean lengths must be positive numbers")
    first = int(steps.min())
    line = stats.linregress(steps - first, np.log(tokens))
    t99 = float(stats.t.ppf(0.995, len(steps) - 2))
    residual = np.log(tokens) - line.intercept - line.slope * (steps - first)
    return LengthDrift(
        first_step=first,
        log_mean_tokens=estimate_of(line.intercept, t99 * line.intercept_stderr, "log tokens"),
        log_tokens_per_step=estimate_of(line.slope, t99 * line.stderr, "log tokens/step"),
        residual_sd=float(np.sqrt((residual**2).sum() / (len(steps) - 2))),
        n_steps=len(steps),
        mean_step=float(steps.mean()),
        spread=float(((steps - steps.mean()) ** 2).sum()),
    )


def estimate_of(value: float, half: float, unit: str) -> Estimate:
    """Return value ± half."""
    return Estimate(float(value), float(value - half), float(value + half), unit)
