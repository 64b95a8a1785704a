"""The report of a bandit: curves with bands, the end of training with intervals, how to read it."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from dapolab.metrics import PROMPT_ACCURACY
from dapolab.report import formats
from dapolab.report.console import WIDTH
from dapolab.report.document import Block, Document, FigureSpec, Section, Table
from dapolab.report.style import (
    MUTED,
    SERIES_COLOURS,
    drawing,
    label,
    legend_columns,
    new_figure,
)
from dapolab.stats import Estimate

Estimates = Mapping[str, Mapping[str, Estimate]]

_PANELS_A_ROW = 4
_MODE_WIDTH = 24
_LONGEST = 60
"""Letters of a mode's name in a legend; every shipped one is shorter."""
_HANDLE_EM = 2.6
_EQUAL = 1e-9
_STYLES = ("-", "--", "-.", ":")
HEADS = {
    "length/right": "tokens if right",
    "length/wrong": "tokens if wrong",
    "length/mean": "tokens, all",
    "reward/accuracy": "pass rate",
    "entropy/answer": "entropy, nats",
    "clip/upper_share": "clipped above",
    "clip/lower_share": "clipped below",
    "rollout/effective_group_ratio": "mixed groups",
    "rollout/effective_fill_ratio": "slots filled",
    "first/length/right": "first: if right",
    "first/length/wrong": "first: if wrong",
    "first/length/mean": "first: all",
    "first/reward/accuracy": "first: pass rate",
    "first/entropy/answer": "first: entropy",
    "gradient/bias_share": "bias of gradient",
    "gradient/cosine": "its cosine",
    "gradient/sd_share": "its sd",
}
"""Metric -> head of its column, in the order in which they are shown."""


_ENDS_READ = "Means over seeds with 99 % intervals; shares in per cent."
FIRST = "first/"
FIRST_READ = """\
first: what the first update changes, per unit of learning rate; a number without an interval \
is exact, and a filter is taken to refill without end."""
_GRADIENT = "gradient/"
_FIRST_CAPTION = FIRST_READ.replace("first: what", "What")


def head(metric: str) -> str:
    """Return the head of a metric's column."""
    if metric.startswith(PROMPT_ACCURACY):
        return f"pass rate {metric.removeprefix(PROMPT_ACCURACY)}"
    return HEADS.get(metric, metric)


_FIGURES = (
    ("lengths", "Answer lengths", ("length/right", "length/wrong", "length/mean")),
    ("policy", "Pass rate and entropy", ("reward/accuracy", "entropy/answer")),
    ("clip", "Share of tokens that the clip silences", ("clip/upper_share", "clip/lower_share")),
    (
        "groups",
        "Groups with a signal",
        ("rollout/effective_group_ratio", "rollout/effective_fill_ratio"),
    ),
)
_READ = {
    "lengths": "Expected lengths, exact in the policy. Look at right and wrong apart: the mean "
    "also moves because right answers become likely.",
    "policy": "A curve that flattens early has run out of groups with a signal, or of entropy.",
    "clip": "Tokens whose own gradient the clip takes away, above at 1 + high and below at "
    "1 − low; mean over a rollout's updates. With one update a rollout nothing is ever clipped.",
    "prompts": "A panel is a prompt, named by its pass rate at the start. Gains are per step; a "
    "mode that takes larger steps gains more everywhere.",
    "groups": "A mixed group holds right and wrong answers: the others have no advantage and "
    "teach nothing.",
}
_READ_OF = {
    "rollout/effective_group_ratio": "Mixed groups: mixed (or, with a filter, kept) over sampled.",
    "rollout/effective_fill_ratio": "Slots filled: trained groups over wanted ones.",
}
"""What is said of a panel where it is drawn."""
_BAND = "A line is the mean over seeds, its band the 99 % interval; a step is one rollout."


def shown_metrics(estimates: Estimates, curves: pd.DataFrame | None = None) -> list[str]:
    """Return the metrics worth a column: those that differ between modes, or moved in training."""
    names = []
    known = [name for found in estimates.values() for name in found]
    prompts = dict.fromkeys(name for name in known if name.startswith(PROMPT_ACCURACY))
    for metric in (*HEADS, *prompts):
        found = [e[metric].mean for e in estimates.values() if metric in e]
        if not found:
            continue
        moved = False
        if curves is not None:
            means = curves.loc[curves["metric"] == metric, "mean"]
            moved = len(means) > 0 and bool(np.ptp(means.to_numpy(float)) > _EQUAL)
        if moved or max(found) - min(found) > _EQUAL:
            names.append(metric)
    return names


def estimate_tables(
    estimates: Estimates, metrics: Sequence[str], *, width: int = WIDTH, rows: str = "mode"
) -> list[RichTable]:
    """Return tables for the terminal, as many metrics in each as fit the width.

    Parameters
    ----------
    estimates : row -> metric -> Estimate.
    rows : what a row is, the head of the first column.
    """
    columns = {
        metric: [formats.cell(found.get(metric)) for found in estimates.values()]
        for metric in metrics
    }
    widest_mode = min(_MODE_WIDTH, max(map(len, estimates), default=0))
    tables: list[list[str]] = []
    room = 0
    for metric, cells in columns.items():
        needed = 2 + max(len(head(metric)), *map(len, cells))
        if not tables or needed > room:
            tables.append([])
            room = width - widest_mode - 3
        tables[-1].append(metric)
        room -= needed
    return [_table(estimates, columns, part, rows) for part in tables]


