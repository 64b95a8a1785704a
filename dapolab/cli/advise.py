"""What to set: your framework's collection options, searched on the simulator.

WORKLOAD.toml is what fit wrote, or a whole scenario. Options that fill the batch are ranked by the
cost of a trained group that carries signal, in two stages on fresh seeds. Any other setting can be
changed: --rollout.cap_tokens 8192 --hardware.replicas 4
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapolab.cli.output import console, emit_json, number, print_notes, progress
from dapolab.cli.parsing import whole_number
from dapolab.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dapolab.advise import Advice
    from dapolab.scenario import Scenario
    from dapolab.stats import Estimate

TAKES_SETTINGS = True
USAGE = "WORKLOAD.toml [options]"
EXAMPLE = """\
examples:
  dapolab advise mine.toml --target 64 --framework verl \\
      --hardware qwen3-8b-h100-tp1
  dapolab advise mine.toml --target 64 --framework slime \\
      --hardware law.toml --hardware.replicas 8
"""
_NOT_SEARCHED = "the workload has no pass-rate parameter that could rise (fit a joint one)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    count = whole_number(least=1)
    parser.add_argument("workload", metavar="WORKLOAD.toml", help="from dapolab fit; or a scenario")
    parser.add_argument("--target", type=count, metavar="B", help="groups of a training step")
    parser.add_argument(
        "--hardware", metavar="NAME|TOML", help="a law's name, or what calibrate wrote"
    )
    parser.add_argument(
        "--framework", default="any", metavar="F", help="verl, slime, … (default: any policy)"
    )
    parser.add_argument("--metric", default=None, help="cost to rank by (default: seconds)")
    parser.add_argument(
        "--least-fill", type=float, default=0.99, metavar="S", help="share of B to fill (.99)"
    )
    parser.add_argument("--steps", type=count, metavar="N", help="training steps (run.steps)")
    parser.add_argument("--replications", type=whole_number(least=6), metavar="R")
    parser.add_argument("--jobs", type=count, metavar="J", help="processes (default: all cores)")


def run(options: argparse.Namespace) -> None:
    """Search, and say what to set."""
    from dapolab.advise import FRAMEWORKS, METRICS, advise, n_simulated, options_of

    _known("--framework", options.framework, FRAMEWORKS)
    short = {name.partition("/")[2]: name for name in METRICS}
    metric = short.get(options.metric, options.metric) or METRICS[0]
    if metric not in METRICS:
        _known("--metric", metric, short)
    if not 0 <= options.least_fill <= 1:
        raise ConfigError(f"--least-fill {options.least_fill:g}: a share between 0 and 1")
    scenario = _scenario(options)
    choices = options_of(options.framework, n_groups=scenario.rollout.groups_per_step)
    with progress(f"searching {len(choices)} options", n_simulated(scenario, choices)) as tick:
        found = advise(
            scenario,
            choices,
            framework=options.framework,
            metric=metric,
            least_fill=options.least_fill,
            seed=options.seed,
            n_jobs=options.jobs,
            on_done=tick,
        )
    if options.json:
        emit_json("advise", seed=options.seed, body=_body(found, scenario))
        return
    _print(console(), found, scenario)


def _known(option: str, word: str, known: Any) -> None:
    if word not in known:
        from dapolab.cli.parsing import nearest

        raise ConfigError(
            f"{option} {word!r} is not one of {', '.join(known)}; nearest: {nearest(word, known)}"
        )


def _scenario(options: argparse.Namespace) -> "Scenario":
    """Return the scenario that the workload, the target and the hardware make together.

    Raises
    ------
    ConfigError
        A file that is neither workload nor scenario, or settings that contradict each other.
    """
    from dapolab.scenario import DEFAULT, load, parse_overrides, read_toml

    path = Path(options.workload)
    overrides: dict[str, Any] = {}
    is_scenario = "kind" not in read_toml(path) and "base" not in read_toml(path)
    if not is_scenario:
        overrides |= {"workload": str(path), "name": path.stem, "assumptions": []}
    overrides |= _hardware(options.hardware)
    pairs = (
        ("rollout.groups_per_step", options.target),
        ("run.steps", options.steps),
        ("run.replications", options.replications),
    )
    overrides |= {key: value for key, value in pairs if value is not None}
    overrides |= parse_overrides(options.settings)
    return load(path if is_scenario else DEFAULT, overrides)


def _hardware(text: str | None) -> dict[str, Any]:
    """Return the settings that ``--hardware`` stands for."""
    if text is None:
        return {}
    if not text.endswith(".toml"):
        return {"hardware.law": {"kind": "preset", "name": text}}
    from dapolab.scenario import read_toml

    data = read_toml(Path(text))
    if "kind" in data:
        return {"hardware.law": data}
    tables = {key: data[key] for key in ("hardware", "learner") if isinstance(data.get(key), dict)}
    if not tables:
        raise ConfigError(f"--hardware {text}: no [hardware] table and no law in it")
    return {f"{table}.{key}": v for table, values in tables.items() for key, v in values.items()}


def _body(found: "Advice", scenario: "Scenario") -> dict[str, object]:
    turn = found.changes_at
    return {
        "scenario": scenario.name,
        "framework": found.framework,
        "metric": found.metric,
        "option": found.option,
        "baseline": found.baseline,
        "settings": dict(found.settings),
        "gain": found.gain.to_json() if found.gain else None,
        "costs": {
            metric: {name: e.to_json() for name, e in values.items()}
            for metric, values in found.costs.items()
        },
        "best_set": list(found.best.best_set),
        "set_aside": dict(found.best.set_aside),
        "changes_when": (
            {"pass_rate": turn.accuracy, "best_set": list(turn.best_set)} if turn else None
        ),
        "looked_at": [
            {
                "pass_rate": one.accuracy,
                "best_set": list(one.best_set),
                "gain": one.gain.to_json() if one.gain else None,
            }
            for one in found.turns
        ],
    }


def _print(out: "Console", found: "Advice", scenario: "Scenario") -> None:
    rollout, run = scenario.rollout, scenario.run
    out.print(
        f"{scenario.name}: B={rollout.groups_per_step}, G={rollout.group_size}, cap "
        f"{rollout.cap_tokens:,} tokens; {run.replications} replications of {run.steps} steps",
        markup=False,
        style="dim",
    )
    out.print("\nset", style="bold")
    for key, value in found.settings.items():
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        joint = " " if key.startswith("--") else "="
        out.print(f"  {key}{joint}{shown}", markup=False, soft_wrap=True)
    out.print()
    out.print(_gain_sentence(found), markup=False)
    out.print(_turn_sentence(found), markup=False)
    _print_costs(out, found)
    ties = [name for name in found.best.best_set if name != found.option]
    print_notes(out, "may be as good (least side effects decided)", ties)
    aside = [f"{name}: {reason}" for name, reason in found.best.set_aside.items()]
    print_notes(out, "not ranked", aside)
    out.print(
        "\nA simulation of waiting and cost: it says nothing of what the policy learns.",
        style="dim",
    )


def _gain_sentence(found: "Advice") -> str:
    unit = found.metric.rpartition("/")[2].replace("_", " ")
    if found.option == found.baseline:
        return f"{found.framework}'s default is among the best by {unit}: leave it."
    if found.gain is None:
        reason = found.best.set_aside.get(found.baseline, "it trained nothing")
        return f"{found.framework}'s default ({found.baseline}) cannot be used here: {reason}."
    return (
        f"{unit} a trained group: {_reach(found.gain)} times those of {found.framework}'s default "
        f"({found.baseline})."
    )


def _turn_sentence(found: "Advice") -> str:
    if not found.turns:
        return f"When it would change is not known: {_NOT_SEARCHED}."
    last = found.turns[-1]
    turn = found.changes_at
    if turn is None:
        return f"It stays among the best up to a pass rate of {last.accuracy:.0%}."
    if not turn.best_set:
        return f"At a pass rate of {turn.accuracy:.0%} no option fills the batch any more."
    return f"At a pass rate of {turn.accuracy:.0%} change to {' or '.join(turn.best_set[:3])}."


def _print_costs(out: "Console", found: "Advice") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dapolab.advise import SIDE_EFFECTS

    names = list(dict.fromkeys((found.option, found.baseline)))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column("what it costs besides", overflow="fold")
    for name in names:
        table.add_column(Text(name), justify="right", overflow="fold", max_width=22)
    for metric, words in SIDE_EFFECTS.items():
        values = found.costs.get(metric, {})
        if values:
            cells = [_reach(values[name]) if name in values else "–" for name in names]
            table.add_row(words, *cells)
    out.print(table)


def _reach(e: "Estimate") -> str:
    if e.low is None or e.high is None or e.low == e.high:
        return number(e.mean, digits=3)
    return f"{number(e.mean, digits=3)} [{number(e.low, digits=3)}, {number(e.high, digits=3)}]"
