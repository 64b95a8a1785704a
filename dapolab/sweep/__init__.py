"""A grid, lists or random draws of scenarios: run what is missing, one row a point, rank them."""

from dapolab.sweep.best import Best, Limit, known_metric, over_baseline, select
from dapolab.sweep.expand import (
    Point,
    RandomDraws,
    Spread,
    Sweep,
    expand,
    identity,
    read_sweep,
    settings_text,
)
from dapolab.sweep.point import COSTS, measure, row_of
from dapolab.sweep.run import Swept, plan, read_table, run_sweep

__all__ = [
    "COSTS",
    "Best",
    "Limit",
    "Point",
    "RandomDraws",
    "Spread",
    "Sweep",
    "Swept",
    "expand",
    "identity",
    "known_metric",
    "measure",
    "over_baseline",
    "plan",
    "read_sweep",
    "read_table",
    "row_of",
    "run_sweep",
    "select",
    "settings_text",
]
