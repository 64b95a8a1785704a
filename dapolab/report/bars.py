"""Stacked bars of parts, and small bars of wave counts, one row a policy in the caller's order."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from dapolab.report.formats import number, tick
from dapolab.report.style import (
    CARD,
    INK,
    LINE,
    ROW_IN,
    drawing,
    ink_on,
    label,
    label_policies,
    new_figure,
    policy_colours,
)

LEGEND_COLUMNS = 6
HATCHES = {"tail": "////", "aborted": "////"}
"""Marks that repeat in black and white what their colour says: time or tokens for nothing."""


def stacked_bars(
    values: Mapping[str, Mapping[str, float]],
    *,
    colours: Mapping[str, str],
    labels: Mapping[str, str],
    x_label: str,
    totals: Mapping[str, str],
) -> Figure:
    """Return one horizontal bar a policy, made of its parts.

    Parameters
    ----------
    values : policy -> part -> value; parts missing or 0 everywhere are left out.
    colours, labels : part -> colour, and its name in the legend, in the order of the stack.
    totals : policy -> text at the end of its bar.
    """
    policies = list(values)
    parts = [part for part in colours if any(values[name].get(part, 0) > 0 for name in policies)]
    longest = max(sum(values[name].get(part, 0) for part in parts) for name in policies)
    n_legend_rows = math.ceil(len(parts) / LEGEND_COLUMNS)
    with drawing():
        figure = new_figure(height_in=0.62 + ROW_IN * len(policies) + 0.22 * n_legend_rows)
        axes = figure.subplots()
        for row, name in enumerate(policies):
            left = 0.0
            for part in parts:
                width = values[name].get(part, 0.0)
                if width <= 0:
                    continue
                _segment(axes, row, left, width, part=part, colour=colours[part])
                if width > 0.075 * longest:
                    _inside(axes, row, left + width / 2, number(width), colours[part])
                left += width
            axes.annotate(
                totals[name],
                (left, row),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                color=INK,
                fontsize=9,
            )
        label_policies(axes, policies)
        axes.set_xlim(0, longest * 1.16)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(x)))
        axes.set_xlabel(x_label)
        _legend(figure, parts, colours=colours, labels=labels)
    return figure


def _segment(axes: Axes, row: int, left: float, width: float, *, part: str, colour: str) -> None:
    axes.barh(
        row,
        width,
        left=left,
        height=0.62,
        color=colour,
        edgecolor=CARD,
        linewidth=0.8,
        hatch=HATCHES.get(part),
    )


def _inside(axes: Axes, row: int, x: float, text: str, colour: str) -> None:
    ground = {"facecolor": colour, "edgecolor": "none", "pad": 1.2}
    axes.text(
        x, row, text, ha="center", va="center", color=ink_on(colour), fontsize=8.5, bbox=ground
    )


def _legend(
    figure: Figure, parts: Sequence[str], *, colours: Mapping[str, str], labels: Mapping[str, str]
) -> None:
    handles = [
        Patch(facecolor=colours[part], edgecolor=CARD, hatch=HATCHES.get(part), label=labels[part])
        for part in parts
    ]
    # matplotlib fills columns first; the eye reads rows first
    n_columns = min(LEGEND_COLUMNS, len(parts))
    by_rows = [handle for first in range(n_columns) for handle in handles[first::n_columns]]
    figure.legend(handles=by_rows, loc="outside upper left", ncols=n_columns)


def wave_bars(
    distribution: Mapping[str, tuple[Sequence[int], Sequence[float]]], *, policies: Sequence[str]
) -> Figure:
    """Return the share of steps by their number of waves, one row of bars a policy.

    Parameters
    ----------
    distribution : policy -> (numbers of waves, share of steps with each).
    policies : all policies of the comparison, for their colours.
    """
    palette = policy_colours(policies)
    most = max(max(waves) for waves, _ in distribution.values())
    n_rows = len(distribution)
    with drawing():
        figure = new_figure(height_in=0.55 + 0.78 * n_rows)
        rows = figure.subplots(n_rows, 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, (waves, shares)) in zip(rows, distribution.items(), strict=True):
            axes.bar(waves, shares, width=0.72, color=palette[name])
            for wave, share in zip(waves, shares, strict=True):
                if len(waves) > 16 and share < 0.05:
                    continue  # the labels would cover each other
                text = f"{share:.0%}" if share >= 0.005 else "<1%"
                axes.annotate(
                    text,
                    (wave, share),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    color=INK,
                    fontsize=8.5,
                )
            mean = sum(w * s for w, s in zip(waves, shares, strict=True))
            axes.set_title(f"{label(name)} · mean {number(mean, decimals=2)}")
            axes.set_ylim(0, 1.25 * max(shares))
            axes.set_yticks([])
            axes.grid(visible=False)
            axes.axhline(0, color=LINE, linewidth=1)
        # a step is one bar: with few waves the bars would be walls
        rows[-1].set_xlim(0.4, max(most, 4) + 0.6)
        rows[-1].set_xticks(range(1, max(most, 4) + 1, max(1, math.ceil(most / 16))))
        rows[-1].set_xlabel("waves in a step")
    return figure
