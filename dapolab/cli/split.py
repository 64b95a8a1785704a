"""How to split GPUs between rollout and training, and what that gains over taking turns.

Every split is run, those that may be the best are run again on fresh seeds. The learner's seconds
a token scale with its GPUs (learner.measured_on_gpus: for how many they hold). A synchronous
scenario is split one step off; --learner.schedule.kind fully_async splits it asynchronously.
"""

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from dapolab.cli.output import console, emit_json, number, print_notes, progress
from dapolab.cli.parsing import whole_number
from dapolab.cli.scenarios import USAGE, add_scenario_arguments, headline, load_scenario

if TYPE_CHECKING:
    from dapolab.compare.split import SplitSearch

TAKES_SETTINGS = True
EXAMPLE = """\
example:
  dapolab split sims/scenarios/small-async.toml --gpus 8
"""
__all__ = ["EXAMPLE", "TAKES_SETTINGS", "USAGE", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_scenario_arguments(parser)
    parser.add_argument(
        "--gpus",
        type=whole_number(least=2),
        metavar="N",
        help="GPUs to split (default: those of the scenario)",
    )


def run(options: argparse.Namespace) -> None:
    """Search the splits and print the best."""
    from dapolab.compare.split import best_split, document
    from dapolab.sim.run import gpus_held

    scenario = load_scenario(options)
    total = options.gpus or gpus_held(scenario)
    with ExitStack() as stack:
        tick = None

        def begin(stage: str, n: int) -> None:
            nonlocal tick
            tick = stack.enter_context(progress(stage, n))

        found = best_split(
            scenario,
            total,
            seed=options.seed,
            n_jobs=options.jobs,
            on_start=begin,
            on_done=lambda: tick() if tick else None,
        )
    if options.json:
        emit_json("split", seed=options.seed, body={"scenario": scenario.name} | document(found))
        return
    out = console()
    out.print(f"{headline(scenario)}, {total} GPUs", markup=False)
    _print(found)
    print_notes(out, "to know", scenario.assumptions)


def _print(found: "SplitSearch") -> None:
    from dapolab.compare.split import COLOCATED, COST
    from dapolab.report.console import metric_table

    out = console()
    for name, metrics in found.confirmed.items():
        star = "* " if name in found.best_set else "  "
        out.print(f"\n{star}{name}", markup=False)
        out.print(metric_table(metrics))
    others = [
        f"{name}: {number(e.mean)} s"
        for name, e in found.screened.items()
        if name not in found.confirmed
    ]
    out.print(
        "* may be the best: intervals that hold together cannot tell these apart.\n"
        f"{COST}: of fresh seeds, without the pipeline's start and end; {COLOCATED}:\n"
        "rollout and training take turns on all GPUs.",
        style="dim",
        markup=False,
    )
    print_notes(out, "worse beyond the intervals, seconds a trained group", others)
