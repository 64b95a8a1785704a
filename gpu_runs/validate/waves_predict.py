"""Pass rates of a pool of prompts -> waves, candidates, fill: by closed form and by simulator."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dapolab.rng import stream
from dapolab.scenario import ExactRefill, Rounds
from dapolab.theory.capped import capped_refill
from dapolab.theory.groups import mixed_groups, p_mixed, p_mixed_recorded
from dapolab.theory.sampling import rounds
from gpu_runs.preset import Preset
from gpu_runs.validate.forecast import (
    Floats,
    pseudo_values,
    replay,
    run_means,
    scenario_of,
    write_records,
)
from gpu_runs.validate.frozen import Job, answers
from gpu_runs.validate.study import predicted_row

KEPT = "trained accuracy"
QUANTITIES = {
    "mixed share": ("rollout/mixed_share", "share"),
    "waves": ("rollout/waves", "waves"),
    "candidates": ("rollout/candidate_groups", "groups"),
    "fill": ("rollout/effective_fill_ratio", "share"),
    "token utilisation": ("rollout/token_utilisation", "share"),
    KEPT: ("reward/trained_accuracy", "share"),
}
"""Quantity -> metric and unit; means over the steps of a run."""


@dataclass(frozen=True)
class Plan:
    """Sizes of the prediction.

    Attributes
    ----------
    n_answers : a prompt; in ``n_blocks`` blocks, each left out once.
    n_steps : of a simulated run, as of a measured one.
    n_sim : simulated runs behind a prediction.
    n_bootstrap : pools of prompts drawn anew.
    """

    n_answers: int
    n_blocks: int
    n_steps: int
    n_sim: int
    n_bootstrap: int


@dataclass(frozen=True)
class Work:
    """One training stage to predict."""

    setting: str
    weights: Path
    presets: Mapping[str, Preset]
    plan: Plan
    folder: Path
    device: str


def predict_stage(work: Work) -> tuple[list[dict[str, object]], pd.DataFrame]:
    """Return rows of ``predictions``, and pseudo-values of the simulator's predictions.

    The pseudo-values (columns ``setting, quantity, block, value``) leave out one block of answers
    of every prompt at a time; simulated runs share their random numbers.
    """
    preset = next(iter(work.presets.values()))
    job = Job(preset, work.weights, work.device, n_samples=work.plan.n_answers)
    table = answers(job)
    rows, pseudo = [], []
    for policy, own in work.presets.items():
        setting = f"{work.setting}, {policy}"
        rows += _closed_forms(table, own, setting)
        more, values = _simulated(table, own, setting, work)
        rows += more
        pseudo.append(values)
    return rows, pd.concat(pseudo, ignore_index=True)


def _closed_forms(table: pd.DataFrame, preset: Preset, setting: str) -> list[dict[str, object]]:
    """Independent candidates of the pool's mean chance to be mixed, and two plug-ins of it."""
    by_prompt = table.groupby("prompt_id")["correct"]
    right, n = by_prompt.sum().to_numpy(int), by_prompt.size().to_numpy(int)
    size = preset.rollout.group_size
    few = table[table["sample"] < size].groupby("prompt_id")["correct"].mean().to_numpy(float)
    unbiased = float(p_mixed_recorded(right, n, group_size=size).mean())
    shares = {
        "theory": unbiased,
        f"plug-in, {size} answers": mixed_groups(few, group_size=size).p_mixed,
        "plug-in, mean pass rate": float(p_mixed(float((right / n).mean()), group_size=size)),
    }
    rows = []
    for instrument, q in shares.items():
        for quantity, value in closed_form(preset, q).items():
            unit = QUANTITIES[quantity][1]
            rows.append(predicted_row(quantity, setting, instrument, value, unit=unit))
    accuracies = {
        "theory": kept_accuracy(*chances(table, size)),
        "plug-in, mean pass rate": float((right / n).mean()),
    }
    rows += [
        predicted_row(KEPT, setting, instrument, value, unit="share")
        for instrument, value in accuracies.items()
    ]
    return rows


