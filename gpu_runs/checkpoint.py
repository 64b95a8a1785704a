"""The state of a run in one file that is whole or not there.

A checkpoint is written in two moves: ``prepare`` puts the bytes on disk under a hidden name,
``Prepared.commit`` renames it. In between the step's rows are written, so that a kill at any moment
leaves a checkpoint and the rows of at least all steps before it.
"""

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dapolab.errors import ConfigError
from dapolab.store.files import sync_folder, temporary_beside

FORMAT = 1


@dataclass(frozen=True)
class Prepared:
    """A checkpoint on disk that is not the run's yet."""

    temporary: Path
    target: Path

    def commit(self) -> None:
        """Make it the run's checkpoint."""
        self.temporary.replace(self.target)
        sync_folder(self.target.parent)


def prepare(path: Path, state: Mapping[str, Any]) -> Prepared:
    """Write a state (tensors and plain values, nested) beside its place.

    Raises
    ------
    OSError : cannot be written; nothing is left behind.
    """
    temporary = temporary_beside(path)
    try:
        with temporary.open("xb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return Prepared(temporary, path)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain values are loaded, on the CPU.

    Raises
    ------
    ConfigError : it is not whole, or not of this version.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError):
        raise ConfigError(
            f"{path}: no checkpoint that can be read; remove it to start this run anew"
        ) from None
    found = state.get("format") if isinstance(state, dict) else None
    if found != FORMAT:
        raise ConfigError(f"{path}: checkpoint of format {found}, this version reads {FORMAT}")
    return dict(state)


def remove_unfinished(folder: Path) -> None:
    """Delete what a kill left under hidden names."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
