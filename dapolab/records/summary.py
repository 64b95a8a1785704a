"""Counts and shares of a table of records, each with how many cells stand behind it."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from dapolab.records.outcomes import group_outcomes
from dapolab.records.schema import COLUMNS, Records

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Mean:
    """A mean over the present cells; ``value`` is None where none is present."""

    value: float | None
    n: int
    missing: int


@dataclass(frozen=True)
class Summary:
    """What a table holds.

    Attributes
    ----------
    group_sizes : responses a group -> number of groups.
    present : column -> cells that are not missing.
    reward, accuracy, truncated : means over present cells, all candidates of the file.
    survivor_accuracy : accuracy over mixed groups alone: what a filtered run logs.
    n_judged_groups : groups of two or more with every correctness known; the shares are over these.
    tokens : quantile -> tokens, an observed value (lower), so never beyond the cap.
    """

    n_rows: int
    n_groups: int
    n_prompts: int
    group_sizes: Mapping[int, int]
    present: Mapping[str, int]
    reward: Mean
    accuracy: Mean
    truncated: Mean
    survivor_accuracy: Mean
    n_judged_groups: int
    all_right_share: float | None
    all_wrong_share: float | None
    mixed_share: float | None
    tokens: Mapping[float, int]
    max_tokens: int | None


def summarise(records: Records | pd.DataFrame) -> Summary:
    """Count a table; missing cells are counted, never averaged in (TRL#4501).

    Parameters
    ----------
    records : records, or a table with their columns.
    """
    table = records.table if isinstance(records, Records) else records
    outcomes = group_outcomes(table)
    judged = outcomes[(outcomes["n"] > 1) & (outcomes["n_judged"] == outcomes["n"])]
    right, wrong = judged["n_right"] == judged["n"], judged["n_right"] == 0
    mixed = judged[~right & ~wrong]
    lengths = table["n_tokens"].dropna().astype("int64")
    n_mixed_rows = int(mixed["n"].sum())
    return Summary(
        n_rows=len(table),
        n_groups=len(outcomes),
        n_prompts=int(table["prompt_id"].nunique()),
        group_sizes={int(k): int(v) for k, v in outcomes["n"].value_counts().items()},  # type: ignore[call-overload]
        present={name: int(table[name].notna().sum()) for name in COLUMNS},
        reward=_mean(table["reward"]),
        accuracy=_mean(table["correct"]),
        truncated=_mean(table["truncated"]),
        survivor_accuracy=Mean(
            value=float(mixed["n_right"].sum()) / n_mixed_rows if n_mixed_rows else None,
            n=n_mixed_rows,
            missing=0,
        ),
        n_judged_groups=len(judged),
        all_right_share=float(right.mean()) if len(judged) else None,
        all_wrong_share=float(wrong.mean()) if len(judged) else None,
        mixed_share=len(mixed) / len(judged) if len(judged) else None,
        tokens=_quantiles(lengths),
        max_tokens=int(lengths.max()) if len(lengths) else None,
    )


def _quantiles(lengths: "pd.Series[int]") -> dict[float, int]:
    if lengths.empty:
        return {}
    return {q: int(lengths.quantile(q, interpolation="lower")) for q in QUANTILES}


def _mean(column: "pd.Series[float]") -> Mean:
    present = column.dropna().astype("float64")
    return Mean(
        value=float(present.mean()) if len(present) else None,
        n=len(present),
        missing=len(column) - len(present),
    )
