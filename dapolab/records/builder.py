"""Rows in, typed columns out, in little memory: one compact array a column, never a dict a row."""

from array import array
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dapolab.reading.lines import Source
from dapolab.records import cells
from dapolab.records.cells import CellError

INTEGERS = ("sample", "step", "wave", "n_tokens", "n_prompt_tokens", "n_samples", "n_correct")
FLOATS = ("reward", "t_start_s", "t_end_s", "pass_rate")
BOOLEANS = ("correct", "truncated", "kept")
TEXTS = ("prompt_id", "group_id", "source")
EXTRA = "extra/"
CHUNK_ROWS = 1 << 13
_NO_INTEGER = -(2**63)
_NUMBER_PATTERN = r"^-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?$"

_BEYOND_EXACT_PATTERN = r"^-?[0-9]{16,}$"  # a 64-bit id must not become a rounded float


class _Column(Protocol):
    @property
    def n(self) -> int: ...
    def append(self, value: object) -> None: ...
    def pad(self, n: int) -> None: ...
    def finish(self) -> pd.api.extensions.ExtensionArray: ...


class _Integers:
    def __init__(self) -> None:
        self._values = array("q")

    @property
    def n(self) -> int:
        return len(self._values)

    def append(self, value: object) -> None:
        read = cells.whole(value)
        self._values.append(_NO_INTEGER if read is None else read)

    def pad(self, n: int) -> None:
        self._values.extend([_NO_INTEGER] * (n - len(self._values)))

    def finish(self) -> pd.api.extensions.ExtensionArray:
        values = np.array(self._values, dtype=np.int64)
        mask = values == _NO_INTEGER
        values[mask] = 0
        return pd.arrays.IntegerArray(values, mask)


class _Floats:
    def __init__(self) -> None:
        self._values = array("d")

    @property
    def n(self) -> int:
        return len(self._values)

    def append(self, value: object) -> None:
        read = cells.number(value)
        self._values.append(float("nan") if read is None else read)

    def pad(self, n: int) -> None:
        self._values.extend([float("nan")] * (n - len(self._values)))

    def finish(self) -> pd.api.extensions.ExtensionArray:
        values = np.array(self._values, dtype=np.float64)
        mask = np.isnan(values)
        values[mask] = 0.0
        return pd.arrays.FloatingArray(values, mask)


class _Booleans:
    def __init__(self) -> None:
        self._values = array("b")

    @property
    def n(self) -> int:
        return len(self._values)

    def append(self, value: object) -> None:
        read = cells.boolean(value)
        self._values.append(-1 if read is None else int(read))

    def pad(self, n: int) -> None:
        self._values.extend([-1] * (n - len(self._values)))

    def finish(self) -> pd.api.extensions.ExtensionArray:
        values = np.array(self._values, dtype=np.int8)
        return pd.arrays.BooleanArray(values == 1, values == -1)


class _Texts:
    def __init__(self, read: Callable[[Any], str | None] = cells.text_id) -> None:
        self._read = read
        self._chunks: list[pa.Array] = []
        self._open: list[str | None] = []
        self.n = 0

    def append(self, value: object) -> None:
        read = self._read(value)
        if read is not None and not read.isascii():
            read = read.encode("utf-8", "backslashreplace").decode()
        self._open.append(read)
        self.n += 1
        if len(self._open) >= CHUNK_ROWS:
            self._flush()

    def pad(self, n: int) -> None:
        missing = n - self.n
        if missing > 0:
            self._flush()
            self._chunks.append(pa.nulls(missing, pa.large_string()))
            self.n = n

    def _flush(self) -> None:
        if self._open:
            plain = pa.array(self._open, pa.large_string())
            coded = plain.dictionary_encode()
            self._chunks.append(coded if 2 * coded.nbytes < plain.nbytes else plain)
            self._open = []

    def chunked(self) -> pa.ChunkedArray:
        """Return the column and let go of its parts, one after the other."""
        self._flush()
        parts, self._chunks = self._chunks[::-1], []
        decoded = []
        while parts:
            decoded.append(parts.pop().cast(pa.large_string()))
        return pa.chunked_array(decoded, pa.large_string())

    def finish(self) -> pd.api.extensions.ExtensionArray:
        return _strings(self.chunked())


def _strings(chunks: pa.ChunkedArray) -> pd.api.extensions.ExtensionArray:
    array: pd.api.extensions.ExtensionArray = pd.arrays.ArrowStringArray(chunks)
    return array


class _Scalars(_Texts):
    """An unknown column: boolean or number where every present cell is one, else text."""

    def __init__(self) -> None:
        super().__init__(cells.scalar_text)

    def finish(self) -> pd.api.extensions.ExtensionArray:
        text = self.chunked()
        if text.null_count == len(text):
            return _strings(text)
        true, false = pc.equal(text, "true"), pc.equal(text, "false")
        if pc.all(pc.or_(true, false)).as_py():
            absent = text.is_null().to_numpy()
            return pd.arrays.BooleanArray(true.fill_null(False).to_numpy(), absent)
        digits = pc.if_else(true, "1", pc.if_else(false, "0", text))
        numeric = pc.all(pc.match_substring_regex(digits, _NUMBER_PATTERN)).as_py()
        too_long = pc.any(pc.match_substring_regex(digits, _BEYOND_EXACT_PATTERN)).as_py()
        if not numeric or too_long:
            return _strings(text)
        values = pc.cast(digits, pa.float64()).to_numpy(zero_copy_only=False)
        mask = np.isnan(values)
        return pd.arrays.FloatingArray(np.where(mask, 0.0, values), mask)


class TableBuilder:
    """Collects rows whose keys are table columns, roles of counts, or ``extra/NAME``."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._columns: dict[str, _Column] = {}
        self._dropped: dict[str, int] = {}

    def add(self, row: Mapping[str, object], *, source: Source, line: int) -> None:
        """Append one row; absent keys are missing cells.

        Raises
        ------
        ConfigError
            A cell that its column cannot hold, named by file, line and column.
        """
        for name, value in row.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _new_column(name)
            if column.n != self.n_rows:
                column.pad(self.n_rows)
            try:
                column.append(value)
            except CellError as error:
                if not name.startswith(EXTRA):
                    raise source.error(f"{name}: {error}", line=line) from None
                self._dropped[name] = self._dropped.get(name, 0) + 1
                column.append(None)
        self.n_rows += 1

    def frame(self) -> pd.DataFrame:
        """Return the table so far and empty the builder column by column (memory stays flat)."""
        columns: dict[str, pd.api.extensions.ExtensionArray] = {}
        for name in list(self._columns):
            column = self._columns.pop(name)
            column.pad(self.n_rows)
            if self._dropped.get(name) == self.n_rows:
                continue
            columns[name] = column.finish()
        return pd.DataFrame(columns, index=pd.RangeIndex(self.n_rows), copy=False)

    def notes(self) -> list[str]:
        """Return what was left out: lists, objects, and other kinds of cells."""
        if not self._dropped:
            return []
        listed = ", ".join(
            f"{name.removeprefix(EXTRA)} ({count} of {self.n_rows})"
            for name, count in sorted(self._dropped.items())
        )
        return [f"cells that are no number, boolean or text are left out: {listed}"]


def _new_column(name: str) -> _Column:
    if name in INTEGERS:
        return _Integers()
    if name in FLOATS:
        return _Floats()
    if name in BOOLEANS:
        return _Booleans()
    if name in TEXTS:
        return _Texts()
    return _Scalars()
