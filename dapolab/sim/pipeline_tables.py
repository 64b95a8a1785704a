"""From a pipeline's record to the tables of a run: the same columns as of turn-taking runs.

Steps follow each other without a gap: a step lasts from one weight update to the next, and has the
groups that left in its time (trained, degenerate, stale, cancelled, failed). What the run leaves
behind belongs to no step and stands under the number after the last.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.metrics import GROUP_COLUMNS, STEP_METRICS
from dapolab.sim.account import (
    ABORTED_OUTCOME,
    FAILED_OUTCOME,
    FINISHED_OUTCOME,
    OUTCOMES,
    STATUS_NAMES,
    TRUNCATED_OUTCOME,
    WAVE_COLUMNS,
)
from dapolab.sim.collection import ABORTED, DEGENERATE, FAILED, STALE, SURPLUS, TRAINED
from dapolab.sim.learner import PARTS
from dapolab.sim.outset import SimRun, gpus_held
from dapolab.sim.pipe import Place
from dapolab.sim.pipeline_record import PipelineRecord
from dapolab.sim.pipeline_stays import Stays, by_response, of_what_counts, stays_of
from dapolab.sim.residency import merged, over, peak_resident, resident_s, share
from dapolab.sim.step_metrics import Beside, StepBatch, group_columns
from dapolab.sim.token_ages import token_ages

Float = NDArray[np.float64]
Int = NDArray[np.int64]

_STATUS = {
    Place.RUNNING: ABORTED,
    Place.READY: SURPLUS,
    Place.TRAINING: SURPLUS,
    Place.TRAINED: TRAINED,
    Place.DEGENERATE: DEGENERATE,
    Place.STALE: STALE,
    Place.ABORTED: ABORTED,
    Place.FAILED: FAILED,
}


def tables(record: PipelineRecord, *, record_steps: int, keep_groups: bool) -> SimRun:
    """Return the run's tables; ``record_steps`` and ``keep_groups`` as of ``simulate``."""
    books = _Books(record)
    groups = books.groups_table()
    last_s = record.updates[-1].at_s if record.updates else 0.0
    return SimRun(
        steps=books.steps_table(),
        groups=groups if keep_groups else groups.iloc[:0],
        waves=pd.DataFrame({name: np.empty(0) for name in WAVE_COLUMNS}).astype({"step": np.int64}),
        responses=books.responses_table(record_steps),
        ended=record.ended,
        n_prompts_used=record.outset.cursor.position,
        unlearned_s=max(record.end_s - last_s, 0.0) if record.ended != "completed" else 0.0,
    )


