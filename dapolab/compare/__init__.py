"""Comparison of collection policies: runs, paired statistics, forecast, theory beside simulator."""

from dapolab.compare.comparison import Comparison, compare, document
from dapolab.compare.estimates import HEADLINES, RANKED, unit_of
from dapolab.compare.forecast import Forecast, forecast, planned_steps
from dapolab.compare.policies import run_policies, scenarios_with_draws, select_collectors

__all__ = [
    "HEADLINES",
    "RANKED",
    "Comparison",
    "Forecast",
    "compare",
    "document",
    "forecast",
    "planned_steps",
    "run_policies",
    "scenarios_with_draws",
    "select_collectors",
    "unit_of",
]
