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
from dapolab.sim.collection import CARRIED, FAILED, TRAINED, Collection
from dapolab.sim.learner import NO_LEARNING, PARTS, LearnerTime
from dapolab.sim.occupancy import PERCENTS, occupancy
from dapolab.sim.replica import Facts
from dapolab.sim.score import Scores
from dapolab.sim.step_facts import Ages, StepFacts, mean_age, step_facts
from dapolab.sim.step_metrics import Beside, Memory, StepBatch, step_columns
from dapolab.sim.stretches import Stretches, wave_columns
from dapolab.workload.model import Groups

Number = TypeVar("Number", bound=np.generic)
Columns = dict[str, NDArray[np.generic]]

STATUS_NAMES = np.array(["in flight", *STATUSES[:-1], "carried", STATUSES[-1]])
assert STATUS_NAMES[CARRIED] == "carried"
assert STATUS_NAMES[FAILED] == "failed"
_BATCH_RESPONSES = 1 << 14
_STEP_KEYS = ("step", "start_s", "ended_by")
_WAVE_NUMBERS = ("step", "wave", "n_groups", "n_responses")
_WAVE_TIMES = ("start_s", "end_s", "wave_s", "idle_slot_share", *(f"t{p}_s" for p in PERCENTS))
WAVE_COLUMNS = _WAVE_NUMBERS + _WAVE_TIMES
_GROUP_COLUMNS = tuple(name for name in GROUP_COLUMNS if name not in ("policy", "replication"))
_RESPONSE_NUMBERS = ("step", "wave", "group", "member", "replica", "generated_tokens", "status")
ABORTED_OUTCOME, FINISHED_OUTCOME, TRUNCATED_OUTCOME, FAILED_OUTCOME, TOOL_OUTCOME = range(5)
OUTCOMES = np.array(["aborted", "finished", "truncated", "failed", "tool"], dtype=object)
_RESPONSE_TIMES = ("submit_s", "admit_s", "first_token_s", "end_s")


