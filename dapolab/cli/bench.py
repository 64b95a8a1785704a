"""Speed ratios, each measured in one run; rates are printed, nothing is gated."""

import argparse

from dapolab.cli.output import console, emit_json, number, progress

TAKES_SETTINGS = False
USAGE = "[options]"
EXAMPLE = """\
example:
  dapolab bench --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options: none."""


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    from rich import box
    from rich.table import Table

    from dapolab.bench import benchmarks

    with progress("benchmarks", 6) as tick:
        rows = benchmarks(on_done=tick)
    if options.json:
        emit_json("bench", seed=None, body={"benchmarks": rows})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("benchmark", "value", "unit", "against", "ratio"):
        table.add_column(head, justify="right" if head in ("value", "ratio") else "left")
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{float(row['ratio']):,.3g}"
        value = number(float(row["value"] or 0))
        table.add_row(str(row["name"]), value, str(row["unit"]), str(row["against"] or ""), ratio)
    console().print(table)
