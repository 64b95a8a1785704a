"""Time the engine: seconds of an iteration against responses, context and admission.

Two kinds of measurement, both by the engine that trains. *Cells* hold n responses of one range of
contexts, visited in random order so that a slow minute touches all of them alike; *engine* runs
answer real prompts. Both repeat exactly (same prompts, same noise), so the median over repeats is
of one and the same work. The fit of a law is ``dapolab calibrate``.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from dapolab.rng import stream
from gpu_runs.generate import Generator, Iteration, Request
from gpu_runs.model import Decoder
from gpu_runs.task import Task

Timed = tuple[Iteration, float]
"""An iteration and the CPU seconds around it."""
KEYS = ("part", "run", "cell", "index")
COLUMNS = {
    "part": "cell: n and context chosen; engine: real prompts until the last ends",
    "run": "repeat of a pass over all cells, or slots and repeat of an engine run",
    "cell": "n and middle context of a cell; slots of an engine run",
    "index": "iteration within the visit; in a cell, 0 is the admission of all n",
    "n": "responses that gained a token",
    "sum_context_tokens": "tokens attended to, each response's newest included",
    "prefill_tokens": "prompt tokens computed (shared prompts once)",
    "admitted": "responses that took a slot",
    "iterations": "1",
    "seconds": "of the iteration, admission included",
    "cpu_seconds": "CPU time of the process in it: on one CPU thread, seconds of an idle core",
    "admit_seconds": "of its part that is the host's: slots, noise, padding",
}
"""Columns of the table ``trace``; ``medians`` has them without ``run``'s repeat, over repeats."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is timed.

    Attributes
    ----------
    ns : responses at once, of the cells.
    contexts : middle of each range of contexts; prompts of a cell are uniform in ±50 % of it.
    n_decodes : iterations of a visit after its admission.
    engine_slots, engine_responses : runs on real prompts.
    n_repeats : visits of each cell and runs of each engine; one more of each warms up.
    """

    ns: tuple[int, ...]
    contexts: tuple[int, ...]
    engine_slots: tuple[int, ...]
    engine_responses: int = 256
    n_decodes: int = 4
    n_repeats: int = 5


def default_plan(*, slots: int, max_context: int, smoke: bool = False) -> Plan:
    """Return powers of two up to ``slots``, and contexts that fill the model to 15, 40 and 65 %."""
    ns = [2**k for k in range(slots.bit_length()) if 2**k < slots]
    contexts = [max(2, max_context * share // 100) for share in (15, 40, 65)]
    if smoke:
        return Plan(
            ns=(1, slots),
            contexts=(contexts[0], contexts[2]),
            engine_slots=(slots,),
            engine_responses=slots,
            n_repeats=1,
        )
    return Plan(
        ns=(*ns, slots),
        contexts=tuple(contexts),
        engine_slots=tuple(sorted({max(1, slots // 8), max(1, slots // 2), slots})),
        engine_responses=2 * slots,
    )


@dataclass(frozen=True, kw_only=True)
class _Endless:
    """A task whose responses never stop, so that n stays what a cell says."""

    vocab_size: int
    pad_token: int
    stop_token: int = -1


def measure(
    model: Decoder,
    task: Task,
    plan: Plan,
    *,
    cap_tokens: int,
    seed: int,
    dtype: torch.dtype | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """Return the trace: one row an iteration, columns :data:`COLUMNS`.

    ``on_done`` is called after each of the ``n_visits(plan)`` visits.
    """
    rows: list[dict[str, object]] = []
    order = stream(seed, "measure", "order")
    endless = _Endless(vocab_size=task.vocab_size, pad_token=task.pad_token)
    cells = [(n, context) for n in plan.ns for context in plan.contexts]
    engines = {
        n: Generator(model, endless, slots=n, cap_tokens=plan.n_decodes + 2, seed=seed, dtype=dtype)
        for n in plan.ns
    }
    for repeat in range(-1, plan.n_repeats):  # −1 warms up
        for i in order.permutation(len(cells)):
            n, context = cells[i]
            visit = _visit(engines[n], task, n, context, plan.n_decodes, seed)
            rows += _rows(visit, part="cell", run=f"cells-{repeat}", cell=f"{n}x{context}")
            on_done()
        for slots in order.permutation(plan.engine_slots):
            generator = Generator(
                model, task, slots=int(slots), cap_tokens=cap_tokens, seed=seed, dtype=dtype
            )
            problems = task.problems("train", plan.engine_responses, seed=seed)
            generator.submit(Request((0, i, 0), p.prompt) for i, p in enumerate(problems))
            timed = _timed(generator, n_steps=None)
            rows += _rows(timed, part="engine", run=f"slots-{slots}-{repeat}", cell=str(slots))
            on_done()
        if repeat < 0:
            rows.clear()
    return pd.DataFrame(rows, columns=list(COLUMNS))


def n_visits(plan: Plan) -> int:
    """Return how many visits :func:`measure` makes."""
    return (plan.n_repeats + 1) * (len(plan.ns) * len(plan.contexts) + len(plan.engine_slots))


def _visit(
    generator: Generator, task: Task, n: int, context: int, n_decodes: int, seed: int
) -> list[Timed]:
    """Admit n random prompts, decode a few tokens, drop them."""
    rng = stream(seed, "measure", n, context)
    longest = generator.model.config.max_positions - generator.cap_tokens
    lengths = rng.integers(max(1, context // 2), context + context // 2 + 1, size=n)
    lengths = np.minimum(lengths, longest)
    generator.submit(
        Request((0, i, 0), tuple(rng.integers(0, task.vocab_size, size=length).tolist()))
        for i, length in enumerate(lengths.tolist())
    )
    timed = _timed(generator, n_steps=1 + n_decodes)
    generator.abort()
    return timed


def _timed(generator: Generator, *, n_steps: int | None) -> list[Timed]:
    """Step so often, or until nothing is in flight."""
    out: list[Timed] = []
    while generator.n_in_flight and (n_steps is None or len(out) < n_steps):
        before = time.process_time()
        generator.step()
        out.append((generator.iterations[-1], time.process_time() - before))
    return out


def _rows(timed: Sequence[Timed], *, part: str, run: str, cell: str) -> Iterator[dict[str, object]]:
    for index, (it, cpu_seconds) in enumerate(timed):
        yield {
            "part": part,
            "run": run,
            "cell": cell,
            "index": index,
            "n": it.n,
            "sum_context_tokens": it.sum_context,
            "prefill_tokens": it.prefill_tokens,
            "admitted": it.admitted,
            "iterations": 1,
            "seconds": it.seconds,
            "cpu_seconds": cpu_seconds,
            "admit_seconds": it.admit_seconds,
        }


def medians(trace: pd.DataFrame) -> pd.DataFrame:
    """Return one row per piece of repeated work: median seconds, their spread, the repeats.

    Columns of the trace, ``run`` without its repeat, and ``seconds_min``, ``seconds_iqr``,
    ``n_repeats``.
    """
    table = trace.assign(run=trace["run"].str.rpartition("-")[0])
    groups = table.groupby(list(KEYS), sort=False)
    work = ["n", "sum_context_tokens", "prefill_tokens", "admitted", "iterations"]
    out = groups[work].first()
    out["seconds"] = groups["seconds"].median()
    out["cpu_seconds"] = groups["cpu_seconds"].median()
    out["admit_seconds"] = groups["admit_seconds"].median()
    out["seconds_min"] = groups["seconds"].min()
    out["seconds_iqr"] = groups["seconds"].quantile(0.75) - groups["seconds"].quantile(0.25)
    out["n_repeats"] = groups["seconds"].count()
    return out.reset_index()
