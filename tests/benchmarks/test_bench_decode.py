"""Rates of the decode engine (``pytest tests/benchmarks --benchmark-only``); nothing is gated."""

import pytest

from dapolab.sim import bench


def test_makespan_equals_the_plain_model():
    drawn = bench.lengths()[:64]
    engine = bench.engine_wave(drawn, law=bench.FLAT, full=False)()
    plain = bench.plain_simpy(drawn, replicas=bench.REPLICAS, slots=bench.SLOTS)
    assert engine.now_s == pytest.approx(plain, rel=1e-12)


def test_the_kv_limit_of_the_full_wave_binds():
    engine = bench.engine_wave(bench.lengths(), law=bench.FULL, full=True)()
    assert engine.facts().n_preemptions.sum() > 0


@pytest.mark.parametrize("name", ["plain", "wave", "full", "stream"])
def test_rate(benchmark, name):
    drawn = bench.lengths()
    calls = {
        "plain": lambda: bench.plain_simpy(drawn, replicas=bench.REPLICAS, slots=bench.SLOTS),
        "wave": bench.engine_wave(drawn, law=bench.FLAT, full=False),
        "full": bench.engine_wave(drawn, law=bench.FULL, full=True),
        "stream": bench.engine_stream(drawn),
    }
    benchmark.extra_info["responses"] = int(drawn.size)
    benchmark(calls[name])
