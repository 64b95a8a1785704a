"""The figures of a comparison, each with the words to read it by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from dapolab.report import formats
from dapolab.report.bars import stacked_bars, wave_bars
from dapolab.report.document import FigureSpec
from dapolab.report.dots import Dots, Panel, dot_panels
from dapolab.report.style import PART_COLOURS, STATUS_COLOURS
from dapolab.stats import Estimate, ratio_of_totals

if TYPE_CHECKING:
    from dapolab.report.comparison import ComparisonTables

RANKED = "per_trained_group/seconds"
PART_LABELS = {part: part.replace("_", " ") for part in PART_COLOURS} | {
    "tail": "waiting for the tail",
    "old_logprob": "old log-prob",
}
STATUS_LABELS = {
    "trained": "trained",
    "degenerate": "all right or all wrong",
    "surplus": "surplus",
    "aborted": "aborted",
}


def _column_sums(steps: pd.DataFrame, columns: list[str]) -> dict[str, dict[str, float]]:
    """Return policy -> column -> sum over all steps, with the number of steps under "steps"."""
    present = [column for column in columns if column in steps]
    table = steps.groupby("policy", sort=False)[present].sum().astype(float)
    n_steps = steps.groupby("policy", sort=False).size().astype(float)
    sums = {str(name): {str(c): float(v) for c, v in row.items()} for name, row in table.iterrows()}
    return {name: sums[name] | {"steps": float(n_steps.loc[name])} for name in sums}


def time_figure(tables: ComparisonTables) -> FigureSpec:
    """Return the mean step time split into its parts, one bar a policy."""
    sums = _column_sums(tables.steps, [f"time/{part}_seconds" for part in PART_COLOURS])
    values = {
        name: {
            part: sums[name].get(f"time/{part}_seconds", 0.0) / sums[name]["steps"]
            for part in PART_COLOURS
        }
        for name in tables.policies
        if name in sums
    }
    totals = {name: f"{formats.number(sum(parts.values()))} s" for name, parts in values.items()}
    said = [f"{name} {total}" for name, total in totals.items()]
    figure = stacked_bars(
        values,
        colours=PART_COLOURS,
        labels=PART_LABELS,
        x_label="seconds per step, mean over all steps",
        totals=totals,
    )
    return FigureSpec(
        name="time",
        figure=figure,
        title="Step time and its parts",
        alt=f"Stacked bars of the mean step time of each policy: {', '.join(said)}.",
        how_to_read=(
            "A bar is the mean training step. Hatched orange is the time in which slots stand "
            "empty until the longest answer of a wave (or of the step, without waves) ends; decode "
            "is what the same tokens would take at full concurrency. Read it together with the "
            "cost per trained group above: a policy that trains fewer groups a step has a short "
            "bar and may still be dear."
        ),
    )


def cost_figure(tables: ComparisonTables) -> FigureSpec | None:
    """Return seconds per trained group relative to the baseline, with simultaneous intervals."""
    ratios = {n: tables.ratios[n][RANKED] for n in tables.ratios if RANKED in tables.ratios[n]}
    if not ratios:
        return None
    shown = {tables.baseline: Estimate.exact(1.0, unit="ratio"), **ratios}
    best = tuple(tables.best.get(RANKED, ()))
    missing = dict.fromkeys(tables.policies, "trained too little to compare")
    # the cheapest on top, those without a number at the end
    order = sorted(tables.policies, key=lambda n: shown[n].mean if n in shown else math.inf)
    figure = dot_panels(
        order,
        [Panel("", [Dots("", shown)], reference=1.0, values=True)],
        ringed=best,
        notes=missing,
        x_label=f"seconds per trained group, {tables.baseline} = 1",
    )
    said = [f"{name} {formats.estimate(ratio)}" for name, ratio in ratios.items()]
    unfiltered = ""
    if "none" in tables.policies:
        unfiltered = (
            " Only groups with right and wrong answers count as trained here: the others, which a "
            "policy without a filter trains too, teach nothing."
        )
    return FigureSpec(
        name="cost",
        figure=figure,
        title=f"Seconds per trained group, relative to {tables.baseline}",
        alt=(
            f"Dots with intervals relative to {tables.baseline}: {', '.join(said)}. "
            f"May be the best: {', '.join(best)}."
        ),
        how_to_read=(
            "The cheapest is on top; left of the line is cheaper. Intervals hold all together at "
            "99 %; replications are paired, so common luck has cancelled out. One that crosses the "
            "line leaves the direction open. Rings mark the policies that cannot be told from the "
            "best; their order is not established, and the gain of one picked here should be "
            "measured on fresh seeds." + unfiltered
        ),
    )


def waves_figure(tables: ComparisonTables) -> FigureSpec | None:
    """Return the distribution of waves per step for the policies that have a barrier."""
    found = {n: tables.waves_distribution[n] for n in tables.policies
             if n in tables.waves_distribution}  # fmt: skip
    if not found:
        return None
    means = {name: sum(w * s for w, s in zip(*pair, strict=True)) for name, pair in found.items()}
    said = [f"{name} {formats.number(mean, decimals=2)}" for name, mean in means.items()]
    return FigureSpec(
        name="waves",
        figure=wave_bars(found, policies=tables.policies),
        title="Waves per step",
        alt=f"Bars of the share of steps by number of waves. Mean waves: {', '.join(said)}.",
        how_to_read=(
            "Bar at 3: the share of steps that needed three waves. Each further wave waits for its "
            "own longest answer, so mass to the right is time. Policies without a barrier have no "
            "waves and no row."
        ),
    )


TOKEN_COLUMNS = {
    "trained": "rollout/train_completion_tokens",
    "degenerate": "rollout/degenerate_tokens",
    "surplus": "rollout/surplus_tokens",
    "aborted": "rollout/aborted_tokens",
}


def tokens_figure(tables: ComparisonTables) -> FigureSpec | None:
    """Return generated tokens by what became of them, per trained group."""
    groups = "train/mixed_groups"
    sums = _column_sums(tables.steps, [*TOKEN_COLUMNS.values(), groups])
    values = {
        name: {
            status: sums[name].get(column, 0.0) / sums[name][groups]
            for status, column in TOKEN_COLUMNS.items()
        }
        for name in tables.policies
        if sums.get(name, {}).get(groups, 0.0) > 0
    }
    if not values:
        return None
    shares = {
        n: parts.get("trained", 0) / max(sum(parts.values()), 1) for n, parts in values.items()
    }
    totals = {name: f"{share:.0%} trained" for name, share in shares.items()}
    figure = stacked_bars(
        values,
        colours=STATUS_COLOURS,
        labels=STATUS_LABELS,
        x_label="generated tokens per trained group",
        totals=totals,
    )
    said = [f"{name} {total}" for name, total in totals.items()]
    return FigureSpec(
        name="tokens",
        figure=figure,
        title="What became of the generated tokens",
        alt=f"Stacked bars of generated tokens per trained group: {', '.join(said)}.",
        how_to_read=(
            "Green is trained. Grey went to groups whose answers are all right or all wrong: "
            "that is the workload's doing and shrinks only with better prompts; a policy without a "
            "filter trains them too, and they count as green there. Orange finished "
            "in vain, beyond the batch; hatched red was cut off in flight: those two are the price "
            "that the policy pays for its speed."
        ),
    )


BIAS = {
    "trained length over …": ("length_trained", "length_candidates", "length_effective"),
    "trained pass rate over …": (
        "pass_rate_trained",
        "pass_rate_candidates",
        "pass_rate_effective",
    ),
}


def bias_figure(tables: ComparisonTables) -> FigureSpec | None:
    """Return trained lengths and pass rates over those of all and of all mixed candidates."""
    panels = []
    for title, (trained, candidates, effective) in BIAS.items():
        total = _bias(tables.steps, trained, candidates)
        policy = _bias(tables.steps, trained, effective)
        if total or policy:
            series = [
                Dots("all candidates: filter and policy", total, filled=False),
                Dots("mixed candidates: policy alone", policy),
            ]
            panels.append(Panel(title, series, reference=1.0))
    if not panels:
        return None
    alone = [
        f"{name} {formats.estimate(found)}" for name, found in panels[0].series[1].estimates.items()
    ]
    return FigureSpec(
        name="bias",
        figure=dot_panels(tables.policies, panels, x_label="ratio of means; 1 is no bias"),
        title="Length and difficulty of what is trained",
        alt=f"Dots with 99 % intervals. {panels[0].title} mixed candidates: {', '.join(alone)}.",
        how_to_read=(
            "1 is no bias. Hollow marks compare trained groups with everything sampled: the filter "
            "for mixed groups moves them under every policy. Filled marks compare them with the "
            "mixed groups among the candidates: off the line, the policy itself prefers short or "
            "easy ones, as those that keep the first finished do, or trains the others too."
        ),
    )


_GROUPS_BEHIND = {
    "trained": "rollout/effective_groups",
    "candidates": "rollout/candidate_groups",
    "effective": "rollout/mixed_candidate_groups",
}


def _bias(steps: pd.DataFrame, over: str, under: str) -> dict[str, Estimate]:
    """Return policy -> ratio of two means over the groups of a replication, as the headline's."""
    means = [_over_groups(steps, column) for column in (over, under)]
    if any(mean is None for mean in means):
        return {}
    both = pd.concat(means, axis=1).dropna()
    found = {}
    for name, rows in both.groupby(level="policy", sort=False):
        over_N, under_N = (rows[column].to_numpy(float) for column in rows)
        if under_N.sum() > 0 and over_N.sum() > 0:
            found[str(name)] = ratio_of_totals(over_N, under_N)
    return found


