"""The same prompts and lengths under several collection policies: a table and a report.

Any setting of the file can be changed: --workload.sigma 1.1 --rollout.group_size 16
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dapolab import __version__
from dapolab.cli.output import (
    command_line,
    console,
    emit_json,
    json_text,
    output_folder,
    print_files,
    print_notes,
    progress,
)
from dapolab.cli.scenarios import USAGE, add_scenario_arguments, headline, load_scenario

if TYPE_CHECKING:
    from dapolab.compare import Comparison

TAKES_SETTINGS = True
EXAMPLE = """\
example:
  dapolab compare sims/scenarios/small.toml \\
      --collectors rounds,streaming -o reports
"""
RANKED = "per_trained_group/seconds"
__all__ = ["EXAMPLE", "TAKES_SETTINGS", "USAGE", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_scenario_arguments(parser)
    parser.add_argument(
        "--collectors", metavar="A,B", help="kinds, presets, names of [alternatives], or all"
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
    folder = output_folder(options.output) if options.output else None
    total = len(collectors) * scenario.run.replications
    with progress(f"compare {len(collectors)} policies", total) as tick:
        done = compare(scenario, collectors, seed=options.seed, n_jobs=options.jobs, on_done=tick)
    body = document(done)
    paths = _write(done, body, folder, options) if folder else []
    if options.json:
        emit_json("compare", seed=options.seed, body=body)
        return
    out = console()
    out.print(headline(scenario), markup=False)
    out.print(
        comparison_table(
            done.policies,
            estimates=done.estimates,
            ratios=done.ratios,
            best=done.best.get(RANKED, ()),
        )
    )
    print_notes(out, "to know", done.notes)
    if not paths:
        out.print("\n-o DIR writes the report: intervals, figures, how to read them", style="dim")
    print_files(out, "wrote", paths)


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
    whole = json_text("compare", seed=options.seed, body=body)
    return [*files[:2], atomic_write(folder / f"{scenario.name}.json", whole)]
