"""The report of a comparison of collection policies, from its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from dapolab.metrics import BY_NAME
from dapolab.report import formats
from dapolab.report.comparison_figures import (
    RANKED,
    bias_figure,
    cost_figure,
    engine_figure,
    time_figure,
    tokens_figure,
    waves_figure,
)
from dapolab.report.document import Document, FigureSpec, Section, Table
from dapolab.report.gantt import gantt_figure
from dapolab.stats import Estimate

HEADLINE_COLUMNS: dict[str, str] = {
    RANKED: "seconds per trained group",
    "rollout/waves": "waves per step",
    "share/tail": "waiting for the tail",
    "share/train_tokens": "generated tokens trained",
    "rollout/effective_fill_ratio": "batch filled",
    "bias/trained_length": "trained length, policy alone",
    "run/p_fails": "runs that fail",
}
"""Metric -> head of its column in the first table; those that no policy has are left out."""

Estimates = Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class ComparisonTables:
    """What a comparison measured.

    Attributes
    ----------
    policies : names, the baseline first.
    steps : policy, replication, step and step metrics (``metrics.STEP_METRICS``).
    estimates : policy -> metric -> Estimate.
    ratios : policy other than the baseline -> headline -> Estimate of policy over baseline.
    best : headline -> policies that may be the best.
    waves_distribution : barrier policy -> (numbers of waves, share of steps).
    responses : of one step per policy: policy, replica, submit_s, admit_s, end_s, status.
    waves : policy, start_s, end_s (and replication, step) of every wave.
    notes : assumptions and warnings, one line each.
    """

    policies: tuple[str, ...]
    steps: pd.DataFrame
    estimates: Estimates
    ratios: Estimates
    best: Mapping[str, Sequence[str]]
    waves_distribution: Mapping[str, tuple[Sequence[int], Sequence[float]]] = field(
        default_factory=dict
    )
    responses: pd.DataFrame | None = None
    waves: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()

    @property
    def baseline(self) -> str:
        """Return the policy that ratios refer to."""
        return self.policies[0]


def comparison_document(
    tables: ComparisonTables, *, title: str, provenance: Mapping[str, str] | None = None
) -> Document:
    """Return the report of a comparison.

    Parameters
    ----------
    tables : what was measured. A figure whose data are missing is left out.
    title : heading, plain text.
    provenance : version, command, seed, fingerprint; no clock, host or path.
    """
    sections = [
        Section("Which policy pays", _present(_headline_table(tables), cost_figure(tables))),
        Section("Where the time goes", _present(time_figure(tables), waves_figure(tables))),
        Section("One step, slot by slot", _present(gantt_figure(tables))),
        Section("Where the tokens go", _present(tokens_figure(tables))),
        Section("What is trained is not what was sampled", _present(bias_figure(tables))),
        Section("The engine", _present(engine_figure(tables))),
        Section("Every metric", _present(metric_table(tables.estimates, tables.policies))),
    ]
    return Document(
        title=title,
        lead=lead(tables),
        sections=tuple(section for section in sections if section.blocks),
        notes=tables.notes,
        provenance=provenance or {},
    )


def _present(*blocks: FigureSpec | Table | None) -> tuple[FigureSpec | Table, ...]:
    return tuple(block for block in blocks if block is not None)


def lead(tables: ComparisonTables) -> str:
    """Return the answer in a few sentences of Markdown: the set of the best, then its ratios."""
    best = list(tables.best.get(RANKED, ()))
    n_policies = len(tables.policies)
    if n_policies < 2 or not best:
        own = tables.estimates.get(tables.baseline, {}).get(RANKED)
        cost = f" costs {formats.estimate(own)} s per trained group" if own else " trained no group"
        return f"{_name(tables.baseline)}{cost}."
    ranked = [name for name in tables.policies if RANKED in tables.estimates.get(name, {})]
    if len(best) == 1:
        first = (
            f"{_name(best[0])} has the lowest seconds per trained group of {n_policies} policies."
        )
    elif len(best) == len(ranked):
        first = (
            f"No policy can be told from the others by seconds per trained group: {_list(best)}."
        )
    else:
        first = f"Lowest seconds per trained group: {_list(best)}, which cannot be told apart."
    told = [
        f"{_name(name)} {formats.estimate(tables.ratios[name][RANKED])}"
        for name in best
        if RANKED in tables.ratios.get(name, {})
    ]
    second = f" As multiples of {_name(tables.baseline)}: {', '.join(told)}." if told else ""
    unranked = [name for name in tables.policies if name not in ranked]
    third = f" Without a cost per trained group: {_list(unranked)}." if unranked else ""
    return first + second + third


def _name(policy: str) -> str:
    return "`" + policy.replace("`", "'") + "`"


def _list(names: Sequence[str]) -> str:
    shown = [_name(name) for name in names]
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def _headline_table(tables: ComparisonTables) -> Table:
    best = set(tables.best.get(RANKED, ()))
    relative = f"relative cost, {tables.baseline} = 1"
    rows = []
    for name in tables.policies:
        mine = tables.estimates.get(name, {})
        row: dict[str, object] = {"policy": name}
        row["may be best"] = "yes" if name in best else "no"
        if name == tables.baseline:
            row[relative] = Estimate.exact(1.0, unit="ratio")
        else:
            row[relative] = tables.ratios.get(name, {}).get(RANKED)
        row |= {column: mine.get(metric) for metric, column in HEADLINE_COLUMNS.items()}
        rows.append(row)
    frame = pd.DataFrame(rows, dtype=object)
    empty = [column for column in frame if frame[column].map(formats.is_missing).all()]
    caption = (
        "One row a policy, on the same prompts and lengths. Brackets are 99 % intervals over "
        f"replications; ratios to {_name(tables.baseline)} hold together. A dash: the policy has "
        "no such thing."
    )
    return Table(frame.drop(columns=empty), caption)


def metric_table(estimates: Estimates, policies: Sequence[str]) -> Table:
    """Return every metric that some policy has, one row a metric and one column a policy."""
    known = [name for name in BY_NAME if any(name in estimates.get(p, {}) for p in policies)]
    others = [m for p in policies for m in estimates.get(p, {}) if m not in BY_NAME]
    rows = []
    for metric in [*dict.fromkeys(others), *known]:
        found = [estimates.get(policy, {}).get(metric) for policy in policies]
        unit = next(e.unit for e in found if e is not None)
        rows.append({"metric": metric, "unit": unit, **dict(zip(policies, found, strict=True))})
    frame = pd.DataFrame(rows, columns=["metric", "unit", *policies], dtype=object)
    return Table(
        frame,
        "Mean and 99 % interval over replications; shares in per cent. A dash: the policy has no "
        "such metric (waves without a barrier).",
    )
