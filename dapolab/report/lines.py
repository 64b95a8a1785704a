"""Lines with bands, one panel a quantity: how it moves with a setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dapolab.report import formats
from dapolab.report.document import FigureSpec
from dapolab.report.style import (
    MARKERS,
    POLICY_COLOURS,
    SERIES_COLOURS,
    WIDTH_IN,
    drawing,
    label,
    new_figure,
)


@dataclass(frozen=True)
class Line:
    """One line: places, values and the ends of their intervals, all of one length."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def line_panels(
    *,
    name: str,
    title: str,
    x_label: str,
    panels: Mapping[str, Sequence[Line]],
    how_to_read: str,
    log_x: bool = False,
) -> FigureSpec:
    """Return panels side by side, heading -> lines; equal labels have equal colours.

    Raises
    ------
    ValueError : no panel has a point.
    """
    shown = {head: [line for line in lines if line.x] for head, lines in panels.items()}
    names = list(dict.fromkeys(line.label for lines in shown.values() for line in lines))
    if not names:
        raise ValueError(f"figure {name} has no point")
    with drawing():
        n_legend = min(3, len(names))
        legend_in = 0.22 * -(-len(names) // n_legend) if names != [""] else 0.0
        figure = new_figure(height_in=2.9 + legend_in)
        row = figure.subplots(1, len(shown), squeeze=False)[0]
        # a bold letter of 9.5 points is about 0.7 em wide; an axis takes 40 points
        letters = int((72 * WIDTH_IN / len(shown) - 40) / (0.7 * 9.5))
        for axes, (head, lines) in zip(row, shown.items(), strict=True):
            axes.set_title(fill(head, letters))
            for line in lines:
                _draw(axes, line, names.index(line.label))
            _ticks(axes, sorted({x for line in lines for x in line.x}), log=log_x)
            axes.set_ylim(bottom=0 if all(min(line.y) >= 0 for line in lines) else None)
        figure.supxlabel(x_label, fontsize=9.5)
        if names != [""]:
            handles, labels = max(
                (axes.get_legend_handles_labels() for axes in row), key=lambda pair: len(pair[1])
            )
            figure.legend(handles, labels, loc="outside upper left", ncols=n_legend)
    return FigureSpec(
        name=name, figure=figure, title=title, alt=_alt(x_label, shown), how_to_read=how_to_read
    )


def _draw(axes: Axes, line: Line, number: int) -> None:
    colour = POLICY_COLOURS.get(line.label, SERIES_COLOURS[number % len(SERIES_COLOURS)])
    marker = MARKERS[number % len(MARKERS)]
    axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(line.x, line.y, color=colour, marker=marker, ms=4, label=label(line.label))


def _ticks(axes: Axes, places: Sequence[float], *, log: bool) -> None:
    if log:
        axes.set_xscale("log")
    if log or len(places) <= 5:
        axes.xaxis.set_major_locator(FixedLocator(list(places)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _alt(x_label: str, shown: Mapping[str, Sequence[Line]]) -> str:
    head, lines = next(iter(shown.items()))
    parts = [
        f"{line.label or head} {formats.number(line.y[0])} at {line.x[0]:g} to "
        f"{formats.number(line.y[-1])} at {line.x[-1]:g}"
        for line in lines
    ]
    return f"{head} against {x_label}: {'; '.join(parts)}."
