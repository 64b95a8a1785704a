"""The committed sweeps as figures: one quantity against one setting, a line for each of another."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dapolab.errors import ConfigError
from dapolab.report import Document, Section, Table, formats
from dapolab.report.lines import Line, line_panels
from dapolab.stats import t_interval
from dapolab.studies.study import Study, Tables, Tick
from dapolab.sweep import expand, read_sweep, row_of

FOLDER = Path("sims/sweeps")


@dataclass(frozen=True)
class Chart:
    """How one sweep is drawn.

    Attributes
    ----------
    name : file of the sweep without its ending.
    x, by : swept keys: along the axis, and one line a value.
    x_words : the axis in words.
    metrics : metric -> heading of its panel.
    asks : what the sweep is to tell.
    reads : how to read its figure.
    log_x : whether the axis is logarithmic.
    """

    name: str
    x: str
    by: str | None
    metrics: Mapping[str, str]
    asks: str
    reads: str
    x_words: str
    log_x: bool = False


CHARTS = (
    Chart(
        "refill-by-pass-rate",
        "workload.pass_rate.p",
        "collector.kind",
        {
            "per_trained_group/step_seconds": "seconds a trained group",
            "rollout/effective_fill_ratio": "batch filled",
        },
        "What does refilling cost as the model gets better? Every prompt has the same pass rate.",
        "Both ends are where groups are all wrong or all right. A policy that is cheap at the ends "
        "because its batch is not filled is no bargain: read both panels.",
        "pass rate of every prompt",
    ),
    Chart(
        "batch-by-multiplier",
        "rollout.groups_per_step",
        "collector.max_candidate_multiplier",
        {
            "rollout/waves": "waves a step",
            "rollout/effective_fill_ratio": "batch filled",
            "per_trained_group/step_seconds": "seconds a trained group",
        },
        "The two knobs of the seed configuration, at a probability of one half that a group is "
        "mixed.",
        "A larger M (max candidate multiplier) buys waves; a larger B makes the worst case longer "
        "and the share of it rarer.",
        "groups wanted a step (B)",
        log_x=True,
    ),
    Chart(
        "cap-by-tail",
        "rollout.cap_tokens",
        "workload.sigma",
        {
            "time/step_seconds": "seconds a step",
            "rollout/idle_slot_share": "slots idle",
            "rollout/truncated_share": "answers cut",
        },
        "How much of a step waits for the longest answer, by the cap and by the spread of log "
        "length.",
        "Where the middle panel is high, the step is mostly waiting: that is what streaming, "
        "over-provision and partial rollouts can save.",
        "cap, tokens",
        log_x=True,
    ),
    Chart(
        "oversampling",
        "collector.eta",
        None,
        {
            "per_trained_group/step_seconds": "seconds a trained group",
            "bias/length_ratio_policy": "trained length × mixed",
            "rollout/effective_fill_ratio": "batch filled",
        },
        "The first B of η·B groups that pass the filter win, the rest is aborted.",
        "The minimum of the left panel is the η that pays; the middle panel is its price in the "
        "length of what is trained.",
        "groups launched over groups wanted (η)",
    ),
    Chart(
        "staleness-by-split",
        "learner.schedule.control.staleness",
        "learner.gpus",
        {
            "per_trained_group/step_seconds": "seconds a trained group",
            "staleness/mean_versions": "versions old",
        },
        "Eight GPUs between rollout and learner, with AReaL's admission bound η on staleness.",
        "Lines far above the lowest have the wrong split: no staleness buys that back. On the "
        "right split the first version of staleness buys most.",
        "bound on staleness (η), versions",
    ),
    Chart(
        "verl-generation-batch",
        "collector.gen_multiplier",
        "workload.mean_logit",
        {
            "per_trained_group/step_seconds": "seconds a trained group",
            "rollout/waves": "generation batches a step",
            "rollout/token_utilisation": "trained over generated tokens",
        },
        "Generation over training batch of verl's DAPO recipe, as pass rates rise (mean logit).",
        "The best ratio moves right as prompts become easy: re-tune it with the pass rate.",
        "generation batch over training batch",
    ),
)


def _measure(seed: int, quick: bool, tick: Tick) -> Tables:
    tables = {}
    for chart in CHARTS:
        path = FOLDER / f"{chart.name}.toml"
        if not path.exists():
            raise ConfigError(f"{path}: not here; run in a checkout of the repository")
        points = expand(read_sweep(path), folder=path.parent, first_seed=seed)
        if quick:
            points = points[:: max(len(points) // 6, 1)]
        rows = [row_of(point) for point in points]
        table = pd.DataFrame(rows)
        for key in (chart.x, chart.by):
            if key is not None:
                table[key] = [point.changed[key] for point in points]
        columns = [key for key in (chart.x, chart.by) if key is not None]
        columns += ["replications", "p_fails", "error"]
        columns += [c for m in chart.metrics for c in (m, f"{m}/se") if c in table]
        tables[chart.name] = table[columns]
        tick()
    return tables


def _document(tables: Tables, provenance: Mapping[str, str]) -> Document:
    return Document(
        title="Sweeps",
        lead=_lead(tables),
        sections=tuple(_section(chart, tables[chart.name]) for chart in CHARTS),
        notes=(
            "a simulation of waiting and cost on stated workloads: nothing here learns",
            "points of a sweep share their draws, so lines move together by chance",
        ),
        provenance=provenance,
    )


def _lead(tables: Tables) -> str:
    """Return what each sweep found, in its own numbers, and how to run it again."""
    cost = "per_trained_group/step_seconds"
    said = [
        _dearest_over_cheapest(tables["refill-by-pass-rate"], cost),
        _lowest(tables["oversampling"], "collector.eta", cost),
        _first_version(tables["staleness-by-split"], cost),
    ]
    return (
        f"{' '.join(text for text in said if text)} Six sweeps of one setting, or two, that are "
        "committed as files: `dapolab sweep sims/sweeps/NAME.toml` runs one again and "
        "`dapolab best` ranks its points."
    ).strip()


def _dearest_over_cheapest(table: pd.DataFrame, cost: str) -> str:
    own = table[table["collector.kind"] == "exact_refill"].dropna(subset=[cost])
    if len(own) < 2:
        return ""
    ranked = own.sort_values(cost)
    low, high = ranked.iloc[0], ranked.iloc[-1]
    x = "workload.pass_rate.p"
    return (
        f"**Exact refill costs {high[cost] / low[cost]:.1f} times as much a trained group at a "
        f"pass rate of {high[x]:g} as at {low[x]:g}** ({formats.number(float(high[cost]))} against "
        f"{formats.number(float(low[cost]))} s)."
    )


def _lowest(table: pd.DataFrame, x: str, cost: str) -> str:
    known = table.dropna(subset=[cost])
    if len(known) < 2:
        return ""
    best, most = known.sort_values(cost).iloc[0], known.sort_values(x).iloc[-1]
    return (
        f"Over-provision is cheapest near η = {best[x]:g} ({formats.number(float(best[cost]))} s a "
        f"trained group); at {most[x]:g} it costs {formats.number(float(most[cost]))} s."
    )


def _first_version(table: pd.DataFrame, cost: str) -> str:
    bound = "learner.schedule.control.staleness"
    costs = table.dropna(subset=[cost]).groupby(bound)[cost].min()
    lowest = {float(str(key)): float(value) for key, value in costs.items()}
    if len(lowest) < 3 or not {0.0, 1.0} <= set(lowest):
        return ""
    last = max(lowest)
    return (
        "With the best split of the GPUs, staleness of one version takes a trained group from "
        f"{formats.number(lowest[0.0])} to {formats.number(lowest[1.0])} s, one of "
        f"{last:g} to {formats.number(lowest[last])} s."
    )


def _section(chart: Chart, table: pd.DataFrame) -> Section:
    figure = line_panels(
        name=chart.name,
        title=chart.asks,
        x_label=f"{chart.x_words}: {chart.x}",
        log_x=chart.log_x,
        panels={words: _lines(chart, metric, table) for metric, words in chart.metrics.items()},
        how_to_read=f"{chart.reads} Bands are 99 % intervals.",
    )
    return Section(chart.name, (figure, _numbers(chart, table)))


def _lines(chart: Chart, metric: str, table: pd.DataFrame) -> list[Line]:
    """Return one line a value of the second key, points without the metric left out."""
    if metric not in table:
        return []
    parts = [("", table)] if chart.by is None else list(table.groupby(chart.by, sort=False))
    lines = []
    for value, rows in parts:
        known = rows[rows[metric].notna()].sort_values(chart.x)
        ends = [
            t_interval(mean, error, n=int(n))
            for mean, error, n in zip(
                known[metric], known[f"{metric}/se"], known["replications"], strict=True
            )
        ]
        short = "" if chart.by is None else chart.by.rpartition(".")[2].replace("_", " ")
        label = str(value) if chart.by and chart.by.endswith("kind") else f"{short} {value}".strip()
        lines.append(
            Line(
                label,
                tuple(known[chart.x].astype(float)),
                tuple(known[metric].astype(float)),
                tuple(low for low, _ in ends),
                tuple(high for _, high in ends),
            )
        )
    return lines


def _numbers(chart: Chart, table: pd.DataFrame) -> Table:
    keys = [key for key in (chart.x, chart.by) if key is not None]
    frame = table[keys].copy()
    for metric, words in chart.metrics.items():
        if metric in table:
            frame[words] = table[metric]
    failed = table["p_fails"].fillna(1.0) > 0
    if failed.any():
        frame["runs that fail"] = table["p_fails"]
    # settings as they were written, not to three digits
    numbers = [key for key in keys if pd.api.types.is_numeric_dtype(frame[key])]
    return Table(
        frame,
        "Means over replications; click a head to sort.",
        formats=dict.fromkeys(numbers, ",.6g"),
    )


SWEEPS = Study(
    "sweeps",
    "what happens when one setting moves?",
    len(CHARTS),
    _measure,
    _document,
)
