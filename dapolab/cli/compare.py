"""The same prompts and lengths under several collection policies: a table and a report.

Any setting can be laid over the file: --workload.sigma 1.1 --rollout.group_size 16
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dapolab import __version__
from dapolab.cli.output import command_line, console, emit_json, envelope, print_lines, progress
from dapolab.cli.scenarios import add_scenario_arguments, load_scenario

if TYPE_CHECKING:
    from dapolab.compare import Comparison

RANKED = "per_trained_group/seconds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_scenario_arguments(parser)
    parser.add_argument(
        "--collectors", metavar="A,B", help="kinds or names of [alternatives], or all"
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="write NAME.md, .html, .json and figures there"
    )


def run(options: argparse.Namespace) -> None:
    """Compare the policies and say where the report is."""
    from dapolab.compare import compare, document, select_collectors
    from dapolab.report.console import comparison_table

    scenario = load_scenario(options)
    collectors = select_collectors(scenario, options.collectors)
    total = len(collectors) * scenario.run.replications
    with progress(f"compare {len(collectors)} policies", total) as tick:
        done = compare(scenario, collectors, seed=options.seed, n_jobs=options.jobs, on_done=tick)
    body = document(done)
    paths = _write(done, body, Path(options.output), options) if options.output else []
    if options.json:
        emit_json("compare", seed=options.seed, body=body)
        return
    out = console()
    out.print(
        f"{scenario.name}: {scenario.run.replications} replications of {scenario.run.steps} steps, "
        f"B={scenario.rollout.groups_per_step}, G={scenario.rollout.group_size}, "
        f"cap {scenario.rollout.cap_tokens}"
    )
    out.print(
        comparison_table(
            done.policies,
            estimates=done.estimates,
            ratios=done.ratios,
            best=done.best.get(RANKED, ()),
        )
    )
    print_lines(out, done.notes)
    print_lines(out, [f"wrote {path}" for path in paths])


def _write(
    done: "Comparison", body: dict[str, object], folder: Path, options: argparse.Namespace
) -> list[Path]:
    """Write JSON document, report and figures; returns the files that a reader opens."""
    from dapolab.report import render
    from dapolab.report.comparison import ComparisonTables, comparison_document
    from dapolab.store import atomic_write

    scenario = done.scenario
    tables = ComparisonTables(
        policies=done.policies,
        steps=done.steps,
        estimates=done.estimates,
        ratios=done.ratios,
        best=done.best,
        waves_distribution=done.waves_distribution,
        responses=done.responses,
        waves=done.waves,
        notes=done.notes,
    )
    provenance = {
        "command": command_line(options),
        "version": __version__,
        "seed": str(options.seed),
        "scenario fingerprint": scenario.fingerprint(),
        "replications × steps": f"{scenario.run.replications} × {scenario.run.steps}",
    }
    if scenario.source:
        provenance["source"] = scenario.source
    title = f"Collection policies on {scenario.name}"
    page = comparison_document(tables, title=title, provenance=provenance)
    files = render(page, folder, stem=scenario.name)
    whole = json.dumps(envelope("compare", seed=options.seed) | body, allow_nan=False, indent=1)
    return [*files[:2], atomic_write(folder / f"{scenario.name}.json", whole + "\n")]
