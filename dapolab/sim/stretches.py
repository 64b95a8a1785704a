"""The stretches of engine time that occupancy speaks of: barrier waves, or whole steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dapolab.sim.collection import Collection
from dapolab.sim.occupancy import PERCENTS, Occupancy
from dapolab.sim.step_facts import StepFacts


class Step(Protocol):
    """What is asked of a step: its number and what it collected."""

    @property
    def step(self) -> int:
        """Number of the step."""
        ...

    @property
    def collection(self) -> Collection:
        """What it collected."""
        ...


@dataclass(frozen=True)
class Stretches:
    """Waves of all steps in order, or whole steps where the policy has no barrier.

    A step of a barrier policy that generated nothing, as enough was carried over, has one empty
    stretch, which is no wave.
    """

    are_waves: bool
    step_W: NDArray[np.int64]
    number_W: NDArray[np.int64]
    n_groups_W: NDArray[np.int64]
    n_responses_W: NDArray[np.int64]
    start_s_W: NDArray[np.float64]
    decode_start_s_W: NDArray[np.float64]
    stop_s_W: NDArray[np.float64]
    seen_s_W: NDArray[np.float64]
    first_of_step_S: NDArray[np.int64]

    @classmethod
    def of(cls, records: Sequence[Step], facts: Sequence[StepFacts]) -> "Stretches":
        """Return the stretches of consecutive steps."""
        are_waves = any(r.collection.waves for r in records)
        rows, n_S = [], []
        for r, f in zip(records, facts, strict=True):
            own = _waves_of(r, f) if r.collection.waves else [_whole_step(r, f)]
            rows += own
            n_S.append(len(own))
        counts = np.array([row[:4] for row in rows], dtype=np.int64).T
        times = np.array([row[4:] for row in rows], dtype=np.float64).T
        return cls(
            are_waves=are_waves,
            step_W=counts[0],
            number_W=counts[1],
            n_groups_W=counts[2],
            n_responses_W=counts[3],
            start_s_W=times[0],
            decode_start_s_W=times[1],
            stop_s_W=times[2],
            seen_s_W=times[3],
            first_of_step_S=np.cumsum(n_S) - np.array(n_S),
        )


def _waves_of(record: Step, facts: StepFacts) -> list[tuple[float, ...]]:
    n_of_part = facts.activity.n_of_part
    return [
        (
            record.step,
            number,
            w.last - w.first,
            int(n_of_part[w.first : w.last].sum()),
            w.start_s,
            w.decode_start_s,
            w.end_s,
            w.seen_s,
        )
        for number, w in enumerate(record.collection.waves)
    ]


def _whole_step(record: Step, facts: StepFacts) -> tuple[float, ...]:
    active, n_parts = facts.activity, len(facts.activity.n_of_part)
    first = last = record.collection.start_s
    if len(active):
        first, last = float(active.submit_s.min()), float(np.nanmax(active.end_s))
    return (record.step, 0, n_parts, len(active), first, first, last, last)


def wave_columns(stretches: Stretches, busy: Occupancy) -> dict[str, NDArray[np.generic]]:
    """Return one row a wave: its groups, times and occupancy."""
    columns: dict[str, NDArray[np.generic]] = {
        "step": stretches.step_W,
        "wave": stretches.number_W,
        "n_groups": stretches.n_groups_W,
        "n_responses": stretches.n_responses_W,
        "start_s": stretches.start_s_W,
        "end_s": stretches.seen_s_W,
        "wave_s": busy.seconds_W,
        "idle_slot_share": busy.idle_share_W,
    }
    for percent in PERCENTS:
        columns[f"t{percent}_s"] = busy.done_after_s(percent)
    real = stretches.n_groups_W > 0
    return columns if real.all() else {name: column[real] for name, column in columns.items()}
