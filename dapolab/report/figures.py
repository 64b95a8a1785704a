"""The plots of a comparison: stacked bars, dots with intervals, small bars of wave counts.

Every function takes numbers and returns a matplotlib figure; what it means is said by the caller.
One row a policy throughout, in the caller's order, so that the eye keeps its place.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dapolab.report.formats import estimate, number
from dapolab.report.style import (
    CARD,
    INK,
    LINE,
    MARKERS,
    MUTED,
    drawing,
    ink_on,
    label,
    label_policies,
    new_figure,
    policy_colours,
)
from dapolab.stats import Estimate

ROW_IN = 0.4
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
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.4g}"))


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
