"""One policy, many steps: metrics, a forecast of the whole run, an optional Perfetto trace.

Any setting can be laid over the file: --workload.sigma 1.1 --collector.kind rounds --run.steps 50
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dapolab.cli.output import command_line, console, emit_json, print_lines, progress
from dapolab.cli.scenarios import add_scenario_arguments, load_scenario
from dapolab.scenario import Scenario

if TYPE_CHECKING:
    from dapolab.compare import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_scenario_arguments(parser)
    parser.add_argument("--trace", metavar="OUT.json", help="write replication 0 for Perfetto")
    parser.add_argument("-o", "--output", metavar="DIR", help="write tables and manifest there")


def run(options: argparse.Namespace) -> None:
    """Simulate the scenario's own policy."""
    from dapolab.compare import compare, document, forecast
    from dapolab.report.console import metric_table
    from dapolab.store import atomic_write

    scenario = load_scenario(options)
    name = scenario.collector.kind
    with progress(f"simulate {name}", scenario.run.replications) as tick:
        done = compare(
            scenario,
            {name: scenario.collector},
            seed=options.seed,
            n_jobs=options.jobs,
            on_done=tick,
        )
    ahead = forecast(done, name, with_fit=_with_fit(scenario, options))
    if options.trace:
        from dapolab.sim.run import simulate
        from dapolab.sim.trace import perfetto

        traced = simulate(scenario, seed=options.seed, record_steps=min(scenario.run.steps, 3))
        trace = json.dumps(perfetto(traced, name=scenario.name), allow_nan=False)
        atomic_write(Path(options.trace), trace)
    if options.output:
        _write(done, Path(options.output), options=options)
    if options.json:
        body = document(done) | {"baseline": None, "forecast": ahead.to_json()}
        emit_json("simulate", seed=options.seed, body=body)
        return
    out = console()
    title = f"{scenario.name}: {name}, {scenario.run.replications} replications"
    shown = {k: e for k, e in done.estimates[name].items() if e.mean or "time/" not in k}
    out.print(metric_table(shown, title=title))
    out.print(ahead.sentence())
    print_lines(out, done.notes)
    if options.trace:
        print_lines(out, [f"trace: {options.trace} (open at ui.perfetto.dev)"])


def _with_fit(scenario: Scenario, options: argparse.Namespace) -> "Comparison | None":
    """Run again with the fit's parameter draws, where the workload has them."""
    from dapolab.compare import compare, scenarios_with_draws

    drawn = scenarios_with_draws(scenario)
    if drawn is None:
        return None
    name = scenario.collector.kind
    with progress("with the fit's uncertainty", scenario.run.replications) as tick:
        return compare(
            scenario,
            {name: scenario.collector},
            seed=options.seed,
            n_jobs=options.jobs,
            on_done=tick,
            scenario_of=drawn,
        )


def _write(done: "Comparison", folder: Path, *, options: argparse.Namespace) -> None:
    from dapolab.store import manifest, write_run

    scenario = done.scenario
    facts = manifest(
        command=command_line(options).split(),
        seed=options.seed,
        fingerprint=scenario.fingerprint(),
        config=scenario.model_dump(mode="json"),
    )
    tables = {"steps": done.steps, "groups": done.groups, "waves": done.waves}
    write_run(folder, manifest=facts, tables={k: t for k, t in tables.items() if len(t.columns)})
