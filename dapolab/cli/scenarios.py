"""Arguments that every command with a scenario shares, and loading it with its settings."""

import argparse
from typing import Any

from dapolab.cli.parsing import whole_number
from dapolab.scenario import DEFAULT, ConfigError, Scenario, load, parse_overrides

USAGE = "[SCENARIO.toml] [options]"


def add_scenario_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the scenario and the most used shortcuts of its settings."""
    count = whole_number(least=1)
    parser.add_argument(
        "scenario",
        nargs="?",
        default=str(DEFAULT),
        metavar="SCENARIO.toml",
        help="the experiment (default: a small invented one)",
    )
    parser.add_argument(
        "--steps", type=count, metavar="N", help="training steps of a replication (run.steps)"
    )
    parser.add_argument(
        "--epochs",
        type=count,
        metavar="E",
        help="instead of --steps: until E epochs of prompts are used up",
    )
    parser.add_argument(
        "--replications",
        type=whole_number(least=2),
        metavar="R",
        help="independent repetitions behind each interval (run.replications)",
    )
    parser.add_argument("--jobs", type=count, metavar="J", help="processes (default: all cores)")
    parser.add_argument(
        "--workload", metavar="W.toml", help="another workload, e.g. one that fit wrote"
    )
    parser.add_argument("--name", metavar="NAME", help="another name for report and files")


def load_scenario(options: argparse.Namespace) -> Scenario:
    """Load the scenario with everything that the command line lays over it.

    Raises
    ------
    ConfigError
        As ``dapolab.scenario.load``, and for settings that contradict each other.
    """
    overrides: dict[str, Any] = parse_overrides(options.settings)
    for key in ("workload", "name"):
        if getattr(options, key) is not None:
            overrides[key] = getattr(options, key)
    if options.replications is not None:
        overrides["run.replications"] = options.replications
    if options.epochs is not None:
        if options.steps is not None or "run.steps" in overrides:
            raise ConfigError("--epochs and --steps both say when to end; give one")
        overrides["workload.prompts.epochs"] = options.epochs
    if options.steps is not None:
        overrides["run.steps"] = options.steps
    scenario = load(options.scenario, overrides)
    if options.epochs is not None:
        from dapolab.workload.model import n_prompts_of

        rollout = scenario.rollout
        count = n_prompts_of(
            scenario.workload, group_size=rollout.group_size, cap_tokens=rollout.cap_tokens
        )
        most = -(-count * options.epochs // rollout.groups_per_step)
        run = scenario.run.model_copy(update={"steps": most})
        scenario = scenario.model_copy(update={"run": run})
    return scenario


def headline(scenario: Scenario) -> str:
    """Return in a line or two what was run and how often."""
    epochs = scenario.workload.prompts.epochs
    at_most = "at most " if epochs else ""
    said = f"{scenario.description}\n" if scenario.description else ""
    return said + (
        f"{scenario.name}: {scenario.run.replications} replications of {at_most}"
        f"{scenario.run.steps:,} steps, "
        f"B={scenario.rollout.groups_per_step} groups, G={scenario.rollout.group_size} responses, "
        f"cap {scenario.rollout.cap_tokens:,} tokens"
    )
