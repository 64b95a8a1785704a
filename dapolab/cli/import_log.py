"""A step-level log of a real run -> one table of steps, under one set of names.

Reads verl (console, file logger), TRL (console, trainer_state.json), OpenRLHF and prime-rl
consoles, metrics.jsonl of prime-rl and tinker, TensorBoard folders, and any CSV, Parquet or JSON
lines with a column of steps. Says of each key what it covers and does not.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapolab.cli.output import console, emit_json, number, output_file, print_files, print_notes
from dapolab.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dapolab.logs import StepTable

TAKES_SETTINGS = False
USAGE = "LOG [options]"
EXAMPLE = """\
examples:
  dapolab import-log train.log -o steps.parquet
  dapolab import-log tensorboard_log/ --run dapo_7b
  dapolab import-log mine.csv \\
      --columns step=it,time/rollout_seconds=t_gen
"""
SUFFIXES = (".parquet", ".csv")
N_RUNS_SHOWN = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    from dapolab.cli.parsing import whole_number

    parser.add_argument("log", metavar="LOG", help="file or folder")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write the table: .parquet (with notes) or .csv"
    )
    parser.add_argument(
        "--format",
        default="auto",
        metavar="F",
        help="console, jsonl, trainer_state, tensorboard or table; default: told by the content",
    )
    parser.add_argument(
        "--framework",
        default="auto",
        metavar="NAME",
        help="whose keys: verl, trl, openrlhf, prime_rl, tinker or dapolab; default: told by them",
    )
    parser.add_argument("--run", metavar="NAME", help="one run of several; default: all")
    parser.add_argument(
        "--columns",
        default="",
        metavar="COLUMN=KEY,...",
        help="which key fills a column; step=KEY and run=KEY too",
    )
    parser.add_argument(
        "--unfiltered",
        action="store_true",
        help="the run used no filter: the trained batch is all that was sampled",
    )
    parser.add_argument(
        "--every",
        type=whole_number(least=1),
        metavar="N",
        help="steps between two rows of TRL's console, which does not number them",
    )


def run(options: argparse.Namespace) -> None:
    """Read, translate, print, and write what was asked for."""
    from dapolab.logs import LogOptions, read_log, written_bytes

    target = _target(options.output) if options.output else None
    table = read_log(
        Path(options.log),
        options=LogOptions(
            format=options.format,
            framework=options.framework,
            run=options.run,
            columns=_pairs(options.columns),
            unfiltered=options.unfiltered,
            every=options.every,
            progress=sys.stderr.isatty(),
        ),
    )
    paths = []
    if target:
        from dapolab.store import atomic_write

        paths = [atomic_write(target, written_bytes(table, target.suffix))]
    if options.json:
        emit_json("import-log", seed=None, body=_body(table))
        return
    out = console()
    _print(out, table)
    if not paths:
        out.print("\n-o OUT.parquet writes the table", style="dim")
    print_files(out, "wrote", paths)


def _target(text: str) -> Path:
    suffix = Path(text).suffix
    if suffix not in SUFFIXES and not Path(text).is_dir():
        raise ConfigError(f"-o {text}: name a {' or '.join(SUFFIXES)} file")
    return output_file(text, suffix=suffix if suffix in SUFFIXES else SUFFIXES[0])


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        column, equals, key = (piece.strip() for piece in part.partition("="))
        if not equals or not column:
            raise ConfigError(f"--columns: {part!r} should look like column=key")
        if column in pairs:
            raise ConfigError(f"--columns names {column!r} twice")
        pairs[column] = key
    return pairs


def _body(table: "StepTable") -> dict[str, Any]:
    return {
        "format": table.format,
        "framework": table.framework,
        "runs": [_run_body(table, run) for run in table.runs],
        "steps": len(table.frame),
        "columns": {name: _column_body(table, name) for name in _columns(table)},
        "notes": list(table.notes),
    }


def _run_body(table: "StepTable", run: str) -> dict[str, Any]:
    steps = table.one_run(run)["step"]
    return {
        "run": run,
        "steps": len(steps),
        "first_step": int(steps.min()),
        "last_step": int(steps.max()),
    }


def _columns(table: "StepTable") -> list[str]:
    return [str(name) for name in table.frame.columns if name not in ("run", "step")]


def _column_body(table: "StepTable", name: str) -> dict[str, Any]:
    from dapolab.logs import BY_COLUMN

    values = table.frame[name].dropna()
    metric = BY_COLUMN.get(name)
    return {
        "unit": metric.unit if metric else None,
        "source": table.sources.get(name, name.removeprefix("extra/")),
        "n": len(values),
        "mean": float(values.mean()) if len(values) else None,
        "min": float(values.min()) if len(values) else None,
        "max": float(values.max()) if len(values) else None,
    }


def _print(out: "Console", table: "StepTable") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    runs = table.runs
    steps = table.frame["step"]
    extras = {name for name in _columns(table) if name.startswith("extra/")}
    out.print(
        f"{len(steps):,} rows of {len(runs)} run{'s' * (len(runs) > 1)}, steps {steps.min()} to "
        f"{steps.max()}; {table.framework} keys, {table.format}"
    )
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("column", overflow="fold")
    for title in ("mean", "min", "max", "rows"):
        grid.add_column(title, justify="right", no_wrap=True)
    mapped = [name for name in _columns(table) if name not in extras]
    for name in mapped:
        about = _column_body(table, name)
        numbers = [number(about[key]) if about["n"] else "–" for key in ("mean", "min", "max")]
        grid.add_row(*map(Text, (name, *numbers, str(about["n"]))))
    out.print(grid)
    if extras:
        out.print(f"{len(extras)} more keys are kept under extra/", style="dim")
    if len(runs) > 1:
        lines = [
            f"{r['run']}: steps {r['first_step']} to {r['last_step']}"
            for r in (_run_body(table, run) for run in runs[:N_RUNS_SHOWN])
        ]
        more = len(runs) - N_RUNS_SHOWN
        print_notes(out, "runs (--run NAME)", lines + ([f"and {more} more"] if more > 0 else []))
    print_notes(out, "where columns come from", _origins(table, mapped))
    print_notes(out, "what the keys cover", table.notes)


def _origins(table: "StepTable", names: list[str]) -> list[str]:
    """Return ``key → column, column`` for every key whose column has another name."""
    by_key: dict[str, list[str]] = {}
    for name in names:
        key = table.sources.get(name, name)
        if key != name:
            by_key.setdefault(key, []).append(name)
    return [f"{key} → {', '.join(columns)}" for key, columns in by_key.items()]
