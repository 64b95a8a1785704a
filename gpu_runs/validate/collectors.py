"""Rollouts of one collection policy recorded -> fitted -> the other policies predicted, then run.

The policy stands still after some training. Only exact refill is recorded; ``dapolab fit`` makes a
workload of it, the simulator plays every other policy on it, and then all of them are really run on
prompts and noise that the recording did not use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq

from dapolab.claims.claim import Claim, Row
from dapolab.claims.verdict import Outcome
from dapolab.report import FigureSpec
from dapolab.scenario import JointWorkload
from dapolab.theory.groups import mixed_groups_logit_normal
from dapolab.workload.fit import fit_workload
from gpu_runs.preset import Preset
from gpu_runs.validate.beside_figure import beside
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.forecast import pseudo_values, run_means, scenario_of
from gpu_runs.validate.frozen import Job, play, record, stages
from gpu_runs.validate.law import calibrated
from gpu_runs.validate.run import fingerprint
from gpu_runs.validate.study import Study, Tables, measured_row, predicted_row, settle

Floats = npt.NDArray[np.float64]

STAGE = 20
RECORDED, STREAMING, NO_FILTER = "exact refill", "streaming, abort", "no filter"
POLICIES: Mapping[str, Mapping[str, Any]] = {
    RECORDED: {"kind": "exact_refill", "max_candidate_multiplier": 4},
    "rounds": {"kind": "rounds", "gen_multiplier": 1.5, "max_num_gen_batches": 4},
    STREAMING: {"kind": "streaming", "slots_per_target": 1, "leftovers": "abort"},
    "verl V1": {"kind": "verl_v1"},
    NO_FILTER: {"kind": "none"},
}
QUANTITIES = {
    "engine seconds": ("engine_s", "s"),
    "generated tokens": ("rollout/completion_tokens", "tokens"),
    "candidates": ("rollout/candidate_groups", "groups"),
    "trained length": ("bias/length_trained", "tokens"),
    "trained accuracy": ("reward/trained_accuracy", "share"),
}
SHORT = "trained length over that of exact refill"
_ENGINE = ("time/prefill_seconds", "time/decode_seconds", "time/tail_seconds")


@dataclass(frozen=True)
class Size:
    """Recorded steps; blocks of them, as many as measured runs; steps of a run; simulated runs."""

    n_recorded: int
    n_runs: int
    n_steps: int
    n_sim: int


def size_of(context: Context) -> Size:
    """Return the sizes."""
    return Size(4, 2, 2, 10) if context.quick else Size(12, 6, 4, 40)


def presets_of(context: Context) -> dict[str, Preset]:
    """Return the policies; timed in CPU seconds on a CPU."""
    clock = "wall" if context.device == "cuda" else "process"
    base = {"run.dump": False, "engine.clock": clock}
    return {
        name: vary(context.preset, base | {"collector": dict(collector)})
        for name, collector in POLICIES.items()
    }


def _folder(context: Context) -> Path:
    return context.cache / f"collectors-{fingerprint(context)}"


def _weights(context: Context) -> Path:
    return stages(context, (STAGE,))[STAGE]


# ---------------------------------------------------------------------- prediction


@dataclass(frozen=True)
class _Fit:
    """Records to fit and to play every policy on."""

    table: pd.DataFrame
    presets: Mapping[str, Preset]
    law: Mapping[str, Any]
    size: Size


def play_fitted(work: _Fit) -> tuple[JointWorkload, dict[str, dict[str, float]]]:
    """Fit, then simulate every policy; return the workload and quantity means by policy."""
    any_preset = next(iter(work.presets.values()))
    fitted = fit_workload(
        work.table,
        selection="all",
        cap_tokens=any_preset.rollout.cap_tokens,
        group_size=any_preset.rollout.group_size,
        n_draws=0,
        goodness=False,
    ).workload
    found = {
        name: _simulated(preset, fitted, work.law, work.size)
        for name, preset in work.presets.items()
    }
    for values in found.values():
        values[SHORT] = values["trained length"] / found[RECORDED]["trained length"]
    return fitted, found


def _simulated(
    preset: Preset, workload: JointWorkload, law: Mapping[str, Any], size: Size
) -> dict[str, float]:
    scenario = scenario_of(preset, workload.model_dump(mode="json"), law=law, n_steps=size.n_steps)
    metrics = [metric for metric, _ in QUANTITIES.values() if metric != "engine_s"]
    means = run_means(scenario, seeds=range(size.n_sim), metrics=[*metrics, *_ENGINE]).mean()
    return _quantities(means)


def _quantities(means: "pd.Series[float]") -> dict[str, float]:
    engine = sum(float(means[name]) for name in _ENGINE)
    return {
        name: engine if metric == "engine_s" else float(means[metric])
        for name, (metric, _) in QUANTITIES.items()
    }


def predict(context: Context) -> pd.DataFrame:
    """Record exact refill, fit, simulate all policies; leave out one block of steps at a time."""
    size, presets, folder = size_of(context), presets_of(context), _folder(context)
    (seed,) = context.seeds(1, purpose=6)
    own = vary(presets[RECORDED], {"run.seed": seed})
    job = Job(own, _weights(context), context.device, n_steps=size.n_recorded)
    folder.mkdir(parents=True, exist_ok=True)
    records = record(job)[1]
    pq.write_table(records, folder / "records.parquet")
    table = records.to_pandas()
    law = calibrated(context)["law"]
    block = table["step"] * size.n_runs // size.n_recorded
    parts = [table, *(table[block != i] for i in range(size.n_runs))]
    found = context.map(play_fitted, [_Fit(part, presets, law, size) for part in parts])
    fitted, whole = found[0]
    pseudo = [
        {"setting": policy, "quantity": name, "block": i, "value": v}
        for policy, values in whole.items()
        for name in values
        for i, v in enumerate(
            pseudo_values(values[name], np.array([f[policy][name] for _, f in found[1:]]))
        )
    ]
    pd.DataFrame(pseudo).to_csv(folder / "pseudo_values.csv", index=False)
    units = {name: unit for name, (_, unit) in QUANTITIES.items()} | {SHORT: "ratio"}
    rows = [
        predicted_row(name, policy, "simulator", value, unit=units[name])
        for policy, values in whole.items()
        for name, value in values.items()
    ]
    law_of_p = mixed_groups_logit_normal(
        fitted.mean_logit, fitted.sd_logit, group_size=own.rollout.group_size
    )
    kept = law_of_p.kept_accuracy
    for policy in POLICIES:
        value = law_of_p.mean_pass_rate if policy == NO_FILTER else kept
        if value is not None:
            rows.append(predicted_row("trained accuracy", policy, "theory", value, unit="share"))
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------- measurement


def measure(context: Context) -> Tables:
    """Run every policy on the same prompts and noise, a seed a run."""
    size, presets, path = size_of(context), presets_of(context), _weights(context)
    seeds = context.seeds(size.n_runs, purpose=7)
    labels = [(seed, policy) for seed in seeds for policy in presets]
    jobs = [
        Job(vary(presets[policy], {"run.seed": seed}), path, context.device, n_steps=size.n_steps)
        for seed, policy in labels
    ]
    rows = [
        {"setting": policy, "seed": seed, **_quantities(steps.drop(columns="seed").mean())}
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
    pseudo = pd.read_csv(_folder(context) / "pseudo_values.csv")
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
        n=6,
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
        "v-kept-accuracy",
        "The accuracy of a batch of kept groups is E[(p − p^G)/q], not the pass rate.",
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
    "same engine. “theory” is A9 on the fitted law of pass rates.",
)
