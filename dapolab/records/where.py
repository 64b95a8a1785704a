"""``--where column=value``: read only some rows of a file, before anything else looks at them."""

from collections.abc import Mapping
from typing import Any

from dapolab.records.cells import scalar_text
from dapolab.scenario import ConfigError

N_SHOWN = 8


class RowFilter:
    """Keeps rows whose raw cells equal the given values; numbers compare as numbers."""

    def __init__(self, wanted: Mapping[str, str]) -> None:
        self._wanted = {name: scalar_text(value) for name, value in wanted.items()}
        self._seen: dict[str, dict[str, None]] = {name: {} for name in wanted}
        self._columns: dict[str, None] = {}
        self._n_kept = 0
        self._n_rows = 0

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Tell whether a raw row is wanted, and remember what was seen for the error."""
        if not self._wanted:
            return True
        self._n_rows += 1
        kept = True
        for name, value in self._wanted.items():
            if name not in row:
                kept = False
                if len(self._columns) < 50:
                    self._columns.update(dict.fromkeys(row))
                continue
            found = row[name]
            cell = None if isinstance(found, list | dict) else scalar_text(found)
            seen = self._seen[name]
            if len(seen) < N_SHOWN + 1 and cell is not None:
                seen[cell] = None
            kept = kept and cell == value
        self._n_kept += kept
        return kept

    def notes(self, *, where: str) -> list[str]:
        """Return the line that says how much was kept.

        Raises
        ------
        ConfigError
            Nothing was kept; the message names the columns or the values that exist.
        """
        if not self._wanted or not self._n_rows:
            return []
        if self._n_kept:
            return [f"--where kept {self._n_kept} of {self._n_rows} rows"]
        for name, seen in self._seen.items():
            if not seen:
                names = ", ".join(list(self._columns)[:20])
                raise ConfigError(f"{where}: --where: no column {name!r}; columns: {names}")
        name, seen = next(iter(self._seen.items()))
        values = ", ".join(list(seen)[:N_SHOWN]) + (", …" if len(seen) > N_SHOWN else "")
        raise ConfigError(f"{where}: --where matches no row; {name} takes: {values}")
