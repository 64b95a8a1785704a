"""Which points of a sweep may be the best: a set, confirmed on fresh seeds.

Ranking is selection (DESIGN.md section 1). Stage 1 keeps every point that the sweep's own numbers
cannot separate from the best; the lowest of many noisy means is too low by construction, so it is
not reported. Stage 2 runs that set again on fresh seeds, pairs the replications, and only its
numbers are the answer. Both stages answer with a set.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
import pandas as pd
from joblib import delayed
from scipy import special

from dapolab.metrics import BY_NAME
from dapolab.processes import in_processes
from dapolab.scenario import ConfigError, Scenario
from dapolab.stats import (
    LEVEL,
    Estimate,
    best_set,
    best_set_of_ratios,
    mean_estimate,
    paired_ratio,
    ratio_of_totals,
    screen,
    simultaneous,
)
from dapolab.sweep.expand import Point, settings_text
from dapolab.sweep.point import COSTS, SIGNAL, Replications, measure

MOST_CONFIRMED = 24
"""Points that stage 2 runs again: more could not be told apart by a reader either."""
_LIMIT = re.compile(r"^\s*(\S+?)\s*(<=|>=|<|>)\s*(\S+)\s*$")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Limit:
    """A condition on a metric, ``rollout/waves <= 3``."""

    metric: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> "Limit":
        """Read a condition; ConfigError where it is none."""
        found = _LIMIT.match(text)
        try:
            if found is None:
                raise ValueError
            return cls(known_metric(found[1]), found[2], float(found[3]))
        except ValueError:
            raise ConfigError(
                f"--subject-to {text!r}: write METRIC <= NUMBER (or >=, <, >), in quotes"
            ) from None

    def holds(self, value: float) -> bool:
        """Whether ``value`` satisfies it."""
        return _OPERATORS[self.sign](value, self.bound)

    def __str__(self) -> str:
        """Return it as one writes it."""
        return f"{self.metric} {self.sign} {self.bound:g}"


@dataclass(frozen=True)
class Contender:
    """Points of equal settings under the sweep's seeds, and what they measured together."""

    name: str
    points: tuple[Point, ...]
    values: Mapping[str, tuple[float, float, int]]

    def satisfies(self, limits: Iterable[Limit]) -> bool:
        """Whether the point estimates satisfy every limit; a missing metric does not."""
        return all(
            limit.metric in self.values and limit.holds(self.values[limit.metric][0])
            for limit in limits
        )


@dataclass(frozen=True)
class Best:
    """The answer.

    Attributes
    ----------
    metric : what was ranked; less is better unless ``maximise`` was asked for.
    best_set : names that fresh seeds cannot separate from the best, best estimate first.
    confirmed : per name that was run again, the metric and the limits' metrics from fresh seeds,
        and ``ratio``: the metric over the baseline's. Intervals hold together.
    baseline : the sweep's first point that could be ranked.
    stage1 : names that the sweep's own numbers left, best first.
    pareto : names that no other point beats in both metrics (empty where one was asked for).
    set_aside : names that could not be ranked, with the reason.
    violated : names of stage 2 whose fresh numbers break a limit, or whose fresh runs failed.
    """

    metric: str
    best_set: tuple[str, ...]
    confirmed: Mapping[str, Mapping[str, Estimate]]
    baseline: str
    stage1: tuple[str, ...]
    pareto: tuple[str, ...]
    set_aside: Mapping[str, str]
    violated: tuple[str, ...]

    @property
    def not_confirmed(self) -> tuple[str, ...]:
        """Names that stage 1 left and that were too many to run again: they may be the best too."""
        return tuple(name for name in self.stage1 if name not in self.confirmed)

    @property
    def winner(self) -> str | None:
        """The one best point, where the data name one."""
        if len(self.best_set) == 1 and not self.not_confirmed:
            return self.best_set[0]
        return None


def known_metric(name: str) -> str:
    """Return the name; ConfigError with the nearest one where no such metric exists."""
    names = [*COSTS, *BY_NAME]
    if name in names:
        return name
    near = get_close_matches(name, names, n=1, cutoff=0.0)
    raise ConfigError(f"unknown metric {name!r}; nearest: {near[0]}")


def settings_of(point: Point) -> str:
    """Return what a point is called: the settings that it changes."""
    return settings_text(point.changed)


def contenders(
    points: Sequence[Point],
    table: pd.DataFrame,
    *,
    name_of: Callable[[Point], str] = settings_of,
) -> tuple[list[Contender], dict[str, str]]:
    """Return the points by settings, seeds taken together, and those that cannot be ranked.

    "No update happened" is no cost of 0 and no tie: such a point has nothing to rank. A point
    whose runs failed in part would be ranked by its survivors, so it is set aside as well.
    """
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(name_of(point), []).append(point)
    rows = table.set_index("id")
    found, aside = [], {}
    for name, same in groups.items():
        reason = _reason(rows.reindex([point.id for point in same]))
        if reason:
            aside[name] = reason
            continue
        mine = rows.loc[[point.id for point in same]]
        found.append(Contender(name, tuple(same), _together(mine)))
    return found, aside


