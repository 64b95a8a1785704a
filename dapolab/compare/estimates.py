"""From step rows to estimates: ratios of totals, paired ratios, sets of the best."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from dapolab.metrics import BY_NAME, STEP_METRICS
from dapolab.stats import (
    LEVEL,
    Estimate,
    best_set_of_ratios,
    mean_estimate,
    paired_ratio,
    ratio_of_totals,
    simultaneous,
    wilson,
)

# A trained all-right or all-wrong group has no gradient: what a policy costs is counted per trained
# group that carries signal. For every policy that filters on correctness the two are the same.
# Ratios over a replication: name -> (numerator, denominator, unit, meaning). Both are totals, but
# for the lengths, which are means over the replication's groups (_MEANS), not over its steps.
HEADLINES: dict[str, tuple[str, str, str, str]] = {
    "per_trained_group/seconds": (
        "time/step_seconds",
        "train/mixed_groups",
        "s",
        "wall-clock seconds for one trained group that carries signal",
    ),
    "per_trained_group/gpu_seconds": (
        "time/gpu_seconds",
        "train/mixed_groups",
        "GPU·s",
        "GPU seconds for one trained group that carries signal",
    ),
    "per_trained_group/completion_tokens": (
        "rollout/completion_tokens",
        "train/mixed_groups",
        "tokens",
        "generated tokens for one trained group that carries signal",
    ),
    "share/train_tokens": (
        "rollout/train_completion_tokens",
        "rollout/completion_tokens",
        "share",
        "generated tokens that are trained",
    ),
    "share/tail": (
        "time/tail_seconds",
        "time/step_seconds",
        "share",
        "step time spent waiting for the longest answers",
    ),
    "bias/trained_length": (
        "bias/length_trained",
        "bias/length_effective",
        "ratio",
        "length of trained over all mixed candidates: what the policy alone does",
    ),
}
RANKED = "per_trained_group/seconds"

# Step means that are averaged over groups: column -> the step's number of groups behind it. A mean
# over steps would weigh a step that trains one group like one that trains all.
_MEANS = {
    "bias/length_trained": "rollout/effective_groups",
    "bias/length_effective": "rollout/mixed_candidate_groups",
}
# What may end a step before it is full, as far as a user wants to know.
LIMITS = ("seconds", "candidate_tokens", "train_tokens", "cap", "data")

Totals = dict[str, dict[str, np.ndarray]]


def totals_of(steps: pd.DataFrame, policies: Sequence[str], n: int) -> Totals:
    """Return per policy and column the total over each replication, NaN where it has no step.

    The lengths of ``_MEANS`` are means over the replication's groups instead; NaN without groups.
    """
    columns = {c for headline in HEADLINES.values() for c in headline[:2]}
    totals: Totals = {}
    for name in policies:
        rows = steps[steps["policy"] == name].set_index("replication")
        weights = rows[list(_MEANS.values())].set_axis(list(_MEANS), axis=1)
        sums = _per_replication(rows[sorted(columns - set(_MEANS))], n)
        means = _per_replication(rows[list(_MEANS)] * weights, n) / _per_replication(
            weights, n
        ).where(lambda groups: groups > 0)
        table = pd.concat([sums, means], axis=1)
        totals[name] = {column: table[column].to_numpy(dtype=float) for column in columns}
    return totals


def _per_replication(rows: pd.DataFrame, n: int) -> pd.DataFrame:
    """Return sums over each replication's steps; a step may lack a value, a replication not all."""
    return rows.groupby(level="replication").sum(min_count=1).reindex(range(n))


def _usable(*columns: np.ndarray) -> bool:
    """Whether a ratio of totals exists, and still does without any one replication.

    A replication that trains nothing still pays its seconds, so single zeros are no obstacle.
    """
    return all(bool(np.all(np.isfinite(c)) and np.count_nonzero(c > 0) > 1) for c in columns)


