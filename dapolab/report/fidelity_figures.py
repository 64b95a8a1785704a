"""Figures of the fidelity report: predicted against measured, ranges against published values."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from dapolab.report import formats
from dapolab.report.document import FigureSpec
from dapolab.report.style import (
    INK,
    LINE,
    MODEL,
    MUTED,
    OBSERVED,
    SPARE_COLOURS,
    drawing,
    new_figure,
    plain,
)

_COMMA = FuncFormatter(lambda x, _: formats.tick(x))


def latency_figure(points: pd.DataFrame) -> FigureSpec:
    """Draw predicted over measured latency of requests that the scalar was not fitted on."""
    traces = list(points["trace"].unique())
    with drawing():
        figure = new_figure(height_in=3.3)
        for axes, name in zip(np.atleast_1d(figure.subplots(1, len(traces))), traces, strict=True):
            own = points[points["trace"] == name]
            top = 1.05 * float(own[["measured_s", "predicted_s"]].max().max())
            axes.plot([0, top], [0, top], color=MUTED, linewidth=1.0)
            axes.plot(own["measured_s"], own["predicted_s"], "o", color=MODEL, ms=3, alpha=0.65)
            axes.set_xlim(0, top)
            axes.set_ylim(0, top)
            axes.set_title(plain(name))
            axes.set_xlabel("measured, s")
            axes.grid(visible=True, axis="both")
            axes.tick_params(axis="y", labelcolor=MUTED)
        figure.supylabel("predicted, s", color=MUTED, fontsize=9.5)
    worst = (points["predicted_s"] / points["measured_s"] - 1).abs().max()
    return FigureSpec(
        name="latency",
        figure=figure,
        title="Latency of each held-out request, one scalar fitted on the others",
        alt=f"{len(points)} requests of {len(traces)} traces; the largest error is {worst:.1%}.",
        how_to_read=(
            "A dot is one request. On the line the simulator is exact; a cloud that leaves the "
            "line at one end would mean queueing or prefill is wrong, not the speed."
        ),
    )


def curves_figure(curves: pd.DataFrame) -> FigureSpec:
    """Draw completion curves of three waves that were not fitted."""
    sizes = list(curves["n"].unique())
    with drawing():
        figure = new_figure(height_in=3.0)
        for axes, n in zip(np.atleast_1d(figure.subplots(1, len(sizes))), sizes, strict=True):
            own = curves[curves["n"] == n]
            for column, colour, words in (
                ("measured_s", OBSERVED, "measured"),
                ("predicted_s", MODEL, "predicted"),
            ):
                axes.step(own[column], own["done_share"], color=colour, linewidth=1.7, label=words)
            axes.set_title(plain(f"{own['task'].iloc[0]}, {n} requests"))
            axes.set_xlabel("seconds")
            axes.set_ylim(0, 1.02)
            axes.grid(visible=True, axis="both")
            axes.tick_params(axis="y", labelcolor=MUTED)
            axes.xaxis.set_major_formatter(_COMMA)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2)
        figure.supylabel("share done", color=MUTED, fontsize=9.5)
    return FigureSpec(
        name="waves",
        figure=figure,
        title="Share of a wave's requests that are done, three waves that were not fitted",
        alt="Predicted and measured shares of finished requests over time for three waves.",
        how_to_read=(
            "Where the lines lie on one another the engine is right. A long flat end is the tail: "
            "most requests are done, the wave still waits. The simulator knows each request's "
            "length, so the curve tests the engine, not the lengths."
        ),
    )


def backtest_figure(rows: pd.DataFrame) -> FigureSpec:
    """Draw each predicted interval over what was measured, all as ratios."""
    shown = rows.reset_index(drop=True)
    with drawing():
        figure = new_figure(height_in=1.0 + 0.27 * len(shown))
        axes = figure.subplots()
        pairs = list(shown["pair"].unique())
        colours = dict(zip(pairs, (MODEL, OBSERVED, *SPARE_COLOURS), strict=False))
        axes.axvline(1.0, color=INK, linewidth=1.1)
        for i, row in shown.iterrows():
            y, colour = int(str(i)), colours[row["pair"]]
            low, high = row["low"] / row["measured"], row["high"] / row["measured"]
            axes.plot([low, high], [y, y], color=colour, linewidth=2.4)
            chance = [row["chance_low"] / row["measured"], row["chance_high"] / row["measured"]]
            axes.plot(chance, [y, y], color=colour, linewidth=5.5, alpha=0.35)
            axes.plot([row["predicted"] / row["measured"]], [y], "o", color=colour, ms=5)
        axes.set_yticks(range(len(shown)), labels=[plain(q) for q in shown["quantity"]])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel("predicted over measured")
        for pair in pairs:
            axes.plot([], [], color=colours[pair], linewidth=2.4, label=plain(pair))
        figure.legend(loc="outside upper left", ncols=1)
    inside = int(shown["covered"].sum())
    return FigureSpec(
        name="backtests",
        figure=figure,
        title="Predictions of other runs, 90 % intervals, over what was measured",
        alt=f"{inside} of {len(shown)} intervals hold the measured value.",
        how_to_read=(
            "The black line is the truth. A bar across it is an interval that held. The thick pale "
            "part is chance alone; the rest of the bar is what the log leaves open."
        ),
    )


def published_figure(rows: pd.DataFrame, system: str) -> FigureSpec:
    """Draw published values beside the range of predictions, baselines at 1."""
    own = rows[(rows["system"] == system) & rows["low"].notna()].reset_index(drop=True)
    base = own["published"].to_numpy(float)
    with drawing():
        figure = new_figure(height_in=0.9 + 0.25 * len(own))
        axes = figure.subplots()
        axes.axvline(1.0, color=INK, linewidth=1.1)
        for i in range(len(own)):
            row = own.iloc[i]
            low, high = row["low"] / base[i], row["high"] / base[i]
            colour = MUTED if row["baseline"] else MODEL
            axes.plot([low, max(high, low * 1.004)], [i, i], color=colour, linewidth=5, alpha=0.55)
            if row["baseline"]:
                axes.plot([1.0], [i], "s", color=MUTED, ms=5)
        axes.set_yticks(range(len(own)), labels=[plain(s) for s in own["setting"]])
        axes.set_ylim(len(own) - 0.4, -0.6)
        axes.set_xscale("log")
        ticks = [t for t in (0.15, 0.25, 0.5, 0.7, 1, 1.5, 2, 3) if _in_view(t, own, base)]
        axes.set_xticks(ticks, labels=[f"{t:g}" for t in ticks])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("predicted over published")
    inside = int((own["inside"] == True).sum())  # noqa: E712
    judged = int((~own["baseline"].astype(bool)).sum())
    return FigureSpec(
        name="published-" + "".join(c if c.isalnum() else "-" for c in system.lower()).strip("-"),
        figure=figure,
        title=f"{system}: the range over what the publication leaves open",
        alt=f"{inside} of {judged} published values lie in their range.",
        how_to_read=(
            "The black line is the published value. A bar is the range of predictions over inputs "
            "that were not published; grey rows were fitted. A wide bar across the line is no hit: "
            "it says that the publication does not determine the row."
        ),
    )


def _in_view(tick: float, rows: pd.DataFrame, base: np.ndarray) -> bool:
    low = float((rows["low"].to_numpy(float) / base).min())
    high = float((rows["high"].to_numpy(float) / base).max())
    return low / 1.4 <= tick <= high * 1.4


def seed_figure(pairs: pd.DataFrame) -> FigureSpec:
    """Draw the speeds that reproduce the seed run over the mixed share."""
    with drawing():
        figure = new_figure(height_in=2.9)
        panels: list[Axes] = list(np.atleast_1d(figure.subplots(1, 2)))
        for axes, (column, words) in zip(
            panels,
            (
                ("tok_per_s_response", "one answer, tokens/s"),
                ("tok_per_s_total", "all answers, tokens/s"),
            ),
            strict=True,
        ):
            for (name, own), colour, style in zip(
                pairs.groupby("lengths", sort=False), (OBSERVED, MODEL), ("o-", "s--"), strict=False
            ):
                axes.plot(own["q"], own[column], style, color=colour, ms=5, label=plain(str(name)))
            axes.set_title(words)
            axes.set_xlabel("share of mixed groups q")
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, axis="both")
            axes.tick_params(axis="y", labelcolor=MUTED)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2)
    low, high = pairs["tok_per_s_response"].min(), pairs["tok_per_s_response"].max()
    return FigureSpec(
        name="seed-run",
        figure=figure,
        title="Pairs of q and speed that make 35 steps take 4.17 h",
        alt=f"From {formats.number(low)} to {formats.number(high)} tokens a second and answer.",
        how_to_read=(
            "Every point of a curve reproduces the run. One of q or the speed must come from "
            "elsewhere to tell the other."
        ),
    )


def censoring_figure(rows: pd.DataFrame) -> FigureSpec:
    """Draw bounds and point beside the observed mean, for each cut."""
    cuts = list(rows["cut_tokens"].unique())
    words = {
        "naive": "mean of the cut lengths",
        "none": "no cut answer loops",
        "point": "loop share from outside",
        "every": "all cut answers loop",
    }
    with drawing():
        figure = new_figure(height_in=2.4)
        for axes, cut in zip(
            np.atleast_1d(figure.subplots(1, len(cuts), sharey=True)), cuts, strict=True
        ):
            own = rows[rows["cut_tokens"] == cut].set_index("case")
            observed = own.loc["observed"]
            axes.axvline(observed["mean_tokens"], color=INK, linewidth=1.1)
            half = 1.645 * observed["mean_se"]
            centre = observed["mean_tokens"]
            axes.axvspan(centre - half, centre + half, color=LINE, alpha=0.8, linewidth=0)
            for y, name in enumerate(words):
                mean, se = own.loc[name, "mean_tokens"], own.loc[name, "mean_se"]
                colour = MUTED if name == "naive" else MODEL
                axes.plot([mean - 1.645 * se, mean + 1.645 * se], [y, y], color=colour, lw=2.4)
                axes.plot([mean], [y], "o", color=colour, ms=6)
            axes.set_yticks(range(len(words)), labels=list(words.values()))
            axes.set_ylim(len(words) - 0.5, -0.5)
            axes.set_title(f"cut at {cut:,} tokens")
            axes.set_xlabel("mean length at cap 30,000, tokens")
            axes.locator_params(axis="x", nbins=4)
            axes.xaxis.set_major_formatter(_COMMA)
    return FigureSpec(
        name="censoring",
        figure=figure,
        title="Mean length at the full cap, predicted from answers cut earlier",
        alt="Bounds and point beside the observed mean for two cuts.",
        how_to_read=(
            "The black line and the grey band are what the full record says of the same prompts, "
            "none of which the prediction had seen. Truth should lie between the two bounds; bars "
            "are 90 %."
        ),
    )
