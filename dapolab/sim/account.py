"""From what steps collected to the rows that are reported: facts in, tables out.

Every number is derived from per-response facts of the engine and per-group facts of the policy, so
tokens and groups are conserved by construction of the sums and by test. Steps are accounted in
batches: the array operations that one small step would need cost more than its simulation.
"""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.metrics import GROUP_COLUMNS, STATUSES, STEP_METRICS
from dapolab.sim.collect import Collection
from dapolab.sim.learner import NO_LEARNING, PARTS, LearnerTime
from dapolab.sim.occupancy import PERCENTS, Occupancy, occupancy
from dapolab.sim.replica import Facts
from dapolab.sim.score import Scores
from dapolab.sim.step_metrics import StepBatch, step_columns
from dapolab.workload.model import Groups

Number = TypeVar("Number", bound=np.generic)
Columns = dict[str, NDArray[np.generic]]

STATUS_NAMES = np.array(["in flight", *STATUSES])
_BATCH_RESPONSES = 1 << 14
_STEP_KEYS = ("step", "start_s", "ended_by")
_WAVE_NUMBERS = ("step", "wave", "n_groups", "n_responses")
_WAVE_TIMES = ("start_s", "end_s", "wave_s", "idle_slot_share", *(f"t{p}_s" for p in PERCENTS))
WAVE_COLUMNS = _WAVE_NUMBERS + _WAVE_TIMES
_GROUP_COLUMNS = tuple(name for name in GROUP_COLUMNS if name not in ("policy", "replication"))
_RESPONSE_NUMBERS = ("step", "wave", "group", "member", "replica", "generated_tokens", "status")
_RESPONSE_TIMES = ("submit_s", "admit_s", "first_token_s", "end_s")


@dataclass(frozen=True)
class StepRecord:
    """One step as it happened; ``learner`` is None where an error or the data ended it unlearned.

    ``groups`` and the response rows of ``facts`` are in submission order.
    """

    step: int
    collection: Collection
    groups: Groups
    facts: Facts
    learner: LearnerTime | None


