"""Fit a workload to recorded rollouts: censoring, selection, uncertainty, goodness."""

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
    "draws_text",
    "fit_tables",
    "fit_workload",
    "read_draws",
    "to_toml",
    "with_draw",
]