def _reason(rows: pd.DataFrame) -> str | None:
    if "p_fails" not in rows or rows["p_fails"].isna().any():
        errors = [e for e in rows["error"] if isinstance(e, str)]
        return errors[0] if errors else "not computed yet"
    if (rows["p_fails"] > 0).any():
        return f"{rows['p_fails'].mean():.0%} of its runs failed"
    if "train/update_skipped" in rows and (rows["train/update_skipped"] >= 1).any():
        return "no update happened"
    return None


def _together(rows: pd.DataFrame) -> dict[str, tuple[float, float, int]]:
    """Return metric -> (mean, standard error, repetitions) over the seeds' rows."""
    names = [name for name in (*COSTS, *BY_NAME) if f"{name}/se" in rows]
    repetitions = int(rows["replications"].sum())
    found = {}
    for name in names:
        mean, error = rows[name].to_numpy(float), rows[f"{name}/se"].to_numpy(float)
        if np.isfinite(mean).all() and np.isfinite(error).all():
            joint = float(np.sqrt(np.square(error).sum())) / len(rows)
            found[name] = (float(mean.mean()), joint, repetitions)
    return found


def select(
    points: Sequence[Point],
    table: pd.DataFrame,
    *,
    metric: str,
    maximise: bool = False,
    subject_to: Sequence[Limit] = (),
    pareto: str | None = None,
    fresh_seed: int,
    n_jobs: int | None = None,
    level: float = LEVEL,
    name_of: Callable[[Point], str] = settings_of,
    on_start: Callable[[int], None] | None = None,
    on_done: Callable[[], None] | None = None,
) -> Best:
    """Rank the points of a sweep in two stages.

    Parameters
    ----------
    table : ``Swept.table``.
    metric : what to rank by, less is better unless ``maximise``.
    subject_to : limits on metrics.
    pareto : a second metric, less is better: also return the front of both.
    fresh_seed : first of the seeds of stage 2; must not be one of the sweep's.
    name_of : what the points of one contender have in common, and are called.
    on_start, on_done : told the number of points of stage 2, then each one that is finished.

    Raises
    ------
    ConfigError
        Nothing can be ranked: no point has the metric, or none satisfies the limits.
    """
    if fresh_seed in {point.seed for point in points}:
        raise ConfigError(f"seed {fresh_seed} is one of the sweep's own: stage 2 needs fresh ones")
    everyone, aside = contenders(points, table, name_of=name_of)
    ranked = [c for c in everyone if metric in c.values]
    aside |= {c.name: f"it has no interval for {metric}" for c in everyone if c not in ranked}
    feasible = [c for c in ranked if c.satisfies(subject_to)]
    aside |= {c.name: "breaks a limit" for c in ranked if c not in feasible}
    if not feasible:
        raise ConfigError(_nothing(metric, ranked, subject_to, aside))
    stage1 = _stage1(feasible, metric, maximise=maximise, level=level)
    front = _front(feasible, metric, pareto, maximise=maximise, level=level) if pareto else []
    chosen = list({c.name: c for c in (feasible[0], *stage1[:MOST_CONFIRMED])}.values())
    if on_start:
        on_start(len(chosen))
    runs = dict(_again(chosen, fresh_seed, n_jobs, on_done))
    return _stage2(
        runs,
        metric=metric,
        maximise=maximise,
        limits=subject_to,
        level=level,
        stage1=tuple(c.name for c in stage1),
        pareto=tuple(c.name for c in front),
        set_aside=aside,
        baseline=feasible[0].name,
    )


def _nothing(
    metric: str, ranked: Sequence[Contender], limits: Sequence[Limit], aside: Mapping[str, str]
) -> str:
    if ranked:
        return f"no point satisfies {' and '.join(map(str, limits))}: loosen a limit"
    reasons = ", ".join(sorted(set(aside.values()))[:3])
    return f"no point can be ranked by {metric} ({reasons}); raise run.replications, or run more"


def _stage1(
    rows: Sequence[Contender], metric: str, *, maximise: bool, level: float
) -> list[Contender]:
    mean, error, n = (
        np.array(part) for part in zip(*(c.values[metric] for c in rows), strict=True)
    )
    kept = screen(mean, error, n, minimise=not maximise, level=level)
    order = np.argsort(-mean if maximise else mean, kind="stable")
    return [rows[i] for i in order if kept[i]]


