"""A real rollout dump -> a workload, with goodness of fit and plots.

Reads CSV, JSONL, Parquet (any column names, --columns), verl dumps, prime-rl, verifiers, tinker.
What the file cannot tell stays unknown: the parameters it does not identify are listed.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapolab import __version__
from dapolab.cli.output import command_line, console, emit_json, envelope, print_lines
from dapolab.scenario import ConfigError

if TYPE_CHECKING:
    from dapolab.records import Records
    from dapolab.workload.fit import FittedWorkload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("rollouts", metavar="ROLLOUTS", help="file or folder of rollouts")
    parser.add_argument(
        "-o", "--output", metavar="WORKLOAD.toml", help="write workload, draws and report there"
    )
    parser.add_argument("--format", default="auto", help="reader; default: decided from the file")
    parser.add_argument(
        "--columns", default="", metavar="ROLE=NAME,…", help="e.g. n_tokens=est_tokens"
    )
    parser.add_argument(
        "--where", default="", metavar="COLUMN=VALUE,…", help="only rows with these values"
    )
    parser.add_argument(
        "--selection",
        choices=("all", "kept_mixed", "kept_first_finished"),
        help="which candidates the file holds",
    )
    parser.add_argument("--cap", type=int, metavar="N", help="the run's cap on response tokens")
    counting = parser.add_mutually_exclusive_group()
    counting.add_argument("--tokenizer", metavar="DIR", help="count tokens of text dumps with it")
    counting.add_argument("--chars-per-token", type=float, metavar="X", help="cheaper estimate")
    parser.add_argument("--correct-threshold", type=float, metavar="X", help="right above this")
    parser.add_argument("--group-size", type=int, metavar="G", help="samples behind a pass rate")
    parser.add_argument("--steps", metavar="FIRST:LAST", help="training steps to fit")
    parser.add_argument(
        "--candidates",
        metavar="RIGHT,WRONG",
        help="all-right and all-wrong groups that a kept_mixed file leaves out",
    )
    parser.add_argument("--draws", type=int, default=400, help="bootstrap draws (default 400)")
    parser.add_argument("--source", default="", help="where the rollouts come from, for the record")


def run(options: argparse.Namespace) -> None:
    """Read, fit, print, and write what was asked for."""
    from dapolab.records import ReadOptions, read_records
    from dapolab.workload.fit import Degenerate, fit_workload

    if options.overrides:
        raise ConfigError(f"unknown argument {options.overrides[0]!r} (see dapolab fit --help)")
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
            progress=not options.json,
        ),
    )
    counts = _numbers(options.candidates, ",", "--candidates") if options.candidates else None
    window = _numbers(options.steps, ":", "--steps") if options.steps else None
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
        progress=not options.json,
    )
    body = _body(records, fitted)
    paths = _write(records, fitted, body, options) if options.output else []
    if options.json:
        emit_json("fit", seed=options.seed, body=body)
        return
    out = console()
    print_lines(out, records.notes)
    _print(out, fitted)
    print_lines(out, [f"wrote {path}" for path in paths])


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


def _print(out: Any, fitted: "FittedWorkload") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dapolab.report import formats
    from dapolab.stats import Estimate

    out.print(
        f"{fitted.n_responses} responses of {fitted.n_prompts} prompts, groups of "
        f"{fitted.group_size}, selection {fitted.selection}"
    )
    table = Table("parameter", "value [99 %]", "unit", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, e in fitted.estimates.items():
        shown = formats.estimate(Estimate(e.value, e.low, e.high, fitted.n_prompts, e.unit))
        table.add_row(Text(name), Text(shown), Text(e.unit))
    out.print(table)
    if fitted.goodness:
        table = Table(
            "held-out prompts",
            "observed",
            "predicted",
            "verdict",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for g in fitted.goodness:
            row = (g.quantity, f"{g.observed:.4g}", f"{g.predicted:.4g}", g.verdict)
            table.add_row(*map(Text, row))
        out.print(table)
    print_lines(out, [f"warning: {text}" for text in fitted.warnings])
    print_lines(out, [f"not identified: {name} ({why})" for name, why in fitted.not_identified])


def _write(
    records: "Records", fitted: "FittedWorkload", body: dict[str, Any], options: argparse.Namespace
) -> list[Path]:
    """Write workload, draws, JSON and report; the workload last, so it never stands alone."""
    from dapolab.report import render
    from dapolab.store import atomic_write
    from dapolab.workload.fit import draws_text, to_toml

    target = Path(options.output)
    if target.suffix != ".toml":
        raise ConfigError(f"-o {target}: name a .toml file for the workload")
    document = _report(records, fitted, options)
    page = render(document, target.parent, stem=target.stem)[0]
    whole = json.dumps(envelope("fit", seed=options.seed) | body, allow_nan=False, indent=1)
    files = [page, atomic_write(target.with_suffix(".json"), whole + "\n")]
    draws = target.with_suffix(".draws.csv")
    if len(fitted.draws):
        files.append(atomic_write(draws, draws_text(fitted)))
    text = to_toml(fitted, draws_file=draws.name if len(fitted.draws) else None)
    return [atomic_write(target, text), *files]


def _report(records: "Records", fitted: "FittedWorkload", options: argparse.Namespace) -> Any:
    import pandas as pd

    from dapolab.report.fit_report import fit_document
    from dapolab.stats import Estimate

    verdicts = {g.verdict for g in fitted.goodness}
    lead = (
        f"{fitted.n_responses:,} responses of {fitted.n_prompts:,} prompts. Held-out checks: "
        + (", ".join(sorted(verdicts)) if verdicts else "none possible")
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
