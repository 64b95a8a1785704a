"""A made-up comparison and a made-up fit, with the shapes that real tables have."""

import numpy as np
import pandas as pd

from dapolab import stats
from dapolab.metrics import BY_NAME
from dapolab.report.comparison import ComparisonTables

POLICIES = (
    "exact_refill",
    "none",
    "filter_no_refill",
    "rounds",
    "replenish",
    "streaming",
    "over_provision",
)
BARRIER = {"exact_refill": (1, 5), "rounds": (1, 3), "none": (1, 2), "filter_no_refill": (1, 2)}
SPEED = {"exact_refill": 1.0, "rounds": 0.9, "none": 0.5, "filter_no_refill": 0.95,
         "replenish": 0.7, "streaming": 0.695, "over_provision": 0.62}  # fmt: skip
PARTS = {"overhead": 6, "prefill": 9, "decode": 90, "tail": 60, "reward": 4, "old_logprob": 14,
         "update": 50, "sync": 8, "checkpoint": 2}  # fmt: skip


def _steps(policies: tuple[str, ...], *, n_replications: int, n_steps: int) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    rows = []
    for replication in range(n_replications):
        luck = rng.lognormal(sigma=0.1)
        for name in policies:
            for step in range(n_steps):
                rows.append(_step(rng, name, replication, step, luck))
    return pd.DataFrame(rows)


def _step(
    rng: np.random.Generator, name: str, replication: int, step: int, luck: float
) -> dict[str, object]:
    scale = SPEED.get(name, 1.0) * luck * rng.lognormal(sigma=0.15)
    parts = {part: scale * seconds for part, seconds in PARTS.items()}
    if name not in BARRIER:
        parts["tail"] *= 0.25
    trained, wasted = 4 * rng.integers(2000, 2600), 4 * rng.integers(900, 1500)
    surplus = int(trained * 0.4) if name in {"rounds", "over_provision"} else 0
    aborted = int(trained * 0.3) if name in {"streaming", "over_provision"} else 0
    length = 2400.0 * rng.lognormal(sigma=0.05)
    push = {"over_provision": 0.82, "streaming": 0.93}.get(name, 1.0)
    row: dict[str, object] = {"policy": name, "replication": replication, "step": step}
    row |= {f"time/{part}_seconds": seconds for part, seconds in parts.items()}
    row["time/step_seconds"] = sum(parts.values())
    row["rollout/effective_groups"] = 4 if name != "filter_no_refill" else int(rng.integers(1, 4))
    row["train/mixed_groups"] = row["rollout/effective_groups"]
    row["rollout/mixed_candidate_groups"] = 4 + 2 * bool(surplus or aborted)
    row["rollout/candidate_groups"] = 8
    row |= {
        "rollout/train_completion_tokens": trained,
        "rollout/degenerate_tokens": wasted,
        "rollout/surplus_tokens": surplus,
        "rollout/aborted_tokens": aborted,
        "rollout/completion_tokens": trained + wasted + surplus + aborted,
        "rollout/waves": float(rng.integers(*BARRIER[name])) if name in BARRIER else np.nan,
        "bias/length_candidates": length,
        "bias/length_effective": length * 1.06,
        "bias/length_trained": length * 1.06 * push * rng.lognormal(sigma=0.01),
        "bias/pass_rate_candidates": 0.61,
        "bias/pass_rate_effective": 0.52 + rng.normal() * 0.01,
        "bias/pass_rate_trained": 0.52 / push**0.5 + rng.normal() * 0.01,
        "engine/peak_kv_tokens": 140_000 * rng.lognormal(sigma=0.1),
        "engine/mean_concurrency": (14 if name in BARRIER else 26) * rng.lognormal(sigma=0.1),
    }
    return row


