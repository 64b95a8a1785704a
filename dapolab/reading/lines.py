"""Rows out of files, one at a time: JSON lines, CSV, Parquet, plain or gzipped.

A last line that was cut while being written is reported with its number and left out; a broken
line anywhere else is an error. Nothing is ever evaluated or unpickled.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from dapolab.errors import ConfigError
from dapolab.reading.progress import ByteProgress

LONGEST_LINE_BYTES = 256 * 2**20
PARQUET_BATCH_ROWS = 2048
GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"

Row = dict[str, Any]
_CUT_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)


@dataclass
class Source:
    """One file of a dump: where it is, what to call it, and where findings go."""

    path: Path
    name: str
    notes: list[str]
    progress: ByteProgress

    def error(self, message: str, *, line: int | None = None) -> ConfigError:
        """Return the one-line error that names the file and the line."""
        place = f"{self.name}: line {line}" if line is not None else self.name
        return ConfigError(f"{place}: {message}")


def magic(path: Path, n_bytes: int = 4) -> bytes:
    """Return the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(n_bytes)


def head(path: Path, n_bytes: int = 1 << 16) -> bytes:
    """Return the first bytes of a file's content, unzipped where gzipped."""
    with path.open("rb") as file:
        if file.read(2) == GZIP_MAGIC:
            file.seek(0)
            return _unzipped_head(gzip.GzipFile(fileobj=file), n_bytes)
        file.seek(0)
        return file.read(n_bytes)


def _unzipped_head(stream: gzip.GzipFile, n_bytes: int) -> bytes:
    """Return what a gzip stream holds before its end or its cut."""
    found = b""
    try:
        while len(found) < n_bytes and (piece := stream.read1(n_bytes - len(found))):
            found += piece
    except _CUT_GZIP:
        pass
    return found


