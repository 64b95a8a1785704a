"""The metrics of ``dapolab.metrics`` for a batch of steps at once.

Axes: S steps, W stretches (waves), P groups of all steps in order, G responses of a group. A metric
that a step does not have is NaN; one that the policy does not have is left out.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapolab.sim.collection import (
    ABORTED,
    CARRIED,
    DEGENERATE,
    FAILED,
    STALE,
    SURPLUS,
    TRAINED,
)
from dapolab.sim.occupancy import PERCENTS, Occupancy
from dapolab.sim.score import Scores

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Memory:
    """What consecutive steps leave to each other, and how old what they train is."""

    new_tokens_S: Int
    token_versions_S: Float
    old_tokens_S: Float
    oldest_S: Float
    group_versions_S: Float


@dataclass(frozen=True, eq=False)
class Beside:
    """What befell responses beside their tokens: by group, and seconds of waiting by step."""

    lost_tokens_P: Int
    n_failures_P: Int
    n_timeouts_P: Int
    score_wait_s_S: Float
    call_wait_s_S: Float


@dataclass(frozen=True, eq=False)
class StepBatch:
    """Facts of consecutive steps; response facts are flat, group by group."""

    first_group_S: Int
    n_groups_S: Int
    start_s_S: Float
    end_s_S: Float
    learner_S: dict[str, Float]
    n_preemptions_S: Int
    prefill_s_S: Float
    peak_kv_tokens_S: Int
    status_P: Int
    pass_rate_P: Float
    n_tokens_PG: Int
    correct_PG: Bool
    truncated_PG: Bool
    submit_s: Float
    admit_s: Float
    end_s: Float
    generated_tokens: Int
    memory: "Memory | None" = None
    """What steps leave to each other; None where they leave nothing."""
    n_wide: int | None = None
    """Responses that make up a group, where rows are wider than that."""
    counted_PG: Bool | None = None
    """Responses that make up the groups; None: all of them."""
    fate_PG: Int | None = None
    """What became of each response; None: what became of its group."""
    repeated_S: Float | None = None
    """Copies of groups that are trained; None: the policy copies none."""

    beside: "Beside | None" = None
    """What befell responses beside their tokens; None: nothing can."""

    @property
    def size(self) -> int:
        """G."""
        return self.n_wide or int(self.n_tokens_PG.shape[1])

    @cached_property
    def ended(self) -> Bool:
        """Whether a group came to its end in the step, shape (P,)."""
        return np.asarray(self.status_P != CARRIED)

    @cached_property
    def trained_share(self) -> Float:
        """Share of each group's responses that is trained, shape (P,)."""
        if self.fate_PG is None:
            return np.asarray(self.status_P == TRAINED, dtype=np.float64)
        return np.asarray((self.fate_PG == TRAINED).sum(axis=1) / self.size)

    def of_members(self, x_PG: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the responses that make up the groups, 0 elsewhere."""
        return x_PG if self.counted_PG is None else np.where(self.counted_PG, x_PG, 0)

    def of_trained(self, x_PG: Int | Bool) -> Float:
        """Return each group's sum over its trained responses, shape (P,)."""
        if self.fate_PG is None:
            return np.where(self.status_P == TRAINED, x_PG.sum(axis=1), 0).astype(np.float64)
        sums_P = np.where(self.fate_PG == TRAINED, x_PG, 0).sum(axis=1)
        return np.asarray(sums_P, dtype=np.float64)

    def tokens_of(self, fate: int) -> Float:
        """Return each group's generated tokens that met this fate, shape (P,)."""
        if self.fate_PG is None:
            return np.where(self.status_P == fate, self.generated, 0).astype(np.float64)
        tokens_PG = self.generated_tokens.reshape(self.n_tokens_PG.shape)
        tokens_PG = np.where(self.fate_PG == fate, tokens_PG, 0)
        return np.asarray(tokens_PG.sum(axis=1), dtype=np.float64)

    @cached_property
    def n_right(self) -> Int:
        """Right answers of each group, shape (P,)."""
        return np.asarray(self.of_members(self.correct_PG).sum(axis=1))

    @cached_property
    def mixed(self) -> Bool:
        """Whether a group has right and wrong answers, shape (P,)."""
        if self.counted_PG is None:
            return (self.n_right > 0) & (self.n_right < self.size)
        return np.asarray((self.n_right > 0) & (self.n_right < self.n_members))

    @cached_property
    def n_members(self) -> Int:
        """Responses that make up each group, shape (P,)."""
        if self.counted_PG is None:
            return np.full(len(self.status_P), self.size)
        return np.asarray(self.counted_PG.sum(axis=1))

    @cached_property
    def full_tokens(self) -> Int:
        """Tokens of each group had nothing been aborted, shape (P,)."""
        return np.asarray(self.of_members(self.n_tokens_PG).sum(axis=1))

    @cached_property
    def longest(self) -> Int:
        """Longest full length of each group, shape (P,)."""
        return np.asarray(self.of_members(self.n_tokens_PG).max(axis=1))

    @cached_property
    def generated(self) -> Int:
        """Tokens really generated for each group, shape (P,)."""
        return np.asarray(self.generated_tokens.reshape(self.n_tokens_PG.shape).sum(axis=1))

    def per_step(self, x_P: NDArray[np.generic], where: Bool | None = None) -> Float:
        """Return the sum over each step's groups, of those groups ``where`` it is true."""
        x = np.asarray(x_P, dtype=np.float64)
        return np.add.reduceat(x if where is None else np.where(where, x, 0.0), self.first_group_S)


def step_columns(
    batch: StepBatch,
    busy: Occupancy,
    *,
    first_stretch_S: Int,
    are_waves: bool,
    scores: Scores,
    n_wanted: int,
    n_gpus: int,
    estimates_q: bool,
) -> dict[str, Float]:
    """Return the metrics by name, shape (S,).

    Parameters
    ----------
    busy : occupancy of the steps' stretches, ``first_stretch_S`` the first of each step.
    are_waves : stretches are barrier waves.
    n_wanted : B.
    n_gpus : GPUs held during a step.
    estimates_q : report the unbiased estimate of theory A7.
    """
    columns = group_columns(batch, scores=scores, n_wanted=n_wanted, estimates_q=estimates_q)
    columns |= _seconds(batch, busy, first_stretch_S=first_stretch_S, n_gpus=n_gpus)
    if are_waves:
        columns |= _waves(batch, busy, first_stretch_S=first_stretch_S)
    columns["engine/preemptions"] = batch.n_preemptions_S.astype(np.float64)
    columns["engine/peak_kv_tokens"] = batch.peak_kv_tokens_S.astype(np.float64)
    return columns


def group_columns(
    batch: StepBatch, *, scores: Scores, n_wanted: int, estimates_q: bool
) -> dict[str, Float]:
    """Return the metrics that need no clock: what was collected, trained, thrown away, how biased.

    Parameters as in ``step_columns``.
    """
    columns = _groups(batch, n_wanted=n_wanted, estimates_q=estimates_q)
    columns |= _tokens(batch)
    columns |= _finished(batch, scores)
    return columns | _bias(batch)


def _over(numerator_S: Float, denominator_S: Float) -> Float:
    """Return the quotient, NaN where there is nothing to divide by."""
    quotient: Float = np.divide(
        numerator_S,
        denominator_S,
        out=np.full(len(numerator_S), np.nan),
        where=denominator_S > 0,
    )
    return quotient


def _groups(batch: StepBatch, *, n_wanted: int, estimates_q: bool) -> dict[str, Float]:
    status_P = batch.status_P
    candidates = batch.per_step(batch.ended)
    trained = batch.per_step(batch.trained_share)
    aborted = batch.per_step(status_P == ABORTED)
    columns = {
        "rollout/candidate_groups": candidates,
        "rollout/mixed_candidate_groups": batch.per_step(batch.mixed, batch.ended),
        "rollout/effective_groups": trained,
        "rollout/effective_group_ratio": _over(trained, candidates),
        "rollout/effective_fill_ratio": trained / n_wanted,
        "rollout/oversample_ratio": candidates / n_wanted,
        "rollout/degenerate_groups": batch.per_step(status_P == DEGENERATE),
        "rollout/surplus_groups": batch.per_step(status_P == SURPLUS),
        "rollout/aborted_groups": aborted,
        "train/mixed_groups": batch.per_step(np.where(batch.mixed, batch.trained_share, 0.0)),
        "train/update_skipped": (trained == 0).astype(np.float64),
    }
    if batch.memory is not None:
        columns["rollout/carried_groups"] = batch.per_step(status_P == CARRIED)
        columns["staleness/dropped_groups"] = batch.per_step(status_P == STALE)
    if batch.beside is not None:
        columns["rollout/failed_groups"] = batch.per_step(status_P == FAILED)
        columns["rollout/failed_samplings"] = batch.per_step(batch.beside.n_failures_P)
        columns["rollout/timed_out_responses"] = batch.per_step(batch.beside.n_timeouts_P)
    if batch.repeated_S is not None:
        columns["train/repeated_groups"] = batch.repeated_S
    if estimates_q:
        filled = (trained >= n_wanted) & (candidates > 1)
        unbiased = (trained - filled) / (candidates - filled)
        columns["rollout/unbiased_effective_ratio"] = np.where(aborted == 0, unbiased, np.nan)
    return columns


def _tokens(batch: StepBatch) -> dict[str, Float]:
    trained = batch.per_step(batch.tokens_of(TRAINED))
    memory = batch.memory
    total = batch.per_step(batch.generated)
    if memory is not None:
        total = memory.new_tokens_S.astype(np.float64)
    beside = batch.beside
    if beside is not None:
        total = total + batch.per_step(beside.lost_tokens_P)
    columns = {
        "rollout/completion_tokens": total,
        "rollout/train_completion_tokens": trained,
        "rollout/token_utilisation": _over(trained, total),
        "rollout/degenerate_tokens": batch.per_step(batch.tokens_of(DEGENERATE)),
        "rollout/surplus_tokens": batch.per_step(batch.tokens_of(SURPLUS)),
        "rollout/aborted_tokens": batch.per_step(batch.tokens_of(ABORTED)),
    }
    if beside is not None:
        failed = batch.per_step(batch.tokens_of(FAILED))
        columns["rollout/failed_tokens"] = failed + batch.per_step(beside.lost_tokens_P)
    if memory is not None:
        columns |= _ages(batch, memory, trained=trained)
        columns["rollout/carried_tokens"] = batch.per_step(batch.tokens_of(CARRIED))
        columns["staleness/dropped_tokens"] = batch.per_step(batch.tokens_of(STALE))
    return columns


def _ages(batch: StepBatch, memory: Memory, *, trained: Float) -> dict[str, Float]:
    n_groups = batch.per_step(batch.status_P == TRAINED)
    return {
        "staleness/mean_versions": _over(memory.token_versions_S, trained),
        "staleness/mean_versions_by_response": _over(memory.group_versions_S, n_groups),
        "staleness/max_versions": np.where(n_groups > 0, memory.oldest_S, np.nan),
        "staleness/off_policy_token_share": _over(memory.old_tokens_S, trained),
    }


def _finished(batch: StepBatch, scores: Scores) -> dict[str, Float]:
    """Lengths, outcomes and rewards of the groups that returned."""
    done_P, right_P = batch.ended & ~np.isin(batch.status_P, (ABORTED, FAILED)), batch.n_right
    n_groups = batch.per_step(done_P)
    n_responses = batch.per_step(batch.n_members, done_P)
    longest = np.maximum.reduceat(np.where(done_P, batch.longest, 0), batch.first_group_S)
    accuracy = _over(batch.per_step(right_P, done_P), n_responses)
    penalty_P = batch.of_members(scores.penalty(batch.n_tokens_PG)).sum(axis=1)
    penalty = _over(batch.per_step(penalty_P, done_P), n_responses)
    cut_P = batch.of_members(batch.truncated_PG).sum(axis=1)
    all_right_P = right_P == batch.n_members
    return {
        "rollout/mean_completion_tokens": _over(
            batch.per_step(batch.full_tokens, done_P), n_responses
        ),
        "rollout/max_completion_tokens": np.where(n_groups > 0, longest, np.nan),
        "rollout/truncated_share": _over(batch.per_step(cut_P, done_P), n_responses),
        "rollout/all_right_share": _over(batch.per_step(all_right_P, done_P), n_groups),
        "rollout/all_wrong_share": _over(batch.per_step(right_P == 0, done_P), n_groups),
        "rollout/mixed_share": _over(batch.per_step(batch.mixed, done_P), n_groups),
        "reward/accuracy": accuracy,
        "reward/trained_accuracy": _over(
            batch.per_step(batch.of_trained(batch.correct_PG)),
            batch.per_step(batch.trained_share) * batch.size,
        ),
        "reward/length_penalty_mean": penalty,
        "reward/shaped_mean": 2.0 * accuracy - 1.0 + penalty,
    }


def _bias(batch: StepBatch) -> dict[str, Float]:
    """Length and difficulty of what is trained beside all candidates and all mixed ones."""
    columns = {}
    for name, chosen_P in (("candidates", batch.ended), ("effective", batch.mixed & batch.ended)):
        tokens = batch.per_step(batch.full_tokens, chosen_P)
        columns[f"bias/length_{name}"] = _over(tokens, batch.per_step(batch.n_members, chosen_P))
        pass_rates = batch.per_step(batch.pass_rate_P, chosen_P)
        columns[f"bias/pass_rate_{name}"] = _over(pass_rates, batch.per_step(chosen_P))
    share_P = batch.trained_share
    n_trained = batch.per_step(share_P)
    trained = _over(batch.per_step(batch.of_trained(batch.n_tokens_PG)), n_trained * batch.size)
    columns["bias/length_trained"] = trained
    columns["bias/pass_rate_trained"] = _over(
        batch.per_step(batch.pass_rate_P * share_P), n_trained
    )
    columns["bias/length_ratio_policy"] = trained / columns["bias/length_effective"]
    columns["bias/length_ratio_total"] = trained / columns["bias/length_candidates"]
    return columns


def _seconds(
    batch: StepBatch, busy: Occupancy, *, first_stretch_S: Int, n_gpus: int
) -> dict[str, Float]:
    rollout_s = batch.end_s_S - batch.start_s_S
    engine_s = np.add.reduceat(busy.seconds_W, first_stretch_S)
    tail_s = np.add.reduceat(busy.seconds_W * busy.idle_share_W, first_stretch_S)
    slot_s = np.add.reduceat(busy.slot_s_W, first_stretch_S)
    prefill_s = np.minimum(batch.prefill_s_S, engine_s - tail_s)
    step_s = rollout_s + sum(batch.learner_S.values())
    columns = {
        "rollout/idle_slot_share": _over(tail_s, engine_s),
        "engine/mean_concurrency": _over(slot_s, engine_s),
        "time/rollout_seconds": rollout_s,
        "time/overhead_seconds": np.maximum(rollout_s - engine_s, 0.0),
        "time/prefill_seconds": prefill_s,
        "time/decode_seconds": engine_s - tail_s - prefill_s,
        "time/tail_seconds": tail_s,
        "time/step_seconds": step_s,
        "time/gpu_seconds": step_s * n_gpus,
    }
    if batch.beside is not None:
        columns["time/reward_wait_seconds"] = batch.beside.score_wait_s_S
        columns["time/tool_wait_seconds"] = batch.beside.call_wait_s_S
    for name, seconds in batch.learner_S.items():
        columns[f"time/{name}_seconds"] = seconds
    return columns


def _waves(batch: StepBatch, busy: Occupancy, *, first_stretch_S: Int) -> dict[str, Float]:
    n_stretches = np.diff(first_stretch_S, append=len(busy.seconds_W)).astype(np.float64)
    n_waves = n_stretches
    if batch.memory is not None:  # a step that generates nothing has an empty stretch and no wave
        n_waves = np.add.reduceat((busy.n_responses_W > 0).astype(np.float64), first_stretch_S)

    def mean(x_W: Float) -> Float:
        return _over(np.asarray(np.add.reduceat(x_W, first_stretch_S)), n_waves)

    columns = {"rollout/waves": n_waves, "rollout/wave_seconds": mean(busy.seconds_W)}
    for percent in PERCENTS:
        columns[f"rollout/t{percent}_s"] = mean(busy.done_after_s(percent))
    return columns
