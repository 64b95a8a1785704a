"""The plots of a fit: cumulative curves, and a histogram with the model's dots."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dapolab.report.style import (
    CARD,
    INK,
    MODEL,
    MUTED,
    OBSERVED,
    drawing,
    label_policies,
    new_figure,
)

Floats = npt.NDArray[np.float64]


def curves(
    x: Floats,
    lines: Mapping[str, tuple[Floats, str, str]],
    *,
    x_label: str,
    y_label: str,
    x_log: bool = False,
    x_decimals: int = 0,
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
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.{x_decimals}f}"))
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


VERDICT_COLOURS = {"holds": "#009e73", "fails": "#d55e00"}
"""Other verdicts (undecided) are grey."""


def differences(checks: pd.DataFrame, *, verdicts: Sequence[str]) -> Figure:
    """Return observed - predicted in units of the tolerance, with intervals and the band ±1.

    Parameters
    ----------
    checks : quantity, observed, predicted, low, high, tolerance (positive).
    verdicts : one a row, written at its right.
    """
    names = [str(name) for name in checks["quantity"]]
    tolerance = checks["tolerance"].to_numpy(float)
    low, high = (checks[end].to_numpy(float) / tolerance for end in ("low", "high"))
    middle = (checks["observed"] - checks["predicted"]).to_numpy(float) / tolerance
    reach = 1.12 * max(1.5, float(np.abs([low, high, middle]).max()))
    with drawing():
        figure = new_figure(height_in=0.6 + 0.36 * len(names))
        axes = figure.subplots()
        axes.axvspan(-1, 1, color=OBSERVED, alpha=0.12, linewidth=0)
        axes.axvline(0, color=MUTED, linewidth=1.1)
        for row, verdict in enumerate(verdicts):
            colour = VERDICT_COLOURS.get(verdict, "#8a94a0")
            axes.plot([low[row], high[row]], [row, row], color=colour, linewidth=2.4)
            axes.plot([middle[row]], [row], "o", color=colour, ms=6)
            axes.annotate(
                verdict,
                (1.0, row),
                xycoords=axes.get_yaxis_transform(),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                color=INK,
                fontsize=9,
            )
        label_policies(axes, names)
        axes.set_xlim(-reach, reach)
        axes.set_xlabel("observed minus predicted, tolerance = 1")
    return figure
