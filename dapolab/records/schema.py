"""The one table that every reader fills: its columns, its checks, what carries it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pandera.pandas as pandera
from pandera.errors import SchemaError, SchemaErrors

from dapolab.records.builder import EXTRA
from dapolab.scenario import ConfigError

TEXT = "string[pyarrow]"
COLUMNS: dict[str, str] = {
    "prompt_id": TEXT,
    "group_id": TEXT,
    "sample": "Int64",
    "step": "Int64",
    "wave": "Int64",
    "n_tokens": "Int64",
    "n_prompt_tokens": "Int64",
    "reward": "Float64",
    "correct": "boolean",
    "truncated": "boolean",
    "kept": "boolean",
    "t_start_s": "Float64",
    "t_end_s": "Float64",
    "source": TEXT,
}
_REQUIRED = ("prompt_id", "group_id", "sample", "source")
_NOT_NEGATIVE = ("sample", "step", "wave", "n_tokens", "n_prompt_tokens")


def _ends_after_start(table: pd.DataFrame) -> "pd.Series[bool]":
    return (table["t_end_s"] >= table["t_start_s"]).fillna(True).astype(bool)


def _one_prompt_a_group(table: pd.DataFrame) -> "pd.Series[bool]":
    first = table.groupby("group_id", sort=False)["prompt_id"].transform("first")
    return (table["prompt_id"] == first).astype(bool)


SCHEMA = pandera.DataFrameSchema(
    {
        **{
            name: pandera.Column(
                dtype,
                nullable=name not in _REQUIRED,
                checks=[pandera.Check.ge(0)] if name in _NOT_NEGATIVE else [],
            )
            for name, dtype in COLUMNS.items()
        },
        rf"^{EXTRA}.+": pandera.Column(None, nullable=True, regex=True, required=False),
    },
    strict=True,
    unique=["group_id", "sample"],
    checks=[
        pandera.Check(_ends_after_start, error="t_end_s lies before t_start_s"),
        pandera.Check(_one_prompt_a_group, error="a group holds two prompts"),
    ],
)
"""One row a response. Missing is <NA>; extra columns are called ``extra/NAME``; ``(group_id,
sample)`` is unique and a group has one prompt. The order of the rows carries no meaning."""


@dataclass(frozen=True, eq=False)
class Records:
    """Responses of a real run, checked.

    Attributes
    ----------
    table : one row a response, columns as ``SCHEMA``.
    selection : which candidates the file holds: ``all``, ``kept_mixed`` (only groups with right
        and wrong answers), ``kept_first_finished`` (short-biased lengths) or ``unknown``.
    cap_tokens : the cap on response tokens of the run, where known.
    notes : findings for the user, one line each.
    format : the reader that was used.
    built_from : "a real sample" or "the format's description".
    """

    table: pd.DataFrame
    selection: str
    cap_tokens: int | None
    notes: tuple[str, ...] = ()
    format: str = ""
    built_from: str = ""


def finish(
    frame: pd.DataFrame,
    *,
    selection: str,
    cap_tokens: int | None = None,
    notes: Sequence[str] = (),
    where: str = "records",
    format: str = "",
    built_from: str = "",
) -> Records:
    """Complete, check and freeze a table of responses.

    Absent columns become missing; a missing ``group_id`` is the prompt's, a missing ``prompt_id``
    the group's; missing sample numbers are given in the order of the rows; exact duplicates are
    dropped with a note. ``frame`` is not changed.

    Raises
    ------
    ConfigError
        No rows, no ids, two different rows with the same group and sample, a group with two
        prompts, a negative count, an end before its start.
    """
    found = list(notes)
    if frame.empty:
        raise ConfigError(f"{where}: no rows to read")
    table = _typed(frame, where=where)
    _fill_ids(table, where=where, notes=found)
    _fill_samples(table, notes=found)
    table = _drop_duplicates(table, where=where, notes=found)
    try:
        SCHEMA.validate(table, inplace=True)
    except (SchemaError, SchemaErrors) as error:
        raise ConfigError(f"{where}: {_explain(error)}") from None
    return Records(
        table=table,
        selection=selection,
        cap_tokens=cap_tokens,
        notes=tuple(found),
        format=format,
        built_from=built_from,
    )


def _typed(frame: pd.DataFrame, *, where: str) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name, dtype in COLUMNS.items():
        try:
            if name in frame:
                columns[name] = frame[name].astype(pd.api.types.pandas_dtype(dtype))
            else:
                columns[name] = pd.Series(pd.NA, index=frame.index, dtype=dtype)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: column {name} is not {dtype} ({error})") from None
    extras = sorted(name for name in frame.columns if str(name).startswith(EXTRA))
    columns.update((name, frame[name]) for name in extras)
    return pd.DataFrame(columns, copy=False).reset_index(drop=True)


def _fill_ids(table: pd.DataFrame, *, where: str, notes: list[str]) -> None:
    for name, other in (("group_id", "prompt_id"), ("prompt_id", "group_id")):
        if table[name].isna().all():
            table[name] = table[other]
            if name == "prompt_id":
                notes.append("no prompt ids: each group counts as a prompt of its own")
        n_missing = int(table[name].isna().sum())
        if n_missing:
            row = int(table[name].isna().to_numpy().argmax()) + 1
            raise ConfigError(
                f"{where}: {name} is missing in {n_missing} of {len(table)} rows (first: row "
                f"{row}); groups are formed by id, never by position: fill the ids or remove them"
            )


def _fill_samples(table: pd.DataFrame, *, notes: list[str]) -> None:
    missing = table["sample"].isna()
    if not missing.any():
        return
    groups = table["group_id"]
    taken = table["sample"].groupby(groups, sort=False).transform("max").fillna(-1)
    order = missing.astype("Int64").groupby(groups, sort=False).cumsum()
    table["sample"] = table["sample"].fillna(taken + order)
    notes.append("samples without a number are numbered in file order within their group")


def _drop_duplicates(table: pd.DataFrame, *, where: str, notes: list[str]) -> pd.DataFrame:
    again = table.duplicated(["group_id", "sample"], keep=False)
    if not again.any():
        return table
    suspects = table[again].drop(columns=["source"])
    conflicts = suspects.drop_duplicates().duplicated(["group_id", "sample"])
    if conflicts.any():
        first = suspects.loc[conflicts[conflicts].index[0]]
        raise ConfigError(
            f"{where}: group {first['group_id']!r} holds two different rows with sample "
            f"{first['sample']}; ids must be unique in a group (is a run, set or step column "
            "missing from the id?)"
        )
    n_rows = len(table)
    table = table.drop_duplicates(["group_id", "sample"]).reset_index(drop=True)
    notes.append(f"{n_rows - len(table)} rows were exact duplicates and were dropped")
    return table


def _explain(error: SchemaError | SchemaErrors) -> str:
    if isinstance(error, SchemaErrors):
        return " ".join(str(error).split())[:200]
    cases = error.failure_cases
    rows = [] if cases is None or isinstance(cases, str) else list(cases.get("index", []))
    place = f" (first: row {int(rows[0]) + 1})" if rows and pd.notna(rows[0]) else ""
    column = getattr(error.schema, "name", None)
    check = getattr(error.check, "error", None) or str(error.check)
    return f"{column + ': ' if column else ''}{check}{place}"
