"""Rows of a sweep, safe at any moment: per-worker Parquet shards, committed every second.

Each writer has a name of its own, so workers, and sweeps that share a folder, never touch each
other's files. A shard appears by rename, complete; kill -9 loses at most the rows of the last
second. The reader skips what is torn and says so.
"""

import io
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dapolab.store.files import atomic_write

COMMIT_EVERY_S = 1.0


class ShardWriter:
    """Collect rows and commit them as Parquet shards at least every second.

    A row waits at most ``every_s`` seconds, also when the next one is long in coming: a daemon
    thread commits meanwhile. Use it as a context manager; leaving it commits the rest.

    Parameters
    ----------
    folder : where the shards go; made where missing.
    every_s : longest time that a row stays uncommitted, seconds.
    worker : name in front of the shards, unique among live writers; drawn where not given.
    """

    def __init__(
        self, folder: Path | str, *, every_s: float = COMMIT_EVERY_S, worker: str | None = None
    ) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._every_s = every_s
        self._worker = worker or uuid.uuid4().hex[:12]
        self._rows: list[dict[str, Any]] = []
        self._n_shards = 0
        self._committed_s = time.monotonic()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._closed = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="shard-writer", daemon=True)
        self._clock.start()

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row of scalars.

        Raises
        ------
        OSError : a commit failed (also one of the background thread); its rows are kept and the
            next commit tries them again.
        ValueError : the writer is closed.
        """
        if self._closed.is_set():
            raise ValueError("this shard writer is closed")
        with self._lock:
            self._rows.append(dict(row))
            error, self._error = self._error, None
            if error is not None:
                raise error
            if time.monotonic() - self._committed_s >= self._every_s:
                self._commit()

    def commit(self) -> None:
        """Write the waiting rows now."""
        with self._lock:
            self._commit()

    def close(self) -> None:
        """Commit the rest and stop the background thread; a second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._clock.join()
        self.commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _commit(self) -> None:
        if not self._rows:
            self._committed_s = time.monotonic()
            return
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(_same_keys(self._rows)), buffer)
        name = f"{self._worker}-{self._n_shards:06d}.parquet"
        atomic_write(self._folder / name, buffer.getvalue())
        self._n_shards += 1
        self._rows.clear()
        self._committed_s = time.monotonic()

    def _tick(self) -> None:
        while not self._closed.wait(self._every_s / 2):
            with self._lock:
                if time.monotonic() - self._committed_s < self._every_s / 2:
                    continue
                try:
                    self._commit()
                except Exception as error:
                    # raised to the caller by the next append; the rows are still here
                    self._error = error


def _same_keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # from_pylist takes its columns from the first row alone
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


@dataclass(frozen=True)
class Shards:
    """The rows of a folder of shards, and the files that could not be read.

    Attributes
    ----------
    table : all rows, shards in order of their names; empty where there are none.
    torn : names of files that are not whole Parquet files. They were ignored.
    """

    table: pd.DataFrame
    torn: tuple[str, ...]


def read_shards(folder: Path | str, *, key: str | None = None) -> Shards:
    """Read every committed row under ``folder``.

    Parameters
    ----------
    folder : a folder that :class:`ShardWriter` wrote; a missing one reads as empty.
    key : column that identifies a row. Where two sweeps computed the same point, the first by
        shard name is kept.
    """
    tables: list[pa.Table] = []
    torn: list[str] = []
    for path in sorted(Path(folder).glob("[!.]*.parquet")):
        try:
            # as one file: a folder name with "=" in it is no partition
            tables.append(pq.ParquetFile(path).read())
        except (pa.ArrowInvalid, OSError):
            torn.append(path.name)
    if not tables:
        return Shards(pd.DataFrame(), tuple(torn))
    table = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    if key is not None and key in table:
        table = table.drop_duplicates(key, ignore_index=True)
    return Shards(table, tuple(torn))
