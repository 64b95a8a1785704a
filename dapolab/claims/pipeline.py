"""Rollout beside training: P12 and circulated 15, in the simulator's pipeline (theory.md F)."""

import functools
from typing import Any

import numpy as np

from dapolab.claims.claim import Claim, Draws, Row, Totals
from dapolab.claims.simulated import Floats
from dapolab.scenario import build
from dapolab.sim.run import SimRun, simulate
from dapolab.theory.pipeline import (
    best_split,
    exponential_step_rate,
    fixed_cycle_s,
    streaming_staleness,
)

_TOKENS = 2000
_A_S = 1.0 / _TOKENS
"""Seconds an iteration: a mean answer takes one."""
_STEPS = 600


def _run(
    schedule: dict[str, Any],
    *,
    learner: dict[str, Any],
    groups: int = 1,
    fixed: bool = False,
    steps: int = _STEPS,
    seed: int = 0,
    replication: int = 0,
    tokens: int = _TOKENS,
    **hardware: Any,
) -> SimRun:
    exponential = {"kind": "exponential", "mean_tokens": float(_TOKENS)}
    scenario = {
        "workload": {
            "kind": "independent",
            "lengths": {"kind": "constant", "tokens": tokens} if fixed else exponential,
            "pass_rate": {"kind": "fixed"},
            "prompts": {"count": 500_000},
        },
        "rollout": {"groups_per_step": groups, "group_size": 1, "cap_tokens": 10**6},
        "collector": {"kind": "none"},
        "hardware": {
            "law": {"kind": "affine", "a_s": _A_S, "b_s": 0.0, "c_s": 0.0},
            "prefill": False,
            "slots": 4096,
        }
        | hardware,
        "learner": {"schedule": schedule, "gpus": 1} | learner,
        "run": {"steps": steps},
    }
    return simulate(build(scenario), seed=seed, replication=replication)


def _admission(staleness: int, **more: Any) -> dict[str, Any]:
    control = {"kind": "admission", "staleness": staleness}
    return {"kind": "fully_async", "control": control} | more


# ---------------------------------------------------------------------------- P12

_FIXED = "cycle at η=3 over η=1, fixed times"
_RANDOM = "rate at η=3 over η=1, exponential times"
_SLOPE = "versions per mean length, K=64, B=32"
_SLOTS, _BATCH = 64, 32


def _fixed_cycle(staleness: int) -> float:
    """Return seconds a step once the pipeline runs: whole periods of η + 1 steps."""
    steps = _run(
        _admission(staleness, queue="in_order"),
        learner={"fixed_s": 1.0},
        fixed=True,
        steps=49,
        slots=1,
    ).steps
    return float(steps["start_s"][48] - steps["start_s"][12]) / 36.0


def _seconds(staleness: int, draws: Draws) -> Floats:
    """Return the seconds of each replication's steps, both stages exponential."""
    learner = {"update_fixed_s": 1.0, "noise_cv": 1.0}
    return np.array(
        [
            _run(
                _admission(staleness),
                learner=learner,
                slots=1,
                seed=draws.seed,
                replication=k,
            )
            .steps["time/step_seconds"]
            .sum()
            for k in range(draws.n)
        ]
    )


def _slope(seed: int, replication: int) -> float:
    """Return the least-squares slope of an answer's age in versions on its length in seconds."""
    busy = {"kind": "age_drop", "max_age": 10_000, "ahead_groups": _SLOTS, "counts": "running"}
    groups = _run(
        {"kind": "fully_async", "control": busy},
        learner={"fixed_s": 0.45},
        groups=_BATCH,
        steps=150,
        slots=_SLOTS,
        seed=seed,
        replication=replication,
    ).groups
    chosen = groups[groups["step"].between(30, 120) & (groups["status"] == "trained")]
    age = chosen["version_trained"] - chosen["version_submitted"]
    return float(np.polyfit(chosen["n_tokens_mean"] * _A_S, age, 1)[0])


