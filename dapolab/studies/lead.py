"""The first sentences of a page: words written by hand, numbers taken from its tables."""

import re
from typing import Any

import pandas as pd

from dapolab.report import formats
from dapolab.stats import Estimate
from dapolab.studies.study import Tables

_FIELD = re.compile(r"\{([^{}]+)\}")


def filled(text: str, tables: Tables) -> str:
    """Return ``text`` with each ``{part|row|metric}`` as the estimate at the end of training.

    A narrow interval is left out: the tables below have it.

    ``{part|row|metric|step}`` is that of a curve at a step. The tables are ``part.effects`` or
    ``part.estimates``, and ``part.curves``.

    Raises
    ------
    KeyError
        The tables have no such number.
    """
    return _FIELD.sub(lambda match: formats.brief(found(match[1], tables)), text)


def found(field: str, tables: Tables) -> Estimate:
    """Return the estimate that a field of a lead names."""
    part, row, metric, *step = field.split("|")
    if step:
        curves = tables[f"{part}.curves"].rename(columns={"mode": "row"})
        table = curves[curves["step"] == int(step[0])]
    else:
        name = f"{part}.effects"
        table = tables[name if name in tables else f"{part}.estimates"]
    cells = table[(table["row"] == row) & (table["metric"] == metric)].to_dict("records")
    if len(cells) != 1:
        raise KeyError(f"{field}: {len(cells)} such numbers")
    return estimate_of(cells[0])


def estimate_of(cell: dict[Any, Any]) -> Estimate:
    """Return the estimate of a stored row: mean, low, high, n, unit."""
    low, high = (None if pd.isna(cell[end]) else float(cell[end]) for end in ("low", "high"))
    unit = "" if pd.isna(cell["unit"]) else str(cell["unit"])
    return Estimate(float(cell["mean"]), low, high, int(cell["n"]), unit)
