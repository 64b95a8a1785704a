"""One policy, many steps: what a step costs, where its time goes, a forecast of the whole run.

Any setting of the file can be changed: --workload.sigma 1.1 --collector.kind rounds
--rollout.overlong none
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dapolab.cli.output import (
    command_line,
    console,
    emit_json,
    output_file,
    output_folder,
    print_files,
    print_lines,
    print_notes,
    progress,
)
from dapolab.cli.scenarios import USAGE, add_scenario_arguments, headline, load_scenario
from dapolab.scenario import Scenario

if TYPE_CHECKING:
    from dapolab.compare import Comparison, Forecast

TAKES_SETTINGS = True
EXAMPLE = """\
example:
  dapolab simulate sims/scenarios/small.toml \\
      --rollout.group_size 16 --steps 5
"""
__all__ = ["EXAMPLE", "TAKES_SETTINGS", "USAGE", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_scenario_arguments(parser)
    parser.add_argument("--all", action="store_true", help="print every metric, by its name")
    parser.add_argument("--trace", metavar="OUT.json", help="write three steps for ui.perfetto.dev")
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="write every step there (Parquet, manifest)"
    )


def run(options: argparse.Namespace) -> None:
    """Simulate the scenario's own policy."""
    from dapolab.compare import document, forecast

    scenario = load_scenario(options)
    trace = output_file(options.trace, option="--trace") if options.trace else None
    folder = output_folder(options.output) if options.output else None
    done = _simulate(scenario, options)
    name = scenario.collector.kind
    ahead = forecast(done, name, with_fit=_with_fit(scenario, options))
    if trace:
        _write_trace(scenario, trace, seed=options.seed)
    if folder:
        _write(done, folder, options=options)
    if options.json:
        body = document(done) | {"baseline": None, "forecast": ahead.to_json()}
        emit_json("simulate", seed=options.seed, body=body)
        return
    _print(done, ahead, everything=options.all)
    out = console()
    if folder:
        print_files(out, "wrote", [folder])
    if trace:
        print_files(out, "wrote", [f"{trace} (open it at ui.perfetto.dev)"])


def _simulate(scenario: Scenario, options: argparse.Namespace) -> "Comparison":
    from dapolab.compare import compare

    name = scenario.collector.kind
    with progress(f"simulate {name}", scenario.run.replications) as tick:
        return compare(
            scenario,
            {name: scenario.collector},
            seed=options.seed,
            n_jobs=options.jobs,
            on_done=tick,
        )


def _print(done: "Comparison", ahead: "Forecast", *, everything: bool) -> None:
    from dapolab.cli.metrics import ROOM_FOR_INTERVALS, grouped
    from dapolab.report.console import metric_table

    out = console()
    name = done.baseline
    out.print(f"{headline(done.scenario)}, policy {name}", markup=False)
    estimates = done.estimates[name]
    out.print(metric_table(estimates) if everything else grouped(estimates, width=out.width))
    print_lines(out, [ahead.sentence()])
    print_notes(out, "to know", done.notes)
    if not everything:
        narrow = out.width < ROOM_FOR_INTERVALS
        means = "means (a wider terminal shows intervals)" if narrow else "means [99 % interval]"
        out.print(f"\n{means}; --all prints every metric", style="dim", markup=False)


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


def _write_trace(scenario: Scenario, path: Path, *, seed: int) -> None:
    from dapolab.sim.run import simulate
    from dapolab.sim.trace import perfetto
    from dapolab.store import atomic_write

    traced = simulate(scenario, seed=seed, record_steps=min(scenario.run.steps, 3))
    atomic_write(path, json.dumps(perfetto(traced, name=scenario.name), allow_nan=False))


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
