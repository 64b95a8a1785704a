"""What the simulator says of a frozen policy: answers or a fitted workload in, steps out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dapolab.scenario import Scenario
from dapolab.scenario import build as build_scenario
from dapolab.sim.run import simulate
from gpu_runs.preset import Preset

Floats = npt.NDArray[np.float64]

ANY_LAW: Mapping[str, Any] = {"kind": "affine", "a_s": 1e-3, "b_s": 2e-5, "c_s": 0.0}
"""Counts do not depend on it without a time limit; seconds do."""


def scenario_of(
    preset: Preset,
    workload: Mapping[str, Any],
    *,
    law: Mapping[str, Any] = ANY_LAW,
    n_steps: int,
) -> Scenario:
    """Return the preset's collection as a scenario: same policy, batch, slots; learner for free."""
    return build_scenario(
        {
            "name": preset.name,
            "workload": dict(workload),
            "rollout": preset.rollout.model_dump(mode="json"),
            "collector": preset.collector.model_dump(mode="json"),
            "hardware": {"law": dict(law), "slots": preset.engine.slots},
            "run": {"steps": n_steps},
        },
        where=preset.name,
    )


def replay(path: Path) -> dict[str, Any]:
    """Return the workload that draws recorded answers without replacement, prompts shuffled."""
    return {"kind": "replay", "file": str(path), "prompts": {"reshuffle": True}}


def write_records(table: pd.DataFrame, path: Path) -> Path:
    """Write records for :func:`replay`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ["prompt_id", "sample", "n_tokens", "correct", "truncated", "n_prompt_tokens"]
    table[columns].to_parquet(path, index=False)
    return path


def run_means(scenario: Scenario, *, seeds: Sequence[int], metrics: Sequence[str]) -> pd.DataFrame:
    """Simulate one run a seed; return the means over its steps, one row a seed."""
    rows = []
    for seed in seeds:
        steps = simulate(scenario, seed=seed).steps
        rows.append({name: float(steps[name].mean()) for name in metrics if name in steps})
    return pd.DataFrame(rows)


def pseudo_values(whole: float, without_B: Floats) -> Floats:
    """Return θ + (B−1)·(mean of θ₍₋ᵢ₎ − θ₍₋ᵢ₎): their spread is the jackknife's error of θ.

    Tukey's pseudo-values (1958) without Quenouille's correction, which would multiply the noise of
    a simulated θ by B. Of a mean they are the samples themselves.
    """
    n = len(without_B)
    return np.asarray(whole + (n - 1) * (without_B.mean() - without_B), dtype=np.float64)
