"""Step tables to disk and back: Parquet with sources and notes in its metadata; CSV."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dapolab.errors import ConfigError
from dapolab.logs.schema import StepTable, finish
from dapolab.reading.lines import PARQUET_MAGIC, magic, reason

METADATA_KEY = b"dapolab.logs"
SUFFIXES = (".parquet", ".csv")


def written_bytes(table: StepTable, suffix: str) -> bytes:
    """Return the file that ``read_log`` reads back; only Parquet keeps sources and notes.

    Raises
    ------
    ConfigError
        A suffix other than .parquet and .csv.
    """
    if suffix == ".csv":
        return bytes(table.frame.to_csv(index=False).encode())
    if suffix != ".parquet":
        raise ConfigError(f"write steps as {' or '.join(SUFFIXES)}, not {suffix!r}")
    about = {
        "format": table.format,
        "framework": table.framework,
        "sources": dict(table.sources),
        "notes": list(table.notes),
    }
    arrow = pa.Table.from_pandas(table.frame, preserve_index=False)
    kept = arrow.schema.metadata or {}
    arrow = arrow.replace_schema_metadata({**kept, METADATA_KEY: json.dumps(about).encode()})
    sink = io.BytesIO()
    pq.write_table(arrow, sink)
    return sink.getvalue()


def read_written(path: Path) -> StepTable | None:
    """Return the table of a Parquet file that ``import-log`` wrote; None for any other file.

    Raises
    ------
    ConfigError
        Such a file whose table was changed into something that is none.
    """
    if magic(path) != PARQUET_MAGIC:
        return None
    try:
        metadata = pq.read_schema(path).metadata or {}
        if METADATA_KEY not in metadata:
            return None
        about = json.loads(metadata[METADATA_KEY])
        frame = pq.read_table(path).to_pandas()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a readable Parquet file ({reason(error)})") from None
    if not isinstance(about, dict):
        return None
    return finish(
        frame,
        where=str(path),
        format=str(about.get("format", "")),
        framework=str(about.get("framework", "")),
        sources=_texts(about.get("sources")),
        notes=[str(note) for note in about.get("notes") or []],
    )


def _texts(found: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