def responses(policies: tuple[str, ...], *, n_slots: int = 32) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return one step's responses and waves: barrier policies in three waves, others refilled."""
    rng = np.random.default_rng(3)
    rows, waves = [], []
    for name in policies:
        if name in BARRIER:
            start = 2.0
            for wave, share in enumerate((1.0, 0.5, 0.25)):
                ends = start + 20 + rng.lognormal(3.4, 0.6, size=int(n_slots * share))
                for i, end in enumerate(ends):
                    status = "trained" if (i // 8 + wave) % 2 else "degenerate"
                    rows.append((name, start, start, end, status))
                waves.append((name, 0, 0, wave, start, ends.max()))
                start = ends.max() + 4
        else:
            free = np.full(n_slots, 2.0)
            for i in range(n_slots * 3):
                slot = int(free.argmin())
                end = free[slot] + 10 + rng.lognormal(3.4, 0.6)
                aborted = end > 150
                status = "aborted" if aborted else ("trained", "degenerate", "trained")[i // 8 % 3]
                rows.append((name, 2.0, free[slot], min(end, 150.0), status))
                free[slot] = min(end, 150.0)
                if free.min() >= 150.0:
                    break
    columns = ["policy", "submit_s", "admit_s", "end_s", "status"]
    table = pd.DataFrame(rows, columns=columns)
    table.insert(1, "replica", 0)
    table.insert(1, "step", 0)
    table.insert(1, "replication", 0)
    names = ["policy", "replication", "step", "wave", "start_s", "end_s"]
    return table, pd.DataFrame(waves, columns=names)


def comparison_tables(policies: tuple[str, ...] = POLICIES, **changes: object) -> ComparisonTables:
    """Return a comparison of ``policies``, the first as baseline."""
    steps = _steps(policies, n_replications=8, n_steps=5)
    sums = steps.groupby(["policy", "replication"]).sum(numeric_only=True)
    totals = {
        name: (
            sums.loc[name, "time/step_seconds"].to_numpy(),
            sums.loc[name, "rollout/effective_groups"].to_numpy(float),
        )
        for name in policies
    }
    cost = "per_trained_group/seconds"
    estimates: dict[str, dict[str, stats.Estimate]] = {}
    for name in policies:
        means = steps[steps["policy"] == name].groupby("replication").mean(numeric_only=True)
        estimates[name] = {cost: stats.ratio_of_totals(*totals[name], unit="s")}
        for column in means:
            values = means[column].dropna()
            if column in BY_NAME and len(values):
                estimates[name][column] = stats.mean_estimate(values, unit=BY_NAME[column].unit)
        estimates[name]["run/p_fails"] = stats.wilson(0, 8)
    level = stats.simultaneous(n_comparisons=max(len(policies) - 1, 1))
    table, waves = responses(policies)
    fields = {
        "policies": policies,
        "steps": steps,
        "estimates": estimates,
        "ratios": {
            name: {cost: stats.paired_ratio(*totals[name], *totals[policies[0]], level=level)}
            for name in policies[1:]
        },
        "best": {cost: stats.best_set_of_ratios(totals).names},
        "waves_distribution": {
            name: ((1, 2, 3, 4), (0.42, 0.33, 0.2, 0.05)) for name in policies if name in BARRIER
        },
        "responses": table,
        "waves": waves,
        "notes": ("hardware law: an assumption, read every number as a ratio",),
    }
    return ComparisonTables(**(fields | changes))  # type: ignore[arg-type]


def fit_tables() -> dict[str, object]:
    """Return the tables of a made-up fit."""
    tokens = np.geomspace(50, 4096, 80)
    observed = 1 / (1 + np.exp(-3 * (np.log(tokens) - 6.8)))
    observed[-1] = 1.0
    k = np.arange(9)
    share = np.array([0.2, 0.08, 0.06, 0.05, 0.06, 0.07, 0.09, 0.12, 0.27])
    checks = pd.DataFrame(
        {
            "quantity": ["wave maximum of 128", "truncated share", "mixed share"],
            "unit": ["tokens", "share", "share"],
            "observed": [3900.0, 0.081, 0.53],
            "predicted": [3850.0, 0.060, 0.52],
            "low": [-40.0, 0.012, -0.02],
            "high": [140.0, 0.030, 0.04],
            "tolerance": [195.0, 0.01, 0.025],
            "verdict": ["holds", "fails", "undecided"],
        }
    )
    return {
        "figures": {
            "length_cdf": pd.DataFrame(
                {"tokens": tokens, "observed": observed, "model": observed**1.05}
            ),
            "composition": pd.DataFrame(
                {"n_correct": k, "observed": share, "model": share * 0.97}
            ).assign(low=share * 0.8, high=share * 1.2),
            "within_sd": pd.DataFrame(
                {
                    "sd": np.linspace(0, 1.5, 80),
                    "observed": np.linspace(0, 1, 80) ** 0.3,
                    "model": np.linspace(0, 1, 80) ** 0.33,
                }
            ),
        },
        "goodness": checks,
        "parameters": {"sigma_prompt": stats.Estimate(0.7, 0.6, 0.8, 200, "log tokens")},
        "loop_bounds": {"none": {"p_loop": 0.0}, "all": {"p_loop": 0.06}},
        "not_identified": [("p_loop", "every truncated answer may be a loop or just long")],
    }
