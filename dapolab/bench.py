"""Speed as ratios, each measured in one run beside what it is compared with, in CPU time.

Rates depend on the machine and are printed, never gated; ratios are against a plain SimPy model
(one process a response, one Resource a replica) that decodes the same lengths to the same makespan.
"""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from dapolab.scenario import Scenario, build
from dapolab.sim.bench import best_s, decode_benchmarks, plain_simpy_rate
from dapolab.sim.run import simulate

Row = Mapping[str, Any]


def paper_scale(collector: str, *, steps: int) -> Scenario:
    """Return the step of the DAPO paper: 512 of 1536 prompts × 16, 8 replicas × 256 slots."""
    return build(
        {
            "name": "paper-scale",
            "workload": {"kind": "joint", "median_tokens": 4000, "mean_logit": 0.0},
            "rollout": {
                "groups_per_step": 512,
                "group_size": 16,
                "cap_tokens": 20480,
                "overlong": {"buffer_tokens": 4096},
            },
            "collector": {"kind": collector},
            "hardware": {"replicas": 8, "slots": 256, "prefill": False},
            "run": {"steps": steps},
        }
    )


def benchmarks(*, on_done: Callable[[], None] = lambda: None) -> list[Row]:
    """Return every benchmark: {name, value, unit, against, ratio}; some tens of seconds."""
    rows: list[Row] = [*decode_benchmarks()]
    on_done()
    plain = plain_simpy_rate()
    for collector, steps in (("rounds", 8), ("streaming", 2), ("over_provision", 4)):
        rows.append(_end_to_end(collector, steps, plain))
        on_done()
    rows.append(_small_steps())
    rows.append(_memory())
    on_done()
    rows += [_start_up("import dapolab", "import dapolab"), _help()]
    if importlib.util.find_spec("torch") is not None:
        rows += _of_torch()
        on_done()
    return rows


def _of_torch() -> list[Row]:
    """Rows of the objective and the bandit, where the extra ``train`` is installed."""
    from dapolab.bandit.bench import bandit_benchmarks
    from dapolab.objective.bench import objective_benchmarks

    return [*objective_benchmarks(), *bandit_benchmarks()]


def _end_to_end(collector: str, steps: int, plain: float) -> Row:
    scenario = paper_scale(collector, steps=steps)
    responses = 16 * float(simulate(scenario, seed=0).steps["rollout/candidate_groups"].sum())
    rate = responses / best_s(lambda: simulate(scenario, seed=0), repeats=3)
    return {
        "name": f"simulate {collector} at paper scale, sampling and metrics included",
        "value": rate,
        "unit": "responses/s",
        "against": "plain SimPy",
        "ratio": rate / plain,
    }


def _small_steps() -> Row:
    scenario = build({"run": {"steps": 300}})
    milliseconds = best_s(lambda: simulate(scenario, seed=0), repeats=3) / 300 * 1e3
    return {
        "name": "simulate, B=4 G=8, one step",
        "value": milliseconds,
        "unit": "ms",
        "against": None,
        "ratio": None,
    }


def _memory() -> Row:
    """Peak resident memory of 100 paper-scale steps, in a process of its own."""
    code = (
        "import resource; from dapolab.bench import paper_scale; "
        "from dapolab.sim.run import simulate; "
        "simulate(paper_scale('rounds', steps=100), seed=0); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak = float(done.stdout) * (1 if sys.platform == "darwin" else 1024)
    return {
        "name": "100 paper-scale steps, peak memory of the process",
        "value": peak / 2**20,
        "unit": "MiB",
        "against": "1 GiB",
        "ratio": peak / 2**30,
    }


def _start_up(name: str, code: str) -> Row:
    return _timed(name, [sys.executable, "-c", code])


def _help() -> Row:
    return _timed("dapolab --help", [sys.executable, "-m", "dapolab", "--help"])


def _timed(name: str, command: list[str]) -> Row:
    """Best of three: start-up beside a Python that starts and does nothing."""

    def best(words: list[str]) -> float:
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            subprocess.run(words, capture_output=True, check=True)
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    nothing, mine = best([sys.executable, "-c", "pass"]), best(command)
    return {
        "name": name,
        "value": mine * 1e3,
        "unit": "ms",
        "against": "python -c pass",
        "ratio": mine / nothing,
    }


__all__ = ["benchmarks", "paper_scale"]
