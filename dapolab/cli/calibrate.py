"""Measured times -> a decode law, learner constants, a workload: only what the data identify.

Takes a trace of iterations (columns seconds, n; sum_context_tokens, prefill_tokens, run where
known), a trace of requests (submission, end, prompt and output tokens), or a training log of any
framework. What is not told apart is listed and never quoted.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapolab.cli.output import (
    console,
    emit_json,
    output_file,
    print_files,
    print_lines,
    print_notes,
)
from dapolab.cli.parsing import whole_number
from dapolab.cli.step_logs import (
    add_log_arguments,
    column_pairs,
    fixed_values,
    law_of,
    read_steps,
)
from dapolab.errors import ConfigError

if TYPE_CHECKING:
    from dapolab.fidelity.calibrate import Calibration
    from dapolab.scenario import Scenario
    from dapolab.stats import Estimate

TAKES_SETTINGS = True
USAGE = "FILE [options]"
EXAMPLE = """\
examples:
  dapolab calibrate trace.parquet -o law.toml
  dapolab calibrate train.log --polled 2 \\
      --hardware.replicas 2 --rollout.groups_per_step 16 \\
      --law qwen3-8b-h100-tp1 -o law.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("file", metavar="FILE", help="trace (CSV, JSONL, Parquet) or training log")
    add_log_arguments(parser)
    parser.add_argument("--run", metavar="NAME", help="which run of a log with several")
    parser.add_argument(
        "--scenario", metavar="S.toml", help="whose [hardware] and [rollout] the data come from"
    )
    parser.add_argument(
        "--updates", type=whole_number(least=1), default=1, help="optimizer updates a step"
    )
    parser.add_argument("-o", "--output", metavar="LAW.toml", help="write law and learner there")
    parser.add_argument(
        "--workload", metavar="W.toml", help="write the workload of a step log there"
    )
    parser.add_argument("--source", default="", help="where the data come from, for the record")


def run(options: argparse.Namespace) -> None:
    """Read, fit, print, write."""
    target = output_file(options.output, suffix=".toml") if options.output else None
    workload = (
        output_file(options.workload, option="--workload", suffix=".toml")
        if options.workload
        else None
    )
    found = _calibrate(options)
    if workload and found.step_workload is None:
        raise ConfigError("--workload: these data hold no lengths and group composition")
    paths = _write(found, options, target, workload)
    if options.json:
        emit_json("calibrate", seed=None, body=found.to_json())
        return
    _print(found, options)
    print_files(console(), "wrote", paths)


def _calibrate(options: argparse.Namespace) -> "Calibration":
    from dapolab.fidelity import calibrate as c
    from dapolab.fidelity.requests import engine_of_meta, is_request_trace, request_trace

    path = Path(options.file)
    fixed = c.short_fixed(fixed_values(options.fix))
    physics = law_of(options.law)
    source = options.source or path.name
    table = c.read_table(path) if path.suffix in (".csv", ".jsonl", ".parquet") else None
    if table is not None:
        renamed = column_pairs(options.columns)
        table = table.assign(**{to: table[key] for to, key in renamed.items() if key in table})
    if table is not None and c.is_iteration_trace(list(table.columns)):
        return c.of_iterations(
            table, fixed=fixed, physics=physics, polled_s=options.polled, source=source
        )
    if table is not None and is_request_trace(list(table.columns)):
        if options.polled:
            raise ConfigError("--polled: a request trace holds the true ends; leave it out")
        scenario = _scenario(options, engine_of_meta(path.parent / "meta.json"))
        trace = request_trace(table, hardware=scenario.hardware, name=path.name)
        start = physics or law_of("llama-3.1-8b-h100-tp1")
        assert start is not None
        return c.of_requests(
            trace, fixed=fixed, start=start, physics=physics is not None, source=source
        )
    scenario = _scenario(options, {})
    return c.of_steps(
        read_steps(path, options),
        hardware=scenario.hardware,
        rollout=scenario.rollout,
        fixed=fixed,
        physics=physics,
        polled_s=options.polled,
        updates_per_step=options.updates,
        draws=False,
        source=source,
    )


