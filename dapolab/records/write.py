"""Records to disk and back: Parquet with the selection and the cap in its metadata; CSV, JSONL."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dapolab.records.options import SELECTIONS
from dapolab.records.schema import COLUMNS, Records
from dapolab.scenario import ConfigError

METADATA_KEY = b"dapolab.records"


def write_records(records: Records, path: str | Path) -> None:
    """Write a table that ``read_records`` reads back; the file appears whole or not at all.

    Only Parquet also keeps selection and cap; in CSV and JSON lines the reader concludes anew.

    Raises
    ------
    ConfigError
        A suffix other than .parquet, .csv, .jsonl, or a folder that cannot be written.
    """
    path = Path(path)
    writers = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
    if path.suffix not in writers:
        raise ConfigError(f"{path}: write records as {', '.join(writers)}")
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        os.close(handle)
        writers[path.suffix](records, temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def read_metadata(raw: bytes | None) -> dict[str, Any]:
    """Return selection and cap as written; anything else in their place is ignored."""
    try:
        found = json.loads(raw or b"{}")
    except ValueError:
        return {}
    if not isinstance(found, dict) or found.get("selection") not in SELECTIONS:
        return {}
    cap = found.get("cap_tokens")
    return {
        "selection": found["selection"],
        "cap_tokens": cap if isinstance(cap, int) and cap > 0 else None,
    }


def _parquet(records: Records, path: Path) -> None:
    about = {"selection": records.selection, "cap_tokens": records.cap_tokens}
    table = pa.Table.from_pandas(records.table, preserve_index=False)
    kept = table.schema.metadata or {}
    table = table.replace_schema_metadata({**kept, METADATA_KEY: json.dumps(about).encode()})
    pq.write_table(table, path)


def _csv(records: Records, path: Path) -> None:
    records.table.to_csv(path, index=False)


def _jsonl(records: Records, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in records.table.to_dict(orient="records"):
            present = {name: value for name, value in row.items() if not pd.isna(value)}
            cells = dict.fromkeys(COLUMNS) | present  # nulls mark the file as one of ours
            file.write(json.dumps(cells, ensure_ascii=False) + "\n")