def _front(
    rows: Sequence[Contender], metric: str, other: str, *, maximise: bool, level: float
) -> list[Contender]:
    """Return the points that none is surely better than in both metrics."""
    both = [c for c in rows if other in c.values]
    if not both:
        return []
    sign = np.array([-1.0 if maximise else 1.0, 1.0])
    cost = np.array([[c.values[name][0] for name in (metric, other)] for c in both]) * sign
    error = np.array([[c.values[name][1] for name in (metric, other)] for c in both])
    # Bonferroni over rivals and the two metrics, normal quantile: a front is a picture, the
    # verdict comes from stage 2
    z = -float(special.ndtri((1.0 - simultaneous(level, n_comparisons=2 * len(both))) / 2))
    kept = []
    for i in range(len(both)):
        gap = cost[i] - cost
        spread = np.sqrt(error[i] ** 2 + error**2)
        worse = gap > z * spread
        not_better = gap >= 0
        if not (not_better.all(axis=1) & worse.any(axis=1)).any():
            kept.append(both[i])
    return sorted(kept, key=lambda c: c.values[metric][0])


def _again(
    chosen: Sequence[Contender],
    fresh_seed: int,
    n_jobs: int | None,
    on_done: Callable[[], None] | None,
) -> list[tuple[str, Replications]]:
    """Run each contender on the fresh seed with all the repetitions that it had."""
    points = [
        replace(
            c.points[0], seed=fresh_seed, scenario=_repeated(c.points[0].scenario, len(c.points))
        )
        for c in chosen
    ]
    found = []
    work = (delayed(measure)(p) for p in points)
    measured = in_processes(work, n_jobs=n_jobs or -1, batch_size=1)
    for c, runs in zip(chosen, measured, strict=True):
        found.append((c.name, runs))
        if on_done:
            on_done()
    return found


def _repeated(scenario: Scenario, n_seeds: int) -> Scenario:
    """Return the scenario with the repetitions of all its seeds, and no fewer than 6."""
    n = max(scenario.run.replications * n_seeds, 6)
    return scenario.model_copy(update={"run": scenario.run.model_copy(update={"replications": n})})


def _stage2(
    runs: Mapping[str, Replications],
    *,
    metric: str,
    maximise: bool,
    limits: Sequence[Limit],
    level: float,
    stage1: tuple[str, ...],
    pareto: tuple[str, ...],
    set_aside: Mapping[str, str],
    baseline: str,
) -> Best:
    each = simultaneous(level, n_comparisons=max(len(runs), 1))
    names = list(dict.fromkeys([metric, *(limit.metric for limit in limits)]))
    confirmed: dict[str, dict[str, Estimate]] = {}
    for name, own in runs.items():
        confirmed[name] = {m: e for m in names if (e := _estimate(own, m, level=each))}
        ratio = over_baseline(own, runs[baseline], metric, level=each) if name != baseline else None
        if ratio is not None:
            confirmed[name]["ratio"] = ratio
    violated = tuple(
        name
        for name, own in runs.items()
        if own.n_failed
        or not all(
            limit.metric in confirmed[name] and limit.holds(confirmed[name][limit.metric].mean)
            for limit in limits
        )
    )
    usable = {n: r for n, r in runs.items() if n not in violated and metric in confirmed[n]}
    return Best(
        metric=metric,
        best_set=_ranked(usable, metric, maximise=maximise, level=level) if usable else (),
        confirmed=confirmed,
        baseline=baseline,
        stage1=stage1,
        pareto=pareto,
        set_aside=set_aside,
        violated=violated,
    )


def _estimate(runs: Replications, metric: str, *, level: float) -> Estimate | None:
    if metric in COSTS:
        paid, signal = runs.totals[COSTS[metric]], runs.totals[SIGNAL]
        if not signal.sum() > 0:
            return None
        unit = BY_NAME[COSTS[metric]].unit
        return ratio_of_totals(paid.to_numpy(), signal.to_numpy(), unit=unit, level=level)
    values = runs.means[metric].dropna().to_numpy()
    if not values.size:
        return None
    return mean_estimate(values, unit=BY_NAME[metric].unit, level=level)


def over_baseline(
    mine: Replications, base: Replications, metric: str, *, level: float = LEVEL
) -> Estimate | None:
    """Return the ratio to the baseline, paired by replication; None where there is none."""
    try:
        if metric in COSTS:
            column = COSTS[metric]
            parts = [r.totals[c].to_numpy() for r in (mine, base) for c in (column, SIGNAL)]
        else:
            parts = []
            for r in (mine, base):
                parts += [r.means[metric].to_numpy(), np.ones(len(r.means))]
        return paired_ratio(*parts, level=level)
    except ValueError:  # a total of 0, a negative or a missing value: no ratio exists
        return None


def _ranked(
    runs: Mapping[str, Replications], metric: str, *, maximise: bool, level: float
) -> tuple[str, ...]:
    if metric in COSTS:
        pairs = {
            name: (r.totals[COSTS[metric]].to_numpy(), r.totals[SIGNAL].to_numpy())
            for name, r in runs.items()
        }
        return best_set_of_ratios(pairs, minimise=not maximise, level=level).names
    values = {name: r.means[metric].to_numpy() for name, r in runs.items()}
    whole = {name: v for name, v in values.items() if np.isfinite(v).all()}
    if not whole:
        return ()
    return best_set(whole, minimise=not maximise, level=level).names
