"""One look for all figures: colours, type, and SVG that follows the page into dark mode.

Figures are drawn in the light theme's real colours. A file of its own gets them with a white
ground; inside a page the four theme colours become CSS variables. Hues are Okabe and Ito's (Color
Universal Design, 2008), a few shifted to stay readable on a dark ground; marks and order repeat
what colour says.
"""

import contextlib
import html
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

INK, MUTED, LINE, CARD = "#1f2933", "#66727f", "#dde3e9", "#fffffe"
THEME = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)", CARD: "var(--card)"}

POLICY_COLOURS = {
    "none": "#7a828c",
    "filter_no_refill": "#cc79a7",
    "exact_refill": "#0072b2",
    "rounds": "#e69f00",
    "replenish": "#009e73",
    "streaming": "#56b4e9",
    "over_provision": "#d55e00",
    "verl_v1": "#8c6bb1",
}
SPARE_COLOURS = ("#b58f6b", "#5f9ea0", "#a3a500", "#c8553d", "#4a6fa5", "#8fae5d")
SERIES_COLOURS = (
    POLICY_COLOURS["exact_refill"],
    POLICY_COLOURS["rounds"],
    POLICY_COLOURS["replenish"],
    POLICY_COLOURS["over_provision"],
    POLICY_COLOURS["filter_no_refill"],
    POLICY_COLOURS["streaming"],
    *SPARE_COLOURS,
)
"""Of series that are no policies, in order."""
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "h")

PART_COLOURS = {
    "overhead": "#9aa5b1",
    "prefill": "#8fc7ee",
    "decode": "#0072b2",
    "tail": "#e69f00",
    "reward": "#cc79a7",
    "old_logprob": "#a6dcc9",
    "reference": "#5fbf9f",
    "update": "#009e73",
    "sync": "#8c6bb1",
    "validation": "#b58f6b",
    "checkpoint": "#6b7280",
    "other": "#c3cad2",
}
STATUS_COLOURS = {
    "trained": "#009e73",
    "degenerate": "#a4adb8",
    "surplus": "#e69f00",
    "aborted": "#d55e00",
    "stale": "#8c6bb1",
    "carried": "#56b4e9",
}
OBSERVED, MODEL = "#1f86c9", "#d55e00"

WIDTH_IN = 7.2
ROW_IN = 0.4
"""Height of one policy's row."""
FONT = "DejaVu Sans"
_FONT_STACK = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"
_RC: dict[Any, Any] = {
    "svg.hashsalt": "dapolab",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": [FONT],
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.1,
    "legend.handleheight": 0.9,
    "legend.columnspacing": 1.3,
    "lines.solid_capstyle": "round",
    "hatch.linewidth": 0.7,
}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Hold matplotlib's settings at the house style; the caller's come back afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def new_figure(*, height_in: float, width_in: float = WIDTH_IN) -> Figure:
    """Return an empty figure without pyplot, so nothing is global and nothing needs closing."""
    # a browser's font may be a little wider than the one that places the last label of an axis
    layout = ConstrainedLayoutEngine(w_pad=6 / 72)
    return Figure(figsize=(width_in, height_in), layout=layout)


def legend_columns(labels: Sequence[str], *, handle_em: float = 2.0) -> int:
    """Return the columns, at most four, in which a legend fits the width of a figure, names whole.

    Parameters
    ----------
    handle_em : length of the line beside a name, as matplotlib's ``handlelength``.
    """
    letters = [len(label) for label in labels]
    for n in range(min(4, len(labels)), 1, -1):
        # matplotlib fills one column after the other, the first ones with what is left over
        columns = np.array_split(letters, n)
        # a letter of 9 points is at most 0.6 em wide on average; gaps take 25 points beside a line
        widths = (0.6 * max(column) + handle_em + 25 / 9 for column in columns)
        if sum(widths) <= 8 * WIDTH_IN:
            return n
    return 1


def policy_colours(policies: Sequence[str]) -> dict[str, str]:
    """Return a colour per policy: fixed for the known kinds, spare ones in order for the others.

    A variant named after its kind (``rounds-1536``) takes the kind's colour where it is free.
    """
    chosen = {name: POLICY_COLOURS[name] for name in policies if name in POLICY_COLOURS}
    spare = [colour for colour in SPARE_COLOURS if colour not in chosen.values()]
    for name in policies:
        if name in chosen:
            continue
        kind = next((k for k in POLICY_COLOURS if k != "none" and name.startswith(k)), None)
        if kind is not None and POLICY_COLOURS[kind] not in chosen.values():
            chosen[name] = POLICY_COLOURS[kind]
        else:
            chosen[name] = spare.pop(0) if spare else "#7a828c"
    return chosen


def ink_on(colour: str) -> str:
    """Return black or white, whichever reads better on ``colour`` (WCAG relative luminance)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#0e1216" if luminance > 0.19 else "#fdfdfd"


def label_policies(axes: Axes, policies: Sequence[str]) -> None:
    """Put one policy a row, the first on top."""
    axes.set_yticks(range(len(policies)), labels=[label(name) for name in policies])
    axes.set_ylim(len(policies) - 0.4, -0.6)


def label(name: str, *, longest: int = 28) -> str:
    """Return a name for a figure, cut where it would leave no room for the data."""
    return plain(name if len(name) <= longest else name[: longest - 1] + "…")


def plain(text: str) -> str:
    """Return text that matplotlib draws as it is: a lone dollar sign starts no formula."""
    return text.replace("$", r"\$")


def raw_svg(figure: Figure) -> str:
    """Return the figure as SVG in the light theme's colours, same bytes for the same figure."""
    buffer = io.StringIO()
    with drawing():
        figure.draw_without_rendering()
        # the layout is settled; solving it again would move points by a rounding error
        figure.set_layout_engine("none")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = text.replace(f"'{FONT}'", _FONT_STACK)
    # both ends are points of 1/72 inch; three decimals are a 25,000th of an inch
    text = re.sub(r"(\d+\.\d{3})\d+", r"\1", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _labelled(svg: str, *, alt: str) -> str:
    label = html.escape(alt, quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def standalone_svg(svg: str, *, alt: str) -> str:
    """Return raw SVG as a file of its own: light theme on white."""
    svg = _labelled(svg, alt=alt)
    end = svg.index(">") + 1
    ground = '\n <rect width="100%" height="100%" fill="#ffffff"/>'
    return '<?xml version="1.0" encoding="utf-8"?>\n' + svg[:end] + ground + svg[end:]


def inline_svg(svg: str, *, alt: str, prefix: str) -> str:
    """Return raw SVG for a page: theme colours as CSS variables, ids under ``prefix``."""
    svg = _labelled(svg, alt=alt)
    for colour, variable in THEME.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = svg.replace("url(#", f"url(#{prefix}-")
    return re.sub(r'(xlink:href|href)="#', rf'\1="#{prefix}-', svg)
