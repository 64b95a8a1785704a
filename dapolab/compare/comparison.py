"""Several collection policies on the same draws, as one comparison.

The unit is the replication, never the step. Headline metrics are ratios of totals per trained
group; against the baseline they are paired by replication and simultaneous over the policies; the
best is a set, because policies that the intervals cannot separate are tied. A policy that ends its
run with an error is reported with that probability, never by its surviving runs alone.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd

from dapolab.compare.estimates import (
    best_of,
    estimates_of,
    ratios_of,
    totals_of,
    unranked,
    waves_distribution,
)
from dapolab.compare.policies import run_policies
from dapolab.scenario import Collector, ConfigError, Scenario
from dapolab.sim.run import SimRun
from dapolab.stats import Estimate


@dataclass(frozen=True)
class Comparison:
    """Tables and estimates of one comparison.

    Attributes
    ----------
    collectors : the policies by name, baseline first.
    steps : policy, replication, step and step metrics.
    groups, waves, responses : the same keys; groups and responses of replication 0 alone.
    endings : policy, replication, ended, n_steps, failed, n_prompts_used, unlearned_s.
    estimates : per policy, metric name -> Estimate (mean over replications).
    ratios : per policy other than the baseline, headline -> Estimate (policy over baseline).
    best : headline -> the policies that cannot be separated from the best.
    waves_distribution : per barrier policy, (waves, shares).
    notes : what the reader must know: assumptions, failures, warnings.
    """

    scenario: Scenario
    seed: int
    collectors: Mapping[str, Collector]
    steps: pd.DataFrame
    groups: pd.DataFrame
    waves: pd.DataFrame
    responses: pd.DataFrame
    endings: pd.DataFrame
    estimates: dict[str, dict[str, Estimate]]
    ratios: dict[str, dict[str, Estimate]]
    best: dict[str, tuple[str, ...]]
    waves_distribution: dict[str, tuple[tuple[int, ...], tuple[float, ...]]]
    notes: tuple[str, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """Return the names, baseline first."""
        return tuple(self.collectors)

    @property
    def baseline(self) -> str:
        """Return the policy that ratios refer to."""
        return self.policies[0]


def compare(
    scenario: Scenario,
    collectors: Mapping[str, Collector],
    *,
    seed: int,
    n_jobs: int | None = None,
    on_done: Callable[[], None] | None = None,
    scenario_of: Callable[[int], Scenario] | None = None,
) -> Comparison:
    """Run and compare ``collectors`` (the first is the baseline) on common random numbers.

    Raises
    ------
    ConfigError
        No policy trained a single group; the message says what was collected instead.
    """
    runs = run_policies(
        scenario, collectors, seed=seed, n_jobs=n_jobs, on_done=on_done, scenario_of=scenario_of
    )
    policies = tuple(collectors)
    steps = _table(runs, "steps")
    endings = pd.DataFrame(
        [
            {
                "policy": name,
                "replication": replication,
                "ended": run.ended,
                "n_steps": len(run.steps),
                "failed": run.failed,
                "n_prompts_used": run.n_prompts_used,
                "unlearned_s": run.unlearned_s,
            }
            for (name, replication), run in sorted(runs.items())
        ]
    )
    if len(steps) == 0:
        raise ConfigError(str(endings["ended"].iloc[0]))
    if not steps["rollout/effective_groups"].any():
        raise ConfigError(_nothing_trained(steps, policies))
    totals = totals_of(steps, policies, scenario.run.replications)
    ratios = {name: ratios_of(totals, name, policies) for name in policies[1:]}
    return Comparison(
        scenario=scenario,
        seed=seed,
        collectors=dict(collectors),
        steps=steps,
        groups=_table(runs, "groups"),
        waves=_table(runs, "waves"),
        responses=_table(runs, "responses"),
        endings=endings,
        estimates={name: estimates_of(steps, endings, totals, name) for name in policies},
        ratios=ratios,
        best=best_of(totals, policies),
        waves_distribution=waves_distribution(steps, policies),
        notes=_notes(scenario, endings, unranked(totals, policies), with_draws=bool(scenario_of)),
    )


def _table(runs: Mapping[tuple[str, int], SimRun], name: str) -> pd.DataFrame:
    frames = []
    for (policy, replication), run in sorted(runs.items()):
        frame: pd.DataFrame = getattr(run, name)
        if len(frame):
            frame = frame.copy()
            frame.insert(0, "policy", policy)
            frame.insert(1, "replication", replication)
            frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _nothing_trained(steps: pd.DataFrame, policies: tuple[str, ...]) -> str:
    said = f"no group was trained in {len(steps)} steps of {', '.join(policies)}"
    candidates = steps["rollout/candidate_groups"].sum()
    returned = steps["rollout/candidate_groups"] - steps["rollout/aborted_groups"]
    if not returned.any():
        ended = ", ".join(sorted(set(steps["ended_by"])))
        return (
            f"{said}: none of {candidates:,.0f} candidate groups returned before the steps ended "
            f"({ended}); raise the budget"
        )
    wrong, right = (
        (steps[f"rollout/all_{kind}_share"] * returned).sum() / returned.sum()
        for kind in ("wrong", "right")
    )
    return (
        f"{said}: of {returned.sum():,.0f} candidate groups that returned {wrong:.1%} were all "
        f"wrong and {right:.1%} all right; check the difficulty of the workload"
    )


def _notes(
    scenario: Scenario, endings: pd.DataFrame, unranked: Mapping[str, str], *, with_draws: bool
) -> tuple[str, ...]:
    notes = list(scenario.assumptions)
    if getattr(scenario.workload, "draws", None) and not with_draws:
        notes.append(
            "intervals of metrics and ratios hold for the fitted workload as it stands: the fit's "
            "own uncertainty is in the forecast of simulate alone"
        )
    for name, rows in endings.groupby("policy", sort=False):
        # failures differ in their counts: one line for all of them, with the first in full
        for ended, same in rows.groupby(rows["ended"].str.split(":").str[0], sort=False):
            if ended != "completed":
                steps = f"after {same['n_steps'].mean():.1f} steps on average"
                lost_s = same["unlearned_s"].mean()
                left_out = (
                    f"; the step that was lost then, {lost_s:.3g} s on average, is in no mean of "
                    "steps or groups"
                    if lost_s > 0
                    else ""
                )
                notes.append(
                    f"{name}: {len(same)} of {len(rows)} replications ended {steps}: "
                    f"{same['ended'].iloc[0]}{left_out}"
                )
    notes += [f"{name}: not ranked, {reason}" for name, reason in unranked.items()]
    native = getattr(scenario.workload, "native_cap_tokens", None)
    if native is not None and scenario.rollout.cap_tokens > native:
        notes.append(
            f"cap {scenario.rollout.cap_tokens} is beyond the data's cap {native}: lengths above "
            "it are extrapolated, and loops cannot be told from long answers there"
        )
    return tuple(notes)


def document(comparison: Comparison) -> dict[str, object]:
    """Return the comparison as DESIGN.md §8's JSON body (without the envelope)."""
    return {
        "scenario": comparison.scenario.name,
        "policies": {
            name: {metric: e.to_json() for metric, e in metrics.items() if math.isfinite(e.mean)}
            for name, metrics in comparison.estimates.items()
        },
        "waves_distribution": {
            name: {"waves": list(waves), "shares": list(shares)}
            for name, (waves, shares) in comparison.waves_distribution.items()
        },
        "baseline": comparison.baseline,
        "ratios": {
            name: {metric: e.to_json() for metric, e in metrics.items()}
            for name, metrics in comparison.ratios.items()
        },
        "best": {metric: list(names) for metric, names in comparison.best.items()},
        "notes": list(comparison.notes),
    }
