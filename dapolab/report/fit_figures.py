"""The plots of a fit: cumulative curves, and a histogram with the model's dots."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dapolab.report.style import CARD, MODEL, MUTED, OBSERVED, drawing, new_figure

Floats = npt.NDArray[np.float64]


def curves(
    x: Floats,
    lines: Mapping[str, tuple[Floats, str, str]],
    *,
    x_label: str,
    y_label: str,
    x_log: bool = False,
) -> Figure:
    """Return lines over one axis.

    Parameters
    ----------
    lines : label -> (y values, colour, line style).
    """
    with drawing():
        figure = new_figure(height_in=3.3)
        axes = figure.subplots()
        for label, (y, colour, style) in lines.items():
            axes.plot(x, y, style, color=colour, linewidth=2, label=label)
        if x_log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(visible=True, axis="both")
        axes.tick_params(axis="y", labelcolor=MUTED)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        figure.legend(loc="outside upper left", ncols=len(lines))
    return figure


def histogram(
    values: Sequence[int],
    *,
    observed: Floats,
    model: Floats,
    low: Floats | None,
    high: Floats | None,
    x_label: str,
    y_label: str,
) -> Figure:
    """Return observed shares as bars with intervals, the model's as dots."""
    with drawing():
        figure = new_figure(height_in=3.2)
        axes = figure.subplots()
        axes.bar(values, observed, width=0.72, color=OBSERVED, alpha=0.45, label="observed")
        if low is not None and high is not None:
            axes.vlines(values, low, high, color=OBSERVED, linewidth=2)
        axes.plot(values, model, "D", color=MODEL, mfc=CARD, mew=1.6, ms=5.5, label="model")
        axes.grid(visible=True, axis="y")
        axes.grid(visible=False, axis="x")
        axes.set_xticks(list(values)[:: max(1, math.ceil(len(values) / 17))])
        axes.tick_params(axis="y", labelcolor=MUTED)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside upper left", ncols=2)
    return figure
