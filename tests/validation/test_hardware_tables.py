"""Presets and first principles against the operator tables that the presets were fitted to."""

import numpy as np
import pandas as pd
import pytest

from dapolab.scenario import FirstPrinciplesLaw, build
from dapolab.sim.hardware import first_principles, resolve

TABLES = {
    "qwen3-8b-h100-tp1": ("Qwen/Qwen3-8B", "h100_sxm", 1, 2.6),
    "qwen3-8b-h200-tp1": ("Qwen/Qwen3-8B", "h200_sxm", 1, 2.4),
    "qwen3-8b-a100-tp1": ("Qwen/Qwen3-8B", "a100_sxm", 1, 3.7),
    "qwen3-8b-b200-tp1": ("Qwen/Qwen3-8B", "b200_sxm", 1, 2.0),
    "qwen3-32b-h100-tp2": ("Qwen/Qwen3-32B", "h100_sxm", 2, 2.0),
    "qwen3-32b-h100-tp4": ("Qwen/Qwen3-32B", "h100_sxm", 4, 2.3),
    "qwen3-32b-h200-tp2": ("Qwen/Qwen3-32B", "h200_sxm", 2, 2.8),
    "llama-3.1-8b-h100-tp1": ("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", 1, 2.4),
    "llama-3.1-70b-h100-tp8": ("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", 8, 3.4),
    "qwen3-30b-a3b-h100-tp2": ("Qwen/Qwen3-30B-A3B", "h100_sxm", 2, 1.9),
}


def grid_of(shared_data, model, system, tp):
    grid = pd.read_csv(shared_data / "decode_tables" / "decode_grid.csv")
    same = (grid["model"] == model) & (grid["system"] == system) & (grid["tp"] == tp)
    rows = grid[same]
    assert len(rows) == 88
    return rows


def mape(law, rows):
    """Mean absolute percentage error of a + b(n) + c·K over the rows."""
    n = rows["batch"].to_numpy(float)
    b = np.interp(n, law.n_knots, law.b_knots_s)
    beyond = n > law.n_knots[-1]
    slope = (law.b_knots_s[-1] - law.b_knots_s[-2]) / (law.n_knots[-1] - law.n_knots[-2])
    b[beyond] = law.b_knots_s[-1] + slope * (n[beyond] - law.n_knots[-1])
    predicted = 1e3 * (law.a_s + b + law.c_s * n * rows["ctx"].to_numpy(float))
    measured = rows["decode_ms"].to_numpy(float)
    return 100 * float(np.mean(np.abs(predicted / measured - 1)))


@pytest.mark.parametrize("name", TABLES)
def test_a_preset_has_its_stated_error(shared_data, name):
    model, system, tp, stated = TABLES[name]
    rows = grid_of(shared_data, model, system, tp)
    law = resolve(build({"hardware": {"law": {"kind": "preset", "name": name}}}).hardware)
    assert mape(law, rows) == pytest.approx(stated, abs=0.06)
    slower = resolve(
        build({"hardware": {"law": {"kind": "preset", "name": name, "scale": 1.05}}}).hardware
    )
    assert mape(slower, rows) > stated + 0.06


def test_a_straight_line_misses_the_mixture_of_experts(shared_data):
    model, system, tp, stated = TABLES["qwen3-30b-a3b-h100-tp2"]
    rows = grid_of(shared_data, model, system, tp)
    n, y = rows["batch"].to_numpy(float), rows["decode_ms"].to_numpy(float)
    columns = np.c_[np.ones_like(n), n, n * rows["ctx"].to_numpy(float)]
    best, *_ = np.linalg.lstsq(columns / y[:, None], np.ones_like(y), rcond=None)
    assert 100 * np.mean(np.abs(columns @ best / y - 1)) > 5 * stated


def test_first_principles_come_close_without_any_measurement(shared_data):
    rows = grid_of(shared_data, "Qwen/Qwen3-8B", "h100_sxm", 1)
    error = mape(first_principles(FirstPrinciplesLaw()), rows)
    assert error < 10
