"""Search a framework's options on the simulator: two stages, a set, what it costs, when it turns.

A policy is chosen by what a trained group that carries signal costs, among those that fill the
batch and never fail. Inside the set that cannot be told apart the one with the least side effects
is recommended: no stale tokens first, then trained lengths nearest to those of all mixed groups.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from joblib import delayed

from dapolab.advise.options import Option, Setting
from dapolab.compare import scenarios_with_draws
from dapolab.processes import in_processes
from dapolab.scenario import ConfigError, JointWorkload, Scenario
from dapolab.sim.run import simulate
from dapolab.stats import LEVEL, Estimate, mean_estimate
from dapolab.sweep import COSTS, Best, Limit, Point, measure, over_baseline, row_of, select
from dapolab.sweep.point import Replications

METRICS = tuple(COSTS)
FILL = "rollout/effective_fill_ratio"
STALENESS = "staleness/mean_versions"
SIDE_EFFECTS = {
    "bias/length_ratio_policy": "length of trained over all mixed groups",
    "bias/pass_rate_trained": "pass rate of trained groups",
    "bias/pass_rate_effective": "pass rate of all mixed groups",
    "rollout/token_utilisation": "trained over generated tokens",
    STALENESS: "age of trained tokens, versions",
    FILL: "trained over wanted groups",
}
SHIFTS = (0.5, 1.0, 1.5, 2.0, 3.0)
"""Steps of the mean logit at which the choice is looked at again: the model gets better."""
_FRESH = 1000


@dataclass(frozen=True)
class Turn:
    """The choice at another pass rate.

    Attributes
    ----------
    accuracy : mean pass rate of all candidates there.
    best_set : options that cannot be told from the best there.
    gain : cost of the recommended option over the baseline's there; None where one is missing.
    """

    accuracy: float
    best_set: tuple[str, ...]
    gain: Estimate | None


@dataclass(frozen=True)
class Advice:
    """What to set.

    Attributes
    ----------
    framework, metric : what was asked.
    option, baseline : recommended and what the framework does by itself.
    settings : the recommended option in the framework's keys.
    gain : cost of the recommended option over the baseline's, from fresh seeds; below 1 is
        cheaper. With the fit's uncertainty where the workload was fitted. None where the baseline
        cannot be used, for the reason in ``best.set_aside``.
    costs : side effect -> option and baseline, from fresh seeds.
    best : both stages of the ranking.
    turns : the choice as pass rates rise; empty where the workload has no such parameter.
    """

    framework: str
    metric: str
    option: str
    baseline: str
    settings: Mapping[str, Setting]
    gain: Estimate | None
    costs: Mapping[str, Mapping[str, Estimate]]
    best: Best
    turns: tuple[Turn, ...]

    @property
    def changes_at(self) -> Turn | None:
        """The first pass rate at which the recommended option has left the best set."""
        return next((turn for turn in self.turns if self.option not in turn.best_set), None)


def advise(
    scenario: Scenario,
    options: Sequence[Option],
    *,
    framework: str,
    metric: str = METRICS[0],
    least_fill: float = 0.99,
    seed: int = 0,
    n_jobs: int | None = None,
    on_done: Callable[[], None] | None = None,
) -> Advice:
    """Choose among a framework's options for one workload, batch and hardware.

    Parameters
    ----------
    options : the baseline first.
    metric : one of ``METRICS``.
    least_fill : share of the wanted groups that a step must train, on average; an option that
        leaves the batch shorter is another experiment, not a cheaper one.

    Raises
    ------
    ConfigError
        No option fills the batch without failing.
    """
    jobs = n_jobs or -1
    limits = (Limit(FILL, ">=", least_fill),)
    best = _rank(scenario, options, metric, limits, seed=seed, jobs=jobs, on_done=on_done)
    fresh = seed + 2 * _FRESH
    if not best.best_set:
        raise ConfigError(
            f"no option of {framework} trained {least_fill:.0%} of the wanted groups on fresh "
            "seeds too; lower --least-fill, or raise run.replications"
        )
    names = {option.name: option for option in options}
    runs = _runs(scenario, [names[name] for name in best.best_set], seed=fresh, jobs=jobs)
    chosen = min(best.best_set, key=lambda name: _side_effect(runs[name]))
    baseline = options[0]
    pair = _runs(scenario, [names[chosen], baseline], seed=fresh + _FRESH, jobs=jobs, fitted=True)
    usable = baseline.name not in best.set_aside
    return Advice(
        framework=framework,
        metric=metric,
        option=chosen,
        baseline=baseline.name,
        settings=names[chosen].settings,
        gain=over_baseline(pair[chosen], pair[baseline.name], metric) if usable else None,
        costs=_costs({name: pair[name] for name in (chosen, baseline.name)}),
        best=best,
        turns=tuple(
            _turn(one, options, chosen, metric, limits, seed=seed, jobs=jobs, on_done=on_done)
            for one in _shifted(scenario)
        ),
    )


def n_simulated(scenario: Scenario, options: Sequence[Option]) -> int:
    """Return how often ``advise`` calls ``on_done``."""
    return len(options) * (1 + len(_shifted(scenario)))


def _points(scenario: Scenario, options: Sequence[Option], *, seed: int) -> list[Point]:
    """Return a point an option; the names make the rows of the table."""
    budget = scenario.collector.budget
    return [
        Point(
            id=option.name,
            changed={"option": option.name},
            scenario=scenario.model_copy(
                update={"collector": option.collector.model_copy(update={"budget": budget})}
            ),
            seed=seed,
        )
        for option in options
    ]


def _rank(
    scenario: Scenario,
    options: Sequence[Option],
    metric: str,
    limits: Sequence[Limit],
    *,
    seed: int,
    jobs: int,
    on_done: Callable[[], None] | None,
) -> Best:
    points = _points(scenario, options, seed=seed)
    rows = []
    for row in in_processes((delayed(row_of)(p) for p in points), n_jobs=jobs):
        rows.append(row)
        if on_done:
            on_done()
    return select(
        points,
        pd.DataFrame(rows),
        metric=metric,
        subject_to=limits,
        fresh_seed=seed + _FRESH,
        n_jobs=jobs,
        name_of=_option_of,
    )


def _option_of(point: Point) -> str:
    return point.id


def _runs(
    scenario: Scenario,
    options: Sequence[Option],
    *,
    seed: int,
    jobs: int,
    fitted: bool = False,
) -> dict[str, Replications]:
    """Measure options on a seed; ``fitted``: each replication with its own draw of the fit."""
    draws = scenarios_with_draws(scenario) if fitted else None
    points = _points(scenario, options, seed=seed)
    workloads = [draws(r).workload for r in range(scenario.run.replications)] if draws else None
    work = (delayed(measure)(point, workloads) for point in points)
    measured = in_processes(work, n_jobs=jobs)
    return {point.id: runs for point, runs in zip(points, measured, strict=True)}


def _side_effect(runs: Replications) -> tuple[float, float]:
    """Return what an option does besides: stale tokens, then distance of the trained lengths."""
    stale = _mean(runs, STALENESS) if STALENESS in runs.means else 0.0
    ratio = _mean(runs, "bias/length_ratio_policy")
    return round(stale, 3), abs(math.log(ratio)) if ratio > 0 else math.inf


def _mean(runs: Replications, metric: str) -> float:
    values = runs.means[metric].to_numpy(float)
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


def _costs(runs: Mapping[str, Replications]) -> dict[str, dict[str, Estimate]]:
    found: dict[str, dict[str, Estimate]] = {}
    for metric in SIDE_EFFECTS:
        for name, own in runs.items():
            if metric not in own.means:
                continue
            values = own.means[metric].dropna().to_numpy()
            if len(values):
                found.setdefault(metric, {})[name] = mean_estimate(values, level=LEVEL)
    return found


def _shifted(scenario: Scenario) -> list[Scenario]:
    """Return the scenario with easier and easier prompts, as far as its workload can say so."""
    workload = scenario.workload
    if not isinstance(workload, JointWorkload):
        return []
    return [
        scenario.model_copy(
            update={
                "workload": workload.model_copy(
                    update={"mean_logit": workload.mean_logit + shift, "draws": None}
                )
            }
        )
        for shift in SHIFTS
    ]


def _turn(
    scenario: Scenario,
    options: Sequence[Option],
    chosen: str,
    metric: str,
    limits: Sequence[Limit],
    *,
    seed: int,
    jobs: int,
    on_done: Callable[[], None] | None,
) -> Turn:
    run = simulate(
        scenario.model_copy(update={"collector": options[0].collector}),
        seed=seed,
        keep_groups=False,
    )
    accuracy = float(run.steps["reward/accuracy"].mean()) if len(run.steps) else math.nan
    try:
        best = _rank(scenario, options, metric, limits, seed=seed, jobs=jobs, on_done=on_done)
    except ConfigError:
        return Turn(accuracy, (), None)
    gain = best.confirmed.get(chosen, {}).get("ratio")
    return Turn(accuracy, best.best_set, gain if best.baseline == options[0].name else None)
