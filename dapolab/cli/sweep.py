"""A grid of scenarios: only points that the folder does not hold yet are run.

Every point is safe on disk as soon as it is done: stop with Ctrl-C and go on with the same command.
--seed N is added to the seeds of the file.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dapolab.cli.output import (
    console,
    emit_json,
    number,
    output_folder,
    print_files,
    print_notes,
    progress,
)
from dapolab.cli.parsing import whole_number

if TYPE_CHECKING:
    from dapolab.sweep import Swept

TAKES_SETTINGS = False
USAGE = "SWEEP.toml [options]"
EXAMPLE = """\
example:
  dapolab sweep sims/sweeps/refill-by-pass-rate.toml \\
      -o runs/refill
"""
_FAILURES_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("sweep", metavar="SWEEP.toml", help="base scenario, grid and seeds")
    parser.add_argument("-o", "--output", metavar="DIR", help="default: runs/NAME")
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="ray: a Ray cluster"
    )
    parser.add_argument(
        "--jobs", type=whole_number(least=1), metavar="J", help="processes (default: all cores)"
    )
    parser.add_argument(
        "--max-seconds", type=whole_number(least=1), metavar="S", help="begin no work after that"
    )


def run(options: argparse.Namespace) -> None:
    """Run what is missing and say where the table is."""
    from dapolab.store import atomic_write
    from dapolab.sweep import expand, plan, read_sweep, run_sweep

    path = Path(options.sweep)
    sweep = read_sweep(path)
    points = expand(sweep, folder=path.parent, first_seed=options.seed)
    folder = output_folder(options.output or f"runs/{sweep.name}")
    shards = folder / "shards"
    missing = plan(points, shards)
    with progress(f"sweep {sweep.name}", len(missing)) as tick:
        done = run_sweep(
            points,
            shards,
            missing,
            engine=options.engine,
            n_jobs=options.jobs,
            max_seconds=options.max_seconds,
            on_done=tick,
        )
    table = folder / f"{sweep.name}.parquet"
    atomic_write(table, done.table.to_parquet(index=False))
    if options.json:
        body = {
            "points": done.n_points,
            "computed": done.n_computed,
            "skipped": done.n_skipped,
            "failed": len(done.failures),
            "left": done.n_left,
            "seconds": done.seconds,
            "table": str(table),
        }
        emit_json("sweep", seed=options.seed, body=body)
        return
    _print(done, table)


def _print(done: "Swept", table: Path) -> None:
    out = console()
    out.print(
        f"{done.n_points} points: {done.n_computed} computed, {done.n_skipped} skipped (there "
        f"already), {len(done.failures)} with an error, {number(done.seconds)} s"
    )
    if done.n_computed > 1:
        out.print(f"processes were at work {done.efficiency:.0%} of the time")
    if done.n_left:
        out.print(f"{done.n_left} points left at --max-seconds: the same command goes on")
    failures = list(done.failures)
    more = len(failures) - _FAILURES_SHOWN
    print_notes(
        out,
        "ended with an error, kept in the table",
        [*failures[:_FAILURES_SHOWN], *([f"and {more} more"] if more > 0 else [])],
    )
    print_files(out, "wrote", [table])
