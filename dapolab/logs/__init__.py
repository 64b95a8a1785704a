"""Step-level logs of real runs, whatever framework wrote them, as one table of steps.

``read_log`` tells how a log is written (console, file logger, TensorBoard, trainer state, table)
and whose keys it has; what each key covers and does not stands in the table's notes.
"""

from dapolab.logs.options import FORMATS, FRAMEWORKS, LogOptions
from dapolab.logs.read import read_log
from dapolab.logs.schema import BY_COLUMN, EXTRA, LOG_METRICS, StepTable, finish
from dapolab.logs.write import written_bytes

__all__ = [
    "BY_COLUMN",
    "EXTRA",
    "FORMATS",
    "FRAMEWORKS",
    "LOG_METRICS",
    "LogOptions",
    "StepTable",
    "finish",
    "read_log",
    "written_bytes",
]
