"""Arms that share prompts and noise, compared seed by seed; several secondary rows by Holm's rule.

A study puts what it measures into one long table ``runs`` (arm, seed, quantity, value), one number
a run; a missing number is no row. Differences are taken within a seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from dapolab.claims.claim import LEAST_SAMPLES, Claim, Measured, Row
from dapolab.claims.verdict import Outcome, conclude
from dapolab.stats import LEVEL
from gpu_runs.validate.study import measured_row, predicted_row, settle

RUNS = ("arm", "seed", "quantity", "value")
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A quantity of one arm less that of another, and what is predicted of the difference.

    Attributes
    ----------
    kind : ``order``: beyond 0 by at least ``delta`` on ``side``; ``null``: within ``delta`` of 0.
    rival : the difference that the prediction denies.
    secondary : judged together with the study's other secondary ones, by Holm's rule.
    predict : gives no number; the claim's fingerprint is that of the file it is written in.
    """

    id: str
    statement: str
    quantity: str
    arm: str
    base: str
    delta: float
    why: str
    unit: str
    source: str
    how_to_read: str
    predict: Callable[[], Mapping[str, float]]
    kind: Literal["order", "null"] = "order"
    side: Literal["above", "below"] = "above"
    rival: float = 0.0
    secondary: bool = False

    @property
    def name(self) -> str:
        """Name of the claim's only row."""
        return f"{self.quantity}: {self.arm} less {self.base}"

    @property
    def claim(self) -> Claim:
        """The claim of this contrast."""
        row = Row(
            name=self.name,
            kind=self.kind,
            rival=self.rival,
            says=0.0,
            tolerance=self.delta,
            why=self.why,
            side=self.side,
            unit=self.unit,
        )
        return Claim(
            id=self.id,
            kind=self.kind,
            statement=self.statement,
            source=self.source,
            instrument="real training",
            rows=(row,),
            predict=self.predict,
            how_to_read=self.how_to_read,
            repeat="paired seed",
        )

    def samples(self, runs: pd.DataFrame) -> Floats:
        """Return the differences, one a seed."""
        return difference(runs, self.quantity, self.arm, self.base)


def difference(runs: pd.DataFrame, quantity: str, arm: str, base: str) -> Floats:
    """Return arm less base of the seeds in which both have the quantity, in the order of seeds."""
    chosen = runs[(runs["quantity"] == quantity) & runs["arm"].isin([arm, base])]
    wide = chosen.pivot_table(index="seed", columns="arm", values="value").sort_index()
    if arm not in wide or base not in wide:
        return np.zeros(0)
    found = (wide[arm] - wide[base]).dropna()
    return found.to_numpy(dtype=np.float64)


def window(
    table: pd.DataFrame, column: str, *, quantity: str, first: int, last: int
) -> pd.DataFrame:
    """Return the mean over steps first … last of each run, as rows of ``runs``."""
    if column not in table:
        return pd.DataFrame(columns=list(RUNS))
    inside = table[table["step"].between(first, last)]
    means = inside.groupby(["arm", "seed"])[column].mean().dropna()
    found = means.rename("value").reset_index().assign(quantity=quantity)
    return found[list(RUNS)]


