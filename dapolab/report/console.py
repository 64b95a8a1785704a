"""Tables for the terminal, 80 columns wide at most."""

import io
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dapolab.report import formats
from dapolab.report.comparison import Estimates
from dapolab.report.comparison_figures import RANKED
from dapolab.stats import Estimate

WIDTH = 80

CONSOLE_COLUMNS: dict[str, str] = {
    RANKED: "s/group",
    "rollout/waves": "waves",
    "share/tail": "tail",
    "share/train_tokens": "tokens",
    "bias/trained_length": "length",
}
"""Metric -> head of its column, without intervals; they are in the report and in --json."""


def comparison_table(
    policies: Sequence[str],
    *,
    estimates: Estimates,
    ratios: Estimates,
    best: Sequence[str],
    ranked: str = RANKED,
) -> RenderableType:
    """Return the comparison as a rich table of at most 80 columns, the baseline first.

    Parameters
    ----------
    policies : names, the baseline first.
    estimates, ratios : policy -> metric -> Estimate; ratios are policy over baseline.
    best : the policies that may be the best by ``ranked``; marked with a star.
    """
    columns = [
        metric
        for metric in CONSOLE_COLUMNS
        if any(metric in estimates.get(policy, {}) for policy in policies)
    ]
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("  policy", overflow="fold", max_width=24)
    table.add_column("relative cost", justify="right", no_wrap=True)
    for metric in columns:
        table.add_column(CONSOLE_COLUMNS[metric], justify="right", max_width=9)
    for name in policies:
        star = "*" if name in best else " "
        ratio = ratios.get(name, {}).get(ranked)
        shown = "1" if name == policies[0] else formats.cell(ratio)
        cells = [_short(estimates.get(name, {}).get(metric)) for metric in columns]
        table.add_row(Text(f"{star} {name}"), shown, *cells)
    note = Text(
        "* may be the best: simultaneous 99 % intervals cannot tell these apart\n"
        f"s/group: seconds for one trained group with right and wrong answers; relative\n"
        f"cost: the same, {policies[0]} = 1, 99 % interval\n"
        "tail: share of the step that waits for the longest answers\n"
        "tokens: share of the generated tokens that is trained\n"
        "length: of trained over all mixed groups; below 1 the policy prefers short ones",
        style="dim",
    )
    return Group(table, note)


def metric_table(
    metrics: Mapping[str, Estimate], *, title: str = "", meanings: Mapping[str, str] | None = None
) -> Table:
    """Return one row a metric with interval and unit, at most 80 columns.

    Parameters
    ----------
    meanings : metric -> what it is; shown as a last column where given.
    """
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(
        "metric", overflow="fold", min_width=min(36, max(map(len, metrics), default=0))
    )
    table.add_column("value [99 %]", justify="right", overflow="fold")
    table.add_column("unit", overflow="fold")
    if meanings:
        table.add_column("meaning", overflow="fold")
    for name, value in metrics.items():
        row = [Text(name), Text(formats.estimate(value)), Text(value.unit)]
        table.add_row(*row, *([Text(meanings.get(name, ""))] if meanings else []))
    return table


def _short(value: Estimate | None) -> str:
    if value is None:
        return formats.MISSING
    if value.unit == "share":
        return f"{100 * value.mean:.0f} %"
    return formats.number(value.mean)


def as_text(renderable: RenderableType, *, width: int = WIDTH) -> str:
    """Return what a terminal of ``width`` columns shows, without colours or trailing blanks."""
    buffer = io.StringIO()
    Console(file=buffer, width=width, color_system=None, highlight=False).print(renderable)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