@contextmanager
def _opened(source: Source) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open for reading; yields the content and the raw file, whose position is the progress."""
    with source.path.open("rb") as raw:
        zipped = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        yield (cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw), raw


def json_rows(source: Source) -> Iterator[tuple[int, Row]]:
    """Yield (line number from 1, object) of a JSON-lines file.

    Raises
    ------
    ConfigError
        A line that is no JSON object and is not the last one.
    """
    broken: tuple[int, str] | None = None
    n_rows = 0
    with _opened(source) as (stream, raw):
        for number, line in _byte_lines(source, stream, raw):
            if broken is not None:
                raise source.error(broken[1], line=broken[0])
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                broken = (number, f"not valid JSON ({reason(error)})")
                continue
            if not isinstance(row, dict):
                broken = (number, f"expected a JSON object, got {type(row).__name__}")
                continue
            n_rows += 1
            yield number, row
    if broken is not None:
        if n_rows == 0:
            raise source.error(broken[1] + "; expected one JSON object a line", line=broken[0])
        _report_cut(source, broken[0], n_rows)


def _byte_lines(source: Source, stream: BinaryIO, raw: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = position = 0
    while True:
        try:
            line = stream.readline(LONGEST_LINE_BYTES + 1)
        except _CUT_GZIP:
            source.notes.append(
                f"{source.name}: the gzip stream is cut after line {number}; the rest is lost"
            )
            return
        if not line:
            return
        number += 1
        if len(line) > LONGEST_LINE_BYTES:
            raise source.error("a line of more than 256 MiB is not JSON lines", line=number)
        now = raw.tell()
        source.progress.advance(now - position)
        position = now
        if not line.isspace():
            yield number, line


def csv_rows(source: Source) -> Iterator[tuple[int, Row]]:
    """Yield (line number, cells by header name) of a CSV or TSV file with a header line.

    Raises
    ------
    ConfigError
        No header, a repeated column name, a row of another width that is not the last, or a file
        that is not UTF-8.
    """
    limit = csv.field_size_limit(LONGEST_LINE_BYTES)
    try:
        yield from _csv_rows(source)
    except UnicodeDecodeError as error:
        raise source.error(f"not UTF-8 text (byte {error.start})") from None
    finally:
        csv.field_size_limit(limit)


def _csv_rows(source: Source) -> Iterator[tuple[int, Row]]:
    header: list[str] | None = None
    broken: tuple[int, str] | None = None
    n_rows = line = 0
    for line, cells in _csv_cells(source):
        if broken is not None:
            raise source.error(broken[1], line=broken[0])
        if isinstance(cells, str):
            broken = (line, cells)
        elif header is None:
            header = _header(source, cells)
        elif len(cells) != len(header):
            broken = (line, f"{len(cells)} cells, expected {len(header)}")
        else:
            n_rows += 1
            yield line, dict(zip(header, cells, strict=True))
    if broken is not None:
        if n_rows == 0:
            raise source.error(broken[1], line=broken[0])
        _report_cut(source, broken[0], n_rows)
    elif n_rows and _ends_open(source.path):
        source.notes.append(
            f"{source.name}: no line break at the end: if the file was cut, so is line {line}"
        )


def _csv_cells(source: Source) -> Iterator[tuple[int, list[str] | str]]:
    """Yield (line number, cells) of every record, or what is wrong with it in words."""
    with _opened(source) as (stream, raw):
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=delimiter(head(source.path)), strict=True)
        position = 0
        while True:
            start = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if reader.line_num > start:  # an open quote swallowed whole lines, not just one
                    raise source.error("a quote opened here is never closed", line=start) from None
                yield start, f"not valid CSV ({error})"
                continue
            except _CUT_GZIP:
                yield start, "the gzip stream is cut"
                return
            now = raw.tell()
            source.progress.advance(now - position)
            position = now
            if cells:
                yield start, cells


def _ends_open(path: Path) -> bool:
    """Tell whether a plain file ends without a line break."""
    with path.open("rb") as file:
        if file.read(2) == GZIP_MAGIC:
            return False
        file.seek(-1, io.SEEK_END)
        return file.read(1) not in b"\r\n"


def _header(source: Source, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise source.error(f"the header names column {name!r} twice", line=1)
    return names


def delimiter(start: bytes) -> str:
    """Return the separator of a CSV from its first line: the commonest of comma, tab, semicolon."""
    first = start.split(b"\n", 1)[0].decode("utf-8", "replace")
    return max(",\t;", key=first.count)


def parquet_rows(source: Source, *, lists: Collection[str] = ()) -> Iterator[tuple[int, Row]]:
    """Yield (row number from 1, scalar cells) of a Parquet file, batch by batch.

    List columns other than ``lists`` are not read and named in a note; structs are read and
    flattened by the caller.

    Raises
    ------
    ConfigError
        A file that is not Parquet or is cut.
    """
    try:
        with pq.ParquetFile(source.path) as file:
            schema = file.schema_arrow
            nested = [f.name for f in schema if pa.types.is_nested(f.type)]
            skipped = [
                n for n in nested if n not in lists and not pa.types.is_struct(schema.field(n).type)
            ]
            if skipped:
                source.notes.append(f"{source.name}: list columns left out: {', '.join(skipped)}")
            names = [name for name in schema.names if name not in skipped]
            number = 0
            size = source.path.stat().st_size
            total = max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=names):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
                source.progress.advance(size * batch.num_rows // total)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise source.error(f"not a readable Parquet file ({reason(error)})") from None


def rows(source: Source) -> Iterator[tuple[int, Row]]:
    """Yield rows of a file of any of the three kinds, told apart by content, never by suffix."""
    if magic(source.path) == PARQUET_MAGIC:
        return parquet_rows(source)
    if head(source.path).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return json_rows(source)
    return csv_rows(source)


def _report_cut(source: Source, line: int, n_rows: int) -> None:
    source.notes.append(
        f"{source.name}: the last line ({line}) is cut off and was left out; "
        f"the {n_rows} rows before it are kept"
    )


def reason(error: Exception) -> str:
    """Return what a library says of an error, in one line of 100 characters at most."""
    text = " ".join(str(error).split())
    return text if len(text) <= 100 else text[:97] + "..."
