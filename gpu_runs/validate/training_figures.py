"""Figures of studies that train: curves with bands over seeds, and differences between arms."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from dapolab.report import FigureSpec
from dapolab.report.dots import Dots, Panel, dot_panels
from dapolab.report.style import drawing, legend_columns, new_figure, plain
from dapolab.stats import Estimate

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1")
STYLES = ("-", "--", "-.", ":")
PANELS_A_ROW = 2


def curve_figure(
    table: pd.DataFrame, *, name: str, title: str, how_to_read: str, x_label: str = "step"
) -> FigureSpec:
    """Return one panel a quantity, one line an arm, bands of 99 % over seeds."""
    quantities = list(dict.fromkeys(table["quantity"]))
    arms = list(dict.fromkeys(table["arm"]))
    n_rows = -(-len(quantities) // PANELS_A_ROW)
    with drawing():
        figure = new_figure(height_in=0.5 + 2.0 * n_rows)
        grid = figure.subplots(n_rows, PANELS_A_ROW, squeeze=False).flatten()
        for axes, quantity in zip(grid, quantities, strict=False):
            _curves(axes, table[table["quantity"] == quantity], arms)
            axes.set_title(plain(quantity))
            axes.set_xlabel(x_label)
        for axes in grid[len(quantities) :]:
            axes.set_visible(False)
        handles, labels = grid[0].get_legend_handles_labels()
        columns = legend_columns(labels)
        figure.legend(handles, labels, loc="outside upper left", ncols=columns)
    last = table[table["step"] == table["step"].max()]
    said = "; ".join(
        f"{row['quantity']}, {row['arm']}: {row['mean']:.3g}" for row in last.to_dict("records")
    )
    return FigureSpec(
        name, figure, title, f"Curves over training steps. At the end: {said}.", how_to_read
    )


def _curves(axes: Axes, table: pd.DataFrame, arms: Sequence[str]) -> None:
    for number, arm in enumerate(arms):
        part = table[table["arm"] == arm].sort_values("step")
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
        x = part["step"].to_numpy(float)
        axes.plot(x, part["mean"].to_numpy(float), style, color=colour, label=plain(arm))
        low, high = part["low"].to_numpy(float), part["high"].to_numpy(float)
        axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
    axes.grid(visible=True, axis="both")
    axes.locator_params(axis="x", integer=True, nbins=6)


def difference_figure(
    measured: pd.DataFrame,
    *,
    name: str,
    title: str,
    quantity: str,
    how_to_read: str,
    x_label: str,
) -> FigureSpec:
    """Return dots with intervals of a quantity's differences around 0, one row an arm.

    The title says less what; an arm with several bases shows the last.
    """
    chosen = measured[
        (measured["quantity"] == quantity) & measured["setting"].str.contains(" less ")
    ]
    found = {
        str(row["setting"]).partition(" less ")[0]: _estimate(row)
        for row in chosen.to_dict("records")
    }
    panel = Panel("", [Dots(quantity, found)], reference=0.0, values=True)
    figure = dot_panels(list(found), [panel], x_label=plain(x_label))
    said = "; ".join(f"{setting}: {value.mean:+.3g}" for setting, value in found.items())
    return FigureSpec(name, figure, title, f"Differences around 0. {said}.", how_to_read)


def _estimate(row: Mapping[Hashable, Any]) -> Estimate:
    ends = [None if pd.isna(row[end]) else float(row[end]) for end in ("low", "high")]
    return Estimate(float(row["value"]), ends[0], ends[1], int(row["n"]), "")