def _scenario(options: argparse.Namespace, engine: dict[str, object]) -> "Scenario":
    """Return the scenario whose hardware and rollout the data come from, settings laid over."""
    from dapolab.scenario import build, load, parse_overrides

    overrides = parse_overrides(options.settings)
    if options.scenario:
        return load(options.scenario, overrides)
    from dapolab.scenario.load import lay_over

    hardware = {"prefix_cache": False, **engine} if engine else {}
    data: dict[str, Any] = {"hardware": hardware}
    lay_over(data, overrides)
    return build(data, where="settings")


def _write(
    found: "Calibration", options: argparse.Namespace, target: Path | None, workload: Path | None
) -> list[Path]:
    from dapolab.fidelity.calibrate import to_toml, workload_toml
    from dapolab.store import atomic_write

    paths = []
    if target:
        paths.append(atomic_write(target, to_toml(found, name=Path(options.file).name)))
    if workload and found.step_workload is not None:
        paths.append(atomic_write(workload, workload_toml(found.step_workload)))
    return paths


_WORDS = {"iterations": "a trace of iterations", "requests": "a trace of requests"}


def _print(found: "Calibration", options: argparse.Namespace) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dapolab.report import formats

    out = console()
    words = _WORDS.get(found.kind, "a training log")
    out.print(Text(f"{Path(options.file).name}: {words}"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("parameter", overflow="fold")
    table.add_column("value \\[99 %]", overflow="fold", justify="right")
    for name, e in found.estimates.items():
        table.add_row(Text(name), Text(_shown(e)))
    out.print(table)
    residual = found.residuals
    print_lines(
        out,
        [
            f"Mean absolute error {formats.number(100 * residual['mean_abs_share'])} % of the "
            f"time over {residual['n']:.0f} rows, in sample."
        ],
    )
    if residual.get("n_set_aside"):
        print_lines(out, [f"{residual['n_set_aside']:.0f} rows far above the fit set aside."])
    if found.step_workload is not None:
        _print_workload(out, found)
    print_notes(out, "from physics or by hand", [f"{n} = {v:.4g}" for n, v in found.fixed.items()])
    print_notes(
        out, "not identified by these data", [f"{n}: {why}" for n, why in found.not_identified]
    )
    print_notes(out, "to know", found.notes)


def _print_workload(out: Any, found: "Calibration") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    assert found.step_workload is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("prior share", "median", "sigma", "mixed", "truncated"):
        table.add_column(name, justify="right", overflow="fold")
    for row in found.step_workload.sensitivity.to_dict("records"):
        cells = (
            f"{row['prompt_share']:.2f}",
            f"{row['median_tokens']:.0f}",
            f"{row['sigma']:.3f}",
            f"{row['mixed_share']:.1%}",
            f"{row['truncated_share']:.2%}",
        )
        table.add_row(*map(Text, cells))
    out.print(Text("\nworkload: the share of length spread between prompts is a prior", "bold"))
    out.print(table)


def _shown(e: "Estimate") -> str:
    """Return a value with its interval in s, ms or µs, whichever has digits before the point."""
    if not e.unit.startswith("s"):
        return f"{e.mean:.4g} {e.unit}"
    scale, prefix = next(
        ((k, p) for k, p in ((1.0, ""), (1e3, "m"), (1e6, "µ")) if abs(e.mean) * k >= 1),
        (1e9, "n"),
    )
    low, high = (None if end is None else f"{end * scale:.4g}" for end in (e.low, e.high))
    span = f" [{low}, {high}]" if low is not None and high is not None else ""
    return f"{e.mean * scale:.4g}{span} {prefix}{e.unit}"
