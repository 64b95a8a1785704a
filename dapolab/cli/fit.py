"""A real rollout dump -> a workload, with goodness of fit and plots.

Reads CSV, JSONL, Parquet (any column names, --columns) and the dumps of verl, TRL, prime-rl,
verifiers, tinker, slime, AReaL, NeMo RL, open-instruct, ms-swift and 06-dapo.
What the file cannot tell stays unknown: the parameters it does not identify are listed.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapolab import __version__
from dapolab.cli.output import (
    command_line,
    console,
    emit_json,
    json_text,
    output_file,
    print_files,
    print_notes,
)
from dapolab.cli.parsing import positive, whole_number
from dapolab.scenario import ConfigError

if TYPE_CHECKING:
    from dapolab.records import Records
    from dapolab.workload.fit import FittedWorkload

TAKES_SETTINGS = False
USAGE = "ROLLOUTS [options]"
EXAMPLE = """\
examples:
  dapolab fit rollouts/ --cap 8192 --chars-per-token 3.6 \\
      -o mine.toml
  dapolab fit table.csv --columns n_tokens=len,correct=ok
  dapolab fit rollouts/ --drift -o drift.toml
"""


FEWEST_DRAWS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    count = whole_number(least=1)
    parser.add_argument("rollouts", metavar="ROLLOUTS", help="file or folder of rollouts")
    parser.add_argument(
        "-o", "--output", metavar="W.toml", help="write workload, draws and report there"
    )
    parser.add_argument("--format", default="auto", help="reader; default: decided from the file")
    parser.add_argument(
        "--columns", default="", metavar="ROLE=NAME,...", help="e.g. n_tokens=est_tokens"
    )
    parser.add_argument(
        "--where", default="", metavar="COLUMN=VALUE,...", help="only rows with these values"
    )
    parser.add_argument(
        "--selection",
        choices=("all", "kept_mixed", "kept_first_finished"),
        help="which candidate groups the file holds",
    )
    parser.add_argument("--cap", type=count, metavar="N", help="the run's cap on response tokens")
    counting = parser.add_mutually_exclusive_group()
    counting.add_argument("--tokenizer", metavar="DIR", help="count tokens of text dumps with it")
    counting.add_argument(
        "--chars-per-token", type=positive, metavar="X", help="a cheaper estimate of tokens"
    )
    parser.add_argument(
        "--correct-threshold", type=float, metavar="X", help="an answer is right above this"
    )
    parser.add_argument(
        "--group-size", type=count, metavar="G", help="samples behind a stored pass rate"
    )
    parser.add_argument("--steps", metavar="FIRST:LAST", help="training steps to fit")
    parser.add_argument(
        "--drift",
        action="store_true",
        help="how pass rates and lengths move with the training step, in place of one law",
    )
    parser.add_argument(
        "--candidates",
        metavar="RIGHT,WRONG",
        help="all-right and all-wrong groups that a kept_mixed file leaves out",
    )
    parser.add_argument(
        "--draws",
        type=whole_number(least=0),
        default=400,
        help="bootstrap draws (default 400; 0: no intervals)",
    )
    parser.add_argument("--source", default="", help="where the rollouts come from, for the record")


def run(options: argparse.Namespace) -> None:
    """Read, fit, print, and write what was asked for."""
    if 0 < options.draws < FEWEST_DRAWS:
        raise ConfigError(
            f"--draws {options.draws}: a 99 % interval needs at least {FEWEST_DRAWS} (0: none)"
        )
    from dapolab.records import ReadOptions, read_records
    from dapolab.workload.fit import Degenerate, fit_workload

    counts = _numbers(options.candidates, ",", "--candidates") if options.candidates else None
    window = _numbers(options.steps, ":", "--steps") if options.steps else None
    target = output_file(options.output, suffix=".toml") if options.output else None
    shown = sys.stderr.isatty()
    records = read_records(
        Path(options.rollouts),
        options=ReadOptions(
            format=options.format,
            columns=_pairs(options.columns, "--columns"),
            where=_pairs(options.where, "--where"),
            selection=options.selection,
            cap_tokens=options.cap,
            tokenizer=Path(options.tokenizer) if options.tokenizer else None,
            chars_per_token=options.chars_per_token,
            correct_threshold=options.correct_threshold,
            group_size=options.group_size,
            progress=shown,
        ),
    )
    if options.drift:
        from dapolab.cli.fit_drift import run_drift

        run_drift(records, target, options, steps=window)
        return
    fitted = fit_workload(
        records.table,
        selection=records.selection,
        cap_tokens=records.cap_tokens,
        steps=window,
        group_size=options.group_size,
        degenerate=Degenerate(*counts) if counts else None,
        n_draws=options.draws,
        seed=options.seed,
        source=options.source or Path(options.rollouts).name,
        progress=shown,
    )
    body = _body(records, fitted)
    paths = _write(records, fitted, body, target, options) if target else []
    if options.json:
        emit_json("fit", seed=options.seed, body=body)
        return
    out = console()
    _print(out, records, fitted)
    if not paths:
        out.print("\n-o W.toml writes the workload and a report with figures", style="dim")
    print_files(out, "wrote", paths)


def _pairs(text: str, option: str) -> dict[str, str]:
    pairs = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{option}: {part!r} should look like name=value")
        pairs[key.strip()] = value.strip()
    return pairs


def _numbers(text: str, sign: str, option: str) -> tuple[int, int]:
    try:
        first, last = (int(part) for part in text.split(sign))
    except ValueError:
        raise ConfigError(f"{option}: {text!r} should be two whole numbers, 3{sign}7") from None
    return first, last


def _metric(
    value: float, low: float | None, high: float | None, n: int, unit: str
) -> dict[str, Any]:
    return {"mean": value, "low": low, "high": high, "n": n, "unit": unit}


def _body(records: "Records", fitted: "FittedWorkload") -> dict[str, Any]:
    """Return DESIGN.md §8's JSON body of ``fit``."""
    return {
        "workload": fitted.workload.model_dump(mode="json", exclude_defaults=True)
        | {"kind": "joint"},
        "selection": fitted.selection,
        "parameters": {
            name: _metric(e.value, e.low, e.high, fitted.n_prompts, e.unit)
            for name, e in fitted.estimates.items()
        },
        "goodness": _goodness(fitted),
        "not_identified": [{"name": n, "reason": why} for n, why in fitted.not_identified],
        "warnings": [*records.notes, *fitted.warnings],
    }


