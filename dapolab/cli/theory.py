"""The closed forms beside the simulator, wherever the scenario meets their assumptions.

Any setting of the file can be changed: --workload.pass_rate.p_mixed 0.3 --replications 30
"""

import argparse
import re
from typing import TYPE_CHECKING

from dapolab.cli.output import (
    console,
    emit_json,
    json_text,
    number,
    output_file,
    print_files,
    print_notes,
    progress,
)
from dapolab.cli.scenarios import USAGE, add_scenario_arguments, headline, load_scenario

if TYPE_CHECKING:
    from rich.table import Table

    from dapolab.compare.against_theory import AgainstTheory, Checked

TAKES_SETTINGS = True
EXAMPLE = """\
example:
  dapolab theory sims/scenarios/p1-seed-configuration.toml \\
      --replications 30
"""
__all__ = ["EXAMPLE", "TAKES_SETTINGS", "USAGE", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_scenario_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE.json", help="write the JSON document there")


def run(options: argparse.Namespace) -> None:
    """Print theory, simulator and whether they agree."""
    from dapolab.compare import compare
    from dapolab.compare.against_theory import STANDARD_ERRORS, check_against_theory, document
    from dapolab.store import atomic_write

    scenario = load_scenario(options)
    target = output_file(options.output) if options.output else None
    name = scenario.collector.kind
    with progress("simulate", scenario.run.replications) as tick:
        done = compare(
            scenario,
            {name: scenario.collector},
            seed=options.seed,
            n_jobs=options.jobs,
            on_done=tick,
        )
    checked = check_against_theory(done)
    body = document(checked)
    if target:
        atomic_write(target, json_text("theory", seed=options.seed, body=body))
    if options.json:
        emit_json("theory", seed=options.seed, body=body)
        return
    out = console()
    out.print(f"{headline(scenario)}, policy {name}", markup=False)
    if checked.rows:
        out.print(_table(checked))
        n_agree = sum(row.agrees for row in checked.rows)
        out.print(
            f"\n{n_agree} of {len(checked.rows)} agree: the theory lies within {STANDARD_ERRORS} "
            "standard errors of the simulator. Formulas are numbered as in dapolab/theory."
        )
    print_notes(out, "without a closed form here", checked.left_out)
    print_files(out, "wrote", [target] if target else [])


def _table(checked: "AgainstTheory") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("quantity", overflow="fold", min_width=20)
    table.add_column("theory", overflow="fold", justify="right")
    table.add_column("simulator \\[99 %]", overflow="fold", justify="right")
    table.add_column("", overflow="fold")
    table.add_column("formula", overflow="fold")
    for row in checked.rows:
        mark = "agrees" if row.agrees else "DIFFERS"
        table.add_row(
            *map(
                Text, (row.name.removeprefix("rollout/"), *_values(row), mark, _formula(row.source))
            )
        )
    return table


def _values(row: "Checked") -> tuple[str, str]:
    """Return theory and simulator in the same digits, those that the simulator supports."""
    from dapolab.report import formats

    sim = row.simulator
    scale, suffix = (100.0, " %") if row.unit == "share" else (1.0, "")
    decimals = None
    if sim.low is not None and sim.high is not None and sim.low < sim.high:
        half_width = scale * (sim.high - sim.low) / 2
        decimals = formats.decimals_for(scale * sim.mean, half_width=half_width)
    value = scale * row.theory
    theory = number(value) if decimals is None else formats.number(value, decimals=decimals)
    return theory + suffix, formats.estimate(sim)


def _formula(source: str) -> str:
    return ", ".join(re.findall(r"\b[A-Z]\d+\b", source)) or source
