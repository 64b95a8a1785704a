"""What a framework's keys mean: which column each fills, and what it covers and does not."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from dapolab.errors import ConfigError
from dapolab.logs.options import LogOptions
from dapolab.logs.schema import BY_COLUMN, EXTRA


@dataclass(frozen=True)
class Key:
    """One key of a log.

    Attributes
    ----------
    name : as the log writes it.
    columns : what it fills; the first key of a vocabulary that has a number wins a column.
    covers : what the number is over and what it leaves out; empty where the column says it all.
    """

    name: str
    columns: tuple[str, ...] = ()
    covers: str = ""


@dataclass
class Mapped:
    """One run under way from the log's keys to the table's columns."""

    keys: pd.DataFrame
    columns: dict[str, "pd.Series[float]"]
    sources: dict[str, str]
    options: LogOptions
    notes: list[str] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        """Whether the log has one of these keys with a number in it."""
        return any(name in self.keys and bool(self.keys[name].notna().any()) for name in names)

    def fill(self, column: str, values: "pd.Series[float]", *, source: str) -> None:
        """Fill a column where nothing has yet; no value, no column."""
        if column not in self.columns and bool(values.notna().any()):
            self.columns[column] = values.astype("float64")
            self.sources[column] = source

    def move_to_extra(self, column: str) -> None:
        """Take back a column whose key turned out to mean something else in this log."""
        if column in self.columns:
            del self.columns[column]
            del self.sources[column]


def _nothing_more(mapped: Mapped) -> None:
    """Derive nothing."""


@dataclass(frozen=True)
class Vocabulary:
    """The keys of one framework.

    Attributes
    ----------
    framework : its name.
    keys : in order of preference.
    marks : beginnings of keys that no other framework has: without one the keys are not its own.
    prefixes : what its loggers put before a key on some backends.
    same : a pattern and its replacement, for keys that hold a name of the user's (an agent); where
        two keys of a log become one by it, neither is taken.
    derive : adds columns that follow exactly from the keys, and notes on the whole log.
    silent : what no key of the framework tells.
    """

    framework: str
    keys: tuple[Key, ...]
    marks: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    same: tuple[re.Pattern[str], str] | None = None
    derive: Callable[[Mapped], None] = _nothing_more
    silent: str = ""

    def hits(self, names: Iterable[str]) -> int:
        """Count the keys that the vocabulary has; 0 where none is a mark of the framework."""
        known = self.known(names)
        return len(known) if any(plain.startswith(self.marks) for plain in known) else 0

    def known(self, names: Iterable[str]) -> dict[str, str]:
        """Return {plain key: key in the log} of the names that the vocabulary has."""
        plain = {key.name for key in self.keys}
        found: dict[str, str] = {}
        general: dict[str, list[str]] = {}
        for name in names:
            if self.same and (same := self.same[0].sub(self.same[1], name)) in plain:
                general.setdefault(same, []).append(name)
            for prefix in ("", *self.prefixes):
                bare = name.removeprefix(prefix) if name.startswith(prefix) else name
                if bare in plain:
                    found.setdefault(bare, name)
        return found | {same: which[0] for same, which in general.items() if len(which) == 1}


def apply(
    vocabulary: Vocabulary, keys: pd.DataFrame, *, options: LogOptions, where: str
) -> tuple[Mapped, dict[str, str]]:
    """Map one run's keys to columns; returns it and {column: covers} of the keys that were used.

    Steps at which no key of the vocabulary or of the user has a number are validation or other
    rows: they are left out and counted.

    Raises
    ------
    ConfigError
        A key of ``--columns`` that the log does not have.
    """
    known = vocabulary.known(map(str, keys.columns))
    asked = {c: k for c, k in options.columns.items() if c not in ("run", "step")}
    _check_asked(asked, keys, where=where)
    used = [*known.values(), *(key for key in asked.values() if key)]
    with_number = keys[list(dict.fromkeys(used))].notna().any(axis=1)
    left_out = keys.index[~with_number.to_numpy()]
    keys = keys[with_number.to_numpy()]
    renamed = keys.rename(columns={name: plain for plain, name in known.items()})
    mapped = Mapped(keys=renamed, columns={}, sources={}, options=options)
    for column, name in asked.items():
        if name:
            mapped.fill(column, keys[name], source=name)
    for key in vocabulary.keys:
        if key.name not in known:
            continue
        for column in key.columns:
            if asked.get(column) == "":
                continue
            _coalesce(mapped, column, renamed[key.name], source=known[key.name])
    vocabulary.derive(mapped)
    covers = {
        known[key.name]: key.covers
        for key in vocabulary.keys
        if key.covers and key.name in known and mapped.has(key.name)
    }
    if len(left_out):
        shown = ", ".join(map(str, left_out[:4])) + (" …" if len(left_out) > 4 else "")
        mapped.notes.append(
            f"{len(left_out)} rows hold no training metric (validation, start or end of the run) "
            f"and are left out: step {shown}"
        )
    return mapped, covers


def table_of(mapped: Mapped, *, run: str, known: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of one run: mapped columns, and every other number under ``extra/KEY``."""
    keys = mapped.keys
    used = set(mapped.sources.values())
    columns: dict[str, object] = {"run": run, "step": keys.index.to_numpy()}
    for column, values in mapped.columns.items():
        columns[column] = values.to_numpy()
    for name in map(str, keys.columns):
        source = known.get(name, name)
        if source in used or source in BY_COLUMN:
            continue
        target = source if source.startswith(EXTRA) else EXTRA + source
        columns[target] = keys[name].to_numpy()
    return pd.DataFrame(columns)


def _coalesce(mapped: Mapped, column: str, values: "pd.Series[float]", *, source: str) -> None:
    if column not in mapped.columns:
        mapped.fill(column, values, source=source)
    elif mapped.sources[column] != source:
        mapped.columns[column] = mapped.columns[column].where(
            mapped.columns[column].notna(), values.astype("float64")
        )


def _check_asked(asked: Mapping[str, str], keys: pd.DataFrame, *, where: str) -> None:
    for column, name in asked.items():
        if name and name not in keys:
            names = sorted(map(str, keys.columns))
            near = difflib.get_close_matches(name, names, n=4, cutoff=0.3) or names[:4]
            raise ConfigError(
                f"--columns {column}={name}: {where} has no such key; nearest: {', '.join(near)}"
            )


def is_whole(values: "pd.Series[float]", *, tolerance: float) -> bool:
    """Whether every number present lies within a relative tolerance of a whole one, 1 or more."""
    numbers = values.dropna().to_numpy(dtype="float64")
    near = np.rint(numbers)
    return bool(
        len(numbers) and (near >= 1).all() and (abs(numbers - near) <= tolerance * near).all()
    )
