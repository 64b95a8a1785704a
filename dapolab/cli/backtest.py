"""Calibrate on one run, change settings, predict another; judged where the other was measured.

From the log of a run without a filter it tells what switching dynamic sampling on will cost:
waves, rollout, step and update seconds, tokens. Law, learner and workload come from LOG_A,
everything else from SCENARIO_B; a learner constant that SCENARIO_B sets to 0 stays 0.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapolab.cli.output import console, emit_json, print_lines, print_notes
from dapolab.cli.parsing import whole_number
from dapolab.cli.step_logs import add_log_arguments, fixed_values, law_of, read_steps

if TYPE_CHECKING:
    from dapolab.fidelity.backtest import Backtest

TAKES_SETTINGS = True
USAGE = "--calibrate LOG --predict B.toml"
EXAMPLE = """\
example:
  dapolab backtest --calibrate grpo.log --polled 2 \\
      --shares .16,.23 \\
      --predict dapo.toml --against dapo.log
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--calibrate", metavar="LOG_A", required=True, help="log of a real run")
    parser.add_argument(
        "--predict", metavar="SCENARIO_B.toml", required=True, help="the run to predict"
    )
    parser.add_argument("--against", metavar="LOG_B", help="log of the predicted run")
    parser.add_argument(
        "--scenario-a",
        metavar="A.toml",
        help="[hardware] and [rollout] of LOG_A, where they differ from SCENARIO_B's",
    )
    parser.add_argument("--run", metavar="NAME", help="which run of LOG_A")
    parser.add_argument("--against-run", metavar="NAME", help="which run of LOG_B")
    add_log_arguments(parser)
    parser.add_argument(
        "--replications", type=whole_number(least=10), default=40, help="default 40"
    )


def run(options: argparse.Namespace) -> None:
    """Calibrate, predict, compare, print."""
    from dapolab.fidelity.backtest import backtest
    from dapolab.fidelity.calibrate import short_fixed
    from dapolab.scenario import load, parse_overrides

    scenario = load(options.predict, parse_overrides(options.settings))
    other = load(options.scenario_a) if options.scenario_a else scenario
    log_a = read_steps(Path(options.calibrate), options)
    against = None
    if options.against:
        beside = argparse.Namespace(
            **(vars(options) | {"run": options.against_run, "shares": None})
        )
        against = read_steps(Path(options.against), beside)
    found = backtest(
        log_a,
        scenario,
        against=against,
        hardware_a=other.hardware,
        rollout_a=other.rollout,
        polled_s=options.polled,
        fixed=short_fixed(fixed_values(options.fix)),
        physics=law_of(options.law),
        replications=options.replications,
        seed=options.seed,
    )
    if options.json:
        emit_json("backtest", seed=options.seed, body=found.to_json())
        return
    _print(found, options)


def _print(found: "Backtest", options: argparse.Namespace) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dapolab.report import formats

    out = console()
    name_a, name_b = Path(options.calibrate).name, Path(options.predict).name
    out.print(Text(f"calibrated on {name_a}, predicting {found.n_steps} steps of {name_b}"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("mean of a step", overflow="fold")
    for head in ("predicted \\[90 %]", "measured", "error"):
        table.add_column(head, justify="right", overflow="fold")
    for row in found.rows:
        decimals = formats.decimals_for(row.predicted, half_width=(row.high - row.low) / 2)
        low, high = (formats.number(end, decimals=decimals) for end in (row.low, row.high))
        predicted = f"{formats.number(row.predicted, decimals=decimals)} [{low}, {high}]"
        measured = "" if row.measured is None else formats.number(row.measured, decimals=decimals)
        error = "" if row.error_share is None else f"{row.error_share:+.1%}"
        table.add_row(Text(row.quantity), Text(predicted), Text(measured), Text(error))
    out.print(table)
    print_lines(out, list(_coverage(found)))
    lost = [f"{name}: {why}" for name, why in found.calibration.not_identified]
    print_notes(out, "not identified by LOG_A", lost)
    print_notes(out, "to know", found.notes)


def _coverage(found: "Backtest") -> Any:
    inside, judged = found.coverage()
    share, n = found.step_coverage()
    if judged:
        yield f"{inside} of {judged} run means lie in their 90 % intervals."
    if n:
        yield f"{share:.0%} of {n} single-step values lie in theirs."