def _table(
    estimates: Estimates, columns: Mapping[str, Sequence[str]], metrics: Sequence[str], rows: str
) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(rows, overflow="fold", max_width=_MODE_WIDTH)
    for metric in metrics:
        table.add_column(head(metric), justify="right", overflow="fold")
    for row, mode in enumerate(estimates):
        table.add_row(Text(mode), *(Text(columns[metric][row]) for metric in metrics))
    return table


def bandit_document(
    *,
    title: str,
    lead: str,
    curves: pd.DataFrame,
    estimates: Estimates,
    how_to_read: Sequence[str],
    provenance: Mapping[str, str] | None = None,
) -> Document:
    """Return the report of one environment.

    Parameters
    ----------
    lead : what was asked and found, Markdown.
    curves : columns mode, metric, step, mean, low, high; low and high may be missing.
    estimates : mode -> metric -> Estimate at the end of training.
    how_to_read : one sentence or two each, plain text.
    """
    shown = shown_metrics(estimates, curves)
    figures: list[Block] = []
    prompts = tuple(m for m in shown if m.startswith(PROMPT_ACCURACY))
    figures_of = (*_FIGURES, ("prompts", "Pass rate of each prompt", prompts))
    for name, heading, metrics in figures_of:
        drawn = [m for m in metrics if m in shown and (curves["metric"] == m).any()]
        if drawn:
            figures.append(_figure(name, _heading(heading, drawn), curves, drawn, list(estimates)))
    at_first = [m for m in shown if m.startswith((FIRST, _GRADIENT))]
    at_end = [m for m in shown if m not in at_first]
    first = _table_of(estimates, at_first, _FIRST_CAPTION)
    sections = (
        Section("How to read this", tuple(how_to_read)),
        Section("Training", tuple(figures)),
        Section("At the end", (_table_of(estimates, at_end, _ENDS_READ),)),
        Section("The first update", (first,) if at_first else ()),
    )
    return Document(
        title=title,
        lead=lead,
        sections=tuple(section for section in sections if section.blocks),
        notes=("A bandit tells direction and size of a push on a tiny policy, no wall-clock.",),
        provenance=provenance or {},
    )


def _table_of(estimates: Estimates, metrics: Sequence[str], caption: str) -> Table:
    rows = [
        {"mode": mode} | {head(m): found.get(m) for m in metrics}
        for mode, found in estimates.items()
    ]
    frame = pd.DataFrame(rows, columns=["mode", *(head(m) for m in metrics)], dtype=object)
    return Table(frame, caption)


def effects_document(
    *,
    title: str,
    lead: str,
    effects: Estimates,
    how_to_read: Sequence[str],
    provenance: Mapping[str, str] | None = None,
) -> Document:
    """Return the report of a factorial study: effect -> metric -> Estimate, in tokens."""
    metrics = list(next(iter(effects.values())))
    names = list(effects)
    with drawing():
        figure = new_figure(height_in=0.9 + 0.34 * len(names))
        axes_row = figure.subplots(1, len(metrics), sharey=True)
        for axes, metric in zip(np.atleast_1d(axes_row), metrics, strict=True):
            axes.axvline(0.0, color=MUTED, linewidth=1.1)
            for row, name in enumerate(names):
                e = effects[name][metric]
                low, high = (e.mean if end is None else end for end in (e.low, e.high))
                axes.plot([low, high], [row, row], color=SERIES_COLOURS[0], linewidth=2.4)
                axes.plot([e.mean], [row], "o", color=SERIES_COLOURS[0], ms=5)
            axes.set_yticks(range(len(names)), labels=[label(name) for name in names])
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.set_title(head(metric))
            axes.set_xlabel("tokens")
    said = "; ".join(f"{n} {formats.estimate(found[metrics[0]])}" for n, found in effects.items())
    spec = FigureSpec(
        name="effects",
        figure=figure,
        title="What each path and each combination adds to the change of a length",
        alt=f"Effects on {head(metrics[0])}: {said}.",
        how_to_read=(
            "Right of zero: the path makes answers longer. An interaction (×) away from zero: two "
            "paths together are not the sum of both."
        ),
    )
    rows = [
        {"effect": name} | {head(m): found[m] for m in metrics} for name, found in effects.items()
    ]
    table = Table(
        pd.DataFrame(rows, dtype=object),
        "Tokens of change over the training; simultaneous 99 % intervals over paired seeds.",
    )
    sections = (
        Section("How to read this", tuple(how_to_read)),
        Section("Effects", (spec, table)),
    )
    return Document(title, lead, sections, provenance=provenance or {})


def _heading(heading: str, drawn: Sequence[str]) -> str:
    """Return a figure's title: what it is called, or its one quantity."""
    if heading == "Pass rate and entropy" and len(drawn) == 1:
        return head(drawn[0]).partition(",")[0].capitalize()
    return heading