class _Books:
    """Groups sorted by step (axis P), responses group by group, updates (axis S)."""

    def __init__(self, record: PipelineRecord) -> None:
        assert record.facts is not None
        self.record, self.facts, updates = record, record.facts, record.updates
        self.size = record.scenario.rollout.group_size
        self.stays: Stays | None = None
        if record.service is not None:
            self.stays = stays_of(record.facts, record.service, size=self.size)
            self.facts = by_response(record.facts, record.service, self.stays)
            updates = of_what_counts(updates, self.facts, self.stays)
        self.update_s = np.array([update.at_s for update in record.updates])
        self.n_steps = len(record.updates)
        step_P = np.array(record.pipe.step_of)
        left = (step_P >= 0) & (step_P < self.n_steps)
        step_P = np.where(left, step_P, self.n_steps)
        self.order = np.argsort(step_P, kind="stable")
        self.step_P = step_P[self.order]
        self.status_P = np.array([_STATUS[place] for place in record.pipe.place])[self.order]
        self.version_P = np.array(record.pipe.version_of)[self.order]
        self.groups = record.groups
        trained_at = np.full(len(self.order), -1)
        trained_at[self.order] = np.where(self.status_P == TRAINED, self.step_P, -1)
        self.ages = token_ages(
            self.facts, updates=updates, trained_at=np.repeat(trained_at, self.size)
        )

    def _per_group(self, x: NDArray[np.generic]) -> Float:
        """Return sums over each group's responses, in the tables' order."""
        sums = x.reshape(-1, self.size)[self.order].sum(axis=1)
        return np.asarray(sums, dtype=np.float64)

    # ------------------------------------------------------------------ tables

    def steps_table(self) -> pd.DataFrame:
        names = ("step", "start_s", "ended_by", *(metric.name for metric in STEP_METRICS))
        if self.n_steps == 0:
            return pd.DataFrame({name: np.empty(0) for name in names}).astype({"step": np.int64})
        batch, rollout = self._batch(), self.record.scenario.rollout
        scores = self.record.outset.scores
        columns: dict[str, object] = dict(
            group_columns(batch, scores=scores, n_wanted=rollout.groups_per_step, estimates_q=False)
        )
        columns |= self._staleness(batch) | self._seconds(batch)
        columns["step"] = np.arange(self.n_steps)
        columns["start_s"] = batch.start_s_S
        columns["ended_by"] = np.full(self.n_steps, "full", dtype=object)
        absent = np.full(self.n_steps, np.nan)
        return pd.DataFrame({name: columns.get(name, absent) for name in names})

    def _batch(self) -> StepBatch:
        n_groups_S = np.bincount(self.step_P, minlength=self.n_steps + 1)[: self.n_steps]
        in_steps = self.order[: n_groups_S.sum()]
        facts, groups, size = self.facts, self.groups, self.size

        def rows(x: NDArray[np.generic]) -> NDArray[np.generic]:
            return x.reshape(-1, size)[in_steps].reshape(-1)

        first_S = np.cumsum(n_groups_S) - n_groups_S
        preempted_P = facts.n_preemptions.reshape(-1, size)[in_steps].sum(axis=1)
        learner = [update.learner for update in self.record.updates]
        return StepBatch(
            first_group_S=first_S,
            n_groups_S=n_groups_S,
            start_s_S=np.concatenate([[0.0], self.update_s[:-1]]),
            end_s_S=self.update_s,
            learner_S={
                name: np.array([getattr(t, f"{name}_s") for t in learner]) for name in PARTS
            },
            n_preemptions_S=np.add.reduceat(preempted_P, first_S),
            prefill_s_S=np.full(self.n_steps, np.nan),
            peak_kv_tokens_S=np.full(self.n_steps, facts.peak_kv_tokens.max()),
            status_P=self.status_P[: len(in_steps)],
            pass_rate_P=groups.pass_rate_P[in_steps],
            n_tokens_PG=groups.n_tokens_PG[in_steps],
            correct_PG=groups.correct_PG[in_steps],
            truncated_PG=groups.truncated_PG[in_steps],
            submit_s=rows(facts.submit_s).astype(np.float64),
            admit_s=rows(facts.admit_s).astype(np.float64),
            end_s=rows(facts.end_s).astype(np.float64),
            generated_tokens=rows(facts.generated_tokens).astype(np.int64),
            beside=self._beside(len(in_steps)),
        )

    def _beside(self, n: int) -> Beside | None:
        """Return what befell the first ``n`` groups of the tables beside their tokens."""
        service = self.record.service
        if service is None or self.stays is None:
            return None
        waited = np.array([update.waited_s for update in self.record.updates]).reshape(-1, 2)
        score_wait_s, call_wait_s = np.diff(waited, axis=0, prepend=0.0).T
        chosen = self.order[:n].tolist()
        return Beside(
            self._lost_tokens()[:n],
            np.array([service.n_failures.get(g, 0) for g in chosen], dtype=np.int64),
            np.array([service.n_timeouts.get(g, 0) for g in chosen], dtype=np.int64),
            score_wait_s,
            call_wait_s,
        )

    def _lost_tokens(self) -> Int:
        """Return the tokens of each group's failed samplings, in the tables' order."""
        if self.stays is None:
            return np.zeros(len(self.order), dtype=np.int64)
        return self._per_group(self.stays.lost_tokens()).astype(np.int64)

    def _staleness(self, batch: StepBatch) -> dict[str, Float]:
        n = len(batch.status_P)
        trained, stale = batch.status_P == TRAINED, batch.status_P == STALE
        tokens = batch.per_step(batch.generated, trained)
        age_P = self.step_P[:n] - self.version_P[:n]
        oldest_P = self.ages.oldest.reshape(-1, self.size)[self.order].max(axis=1)
        oldest_S = np.maximum.reduceat(oldest_P[:n], batch.first_group_S)
        aged_P = self._per_group(self.ages.aged_tokens)[:n]
        off_policy_P = self._per_group(self.ages.off_policy_tokens)[:n]
        n_stale, dropped = batch.per_step(stale), batch.per_step(batch.generated, stale)
        full = batch.per_step(batch.full_tokens, stale)
        length = np.divide(
            full, n_stale * self.size, out=np.full(self.n_steps, np.nan), where=n_stale > 0
        )
        return {
            "staleness/mean_versions": batch.per_step(aged_P, trained) / tokens,
            "staleness/mean_versions_by_response": batch.per_step(age_P, trained)
            / batch.per_step(trained),
            "staleness/max_versions": oldest_S.astype(np.float64),
            "staleness/off_policy_token_share": batch.per_step(off_policy_P, trained) / tokens,
            "staleness/dropped_groups": n_stale,
            "staleness/dropped_tokens": dropped,
            "bias/length_dropped": length,
        }

    def _seconds(self, batch: StepBatch) -> dict[str, Float]:
        scenario = self.record.scenario
        hardware = scenario.hardware
        edges = np.concatenate([[0.0], self.update_s])
        seconds = np.diff(edges)
        busy = np.asarray(sum(batch.learner_S.values()))
        resident, decoding = self._resident(edges)
        slots = hardware.slots * hardware.replicas
        peak = self._peak(edges)
        columns = {
            "time/step_seconds": seconds,
            "time/gpu_seconds": seconds * gpus_held(scenario),
            "pipeline/learner_wait_seconds": np.maximum(seconds - busy, 0.0),
            "pipeline/learner_busy_share": share(busy, seconds),
            "pipeline/rollout_busy_share": share(decoding / hardware.replicas, seconds),
            "pipeline/rollout_slot_share": share(resident / slots, seconds),
            "pipeline/queued_groups": np.array(
                [update.n_queued for update in self.record.updates], dtype=np.float64
            ),
            "rollout/idle_slot_share": 1.0 - share(resident, peak * seconds),
            "engine/mean_concurrency": over(resident, seconds),
            "engine/preemptions": batch.n_preemptions_S.astype(np.float64),
            "engine/peak_kv_tokens": batch.peak_kv_tokens_S.astype(np.float64),
        }
        if batch.beside is not None:
            columns["time/reward_wait_seconds"] = batch.beside.score_wait_s_S
            columns["time/tool_wait_seconds"] = batch.beside.call_wait_s_S
        for name, parts in batch.learner_S.items():
            columns[f"time/{name}_seconds"] = parts
        return columns

    def _admitted(self) -> tuple[Float, Float, Int]:
        """Return begin and end in seconds, and replica, of every stay in the engine."""
        facts = self.facts if self.stays is None else self.stays.facts
        admitted = np.isfinite(facts.admit_s)
        return facts.admit_s[admitted], facts.end_s[admitted], facts.replica[admitted]

    def _resident(self, edges: Float) -> tuple[Float, Float]:
        """Return ∫N dt and the seconds in which replicas hold a response, pauses left out."""
        begin, end, replica = self._admitted()
        busy = [merged(begin[replica == r], end[replica == r]) for r in np.unique(replica)]
        resident = self._without_pauses([(begin, end)], edges)
        return resident, self._without_pauses(busy, edges)

    def _without_pauses(self, spans: Sequence[tuple[Float, Float]], edges: Float) -> Float:
        pauses = np.array(self.record.pauses).reshape(-1)
        cuts = np.unique(np.concatenate([edges, pauses]))
        inside = np.zeros(len(cuts) - 1, dtype=np.bool_)
        for start, stop in self.record.pauses:
            inside |= (cuts[:-1] >= start) & (cuts[1:] <= stop)
        total = np.zeros(len(cuts) - 1)
        for begin, end in spans:
            total += resident_s(begin, end, cuts)
        total[inside] = 0.0
        window = np.clip(np.searchsorted(edges, cuts[:-1], side="right") - 1, 0, len(edges) - 2)
        within = cuts[1:] <= edges[-1]
        sums = np.bincount(window[within], weights=total[within], minlength=len(edges) - 1)
        return np.asarray(sums, dtype=np.float64)

    def _peak(self, edges: Float) -> Float:
        begin, end, _ = self._admitted()
        return peak_resident(begin, end, edges)

    def groups_table(self) -> pd.DataFrame:
        facts, groups, order, size = self.facts, self.groups, self.order, self.size
        trained = self.status_P == TRAINED
        tokens_P = self._per_group(facts.generated_tokens)
        aged_P = self._per_group(self.ages.aged_tokens)
        lengths_PG = groups.n_tokens_PG[order]
        columns = {
            "step": self.step_P,
            "wave": pd.array([pd.NA] * len(order), dtype="Int64"),
            "position": groups.position_P[order],
            "prompt_id": groups.prompt_id_P[order],
            "status": STATUS_NAMES[self.status_P].astype(object),
            "n_correct": groups.correct_PG[order].sum(axis=1),
            "pass_rate": groups.pass_rate_P[order],
            "n_tokens_mean": lengths_PG.mean(axis=1),
            "n_tokens_max": lengths_PG.max(axis=1),
            "generated_tokens": tokens_P.astype(np.int64) + self._lost_tokens(),
            "n_truncated": groups.truncated_PG[order].sum(axis=1),
            "submit_s": facts.submit_s.reshape(-1, size)[order].min(axis=1),
            "end_s": facts.end_s.reshape(-1, size)[order].max(axis=1),
            "version_submitted": self.version_P.astype(np.float64),
            "version_trained": np.where(trained, self.step_P, np.nan),
            "staleness_mean": np.where(trained, over(aged_P, tokens_P), np.nan),
        }
        if (beside := self._beside(len(order))) is not None:
            columns["n_failed"], columns["n_timed_out"] = beside.n_failures_P, beside.n_timeouts_P
        names = [name for name in GROUP_COLUMNS if name not in ("policy", "replication")]
        absent = np.full(len(order), np.nan)
        return pd.DataFrame({name: columns.get(name, absent) for name in names})

    def _outcomes(self) -> Int:
        """Return how each response ended, groups in the order of their submission."""
        groups = self.groups
        generated_PG = self.facts.generated_tokens.reshape(groups.n_tokens_PG.shape)
        ended_PG = np.where(groups.truncated_PG, TRUNCATED_OUTCOME, FINISHED_OUTCOME)
        whole_PG = generated_PG == groups.n_tokens_PG
        outcome_PG = np.where(whole_PG, ended_PG, ABORTED_OUTCOME)
        if self.record.service is not None:
            for group, member in self.record.service.failed_members:
                outcome_PG[group, member] = FAILED_OUTCOME
        return outcome_PG.reshape(-1)

    def responses_table(self, record_steps: int) -> pd.DataFrame:
        """One row a response of the recorded steps, or one a stay where it may have several."""
        n = int(np.searchsorted(self.step_P, min(record_steps, self.n_steps)))
        size, step_P = self.size, self.step_P[:n]
        row = (self.order[:n, None] * size + np.arange(size)).reshape(-1)
        facts, outcome = self.facts, self._outcomes()
        place_R = np.arange(n * size)
        if self.stays is not None:
            facts, outcome = self.stays.facts, self.stays.outcomes(outcome)
            place_R, row = self.stays.rows_of(row)
        group_R, member_R = np.divmod(place_R, size)
        first_P = np.searchsorted(step_P, step_P)
        status_P = STATUS_NAMES[self.status_P[:n]].astype(object)
        return pd.DataFrame(
            {
                "step": step_P[group_R],
                "wave": pd.array([pd.NA] * len(row), dtype="Int64"),
                "group": (np.arange(n) - first_P)[group_R],
                "member": member_R,
                "replica": facts.replica[row],
                "generated_tokens": facts.generated_tokens[row],
                "status": status_P[group_R],
                "outcome": OUTCOMES[outcome[row]],
                "submit_s": facts.submit_s[row],
                "admit_s": facts.admit_s[row],
                "first_token_s": facts.first_token_s[row],
                "end_s": facts.end_s[row],
            }
        )
