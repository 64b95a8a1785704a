"""Intervals and rankings, as DESIGN.md section 1 states them.

The unit of repetition is the independent replication, never a token, a response or a step of one
run. Intervals are 99 % unless told otherwise. A ranking answers with a set.
"""

from dapolab.stats.estimate import (
    LEVEL,
    Estimate,
    mean_estimate,
    quantile_estimate,
    simultaneous,
    t_interval,
    wilson,
)
from dapolab.stats.ranking import BestSet, best_set, best_set_of_ratios, screen
from dapolab.stats.ratios import (
    paired_difference,
    paired_ratio,
    ratio_of_totals,
    ratio_standard_error,
)
from dapolab.stats.series import BatchMeans, batch_means

__all__ = [
    "LEVEL",
    "BatchMeans",
    "BestSet",
    "Estimate",
    "batch_means",
    "best_set",
    "best_set_of_ratios",
    "mean_estimate",
    "paired_difference",
    "paired_ratio",
    "quantile_estimate",
    "ratio_of_totals",
    "ratio_standard_error",
    "screen",
    "simultaneous",
    "t_interval",
    "wilson",
]
