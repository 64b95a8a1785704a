"""Step tables for calibration and backtest, from whatever log there is."""

from pathlib import Path

from dapolab.errors import ConfigError
from dapolab.fidelity.calibrate import read_table
from dapolab.logs import BY_COLUMN, StepTable, finish


def read_steps(path: Path, *, run: str | None = None) -> StepTable:
    """Return the step table of a log.

    Raises
    ------
    ConfigError
        The file cannot be read as a log of steps.
    """
    table = read_table(path)
    known = [name for name in table if name in BY_COLUMN or name in ("run", "step")]
    if "step" not in known:
        raise ConfigError(f"{path}: neither a trace nor a table of steps")
    rows = table[known].assign(run=table.get("run", path.stem))
    return finish(rows, where=str(path), format="table")
