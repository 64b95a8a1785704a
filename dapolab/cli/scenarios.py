"""Arguments that every command with a scenario shares, and loading it with its overrides."""

import argparse
import difflib
from typing import Any

from dapolab.scenario import ConfigError, Scenario, load, parse_overrides


def add_scenario_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the scenario and the most used shortcuts of its settings."""
    parser.add_argument("scenario", metavar="SCENARIO.toml")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of a replication")
    parser.add_argument(
        "--epochs", type=int, metavar="E", help="run until the data run out after E epochs"
    )
    parser.add_argument("--replications", type=int, metavar="R", help="independent repetitions")
    parser.add_argument("--jobs", type=int, metavar="J", help="processes (default: all cores)")


def load_scenario(options: argparse.Namespace) -> Scenario:
    """Load the scenario with everything that the command line lays over it.

    Raises
    ------
    ConfigError
        As ``dapolab.scenario.load``, and for an option that neither command nor scenario knows.
    """
    overrides: dict[str, Any] = parse_overrides(options.overrides)
    for key in overrides:
        if "." not in key and key not in Scenario.model_fields:
            known = ["--collectors", "--steps", "--epochs", "--replications", "--jobs", "--json"]
            near = difflib.get_close_matches(f"--{key}", known, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"unknown option --{key}; nearest: {near}; settings are dotted: --run.steps 5"
            )
    if options.replications is not None:
        overrides["run.replications"] = options.replications
    if options.epochs is not None:
        if options.steps is not None:
            raise ConfigError("--steps and --epochs both say when to end; give one")
        overrides["workload.prompts.epochs"] = options.epochs
    if options.steps is not None:
        overrides["run.steps"] = options.steps
    scenario = load(options.scenario, overrides)
    if options.epochs is not None:
        prompts = scenario.workload.prompts
        most = -(-prompts.count * options.epochs // scenario.rollout.groups_per_step)
        run = scenario.run.model_copy(update={"steps": most})
        scenario = scenario.model_copy(update={"run": run})
    return scenario
