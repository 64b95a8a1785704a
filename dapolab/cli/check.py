"""What a training config will really compute, and which of its settings do nothing or harm.

Reads verl (Hydra YAML, overrides, a launch script), TRL's GRPOConfig (YAML, JSON, arguments, a
Python file), 06-dapo, OpenRLHF and slime command lines, NeMo RL's YAML. Files are parsed, never
run. Exit code 1 where there are errors.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapolab.cli.output import console, emit_json

if TYPE_CHECKING:
    from rich.console import Console

    from dapolab.check import Finding, Report

TAKES_SETTINGS = False
USAGE = "CONFIG [options]"
EXAMPLE = """\
example:
  dapolab check run_dapo_qwen2.5_32b.sh --pass-rate 0.3
  dapolab check grpo.yaml --framework trl --version 1.10
"""
COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("config", metavar="CONFIG", help="the file; - reads stdin")
    parser.add_argument("--framework", metavar="NAME", help="default: told by the file")
    parser.add_argument(
        "--version",
        metavar="X.Y.Z",
        dest="framework_version",
        help="the framework's version; default: the newest known",
    )
    cost = parser.add_mutually_exclusive_group()
    cost.add_argument(
        "--pass-rate", type=float, metavar="P", help="adds what the group filter costs at it"
    )
    cost.add_argument("--workload", type=Path, metavar="W.toml", help="the same, from a fit")


def run(options: argparse.Namespace) -> int:
    """Check, print, and return 1 where there are errors, else 0."""
    from dapolab.check import check_file, check_text

    how: dict[str, Any] = {
        "framework": options.framework,
        "version": options.framework_version,
        "pass_rate": options.pass_rate,
        "workload": options.workload,
    }
    if options.config == "-":
        report = check_text(sys.stdin.read(), name="stdin", **how)
    else:
        report = check_file(options.config, **how)
    if options.json:
        emit_json("check", seed=None, body=document(report))
    else:
        _print(report, options.config)
    return 1 if report.n_errors else 0


def document(report: "Report") -> dict[str, Any]:
    """Return the body of the JSON document; ``version`` is the framework's."""
    return {
        "framework": report.framework,
        "version": report.version,
        "findings": [finding.as_dict() for finding in report.findings],
        "summary": report.summary,
    }


def _print(report: "Report", name: str) -> None:
    from rich.text import Text

    out = console()
    for finding in report.findings:
        sure = "" if finding.certain else " (likely)"
        out.print(
            Text.assemble(
                (f"{finding.severity}{sure}", COLOURS[finding.severity]),
                (f" {finding.id}", "bold"),
                f"  {_where(finding)}",
            )
        )
        _indented(out, finding.message, "")
        if finding.suggestion:
            _indented(out, f"-> {finding.suggestion}", "green")
        _indented(out, finding.source, "dim")
    counts = {s: sum(f.severity == s for f in report.findings) for s in COLOURS}
    shown = ", ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in counts.items())
    out.print(Text(f"{Path(name).name}: {shown}", "bold"))
    out.print(Text(report.summary))


def _indented(out: "Console", text: str, style: str) -> None:
    from rich.text import Text

    for part in Text(text, style).wrap(out, max(out.width - 4, 20)):
        part.rstrip()
        out.print(Text("    ") + part)


def _where(finding: "Finding") -> str:
    line = f"line {finding.line}" if finding.line is not None else "default"
    return f"{finding.setting} ({line})"