_P12 = Claim(
    id="p12-staleness",
    kind="value",
    statement="A staleness bound η > 1 helps only through randomness: with fixed rollout and train "
    "times of 1 s the cycle is 1 s at η=1 and η=3 alike, with exponential ones the rate goes from "
    "2/3 to 4/5; staleness grows in proportion to an answer's own length.",
    source="theory.md P12, F2, F3, F4",
    instrument="simulator",
    repeat=f"replication of {_STEPS} steps",
    n=40,
    quick_n=6,
    rows=(
        Row(
            name=_FIXED,
            kind="value",
            says=1.0,
            rival=0.5,
            tolerance=0.02,
            unit="ratio",
            why="2 % of the time",
        ),
        Row(
            name=_RANDOM,
            kind="value",
            says=1.2,
            rival=1.0,
            tolerance=0.04,
            unit="ratio",
            why="4 % of the time",
        ),
        Row(
            name=_SLOPE,
            kind="value",
            rival=0.0,
            tolerance=0.2,
            unit="versions",
            why="a fifth of a version",
        ),
    ),
    predict=lambda: {
        _FIXED: fixed_cycle_s(1.0, train_s=1.0, staleness=3)
        / fixed_cycle_s(1.0, train_s=1.0, staleness=1),
        _RANDOM: exponential_step_rate(1.0, train_per_s=1.0, staleness=3)
        / exponential_step_rate(1.0, train_per_s=1.0, staleness=1),
        _SLOPE: streaming_staleness(
            n_slots=_SLOTS, batch_responses=_BATCH, mean_duration_s=1.0
        ).slope_versions_per_s,
    },
    measure=lambda draws: {
        _FIXED: _fixed_cycle(3) / _fixed_cycle(1),
        _RANDOM: Totals(_seconds(1, draws), _seconds(3, draws)),
        _SLOPE: np.array([_slope(draws.seed, k) for k in range(draws.n)]),
    },
    how_to_read="Mean times of 1 s on one rollout slot; the last row has K answers always in "
    "flight and a learner that waits for them. η=1 is one step off.",
)

# ---------------------------------------------------------------------------- circulated 15

_GPUS = {
    "no latency floor": (0.0, 8, 6),
    "a third latency": (2.0, 17, 14),
}
"""Seconds that no GPU shortens, GPUs, and how many of them roll out at best (F6)."""
_ROLLOUT_S, _TRAIN_S = 3.0, 1.0
"""On all GPUs, without the latency."""


@functools.cache
def _cycle(latency_s: float, total: int, rollout_gpus: int) -> float:
    """Return seconds a step, one step off, on a split of the GPUs."""
    tokens, groups = 1000, 20 * rollout_gpus
    law = {
        "kind": "affine",
        "a_s": latency_s / tokens,
        "b_s": _ROLLOUT_S * total / (tokens * groups),
        "c_s": 0.0,
    }
    learner = {
        "gpus": total - rollout_gpus,
        "measured_on_gpus": total,
        "update_s_per_token": _TRAIN_S / (groups * (tokens + 150)),
    }
    found = _run(
        {"kind": "one_step_off"},
        learner=learner,
        groups=groups,
        fixed=True,
        tokens=tokens,
        steps=4,
        law=law,
        replicas=rollout_gpus,
    )
    return float(found.steps["time/step_seconds"][1])


def _gain(latency_s: float, total: int, best: int) -> float:
    """Return the colocated cycle over that of the best of three splits."""
    together = latency_s + _ROLLOUT_S + _TRAIN_S
    return together / min(_cycle(latency_s, total, n) for n in (best - 1, best, best + 1))


_C15 = Claim(
    id="c15-async-for-free",
    kind="universal",
    statement="Asynchronous training removes the long tail for free: splitting the GPUs between "
    "rollout and training is faster than the colocated synchronous loop.",
    correction="With perfect scaling and no latency floor the best split gains exactly nothing; "
    "what it gains comes from the latency that no GPU shortens, and is paid in staleness.",
    source="as circulated of one-step-off and fully async training; theory.md circulated 15, F6",
    instrument="simulator",
    rows=tuple(
        Row(
            name=f"colocated over split cycle, {name}",
            kind="order",
            says=1.0,
            rival=1.0,
            tolerance=0.05,
            unit="ratio",
            why="5 % of the time: nobody rebuilds a loop for less",
        )
        for name in _GPUS
    ),
    predict=lambda: {
        f"colocated over split cycle, {name}": best_split(
            _ROLLOUT_S, train_s=_TRAIN_S, latency_s=latency
        ).gain
        for name, (latency, *_) in _GPUS.items()
    },
    measure=lambda _: {
        f"colocated over split cycle, {name}": _gain(*setting) for name, setting in _GPUS.items()
    },
    how_to_read="Fixed lengths; rollout takes 3 s and training 1 s on all GPUs, one step off. "
    "Theory splits GPUs into real shares, the simulator into whole ones.",
)

CLAIMS = (_P12, _C15)
