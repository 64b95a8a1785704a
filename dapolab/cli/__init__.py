"""The command line: one small file a command, loaded only when it is asked for."""

import importlib
import re
import sys
from collections.abc import Sequence

from dapolab import __version__
from dapolab.cli.parsing import Parser, nearest, silence_stdout, take_settings, whole_number
from dapolab.errors import ConfigError

COMMANDS: dict[str, str] = {
    "fit": "a real rollout dump -> a workload",
    "simulate": "one policy: cost of a step, forecast of a run",
    "compare": "several policies on the same prompts",
    "theory": "the closed forms beside the simulator",
    "split": "GPUs for rollout and for training",
    "sweep": "a grid of scenarios; runs only what is missing",
    "best": "the points of a sweep that may be the best",
    "calibrate": "measured times -> a law, learner constants",
    "backtest": "from one run's log another run, with errors",
    "fidelity": "predictions beside real systems, with errors",
    "import-log": "a training log -> one table of steps",
    "advise": "what to set, in your framework's own keys",
    "recipe": "what a framework's loss is, by version",
    "check": "your config: what does nothing, what harms",
    "bandit": "what a loss or a clip does to a toy policy",
    "claims": "what people say of DAPO, with verdicts",
    "report": "the lab's pages, from their stored tables",
    "bench": "speed of this installation, as ratios",
}
FIRST = """\
start here, with invented data:
  dapolab compare sims/scenarios/small.toml
then with your own rollouts:
  dapolab fit ROLLOUTS -o mine.toml
  dapolab compare sims/scenarios/small.toml \\
      --workload mine.toml
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    0: done. 1: the reader of stdout went away, or ``check`` found errors.
    2: input that cannot be used, or a file that cannot be read or written, said in one line on
    stderr. 130: interrupted.
    """
    try:
        try:
            code = _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            # --help leaves by SystemExit, its text still in the buffer
            sys.stdout.flush()
    except ConfigError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        silence_stdout()
        return 1
    except KeyboardInterrupt:
        print("dapolab: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        # a temporary name tells the user nothing: .NAME.HEX.tmp is NAME
        name = re.sub(r"(?:^|(?<=/))\.(.+)\.[0-9a-f]{12}\.tmp\b", r"\1", str(error.filename or ""))
        where = f"{name}: " if name else ""
        return _refuse(f"{where}{error.strerror or error}")
    except MemoryError:
        return _refuse("out of memory: lower rollout sizes, --jobs or run.steps")
    return code


def _refuse(message: str) -> int:
    print(f"dapolab: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command not in COMMANDS:
        _explain(command)
        return 0
    module = importlib.import_module(f"dapolab.cli.{command.replace('-', '_')}")
    parser = Parser(
        prog=f"dapolab {command}",
        usage=module.USAGE,
        description=module.__doc__ or "",
        epilog=module.EXAMPLE,
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    seed = getattr(module, "DEFAULT_SEED", 0)
    parser.add_argument("--seed", type=whole_number(least=0), default=seed, help=f"default {seed}")
    module.add_arguments(parser)
    rest, settings = take_settings(rest)
    options, unknown = parser.parse_known_args(rest)
    if unknown:
        parser.unknown(next((word for word in unknown if word.startswith("-")), unknown[0]))
    if settings and not module.TAKES_SETTINGS:
        parser.unknown(settings[0])
    options.settings = settings
    options.given = words
    return int(module.run(options) or 0)


def _explain(word: str) -> None:
    """Print the overview or the version; refuse any other word that is no command."""
    lines = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
    parser = Parser(
        prog="dapolab",
        usage="COMMAND [options]",
        description="What a DAPO/GRPO training step will cost, before the GPU hours are spent.\n\n"
        f"{FIRST}\ncommands:\n{lines}\n",
        epilog="dapolab COMMAND --help tells more and shows an example.",
    )
    parser.add_argument("--version", action="version", version=f"dapolab {__version__}")
    if word in ("-h", "--help"):
        parser.print_help()
    elif word.startswith("-"):
        _, unknown = parser.parse_known_args([word])
        parser.unknown(unknown[0])
    else:
        parser.error(
            f"unknown command {word!r}; nearest: {nearest(word, COMMANDS)}; "
            f"commands: {', '.join(COMMANDS)}"
        )
