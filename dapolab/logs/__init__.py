"""Step-level logs of real runs, whatever framework wrote them, as one table of steps."""

from dapolab.logs.schema import BY_COLUMN, EXTRA, LOG_METRICS, StepTable, finish

__all__ = ["BY_COLUMN", "EXTRA", "LOG_METRICS", "StepTable", "finish"]
