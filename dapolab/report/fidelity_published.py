"""The fidelity report's part on published results: a table a publication, and what misses mean."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dapolab.report import formats
from dapolab.report.document import Block, Table
from dapolab.report.fidelity_figures import published_figure

# A range that spans more than this factor determines little.
_WIDE = 1.3
_WAIT = ": wait"
_DRAWN = ("RollPacker Fig. 11", "verl fully async")
_SECOND = "verl fully async, fixed part fitted"
_PLOTTED = (
    "RollPacker's average of a step is what its artifact's script plots: of the longest short and "
    "the longest long round of ten iterations, which is no mean. Compared by means, as this page "
    "first did, 12 of the 21 rows lay in their ranges, most of them wide; the definition is the "
    "publication's, so it stays."
)


def published_sentence(rows: pd.DataFrame) -> str:
    """Return how many of the published figures are met, and how closely, in one sentence."""
    verdicts = [_verdict(row) for _, row in rows.iterrows() if row["counted"]]
    narrow, wide = verdicts.count("in range"), verdicts.count("in a wide range")
    return (
        f"Of {len(verdicts)} published figures of other systems {narrow} lie in a range that their "
        f"published inputs determine to within a factor of {_WIDE:g}, {wide} in a wider one, which "
        f"says little, and {len(verdicts) - narrow - wide} outside; these stand below with what "
        "may explain them."
    )


def published_blocks(tables: Mapping[str, pd.DataFrame]) -> tuple[Block, ...]:
    """Return the blocks of the section, empty without the table ``published``."""
    if "published" not in tables:
        return ()
    rows = tables["published"]
    blocks: list[Block] = [
        "Free parameters (a scalar on the decode law of a model, or sigma and scale for "
        "fastest-k) were fitted to baseline rows alone and committed before the others were "
        "computed. What a publication and its scripts leave open, mostly lengths, spans a grid; a "
        "range says how far its inputs determine the row, and a row inside a wide one (more than "
        f"a factor of {_WIDE:g}) is no hit. Explanations were written afterwards. A gain is "
        "compared as a speed. A row of verl's asynchronous trainer is given the update time "
        "published for it; what is predicted is the trainer's wait, and with it the step, which is "
        "counted."
    ]
    for system, own in rows.groupby("system", sort=False):
        if system == _DRAWN[0]:
            blocks.append(_PLOTTED)
        if system in _DRAWN:
            blocks.append(published_figure(_without_waits(rows), str(system)))
        if system == _SECOND:
            blocks.append(_second_reading(tables))
        blocks.append(_table(str(system), own))
    outside = rows[rows["why"] != ""]
    if len(outside):
        why = [
            {
                "system": system,
                "rows outside": "; ".join(part["setting"]),
                "what may explain it": reason,
            }
            for (system, reason), part in outside.groupby(["system", "why"], sort=False)
        ]
        blocks.append(Table(pd.DataFrame(why), "The rows outside their range, explained."))
    if "not_computed" in tables:
        blocks.append(Table(tables["not_computed"], "Rows that are not computed."))
    return tuple(blocks)


def _second_reading(tables: Mapping[str, pd.DataFrame]) -> str:
    said = (
        "A second reading, made after the rows above had been compared and not counted: the fixed "
        "part of an iteration is fitted in place of the scalar, to 4.2 to 8.6 ms where the data "
        "sheet has 1.7. Few GPUs then come near, so the law's shape is most of what they missed "
        "by, and 64:64 is too fast by about the 21 s and more that every row of verl's waits, "
        "trainer-bound or not. The truth lies between the two."
    )
    if "calibrated" not in tables:
        return said
    calibrated = tables["calibrated"]
    fixed_s = calibrated.loc[calibrated["parameter"] == "a_s", "value"].to_numpy(float)[0]
    return (
        f"{said} The law of the Qwen3-8B log above, two H20 a replica, has a fixed part of "
        f"{1e3 * fixed_s:.1f} ms."
    )


def _without_waits(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the figure: a wait may be 0, which no ratio shows."""
    return rows[~rows["setting"].str.endswith(_WAIT)]


def _table(system: str, rows: pd.DataFrame) -> Table:
    frame = pd.DataFrame(
        {
            "setting": rows["setting"],
            "published": [
                _valued(v, u) for v, u in zip(rows["published"], rows["unit"], strict=True)
            ],
            "predicted range": [
                _range(row["low"], row["high"], row["unit"]) for _, row in rows.iterrows()
            ],
            "verdict": [
                _of_wait(row) if row["setting"].endswith(_WAIT) else _verdict(row)
                for _, row in rows.iterrows()
            ],
            "over published": [_ratios(row) for _, row in rows.iterrows()],
        }
    )
    if not frame["over published"].any():
        frame = frame.drop(columns="over published")
    return Table(frame, f"{system}. Source: {rows['source'].iloc[0]}.")


def _valued(value: float, unit: str) -> str:
    return f"{value:+.0%}" if unit == "share" else f"{formats.number(value)} {unit}"


def _range(low: float | None, high: float | None, unit: str) -> str:
    if low is None or high is None or pd.isna(low):
        return "not computed"
    if unit == "share":
        return f"{low:+.0%} … {high:+.0%}".replace("-", "−")
    if high - low < 1e-3 * high:
        return f"{low:.0f}"
    return f"{low:.0f} … {high:.0f}"


def _verdict(row: Any) -> str:
    if row["baseline"]:
        return "fitted"
    if row["inside"] is None or pd.isna(row["inside"]):
        return ""
    if not row["inside"]:
        return f"outside by {abs(row['miss_share']):.0%}"
    base = 1.0 if row["unit"] == "share" else 0.0
    wide = base + row["high"] > _WIDE * (base + row["low"])
    return "in a wide range" if wide else "in range"


def _of_wait(row: Any) -> str:
    """Return how far a wait is off in seconds: a share of it says little where it may be 0."""
    if row["inside"]:
        return "inside"
    below = row["low"] - row["published"]
    return f"outside by {below if below > 0 else row['published'] - row['high']:.0f} s"


def _ratios(row: Any) -> str:
    """Return the range over the published figure, the way a comparison of ratios reads."""
    if (
        row["unit"] == "share"
        or row["setting"].endswith(_WAIT)
        or row["low"] is None
        or pd.isna(row["low"])
    ):
        return ""
    low, high = row["low"] / row["published"], row["high"] / row["published"]
    return f"{low:.2f} … {high:.2f}"
