"""Benchmarks in little: the rows, and that what is compared did the same work; never a time."""

from types import SimpleNamespace

import numpy as np
import pytest

from dapolab import bench
from dapolab.sim import bench as sim_bench
from dapolab.sim.hardware import Law


@pytest.fixture
def little(monkeypatch):
    """Few groups and slots; a call takes two seconds, by a clock that is no clock."""
    for name, value in (("GROUPS", 64), ("SLOTS", 32), ("IN_FLIGHT", 16)):
        monkeypatch.setattr(sim_bench, name, value)
    for module in (sim_bench, bench):
        monkeypatch.setattr(module, "best_s", lambda call, *, repeats: call() and 2.0)


def test_the_engine_and_the_plain_model_do_the_same_work(little, monkeypatch):
    rows = sim_bench.decode_benchmarks(repeats=1)
    assert rows[0]["name"] == "plain SimPy"
    assert len(rows) == 4
    for row in rows:
        # 64 groups of 16 in two seconds each
        assert (row["value"], row["unit"], row["ratio"]) == (512.0, "responses/s", 1.0)
    # an engine that is 5 % slower than the plain model is not timed
    slower = Law(1.05 * sim_bench.ITERATION_S, (0.0, 1.0), (0.0, 0.0), 0.0)
    monkeypatch.setattr(sim_bench, "FLAT", slower)
    with pytest.raises(RuntimeError, match="makespans differ"):
        sim_bench.decode_benchmarks(repeats=1)


def test_a_stream_finishes_what_a_wave_does(little):
    drawn = sim_bench.lengths()
    wave = sim_bench.engine_wave(drawn, law=sim_bench.FLAT, full=False)().facts()
    stream = sim_bench.engine_stream(drawn)().facts()
    for facts in (wave, stream):
        assert np.isfinite(facts.end_s).all()
        assert facts.end_s.size == drawn.size
        # a decode step is a token: each response takes its own tokens once it is admitted
        seconds = np.sort(facts.end_s - facts.admit_s)
        assert seconds == pytest.approx(np.sort(drawn.reshape(-1)) * sim_bench.ITERATION_S)


def test_the_least_of_the_repeats_counts(monkeypatch):
    ticks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(sim_bench.time, "process_time", lambda: next(ticks))
    calls = []
    assert sim_bench.best_s(lambda: calls.append(1), repeats=3) == 2.0
    assert len(calls) == 4  # one to warm up


def test_every_row_has_a_value_and_a_ratio_to_what_it_names(little, monkeypatch):
    small = {
        "rollout": {"groups_per_step": 4, "group_size": 16, "cap_tokens": 64},
        "workload": {"kind": "independent", "lengths": {"kind": "constant", "tokens": 20}},
        "collector": {"kind": "none"},
        "hardware": {"prefill": False},
    }
    scales = []

    def paper_scale(collector, *, steps):
        scales.append((collector, steps))
        return bench.build(small | {"run": {"steps": steps}})

    monkeypatch.setattr(bench, "paper_scale", paper_scale)
    monkeypatch.setattr(bench, "plain_simpy_rate", lambda: 64.0)
    monkeypatch.setattr(bench, "decode_benchmarks", list)
    monkeypatch.setattr(bench, "_of_torch", list)
    # a process whose memory peaks at 512 MiB, told in KiB; one that starts as fast as Python
    monkeypatch.setattr(bench.sys, "platform", "linux")
    done = SimpleNamespace(stdout=str(512 * 1024))
    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: done)
    ticks = iter(range(100))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(ticks))
    told = []
    rows = bench.benchmarks(on_done=lambda: told.append(1))
    assert scales == [("rounds", 8), ("streaming", 2), ("over_provision", 4)]
    assert len(told) in (5, 6)  # the last one with torch alone
    found = {row["name"]: row for row in rows}
    assert len(found) == len(rows) == 7
    for row, (_, steps) in zip(rows, scales, strict=False):
        # no filter: 4 groups of 16 a step, in two seconds
        assert row["value"] == 64 * steps / 2
        assert row["ratio"] == row["value"] / 64
        assert row["against"] == "plain SimPy"
    assert found["simulate, B=4 G=8, one step"]["value"] == pytest.approx(2e3 / 300)
    memory = found["100 paper-scale steps, peak memory of the process"]
    assert (memory["value"], memory["ratio"]) == (512.0, 0.5)
    for name in ("import dapolab", "dapolab --help"):
        assert (found[name]["value"], found[name]["ratio"]) == (1e3, 1.0)


def test_the_papers_step():
    scenario = bench.paper_scale("rounds", steps=3)
    assert scenario.rollout.groups_per_step * scenario.rollout.group_size == 8192
    assert scenario.hardware.replicas * scenario.hardware.slots == 2048
    assert (scenario.collector.kind, scenario.run.steps) == ("rounds", 3)
