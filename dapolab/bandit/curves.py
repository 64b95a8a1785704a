"""What training tells: one array a metric, and tables of means with intervals over the seeds."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from dapolab.metrics import PROMPT_ACCURACY
from dapolab.stats import Estimate, mean_estimate

UNITS = {
    "length/right": "tokens",
    "length/wrong": "tokens",
    "length/mean": "tokens",
    "reward/accuracy": "share",
    "entropy/answer": "nats",
    "clip/upper_share": "share",
    "clip/lower_share": "share",
    "rollout/effective_group_ratio": "share",
    "rollout/effective_fill_ratio": "share",
}
"""Metric -> unit, in the order in which they are shown."""
POLICY_METRICS = tuple(UNITS)[:5]
"""Exact functions of the policy; they exist at every point of a curve."""


def unit_of(metric: str) -> str:
    """Return the metric's unit; a prompt's pass rate is a share."""
    return "share" if metric.startswith(PROMPT_ACCURACY) else UNITS[metric]


@dataclass(frozen=True)
class Curves:
    """One mode's curves."""

    mode: str
    steps: tuple[int, ...]
    """S points, from 0."""
    values: dict[str, npt.NDArray[np.float64]]
    """Metric -> (S, R), one column a seed; what a point does not have is NaN."""
    theta: npt.NDArray[np.float64]
    """(R, D) parameters at the end."""

    def change(self, metric: str) -> npt.NDArray[np.float64]:
        """Return end minus start of each seed, (R,)."""
        values = self.values[metric]
        return np.asarray(values[-1] - values[0])


def final_estimates(curves: Curves) -> dict[str, Estimate]:
    """Return each metric at the end, and ``change/…`` of the policy's since the start.

    99 % intervals over seeds (Student). A metric that a seed lacks (a length given wrong once
    nothing is wrong any more) is left out.
    """
    prompts = [metric for metric in curves.values if metric.startswith(PROMPT_ACCURACY)]
    found: dict[str, Estimate] = {}
    for metric in (*UNITS, *prompts):
        last = curves.values.get(metric, np.array([[np.nan]]))[-1]
        if np.isfinite(last).all():
            found[metric] = _estimate(last, unit=unit_of(metric))
    for metric in (*POLICY_METRICS, *prompts):
        change = curves.change(metric)
        if np.isfinite(change).all():
            found[f"change/{metric}"] = mean_estimate(change, unit=unit_of(metric))
    return found


def curve_table(runs: Iterable[Curves]) -> pd.DataFrame:
    """Return one row a mode, metric and point: mode, metric, unit, step, mean, low, high, n."""
    rows = []
    for run in runs:
        for metric, values in run.values.items():
            for step, at in zip(run.steps, values, strict=True):
                if not np.isfinite(at).all():
                    continue
                e = _estimate(at, unit=unit_of(metric))
                rows.append((run.mode, metric, e.unit, step, e.mean, e.low, e.high, e.n))
    columns = ["mode", "metric", "unit", "step", "mean", "low", "high", "n"]
    return pd.DataFrame(rows, columns=columns)


def _estimate(values: npt.NDArray[np.float64], *, unit: str) -> Estimate:
    """Return the mean with its interval, which for a share ends at 0 and 1."""
    found = mean_estimate(values, unit=unit)
    if unit != "share" or found.low is None or found.high is None:
        return found
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))
