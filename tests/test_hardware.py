"""Decode laws: presets, first principles, what is refused."""

import pytest

from dapolab.scenario import ConfigError, FirstPrinciplesLaw, build
from dapolab.sim.hardware import first_principles, kv_capacity_tokens, resolve
from dapolab.sim.presets import PRESETS


def law_of(**table):
    return resolve(build({"hardware": {"law": table}}).hardware)


def test_a_preset_is_its_published_milliseconds_times_the_scale():
    law = law_of(kind="preset", name="qwen3-8b-h100-tp1", scale=2.0)
    assert law.a_s == pytest.approx(2 * 6.588e-3, rel=1e-12)
    assert law.b_knots_s == (0.0, pytest.approx(2 * 0.01194e-3, rel=1e-12))
    assert law.c_s == pytest.approx(2 * 4.683e-8, rel=1e-12)
    assert "AIC" in law.source


def test_every_preset_is_a_usable_law():
    for name in PRESETS:
        law = law_of(kind="preset", name=name)
        slopes = [
            (b1 - b0) / (n1 - n0)
            for n0, n1, b0, b1 in zip(
                law.n_knots, law.n_knots[1:], law.b_knots_s, law.b_knots_s[1:], strict=False
            )
        ]
        assert law.a_s > 0
        assert law.c_s > 0
        assert all(slope >= 0 for slope in slopes)
        assert slopes == sorted(slopes, reverse=True), f"{name}: b(n) must be concave"


def test_an_unknown_preset_or_gpu_names_the_nearest():
    with pytest.raises(ConfigError, match="nearest: 'qwen3-8b-h100-tp1'"):
        law_of(kind="preset", name="qwen3-8b-h100")
    with pytest.raises(ConfigError, match="nearest: 'h100'"):
        law_of(kind="first_principles", gpu="h1000")


def test_first_principles_are_bytes_over_bandwidth():
    law = FirstPrinciplesLaw(
        gpu="h100",
        tensor_parallel=2,
        parameters=32e9,
        layers=64,
        kv_heads=8,
        head_dim=128,
        bandwidth_efficiency=0.8,
        flops_efficiency=0.5,
        launch_s=0.0005,
        per_sequence_s=1e-5,
    )
    found = first_principles(law)
    bandwidth = 2 * 3.35e12 * 0.8
    assert found.a_s == pytest.approx(64e9 / bandwidth + 0.0005, rel=1e-12)
    assert found.c_s == pytest.approx(2 * 64 * 8 * 128 * 2 / bandwidth, rel=1e-12)
    assert found.prefill_s == pytest.approx(2 * 32e9 / (2 * 989e12 * 0.5), rel=1e-12)
    free = 2 * 80e9 * 0.9 - 64e9
    assert kv_capacity_tokens(law) == int(free / (2 * 64 * 8 * 128 * 2))


def test_weights_that_do_not_fit_say_so():
    with pytest.raises(ConfigError, match="do not fit on 1 × h100"):
        kv_capacity_tokens(FirstPrinciplesLaw(gpu="h100", parameters=70e9))
