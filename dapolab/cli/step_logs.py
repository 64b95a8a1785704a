"""How calibrate and backtest read a training log, and what the user adds to it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dapolab.cli.parsing import positive
from dapolab.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from dapolab.sim.hardware import Law


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how a training log is read, what it leaves out, and what is known beforehand."""
    parser.add_argument(
        "--columns",
        default="",
        metavar="COLUMN=KEY,...",
        help="the file's own keys, e.g. seconds=cpu_seconds (import-log lists a log's columns)",
    )
    parser.add_argument(
        "--shares",
        metavar="RIGHT,WRONG",
        help="shares of groups all right and all wrong, where the log does not tell",
    )
    parser.add_argument(
        "--polled",
        type=positive,
        default=0.0,
        metavar="SECONDS",
        help="ends are seen up to so much too late (a trainer that polls)",
    )
    parser.add_argument(
        "--law",
        metavar="NAME|FILE.toml",
        help="physics: where a parameter is not identified it comes from this law",
    )
    parser.add_argument(
        "--fix", default="", metavar="c=SECONDS,...", help="hold parameters: a, b, c, s, q"
    )


def read_steps(path: Path, options: argparse.Namespace) -> "pd.DataFrame":
    """Return the steps of one run of a log; group composition from ``--shares`` where it lacks.

    Raises
    ------
    ConfigError
        The log cannot be read, several runs and none chosen, shares that cannot be.
    """
    from dapolab.logs import LogOptions, read_log

    columns = column_pairs(options.columns)
    log = read_log(path, options=LogOptions(run=options.run, columns=columns))
    frame = log.one_run(options.run)
    if options.shares:
        right, wrong = _shares(options.shares)
        frame = frame.assign(**{"rollout/all_right_share": right, "rollout/all_wrong_share": wrong})
    return frame


def column_pairs(text: str) -> dict[str, str]:
    """Return column -> the file's own key of ``--columns``."""
    columns = {}
    for part in filter(None, text.split(",")):
        column, equals, key = part.partition("=")
        if not equals:
            raise ConfigError(f"--columns: {part!r} should look like COLUMN=KEY")
        columns[column.strip()] = key.strip()
    return columns


def _shares(text: str) -> tuple[float, float]:
    try:
        right, wrong = (float(part) for part in text.split(","))
    except ValueError:
        right = wrong = 0.0
    if not (0 < right < 1 and 0 < wrong < 1 and right + wrong < 1):
        raise ConfigError(
            f"--shares: {text!r} should be two shares of groups, all right and all wrong, "
            "such as .16,.23"
        )
    return right, wrong


def fixed_values(text: str) -> dict[str, float]:
    """Return the parameters of ``--fix``, by the names they were given."""
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or found[name.strip()] < 0:
            raise ConfigError(f"--fix: {part!r} should look like c=2.3e-8, not below 0")
    return found


def law_of(text: str | None) -> "Law | None":
    """Return the law of a preset's name or of a TOML file's [hardware.law].

    Raises
    ------
    ConfigError
        No such preset or file, no such table in it.
    """
    if text is None:
        return None
    from dapolab.scenario import build, read_toml
    from dapolab.sim.hardware import resolve

    if text.endswith(".toml"):
        table = read_toml(Path(text))
        law = table.get("hardware", {}).get("law", table.get("law"))
        if not isinstance(law, dict):
            raise ConfigError(f"--law {text}: no table [hardware.law] in it")
    else:
        law = {"kind": "preset", "name": text}
    return resolve(build({"hardware": {"law": law}}, where="--law").hardware)