def _figure(
    name: str, heading: str, curves: pd.DataFrame, metrics: Sequence[str], modes: Sequence[str]
) -> FigureSpec:
    panels = _distinct(curves, metrics)
    with drawing():
        n_rows = -(-len(panels) // _PANELS_A_ROW)
        n_columns = -(-len(panels) // n_rows)
        n_legend = legend_columns([mode[:_LONGEST] for mode in modes], handle_em=_HANDLE_EM)
        height_in = 0.3 + 0.2 * -(-len(modes) // n_legend) + 2.7 * n_rows
        figure = new_figure(height_in=height_in)
        places = np.atleast_1d(figure.subplots(n_rows, n_columns)).flatten()
        for spare in places[len(panels) :]:
            spare.remove()
        axes_row = places[: len(panels)]
        for axes, alike in zip(axes_row, panels, strict=True):
            rows = curves[curves["metric"] == alike[0]]
            _panel(axes, rows, modes)
            axes.set_title(_title(alike, rows))
        handles, labels = axes_row[0].get_legend_handles_labels()
        # long enough that a dash is told from a dot
        figure.legend(
            handles, labels, loc="outside upper left", ncols=n_legend, handlelength=_HANDLE_EM
        )
    said = [_READ[name], *(_READ_OF[m] for m in metrics if m in _READ_OF), _BAND]
    if same := _coinciding(curves[curves["metric"].isin(metrics)], modes):
        said.append(f"Curves that lie on one another: {same}.")
    return FigureSpec(
        name=name,
        figure=figure,
        title=heading,
        alt=_alt(curves, [alike[0] for alike in panels], modes),
        how_to_read=" ".join(said),
    )


def _distinct(curves: pd.DataFrame, metrics: Sequence[str]) -> list[list[str]]:
    """Return the metrics by panels: those of equal curves, as of one length for all, share one."""
    panels: list[tuple[bytes, list[str]]] = []
    for metric in metrics:
        drawn = curves.loc[curves["metric"] == metric, ["step", "mean"]].to_numpy(float).round(9)
        same = next((alike for key, alike in panels if key == drawn.tobytes()), None)
        if same is None:
            panels.append((drawn.tobytes(), [metric]))
        else:
            same.append(metric)
    return [alike for _, alike in panels]


def _title(alike: Sequence[str], rows: pd.DataFrame) -> str:
    if alike[0].startswith(PROMPT_ACCURACY):
        number = alike[0].removeprefix(PROMPT_ACCURACY)
        first = rows.loc[rows["step"] == rows["step"].min(), "mean"].mean()
        return f"prompt {number}: {_shown(float(first), 'share')}"
    return " = ".join(head(metric) for metric in alike)


def _coinciding(curves: pd.DataFrame, modes: Sequence[str]) -> str:
    """Return the modes whose curves are equal in every metric drawn."""
    found: dict[bytes, list[str]] = {}
    for mode in modes:
        own = curves.loc[curves["mode"] == mode, ["step", "mean"]].to_numpy(float)
        if len(own):
            found.setdefault(own.round(9).tobytes(), []).append(mode)
    return "; ".join(", ".join(same) for same in found.values() if len(same) > 1)


def _alt(curves: pd.DataFrame, metrics: Sequence[str], modes: Sequence[str]) -> str:
    """Return each panel's first and last values; of many panels the first and the last."""
    said = []
    for metric in metrics if len(metrics) <= _PANELS_A_ROW else (metrics[0], metrics[-1]):
        ends = []
        for mode in modes:
            rows = curves[(curves["mode"] == mode) & (curves["metric"] == metric)]
            if len(rows):
                unit = _unit(rows)
                start, end = (_shown(float(rows["mean"].iloc[i]), unit) for i in (0, -1))
                ends.append(f"{mode} {start} to {end}")
        said.append(f"{head(metric)}: {'; '.join(ends)}.")
    return " ".join(said)


def _unit(rows: pd.DataFrame) -> str:
    return str(rows["unit"].iloc[0]) if "unit" in rows and len(rows) else ""


def _shown(value: float, unit: str) -> str:
    return f"{formats.number(100 * value)} %" if unit == "share" else formats.number(value)


def _panel(axes: Axes, rows: pd.DataFrame, modes: Sequence[str]) -> None:
    for index, mode in enumerate(modes):
        own = rows[rows["mode"] == mode]
        if len(own) == 0:
            continue
        colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
        step = own["step"].to_numpy(float)
        low, high = (own[end].to_numpy(float) for end in ("low", "high"))
        axes.fill_between(step, low, high, color=colour, alpha=0.18, linewidth=0)
        style = _STYLES[index % len(_STYLES)]
        name = label(mode, longest=_LONGEST)
        mean = own["mean"].to_numpy(float)
        axes.plot(step, mean, style, color=colour, linewidth=1.8, label=name)
    axes.grid(visible=True, axis="both")
    axes.tick_params(axis="y", labelcolor=MUTED)
    axes.margins(x=0.02)  # no tick at the very end, whose label would leave the figure
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("step")
    if _unit(rows) == "share":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))
