"""``dapolab fit --drift``: what moves while the model learns, as a ``[workload.drift]`` table."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapolab.cli.output import console, emit_json, json_text, print_files, print_notes

if TYPE_CHECKING:
    from dapolab.records import Records
    from dapolab.workload.fit import Estimate, LengthDrift, PassRateDrift

_RATES = ("mean_logit", "sd_logit", "logit_per_step")


def run_drift(
    records: "Records",
    target: Path | None,
    options: argparse.Namespace,
    *,
    steps: tuple[int, int] | None,
) -> None:
    """Fit, print, and write the workload's pass rates at the first step with their drift."""
    from dapolab.store import atomic_write
    from dapolab.workload.fit import fit_drift

    table = records.table
    if steps is not None:
        table = table[table["step"].between(*steps)]
    rates, lengths, warnings = fit_drift(table, selection=records.selection)
    estimates = {name: getattr(rates, name) for name in _RATES}
    if lengths is not None:
        estimates["log_tokens_per_step"] = lengths.log_tokens_per_step
    body = _body(records, estimates, rates, warnings)
    paths = []
    if target is not None:
        source = options.source or Path(options.rollouts).name
        text = _toml(estimates, rates, source=source)
        whole = json_text("fit", seed=options.seed, body=body)
        # the workload last, so it never stands alone
        paths = [atomic_write(target.with_suffix(".json"), whole), atomic_write(target, text)][::-1]
    if options.json:
        emit_json("fit", seed=options.seed, body=body)
        return
    _print(estimates, rates, lengths, [*records.notes, *warnings])
    print_files(console(), "wrote", paths)


def _body(
    records: "Records",
    estimates: "dict[str, Estimate]",
    rates: "PassRateDrift",
    warnings: list[str],
) -> dict[str, Any]:
    value = {name: found.value for name, found in estimates.items()}
    drift = {name: value[name] for name in value if name.endswith("_per_step")}
    law = {name: value[name] for name in ("mean_logit", "sd_logit")}
    return {
        "workload": {"kind": "joint", **law, "drift": drift},
        "selection": records.selection,
        "parameters": {
            name: {
                "mean": e.value,
                "low": e.low,
                "high": e.high,
                "n": rates.n_steps,
                "unit": e.unit,
            }
            for name, e in estimates.items()
        },
        "goodness": [],
        "not_identified": [],
        "warnings": [*records.notes, *warnings],
    }


def _toml(estimates: "dict[str, Estimate]", rates: "PassRateDrift", *, source: str) -> str:
    from dapolab.workload.fit.result import toml_value

    def line(name: str) -> str:
        found = estimates[name]
        return f"{name} = {toml_value(found.value)}  # {found.low:.4g} … {found.high:.4g}"

    drift = [name for name in estimates if name.endswith("_per_step")]
    lines = [
        f"# Drift fitted to {rates.n_groups} groups of {rates.n_steps} steps; 99 % intervals.",
        f"# Pass rates are those of the first step, {rates.first_step}: trained step 0.",
        "# Lengths are not part of this fit, only their trend: fit one window of steps for them.",
        "# Assumption: every prompt's logit moves by the same slope, for as long as the run lasts.",
        "# Unsolvable prompts are not fitted here; they would flatten the slope.",
        "",
        "[workload]",
        'kind = "joint"',
        line("mean_logit"),
        line("sd_logit"),
        f"source = {toml_value(source)}",
        "",
        "[workload.drift]",
        *map(line, drift),
    ]
    return "\n".join(lines) + "\n"


def _print(
    estimates: "dict[str, Estimate]",
    rates: "PassRateDrift",
    lengths: "LengthDrift | None",
    notes: list[str],
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dapolab.report import formats
    from dapolab.stats import Estimate

    out = console()
    out.print(f"{rates.n_groups:,} groups of {rates.n_steps} steps from step {rates.first_step} on")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("parameter", overflow="fold")
    table.add_column("value \\[99 %]", overflow="fold", justify="right")
    table.add_column("unit", overflow="fold")
    for name, e in estimates.items():
        shown = formats.estimate(Estimate(e.value, e.low, e.high, rates.n_steps, e.unit))
        table.add_row(Text(name), Text(shown), Text(e.unit))
    out.print(table)
    if rates.dispersion > 1:
        out.print(
            f"Steps scatter {rates.dispersion:.2g} times as much (variance) as prompts and answers "
            "explain; the intervals are widened by it."
        )
    if lengths is None:
        out.print("No lengths in these records.")
    print_notes(out, "warnings", notes)