def ratios_of(totals: Totals, name: str, policies: Sequence[str]) -> dict[str, Estimate]:
    """Return policy over baseline for each headline; absent where a total is zero or missing."""
    level = simultaneous(LEVEL, n_comparisons=max(len(policies) - 1, 1))
    found = {}
    for headline, (over, under, _, _) in HEADLINES.items():
        mine, base = totals[name], totals[policies[0]]
        columns = (mine[over], mine[under], base[over], base[under])
        if _usable(*columns):
            found[headline] = paired_ratio(*columns, level=level)
    return found


def best_of(totals: Totals, policies: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return, for each cost of a trained group, the policies that may be the cheapest."""
    best = {}
    for headline, (over, under, _, _) in HEADLINES.items():
        if not headline.startswith("per_trained_group"):
            continue
        pairs = {
            name: (totals[name][over], totals[name][under])
            for name in policies
            if _usable(totals[name][over], totals[name][under])
        }
        if pairs:
            best[headline] = best_set_of_ratios(pairs, level=LEVEL).names
    return best


def estimates_of(
    steps: pd.DataFrame, endings: pd.DataFrame, totals: Totals, name: str
) -> dict[str, Estimate]:
    """Return every metric of a policy: headlines, step means over replications, how runs ended."""
    rows = steps[steps["policy"] == name]
    found: dict[str, Estimate] = {}
    for headline, (over, under, unit, _) in HEADLINES.items():
        if np.isfinite(totals[name][over]).all() and _usable(totals[name][under]):
            found[headline] = possible(
                ratio_of_totals(totals[name][over], totals[name][under], level=LEVEL, unit=unit)
            )
    for metric in STEP_METRICS:
        per_replication = rows.groupby("replication")[metric.name].mean().dropna().to_numpy()
        if len(per_replication):
            found[metric.name] = possible(
                mean_estimate(per_replication, level=LEVEL, unit=metric.unit)
            )
    for limit in LIMITS:
        if (rows["ended_by"] == limit).any():
            share = (rows["ended_by"] == limit).groupby(rows["replication"]).mean().to_numpy(float)
            found[f"run/ended_by_{limit}"] = possible(
                mean_estimate(share, level=LEVEL, unit="share")
            )
    mine = endings[endings["policy"] == name]
    found["run/p_fails"] = wilson(int(mine["failed"].sum()), len(mine), level=LEVEL)
    found["run/steps"] = mean_estimate(mine["n_steps"].to_numpy(float), level=LEVEL, unit="steps")
    return found


def possible(estimate: Estimate) -> Estimate:
    """Cut an interval to where the quantity can be: rewards anywhere, shares in [0, 1], else ≥ 0.

    The cut end cannot hold the true value, so the interval covers as often as before.
    """
    low, high = estimate.low, estimate.high
    if low is None or high is None or estimate.unit == "reward":
        return estimate
    high = min(high, 1.0) if estimate.unit == "share" else high
    return replace(estimate, low=max(low, 0.0), high=high)


def waves_distribution(
    steps: pd.DataFrame, policies: Sequence[str]
) -> dict[str, tuple[tuple[int, ...], tuple[float, ...]]]:
    """Return, per policy with a barrier, the numbers of waves that occur and their shares."""
    found = {}
    for name in policies:
        waves = steps.loc[steps["policy"] == name, "rollout/waves"].dropna().astype(int)
        if len(waves):
            shares = waves.value_counts(normalize=True).sort_index()
            found[name] = (tuple(int(w) for w in shares.index), tuple(map(float, shares)))
    return found


def unranked(totals: Totals, policies: Sequence[str]) -> dict[str, str]:
    """Return the policies that the ranking leaves out, each with the reason."""
    over, under, _, _ = HEADLINES[RANKED]
    found = {}
    for name in policies:
        cost, groups = totals[name][over], totals[name][under]
        if _usable(cost, groups):
            continue
        n_missing = int(np.isnan(cost).sum())
        if n_missing:
            found[name] = f"{n_missing} of {len(cost)} replications completed no step"
        elif not groups.any():
            found[name] = "it trained no group that carries signal"
        else:
            found[name] = "only one replication trained a group that carries signal"
    return found


def unit_of(metric: str) -> str:
    """Return the unit of a headline or step metric."""
    if metric in HEADLINES:
        return HEADLINES[metric][2]
    return BY_NAME[metric].unit if metric in BY_NAME else ""
