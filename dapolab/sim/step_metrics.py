"""The metrics of ``dapolab.metrics`` for a batch of steps at once.

Axes: S steps, W stretches (waves), P groups of all steps in order, G responses of a group. A metric
that a step does not have is NaN; one that the policy does not have is left out.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dapolab.sim.collect import ABORTED, DEGENERATE, SURPLUS, TRAINED
from dapolab.sim.occupancy import PERCENTS, Occupancy
from dapolab.sim.score import Scores

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


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

    @property
    def size(self) -> int:
        """G."""
        return int(self.n_tokens_PG.shape[1])

    @cached_property
    def n_right(self) -> Int:
        """Right answers of each group, shape (P,)."""
        return np.asarray(self.correct_PG.sum(axis=1))

    @cached_property
    def mixed(self) -> Bool:
        """Whether a group has right and wrong answers, shape (P,)."""
        return (self.n_right > 0) & (self.n_right < self.size)

    @cached_property
    def full_tokens(self) -> Int:
        """Tokens of each group had nothing been aborted, shape (P,)."""
        return np.asarray(self.n_tokens_PG.sum(axis=1))

    @cached_property
    def longest(self) -> Int:
        """Longest full length of each group, shape (P,)."""
        return np.asarray(self.n_tokens_PG.max(axis=1))

    @cached_property
    def generated(self) -> Int:
        """Tokens really generated for each group, shape (P,)."""
        return np.asarray(self.generated_tokens.reshape(-1, self.size).sum(axis=1))

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
        columns |= _waves(busy, first_stretch_S=first_stretch_S)
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
    candidates = batch.n_groups_S.astype(np.float64)
    status_P = batch.status_P
    trained = batch.per_step(status_P == TRAINED)
    aborted = batch.per_step(status_P == ABORTED)
    columns = {
        "rollout/candidate_groups": candidates,
        "rollout/mixed_candidate_groups": batch.per_step(batch.mixed),
        "rollout/effective_groups": trained,
        "rollout/effective_group_ratio": trained / candidates,
        "rollout/effective_fill_ratio": trained / n_wanted,
        "rollout/oversample_ratio": candidates / n_wanted,
        "rollout/degenerate_groups": batch.per_step(status_P == DEGENERATE),
        "rollout/surplus_groups": batch.per_step(status_P == SURPLUS),
        "rollout/aborted_groups": aborted,
        "train/mixed_groups": batch.per_step(batch.mixed, status_P == TRAINED),
        "train/update_skipped": (trained == 0).astype(np.float64),
    }
    if estimates_q:
        filled = (trained >= n_wanted) & (candidates > 1)
        unbiased = (trained - filled) / (candidates - filled)
        columns["rollout/unbiased_effective_ratio"] = np.where(aborted == 0, unbiased, np.nan)
    return columns


def _tokens(batch: StepBatch) -> dict[str, Float]:
    tokens_P, status_P = batch.generated, batch.status_P
    total = batch.per_step(tokens_P)
    trained = batch.per_step(tokens_P, status_P == TRAINED)
    return {
        "rollout/completion_tokens": total,
        "rollout/train_completion_tokens": trained,
        "rollout/token_utilisation": _over(trained, total),
        "rollout/degenerate_tokens": batch.per_step(tokens_P, status_P == DEGENERATE),
        "rollout/surplus_tokens": batch.per_step(tokens_P, status_P == SURPLUS),
        "rollout/aborted_tokens": batch.per_step(tokens_P, status_P == ABORTED),
    }


def _finished(batch: StepBatch, scores: Scores) -> dict[str, Float]:
    """Lengths, outcomes and rewards of the groups that returned."""
    done_P, right_P, size = batch.status_P != ABORTED, batch.n_right, batch.size
    n_groups = batch.per_step(done_P)
    n_responses = n_groups * size
    longest = np.maximum.reduceat(np.where(done_P, batch.longest, 0), batch.first_group_S)
    accuracy = _over(batch.per_step(right_P, done_P), n_responses)
    penalty_P = scores.penalty(batch.n_tokens_PG).sum(axis=1)
    penalty = _over(batch.per_step(penalty_P, done_P), n_responses)
    trained_P = batch.status_P == TRAINED
    return {
        "rollout/mean_completion_tokens": _over(
            batch.per_step(batch.full_tokens, done_P), n_responses
        ),
        "rollout/max_completion_tokens": np.where(n_groups > 0, longest, np.nan),
        "rollout/truncated_share": _over(
            batch.per_step(batch.truncated_PG.sum(axis=1), done_P), n_responses
        ),
        "rollout/all_right_share": _over(batch.per_step(right_P == size, done_P), n_groups),
        "rollout/all_wrong_share": _over(batch.per_step(right_P == 0, done_P), n_groups),
        "rollout/mixed_share": _over(batch.per_step(batch.mixed, done_P), n_groups),
        "reward/accuracy": accuracy,
        "reward/trained_accuracy": _over(
            batch.per_step(right_P, trained_P), batch.per_step(trained_P) * size
        ),
        "reward/length_penalty_mean": penalty,
        "reward/shaped_mean": 2.0 * accuracy - 1.0 + penalty,
    }


def _bias(batch: StepBatch) -> dict[str, Float]:
    """Length and difficulty of what is trained beside all candidates and all mixed ones."""
    columns = {}
    sets = {
        "candidates": np.ones(len(batch.status_P), dtype=np.bool_),
        "effective": batch.mixed,
        "trained": batch.status_P == TRAINED,
    }
    for name, chosen_P in sets.items():
        n_groups = batch.per_step(chosen_P)
        tokens = batch.per_step(batch.full_tokens, chosen_P)
        columns[f"bias/length_{name}"] = _over(tokens, n_groups * batch.size)
        pass_rates = batch.per_step(batch.pass_rate_P, chosen_P)
        columns[f"bias/pass_rate_{name}"] = _over(pass_rates, n_groups)
    trained = columns["bias/length_trained"]
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
    for name, seconds in batch.learner_S.items():
        columns[f"time/{name}_seconds"] = seconds
    return columns


def _waves(busy: Occupancy, *, first_stretch_S: Int) -> dict[str, Float]:
    n_waves = np.diff(first_stretch_S, append=len(busy.seconds_W)).astype(np.float64)

    def mean(x_W: Float) -> Float:
        return np.asarray(np.add.reduceat(x_W, first_stretch_S) / n_waves)

    columns = {"rollout/waves": n_waves, "rollout/wave_seconds": mean(busy.seconds_W)}
    for percent in PERCENTS:
        columns[f"rollout/t{percent}_s"] = mean(busy.done_after_s(percent))
    return columns
