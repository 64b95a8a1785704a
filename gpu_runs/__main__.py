"""``python -m gpu_runs train|calibrate|validate PRESET``: one line for every error, exit code 2.

Exit codes: 0 done; 1 the collection policy ended the run, as its framework would; 2 input that
cannot be used, or a file that cannot be written; 130 interrupted.
"""

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from dapolab import __version__
from dapolab.cli.parsing import silence_stdout
from dapolab.errors import ConfigError

COMMANDS = {
    "train": "train a preset; in the folder of an unfinished run it goes on",
    "calibrate": "measure the engine: seconds against responses and context",
    "validate": "predictions first, then the measurement, then the comparison",
}
_EPILOG = """\
--KEY VALUE lays a setting over the preset: --train.learning_rate 1e-4, --seed 3,
--recipe trl-1.16-dapo, --collector.kind streaming, --hf-path DIR --dataset FILE.

examples:
  python -m gpu_runs train toy_cpu -o runs/toy
  python -m gpu_runs train toy_cpu --recipe 06-dapo --steps 20 --seed 1
  python -m gpu_runs calibrate toy_cpu -o runs/calibration
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see python -m gpu_runs {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(words)
        finally:
            # --help leaves by SystemExit, its text still in the buffer
            sys.stdout.flush()
    except ConfigError as error:
        return _refuse(str(error), code=2)
    except KeyboardInterrupt:
        return _refuse("interrupted; the same command goes on from the last checkpoint", code=130)
    except BrokenPipeError:
        silence_stdout()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{where}{error.strerror or error}", code=2)


def _refuse(message: str, *, code: int) -> int:
    sys.stderr.write(f"gpu_runs: {' '.join(message.split())}\n")
    return code


def _available() -> dict[str, str]:
    """Return the commands whose module is there."""
    needs = {"calibrate": "gpu_runs.calibrate", "validate": "gpu_runs.validate"}
    return {
        name: text
        for name, text in COMMANDS.items()
        if name not in needs or importlib.util.find_spec(needs[name]) is not None
    }


def _run(words: list[str]) -> int:
    commands = _available()
    if not words or words[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:<10} {text}" for name, text in commands.items())
        sys.stdout.write(f"usage: python -m gpu_runs COMMAND PRESET\n\n{lines}\n\n{_EPILOG}")
        return 0
    if words[0] not in commands:
        raise ConfigError(f"unknown command {words[0]!r}; choose {', '.join(commands)}")
    command, rest = words[0], words[1:]
    if command == "validate":
        return int(importlib.import_module("gpu_runs.validate").main(rest))
    parser = _Parser(
        prog=command,
        usage=f"python -m gpu_runs {command} PRESET [options] [--KEY VALUE …]",
        description=COMMANDS[command],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("preset", metavar="PRESET", help="a name or a TOML file")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    if command == "calibrate":
        parser.add_argument("--smoke", action="store_true", help="few sizes, one repeat")
    own, settings = _split(rest)
    options = parser.parse_args(own)
    preset = _load(options.preset, settings)
    given = ["python", "-m", "gpu_runs", *words]
    if command == "calibrate":
        module = importlib.import_module("gpu_runs.calibrate")
        return int(module.run(preset, options, command=given))
    return _train(preset, options, command=given)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the command's own options from the settings."""
    own_flags = {"--device": 1, "-o": 1, "--output": 1, "--json": 0, "--smoke": 0}
    own_flags |= {"-h": 0, "--help": 0}
    own: list[str] = []
    settings: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        takes_value = not equals and bool(rest) and not rest[0].startswith("--")
        if name in own_flags or not word.startswith("--"):
            own.append(word)
            if own_flags.get(name) and takes_value:
                own.append(rest.pop(0))
            continue
        settings.append(word)
        if takes_value:
            settings.append(rest.pop(0))
    return own, settings


def _load(name: str, settings: Sequence[str]) -> Any:
    from dapolab.scenario import parse_overrides
    from gpu_runs.preset import load

    return load(name, parse_overrides(settings))


def _train(preset: Any, options: argparse.Namespace, *, command: Sequence[str]) -> int:
    _need_torch()
    from gpu_runs.train import train

    folder = Path(options.output or Path("runs") / f"{preset.name}-seed{preset.run.seed}")
    outcome = train(
        preset,
        folder=folder,
        device=options.device,
        command=command,
        say=lambda line: _say(line),
    )
    if options.json:
        body = {
            "folder": folder.name,
            "status": outcome.status,
            "message": outcome.message,
            "steps": outcome.steps,
            "first_step": outcome.first_step,
            "metrics": _as_metrics(outcome.metrics),
            "evaluation": _evaluation(outcome.evaluation, preset.evaluation.n_prompts),
        }
        sys.stdout.write(json_text("train", seed=preset.run.seed, body=body))
    else:
        _tell(outcome)
    if outcome.status == "failed":
        return _refuse(outcome.message, code=1)
    return 0


def json_text(command: str, *, seed: int | None, body: dict[str, Any]) -> str:
    """Return the JSON contract's document; NaN in it is a bug."""
    head = {
        "schema": f"gpu_runs/{command}/1",
        "command": command,
        "version": __version__,
        "seed": seed,
    }
    return json.dumps(head | body, allow_nan=False, indent=1, ensure_ascii=False) + "\n"


def _as_metrics(values: dict[str, float]) -> dict[str, Any]:
    """Return each value as the contract's METRIC: what was seen, without an interval."""
    from dapolab.metrics import BY_NAME

    return {
        name: {
            "mean": value,
            "low": None,
            "high": None,
            "n": 1,
            "unit": BY_NAME[name].unit if name in BY_NAME else "share",
        }
        for name, value in values.items()
    }


def _evaluation(values: dict[str, float], n_prompts: int) -> dict[str, Any]:
    ends = {"low": "eval/accuracy_low", "high": "eval/accuracy_high"}
    found = _as_metrics({k: v for k, v in values.items() if k not in ends.values()})
    for metric in found.values():
        metric["n"] = n_prompts
    if "eval/accuracy" in found:
        found["eval/accuracy"] |= {end: values[name] for end, name in ends.items()}
    return found


def _tell(outcome: Any) -> None:
    lines = [f"{outcome.steps} steps, wrote {outcome.folder}"]
    found = outcome.evaluation
    if found:
        lines.append(
            f"held out: accuracy {found['eval/accuracy']:.3f} "
            f"[{found['eval/accuracy_low']:.3f}, {found['eval/accuracy_high']:.3f}] (99 %, by "
            f"prompt), {found['eval/completion_tokens']:.1f} tokens, truncated "
            f"{found['eval/truncated_share']:.1%}"
        )
    if (outcome.folder / "rollouts.parquet").is_file():
        lines.append(f"next: dapolab fit {outcome.folder / 'rollouts.parquet'}")
    sys.stdout.write("\n".join(lines) + "\n")


def _say(line: str) -> None:
    sys.stderr.write(f"gpu_runs: {line}\n")


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("gpu_runs needs torch; install the extra: pip install 'dapolab[train]'")


if __name__ == "__main__":
    sys.exit(main())
