"""The best points of a sweep: a set, confirmed on fresh seeds.

Stage 1 keeps what the sweep's own numbers cannot tell from the best, stage 2 runs that again on
fresh seeds; only those numbers are shown. Less is better unless --maximise. --seed N starts the
fresh seeds (default: 1000 above the sweep's).
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dapolab.cli.output import console, emit_json, number, print_notes, progress
from dapolab.cli.parsing import whole_number
from dapolab.errors import ConfigError

if TYPE_CHECKING:
    from dapolab.sweep import Best, Point

TAKES_SETTINGS = False
USAGE = "SWEEP.toml [options]"
EXAMPLE = """\
example:
  dapolab best sims/sweeps/refill-by-pass-rate.toml \\
      -o runs/refill \\
      --subject-to 'rollout/effective_fill_ratio >= 1'
"""
_DEFAULT = "per_trained_group/step_seconds"
_ASIDE_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("sweep", metavar="SWEEP.toml", help="a sweep that was run")
    parser.add_argument("-o", "--output", metavar="DIR", help="its folder (default: runs/NAME)")
    parser.add_argument("--metric", default=_DEFAULT, help=f"default {_DEFAULT}")
    parser.add_argument("--maximise", action="store_true", help="more is better")
    parser.add_argument(
        "--subject-to", action="append", default=[], metavar="COND", help="'METRIC <= NUMBER'"
    )
    parser.add_argument("--pareto", metavar="METRIC", help="show the front of both metrics")
    parser.add_argument("--jobs", type=whole_number(least=1), metavar="J", help="processes")


def run(options: argparse.Namespace) -> None:
    """Rank the points in two stages."""
    from dapolab.sweep import Limit, expand, known_metric, read_sweep, read_table, select

    path = Path(options.sweep)
    sweep = read_sweep(path)
    metric = known_metric(options.metric)
    limits = [Limit.parse(text) for text in options.subject_to]
    pareto = known_metric(options.pareto) if options.pareto else None
    points = expand(sweep, folder=path.parent)
    shards = Path(options.output or f"runs/{sweep.name}") / "shards"
    table = read_table(points, shards)
    if not len(table):
        raise ConfigError(f"{shards.parent} holds no point of {path}: run dapolab sweep first")
    with ExitStack() as stack:
        tick = None

        def begin(n: int) -> None:
            nonlocal tick
            tick = stack.enter_context(progress("confirming on fresh seeds", n))

        done = select(
            points,
            table,
            metric=metric,
            maximise=options.maximise,
            subject_to=limits,
            pareto=pareto,
            fresh_seed=options.seed or max(point.seed for point in points) + 1000,
            n_jobs=options.jobs,
            on_start=begin,
            on_done=lambda: tick() if tick else None,
        )
    if options.json:
        emit_json("best", seed=options.seed, body=_body(done))
        return
    _print(done, points)


def _body(done: "Best") -> dict[str, object]:
    return {
        "metric": done.metric,
        "baseline": done.baseline,
        "best_set": list(done.best_set),
        "winner": done.winner,
        "confirmed": {
            name: {metric: estimate.to_json() for metric, estimate in found.items()}
            for name, found in done.confirmed.items()
        },
        "not_confirmed": list(done.not_confirmed),
        "pareto": list(done.pareto),
        "set_aside": dict(done.set_aside),
        "violated": list(done.violated),
    }


def _print(done: "Best", points: Sequence["Point"]) -> None:
    out = console()
    out.print(_sentence(done, len(points)), markup=False)
    chosen = [*done.best_set, *(name for name in done.confirmed if name not in done.best_set)]
    for name in chosen:
        mark = "*" if name in done.best_set else "-" if name in done.violated else " "
        out.print(f"\n{mark} {name}", markup=False)
        for metric, e in done.confirmed[name].items():
            words = f"× {done.baseline}" if metric == "ratio" else f"{e.unit}  {metric}"
            reach = (
                f" ({number(e.low)} to {number(e.high)})"
                if e.low is not None and e.high is not None
                else ""
            )
            out.print(f"    {number(e.mean)}{reach} {words}", markup=False)
    out.print(
        "\n* may be the best: the others are worse beyond 99 % intervals that hold\n"
        "together. Numbers are of fresh seeds; those of the sweep chose the set.",
        style="dim",
    )
    print_notes(out, "Pareto front (the sweep's own seeds)", done.pareto)
    print_notes(out, "broke a limit or failed on fresh seeds", done.violated)
    aside = [f"{name}: {reason}" for name, reason in done.set_aside.items()]
    more = len(aside) - _ASIDE_SHOWN
    tail = [f"and {more} more"] if more > 0 else []
    print_notes(out, "not ranked", [*aside[:_ASIDE_SHOWN], *tail])


def _sentence(done: "Best", n_points: int) -> str:
    if done.winner:
        return f"best of {n_points} points by {done.metric}: {done.winner}"
    if not done.best_set:
        return f"no point of {n_points} kept the limits on fresh seeds"
    text = f"{len(done.best_set)} points may be the best of {n_points} by {done.metric}"
    if done.not_confirmed:
        text += (
            f"; {len(done.not_confirmed)} more could not be told apart by the sweep and were not "
            "run again: raise run.replications"
        )
    return text
