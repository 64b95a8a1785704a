"""Dots with intervals, one row a policy in the caller's order, one panel a quantity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dapolab.report.formats import estimate, tick
from dapolab.report.style import (
    CARD,
    INK,
    MARKERS,
    MUTED,
    ROW_IN,
    drawing,
    label_policies,
    new_figure,
    policy_colours,
)
from dapolab.stats import Estimate

_TALL = 12
"""Rows beyond which the scale stands at the top as well."""


@dataclass(frozen=True)
class Dots:
    """One series of a dot plot: its name, an estimate a policy, filled marks or hollow ones."""

    label: str
    estimates: Mapping[str, Estimate]
    filled: bool = True


@dataclass(frozen=True)
class Panel:
    """One axes of a dot plot.

    Attributes
    ----------
    title : heading, may be empty.
    series : drawn within a row one below the other.
    reference : the value of "no difference", None where there is none.
    values : whether the first series is also written out at the right.
    """

    title: str
    series: Sequence[Dots]
    reference: float | None = None
    values: bool = False


def dot_panels(
    policies: Sequence[str],
    panels: Sequence[Panel],
    *,
    ringed: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
    x_label: str = "",
) -> Figure:
    """Return dots with intervals, one row a policy and one panel side by side for each quantity.

    Parameters
    ----------
    ringed : policies to ring, for instance the set of the best.
    notes : policy -> what to write where it has no value.
    """
    palette = policy_colours(policies)
    with_legend = any(len(panel.series) > 1 for panel in panels)
    with drawing():
        figure = new_figure(
            height_in=0.75 + ROW_IN * len(policies) + (0.26 if with_legend else 0.0)
        )
        rows = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(rows, panels, strict=True):
            _dot_panel(axes, policies, panel, palette=palette, ringed=ringed, notes=notes or {})
            if len(policies) > _TALL:
                axes.tick_params(axis="x", labeltop=True)
        label_policies(rows[0], policies)
        figure.supxlabel(x_label, color=MUTED, fontsize=9.5)
        if with_legend:
            _series_legend(figure, panels[0].series)
    return figure


def _dot_panel(
    axes: Axes,
    policies: Sequence[str],
    panel: Panel,
    *,
    palette: Mapping[str, str],
    ringed: Sequence[str],
    notes: Mapping[str, str],
) -> None:
    if panel.reference is not None:
        axes.axvline(panel.reference, color=MUTED, linewidth=1.1, zorder=1)
    drawn: list[float] = [] if panel.reference is None else [panel.reference]
    offsets = np.linspace(-0.16, 0.16, len(panel.series)) if len(panel.series) > 1 else [0.0]
    for row, name in enumerate(policies):
        marker = MARKERS[row % len(MARKERS)]
        for dots, offset in zip(panel.series, offsets, strict=True):
            found = dots.estimates.get(name)
            if found is None:
                continue
            y, colour = row + float(offset), palette[name]
            if found.low is not None and found.high is not None:
                axes.plot([found.low, found.high], [y, y], color=colour, linewidth=2.2, zorder=2)
                drawn += [found.low, found.high]
            drawn.append(found.mean)
            face = colour if dots.filled else CARD
            axes.plot([found.mean], [y], marker, color=colour, mfc=face, ms=6.5, mew=1.6, zorder=3)
            if name in ringed:
                axes.plot([found.mean], [y], "o", color=INK, mfc="none", ms=13, mew=1.1, zorder=4)
    _ratio_axis(axes, drawn, reference=panel.reference)
    if panel.values:
        _values_beside(axes, policies, panel.series[0].estimates)
    for row, name in enumerate(policies):
        if name in notes and not any(name in dots.estimates for dots in panel.series):
            axes.text(
                0.02,
                row,
                notes[name],
                transform=axes.get_yaxis_transform(),
                va="center",
                color=MUTED,
                fontsize=8.5,
            )
    axes.set_title(panel.title)


def _values_beside(axes: Axes, policies: Sequence[str], estimates: Mapping[str, Estimate]) -> None:
    for row, name in enumerate(policies):
        if name in estimates:
            axes.annotate(
                estimate(estimates[name]),
                (1.0, row),
                xycoords=axes.get_yaxis_transform(),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                color=INK,
                fontsize=8.5,
            )


def _ratio_axis(axes: Axes, drawn: Sequence[float], *, reference: float | None) -> None:
    """Scale the axis: ratios that span more than a factor of three on a log scale."""
    low, high = min(drawn, default=0.0), max(drawn, default=1.0)
    if reference == 1.0 and low > 0 and high / low > 3:
        axes.set_xscale("log")
        ticks = [
            t
            for t in (0.05, 0.1, 0.2, 0.33, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)
            if low / 1.3 <= t <= high * 1.3
        ]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(low / 1.15, high * 1.15)
    else:
        pad = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        axes.set_xlim(low - pad, high + pad)
        axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(x)))


def _series_legend(figure: Figure, series: Sequence[Dots]) -> None:
    handles = [
        Line2D(
            [],
            [],
            marker="o",
            linestyle="-",
            linewidth=2.2,
            color=MUTED,
            label=dots.label,
            mfc=MUTED if dots.filled else CARD,
            mew=1.6,
            ms=6.5,
        )
        for dots in series
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
