"""The closed forms beside the simulator, wherever a scenario meets their assumptions.

The simulator's numbers come from a run of the same scenario. They agree where the theory lies
within 4.5 standard errors.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dapolab.compare.comparison import Comparison
from dapolab.compare.estimates import possible
from dapolab.compare.quantities import quantities_of
from dapolab.compare.quantity import Quantity
from dapolab.stats import LEVEL, Estimate
from dapolab.stats.estimate import t_factor

STANDARD_ERRORS = 4.5
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Checked:
    """A closed form beside the simulator."""

    name: str
    unit: str
    theory: float
    simulator: Estimate
    agrees: bool
    source: str


@dataclass(frozen=True)
class AgainstTheory:
    """All quantities of one scenario, and what was left out with the reason."""

    rows: tuple[Checked, ...]
    left_out: tuple[str, ...]


def check_against_theory(comparison: Comparison) -> AgainstTheory:
    """Return the closed forms of the comparison's first policy beside its simulated rows."""
    policy = comparison.policies[0]
    endings = comparison.endings[comparison.endings["policy"] == policy]
    early = endings[endings["ended"] != "completed"]
    if len(early):
        reason = (
            f"{len(early)} of {len(endings)} replications ended early ({early['ended'].iloc[0]})"
        )
        return AgainstTheory((), (f"everything: {reason}: what they left is selected",))
    scenario = comparison.scenario.model_copy(update={"collector": comparison.collectors[policy]})
    quantities, left_out = quantities_of(scenario)
    steps = comparison.steps[comparison.steps["policy"] == policy]
    replications = [rows for _, rows in steps.groupby("replication")]
    rows = []
    for quantity in quantities:
        checked = _checked(quantity, replications)
        if checked is None:
            left_out.append(f"{quantity.name}: the simulated run has no value for it")
        else:
            rows.append(checked)
    return AgainstTheory(tuple(rows), tuple(left_out))


def _checked(quantity: Quantity, replications: list[pd.DataFrame]) -> Checked | None:
    """Compare with the ratio of totals over replications, its error by linearisation."""
    over, under = np.array([quantity.measure(rows) for rows in replications]).T
    n, total = len(over), float(under.sum())
    if n < 2 or total <= 0 or not math.isfinite(quantity.value):
        return None
    mean = float(over.sum()) / total
    residual = over - mean * under
    se = math.sqrt(n / (n - 1) * float(residual @ residual)) / total
    half = t_factor(n, level=LEVEL) * se
    # what the run was too short to see has no spread in it
    allowed = STANDARD_ERRORS * max(se, quantity.sd / math.sqrt(total))
    allowed += _ROUNDING * max(abs(quantity.value), 1.0)
    return Checked(
        name=quantity.name,
        unit=quantity.unit,
        theory=quantity.value,
        simulator=possible(Estimate(mean, mean - half, mean + half, n, quantity.unit)),
        agrees=abs(mean - quantity.value) <= allowed,
        source=quantity.source,
    )


def document(checked: AgainstTheory) -> dict[str, object]:
    """Return DESIGN.md §8's JSON body of ``theory``."""
    return {
        "quantities": {
            row.name: {
                "theory": row.theory if math.isfinite(row.theory) else None,
                "simulator": row.simulator.to_json(),
                "agrees": row.agrees,
            }
            for row in checked.rows
        },
        "left_out": list(checked.left_out),
    }