@dataclass
class Ledger:
    """Keeps the books of a run.

    ``n_gpus`` are held for the whole step; ``estimates_q`` says whether the policy's ratio of kept
    groups follows theory A7; groups are kept where ``keep_groups``, responses of the first
    ``record_steps`` steps.
    """

    scores: Scores
    n_wanted: int
    n_gpus: int
    estimates_q: bool
    keep_groups: bool = True
    record_steps: int = 0
    _open: list[StepRecord] = field(default_factory=list)
    _n_open: int = 0
    _steps: list[Columns] = field(default_factory=list)
    _waves: list[Columns] = field(default_factory=list)
    _groups: list[Columns] = field(default_factory=list)
    _responses: list[Columns] = field(default_factory=list)

    def add(self, record: StepRecord) -> None:
        """Account for one step that submitted at least one group."""
        self._open.append(record)
        self._n_open += len(record.facts.end_s)
        if self._n_open >= _BATCH_RESPONSES:
            self._close_batch()

    def tables(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Return steps, groups, waves and responses so far."""
        if self._open:
            self._close_batch()
        names = (*_STEP_KEYS, *(metric.name for metric in STEP_METRICS))
        steps = _table(self._steps, names)
        waves = _table(self._waves, WAVE_COLUMNS)
        return steps, _groups_table(self._groups), waves, _responses_table(self._responses)

    def _close_batch(self) -> None:
        batch, stretches = _batch(self._open), _Stretches.of(self._open)
        size = batch.n_tokens_PG.shape[1]
        busy = occupancy(
            batch.admit_s,
            batch.end_s,
            n_responses_W=stretches.n_groups_W * size,
            start_s_W=stretches.decode_start_s_W,
            stop_s_W=stretches.stop_s_W,
        )
        learned = [r for r in self._open if r.learner is not None]
        if learned:
            columns = step_columns(
                batch,
                busy,
                first_stretch_S=stretches.first_of_step_S,
                are_waves=stretches.are_waves,
                scores=self.scores,
                n_wanted=self.n_wanted,
                n_gpus=self.n_gpus,
                estimates_q=self.estimates_q,
            )
            columns["start_s"] = batch.start_s_S
            keep_S = np.array([r.learner is not None for r in self._open])
            chosen: Columns = {name: column[keep_S] for name, column in columns.items()}
            chosen["step"] = np.array([r.step for r in learned])
            reasons = [r.collection.stop.reason if r.collection.stop else "" for r in learned]
            chosen["ended_by"] = np.array(reasons, dtype=object)
            self._steps.append(chosen)
        if stretches.are_waves:
            self._waves.append(_wave_columns(stretches, busy, size=size))
        if self.keep_groups:
            self._groups.append(_group_columns(batch, self._open))
        self._responses += [_response_columns(r) for r in self._open if r.step < self.record_steps]
        self._open, self._n_open = [], 0


def _batch(records: list[StepRecord]) -> StepBatch:
    groups, facts = [r.groups for r in records], [r.facts for r in records]
    n_groups_S = np.array([len(r.groups) for r in records])
    times = [r.learner or NO_LEARNING for r in records]
    return StepBatch(
        first_group_S=np.cumsum(n_groups_S) - n_groups_S,
        n_groups_S=n_groups_S,
        start_s_S=np.array([r.collection.start_s for r in records]),
        end_s_S=np.array([r.collection.end_s for r in records]),
        learner_S={name: np.array([getattr(t, f"{name}_s") for t in times]) for name in PARTS},
        n_preemptions_S=np.array([f.n_preemptions.sum() for f in facts]),
        prefill_s_S=np.array([f.prefill_s.mean() for f in facts]),
        peak_kv_tokens_S=np.array([f.peak_kv_tokens.max() for f in facts]),
        status_P=np.array([s for r in records for s in r.collection.status], dtype=np.int64),
        pass_rate_P=_joined([g.pass_rate_P for g in groups]),
        n_tokens_PG=_joined([g.n_tokens_PG for g in groups]),
        correct_PG=_joined([g.correct_PG for g in groups]),
        truncated_PG=_joined([g.truncated_PG for g in groups]),
        submit_s=_joined([f.submit_s for f in facts]),
        admit_s=_joined([f.admit_s for f in facts]),
        end_s=_joined([f.end_s for f in facts]),
        generated_tokens=_joined([f.generated_tokens for f in facts]),
    )


def _joined(arrays: list[NDArray[Number]]) -> NDArray[Number]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@dataclass(frozen=True)
class _Stretches:
    """Waves of all steps in order, or whole steps where the policy has no barrier."""

    are_waves: bool
    step_W: NDArray[np.int64]
    number_W: NDArray[np.int64]
    n_groups_W: NDArray[np.int64]
    start_s_W: NDArray[np.float64]
    decode_start_s_W: NDArray[np.float64]
    stop_s_W: NDArray[np.float64]
    seen_s_W: NDArray[np.float64]
    first_of_step_S: NDArray[np.int64]

    @classmethod
    def of(cls, records: list[StepRecord]) -> "_Stretches":
        are_waves = bool(records[0].collection.waves)
        if are_waves:
            rows = [
                (r.step, number, w.last - w.first, w.start_s, w.decode_start_s, w.end_s, w.seen_s)
                for r in records
                for number, w in enumerate(r.collection.waves)
            ]
            n_S = np.array([len(r.collection.waves) for r in records])
        else:
            rows = []
            for r in records:
                first, last = float(r.facts.submit_s.min()), float(np.nanmax(r.facts.end_s))
                rows.append((r.step, 0, len(r.groups), first, first, last, last))
            n_S = np.ones(len(records), dtype=np.int64)
        step, number, n_groups = np.array([row[:3] for row in rows], dtype=np.int64).T
        start, decode_start, stop, seen = np.array([row[3:] for row in rows], dtype=np.float64).T
        first = np.cumsum(n_S) - n_S
        return cls(are_waves, step, number, n_groups, start, decode_start, stop, seen, first)


def _wave_columns(stretches: _Stretches, busy: Occupancy, *, size: int) -> Columns:
    columns: Columns = {
        "step": stretches.step_W,
        "wave": stretches.number_W,
        "n_groups": stretches.n_groups_W,
        "n_responses": stretches.n_groups_W * size,
        "start_s": stretches.start_s_W,
        "end_s": stretches.seen_s_W,
        "wave_s": busy.seconds_W,
        "idle_slot_share": busy.idle_share_W,
    }
    for percent in PERCENTS:
        columns[f"t{percent}_s"] = busy.done_after_s(percent)
    return columns


def _wave_of_groups(collection: Collection) -> NDArray[np.int64]:
    """Return the wave of each group, −1 without a barrier."""
    if not collection.waves:
        return np.full(len(collection.status), -1)
    sizes = [wave.last - wave.first for wave in collection.waves]
    return np.repeat(np.arange(len(sizes)), sizes)


def _group_columns(batch: StepBatch, records: list[StepRecord]) -> Columns:
    size = batch.n_tokens_PG.shape[1]
    return {
        "step": np.repeat([r.step for r in records], batch.n_groups_S),
        "wave": _joined([_wave_of_groups(r.collection) for r in records]),
        "position": _joined([r.groups.position_P for r in records]),
        "prompt_id": _joined([r.groups.prompt_id_P for r in records]),
        "status": batch.status_P,
        "n_correct": batch.n_right,
        "pass_rate": batch.pass_rate_P,
        "n_tokens_mean": batch.full_tokens / size,
        "n_tokens_max": batch.longest,
        "generated_tokens": batch.generated,
        "submit_s": batch.submit_s.reshape(-1, size).min(axis=1),
        "end_s": batch.end_s.reshape(-1, size).max(axis=1),
    }


def _response_columns(record: StepRecord) -> Columns:
    facts, collection = record.facts, record.collection
    n_groups, size = record.groups.n_tokens_PG.shape
    return {
        "step": np.full(n_groups * size, record.step),
        "wave": np.repeat(_wave_of_groups(collection), size),
        "group": np.repeat(np.arange(n_groups), size),
        "member": np.tile(np.arange(size), n_groups),
        "replica": facts.replica,
        "submit_s": facts.submit_s,
        "admit_s": facts.admit_s,
        "first_token_s": facts.first_token_s,
        "end_s": facts.end_s,
        "generated_tokens": facts.generated_tokens,
        "status": np.repeat(np.array(collection.status), size),
    }


def _table(parts: list[Columns], names: tuple[str, ...]) -> pd.DataFrame:
    """Return the parts one below the other; a column that no part has is NaN."""
    if not parts:
        return pd.DataFrame({name: np.empty(0) for name in names}).astype({"step": np.int64})
    absent = np.full(sum(len(part["step"]) for part in parts), np.nan)
    columns = {
        name: _joined([part[name] for part in parts]) if name in parts[0] else absent
        for name in names
    }
    return pd.DataFrame(columns)


def _groups_table(parts: list[Columns]) -> pd.DataFrame:
    return _named_states(_table(parts, _GROUP_COLUMNS))


def _responses_table(parts: list[Columns]) -> pd.DataFrame:
    return _named_states(_table(parts, _RESPONSE_NUMBERS + _RESPONSE_TIMES))


def _named_states(table: pd.DataFrame) -> pd.DataFrame:
    """Replace numbers that stand for something else: a missing wave, a status."""
    wave = table["wave"].astype("Int64")
    status = STATUS_NAMES[table["status"].to_numpy().astype(np.int64)]
    return table.assign(wave=wave.mask(wave < 0), status=status.astype(object))