def curves(table: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return arm, step, quantity, mean, low, high of table columns: 99 % over 6 seeds or more."""
    rows = []
    for column, quantity in columns.items():
        if column not in table:
            continue
        for (arm, step), values in table.groupby(["arm", "step"], sort=False)[column]:
            known = values.dropna().to_numpy(dtype=np.float64)
            if not known.size:
                continue
            found = measured_row(quantity, str(arm), known, unit="")
            row = {"arm": arm, "step": step, "quantity": quantity, "mean": found["value"]}
            if known.size >= LEAST_SAMPLES:
                row |= {"low": found["low"], "high": found["high"]}
            rows.append(row)
    return pd.DataFrame(rows, columns=["arm", "step", "quantity", "mean", "low", "high"])


# ---------------------------------------------------------------------------- both tables


def measured(
    runs: pd.DataFrame, contrasts: Sequence[Contrast], *, units: Mapping[str, str]
) -> list[dict[str, object]]:
    """Return every quantity of every arm, then every contrast, as rows of ``measured``."""
    rows = []
    for (quantity, arm), part in runs.groupby(["quantity", "arm"], sort=False):
        unit = units.get(str(quantity), "")
        rows.append(measured_row(str(quantity), str(arm), part["value"].to_numpy(), unit=unit))
    for contrast in contrasts:
        samples = contrast.samples(runs)
        if samples.size:
            setting = f"{contrast.arm} less {contrast.base}"
            rows.append(measured_row(contrast.quantity, setting, samples, unit=contrast.unit))
    return rows


def predicted(contrasts: Sequence[Contrast]) -> list[dict[str, object]]:
    """Return what the contrasts predict: the least (most) difference, or 0 with its tolerance."""
    rows = []
    for contrast in contrasts:
        setting, delta = f"{contrast.arm} less {contrast.base}", contrast.delta
        says = {"above": ("theory, at least", delta), "below": ("theory, at most", -delta)}
        instrument, value = says[contrast.side]
        ends: dict[str, float | None] = {"low": None, "high": None}
        if contrast.kind == "null":
            instrument, value, ends = "theory", 0.0, {"low": -delta, "high": delta}
        rows.append(
            predicted_row(contrast.quantity, setting, instrument, value, unit=contrast.unit, **ends)
        )
    return rows


# ---------------------------------------------------------------------------- verdicts


def outcomes(contrasts: Sequence[Contrast], runs: pd.DataFrame) -> list[Outcome]:
    """Return the verdicts: primary contrasts as they are, secondary ones by Holm's rule."""
    found = {contrast.id: (contrast, contrast.samples(runs)) for contrast in contrasts}
    family = {
        name: decisive_p(contrast.claim.rows[0], samples)
        for name, (contrast, samples) in found.items()
        if contrast.secondary and samples.size >= LEAST_SAMPLES
    }
    adjusted = holm(family)
    verdicts = []
    for name, (contrast, samples) in found.items():
        outcome = settled(contrast.claim, {contrast.name: samples})
        if adjusted.get(name, 0.0) > 1.0 - LEVEL:
            rows = tuple(replace(row, verdict="undecided") for row in outcome.rows)
            outcome = replace(outcome, verdict="undecided", rows=rows, confidence=1.0)
        verdicts.append(outcome)
    return verdicts


def settled(
    claim: Claim, samples: Mapping[str, Measured], *, predicted: Mapping[str, float] | None = None
) -> Outcome:
    """Return a claim's verdict; "not yet measured" where a row has no sample at all."""
    if any(np.size(values) == 0 for values in samples.values() if isinstance(values, np.ndarray)):
        return conclude(claim, None, predicted=predicted or {})
    return settle(claim, samples, predicted=predicted or {})


def decisive_p(row: Row, samples: Floats) -> float:
    """Return the smallest error level at which ``claims.judge`` decides the row, either way.

    Of an order: one-sided. Of a value or null: its two-sided interval lies inside or beside ±δ.
    """
    mean, spread = float(samples.mean()), float(samples.std(ddof=1))
    says = 0.0 if row.says is None else row.says

    def beyond(distance: float) -> float:
        """Return the one-sided p of a mean at least so far on the other side of a limit."""
        if spread == 0.0:
            return 0.0 if distance > 0.0 else 1.0
        return float(stats.t.sf(distance * np.sqrt(samples.size) / spread, samples.size - 1))

    if row.kind == "order":
        return beyond(abs(mean - row.limit(says)))
    gap = row.tolerance - abs(mean - says)
    return min(1.0, 2.0 * beyond(abs(gap)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted for their number: max over smaller ones of (m − rank + 1)·p, ≤ 1.

    Source: S. Holm, Scand. J. Statist. 6 (1979) 65.
    """
    adjusted: dict[str, float] = {}
    largest, m = 0.0, len(p_values)
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (m - rank) * p))
        adjusted[name] = largest
    return adjusted
