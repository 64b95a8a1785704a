"""Fit a workload to recorded rollouts: censoring, selection, uncertainty, goodness."""

from dapolab.workload.fit.aggregates import (
    StepFigures,
    expected_figures,
    from_length_histogram,
    from_step_figures,
    law_toml,
)
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
    "StepFigures",
    "draws_text",
    "expected_figures",
    "fit_tables",
    "fit_workload",
    "from_length_histogram",
    "from_step_figures",
    "law_toml",
    "read_draws",
    "to_toml",
    "with_draw",
]
