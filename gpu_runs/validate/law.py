"""A calibrated law against the seconds of each wave and step of training runs it never saw.

The law comes from timed cells (n responses of one range of contexts, visited in random order), the
learner's constants from short runs of other seeds. On a CPU all seconds are CPU seconds of the one
thread, as other programs may run beside; even those grow with shared caches.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from dapolab.claims.claim import Claim, Measured, Row, Totals
from dapolab.claims.verdict import Outcome
from dapolab.fidelity.calibrate import law_table
from dapolab.fidelity.law import LawFit, fit_law
from dapolab.report import FigureSpec
from dapolab.report.style import INK, MUTED, OBSERVED, drawing, new_figure
from dapolab.store import atomic_write
from gpu_runs.measure import default_plan, medians
from gpu_runs.measure import measure as time_engine
from gpu_runs.preset import Preset
from gpu_runs.setup import choose_device, make_task_and_model
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.live import live_preset, live_seeds
from gpu_runs.validate.run import fingerprint
from gpu_runs.validate.study import Study, Tables, measured_row, predicted_row, settle

Floats = npt.NDArray[np.float64]

TERMS = {
    "a_s": "iterations",
    "b_s": "tokens",
    "c_s": "sum_context",
    "prefill_s": "prefill_tokens",
}
"""Parameter of the affine law -> what it multiplies in a wave."""
TOLERANCE = 0.15
WITHOUT_FIXED = 1.6
"""Ratio that a law of tokens alone gives: in a prototype a quarter second of 128 iterations' fixed
cost to a fifth of a second for their tokens."""
ROLLOUT_ALONE = 1.8
"""Step over rollout in the same prototype: what a law of the engine alone would miss of a step."""
CALIBRATING = 4
"""Runs that give the learner's constants, and passes over all cells: in as many processes at once
as the runs will be, since a neighbour on the same caches slows both."""


def law_file(context: Context) -> Path:
    """Return where the calibrated law and constants are kept, as JSON."""
    return context.cache / f"law-{fingerprint(context)}" / "law.json"


def calibrated(context: Context) -> dict[str, Any]:
    """Return law, its terms and the learner's constants; measured once, then read."""
    path = law_file(context)
    if not path.is_file():
        fit = _fit_cells(context)
        found = {
            "law": law_table(fit.law),
            "terms": {name: e.to_json() for name, e in fit.estimates.items()},
            "residuals": {k: v for k, v in fit.residuals.items() if np.isfinite(v)},
            "learner": _learner(context),
        }
        atomic_write(path, json.dumps(found, indent=1) + "\n")
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return stored


def _fit_cells(context: Context) -> LawFit:
    """Time the engine and fit an affine law: a wave is told by sums, and b(n) must add up."""
    seeds = context.seeds(1 if context.quick else CALIBRATING, purpose=4)
    work = [(context.preset, context.device, context.quick, seed) for seed in seeds]
    table = pd.concat(context.map(_cells, work), ignore_index=True)
    return fit_law(table, concave=False, source=f"gpu_runs calibrate, {context.preset.name}")


def _cells(work: tuple[Preset, str, bool, int]) -> pd.DataFrame:
    """Return medians of one pass over the cells, on a CPU in CPU seconds."""
    preset, chosen, quick, seed = work
    device = choose_device(chosen)
    task, model = make_task_and_model(preset, device)
    slots, cap = preset.engine.slots, preset.rollout.cap_tokens
    plan = default_plan(slots=slots, max_context=model.config.max_positions, smoke=quick)
    half = torch.bfloat16 if device.type == "cuda" else None
    table = medians(time_engine(model, task, plan, cap_tokens=cap, seed=seed, dtype=half))
    seconds = table["cpu_seconds" if device.type == "cpu" else "seconds"]
    return table.assign(seconds=seconds, run=f"{seed}-" + table["run"])


def _learner(context: Context) -> dict[str, float]:
    """Return seconds a trained token and a finished answer, totals over short runs."""
    preset = vary(live_preset(context), {"run.steps": 3 if context.quick else 8})
    seeds = context.seeds(1 if context.quick else CALIBRATING, purpose=5)
    steps = context.train_runs({"calibration": preset}, seeds, tables=("steps",))["steps"]
    # the first step of a run warms torch up
    steps = steps[steps["step"] > 0]
    tokens = float(steps["rollout/train_completion_tokens"].sum())
    learning = [name for name in _LEARNING if name in steps]
    return {
        "learning_s_per_token": float(steps[learning].sum().sum()) / tokens,
        "overhead_s_per_response": float(steps["time/overhead_seconds"].sum())
        / float(steps["rollout/completions"].sum()),
    }


