"""The metrics of one step of real training, under the names of ``dapolab.metrics``.

What the simulator knows and a real run does not (true pass rates, lengths of aborted responses) is
absent, never guessed.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dapolab.scenario import Rollout as RolloutConfig
from gpu_runs.generate import Iteration
from gpu_runs.rollout import Candidate, Rollout, Wave
from gpu_runs.score import Score
from gpu_runs.slots import Completion

PERCENTS = (50, 90, 95, 99)
_SUMS = ("update/tokens", "update/responses", "clip/active_tokens")
_FROM_UPDATES = {
    "ppo/loss": "ppo/loss",
    "ppo/ratio_mean": "ratio/mean",
    "ppo/lower_clip_fraction": "clip/lower_share",
    "ppo/upper_clip_fraction": "clip/upper_share",
    "ppo/train_tokens": "update/tokens",
    "ppo/gradient_active_tokens": "clip/active_tokens",
    "ppo/sequences": "update/responses",
}


def rollout_metrics(rollout: Rollout, config: RolloutConfig) -> dict[str, float]:
    """Return what the collection did: groups, tokens, outcomes, time."""
    row = _groups(rollout, config) | _tokens(rollout) | _outcomes(rollout) | _lengths(rollout)
    return row | _seconds(rollout)


def _groups(rollout: Rollout, config: RolloutConfig) -> dict[str, float]:
    n = len(rollout.candidates)
    count = {
        status: sum(c.status == status for c in rollout.candidates)
        for status in ("trained", "degenerate", "surplus", "aborted")
    }
    trained, wanted = len(rollout.kept), config.groups_per_step
    row: dict[str, float] = {
        "rollout/candidate_groups": n,
        "rollout/effective_groups": trained,
        "rollout/effective_group_ratio": trained / max(n, 1),
        "rollout/effective_fill_ratio": trained / wanted,
        "rollout/oversample_ratio": n / wanted,
        "rollout/degenerate_groups": count["degenerate"],
        "rollout/surplus_groups": count["surplus"],
        "rollout/aborted_groups": count["aborted"],
        "rollout/mixed_candidate_groups": sum(_is_mixed(c) for c in rollout.candidates),
        "train/mixed_groups": sum(_is_mixed(c) for c in rollout.trained),
        "train/update_skipped": float(trained == 0),
    }
    if rollout.waves:
        row["rollout/waves"] = len(rollout.waves)
    return row


def _is_mixed(candidate: Candidate) -> bool:
    right = {score.right for score in candidate.scores if score is not None}
    return len(right) == 2


def _tokens(rollout: Rollout) -> dict[str, float]:
    by_status: dict[str, int] = {}
    for candidate in rollout.candidates:
        tokens = sum(len(c.tokens) for c in candidate.completions if c is not None)
        by_status[candidate.status] = by_status.get(candidate.status, 0) + tokens
    total = sum(by_status.values())
    row: dict[str, float] = {
        "rollout/completion_tokens": total,
        "rollout/train_completion_tokens": by_status.get("trained", 0),
        "rollout/degenerate_tokens": by_status.get("degenerate", 0),
        "rollout/surplus_tokens": by_status.get("surplus", 0),
        "rollout/aborted_tokens": by_status.get("aborted", 0),
    }
    if total:
        row["rollout/token_utilisation"] = by_status.get("trained", 0) / total
    return row


def _pairs(candidates: Sequence[Candidate]) -> Iterator[tuple[Completion, Score]]:
    for candidate in candidates:
        for completion, score in zip(candidate.completions, candidate.scores, strict=True):
            if completion is not None and score is not None:
                yield completion, score


def _outcomes(rollout: Rollout) -> dict[str, float]:
    """Lengths, rewards and verdicts of the groups that returned."""
    done = [c for c in rollout.candidates if c.finished is not None]
    pairs = list(_pairs(done))
    trained = [score.right for _, score in _pairs(rollout.trained)]
    row: dict[str, float] = {"rollout/completions": len(pairs)}
    row["rollout/train_completions"] = len(trained)
    if trained:
        row["reward/trained_accuracy"] = float(np.mean(trained))
    if not pairs:
        return row
    lengths = np.array([len(completion.tokens) for completion, _ in pairs])
    right = np.array([score.right for _, score in pairs])
    raw = np.array([score.raw for _, score in pairs])
    shaped = np.array([score.reward for _, score in pairs])
    n_right = [sum(s.right for s in c.scores if s is not None) for c in done]
    shares = [n / len(c.scores) for n, c in zip(n_right, done, strict=True)]
    row |= {
        "rollout/mean_completion_tokens": float(lengths.mean()),
        "rollout/max_completion_tokens": float(lengths.max()),
        "rollout/truncated_share": float(np.mean([c.finish == "length" for c, _ in pairs])),
        "rollout/filler_tokens": float(np.mean([score.filler for _, score in pairs])),
        "rollout/unique_completion_rate": float(np.mean([_unique(c) for c in done])),
        "rollout/mean_sampled_token_surprisal": -sum(sum(c.logprobs) for c, _ in pairs)
        / float(lengths.sum()),
        "rollout/all_right_share": float(np.mean([share == 1 for share in shares])),
        "rollout/all_wrong_share": float(np.mean([share == 0 for share in shares])),
        "rollout/mixed_share": float(np.mean([0 < share < 1 for share in shares])),
        "reward/accuracy": float(right.mean()),
        "reward/base_mean": float(raw.mean()),
        "reward/length_penalty_mean": float((shaped - raw).mean()),
        "reward/shaped_mean": float(shaped.mean()),
        "reward/format_rate": float(np.mean([s.answer is not None for _, s in pairs])),
    }
    for name, chosen in (("right", right), ("wrong", ~right)):
        if chosen.any():
            row[f"rollout/{name}_completion_tokens"] = float(lengths[chosen].mean())
    return row


def _unique(candidate: Candidate) -> float:
    texts = {c.tokens for c in candidate.completions if c is not None}
    return len(texts) / len(candidate.completions)


def _lengths(rollout: Rollout) -> dict[str, float]:
    """Length of what is trained beside all candidates and all mixed ones, where all are known."""

    def mean(candidates: Sequence[Candidate]) -> float | None:
        lengths = [len(completion.tokens) for completion, _ in _pairs(candidates)]
        return float(np.mean(lengths)) if lengths else None

    found = {"trained": mean(rollout.trained)}
    if all(c.finished is not None for c in rollout.candidates):
        found["candidates"] = mean(rollout.candidates)
        found["effective"] = mean([c for c in rollout.candidates if _is_mixed(c)])
    row = {f"bias/length_{name}": value for name, value in found.items() if value is not None}
    trained = row.get("bias/length_trained")
    for name, other in (("policy", "effective"), ("total", "candidates")):
        base = row.get(f"bias/length_{other}")
        if trained is not None and base is not None:
            row[f"bias/length_ratio_{name}"] = trained / base
    return row


# ---------------------------------------------------------------------------- time


def _seconds(rollout: Rollout) -> dict[str, float]:
    """Where the rollout's time went; the engine's is that of its iterations."""
    stretches = [rollout.iterations[w.first_iteration : w.last_iteration] for w in rollout.waves]
    stretches = stretches or [rollout.iterations]
    engine = sum(i.seconds for i in rollout.iterations)
    slot_s = sum(i.n * i.seconds for i in rollout.iterations)
    tail = sum(sum(i.seconds for i in of) * idle_share(of) for of in stretches)
    admit = sum(i.admit_seconds for i in rollout.iterations)
    seconds = rollout.end_s - rollout.start_s
    prefill = min(admit, max(engine - tail, 0.0))
    row = {
        "rollout/iterations": float(len(rollout.iterations)),
        "time/rollout_seconds": seconds,
        "time/reward_seconds": rollout.reward_s,
        "time/overhead_seconds": max(seconds - engine, 0.0),
        "time/prefill_seconds": prefill,
        "time/decode_seconds": engine - tail - prefill,
        "time/tail_seconds": tail,
    }
    if engine:
        row["rollout/idle_slot_share"] = tail / engine
        row["engine/mean_concurrency"] = slot_s / engine
    if rollout.waves:
        row["rollout/wave_seconds"] = float(np.mean([w.end_s - w.start_s for w in rollout.waves]))
        for percent in PERCENTS:
            after = [_done_after_s(rollout, wave, percent) for wave in rollout.waves]
            row[f"rollout/t{percent}_s"] = float(np.mean(after))
    return row


def idle_share(iterations: Sequence[Iteration]) -> float:
    """Return 1 − mean/peak concurrency, time-weighted; 0 for an empty stretch."""
    seconds = sum(i.seconds for i in iterations)
    peak = max((i.n for i in iterations), default=0)
    return 1.0 - sum(i.n * i.seconds for i in iterations) / (seconds * peak) if seconds else 0.0


def _done_after_s(rollout: Rollout, wave: Wave, percent: int) -> float:
    ends = sorted(
        completion.end_s if completion is not None else wave.end_s
        for candidate in rollout.candidates[wave.first : wave.last]
        for completion in candidate.completions
    )
    return ends[(len(ends) * percent + 99) // 100 - 1] - wave.start_s


# ---------------------------------------------------------------------------- updates


def update_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the updates of a step as one row: counts add up, extremes stay, shares are by token.

    A mean over all updates is that of their tokens; an update without any has no say in it.
    """
    if not updates:
        return {"train/updates": 0.0}
    tokens = np.array([update["update/tokens"] for update in updates])
    weights = tokens if tokens.sum() > 0 else np.ones_like(tokens)
    row = {"train/updates": float((tokens > 0).sum())}
    for name in updates[0]:
        values = np.array([update[name] for update in updates])
        if name in _SUMS:
            row[name] = float(values.sum())
        elif name == "ratio/min":
            row[name] = float(values[tokens > 0].min()) if tokens.any() else 1.0
        elif name in ("ratio/max", "sampler/max_abs_log_ratio"):
            row[name] = float(values.max())
        elif name in ("ppo/loss", "train/gradient_norm"):
            row[name] = float(values.mean())
        elif name == "train/learning_rate":
            row[name] = float(values[-1])
        else:
            row[name] = float(np.average(values, weights=weights))
    row |= {name: row[source] for name, source in _FROM_UPDATES.items() if source in row}
    row["ppo/clip_fraction"] = row["clip/lower_share"] + row["clip/upper_share"]
    return row
