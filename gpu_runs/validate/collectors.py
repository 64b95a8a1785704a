"""Rollouts of one collection policy recorded -> fitted -> the other policies predicted, then run.

The policy stands still after some training. Only exact refill is recorded; ``dapolab fit`` makes a
workload of it, the simulator plays every other policy on it, and then all of them are really run on
prompts and noise that the recording did not use.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dapolab.claims.claim import Claim, Row
from dapolab.claims.verdict import Outcome
from dapolab.report import FigureSpec
from gpu_runs.validate.beside_figure import beside
from gpu_runs.validate.collectors_predict import (
    POLICIES,
    QUANTITIES,
    RECORDED,
    SHORT,
    STAGE,
    STREAMING,
    folder_of,
    predict,
    presets_of,
    quantities_of,
    size_of,
    weights_of,
)
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.frozen import Job, play
from gpu_runs.validate.study import Study, Tables, measured_row, settle

Floats = npt.NDArray[np.float64]


# ---------------------------------------------------------------------- measurement


def measure(context: Context) -> Tables:
    """Run every policy on the same prompts and noise, a seed a run."""
    size, presets, path = size_of(context), presets_of(context), weights_of(context)
    seeds = context.seeds(size.n_runs, purpose=7)
    labels = [(seed, policy) for seed in seeds for policy in presets]
    jobs = [
        Job(vary(presets[policy], {"run.seed": seed}), path, context.device, n_steps=size.n_steps)
        for seed, policy in labels
    ]
    rows = [
        {"setting": policy, "seed": seed, **quantities_of(steps.drop(columns="seed").mean())}
        for (seed, policy), steps in zip(labels, context.map(play, jobs), strict=True)
    ]
    runs = pd.DataFrame(rows)
    base = runs[runs["setting"] == RECORDED].set_index("seed")["trained length"]
    runs[SHORT] = runs["trained length"] / runs["seed"].map(base)
    units = {name: unit for name, (_, unit) in QUANTITIES.items()} | {SHORT: "ratio"}
    measured = [
        measured_row(name, policy, _column(runs, policy, name), unit=unit)
        for name, unit in units.items()
        for policy in presets
    ]
    pseudo = pd.read_csv(folder_of(context) / "pseudo_values.csv")
    return {"measured": pd.DataFrame(measured), "runs": runs, "pseudo_values": pseudo}


def _column(runs: pd.DataFrame, policy: str, name: str) -> Floats:
    values = runs.loc[runs["setting"] == policy, name].to_numpy(float)
    return np.asarray(values, dtype=np.float64)


# ---------------------------------------------------------------------- claims


def _nothing() -> dict[str, float]:
    return {}


def _claim(name: str, statement: str, rows: tuple[Row, ...], **words: Any) -> Claim:
    return Claim(
        id=name,
        statement=statement,
        instrument="real training",
        rows=rows,
        predict=_nothing,
        repeat="run of several steps with frozen weights; block of recorded steps",
        n=12,
        quick_n=6,
        **words,
    )


def judge(context: Context, predictions: pd.DataFrame, tables: Tables) -> Sequence[Outcome]:
    """Judge tokens and seconds of the policies not recorded, the short bias, and A9."""
    others = [policy for policy in POLICIES if policy != RECORDED]
    said = predictions[predictions["instrument"] == "theory"].set_index("setting")["value"]
    return [
        _ratios("generated tokens", tables, others, tolerance=0.1, rival=1.4),
        _ratios("engine seconds", tables, others, tolerance=0.2, rival=1.8),
        *_short(tables),
        _kept_accuracy(tables["runs"], float(said[RECORDED])),
    ]


def _ratios(
    name: str, tables: Tables, policies: Sequence[str], *, tolerance: float, rival: float
) -> Outcome:
    why = f"a quarter of the way to {rival:g}, by which policies differ in a plan worth making"
    claim = _claim(
        f"v-collectors-{name.split()[-1]}",
        f"A workload fitted to rollouts of exact refill, and the simulator, say the {name} of a "
        f"step of other policies within {tolerance:.0%}.",
        tuple(
            Row(
                name=policy,
                kind="value",
                says=1.0,
                rival=rival,
                tolerance=tolerance,
                why=why,
                unit="ratio",
            )
            for policy in policies
        ),
        kind="value",
        source="theory A6 to A8; DESIGN.md section 4",
        how_to_read="Measured over predicted; the fit's own error (jackknife over recorded steps) "
        "is in the interval.",
    )
    measured = {}
    for policy in policies:
        values = _pseudo(tables, policy, name)
        measured[policy] = 1.0 + (_column(tables["runs"], policy, name) - values) / values.mean()
    return settle(claim, measured, predicted=dict.fromkeys(policies, 1.0))


def _pseudo(tables: Tables, policy: str, name: str) -> Floats:
    table = tables["pseudo_values"]
    return _column(table[table["quantity"] == name], policy, "value")


def _short(tables: Tables) -> list[Outcome]:
    real, said = _column(tables["runs"], STREAMING, SHORT), _pseudo(tables, STREAMING, SHORT)
    order = Row(
        name="shorter by",
        kind="order",
        says=0.0,
        rival=0.0,
        tolerance=0.02,
        why="a fiftieth of the trained length is what a reader of length curves would notice",
        unit="share",
    )
    value = Row(
        name="measured minus predicted ratio",
        kind="value",
        says=0.0,
        rival=0.08,
        tolerance=0.02,
        why="a quarter of the bias that streaming showed in a prototype",
        unit="ratio",
    )
    words = {"source": "field cases of first-finished batches; small prototype", "how_to_read": ""}
    words["how_to_read"] = "Both policies see the same prompts and noise; the unit is the run."
    first = _claim(
        "v-streaming-short",
        "Streaming that aborts what still runs trains shorter answers than exact refill.",
        (order,),
        kind="order",
        **words,
    )
    second = _claim(
        "v-streaming-short-size",
        "The simulator says by how much they are shorter.",
        (value,),
        kind="value",
        **words,
    )
    return [
        settle(first, {order.name: 1.0 - real}, predicted={order.name: 1.0 - float(said.mean())}),
        settle(second, {value.name: real - said}, predicted={value.name: 0.0}),
    ]


def _kept_accuracy(runs: pd.DataFrame, said: float) -> Outcome:
    row = Row(
        name="accuracy of the trained batch",
        kind="value",
        rival=said + 0.12,
        tolerance=0.03,
        why="a quarter of the gap between batch and pass rate that hides or fakes progress",
        unit="share",
    )
    claim = _claim(
        "v-collectors-accuracy",
        "The fitted law of pass rates says the accuracy of a batch of kept groups (theory A9).",
        (row,),
        kind="value",
        source="theory A9, with the fitted law of pass rates",
        how_to_read="Under exact refill. The row “no filter” of the table is the pass rate.",
    )
    return settle(
        claim, {row.name: _column(runs, RECORDED, "trained accuracy")}, predicted={row.name: said}
    )


def figures(tables: Tables) -> list[FigureSpec]:
    """Return tokens, seconds and trained length of the policies."""
    return [
        beside(
            tables,
            {
                "generated tokens": "tokens a step",
                "engine seconds": "CPU seconds a step",
                SHORT: "trained length / refill",
                "trained accuracy": "trained accuracy",
            },
            name="collectors",
            title="Collection policies, predicted from one and then run",
            read="Blue: real runs, 99 % interval. Squares: simulator on the fitted workload; only "
            "exact refill was recorded. Streaming's trained answers are short, as predicted.",
        )
    ]


STUDY = Study(
    name="collectors",
    title="From one policy's rollouts to the others",
    question="Does a fit to one collection policy tell what the others would do?",
    predict=predict,
    measure=measure,
    judge=judge,
    figures=figures,
    how_to_read=f"Weights after {STAGE} training steps. Every policy wants the same batch from the "
    "same engine. “theory” is A9 on the fitted law of pass rates: one normal law of logits, which "
    "a class of prompts that nobody solves beside nearly solved ones does not follow.",
)