def _print(out: Any, records: "Records", fitted: "FittedWorkload") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dapolab.report import formats
    from dapolab.stats import Estimate

    out.print(
        f"{fitted.n_responses:,} responses of {fitted.n_prompts:,} prompts, groups of "
        f"{fitted.group_size}, selection {fitted.selection}"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("parameter", overflow="fold")
    table.add_column("value \\[99 %]", overflow="fold", justify="right")
    table.add_column("unit", overflow="fold")
    for name, e in fitted.estimates.items():
        value = formats.estimate(Estimate(e.value, e.low, e.high, fitted.n_prompts, e.unit))
        table.add_row(Text(name), Text(value), Text("" if e.unit == "share" else e.unit))
    out.print(table)
    if fitted.goodness:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("on held-out prompts", overflow="fold")
        table.add_column("observed", overflow="fold", justify="right")
        table.add_column("predicted", overflow="fold", justify="right")
        table.add_column("verdict", overflow="fold")
        for g in fitted.goodness:
            row = (g.quantity, f"{g.observed:.4g}", f"{g.predicted:.4g}", g.verdict)
            table.add_row(*map(Text, row))
        out.print(table)
    reasons = [f"{name}: {why}" for name, why in fitted.not_identified]
    print_notes(out, "not identified by these data", reasons)
    print_notes(out, "warnings", fitted.warnings)
    print_notes(out, "found while reading", records.notes)


def _write(
    records: "Records",
    fitted: "FittedWorkload",
    body: dict[str, Any],
    target: Path,
    options: argparse.Namespace,
) -> list[Path]:
    """Write workload, draws, JSON and report; the workload last, so it never stands alone."""
    from dapolab.report import render
    from dapolab.store import atomic_write
    from dapolab.workload.fit import draws_text, to_toml

    document = _report(records, fitted, options)
    page = render(document, target.parent, stem=target.stem)[0]
    whole = json_text("fit", seed=options.seed, body=body)
    files = [page, atomic_write(target.with_suffix(".json"), whole)]
    draws = target.with_suffix(".draws.csv")
    if len(fitted.draws):
        files.append(atomic_write(draws, draws_text(fitted)))
    text = to_toml(fitted, draws_file=draws.name if len(fitted.draws) else None)
    return [atomic_write(target, text), *files]


def _report(records: "Records", fitted: "FittedWorkload", options: argparse.Namespace) -> Any:
    import pandas as pd

    from dapolab.report.fit_report import fit_document
    from dapolab.stats import Estimate

    said = [
        f"{verdict}: {', '.join(names)}"
        for verdict in ("fails", "undecided", "holds")
        if (names := [g.quantity for g in fitted.goodness if g.verdict == verdict])
    ]
    lead = (
        f"{fitted.n_responses:,} responses of {fitted.n_prompts:,} prompts. On held-out prompts "
        + ("; ".join(said) if said else "nothing could be checked")
        + "."
    )
    return fit_document(
        title=f"Workload fitted to {Path(options.rollouts).name}",
        lead=lead,
        figures=fitted.figures,
        parameters={
            name: Estimate(e.value, e.low, e.high, fitted.n_prompts, e.unit)
            for name, e in fitted.estimates.items()
        },
        goodness=pd.DataFrame(_goodness(fitted)) if fitted.goodness else None,
        not_identified=fitted.not_identified,
        loop_bounds=fitted.loop_bounds,
        notes=[*records.notes, *fitted.warnings],
        provenance={
            "command": command_line(options),
            "version": __version__,
            "seed": str(options.seed),
        },
    )


def _goodness(fitted: "FittedWorkload") -> list[dict[str, Any]]:
    return [
        {
            "quantity": g.quantity,
            "unit": g.unit,
            "observed": g.observed,
            "predicted": g.predicted,
            "low": g.low,
            "high": g.high,
            "tolerance": g.tolerance,
            "verdict": g.verdict,
        }
        for g in fitted.goodness
    ]
