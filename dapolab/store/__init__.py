"""Runs on disk: a manifest and Parquet tables, written whole or not at all."""

from dapolab.store.files import atomic_write
from dapolab.store.runs import (
    SCHEMA_VERSION,
    StoredRun,
    finished_runs,
    manifest,
    read_run,
    write_run,
)
from dapolab.store.shards import Shards, ShardWriter, read_shards

__all__ = [
    "SCHEMA_VERSION",
    "ShardWriter",
    "Shards",
    "StoredRun",
    "atomic_write",
    "finished_runs",
    "manifest",
    "read_run",
    "read_shards",
    "write_run",
]
