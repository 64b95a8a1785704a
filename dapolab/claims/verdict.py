"""The verdict rule of DESIGN.md section 1: intervals of 99 %, and "undecided" where they say so.

A claim of several rows is a conjunction: it holds if every row holds at 99 % (no correction is due
for that), and fails if one row fails at the Bonferroni level. Either is wrong once in a hundred
times at most; numbers without sampling error are never wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dapolab.claims.claim import LEAST_SAMPLES, Claim, Measured, Row, Totals
from dapolab.stats import (
    LEVEL,
    Estimate,
    mean_estimate,
    paired_ratio,
    ratio_of_totals,
    simultaneous,
)

Verdict = Literal["holds", "fails", "undecided", "not yet measured"]


@dataclass(frozen=True)
class RowOutcome:
    """One row after the run; ``predicted`` is absent where theory has no formula."""

    row: Row
    says: float
    predicted: float | None
    measured: Estimate | None
    verdict: Verdict


@dataclass(frozen=True)
class Outcome:
    """One claim after the run."""

    claim: Claim
    verdict: Verdict
    rows: tuple[RowOutcome, ...]
    confidence: float
    """1 where every number is exact or nothing was decided, else 0.99."""

    @property
    def deciding(self) -> RowOutcome:
        """The first row that has the claim's verdict: one that refutes it, where it fails."""
        return next((row for row in self.rows if row.verdict == self.verdict), self.rows[0])


def estimate(measured: Measured, *, unit: str, level: float = LEVEL) -> Estimate:
    """Return the measured number with its interval, without one where it is exact.

    Student's over samples; of totals the ratio's, on the log scale.

    Raises
    ------
    ValueError
        For fewer than 6 samples, or NaN.
    """
    if isinstance(measured, Totals):
        _check_size(measured.over.size)
        parts, base = (measured.over, measured.under), measured.baseline
        if base is not None:
            return paired_ratio(*parts, base.over, base.under, level=level)
        return ratio_of_totals(*parts, unit=unit, level=level)
    if np.ndim(measured) == 0:
        return Estimate.exact(float(measured), unit=unit)
    _check_size(np.size(measured))
    return mean_estimate(measured, unit=unit, level=level)


def is_sampled(measured: Measured) -> bool:
    """Say whether the number has a sampling error."""
    return isinstance(measured, Totals) or np.ndim(measured) > 0


def _check_size(n: int) -> None:
    if n < LEAST_SAMPLES:
        raise ValueError(f"{n} samples are too few for a verdict: {LEAST_SAMPLES}")


def judge(row: Row, measured: Measured, *, says: float, level: float = LEVEL) -> Verdict:
    """Return the verdict of one row at a confidence of ``level``."""
    one_sided = row.kind in ("order", "bound")
    # the two ends of a two-sided interval of 2·level − 1 are one-sided limits at the level
    found = estimate(measured, unit=row.unit, level=2.0 * level - 1.0 if one_sided else level)
    low = found.mean if found.low is None else found.low
    high = found.mean if found.high is None else found.high
    ends = (row.excludes(low, says=says), row.excludes(high, says=says))
    if not any(ends):
        return "holds"
    if one_sided:
        return "fails" if all(ends) else "undecided"
    beside = low > says + row.tolerance or high < says - row.tolerance
    return "fails" if beside else "undecided"


def conclude(
    claim: Claim, measured: Mapping[str, Measured] | None, *, predicted: Mapping[str, float]
) -> Outcome:
    """Return the verdict of a claim on the numbers that were measured.

    Raises
    ------
    KeyError
        If the instrument lacks a row, or theory one for which the sentence names no number.
    ValueError
        If a tolerance does not exclude the rival: such a claim cannot be wrong.
    """
    says = {row.name: predicted[row.name] if row.says is None else row.says for row in claim.rows}
    for row in claim.rows:
        check_rival(claim, row, says=says[row.name])
    if measured is None:
        open_rows = tuple(
            RowOutcome(row, says[row.name], predicted.get(row.name), None, "not yet measured")
            for row in claim.rows
        )
        return Outcome(claim, "not yet measured", open_rows, 1.0)
    rows = tuple(
        RowOutcome(
            row,
            says[row.name],
            predicted.get(row.name),
            estimate(measured[row.name], unit=row.unit),
            judge(row, measured[row.name], says=says[row.name]),
        )
        for row in claim.rows
    )
    sampled = [row.name for row in claim.rows if is_sampled(measured[row.name])]
    strict = simultaneous(LEVEL, n_comparisons=max(len(sampled), 1))
    refuted = [
        judge(row, measured[row.name], says=says[row.name], level=strict) == "fails"
        for row in claim.rows
    ]
    verdict = _together([row.verdict for row in rows], refuted=any(refuted))
    exact = not sampled or verdict == "undecided"
    return Outcome(claim, verdict, rows, 1.0 if exact else LEVEL)


def _together(verdicts: Sequence[Verdict], *, refuted: bool) -> Verdict:
    if refuted:
        return "fails"
    return "holds" if all(verdict == "holds" for verdict in verdicts) else "undecided"


def check_rival(claim: Claim, row: Row, *, says: float) -> None:
    """Raise ValueError unless the row's tolerance excludes its rival."""
    if not row.excludes(row.rival, says=says):
        raise ValueError(
            f"claim {claim.id}, {row.name}: the rival {row.rival:g} lies within {row.tolerance:g} "
            f"of what the sentence says, {says:g}: nothing could refute it"
        )
    if row.kind != "identity" and not row.why:
        raise ValueError(f"claim {claim.id}, {row.name}: say what sets the tolerance (why)")
    if row.kind == "null" and (says != 0.0 or row.tolerance > abs(row.rival) / 4.0):
        raise ValueError(
            f"claim {claim.id}, {row.name}: a null is a value of 0 with a tolerance of at most a "
            "quarter of the rival's effect"
        )
