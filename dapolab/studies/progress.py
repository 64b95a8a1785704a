"""Modes compared where they have learned equally much, not where they have trained equally long."""

from typing import Any

import numpy as np
import pandas as pd

from dapolab.metrics import PROMPT_ACCURACY
from dapolab.report import Section, Table
from dapolab.report.bandit_report import head

_PASS_RATE = "reward/accuracy"
_METRICS = ("length/right", "length/wrong", "length/mean", "entropy/answer")
_FEWEST_POINTS = 20
"""Of a curve: between fewer, a straight line says little of the policy."""
_LEAST_GAIN = 0.01
_FEWEST_STEPS = 5


def equal_progress(curves: pd.DataFrame) -> Section | None:
    """Return the modes at the pass rate that the slowest reaches, or None if that says nothing.

    It says nothing where a mode gains less than one per cent, or gets there in a few steps. The
    means over seeds are read off linearly between the curves' points, so they carry no interval.

    Parameters
    ----------
    curves : columns mode, metric, step, mean.
    """
    wide = curves.pivot_table(index=["mode", "step"], columns="metric", values="mean", sort=False)
    if _PASS_RATE not in wide:
        return None
    runs = {str(mode): wide.loc[mode] for mode in curves["mode"].unique()}
    rates = [run[_PASS_RATE].to_numpy(float) for run in runs.values()]
    least = min(float(rate[-1]) for rate in rates)
    start = max(float(rate[0]) for rate in rates)
    if len(runs) < 2 or least < start + _LEAST_GAIN or min(map(len, rates)) < _FEWEST_POINTS:
        return None
    prompts = [name for name in wide.columns if str(name).startswith(PROMPT_ACCURACY)]
    shown = [m for m in (*_METRICS, *prompts) if m in wide and np.ptp(wide[m].to_numpy(float)) > 0]
    rows: list[dict[str, Any]] = [
        {"mode": mode} | {head(m): _read(run, m, at=least) for m in ("step", *shown)}
        for mode, run in runs.items()
    ]
    if min(row["step"] for row in rows) < _FEWEST_STEPS:
        return None
    table = Table(
        pd.DataFrame(rows),
        f"Where each mode has a pass rate of {100 * least:.1f} %, the end of the slowest; means "
        "over seeds, read off the curves.",
        formats={"step": ".0f"} | {head(m): ".1%" for m in prompts},
    )
    return Section("At equal pass rate", (table,))


def _read(run: pd.DataFrame, metric: str, *, at: float) -> float:
    steps = run.index.to_numpy(float)
    # the first crossing, though a mean over seeds may dip by noise
    rate = np.maximum.accumulate(run[_PASS_RATE].to_numpy(float))
    step = float(np.interp(at, rate, steps))
    if metric == "step":
        return step
    return float(np.interp(step, steps, run[metric].to_numpy(float)))
