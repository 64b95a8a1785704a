"""Rows of a running training, one JSON line a step: appended, never half-read, cut on resume."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dapolab.errors import ConfigError
from dapolab.store import atomic_write


class Journal:
    """The file; each record holds its ``step``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and wait until it is on disk; NaN is refused."""
        line = json.dumps(record, allow_nan=False) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> list[dict[str, Any]]:
        """Return all whole records; a last line that a kill cut short is left out.

        Raises
        ------
        ConfigError : a line before the last is no record.
        """
        if not self.path.is_file():
            return []
        lines = self.path.read_bytes().split(b"\n")
        found = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                found.append(dict(json.loads(line)))
            except ValueError:
                raise ConfigError(f"{self.path}, line {number}: not a record of a step") from None
        return found

    def cut(self, n_steps: int) -> None:
        """Keep the records of the first ``n_steps`` steps alone.

        Raises
        ------
        ConfigError : one of them is missing.
        """
        kept = [record for record in self.records() if record["step"] < n_steps]
        if [record["step"] for record in kept] != list(range(n_steps)):
            raise ConfigError(
                f"{self.path}: it holds {len(kept)} of the {n_steps} steps before the checkpoint; "
                "remove the folder to start anew"
            )
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept)
        atomic_write(self.path, text)