_LEARNING = (
    "time/old_logprob_seconds",
    "time/reference_seconds",
    "time/update_seconds",
    "time/sync_seconds",
)


def predict(context: Context) -> pd.DataFrame:
    """Return the law's terms and the learner's constants."""
    found = calibrated(context)
    rows = []
    for name, term in found["terms"].items():
        ends = {"low": term["low"], "high": term["high"]}
        rows.append(
            predicted_row(name, "engine", "calibration", term["mean"], unit=term["unit"]) | ends
        )
    rows += [
        predicted_row(name, "learner", "calibration", value, unit=f"s/{name.rpartition('_')[2]}")
        for name, value in found["learner"].items()
    ]
    return pd.DataFrame(rows)


def wave_seconds(waves: pd.DataFrame, law: dict[str, Any]) -> Floats:
    """Return the law's seconds of waves told by their sums (affine law), (waves,)."""
    total = sum((law[name] * waves[column].to_numpy(float) for name, column in TERMS.items()))
    return np.asarray(total, dtype=np.float64)


def measure(context: Context) -> Tables:
    """Train (the runs of the live forecast) and set each wave's and step's seconds beside."""
    found, preset = calibrated(context), live_preset(context)
    tables = context.train_runs({"live": preset}, live_seeds(context), tables=("steps", "waves"))
    waves, steps = tables["waves"], tables["steps"]
    waves = waves[waves["step"] > 0].assign(
        engine_s=lambda w: w["decode_seconds"] + w["admit_seconds"]
    )
    waves["law_s"] = wave_seconds(waves, found["law"])
    waves["held_out_s"] = _held_out(waves)
    steps = _steps(steps, waves, found["learner"])
    keep = ["seed", "step", "wave", "groups", *TERMS.values(), "engine_s", "law_s", "held_out_s"]
    return {
        "measured": pd.DataFrame(_rows(waves, steps)),
        "waves": waves[keep].reset_index(drop=True),
        "steps": steps,
    }


def _held_out(waves: pd.DataFrame) -> Floats:
    """Predict each run's waves by a law fitted to the other runs' waves."""
    out = np.full(len(waves), np.nan)
    for seed in waves["seed"].unique():
        own = (waves["seed"] == seed).to_numpy()
        others = waves[~own]
        pieces = pd.DataFrame(
            {
                "seconds": others["engine_s"],
                "iterations": others["iterations"],
                "n": others["tokens"],
                "sum_context_tokens": others["sum_context"],
                "prefill_tokens": others["prefill_tokens"],
                "run": others["seed"].astype(str),
            }
        )
        law = law_table(fit_law(pieces.reset_index(drop=True)).law)
        out[own] = wave_seconds(waves[own], law)
    return out


def _steps(steps: pd.DataFrame, waves: pd.DataFrame, learner: dict[str, float]) -> pd.DataFrame:
    """Return ``seed, step, measured_s, predicted_s``; a step's waves, its learning, its scoring."""
    engine = waves.groupby(["seed", "step"])["law_s"].sum().rename("law_s").reset_index()
    table = steps.merge(engine, on=["seed", "step"])
    predicted = (
        table["law_s"]
        + learner["overhead_s_per_response"] * table["rollout/completions"]
        + learner["learning_s_per_token"] * table["rollout/train_completion_tokens"]
    )
    return pd.DataFrame(
        {
            "seed": table["seed"],
            "step": table["step"],
            "measured_s": table["time/step_seconds"],
            "predicted_s": predicted,
        }
    )


def _rows(waves: pd.DataFrame, steps: pd.DataFrame) -> list[dict[str, object]]:
    def by_run(table: pd.DataFrame, measured: str, predicted: str) -> pd.DataFrame:
        sums = table.groupby("seed")[[measured, predicted]].sum()
        error = (table[measured] / table[predicted] - 1.0).abs().groupby(table["seed"]).median()
        return pd.DataFrame({"ratio": sums[measured] / sums[predicted], "error": error})

    rows = []
    for setting, table, columns in (
        ("waves, calibrated law", waves, ("engine_s", "law_s")),
        ("waves, law of the other runs", waves, ("engine_s", "held_out_s")),
        ("steps, law and learner", steps, ("measured_s", "predicted_s")),
    ):
        found = by_run(table, *columns)
        ratio, error = found["ratio"].to_numpy(float), found["error"].to_numpy(float)
        rows.append(measured_row("measured over predicted seconds", setting, ratio, unit="ratio"))
        rows.append(measured_row("median error of one", setting, error, unit="share"))
    return rows


