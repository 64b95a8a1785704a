"""Records of one policy -> workload -> every policy in the simulator, with the fit's own error."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dapolab.scenario import JointWorkload
from dapolab.theory.groups import mixed_groups_logit_normal
from dapolab.workload.fit import fit_workload
from gpu_runs.preset import Preset
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.forecast import pseudo_values, run_means, scenario_of
from gpu_runs.validate.frozen import Job, record, stages
from gpu_runs.validate.law import calibrated
from gpu_runs.validate.run import fingerprint
from gpu_runs.validate.study import predicted_row

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
    n = context.n_runs or (2 if context.quick else 12)
    return Size(max(4, n), n, 2, 10) if context.quick else Size(4 * n, n, 8, 40)


def presets_of(context: Context) -> dict[str, Preset]:
    """Return the policies; timed in CPU seconds on a CPU."""
    clock = "wall" if context.device == "cuda" else "process"
    base = {"run.dump": False, "engine.clock": clock}
    return {
        name: vary(context.preset, base | {"collector": dict(collector)})
        for name, collector in POLICIES.items()
    }


def folder_of(context: Context) -> Path:
    """Return where records and pseudo-values of this validation are kept."""
    return context.cache / f"collectors-{fingerprint(context)}"


def weights_of(context: Context) -> Path:
    """Return the weights that stand still."""
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
    return quantities_of(means)


def quantities_of(means: "pd.Series[float]") -> dict[str, float]:
    """Return the quantities from the means of a run's metrics."""
    engine = sum(float(means[name]) for name in _ENGINE)
    return {
        name: engine if metric == "engine_s" else float(means[metric])
        for name, (metric, _) in QUANTITIES.items()
    }


def predict(context: Context) -> pd.DataFrame:
    """Record exact refill, fit, simulate all policies; leave out one block of steps at a time."""
    size, presets, folder = size_of(context), presets_of(context), folder_of(context)
    (seed,) = context.seeds(1, purpose=6)
    own = vary(presets[RECORDED], {"run.seed": seed})
    job = Job(own, weights_of(context), context.device, n_steps=size.n_recorded)
    folder.mkdir(parents=True, exist_ok=True)
    records = record(job)[1]
    pq.write_table(records, folder / "records.parquet")
    table = records.to_pandas()
    law = calibrated(context)["law"]
    block = table["step"] * size.n_runs // size.n_recorded
    # the weights stand still: steps cannot drift, whatever a test of drift finds by chance
    table = table.assign(step=0)
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
        fitted.mean_logit,
        fitted.sd_logit,
        group_size=own.rollout.group_size,
        unsolvable_share=fitted.unsolvable_share,
        guess_rate=fitted.guess_rate,
    )
    kept = law_of_p.kept_accuracy
    for policy in POLICIES:
        value = law_of_p.mean_pass_rate if policy == NO_FILTER else kept
        if value is not None:
            rows.append(predicted_row("trained accuracy", policy, "theory", value, unit="share"))
    return pd.DataFrame(rows)
