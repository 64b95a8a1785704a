"""Results that systems published, as ratios, beside what the simulator says of their settings.

Free parameters (two at most a system) are fitted to the baseline row alone and stand in
``baselines.json``, which is committed before any other row is computed. What the published inputs
leave open spans a grid of variants; a row is printed as the range over them.
"""

from dapolab.fidelity.published import fastest_k, open_rows, rollpacker, verl_async
from dapolab.fidelity.published.row import (
    BASELINES,
    Row,
    System,
    Variant,
    baselines_text,
    fit_baselines,
    read_baselines,
    rows_of,
)

__all__ = [
    "BASELINES",
    "Row",
    "System",
    "Variant",
    "baselines_text",
    "fit_baselines",
    "read_baselines",
    "rows_of",
    "systems",
]


def systems() -> list[System]:
    """Return every compared publication."""
    return [
        rollpacker.system(),
        verl_async.system(),
        open_rows.april(),
        fastest_k.system(),
        open_rows.one_step_off(),
    ]
