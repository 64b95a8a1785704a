"""Real rollouts, whatever framework wrote them, as one checked table.

Unknown cells stay missing and are never guessed silently: every conclusion (correctness from a
reward, truncation from a cap, which candidates the file holds) comes with a line in ``notes``.
"""

from dapolab.records.detect import detect
from dapolab.records.options import FORMATS, ROLES, SELECTIONS, ReadOptions, parse_pairs
from dapolab.records.outcomes import group_outcomes
from dapolab.records.read import read_records
from dapolab.records.schema import COLUMNS, SCHEMA, Records, finish
from dapolab.records.summary import Mean, Summary, summarise
from dapolab.records.write import write_records

__all__ = [
    "COLUMNS",
    "FORMATS",
    "ROLES",
    "SCHEMA",
    "SELECTIONS",
    "Mean",
    "ReadOptions",
    "Records",
    "Summary",
    "detect",
    "finish",
    "group_outcomes",
    "parse_pairs",
    "read_records",
    "summarise",
    "write_records",
]
