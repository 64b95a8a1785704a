"""Seconds of later steps from their own lengths: how well the linear law carries, by itself.

A backtest predicts lengths too; this asks less. A regression of a time on
one + longest response + tokens is fitted on some steps and predicts others from their lengths, each
with a 90 % interval (noise of a step and uncertainty of the fit).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from dapolab.errors import ConfigError
from dapolab.fidelity.regression import solve
from dapolab.fidelity.steps import MAX_TOKENS, MEAN_TOKENS, column, n_responses, prompt_tokens
from dapolab.scenario import Rollout

Floats = NDArray[np.float64]
_FEWEST = 8


@dataclass(frozen=True, eq=False)
class GivenLengths:
    """Predicted and measured seconds of the judged steps.

    ``coverage`` is the share of the measured steps inside their 90 % intervals, ``error_share``
    the mean of |predicted/measured − 1|, ``total_error_share`` the error of the sum.
    """

    predicted: Floats
    measured: Floats
    low: Floats
    high: Floats
    n_fitted: int

    @property
    def coverage(self) -> float:
        """Share of steps inside their intervals."""
        return float(((self.measured >= self.low) & (self.measured <= self.high)).mean())

    @property
    def error_share(self) -> float:
        """Mean over steps of the absolute relative error."""
        return float(np.abs(self.predicted / self.measured - 1).mean())

    @property
    def total_error_share(self) -> float:
        """Relative error of the sum over steps."""
        return float(self.predicted.sum() / self.measured.sum() - 1)


def given_lengths(
    fitted: pd.DataFrame,
    judged: pd.DataFrame,
    *,
    seconds: str,
    rollout: Rollout,
    level: float = 0.90,
) -> GivenLengths:
    """Fit ``seconds`` of some steps on their lengths; predict those of others.

    Raises
    ------
    ConfigError
        Fewer than eight steps with the time and the mean length on either side.
    """
    x_fit, y_fit = _design(fitted, seconds, rollout)
    x_judge, y_judge = _design(judged, seconds, rollout)
    if min(len(y_fit), len(y_judge)) < _FEWEST:
        raise ConfigError(f"{seconds}: needs {_FEWEST} steps with it and their lengths")
    # a first pass that loads and compiles tells nothing of the others
    keep = y_fit < 3 * np.median(y_fit)
    x_fit, y_fit = x_fit[keep], y_fit[keep]
    used = np.ptp(x_fit, axis=0) > 0
    used[0] = True
    found = solve(x_fit[:, used], y_fit, y_fit)
    predicted = x_judge[:, used] @ found.theta_K
    fit_variance = ((x_judge[:, used] @ found.covariance_KK) * x_judge[:, used]).sum(axis=1)
    freedom = max(len(y_fit) - int(used.sum()), 1)
    factor = float(special.stdtrit(freedom, 0.5 + level / 2))
    half = factor * np.sqrt((found.sigma * predicted) ** 2 + fit_variance)
    return GivenLengths(predicted, y_judge, predicted - half, predicted + half, len(y_fit))


def _design(frame: pd.DataFrame, seconds: str, rollout: Rollout) -> tuple[Floats, Floats]:
    y = column(frame, seconds)
    n = n_responses(frame, rollout)
    mean, longest = column(frame, MEAN_TOKENS), column(frame, MAX_TOKENS)
    longest = np.where(np.isnan(longest), 0.0, longest)
    tokens = n * (mean + prompt_tokens(frame, rollout))
    good = np.isfinite(y) & np.isfinite(tokens) & (y > 0)
    return np.stack([np.ones(len(y)), longest, tokens], axis=1)[good], y[good]
