"""Results that systems published, as ratios, beside what the simulator says of their settings.

Free parameters (two at most a system) are fitted to the baseline row alone and stand in
``baselines.json``, which is committed before any other row is computed. What the published inputs
leave open spans a grid of variants; a row is printed as the range over them.
"""

from dapolab.fidelity.published import (
    april,
    fastest_k,
    one_step_off,
    rollpacker,
    rollpacker_steps,
    verl_async,
    verl_async_moe,
)
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
        rollpacker_steps.system(),
        verl_async.system(),
        verl_async.system(second_reading=True),
        verl_async_moe.system(),
        one_step_off.system(),
        april.system(),
        fastest_k.system(),
    ]
