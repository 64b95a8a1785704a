"""From what one step collected to the rows that are reported: facts in, metrics out.

Every number is derived from per-response facts of the engine and per-group facts of the policy, so
tokens and groups are conserved by construction of the sums and by test.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dapolab.metrics import STATUSES
from dapolab.scenario import Rollout
from dapolab.sim.collect import ABORTED, DEGENERATE, SURPLUS, TRAINED, Collection
from dapolab.sim.learner import LearnerTime
from dapolab.sim.score import Scores
from dapolab.workload.model import Groups

Float = NDArray[np.float64]
Int = NDArray[np.int64]

STATUS_NAMES = np.array(["in flight", *STATUSES])


@dataclass(frozen=True)
class ResponseFacts:
    """Engine facts of a step's responses, shape (P, G), and of its replicas, shape (R,)."""

    replica_PG: Int
    submit_s_PG: Float
    admit_s_PG: Float
    first_token_s_PG: Float
    end_s_PG: Float
    generated_PG: Int
    n_preemptions: int
    prefill_s_R: Float
    peak_kv_tokens_R: Int


@dataclass(frozen=True)
class Concurrency:
    """How full a stretch of engine time was."""

    seconds: float
    mean: float
    peak: int

    @property
    def idle_share(self) -> float:
        """Return 1 − mean/peak concurrency: the share of slots that wait for the longest."""
        return 1.0 - self.mean / self.peak if self.peak else 0.0


def concurrency(admit_s: Float, end_s: Float, *, start_s: float, stop_s: float) -> Concurrency:
    """Return mean and peak number of admitted responses between ``start_s`` and ``stop_s``.

    ∫N(t)dt is the sum of sojourns (theory F7), so the mean needs no sweep; the peak does.
    """
    admitted = np.isfinite(admit_s)
    begin, end = admit_s[admitted], np.maximum(end_s[admitted], admit_s[admitted])
    seconds = stop_s - start_s
    if len(begin) == 0 or seconds <= 0:
        return Concurrency(max(seconds, 0.0), 0.0, 0)
    begins, ends = np.sort(begin), np.sort(end)
    # an end frees its slot before a start at the same instant takes it
    running = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    return Concurrency(seconds, float((end - begin).sum()) / seconds, int(max(running.max(), 1)))


def join(parts: list[Groups]) -> Groups:
    """Concatenate groups along the prompt axis."""
    if len(parts) == 1:
        return parts[0]
    fields = Groups.__dataclass_fields__
    return Groups(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in fields})


def wave_rows(collection: Collection, facts: ResponseFacts) -> list[dict[str, float]]:
    """Return one row a wave: its size, times and how long its last responses took."""
    rows = []
    for number, wave in enumerate(collection.waves):
        part = slice(wave.first, wave.last)
        ends = np.sort(facts.end_s_PG[part].ravel())
        busy = concurrency(
            facts.admit_s_PG[part].ravel(),
            facts.end_s_PG[part].ravel(),
            start_s=wave.decode_start_s,
            stop_s=wave.end_s,
        )
        row = {
            "wave": number,
            "n_groups": wave.last - wave.first,
            "n_responses": len(ends),
            "start_s": wave.start_s,
            "end_s": wave.seen_s,
            "wave_s": busy.seconds,
            "idle_slot_share": busy.idle_share,
        }
        for percent in (50, 90, 95, 99):
            done = ends[max(math.ceil(len(ends) * percent / 100) - 1, 0)]
            row[f"t{percent}_s"] = float(done) - wave.decode_start_s
        rows.append(row)
    return rows


def group_rows(
    collection: Collection, groups: Groups, facts: ResponseFacts
) -> dict[str, NDArray[np.generic]]:
    """Return columns of the step's groups (metrics.GROUP_COLUMNS without the run's keys)."""
    wave_P = np.full(len(collection.status), -1)
    for number, wave in enumerate(collection.waves):
        wave_P[wave.first : wave.last] = number
    return {
        "wave": wave_P,
        "position": groups.position_P,
        "prompt_id": groups.prompt_id_P,
        "status": STATUS_NAMES[np.array(collection.status, dtype=np.int64)],
        "n_correct": groups.correct_PG.sum(axis=1),
        "pass_rate": groups.pass_rate_P,
        "n_tokens_mean": groups.n_tokens_PG.mean(axis=1),
        "n_tokens_max": groups.n_tokens_PG.max(axis=1),
        "generated_tokens": facts.generated_PG.sum(axis=1),
        "submit_s": facts.submit_s_PG.min(axis=1),
        "end_s": facts.end_s_PG.max(axis=1),
    }


