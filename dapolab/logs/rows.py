"""Rows of a log as they come, joined into runs: repeats, resumes, several runs in one file."""

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from dapolab.errors import ConfigError

# Keys that say where a row stands: two rows of a step may both have them and yet be one step.
PLACE_KEYS = frozenset(
    {
        "step",
        "epoch",
        "time",
        "global_step",
        "training/global_step",
        "training/epoch",
        "train/global_step",
        "_step",
        "_runtime",
        "_timestamp",
    }
)
LARGEST_STEP = 2**53
N_SHOWN = 4
MOST_CELLS = 200_000_000


class Entry(NamedTuple):
    """One row: its step, its keys (shared between rows), its numbers, where it was."""

    step: int
    keys: tuple[str, ...]
    values: "array[float]"
    line: int


@dataclass
class Run:
    """Steps of one run, the last row of each."""

    name: str
    rows: dict[int, Entry] = field(default_factory=dict)
    first_step: int = 0
    last_step: int = -1
    last_line: int = 0

    def frame(self) -> pd.DataFrame:
        """Return one row a step under the log's own keys, NaN where silent.

        Raises
        ------
        ConfigError
            More than ``MOST_CELLS`` numbers: keys that differ from step to step are no metrics.
        """
        steps = sorted(self.rows)
        places: dict[str, int] = {}
        for step in steps:
            for key in self.rows[step].keys:
                places.setdefault(key, len(places))
        if len(steps) * len(places) > MOST_CELLS:
            raise ConfigError(
                f"{self.name}: {len(places)} keys at {len(steps)} steps are too many for a table; "
                "do keys hold a number that changes with the step?"
            )
        table = np.full((len(steps), len(places)), np.nan)
        columns = {}
        for i, step in enumerate(steps):
            entry = self.rows[step]
            if entry.keys not in columns:
                columns[entry.keys] = [places[key] for key in entry.keys]
            table[i, columns[entry.keys]] = entry.values
        return pd.DataFrame(table, index=pd.Index(steps, name="step"), columns=list(places))


class RowStore:
    """Collects rows of one file, kept apart by ``stream`` (a process id, a column)."""

    def __init__(self) -> None:
        self._streams: dict[str, list[Entry]] = {}
        self._layouts: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.not_finite: dict[str, int] = {}
        self.n_rows = 0

    def add(self, step: int, values: Mapping[str, float], *, line: int, stream: str = "") -> None:
        """Append a row; NaN and infinities become missing and are counted."""
        keys = tuple(values)
        keys = self._layouts.setdefault(keys, keys)
        numbers = array("d", values.values())
        for i, number in enumerate(numbers):
            if not math.isfinite(number):
                numbers[i] = math.nan
                self.not_finite[keys[i]] = self.not_finite.get(keys[i], 0) + 1
        self._streams.setdefault(stream, []).append(Entry(step, keys, numbers, line))
        self.n_rows += 1

    def runs(self, name: str, *, streams_are_runs: bool = False) -> tuple[list[Run], list[str]]:
        """Join the rows into runs; where there are several they are called NAME#1, NAME#2.

        A step that comes twice is kept as it came last. A sequence that starts again, at or
        before its run's first step, is another run; one that falls back less far, or follows an
        earlier process, is the same run resumed.
        """
        joined = _Joined()
        for stream, entries in self._streams.items():
            for part in _ascending(entries):
                joined.take(part, stream=stream, alone=streams_are_runs)
        runs = joined.runs
        if streams_are_runs:
            for run, stream in zip(runs, joined.streams, strict=True):
                run.name = stream or name
            _make_unique(runs)
        else:
            for place, run in enumerate(runs, start=1):
                run.name = name if len(runs) == 1 else f"{name}#{place}"
        self._streams = {}
        return runs, joined.notes()


def _ascending(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Split where the step falls."""
    start = 0
    for i in range(1, len(entries) + 1):
        if i == len(entries) or entries[i].step < entries[i - 1].step:
            yield entries[start:i]
            start = i


class _Joined:
    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.streams: list[str] = []
        self.repeated: list[int] = []
        self._layouts: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.resumed: list[int] = []

    def take(self, part: list[Entry], *, stream: str, alone: bool) -> None:
        """Add an ascending part to the run that it belongs to, or start another."""
        run = self._home(part, stream=stream, alone=alone)
        if run is None:
            run = Run("", first_step=part[0].step)
            self.runs.append(run)
            self.streams.append(stream)
        elif part[0].step <= run.last_step:
            before = run.rows.get(part[0].step)
            if before is not None and _overlap(before.keys, part[0].keys):
                self.resumed.append(part[0].step)
        for entry in part:
            self._put(run, entry)
        run.last_line = max(run.last_line, part[-1].line)
        run.last_step = max(run.last_step, part[-1].step)

    def _home(self, part: list[Entry], *, stream: str, alone: bool) -> Run | None:
        first = part[0]
        for run, its_stream in zip(reversed(self.runs), reversed(self.streams), strict=True):
            if its_stream != stream and (alone or run.last_line > first.line):
                continue
            # a fall to the start is a new run even where validation came one step before it
            if first.step > min(run.first_step + 1, run.last_step):
                return run
            same = run.rows.get(first.step)
            return run if same is not None and not _overlap(same.keys, first.keys) else None
        return None

    def _put(self, run: Run, entry: Entry) -> None:
        before = run.rows.get(entry.step)
        if before is None:
            run.rows[entry.step] = entry
            return
        old = set(before.keys) - PLACE_KEYS
        shared = len(old.intersection(entry.keys))
        if shared:
            self.repeated.append(entry.step)
        is_new_row = 2 * shared > len(old)  # the step again, not more of the same step
        run.rows[entry.step] = entry if is_new_row else self._merged(before, entry)

    def _merged(self, before: Entry, entry: Entry) -> Entry:
        merged = dict(zip(before.keys, before.values, strict=True))
        merged.update(zip(entry.keys, entry.values, strict=True))
        keys = tuple(merged)
        keys = self._layouts.setdefault(keys, keys)
        return Entry(entry.step, keys, array("d", merged.values()), entry.line)

    def notes(self) -> list[str]:
        """Return what was joined, one line each."""
        found = []
        if self.resumed:
            found.append(f"the run was resumed: it falls back to step {_some(self.resumed)}")
        if self.repeated:
            found.append(
                f"{len(self.repeated)} steps come more than once and are kept as they came last: "
                f"step {_some(self.repeated)}"
            )
        return found


def _overlap(before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Tell whether a row says anew what its step has said already."""
    if before is after:
        return True
    old, new = set(before) - PLACE_KEYS, set(after) - PLACE_KEYS
    return 2 * len(old & new) > min(len(old), len(new))


def _some(steps: list[int]) -> str:
    unique = list(dict.fromkeys(steps))
    more = f" and {len(unique) - N_SHOWN} more" if len(unique) > N_SHOWN else ""
    return ", ".join(map(str, unique[:N_SHOWN])) + more


def _make_unique(runs: list[Run]) -> None:
    seen: dict[str, int] = {}
    for run in runs:
        seen[run.name] = seen.get(run.name, 0) + 1
        if seen[run.name] > 1:
            run.name = f"{run.name}#{seen[run.name]}"
