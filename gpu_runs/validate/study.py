"""A study: what is predicted, how it is measured, and the claims that put the two together.

Its tables ``predictions`` and ``measured`` have the columns below, so that one page can set theory,
simulator, bandit and real training side by side; what else it measures is its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from dapolab.claims.claim import LEAST_SAMPLES, Claim, Measured, Row, Totals
from dapolab.claims.verdict import Outcome, RowOutcome, check_rival, conclude, is_sampled
from dapolab.report import FigureSpec
from dapolab.stats import LEVEL, Estimate, mean_estimate
from gpu_runs.validate.context import Context

PREDICTED = ("quantity", "setting", "instrument", "value", "low", "high", "unit")
"""``instrument``: theory, simulator, bandit, or what else predicts. low and high may be missing."""
MEASURED = ("quantity", "setting", "value", "low", "high", "n", "unit")
"""99 % interval over ``n`` independent units; missing where n is below 2."""

Floats = npt.NDArray[np.float64]
Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Study:
    """One question put to the lab and to real training.

    Attributes
    ----------
    name : of its folder of tables.
    title, question : heading and one line.
    predict : (context) -> table with the columns ``PREDICTED``; measures nothing that ``measure``
        will use. It is on disk before ``measure`` starts.
    measure : (context) -> tables, ``measured`` among them.
    judge : (context, predictions, tables) -> outcomes of the study's claims; ``settle`` makes one.
    figures : tables, ``predictions`` among them, read back from disk -> figures.
    how_to_read : a paragraph of Markdown under the tables.
    """

    name: str
    title: str
    question: str
    predict: Callable[[Context], pd.DataFrame]
    measure: Callable[[Context], Tables]
    judge: Callable[[Context, pd.DataFrame, Tables], Sequence[Outcome]]
    figures: Callable[[Tables], list[FigureSpec]]
    how_to_read: str = ""


def settle(
    claim: Claim, measured: Mapping[str, Measured], *, predicted: Mapping[str, float]
) -> Outcome:
    """Return a claim's verdict by DESIGN.md section 1; undecided where a row has too few samples.

    Raises
    ------
    KeyError, ValueError
        As ``dapolab.claims.conclude``.
    """
    sizes = [_size(value) for value in measured.values() if is_sampled(value)]
    if not sizes or min(sizes) >= LEAST_SAMPLES:
        return conclude(claim, measured, predicted=predicted)
    rows = []
    for row in claim.rows:
        says = predicted[row.name] if row.says is None else row.says
        check_rival(claim, row, says=says)
        found = _mean(row, measured[row.name])
        rows.append(RowOutcome(row, says, predicted.get(row.name), found, "undecided"))
    return Outcome(claim, "undecided", tuple(rows), 1.0)


def _size(measured: Measured) -> int:
    return int((measured.over if isinstance(measured, Totals) else np.asarray(measured)).size)


def _mean(row: Row, measured: Measured) -> Estimate:
    if isinstance(measured, Totals):
        ratio = float(measured.over.sum() / measured.under.sum())
        base = measured.baseline
        if base is not None:
            ratio /= float(base.over.sum() / base.under.sum())
        return Estimate.exact(ratio, unit=row.unit, n=measured.over.size)
    values = np.atleast_1d(np.asarray(measured, dtype=np.float64))
    return Estimate.exact(float(values.mean()), unit=row.unit, n=values.size)


def predicted_row(
    quantity: str,
    setting: str,
    instrument: str,
    value: float,
    *,
    unit: str,
    low: float | None = None,
    high: float | None = None,
) -> dict[str, object]:
    """Return one row of ``predictions``."""
    return dict(
        zip(PREDICTED, (quantity, setting, instrument, value, low, high, unit), strict=True)
    )


def measured_row(
    quantity: str, setting: str, samples: Floats | float, *, unit: str
) -> dict[str, object]:
    """Return one row of ``measured``: the mean over independent units with its 99 % interval."""
    values = np.atleast_1d(np.asarray(samples, dtype=np.float64))
    found = Estimate.exact(float(values.mean()), unit=unit, n=values.size)
    if values.size > 1:
        found = mean_estimate(values, unit=unit, level=LEVEL)
    row = (quantity, setting, found.mean, found.low, found.high, found.n, unit)
    return dict(zip(MEASURED, row, strict=True))
