"""Fit a workload to recorded rollouts: censoring, selection, uncertainty, goodness."""

from dapolab.workload.fit.aggregates import (
    StepFigures,
    expected_figures,
    from_length_histogram,
    from_step_figures,
    law_toml,
)
from dapolab.workload.fit.drift import PassRateDrift, fit_pass_rate_drift
from dapolab.workload.fit.drift_lengths import LengthDrift, fit_length_drift
from dapolab.workload.fit.drift_rows import drift_of, fit_drift
from dapolab.workload.fit.joint import fit_workload
from dapolab.workload.fit.plan import Degenerate
from dapolab.workload.fit.result import (
    Estimate,
    FittedWorkload,
    Goodness,
    draws_text,
    fit_tables,
    read_draws,
    to_toml,
    with_draw,
)

__all__ = [
    "Degenerate",
    "Estimate",
    "FittedWorkload",
    "Goodness",
    "LengthDrift",
    "PassRateDrift",
    "StepFigures",
    "draws_text",
    "drift_of",
    "expected_figures",
    "fit_drift",
    "fit_length_drift",
    "fit_pass_rate_drift",
    "fit_tables",
    "fit_workload",
    "from_length_histogram",
    "from_step_figures",
    "law_toml",
    "read_draws",
    "to_toml",
    "with_draw",
]
