"""All claims on one scale: 0 is what the sentence says, 1 what it denies."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from dapolab.claims.claim import Row
from dapolab.claims.verdict import Outcome, RowOutcome
from dapolab.report import FigureSpec
from dapolab.report.style import INK, LINE, MUTED, POLICY_COLOURS, drawing, new_figure

_LEFT, _RIGHT = -1.0, 2.0
"""Ends of the scale; what lies beyond is drawn at the edge as an arrow."""
_LOOKS = {
    "holds": (POLICY_COLOURS["exact_refill"], "o"),
    "fails": (POLICY_COLOURS["over_provision"], "D"),
    "undecided": (MUTED, "s"),
}
_HEIGHT_IN = 0.21


def place(row: Row, value: float, *, says: float) -> float:
    """Return where a number stands between what the sentence says (0) and what it denies (1).

    Of an order that denies the very number it starts from, 0 is the least that would do.
    """
    zero = row.limit(says) if row.kind == "order" and row.rival == says else says
    return (value - zero) / (row.rival - zero)


def verdict_figure(outcomes: Sequence[Outcome]) -> FigureSpec:
    """Return the figure of all measured claims, each by the row that decides it."""
    shown = [outcome for outcome in outcomes if outcome.deciding.measured is not None]
    with drawing():
        figure = new_figure(height_in=1.1 + _HEIGHT_IN * len(shown))
        axes = figure.subplots()
        for x, words in ((0.0, "what the sentence says"), (1.0, "what it denies")):
            axes.axvline(x, color=MUTED, linewidth=1.1)
            axes.text(x, -1.1, words, ha="center", va="bottom", color=INK, fontsize=9)
        for y, outcome in enumerate(shown):
            _mark(axes, y, outcome.deciding)
        axes.set_yticks(range(len(shown)), labels=[outcome.claim.id for outcome in shown])
        axes.tick_params(axis="y", labelsize=8)
        axes.set_ylim(len(shown) - 0.4, -1.0)
        axes.set_xlim(_LEFT - 0.12, _RIGHT + 0.12)
        for verdict, (colour, marker) in _LOOKS.items():
            if any(outcome.verdict == verdict for outcome in shown):
                axes.plot([], [], marker, color=colour, label=verdict, ms=5)
        figure.legend(loc="outside lower left", ncols=3)
    said = "; ".join(f"{outcome.claim.id} {outcome.verdict}" for outcome in shown)
    return FigureSpec(
        name="verdicts",
        figure=figure,
        title="Every measured claim between what it says and what it denies",
        alt=f"One mark a claim: {said}.",
        how_to_read=(
            "The row that decides each claim, on its own scale. The grey band is the tolerance, "
            "the line the 99 % interval; without one the number is exact or the interval is "
            "smaller than the mark. Inside the band the claim holds. An order holds anywhere left "
            "of 0, where the least difference worth acting on is reached. Arrows point beyond the "
            "scale."
        ),
    )


def _mark(axes: Axes, y: int, found: RowOutcome) -> None:
    row, says, measured = found.row, found.says, found.measured
    if measured is None:
        return
    colour, marker = _LOOKS[found.verdict]
    low, high = (measured.mean if end is None else end for end in (measured.low, measured.high))
    ends = sorted(place(row, x, says=says) for x in (low, high))
    x = place(row, measured.mean, says=says)
    if row.kind not in ("order", "identity"):
        width = abs(row.tolerance / (row.rival - says))
        left = _LEFT if row.kind == "bound" else -width
        axes.plot([left, width], [y, y], color=LINE, linewidth=7, solid_capstyle="butt", zorder=1)
    inside = np.clip([*ends, x], _LEFT, _RIGHT)
    axes.plot(inside[:2], [y, y], color=colour, linewidth=1.6, zorder=2)
    beyond = "<" if x < _LEFT else ">" if x > _RIGHT else None
    axes.plot([inside[2]], [y], beyond or marker, color=colour, ms=5, zorder=3)
