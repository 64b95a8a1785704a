"""Speed of the decode engine beside a plain SimPy model of the same thing, measured in one run.

The plain model is what one would write first: a process per response, a Resource per replica, one
timeout for the whole answer. It can say nothing but b = c = 0, no prefill and no KV limit; there
its makespan equals the engine's, which is checked before anything is timed.
"""

import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from dapolab.scenario import Hardware
from dapolab.sim.hardware import Law
from dapolab.sim.replica import Engine

REPLICAS, SLOTS, GROUPS, SIZE, PROMPT_TOKENS, CAP_TOKENS = 8, 256, 1536, 16, 512, 20_480
ITERATION_S = 0.0066
FLAT = Law(ITERATION_S, (0.0, 1.0), (0.0, 0.0), 0.0)
FULL = Law(ITERATION_S, (0.0, 1.0), (0.0, 1.19e-5), 4.68e-8, 2.0e-5, 4.4e-3, 4.9e-10)
Row = dict[str, float | str | None]
IN_FLIGHT = REPLICAS * SLOTS // SIZE


def lengths(seed: int = 0) -> NDArray[np.int64]:
    """Return (GROUPS, SIZE) lognormal lengths, median 1800, σ 0.9, cut at the cap."""
    rng = np.random.default_rng(seed)
    drawn = np.ceil(rng.lognormal(np.log(1800.0), 0.9, (GROUPS, SIZE)))
    return np.minimum(drawn, CAP_TOKENS).astype(np.int64)


def plain_simpy(n_tokens_PG: NDArray[np.int64], *, replicas: int, slots: int) -> float:
    """Return the makespan of the plain model: contiguous chunks of groups over replicas."""
    env = simpy.Environment()
    engines = [simpy.Resource(env, capacity=slots) for _ in range(replicas)]

    def respond(engine: simpy.Resource, n_tokens: int) -> Generator[simpy.Event, Any, None]:
        with engine.request() as slot:
            yield slot
            yield env.timeout(n_tokens * ITERATION_S)

    for engine, part in zip(engines, np.array_split(n_tokens_PG, replicas), strict=True):
        for n_tokens in part.reshape(-1).tolist():
            env.process(respond(engine, n_tokens))
    env.run()
    return float(env.now)


def engine_wave(n_tokens_PG: NDArray[np.int64], *, law: Law, full: bool) -> Callable[[], Engine]:
    """Return a function that runs one wave; ``full``: prefill, prefix cache, binding KV limit."""
    hardware = Hardware(
        replicas=REPLICAS,
        slots=SLOTS,
        prefill=full,
        prefix_cache=full,
        token_budget=8192 if full else None,
        kv_capacity_tokens=400_000 if full else None,
    )
    engine = Engine(hardware, law, n_expected=n_tokens_PG.size)
    label_P = np.arange(n_tokens_PG.shape[0])
    prompt_P = np.full(n_tokens_PG.shape[0], PROMPT_TOKENS)

    def wave() -> Engine:
        engine.reset(at_s=engine.now_s)
        engine.submit(
            at_s=engine.now_s, group_P=label_P, prompt_tokens_P=prompt_P, n_tokens_PG=n_tokens_PG
        )
        engine.drain()
        return engine

    return wave


def engine_stream(n_tokens_PG: NDArray[np.int64]) -> Callable[[], Engine]:
    """Return a function that keeps all slots busy, one group in for each group out."""
    hardware = Hardware(
        replicas=REPLICAS, slots=SLOTS, prefill=False, prefix_cache=False, dispatch="least_loaded"
    )
    engine = Engine(hardware, FLAT, n_expected=n_tokens_PG.size)
    prompt_P = np.full(n_tokens_PG.shape[0], PROMPT_TOKENS)

    def submit(first: int, last: int) -> None:
        engine.submit(
            at_s=engine.now_s,
            group_P=np.arange(first, last),
            prompt_tokens_P=prompt_P[first:last],
            n_tokens_PG=n_tokens_PG[first:last],
        )

    def stream() -> Engine:
        engine.reset(at_s=engine.now_s)
        submit(0, IN_FLIGHT)
        sent = IN_FLIGHT
        while (found := engine.advance()) is not None:
            for _ in range(found.groups.size):
                if sent < GROUPS:
                    submit(sent, sent + 1)
                    sent += 1
        return engine

    return stream


def best_s(call: Callable[[], object], *, repeats: int) -> float:
    """Return the least CPU seconds of ``repeats`` calls, after one to warm up (one core, both)."""
    call()
    took = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        took.append(time.process_time() - start)
    return min(took)


def plain_simpy_rate(*, repeats: int = 3) -> float:
    """Return the plain model's responses a second of CPU time, on ``lengths()``."""
    drawn = lengths()

    def plain() -> float:
        return plain_simpy(drawn, replicas=REPLICAS, slots=SLOTS)

    return drawn.size / best_s(plain, repeats=repeats)


def decode_benchmarks(*, repeats: int = 7) -> list[Row]:
    """Return rows {name, value, unit, against, ratio}: responses a second, times the plain model.

    Raises
    ------
    RuntimeError
        The engine and the plain model disagree on the makespan.
    """
    drawn = lengths()
    _check_makespans(drawn)
    base = plain_simpy_rate()
    rows: list[Row] = [
        {"name": "plain SimPy", "value": base, "unit": "responses/s", "against": None, "ratio": 1.0}
    ]
    affine = Law(FULL.a_s, FULL.n_knots, FULL.b_knots_s, FULL.c_s)
    cases = {
        "decode wave, affine law": engine_wave(drawn, law=affine, full=False),
        "decode wave, prefill + prefix cache + KV limit": engine_wave(drawn, law=FULL, full=True),
        "decode streaming, one call per group of 16": engine_stream(drawn),
    }
    for name, call in cases.items():
        rate = drawn.size / best_s(call, repeats=repeats)
        rows.append(
            {
                "name": name,
                "value": rate,
                "unit": "responses/s",
                "against": "plain SimPy",
                "ratio": rate / base,
            }
        )
    return rows


def _check_makespans(n_tokens_PG: NDArray[np.int64]) -> None:
    engine = engine_wave(n_tokens_PG, law=FLAT, full=False)()
    plain = plain_simpy(n_tokens_PG, replicas=REPLICAS, slots=SLOTS)
    if abs(engine.now_s - plain) > 1e-9 * plain:
        raise RuntimeError(f"makespans differ: engine {engine.now_s}, SimPy {plain}")
