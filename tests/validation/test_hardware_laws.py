"""Presets against the operator tables they are quoted from; first principles with its own error."""

import numpy as np
import pandas as pd
import pytest

from dapolab.scenario import ConfigError, FirstPrinciplesLaw, Hardware, PresetLaw
from dapolab.sim.hardware import first_principles, kv_capacity_tokens, presets, resolve

GRID = [
    ("qwen3-8b-h100-tp1", "Qwen/Qwen3-8B", "h100_sxm", 1),
    ("qwen3-8b-h200-tp1", "Qwen/Qwen3-8B", "h200_sxm", 1),
    ("qwen3-8b-a100-tp1", "Qwen/Qwen3-8B", "a100_sxm", 1),
    ("qwen3-8b-b200-tp1", "Qwen/Qwen3-8B", "b200_sxm", 1),
    ("qwen3-32b-h100-tp2", "Qwen/Qwen3-32B", "h100_sxm", 2),
    ("qwen3-32b-h100-tp4", "Qwen/Qwen3-32B", "h100_sxm", 4),
    ("qwen3-32b-h200-tp2", "Qwen/Qwen3-32B", "h200_sxm", 2),
    ("llama-3.1-8b-h100-tp1", "meta-llama/Meta-Llama-3.1-8B", "h100_sxm", 1),
    ("llama-3.1-70b-h100-tp8", "meta-llama/Meta-Llama-3.1-70B", "h100_sxm", 8),
    ("qwen3-30b-a3b-h100-tp2", "Qwen/Qwen3-30B-A3B", "h100_sxm", 2),
]
# Model shapes of the public configurations: parameters, layers, KV heads, head width.
SHAPES = {
    "Qwen/Qwen3-8B": (8.19e9, 36, 8, 128),
    "Qwen/Qwen3-32B": (32.8e9, 64, 8, 128),
    "meta-llama/Meta-Llama-3.1-8B": (8.03e9, 32, 8, 128),
    "meta-llama/Meta-Llama-3.1-70B": (70.6e9, 80, 8, 128),
}


def rows(shared_data, name, model, system, tp):
    table = pd.read_csv(shared_data / "decode_tables" / name)
    return table[(table.model == model) & (table.system == system) & (table.tp == tp)]


def decode_errors(law, table):
    n = table.batch.to_numpy(float)
    measured = table.decode_ms.to_numpy() / 1000
    b = np.interp(n, law.n_knots, law.b_knots_s)
    beyond = (law.b_knots_s[-1] - law.b_knots_s[-2]) / (law.n_knots[-1] - law.n_knots[-2])
    b += beyond * np.maximum(0, n - law.n_knots[-1])
    predicted = law.a_s + b + law.c_s * n * table.ctx.to_numpy()
    return np.abs(predicted / measured - 1)


@pytest.mark.parametrize(("name", "model", "system", "tp"), GRID)
def test_preset_has_its_stated_error(shared_data, name, model, system, tp):
    preset = presets()[name]
    errors = decode_errors(preset.law, rows(shared_data, "decode_grid.csv", model, system, tp))
    assert errors.size == 88
    assert errors.mean() == pytest.approx(preset.decode_error_share, abs=0.002)


@pytest.mark.parametrize(("name", "model", "system", "tp"), GRID)
def test_prefill_has_its_stated_error(shared_data, name, model, system, tp):
    preset = presets()[name]
    if preset.prefill_error_share is None:
        pytest.skip("this preset states no prefill error")
    table = rows(shared_data, "prefill_grid.csv", model, system, tp)
    table = table[table.batch * table.isl >= 512]
    law, T = preset.law, table.isl.to_numpy(float)
    total = table.batch.to_numpy() * T
    predicted = law.a_s + np.maximum(0, law.prefill_s * total - law.prefill_slack_s)
    predicted += law.prefill_context_s * total * T
    errors = np.abs(predicted / (table.prefill_ms.to_numpy() / 1000) - 1)
    assert errors.mean() == pytest.approx(preset.prefill_error_share, abs=0.003)


@pytest.mark.parametrize(("name", "model", "system", "tp"), GRID[:-1])
def test_first_principles_has_its_stated_error(shared_data, name, model, system, tp):
    del name
    parameters, layers, kv_heads, head_dim = SHAPES[model]
    law = first_principles(
        FirstPrinciplesLaw(
            gpu=system.removesuffix("_sxm"),
            tensor_parallel=tp,
            parameters=parameters,
            layers=layers,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )
    )
    errors = decode_errors(law, rows(shared_data, "decode_grid.csv", model, system, tp))
    print(f"first principles {model} {system} tp{tp}: {errors.mean():.1%}, max {errors.max():.1%}")
    assert errors.mean() < (0.155 if tp <= 2 else 0.285)


def test_unknown_names_point_to_the_nearest():
    with pytest.raises(ConfigError, match="nearest: 'qwen3-8b-h100-tp1'"):
        resolve(Hardware(law=PresetLaw(name="qwen3-8b-h100")))
    with pytest.raises(ConfigError, match="nearest: 'h200'"):
        resolve(Hardware(law=FirstPrinciplesLaw(gpu="h2000")))


def test_scale_multiplies_every_term():
    plain = resolve(Hardware(law=PresetLaw()))
    double = resolve(Hardware(law=PresetLaw(scale=2.0)))
    for key in ("a_s", "c_s", "prefill_s", "prefill_slack_s", "prefill_context_s"):
        assert getattr(double, key) == 2 * getattr(plain, key)
    assert double.b_knots_s == tuple(2 * b for b in plain.b_knots_s)


def test_mixture_is_monotone_and_concave():
    law = presets()["qwen3-30b-a3b-h100-tp2"].law
    slopes = np.diff(law.b_knots_s) / np.diff(law.n_knots)
    assert np.all(slopes > 0)
    assert np.all(np.diff(slopes) < 0)


def test_capacity_from_memory():
    # 0.9 · 80 GB − 16.38 GB of weights, 147456 bytes of KV a token
    assert kv_capacity_tokens(FirstPrinciplesLaw()) == int((72e9 - 16.38e9) // 147456)
    with pytest.raises(ConfigError, match="raise tensor_parallel"):
        kv_capacity_tokens(FirstPrinciplesLaw(gpu="rtx-4090", parameters=32e9))
