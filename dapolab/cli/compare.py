"""The same prompts and lengths under several collection policies: a table and a report.

Any setting can be laid over the file: --workload.sigma 1.1 --rollout.group_size 16
"""

import argparse
from pathlib import Path

from dapolab.cli.output import console, emit_json, progress
from dapolab.cli.scenarios import add_scenario_arguments, load_scenario


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
    from dapolab.compare import compare, select_collectors
    from dapolab.report.console import print_comparison

    scenario = load_scenario(options)
    collectors = select_collectors(scenario, options.collectors)
    total = len(collectors) * scenario.run.replications
    with progress(f"compare {len(collectors)} policies", total) as tick:
        done = compare(scenario, collectors, seed=options.seed, n_jobs=options.jobs, on_done=tick)
    if options.json:
        from dapolab.compare import document

        emit_json("compare", seed=options.seed, body=document(done))
    else:
        print_comparison(console(), done)
    if options.output:
        paths = write_report(done, Path(options.output), seed=options.seed)
        if not options.json:
            out = console()
            for path in paths:
                out.print(f"wrote {path}", soft_wrap=True)


def write_report(done: "object", folder: Path, *, seed: int) -> list[Path]:
    """Write report and JSON document; nothing appears unless everything was made."""
    raise NotImplementedError
