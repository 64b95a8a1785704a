"""Predictions and measurements of a few quantities, one panel each, settings as rows."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dapolab.report import FigureSpec
from dapolab.report.style import MARKERS, MODEL, MUTED, OBSERVED, SPARE_COLOURS, drawing, new_figure
from gpu_runs.validate.study import Tables


def beside(
    tables: Tables, quantities: Mapping[str, str], *, name: str, title: str, read: str
) -> FigureSpec:
    """Return the figure of ``quantities`` (name -> axis label) from predictions and measured."""
    predicted, measured = tables["predictions"], tables["measured"]
    found = [q for q in quantities if (measured["quantity"] == q).any()]
    instruments = [
        str(name)
        for name, part in predicted.groupby("instrument", sort=False)
        if part["quantity"].isin(found).any()
    ]
    settings = max(measured.loc[measured["quantity"] == q, "setting"].nunique() for q in found)
    n_columns = len(found) if len(found) < 4 else 2
    n_rows = -(-len(found) // n_columns)
    with drawing():
        figure = new_figure(height_in=0.5 + n_rows * (0.8 + 0.42 * settings))
        panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
        for i, (axes, quantity) in enumerate(zip(panels, found, strict=False)):
            _panel(axes, quantity, quantities[quantity], predicted, measured, instruments)
            if i % n_columns and _settings(measured, quantity) == _settings(measured, found[i - 1]):
                axes.tick_params(axis="y", labelleft=False)
        for axes in panels[len(found) :]:
            axes.set_axis_off()
        drawn = [axes.get_legend_handles_labels() for axes in panels]
        unique = {
            label: handle
            for handles, labels in drawn
            for handle, label in zip(handles, labels, strict=True)
        }
        figure.legend(unique.values(), unique.keys(), loc="outside lower left", ncols=3)
    return FigureSpec(
        name=name, figure=figure, title=title, alt=_alt(measured, found), how_to_read=read
    )


def _panel(
    axes: Axes,
    quantity: str,
    label: str,
    predicted: pd.DataFrame,
    measured: pd.DataFrame,
    instruments: Sequence[str],
) -> None:
    own = measured[measured["quantity"] == quantity]
    settings = _settings(measured, quantity)
    colours = (MODEL, *SPARE_COLOURS)
    for y, setting in enumerate(settings):
        row = own[own["setting"].astype(str) == setting].iloc[0]
        if pd.notna(row["low"]):
            axes.plot([row["low"], row["high"]], [y, y], color=OBSERVED, linewidth=4, alpha=0.35)
        axes.plot(row["value"], y, "o", color=OBSERVED, label="real training", ms=6)
        said = predicted[
            (predicted["quantity"] == quantity) & (predicted["setting"].astype(str) == setting)
        ]
        for cell in said.to_dict("records"):
            place = instruments.index(str(cell["instrument"]))
            lower = y + 0.16 * (1 + place % 3)
            colour, marker = colours[place % len(colours)], MARKERS[1 + place % 9]
            if pd.notna(cell["low"]):
                ends = [cell["low"], cell["high"]]
                axes.plot(ends, [lower, lower], color=colour, linewidth=1)
            axes.plot(
                cell["value"], lower, marker, color=colour, label=str(cell["instrument"]), ms=4
            )
    axes.set_yticks(range(len(settings)), labels=settings)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(len(settings) - 0.2, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel(label, color=MUTED)


def _settings(measured: pd.DataFrame, quantity: str) -> list[str]:
    own = measured[measured["quantity"] == quantity]
    return list(dict.fromkeys(own["setting"].astype(str)))


def _alt(measured: pd.DataFrame, quantities: Sequence[str]) -> str:
    own = measured[measured["quantity"].isin(quantities)]
    return "Measured: " + "; ".join(
        f"{row['quantity']}, {row['setting']}: {float(row['value']):.3g}"
        for row in own.to_dict("records")
    )