# ---------------------------------------------------------------------- claims


def _nothing() -> dict[str, float]:
    return {}


def _claim(name: str, statement: str, *, rival: float, why: str) -> Claim:
    return Claim(
        id=name,
        kind="value",
        statement=statement,
        source="DESIGN.md section 4, the law; constants of a prototype for the denied ratio",
        instrument="real training",
        rows=(
            Row(
                name="measured over predicted seconds of a run",
                kind="value",
                says=1.0,
                rival=rival,
                tolerance=TOLERANCE,
                why=why,
                unit="ratio",
            ),
        ),
        predict=_nothing,
        how_to_read="Totals of a training run, the first step left out; the unit is the run. CPU "
        "seconds on a CPU: they leave waiting out, but not what a busy neighbour does to caches.",
        repeat="training run",
        n=12,
        quick_n=6,
    )


def judge(context: Context, predictions: pd.DataFrame, tables: Tables) -> Sequence[Outcome]:
    """Judge totals of runs: engine by the cells' law and by the other runs', and whole steps."""
    plan = "a plan is not changed by a sixth of its seconds, and it is a quarter of the way"
    claims = (
        (
            _claim(
                "v-law-waves",
                "A law calibrated on timed cells says the engine seconds of the waves of a "
                "training run within 15 %.",
                rival=WITHOUT_FIXED,
                why=plan + " to a law without its fixed part",
            ),
            _totals(tables["waves"], "engine_s", "law_s"),
        ),
        (
            _claim(
                "v-law-held-out",
                "A law fitted to the waves of other runs says those of a run left out within 15 %.",
                rival=WITHOUT_FIXED,
                why=plan + " to a law without its fixed part",
            ),
            _totals(tables["waves"], "engine_s", "held_out_s"),
        ),
        (
            _claim(
                "v-law-steps",
                "Law and learner constants say the seconds of the steps of a training run within "
                "15 %.",
                rival=ROLLOUT_ALONE,
                why=plan + " to the rollout alone",
            ),
            _totals(tables["steps"], "measured_s", "predicted_s"),
        ),
    )
    return [
        settle(claim, {claim.rows[0].name: measured}, predicted={claim.rows[0].name: 1.0})
        for claim, measured in claims
    ]


def _totals(table: pd.DataFrame, over: str, under: str) -> Measured:
    sums = table.groupby("seed")[[over, under]].sum()
    return Totals(sums[over].to_numpy(float), sums[under].to_numpy(float))


def figures(tables: Tables) -> list[FigureSpec]:
    """Return measured against predicted seconds of every wave."""
    waves = tables["waves"]
    with drawing():
        figure = new_figure(height_in=3.4)
        axes = figure.subplots()
        end = float(waves[["engine_s", "law_s"]].max().max())
        axes.plot([0, end], [0, end], color=MUTED, linewidth=1)
        axes.plot(waves["law_s"], waves["engine_s"], "o", color=OBSERVED, ms=2.5, alpha=0.5)
        axes.set_xlabel("predicted seconds of a wave", color=INK)
        axes.set_ylabel("measured seconds of a wave")
    ratio = float(waves["engine_s"].sum() / waves["law_s"].sum())
    return [
        FigureSpec(
            name="law-waves",
            figure=figure,
            title="Seconds of every wave, measured against the calibrated law",
            alt=f"{len(waves)} waves; measured over predicted {ratio:.2f} in total.",
            how_to_read="One point a wave, of all runs. On the line the law is right; a cloud "
            "above it means that the machine was slower than while it was calibrated.",
        )
    ]


STUDY = Study(
    name="law",
    title="Seconds of waves and steps",
    question="Does a calibration of seconds tell what waves and steps of training take?",
    predict=predict,
    measure=measure,
    judge=judge,
    figures=figures,
    how_to_read="Seconds are CPU seconds where training runs on a CPU. No verdict rests on a "
    "correlation: medians and totals of whole runs are compared.",
)