def _over_groups(steps: pd.DataFrame, name: str) -> pd.Series | None:
    """Return the mean over the groups of each (policy, replication), not over its steps."""
    column, groups = f"bias/{name}", _GROUPS_BEHIND[name.rpartition("_")[2]]
    if not {column, groups} <= set(steps.columns):
        return None
    present = steps[steps[column].notna() & (steps[groups] > 0)]
    keys = [present["policy"], present["replication"]]
    total = (present[column] * present[groups]).groupby(keys, sort=False).sum()
    return (total / present[groups].groupby(keys, sort=False).sum()).rename(name)


ENGINE = {
    "engine/peak_kv_tokens": "peak KV, thousand tokens",
    "engine/mean_concurrency": "mean responses in decoding",
}


def engine_figure(tables: ComparisonTables) -> FigureSpec | None:
    """Return peak KV use and mean concurrency, where the engine counted them."""
    panels, said = [], []
    for metric, title in ENGINE.items():
        found = {n: tables.estimates[n][metric] for n in tables.policies
                 if metric in tables.estimates.get(n, {})}  # fmt: skip
        if not any(e.mean > 0 for e in found.values()):
            continue
        if metric == "engine/peak_kv_tokens":
            found = {name: _thousands(e) for name, e in found.items()}
        panels.append(Panel(title, [Dots("", found)]))
        said.append(
            f"{title}: " + ", ".join(f"{n} {formats.estimate(e)}" for n, e in found.items())
        )
    if not panels:
        return None
    return FigureSpec(
        name="engine",
        figure=dot_panels(tables.policies, panels),
        title="Memory and concurrency",
        alt=". ".join(said) + ".",
        how_to_read=(
            "Left: the most KV tokens that any replica held; near the capacity it starts to evict. "
            "Right: responses in decoding, averaged over time. A barrier policy has few on average "
            "because slots empty towards the end of each wave."
        ),
    )


def _thousands(e: Estimate) -> Estimate:
    low, high = (None if end is None else end / 1000 for end in (e.low, e.high))
    return Estimate(e.mean / 1000, low, high, e.n, e.unit)
