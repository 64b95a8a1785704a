"""The committed scenarios load, run, and meet the figures that they claim to reproduce."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dapolab.scenario import load
from dapolab.sim.run import simulate
from dapolab.sweep import expand, read_sweep

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "sims" / "scenarios").glob("*.toml"))
STANDARD_ERRORS = 4.5


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_loads_under_its_own_name_and_says_what_it_assumes(path):
    scenario = load(path)
    assert scenario.name == path.stem
    assert scenario.description
    assert scenario.assumptions


@pytest.mark.parametrize("path", sorted((ROOT / "sims" / "sweeps").glob("*.toml")))
def test_a_sweep_expands_to_distinct_points(path):
    points = expand(read_sweep(path), folder=path.parent)
    assert len({point.id for point in points}) == len(points) > 1


def step_means(name, *, replications, overrides=None):
    """Mean step metrics of each replication, one row a replication."""
    scenario = load(ROOT / "sims" / "scenarios" / f"{name}.toml", overrides or {})
    runs = [
        simulate(scenario, seed=7, replication=r, keep_groups=False) for r in range(replications)
    ]
    return pd.DataFrame([run.steps.mean(numeric_only=True) for run in runs])


def meets(values, target, *, allowance=0.0):
    se = values.std(ddof=1) / np.sqrt(len(values))
    return abs(values.mean() - target) <= STANDARD_ERRORS * se + allowance


def test_the_scalar_of_06_dapo_gives_4_17_hours_in_35_steps():
    rows = step_means("06-dapo-8192", replications=40)
    hours = rows["time/step_seconds"] * 35 / 3600
    assert meets(hours, 4.17)
    assert not meets(hours, 4.17 * 1.1)


def test_the_verl_run_is_met_in_the_figures_it_logs(shared_data):
    log = pd.read_csv(shared_data / "verl_grpo_qwen3_8b" / "M20_grpo_steps.csv")
    rows = step_means("verl-qwen3-8b-grpo", replications=40)
    per_step = len(log) ** 0.5

    def logged(column):
        return log[column].mean(), log[column].std(ddof=1) / per_step

    for simulated, column, scale in (
        ("rollout/mean_completion_tokens", "response_length_mean", 1.0),
        ("rollout/max_completion_tokens", "response_length_max", 1.0),
        ("rollout/mixed_share", "mixed_groups", 1 / 16),
        ("rollout/all_right_share", "all_correct_groups", 1 / 16),
        ("time/rollout_seconds", "t_gen", 1.0),
        ("time/update_seconds", "t_update_actor", 1.0),
    ):
        mean, se = logged(column)
        values = rows[simulated]
        # both sides are samples: the log's own standard error is part of the allowance
        assert meets(values, mean * scale, allowance=STANDARD_ERRORS * se * scale), column