def closed_form(preset: Preset, q: float) -> dict[str, float]:
    """Return what iid candidates of mixed share ``q`` give (theory A4, A6)."""
    wanted, collector = preset.rollout.groups_per_step, preset.collector
    if isinstance(collector, ExactRefill):
        cap = (collector.max_candidate_multiplier or 64) * wanted
        law = capped_refill(q, n_groups=wanted, max_candidates=cap)
        counts = (law.expected_waves, law.expected_candidates, law.expected_kept)
    elif isinstance(collector, Rounds):
        assert collector.gen_groups is not None
        found = rounds(
            q,
            n_groups=wanted,
            gen_groups=collector.gen_groups,
            max_rounds=collector.max_num_gen_batches,
        )
        counts = (found.expected_rounds, found.expected_candidates, found.expected_trained)
    else:
        raise ValueError(f"no closed form of {collector.kind}")
    waves, candidates, kept = counts
    return {"mixed share": q, "waves": waves, "candidates": candidates, "fill": kept / wanted}


def _simulated(
    table: pd.DataFrame, preset: Preset, setting: str, work: Work
) -> tuple[list[dict[str, object]], pd.DataFrame]:
    """Simulate on all answers; the closed form carries the estimation error, without noise."""
    plan, size = work.plan, preset.rollout.group_size
    path = work.folder / f"{work.weights.stem}-{preset.collector.kind}.parquet"
    whole = _means(table, preset, path, plan, n=plan.n_sim)
    block = table["sample"] * plan.n_blocks // plan.n_answers
    all_KP = chances(table, size)
    without = [
        _moved(whole, preset, all_KP, chances(table[block != i], size))
        for i in range(plan.n_blocks)
    ]
    rng, n_prompts = stream(0, "bootstrap", "prompts"), all_KP.shape[1]
    anew = [
        _moved(whole, preset, all_KP, all_KP[:, rng.integers(n_prompts, size=n_prompts)])
        for _ in range(plan.n_bootstrap)
    ]
    rows, pseudo = [], []
    for quantity, (_, unit) in QUANTITIES.items():
        value = whole[quantity]
        values = pseudo_values(value, np.array([w[quantity] for w in without]))
        pseudo += [
            {"setting": setting, "quantity": quantity, "block": i, "value": v}
            for i, v in enumerate(values.tolist())
        ]
        low, high = _ends(value, np.array([b[quantity] for b in anew]))
        rows.append(
            predicted_row(quantity, setting, "simulator", value, low=low, high=high, unit=unit)
        )
    return rows, pd.DataFrame(pseudo)


def chances(table: pd.DataFrame, size: int) -> Floats:
    """Return, without bias, each prompt's chance that a group is mixed, its accuracy, all right.

    (K = 3, P), in the order of the prompts.
    """
    by_prompt = table.groupby("prompt_id")["correct"]
    right, n = by_prompt.sum().to_numpy(int), by_prompt.size().to_numpy(int)
    all_right = np.ones(right.shape)
    for i in range(size):
        all_right *= np.maximum(right - i, 0) / (n - i)
    return np.stack([p_mixed_recorded(right, n, group_size=size), right / n, all_right])


def kept_accuracy(mixed_P: Floats, right_P: Floats, all_right_P: Floats) -> float:
    """Return E[K/G | mixed] of the pool (theory A9): Σ(p − p^G)/Σq."""
    return float((right_P - all_right_P).sum() / mixed_P.sum())


def _moved(
    whole: Mapping[str, float], preset: Preset, here_KP: Floats, there_KP: Floats
) -> dict[str, float]:
    """Return the simulated quantities as they would be with other chances of the prompts.

    Each moves by the ratio of the closed form; token utilisation as kept over candidates does, the
    kept batch's accuracy by the difference of A9.
    """
    here, there = (closed_form(preset, float(c[0].mean())) for c in (here_KP, there_KP))
    for form in (here, there):
        form["token utilisation"] = form["fill"] / form["candidates"]
    moved = {name: whole[name] * there[name] / here[name] for name in here}
    return moved | {KEPT: whole[KEPT] + kept_accuracy(*there_KP) - kept_accuracy(*here_KP)}


def _ends(value: float, draws: Floats) -> tuple[float, float]:
    """Return 99 % ends, normal, from the bootstrap's spread."""
    half = 2.576 * float(draws.std(ddof=1))
    return value - half, value + half


def _means(
    table: pd.DataFrame, preset: Preset, path: Path, plan: Plan, *, n: int
) -> dict[str, float]:
    workload = replay(write_records(table, path))
    scenario = scenario_of(preset, workload, n_steps=plan.n_steps)
    metrics = {metric: quantity for quantity, (metric, _) in QUANTITIES.items()}
    found = run_means(scenario, seeds=range(n), metrics=list(metrics)).mean()
    return {metrics[str(name)]: float(value) for name, value in found.items()}
