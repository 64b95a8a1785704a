"""A grid of scenarios: only points that the folder does not hold yet are run."""

import argparse
from pathlib import Path

from dapolab.cli.output import console, emit_json, number, progress
from dapolab.scenario import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("sweep", metavar="SWEEP.toml")
    parser.add_argument("-o", "--output", metavar="DIR", help="default: runs/NAME")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--jobs", type=int, metavar="J", help="processes (default: all cores)")


def run(options: argparse.Namespace) -> None:
    """Run what is missing and say where the table is."""
    from dapolab.store import atomic_write
    from dapolab.sweep import expand, read_sweep, run_sweep

    if options.overrides:
        raise ConfigError(f"unknown argument {options.overrides[0]!r}; settings belong in the file")
    path = Path(options.sweep)
    sweep = read_sweep(path)
    points = expand(sweep, folder=path.parent)
    folder = Path(options.output or f"runs/{sweep.name}")
    with progress(f"sweep {sweep.name}", len(points)) as tick:
        done = run_sweep(
            points, folder / "shards", engine=options.engine, n_jobs=options.jobs, on_done=tick
        )
    table = folder / "table.parquet"
    atomic_write(table, done.table.to_parquet(index=False))
    if options.json:
        body = {
            "points": done.n_points,
            "computed": done.n_computed,
            "skipped": done.n_skipped,
            "failed": done.n_failed,
            "seconds": done.seconds,
            "table": str(table),
        }
        emit_json("sweep", seed=None, body=body)
        return
    out = console()
    out.print(
        f"{done.n_points} points: {done.n_computed} computed, {done.n_skipped} skipped, "
        f"{done.n_failed} failed, {number(done.seconds)} s"
    )
    out.print(f"table: {table}", soft_wrap=True)
