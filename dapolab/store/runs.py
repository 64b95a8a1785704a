"""One run is one folder: manifest.json and one Parquet file a table."""

import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pandas as pd

from dapolab import __version__
from dapolab.scenario import ConfigError
from dapolab.store.files import atomic_write, sync_folder, temporary_beside

SCHEMA_VERSION = 1
PACKAGES = ("numpy", "scipy", "pandas", "pyarrow", "simpy", "numba")
"""Packages whose version can change a number of a run."""


@dataclass(frozen=True)
class StoredRun:
    """A run read back: its manifest and its tables by name."""

    manifest: dict[str, Any]
    tables: dict[str, pd.DataFrame]


def manifest(
    *,
    command: Sequence[str],
    seed: int | None,
    fingerprint: str,
    config: Mapping[str, Any] | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Return what is needed to repeat a run and to trust it; no host, user or absolute path.

    Parameters
    ----------
    command : the command line, as given; absolute paths in it are cut to their last part.
    seed : the run's seed, None where nothing is random.
    fingerprint : of the configuration (``Scenario.fingerprint``), or of the input table.
    config : the resolved configuration, where it is to be stored.
    extra : further entries, JSON values.
    """
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "schema_version": SCHEMA_VERSION,
        "command": " ".join(_portable(part) for part in command),
        "version": __version__,
        "seed": seed,
        "fingerprint": fingerprint,
        "config": None if config is None else dict(config),
        "created_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "python": platform.python_version(),
        "packages": versions,
        **extra,
    }


def _portable(argument: str) -> str:
    flag, sign, value = argument.partition("=")
    if sign and flag.startswith("-"):
        return f"{flag}={_portable(value)}"
    if PurePosixPath(argument).is_absolute():
        return PurePosixPath(argument).name
    if PureWindowsPath(argument).is_absolute():
        return PureWindowsPath(argument).name
    return argument


def write_run(
    folder: Path | str,
    *,
    manifest: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame],
    overwrite: bool = False,
) -> Path:
    """Write a run as a whole folder: everything under a temporary name, then one rename.

    Parameters
    ----------
    folder : the run's folder; its parent is made where missing.
    manifest : JSON values (NaN is refused).
    tables : name -> table, written as ``<name>.parquet``.
    overwrite : replace an existing run. The old one is moved aside first and removed last.

    Raises
    ------
    ConfigError : the folder exists (and ``overwrite`` is off), or is not a run.
    ValueError : NaN in the manifest, or a table name that is not a plain word.
    OSError : cannot be written; then nothing new is left behind.
    """
    target = Path(folder)
    for name in tables:
        if not name.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"{name!r} is no table name: use letters, digits, - and _")
    document = json.dumps(dict(manifest), indent=2, sort_keys=True, allow_nan=False) + "\n"
    if target.exists():
        _check_replaceable(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(target)
    try:
        temporary.mkdir()
        for name, table in tables.items():
            table.to_parquet(temporary / f"{name}.parquet", index=False)
        # last, so that a manifest means that all tables are there
        atomic_write(temporary / "manifest.json", document)
        _move_into_place(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(target.parent)
    return target


def _check_replaceable(target: Path, *, overwrite: bool) -> None:
    if not target.is_dir():
        raise ConfigError(f"{target} is a file: name a folder for the run")
    if not any(target.iterdir()):
        return
    if not (target / "manifest.json").is_file():
        raise ConfigError(f"{target} holds other files: name a new folder for the run")
    if not overwrite:
        raise ConfigError(f"{target} holds a run already: name another folder or ask to overwrite")


def _move_into_place(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
        return
    old = temporary_beside(target)
    target.rename(old)
    try:
        temporary.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def read_run(folder: Path | str) -> StoredRun:
    """Read a run that :func:`write_run` wrote.

    Raises
    ------
    ConfigError : no run there, a manifest that is not JSON, or one of a newer schema.
    """
    source = Path(folder)
    path = source / "manifest.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{source} holds no run: there is no manifest.json in it") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}): write the run again") from None
    schema = found.get("schema_version") if isinstance(found, dict) else None
    if schema != SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema {schema}, this version reads {SCHEMA_VERSION}: write the run again"
        )
    tables = {path.stem: pd.read_parquet(path) for path in sorted(source.glob("*.parquet"))}
    return StoredRun(found, tables)


def finished_runs(root: Path | str) -> tuple[str, ...]:
    """Return the names of the finished runs under ``root``, sorted: what a rerun may skip.

    A folder counts when its manifest is there; unfinished writes have hidden names.
    """
    folder = Path(root)
    if not folder.is_dir():
        return ()
    return tuple(
        sorted(
            entry.name
            for entry in folder.iterdir()
            if not entry.name.startswith(".") and (entry / "manifest.json").is_file()
        )
    )
