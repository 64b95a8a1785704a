"""The closed forms beside the simulator, wherever the scenario meets their assumptions.

Any setting can be laid over the file: --workload.kind independent --run.replications 100
"""

import argparse

from dapolab.cli.output import console, emit_json, progress
from dapolab.cli.scenarios import add_scenario_arguments, load_scenario


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_scenario_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE.json", help="write the JSON document there")


def run(options: argparse.Namespace) -> None:
    """Print theory, simulator and whether they agree."""
    import json
    from pathlib import Path

    from rich.table import Table
    from rich.text import Text

    from dapolab.cli.output import envelope, number
    from dapolab.compare import compare
    from dapolab.compare.against_theory import STANDARD_ERRORS, check_against_theory, document
    from dapolab.store import atomic_write

    scenario = load_scenario(options)
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
    if options.output:
        whole = envelope("theory", seed=options.seed) | body
        atomic_write(Path(options.output), json.dumps(whole, allow_nan=False, indent=1))
    if options.json:
        emit_json("theory", seed=options.seed, body=body)
        return
    out = console()
    table = Table(box=None, pad_edge=False)
    for head in ("quantity", "theory", "simulator (99 %)", "", "source"):
        table.add_column(head, overflow="fold")
    for row in checked.rows:
        sim = row.simulator
        interval = f"{number(sim.mean)} ({number(sim.low or 0)}, {number(sim.high or 0)})"
        mark = "agrees" if row.agrees else "DIFFERS"
        cells = (row.name, number(row.theory), interval, mark, row.source)
        table.add_row(*map(Text, cells))
    out.print(f"{scenario.name}: {name}, {scenario.run.replications} replications")
    out.print(table)
    for reason in checked.left_out:
        out.print(f"left out: {reason}")
    out.print(f"agrees: the theory lies within {STANDARD_ERRORS} standard errors of the simulator.")
