"""Which split of the GPUs between rollout and training is the best, and what it gains.

Ranking is selection (DESIGN.md section 1): stage 1 runs every split and keeps those that
simultaneous intervals cannot separate from the best; stage 2 runs that set and the colocated
synchronous loop again on fresh seeds, and only its numbers are reported.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from joblib import delayed

from dapolab.metrics import BY_NAME
from dapolab.processes import in_processes
from dapolab.scenario import (
    ConfigError,
    FullyAsync,
    Hardware,
    Learner,
    OneStepOff,
    Replenish,
    Scenario,
    Streaming,
    Synchronous,
)
from dapolab.sim.learner import learner_gpus
from dapolab.sim.run import simulate
from dapolab.stats import (
    LEVEL,
    Estimate,
    best_set_of_ratios,
    mean_estimate,
    paired_ratio,
    ratio_of_totals,
    simultaneous,
)

COLOCATED = "colocated"
COST = "per_trained_group/seconds"
GAIN = "gain over colocated"
SHOWN = (
    "pipeline/learner_busy_share",
    "pipeline/rollout_busy_share",
    "staleness/mean_versions",
    "staleness/max_versions",
    "bias/length_ratio_total",
)
FRESH = 1000
"""Seeds between the two stages."""
_MOST_SPLITS = 16
_LEAST_STEPS = 4


@dataclass(frozen=True)
class SplitSearch:
    """The answer: a set of splits, their costs on fresh seeds, and what each gains.

    Attributes
    ----------
    gpus : name -> (rollout's, learner's); both the same GPUs where colocated.
    screened : name -> seconds a trained group in stage 1, all splits; not to be reported as gains.
    best_set : the splits that may be the best, best first.
    confirmed : name -> metric -> Estimate on fresh seeds; the colocated loop among them.
    """

    total_gpus: int
    gpus: Mapping[str, tuple[int, int]]
    screened: Mapping[str, Estimate]
    best_set: tuple[str, ...]
    confirmed: Mapping[str, Mapping[str, Estimate]]


def splits(scenario: Scenario, total_gpus: int) -> dict[str, Scenario]:
    """Return the colocated loop and every split that exists (at most 16, evenly spaced).

    The learner's seconds a token are those of ``learner.measured_on_gpus``, or else of the GPUs
    that the scenario gives it, and scale with its GPUs; a replica stays what it is; a control's
    limit on running groups grows with the replicas (verl: 16 a replica). A synchronous scenario is
    split one step off. A streaming filter in turns would abort the long answers and look cheap, so
    the colocated loop replaces dropped groups one for one instead (``replenish``).

    Raises
    ------
    ConfigError
        Too few GPUs for one replica and one rank beside it.
    """
    each, learner = scenario.hardware.gpus_per_replica, scenario.learner
    rank = learner.packing.gpus_per_rank if learner.packing else 1
    measured_on = learner.measured_on_gpus or learner_gpus(scenario)
    counts = [
        n
        for n in range(1, total_gpus // each + 1)
        if total_gpus - n * each >= rank and (total_gpus - n * each) % rank == 0
    ]
    if not counts:
        raise ConfigError(
            f"{total_gpus} GPUs cannot be split: a rollout replica takes {each} "
            f"(hardware.gpus_per_replica) and the learner at least {rank}"
        )
    if len(counts) > _MOST_SPLITS:
        chosen = np.linspace(0, len(counts) - 1, _MOST_SPLITS).round().astype(int)
        counts = [counts[i] for i in chosen]
    found = {}
    if total_gpus % each == 0:
        turns = learner.model_copy(
            update={"schedule": Synchronous(), "gpus": None, "measured_on_gpus": measured_on}
        )
        found[COLOCATED] = _at(_in_turns(scenario), total_gpus // each, learner=turns)
    schedule = learner.schedule
    beside = OneStepOff() if isinstance(schedule, Synchronous) else schedule
    for n in counts:
        own = learner.model_copy(
            update={
                "schedule": _grown(beside, n / scenario.hardware.replicas),
                "gpus": total_gpus - n * each,
                "measured_on_gpus": measured_on,
            }
        )
        found[f"rollout {n * each} + learner {total_gpus - n * each}"] = _at(
            scenario, n, learner=own
        )
    return found


def _in_turns(scenario: Scenario) -> Scenario:
    beside = scenario.learner.schedule.kind == "fully_async"
    if not (beside and isinstance(scenario.collector, Streaming)):
        return scenario
    return scenario.model_copy(update={"collector": Replenish()})


def _grown(schedule: FullyAsync | OneStepOff, factor: float) -> FullyAsync | OneStepOff:
    limit = getattr(getattr(schedule, "control", None), "max_running_groups", None)
    if not isinstance(schedule, FullyAsync) or limit is None:
        return schedule
    control = schedule.control.model_copy(
        update={"max_running_groups": max(round(limit * factor), 1)}
    )
    return schedule.model_copy(update={"control": control})


def _at(scenario: Scenario, replicas: int, *, learner: Learner) -> Scenario:
    hardware: Hardware = scenario.hardware.model_copy(update={"replicas": replicas})
    return scenario.model_copy(update={"hardware": hardware, "learner": learner})


def best_split(
    scenario: Scenario,
    total_gpus: int,
    *,
    seed: int,
    n_jobs: int | None = None,
    on_start: Callable[[str, int], object] = lambda _stage, _n: None,
    on_done: Callable[[], object] = lambda: None,
) -> SplitSearch:
    """Return the splits of ``total_gpus`` that may be the cheapest per trained group.

    The first quarter of a run's steps, in which the pipeline fills, and the last one, in which it
    empties, are left out of every number.

    Parameters
    ----------
    scenario : its replica, learner and schedule; ``run.replications`` and ``run.steps`` hold.
    on_start, on_done : told of each stage with its number of runs, and of each run.

    Raises
    ------
    ConfigError
        As :func:`splits`; fewer than four steps; a split that cannot be run or trained nothing.
    """
    if scenario.run.steps < _LEAST_STEPS:
        raise ConfigError(
            f"run.steps {scenario.run.steps} are too few to judge a split: at least {_LEAST_STEPS}"
        )
    scenarios = splits(scenario, total_gpus)
    first = _run(scenarios, "all splits", seed=seed, n_jobs=n_jobs, start=on_start, done=on_done)
    costs = {name: _cost(runs) for name, runs in first.items()}
    beside = {name: totals for name, totals in costs.items() if name != COLOCATED}
    kept = best_set_of_ratios(beside, level=LEVEL).names
    again = {name: scenarios[name] for name in (COLOCATED, *kept) if name in scenarios}
    fresh = _run(
        again, "the best again", seed=seed + FRESH, n_jobs=n_jobs, start=on_start, done=on_done
    )
    confirmed = {name: _cost(runs) for name, runs in fresh.items()}
    ranked = {name: totals for name, totals in confirmed.items() if name != COLOCATED}
    best = best_set_of_ratios(ranked, level=LEVEL).names
    level = simultaneous(LEVEL, n_comparisons=len(ranked))
    table: dict[str, dict[str, Estimate]] = {}
    for name, runs in fresh.items():
        table[name] = {COST: ratio_of_totals(*confirmed[name], level=LEVEL, unit="s")}
        if name != COLOCATED and COLOCATED in confirmed:
            table[name][GAIN] = paired_ratio(*confirmed[COLOCATED], *confirmed[name], level=level)
        table[name] |= _aside(runs)
    return SplitSearch(
        total_gpus=total_gpus,
        gpus={name: _gpus(one) for name, one in scenarios.items()},
        screened={
            name: ratio_of_totals(*totals, level=LEVEL, unit="s") for name, totals in costs.items()
        },
        best_set=best,
        confirmed=table,
    )


def _gpus(scenario: Scenario) -> tuple[int, int]:
    hardware = scenario.hardware
    return hardware.replicas * hardware.gpus_per_replica, learner_gpus(scenario)


def _steps(scenario: Scenario, seed: int, replication: int) -> pd.DataFrame:
    run = simulate(scenario, seed=seed, replication=replication, keep_groups=False)
    if len(run.steps) < scenario.run.steps:
        raise ConfigError(f"a split cannot be judged: {run.ended} after {len(run.steps)} steps")
    return run.steps.iloc[scenario.run.steps // 4 : -1]


def _run(
    scenarios: Mapping[str, Scenario],
    stage: str,
    *,
    seed: int,
    n_jobs: int | None,
    start: Callable[[str, int], object],
    done: Callable[[], object],
) -> dict[str, list[pd.DataFrame]]:
    tasks = [(n, s, r) for n, s in scenarios.items() for r in range(s.run.replications)]
    start(stage, len(tasks))
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in scenarios}
    work = (delayed(_steps)(scenario, seed, replication) for _, scenario, replication in tasks)
    runs = in_processes(work, n_jobs=n_jobs or min(os.cpu_count() or 1, 8))
    for (name, _, _), steps in zip(tasks, runs, strict=True):
        found[name].append(steps)
        done()
    return found


def _cost(runs: list[pd.DataFrame]) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds and trained groups (with signal, where any has) of each replication."""
    seconds = np.array([steps["time/step_seconds"].sum() for steps in runs])
    groups = np.array([steps["train/mixed_groups"].sum() for steps in runs])
    if not (groups > 0).all():
        groups = np.array([steps["rollout/effective_groups"].sum() for steps in runs])
    if not (groups > 0).all():
        raise ConfigError("a replication trained no group: raise run.steps")
    return seconds, groups


def _aside(runs: list[pd.DataFrame]) -> dict[str, Estimate]:
    found = {}
    for metric in SHOWN:
        means = pd.Series([steps[metric].mean() for steps in runs]).dropna().to_numpy()
        if len(means):
            found[metric] = mean_estimate(means, level=LEVEL, unit=BY_NAME[metric].unit)
    return found


def document(search: SplitSearch) -> dict[str, object]:
    """Return the JSON body of ``dapolab split``."""
    return {
        "gpus": search.total_gpus,
        "splits": {
            name: {"rollout_gpus": rollout, "learner_gpus": learner}
            for name, (rollout, learner) in search.gpus.items()
        },
        "screened": {name: e.to_json() for name, e in search.screened.items()},
        "best_set": list(search.best_set),
        "baseline": COLOCATED if COLOCATED in search.confirmed else None,
        "confirmed": {
            name: {metric: e.to_json() for metric, e in found.items()}
            for name, found in search.confirmed.items()
        },
    }


__all__ = ["COLOCATED", "COST", "GAIN", "SplitSearch", "best_split", "document", "splits"]
