"""One step as a chart of slots over time: who ran when, what became of it, where it waited."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline

from dapolab.report.comparison_figures import RANKED
from dapolab.report.document import FigureSpec
from dapolab.report.style import INK, LINE, MUTED, STATUS_COLOURS, drawing, label, new_figure

if TYPE_CHECKING:
    from dapolab.report.comparison import ComparisonTables

GANTT_POLICIES = 3
STATUS_WORDS = {"degenerate": "all right or all wrong", "carried": "goes on in a later step"}
"""What became of a group, where its short name does not say it."""
MAX_LANES = 96
"""Lanes drawn of a replica: more are thinner than a pixel."""


def lanes(start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """Return the lane of each response: the lowest that is free when it starts.

    Parameters
    ----------
    start_s, end_s : arrays (N,), seconds; a response that starts as another ends may follow it.

    Returns
    -------
    array (N,), int64 : as many lanes as the largest number of responses at once.
    """
    order = np.lexsort((end_s, start_s))
    lane = np.zeros(len(order), dtype=np.int64)
    running: list[tuple[float, int]] = []
    free: list[int] = []
    n_lanes = 0
    for i in order:
        while running and running[0][0] <= start_s[i]:
            heapq.heappush(free, heapq.heappop(running)[1])
        if free:
            chosen = heapq.heappop(free)
        else:
            chosen, n_lanes = n_lanes, n_lanes + 1
        lane[i] = chosen
        heapq.heappush(running, (float(end_s[i]), chosen))
    return lane


def admitted(responses: pd.DataFrame) -> pd.DataFrame:
    """Return the responses that held a slot; one aborted in the queue never did."""
    return responses[responses["admit_s"].notna() & responses["end_s"].notna()]


def gantt(
    responses: pd.DataFrame, waves: pd.DataFrame | None, *, policies: Sequence[str]
) -> tuple[Figure, bool]:
    """Return the chart of one step per policy, one replica, on a common time axis.

    Parameters
    ----------
    responses : policy, replica, admit_s, end_s, status of every response of the step.
    waves : policy, start_s, end_s of the step's waves; policies without waves have no rows.
    policies : which to draw, from top to bottom.

    Returns
    -------
    figure, cut : whether lanes were left out.
    """
    cut = False
    with drawing():
        figure = new_figure(height_in=0.6 + 1.55 * len(policies))
        rows = figure.subplots(len(policies), 1, sharex=True, squeeze=False)[:, 0]
        last_s = 0.0
        labelled: list[tuple[Axes, list[tuple[float, float]]]] = []
        for axes, name in zip(rows, policies, strict=True):
            mine = admitted(responses[responses["policy"] == name])
            mine = mine[mine["replica"] == mine["replica"].min()]
            origin_s = _origin_s(mine, waves, name)
            cut |= _panel(axes, mine, origin_s=origin_s, title=name)
            bounds = _wave_bounds(waves, name)
            labelled.append((axes, [(a - origin_s, b - origin_s) for a, b in bounds]))
            for _, end_s in bounds:
                axes.axvline(end_s - origin_s, color=INK, linewidth=1, linestyle=(0, (3, 2)))
            ends = [end_s for _, end_s in bounds] + [float(mine["end_s"].max())]
            last_s = max(last_s, max(ends) - origin_s)
        for axes, spans in labelled:
            _number_waves(axes, spans, last_s=last_s)
        rows[-1].set_xlim(0, last_s * 1.01)
        rows[-1].set_xlabel("seconds since the step began to collect")
        seen = set(admitted(responses[responses["policy"].isin(list(policies))])["status"])
        present = [status for status in STATUS_COLOURS if status in seen]
        handles = [_swatch(STATUS_COLOURS[s], STATUS_WORDS.get(s, s)) for s in present]
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure, cut


def _number_waves(axes: Axes, spans: Sequence[tuple[float, float]], *, last_s: float) -> None:
    """Write the number of each wave above it, as "wave 2" where there is room."""
    if len(spans) > 12:
        return
    for number, (start_s, end_s) in enumerate(spans, start=1):
        text = f"wave {number}" if end_s - start_s > 0.07 * last_s else str(number)
        axes.annotate(text, ((start_s + end_s) / 2, 0), xytext=(0, 2), textcoords="offset points",
                      ha="center", va="bottom", color=MUTED, fontsize=8)  # fmt: skip


def _swatch(colour: str, label: str) -> PathPatch:
    return PathPatch(Outline.unit_rectangle(), facecolor=colour, linewidth=0, label=label)


def _origin_s(mine: pd.DataFrame, waves: pd.DataFrame | None, name: str) -> float:
    bounds = _wave_bounds(waves, name)
    first_s = float(mine["submit_s" if "submit_s" in mine else "admit_s"].min())
    return min(first_s, bounds[0][0]) if bounds else first_s


def _wave_bounds(waves: pd.DataFrame | None, name: str) -> list[tuple[float, float]]:
    if waves is None or len(waves) == 0:
        return []
    mine = waves[waves["policy"] == name].sort_values("start_s")
    return [(float(a), float(b)) for a, b in zip(mine["start_s"], mine["end_s"], strict=True)]


def _panel(axes: Axes, mine: pd.DataFrame, *, origin_s: float, title: str) -> bool:
    start_s = mine["admit_s"].to_numpy(float) - origin_s
    end_s = mine["end_s"].to_numpy(float) - origin_s
    lane = lanes(start_s, end_s)
    n_lanes = int(lane.max()) + 1
    shown = np.unique(np.linspace(0, n_lanes - 1, min(n_lanes, MAX_LANES)).round().astype(int))
    place = np.full(n_lanes, -1)
    place[shown] = np.arange(len(shown))
    for status, colour in STATUS_COLOURS.items():
        which = (mine["status"] == status).to_numpy(bool) & (place[lane] >= 0)
        if which.any():
            outline = _rectangles(start_s[which], end_s[which], place[lane[which]])
            axes.add_artist(PathPatch(outline, facecolor=colour, linewidth=0))
    axes.set_ylim(len(shown) - 0.4, -0.6 - 0.13 * len(shown))
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines["bottom"].set_color(LINE)
    held = (
        f"{n_lanes} slots in use" if len(shown) == n_lanes else f"{len(shown)} of {n_lanes} slots"
    )
    axes.set_title(f"{label(title)} · {held}")
    return len(shown) < n_lanes


def _rectangles(start_s: np.ndarray, end_s: np.ndarray, row: np.ndarray) -> Outline:
    """Return all bars as one outline: a tenth of the bytes of one patch each."""
    half = 0.42
    corners = np.stack(
        [
            np.stack([start_s, row - half], axis=1),
            np.stack([end_s, row - half], axis=1),
            np.stack([end_s, row + half], axis=1),
            np.stack([start_s, row + half], axis=1),
            np.stack([start_s, row - half], axis=1),
        ],
        axis=1,
    )
    codes = np.tile([Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY], len(row))
    return Outline(corners.reshape(-1, 2), codes)


def gantt_figure(tables: ComparisonTables) -> FigureSpec | None:
    """Return one step of up to three policies: the baseline, the best, and a contrast."""
    responses = tables.responses
    if responses is None or len(responses) == 0:
        return None
    responses, waves = _one_step(responses, tables.waves)
    chosen = _for_gantt(tables, set(admitted(responses)["policy"]))
    if not chosen:
        return None
    figure, cut = gantt(responses, waves, policies=chosen)
    limited = " Slots are a regular selection of one replica." if cut else ""
    return FigureSpec(
        name="gantt",
        figure=figure,
        title="One training step: who holds which slot",
        alt=f"Slots over time for one step of {', '.join(chosen)}, coloured by their fate.",
        how_to_read=(
            "A row is a slot of the engine, a bar a response; empty space is a GPU that waits. "
            "Dashed lines end a wave: what is empty before one waits for the longest answer. All "
            "panels share the time axis and the same candidates." + limited
        ),
    )


def _one_step(
    responses: pd.DataFrame, waves: pd.DataFrame | None
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    for key in ("replication", "step"):
        if key in responses:
            first = responses[key].min()
            responses = responses[responses[key] == first]
            if waves is not None and key in waves:
                waves = waves[waves[key] == first]
    return responses, waves


def _for_gantt(tables: ComparisonTables, present: set[str]) -> list[str]:
    best = list(tables.best.get(RANKED, ()))
    without_barrier = [n for n in tables.policies if n not in tables.waves_distribution]
    wanted = [tables.baseline, *best[:1], *without_barrier, *tables.policies]
    filling: Mapping[str, None] = dict.fromkeys(name for name in wanted if name in present)
    return list(filling)[:GANTT_POLICIES]
