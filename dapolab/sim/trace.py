"""A run as a Perfetto (Chrome trace) document: phases of each step, waves, recorded responses."""

from typing import Any

import numpy as np
import pandas as pd

from dapolab.sim.learner import PARTS
from dapolab.sim.run import SimRun


def perfetto(run: SimRun, *, name: str) -> dict[str, Any]:
    """Return the trace document; load it at ui.perfetto.dev or chrome://tracing.

    Times are microseconds of simulated time. Process 0 is the trainer (one thread for phases, one
    for waves, one for a learner that works beside the rollout); process r + 1 is replica r, whose
    threads are the lanes that its responses fill.
    """
    events: list[dict[str, Any]] = [_named("process_name", 0, None, f"{name}: trainer")]
    events += [_named("thread_name", 0, 0, "phases"), _named("thread_name", 0, 1, "waves")]
    beside = run.steps["pipeline/learner_wait_seconds"].notna()
    if beside.any():
        events.append(_named("thread_name", 0, 2, "learner"))
    opens_s = run.steps["time/step_seconds"].cumsum().shift(fill_value=0.0)
    for (_, step), opened_s, is_beside in zip(run.steps.iterrows(), opens_s, beside, strict=True):
        events += _beside(step, opened_s) if is_beside else _phases(step)
    for _, wave in run.waves.iterrows():
        arguments = {"groups": int(wave["n_groups"]), "idle_slot_share": wave["idle_slot_share"]}
        label = f"step {int(wave['step'])} wave {int(wave['wave'])}"
        events.append(_span(label, 0, 1, wave["start_s"], wave["end_s"], arguments))
    if len(run.responses):
        events += _responses(run.responses)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _phases(step: pd.Series) -> list[dict[str, Any]]:
    number, start_s = int(step["step"]), float(step["start_s"])
    end_s = start_s + float(step["time/rollout_seconds"])
    events = [_span(f"step {number} rollout", 0, 0, start_s, end_s, {})]
    for phase in PARTS:
        seconds = float(step[f"time/{phase}_seconds"])
        if seconds > 0:
            events.append(_span(f"step {number} {phase}", 0, 0, end_s, end_s + seconds, {}))
            end_s += seconds
    return events


def _beside(step: pd.Series, opened_s: float) -> list[dict[str, Any]]:
    """Return the rollout of a step that has one of its own, and what the learner did meanwhile.

    All its waits are drawn as one: before its work, one step off after it.
    """
    number = int(step["step"])
    events, rollout_s = [], float(step["time/rollout_seconds"])
    if np.isfinite(rollout_s):
        start_s = float(step["start_s"])
        events.append(_span(f"step {number} rollout", 0, 0, start_s, start_s + rollout_s, {}))
    at_s = opened_s
    parts = [("waits", "pipeline/learner_wait_seconds")]
    parts += [(part, f"time/{part}_seconds") for part in PARTS]
    if np.isfinite(rollout_s) and number > 0:
        parts.append(parts.pop(0))  # one step off: the wait is for the next rollout
    for part, column in parts:
        seconds = float(step[column])
        if seconds > 0:
            events.append(_span(f"step {number} {part}", 0, 2, at_s, at_s + seconds, {}))
            at_s += seconds
    return events


def _responses(responses: pd.DataFrame) -> list[dict[str, Any]]:
    events = []
    started = responses[np.isfinite(responses["admit_s"])]
    for replica, rows in started.groupby("replica"):
        process = int(replica) + 1
        events.append(_named("process_name", process, None, f"replica {replica}"))
        rows = rows.sort_values("admit_s", kind="stable")
        lanes = assign_lanes(rows["admit_s"].to_numpy(), rows["end_s"].to_numpy())
        for lane, (_, row) in zip(lanes, rows.iterrows(), strict=True):
            arguments = {
                "tokens": int(row["generated_tokens"]),
                "status": row["status"],
                "queued_s": row["admit_s"] - row["submit_s"],
            }
            label = f"group {row['group']}.{row['member']} {row['status']}"
            span = _span(label, process, int(lane), row["admit_s"], row["end_s"], arguments)
            events.append(span)
    return events


def assign_lanes(start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """Return a lane for each interval (sorted by start) so that none overlaps in its lane."""
    free_s: list[float] = []
    lanes = np.empty(len(start_s), dtype=np.int64)
    for i, (start, end) in enumerate(zip(start_s, end_s, strict=True)):
        lane = next((k for k, until in enumerate(free_s) if until <= start), len(free_s))
        if lane == len(free_s):
            free_s.append(0.0)
        free_s[lane] = end
        lanes[i] = lane
    return lanes


def _span(
    name: str, process: int, thread: int, start_s: float, end_s: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "ts": start_s * 1e6,
        "dur": max(end_s - start_s, 0.0) * 1e6,
        "pid": process,
        "tid": thread,
        "args": arguments,
    }


def _named(kind: str, process: int, thread: int | None, name: str) -> dict[str, Any]:
    event: dict[str, Any] = {"name": kind, "ph": "M", "pid": process, "args": {"name": name}}
    if thread is not None:
        event["tid"] = thread
    return event
