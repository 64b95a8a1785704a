"""Logs that are tables: CSV, Parquet, JSON lines (flat, or verl's ``{"step", "data"}``), HF states.

The step is a column or key of its own; a column of names keeps runs apart.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dapolab.logs.options import LogOptions
from dapolab.logs.prime_rl import with_role
from dapolab.logs.rows import LARGEST_STEP, RowStore
from dapolab.logs.trl import COUNTED
from dapolab.logs.values import number_of
from dapolab.reading.lines import Source, reason, rows

PLACE_NAME = "log_index"  # a count of the log's rows
STEP_NAMES = (
    "step",
    "_step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "Step",
    "iteration",
    "progress/batch",
    PLACE_NAME,
)
RUN_NAMES = ("run", "run_id", "run_name", "log", "experiment")
LARGEST_STATE_BYTES = 512 << 20


def read_table(source: Source, store: RowStore, *, options: LogOptions) -> bool:
    """Add the rows of a table; returns whether a column of run names keeps them apart.

    Raises
    ------
    ConfigError
        A file that is none of the kinds, no step in a row, a step that is no whole number.
    """
    table = _Table(source, store, options)
    for line, row in rows(source):
        table.take(line, row)
    table.finish()
    return table.run_name is not None or table.wide


def read_state(source: Source, store: RowStore) -> None:
    """Add the rows of a ``trainer_state.json`` (its ``log_history``).

    Raises
    ------
    ConfigError
        More than 512 MiB, no JSON, no log_history.
    """
    if source.path.stat().st_size > LARGEST_STATE_BYTES:
        raise source.error("a trainer state of more than 512 MiB")
    try:
        state = json.loads(source.path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise source.error(f"not valid JSON ({reason(error)})") from None
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise source.error("no log_history: not the state of a HF trainer")
    source.progress.advance(source.path.stat().st_size)
    skipped = 0
    for place, row in enumerate(history, start=1):
        step = number_of(row.get("step")) if isinstance(row, dict) else None
        if step is None or not 0 <= step < LARGEST_STEP or step != int(step):
            skipped += 1
            continue
        values = {str(k): number_of(v) for k, v in row.items() if k != "step"}
        found = {k: v for k, v in values.items() if v is not None}
        if "train_runtime" not in found:
            store.add(int(step), found, line=place)
    if skipped:
        source.notes.append(f"{source.name}: {skipped} entries without a step are left out")


class _Table:
    def __init__(self, source: Source, store: RowStore, options: LogOptions) -> None:
        self.source, self.store = source, store
        self.step_name = options.columns.get("step")
        self.run_name = options.columns.get("run")
        self._is_run_asked = "run" in options.columns
        self._texts: dict[str, int] = {}
        self._n_without_step = 0
        self._is_open = True
        self._shown: list[str] = []
        self.wide = False
        self._first_without: int | None = None

    def take(self, line: int, row: Mapping[str, Any]) -> None:
        if self._is_open and not self._decide(row, line):
            self._skip(line)
            return
        step = self._step(row, line)
        if step is None:
            self._skip(line)
            return
        data = row.get("data")
        values: dict[str, float] = {}
        self._flatten(data if isinstance(data, dict) else row, values, prefix="")
        if self.wide:
            self._add_wide(step, values, line=line)
            return
        stream = str(row.get(self.run_name) or "") if self.run_name else ""
        if self.step_name == PLACE_NAME:
            values[COUNTED] = 1.0
        self.store.add(step, with_role(values), line=line, stream=stream)

    def _skip(self, line: int) -> None:
        self._n_without_step += 1
        self._first_without = self._first_without or line

    def _add_wide(self, step: int, values: Mapping[str, float], *, line: int) -> None:
        """Add one row for each run that has a number at this step (an export of W&B's charts)."""
        of_run: dict[str, dict[str, float]] = {}
        for name, value in values.items():
            run, _, key = name.partition(" - ")
            if value == value and not key.endswith(("__MIN", "__MAX")):
                of_run.setdefault(run, {})[key] = value
        for run, found in of_run.items():
            self.store.add(step, found, line=line, stream=run)

    def _decide(self, row: Mapping[str, Any], line: int) -> bool:
        """Settle step and run columns from the first row that has a step; False where it has none.

        Raises
        ------
        ConfigError
            The user's step column is not there.
        """
        self._shown = self._shown or [str(name) for name in row]
        if self.step_name is None:
            self.step_name = next((name for name in STEP_NAMES if name in row), None)
            if self.step_name is None:
                return False
            if self.step_name not in ("step", "_step", "Step"):
                self.source.notes.append(f"{self.source.name}: step = {self.step_name}")
        elif self.step_name not in row:
            raise self.source.error(f"no column {self.step_name!r} (--columns step)", line=line)
        self._is_open = False
        others = [str(name) for name in row if name != self.step_name]
        self.wide = bool(others) and all(" - " in name for name in others)
        if not self._is_run_asked:
            names = (n for n in RUN_NAMES if isinstance(row.get(n), str) and row[n])
            self.run_name = next((n for n in names if number_of(row[n]) is None), None)
        self.run_name = self.run_name or None
        return True

    def _step(self, row: Mapping[str, Any], line: int) -> int | None:
        assert self.step_name is not None
        cell = row.get(self.step_name)
        number = number_of(cell)
        if number is None or number == float("inf"):
            raise self.source.error(f"{self.step_name}: {cell!r:.60} is no step", line=line)
        if number != number:
            return None
        if number != int(number) or not 0 <= number < LARGEST_STEP:
            raise self.source.error(
                f"{self.step_name}: {cell!r:.60} is not a whole number from 0", line=line
            )
        return int(number)

    def _flatten(
        self, cells: Mapping[str, Any], values: dict[str, float], *, prefix: str, depth: int = 0
    ) -> None:
        for name, cell in cells.items():
            key = prefix + str(name)
            if isinstance(cell, dict):
                if depth < 4:
                    self._flatten(cell, values, prefix=key + "/", depth=depth + 1)
                continue
            if key in (self.step_name, self.run_name):
                continue
            number = number_of(cell) if not isinstance(cell, list) else None
            if number is None:
                self._texts[key] = self._texts.get(key, 0) + 1
            else:
                values[key] = number

    def finish(self) -> None:
        """Tell what was left out.

        Raises
        ------
        ConfigError
            No row has a step.
        """
        if self._is_open:
            shown = ", ".join(self._shown[:8]) or "nothing"
            raise self.source.error(f"no column of steps; say --columns step=NAME (it has {shown})")
        if self._n_without_step:
            self.source.notes.append(
                f"{self.source.name}: {self._n_without_step} rows without a step are left out "
                f"(first: line {self._first_without})"
            )
        if self._texts:
            self.source.notes.append(
                f"{self.source.name}: cells that are no number are left out: "
                f"{_some(self._texts.items())}"
            )


def _some(items: Iterable[tuple[str, int]]) -> str:
    shown = [f"{name} ({count})" for name, count in sorted(items)]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")
