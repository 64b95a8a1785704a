"""The command line: one small file a command, loaded only when it is asked for."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from dapolab import __version__
from dapolab.errors import ConfigError

COMMANDS: dict[str, str] = {
    "fit": "a real rollout dump -> a workload, with goodness of fit and plots",
    "simulate": "one policy, many steps: metrics, forecast, Perfetto trace",
    "compare": "the same prompts and lengths under several policies",
    "theory": "the closed forms beside the simulator",
    "sweep": "a grid of scenarios, only what is missing is run",
    "bench": "speed ratios, each measured in one run",
}


class _Parser(argparse.ArgumentParser):
    """Errors are one line that names the help, exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> _Parser:
    width = min(80, int(os.environ.get("COLUMNS", "80") or 80))
    lines = "\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())
    parser = _Parser(
        prog="dapolab",
        usage="dapolab COMMAND [options]",
        description="What a DAPO/GRPO training step will cost, before the GPU hours are spent.",
        epilog=f"commands:\n{lines}\n\ndapolab COMMAND --help tells more.",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=width),
    )
    parser.add_argument("--version", action="version", version=f"dapolab {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (0 done, 2 unusable input)."""
    chosen = _parser().parse_args(argv)
    module = importlib.import_module(f"dapolab.cli.{chosen.command}")
    parser = _Parser(
        prog=f"dapolab {chosen.command}",
        description=module.__doc__,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=80),
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--seed", type=_seed, default=0, help="default 0")
    module.add_arguments(parser)
    options, rest = parser.parse_known_args(chosen.arguments)
    options.overrides = rest
    options.given = [chosen.command, *chosen.arguments]
    try:
        module.run(options)
    except ConfigError as error:
        print(f"dapolab: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("dapolab: interrupted", file=sys.stderr)
        return 130
    return 0


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value