@dataclass(frozen=True)
class StepRecord:
    """One step as it happened; ``learner`` is None where an error or the data ended it unlearned.

    ``groups`` are in submission order, carried ones first; ``facts`` are the engine's.
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
    group_size: int
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
        self._n_open += max(len(record.facts.end_s), 1)
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
        facts = [
            step_facts(r.collection, r.groups, r.facts, size=self.group_size) for r in self._open
        ]
        batch = _batch(self._open, facts, size=self.group_size)
        stretches = Stretches.of(self._open, facts)
        busy = occupancy(
            _joined([f.activity.admit_s for f in facts]),
            _joined([f.activity.end_s for f in facts]),
            n_responses_W=stretches.n_responses_W,
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
            skipped = [r.collection.n_skipped for r in learned]
            if skipped[0] is not None:
                chosen["rollout/skipped_prompts"] = np.array(skipped, dtype=np.float64)
            self._steps.append(chosen)
        if stretches.are_waves:
            self._waves.append(wave_columns(stretches, busy))
        if self.keep_groups:
            self._groups.append(_group_columns(batch, self._open, facts))
        self._responses += [
            _response_columns(r, f)
            for r, f in zip(self._open, facts, strict=True)
            if r.step < self.record_steps
        ]
        self._open, self._n_open = [], 0


def _batch(records: list[StepRecord], facts: list[StepFacts], *, size: int) -> StepBatch:
    groups, engine = [r.groups for r in records], [r.facts for r in records]
    n_groups_S = np.array([len(r.groups) for r in records])
    times = [r.learner or NO_LEARNING for r in records]
    width = groups[0].n_tokens_PG.shape[1]
    copies = [len(r.collection.repeated) for r in records]
    return StepBatch(
        first_group_S=np.cumsum(n_groups_S) - n_groups_S,
        n_groups_S=n_groups_S,
        start_s_S=np.array([r.collection.start_s for r in records]),
        end_s_S=np.array([r.collection.end_s for r in records]),
        learner_S={name: np.array([getattr(t, f"{name}_s") for t in times]) for name in PARTS},
        n_preemptions_S=np.array([f.n_preemptions.sum() for f in engine]),
        prefill_s_S=np.array([f.prefill_s.mean() for f in engine]),
        peak_kv_tokens_S=np.array([f.peak_kv_tokens.max() for f in engine]),
        status_P=np.array([s for r in records for s in r.collection.status], dtype=np.int64),
        pass_rate_P=_joined([g.pass_rate_P for g in groups]),
        n_tokens_PG=_joined([g.n_tokens_PG for g in groups]),
        correct_PG=_joined([g.correct_PG for g in groups]),
        truncated_PG=_joined([g.truncated_PG for g in groups]),
        submit_s=_joined([f.submit_PW.reshape(-1) for f in facts]),
        admit_s=_joined([f.admit_PW.reshape(-1) for f in facts]),
        end_s=_joined([f.end_PW.reshape(-1) for f in facts]),
        generated_tokens=_joined([f.generated_PW.reshape(-1) for f in facts]),
        memory=_memory(records, facts) if records[0].collection.has_memory else None,
        n_wide=None if width == size else size,
        counted_PG=_counted(facts, groups, size=size),
        fate_PG=_fates(facts, records),
        repeated_S=np.array(copies, dtype=np.float64) if any(copies) else None,
        beside=_beside(records, facts) if records[0].collection.service else None,
    )


def _memory(records: list[StepRecord], facts: list[StepFacts]) -> Memory:
    ages = [Ages.of(r.collection) for r in records]
    return Memory(
        new_tokens_S=np.array([f.new_tokens for f in facts]),
        token_versions_S=np.array([a.token_versions for a in ages], dtype=np.float64),
        old_tokens_S=np.array([a.old_tokens for a in ages], dtype=np.float64),
        oldest_S=np.array([a.oldest for a in ages], dtype=np.float64),
        group_versions_S=np.array([a.group_versions for a in ages], dtype=np.float64),
    )


def _beside(records: list[StepRecord], facts: list[StepFacts]) -> Beside:
    n_groups = sum(len(r.groups) for r in records)
    failures_P, timeouts_P = (np.zeros(n_groups, dtype=np.int64) for _ in range(2))
    score_wait_s, call_wait_s, first = [], [], 0
    for record in records:
        service = record.collection.service
        assert service is not None, "every step of a run has a service, or none"
        for index, n in service.n_failures.items():
            failures_P[first + index] = n
        for index, n in service.n_timeouts.items():
            timeouts_P[first + index] = n
        score_wait_s.append(service.score_wait_s)
        call_wait_s.append(service.call_wait_s)
        first += len(record.groups)
    lost = [
        np.zeros(len(r.groups), np.int64) if f.lost_P is None else f.lost_P
        for r, f in zip(records, facts, strict=True)
    ]
    return Beside(
        _joined(lost), failures_P, timeouts_P, np.array(score_wait_s), np.array(call_wait_s)
    )


def _counted(
    facts: list[StepFacts], groups: list[Groups], *, size: int
) -> NDArray[np.bool_] | None:
    """Return which responses make up the groups; None where all of them do."""
    if all(f.counted_PW is None for f in facts):
        return None
    first = [np.arange(g.n_tokens_PG.shape[1]) < size for g in groups]
    return _joined(
        [
            np.broadcast_to(own, g.n_tokens_PG.shape) if f.counted_PW is None else f.counted_PW
            for f, g, own in zip(facts, groups, first, strict=True)
        ]
    )


def _fates(facts: list[StepFacts], records: list[StepRecord]) -> NDArray[np.int64] | None:
    """Return what became of each response; None where that is what became of its group."""
    if all(f.fate_PW is None for f in facts):
        return None
    parts = []
    for f, r in zip(facts, records, strict=True):
        status_P = np.array(r.collection.status, dtype=np.int64)
        shape = r.groups.n_tokens_PG.shape
        own = np.broadcast_to(status_P[:, None], shape) if f.fate_PW is None else f.fate_PW
        parts.append(own)
    return _joined(parts)


def _joined(arrays: list[NDArray[Number]]) -> NDArray[Number]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _wave_of_groups(collection: Collection) -> NDArray[np.int64]:
    """Return the wave in which each group last entered the engine, −1 without one."""
    wave_P = np.full(len(collection.status), -1)
    for number, wave in enumerate(collection.waves):
        if collection.is_plain:
            wave_P[wave.first : wave.last] = number
        else:
            wave_P[[part.group for part in collection.parts[wave.first : wave.last]]] = number
    return wave_P


def _group_columns(batch: StepBatch, records: list[StepRecord], facts: list[StepFacts]) -> Columns:
    columns: Columns = {
        "step": np.repeat([r.step for r in records], batch.n_groups_S),
        "wave": _joined([_wave_of_groups(r.collection) for r in records]),
        "position": _joined([r.groups.position_P for r in records]),
        "prompt_id": _joined([r.groups.prompt_id_P for r in records]),
        "status": batch.status_P,
        "n_correct": batch.n_right,
        "pass_rate": batch.pass_rate_P,
        "n_tokens_mean": batch.full_tokens / batch.n_members,
        "n_tokens_max": batch.longest,
        "generated_tokens": batch.generated,
        "n_truncated": batch.of_members(batch.truncated_PG).sum(axis=1),
        "submit_s": _of_group(facts, np.fmin, "submit_PW"),
        "end_s": _of_group(facts, np.fmax, "end_PW"),
    }
    if batch.beside is not None:
        columns["generated_tokens"] = batch.generated + batch.beside.lost_tokens_P
        columns["n_failed"] = batch.beside.n_failures_P
        columns["n_timed_out"] = batch.beside.n_timeouts_P
    if batch.memory is None:
        return columns
    _begun_earlier(columns, records, batch)
    return {name: column[batch.ended] for name, column in columns.items()}


def _of_group(facts: list[StepFacts], reduce: np.ufunc, name: str) -> NDArray[np.float64]:
    return np.concatenate([reduce.reduce(getattr(f, name), axis=1) for f in facts])


def _begun_earlier(columns: Columns, records: list[StepRecord], batch: StepBatch) -> None:
    """Fill in what a step alone does not know of groups that were begun in an earlier one."""
    n = len(batch.status_P)
    begun, submitted = columns["step"].copy(), np.zeros(n)
    trained, age = np.full(n, np.nan), np.full(n, np.nan)
    submit_s, end_s = columns["submit_s"].copy(), columns["end_s"].copy()
    for record, first in zip(records, batch.first_group_S.tolist(), strict=True):
        collection, last = record.collection, first + len(record.groups)
        version = collection.trained_steps
        submitted[first:last] = version
        is_trained = batch.status_P[first:last] == TRAINED
        trained[first:last][is_trained] = version
        age[first:last][is_trained] = 0.0
        for row, left in enumerate(collection.left, start=first):
            begun[row], submitted[row] = left.begun_step, left.begun_version
            submit_s[row] = left.submit_s
            end_s[row] = np.fmax(end_s[row], left.end_s) if np.isnan(end_s[row]) else end_s[row]
            if batch.status_P[row] == TRAINED:
                age[row] = mean_age(left, version=version, tokens=int(batch.generated[row]))
    columns["begun_step"], columns["version_submitted"] = begun, submitted
    columns["version_trained"], columns["staleness_mean"] = trained, age
    columns["submit_s"], columns["end_s"] = submit_s, end_s


def _response_columns(record: StepRecord, facts: StepFacts) -> Columns:
    """Return one row for each response that was in the engine during the step."""
    active, collection = facts.activity, record.collection
    status_P = np.array(collection.status)
    status = status_P[active.group]
    if facts.fate_PW is not None:
        status = facts.fate_PW[active.group, active.member]
    return {
        "step": np.full(len(active), record.step),
        "wave": _wave_of_rows(collection, facts),
        "group": active.group,
        "member": active.member,
        "replica": active.replica,
        "submit_s": active.submit_s,
        "admit_s": active.admit_s,
        "first_token_s": active.first_token_s,
        "end_s": active.end_s,
        "generated_tokens": active.generated_tokens,
        "status": status,
        "outcome": OUTCOMES[_outcomes(record, facts)],
    }


def _outcomes(record: StepRecord, facts: StepFacts) -> NDArray[np.int64]:
    """Return how each stay in the engine ended: by the task, a limit, the system, or with a call.

    Aborted are those that did not come to their end.
    """
    active, groups, service = facts.activity, record.groups, record.collection.service
    is_whole_PG = facts.generated_PW == groups.n_tokens_PG
    ended_PG = np.where(groups.truncated_PG, TRUNCATED_OUTCOME, FINISHED_OUTCOME)
    outcome_PG = np.where(is_whole_PG, ended_PG, ABORTED_OUTCOME)
    if service is not None:
        for index, member in service.failed_members:
            outcome_PG[index, member] = FAILED_OUTCOME
    outcome = outcome_PG[active.group, active.member]
    if active.is_lost is not None and active.is_last is not None:
        outcome = np.where(active.is_last, outcome, TOOL_OUTCOME)
        outcome[active.is_lost] = FAILED_OUTCOME
    return np.asarray(outcome, dtype=np.int64)


def _wave_of_rows(collection: Collection, facts: StepFacts) -> NDArray[np.int64]:
    wave_J = np.full(len(facts.activity.n_of_part), -1)
    for number, wave in enumerate(collection.waves):
        wave_J[wave.first : wave.last] = number
    return np.repeat(wave_J, facts.activity.n_of_part)


def _table(parts: list[Columns], names: tuple[str, ...]) -> pd.DataFrame:
    """Return the parts one below the other; a column that no part has is NaN."""
    return pd.DataFrame(_columns(parts, names))


def _columns(parts: list[Columns], names: tuple[str, ...]) -> Columns:
    if not parts:
        return {name: np.empty(0, dtype=np.int64 if name == "step" else float) for name in names}
    absent = np.full(sum(len(part["step"]) for part in parts), np.nan)
    return {
        name: _joined([part[name] for part in parts]) if name in parts[0] else absent
        for name in names
    }


def _groups_table(parts: list[Columns]) -> pd.DataFrame:
    return _named_states(_columns(parts, _GROUP_COLUMNS))


def _responses_table(parts: list[Columns]) -> pd.DataFrame:
    return _named_states(_columns(parts, (*_RESPONSE_NUMBERS, "outcome", *_RESPONSE_TIMES)))


def _named_states(columns: Columns) -> pd.DataFrame:
    """Return the table, numbers that stand for something else replaced: a missing wave, a status.

    Before pandas has the columns: it takes longer over them than a small run takes in all.
    """
    wave, status = columns["wave"].astype(np.int64), columns["status"].astype(np.int64)
    missing = wave < 0
    named: dict[str, object] = {
        "wave": pd.arrays.IntegerArray(np.where(missing, 1, wave), missing),
        "status": STATUS_NAMES[status].astype(object),
    }
    return pd.DataFrame({**columns, **named})