def step_row(
    collection: Collection,
    groups: Groups,
    facts: ResponseFacts,
    *,
    waves: list[dict[str, float]],
    learner: LearnerTime,
    rollout: Rollout,
    scores: Scores,
    n_gpus: int,
) -> dict[str, float]:
    """Return the step's metrics by their names in ``dapolab.metrics``; absent ones are left out."""
    status_P = np.array(collection.status, dtype=np.int64)
    row = _collection_metrics(status_P, groups, facts, rollout)
    row |= _time_metrics(collection, facts, waves, learner, n_gpus)
    row |= _reward_metrics(status_P, groups, scores)
    row |= _bias_metrics(status_P, groups)
    row["engine/preemptions"] = float(facts.n_preemptions)
    row["engine/peak_kv_tokens"] = float(facts.peak_kv_tokens_R.max(initial=0))
    return {name: value for name, value in row.items() if not math.isnan(value)}


def _mean(values: Float | Int | NDArray[np.bool_]) -> float:
    return float(np.mean(values)) if np.size(values) else math.nan


def _collection_metrics(
    status_P: Int, groups: Groups, facts: ResponseFacts, rollout: Rollout
) -> dict[str, float]:
    wanted, candidates = rollout.groups_per_step, len(status_P)
    trained = int((status_P == TRAINED).sum())
    finished_P = status_P != ABORTED
    tokens_P = facts.generated_PG.sum(axis=1)
    lengths = groups.n_tokens_PG[finished_P]
    n_right_P = groups.correct_PG[finished_P].sum(axis=1)
    size = groups.correct_PG.shape[1]
    trained_right_P = groups.correct_PG[status_P == TRAINED].sum(axis=1)
    total = float(tokens_P.sum())
    train_tokens = float(tokens_P[status_P == TRAINED].sum())
    filled = trained >= wanted and candidates > 1
    ratio = (trained - 1) / (candidates - 1) if filled else trained / max(candidates, 1)
    return {
        "rollout/candidate_groups": candidates,
        "rollout/effective_groups": trained,
        "rollout/effective_group_ratio": trained / max(candidates, 1),
        "rollout/effective_fill_ratio": trained / wanted,
        "rollout/oversample_ratio": candidates / wanted,
        "rollout/unbiased_effective_ratio": ratio,
        "rollout/completion_tokens": total,
        "rollout/train_completion_tokens": train_tokens,
        "rollout/token_utilisation": train_tokens / total if total else math.nan,
        "rollout/degenerate_tokens": float(tokens_P[status_P == DEGENERATE].sum()),
        "rollout/surplus_tokens": float(tokens_P[status_P == SURPLUS].sum()),
        "rollout/aborted_tokens": float(tokens_P[status_P == ABORTED].sum()),
        "rollout/mean_completion_tokens": _mean(lengths),
        "rollout/max_completion_tokens": float(lengths.max()) if lengths.size else math.nan,
        "rollout/truncated_share": _mean(groups.truncated_PG[finished_P]),
        "rollout/surplus_groups": float((status_P == SURPLUS).sum()),
        "rollout/aborted_groups": float((status_P == ABORTED).sum()),
        "rollout/all_right_share": _mean(n_right_P == size),
        "rollout/all_wrong_share": _mean(n_right_P == 0),
        "rollout/mixed_share": _mean((n_right_P > 0) & (n_right_P < size)),
        "train/mixed_groups": int(((trained_right_P > 0) & (trained_right_P < size)).sum()),
        "train/update_skipped": float(trained == 0),
    }


