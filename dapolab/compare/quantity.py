"""One closed form beside the simulator, and how to read the same number off step rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

KEPT = "rollout/effective_groups"

Measure = Callable[[pd.DataFrame], tuple[float, float]]
"""Step rows of one replication -> numerator and denominator; the value is a ratio of totals."""


@dataclass(frozen=True)
class Quantity:
    """One closed form and how to read the same quantity off a replication's step rows.

    ``sd`` is the standard deviation of what one unit of the denominator adds, where theory knows
    it: a run too short to see a rare event has no spread of its own.
    """

    name: str
    unit: str
    value: float
    source: str
    measure: Measure
    sd: float = 0.0


def event(name: str, p: float, source: str, measure: Measure) -> Quantity:
    """Return a probability: each unit of the denominator is one trial."""
    return Quantity(name, "share", p, source, measure, sd=math.sqrt(max(p * (1.0 - p), 0.0)))


def mean_of(column: str) -> Measure:
    """Read the mean of a column."""
    return lambda rows: (float(rows[column].sum()), float(rows[column].count()))


def ratio_of(over: str, under: str) -> Measure:
    """Read the ratio of two columns' totals."""
    return lambda rows: (float(rows[over].sum()), float(rows[under].sum()))


def weighted(column: str, weight: str) -> Measure:
    """Read the mean of a column, each row weighted by another column."""

    def measure(rows: pd.DataFrame) -> tuple[float, float]:
        present = rows[rows[column].notna()]
        return float((present[column] * present[weight]).sum()), float(present[weight].sum())

    return measure


def share_of(test: Callable[[pd.DataFrame], pd.Series]) -> Measure:
    """Read the share of rows that pass a test."""
    return lambda rows: (float(test(rows).sum()), float(len(rows)))


def full(wanted: int) -> Callable[[pd.DataFrame], pd.Series]:
    """Return the test for a step that trained ``wanted`` groups."""
    return lambda rows: rows[KEPT] >= wanted