def _time_metrics(
    collection: Collection,
    facts: ResponseFacts,
    waves: list[dict[str, float]],
    learner: LearnerTime,
    n_gpus: int,
) -> dict[str, float]:
    rollout_s = collection.end_s - collection.start_s
    row: dict[str, float] = {}
    if waves:
        engine_s = sum(wave["wave_s"] for wave in waves)
        tail_s = sum(wave["wave_s"] * wave["idle_slot_share"] for wave in waves)
        row["rollout/waves"] = float(len(waves))
        row["rollout/wave_seconds"] = engine_s / len(waves)
        for name in ("t50_s", "t90_s", "t95_s", "t99_s"):
            row[f"rollout/{name}"] = sum(wave[name] for wave in waves) / len(waves)
        slot_s = float(np.nansum(facts.end_s_PG - facts.admit_s_PG))
        row["engine/mean_concurrency"] = slot_s / engine_s if engine_s else math.nan
    else:
        first_s = float(facts.submit_s_PG.min()) if facts.submit_s_PG.size else collection.end_s
        last_s = float(np.nanmax(facts.end_s_PG)) if facts.end_s_PG.size else first_s
        busy = concurrency(
            facts.admit_s_PG.ravel(), facts.end_s_PG.ravel(), start_s=first_s, stop_s=last_s
        )
        engine_s, tail_s = busy.seconds, busy.seconds * busy.idle_share
        row["engine/mean_concurrency"] = busy.mean
    prefill_s = min(float(facts.prefill_s_R.mean()), engine_s - tail_s)
    row |= {
        "rollout/idle_slot_share": tail_s / engine_s if engine_s else math.nan,
        "time/rollout_seconds": rollout_s,
        "time/overhead_seconds": max(rollout_s - engine_s, 0.0),
        "time/prefill_seconds": prefill_s,
        "time/decode_seconds": engine_s - tail_s - prefill_s,
        "time/tail_seconds": tail_s,
        "time/reward_seconds": learner.reward_s,
        "time/old_logprob_seconds": learner.old_logprob_s,
        "time/reference_seconds": learner.reference_s,
        "time/update_seconds": learner.update_s,
        "time/sync_seconds": learner.sync_s,
        "time/validation_seconds": learner.validation_s,
        "time/checkpoint_seconds": learner.checkpoint_s,
        "time/other_seconds": learner.other_s,
        "time/step_seconds": rollout_s + learner.total_s,
        "time/gpu_seconds": (rollout_s + learner.total_s) * n_gpus,
    }
    return row


def _reward_metrics(status_P: Int, groups: Groups, scores: Scores) -> dict[str, float]:
    finished_P = status_P != ABORTED
    lengths = groups.n_tokens_PG[finished_P]
    correct = groups.correct_PG[finished_P]
    penalty = scores.penalty(lengths)
    return {
        "reward/accuracy": _mean(correct),
        "reward/trained_accuracy": _mean(groups.correct_PG[status_P == TRAINED]),
        "reward/length_penalty_mean": _mean(penalty),
        "reward/shaped_mean": _mean(np.where(correct, 1.0, -1.0) + penalty),
    }


def _bias_metrics(status_P: Int, groups: Groups) -> dict[str, float]:
    trained_P = status_P == TRAINED
    n_right_P = groups.correct_PG.sum(axis=1)
    mixed_P = (n_right_P > 0) & (n_right_P < groups.correct_PG.shape[1])
    lengths = {
        "candidates": _mean(groups.n_tokens_PG),
        "effective": _mean(groups.n_tokens_PG[mixed_P]),
        "trained": _mean(groups.n_tokens_PG[trained_P]),
    }
    row = {f"bias/length_{name}": value for name, value in lengths.items()}
    row["bias/pass_rate_candidates"] = _mean(groups.pass_rate_P)
    row["bias/pass_rate_effective"] = _mean(groups.pass_rate_P[mixed_P])
    row["bias/pass_rate_trained"] = _mean(groups.pass_rate_P[trained_P])
    row["bias/length_ratio_policy"] = lengths["trained"] / lengths["effective"]
    row["bias/length_ratio_total"] = lengths["trained"] / lengths["candidates"]
    return row
