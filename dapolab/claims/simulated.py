"""The simulator as an instrument: the seed configuration, B = 4 groups of G = 8, many replications.

The clock counts tokens: one decoding iteration costs one second, unless load has a price. Runs that
several claims share are made once.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dapolab.claims.claim import Draws, Totals
from dapolab.scenario import build
from dapolab.sim.run import simulate

Floats = npt.NDArray[np.float64]

GROUPS, GROUP_SIZE, CAP_TOKENS = 4, 8, 8192
STEPS = 100
REPEAT = f"replication of {STEPS} steps"
_STEP_COLUMNS = [
    "rollout/waves",
    "rollout/effective_groups",
    "rollout/effective_group_ratio",
    "rollout/unbiased_effective_ratio",
    "rollout/oversample_ratio",
    "rollout/candidate_groups",
    "rollout/completion_tokens",
    "train/update_skipped",
    "train/mixed_groups",
    "time/rollout_seconds",
    "reward/trained_accuracy",
    "bias/pass_rate_candidates",
    "bias/pass_rate_trained",
    "bias/length_trained",
    "bias/length_effective",
]
_WAVE_COLUMNS = ["step", "wave", "n_groups", "wave_s"]


@dataclass(frozen=True)
class Setup:
    """One scenario; ``p_mixed`` or else a Beta law of pass rates or one fixed pass rate."""

    p_mixed: float | None = None
    beta: tuple[float, float] | None = None
    pass_rate: float | None = None
    multiplier: int | None = 2
    collector: str = "exact_refill"
    log_median: float = 7.0
    """μ of the lognormal(μ, .9) lengths of theory.md B3 and B5."""
    cap_tokens: int = CAP_TOKENS
    load_s: float = 0.0
    """b of a + b·n, in units of a."""
    slots: int | None = None
    """Groups in flight of the collector ``streaming``."""
    eta: float | None = None
    """Launched over wanted groups of the collector ``over_provision``."""


@dataclass(frozen=True)
class Replication:
    """What is kept of one run: the columns that claims read."""

    steps: pd.DataFrame
    waves: pd.DataFrame


def replications(setup: Setup, draws: Draws) -> tuple[Replication, ...]:
    """Return independent runs of ``STEPS`` steps."""
    return tuple(_replication(setup, draws.seed, k) for k in range(draws.n))


@functools.lru_cache(maxsize=4096)
def _replication(setup: Setup, seed: int, number: int) -> Replication:
    run = simulate(build(_table(setup)), seed=seed, replication=number, keep_groups=False)
    waves = run.waves[_WAVE_COLUMNS] if len(run.waves) else run.waves
    return Replication(run.steps[_STEP_COLUMNS].copy(), waves.copy())


def per_replication(setup: Setup, draws: Draws, value: Callable[[pd.DataFrame], float]) -> Floats:
    """Return ``value`` of each replication's step table, (n,)."""
    return np.array([float(value(run.steps)) for run in replications(setup, draws)])


def mean_of(setup: Setup, draws: Draws, column: str) -> Floats:
    """Return each replication's mean over steps, (n,)."""
    return per_replication(setup, draws, lambda steps: steps[column].mean())


def share_of(
    setup: Setup, draws: Draws, event: Callable[[pd.DataFrame], "pd.Series[bool]"]
) -> Floats:
    """Return each replication's share of steps with ``event``, (n,)."""
    return per_replication(setup, draws, lambda steps: event(steps).mean())


def seconds_by_wave(setup: Setup, draws: Draws) -> Totals:
    """Return each replication's rollout seconds over those of its first waves."""
    waves = [run.waves for run in replications(setup, draws)]
    first = [w.loc[w["wave"] == 0, "wave_s"].sum() for w in waves]
    return Totals(np.array([w["wave_s"].sum() for w in waves]), np.array(first))


def _table(setup: Setup) -> dict[str, Any]:
    collector: dict[str, Any] = {"kind": setup.collector}
    if setup.collector == "exact_refill":
        # an absent multiplier means no cap
        collector["max_candidate_multiplier"] = setup.multiplier
    if setup.slots is not None:
        collector["slots"] = setup.slots
    if setup.eta is not None:
        collector["eta"] = setup.eta
    if setup.beta is not None:
        pass_rate: dict[str, Any] = {"kind": "beta", "a": setup.beta[0], "b": setup.beta[1]}
    elif setup.pass_rate is not None:
        pass_rate = {"kind": "fixed", "p": setup.pass_rate}
    else:
        pass_rate = {"kind": "p_mixed", "p_mixed": setup.p_mixed}
    lengths = {
        "kind": "lognormal",
        "median_tokens": float(np.exp(setup.log_median)),
        "sigma": 0.9,
    }
    return {
        "workload": {
            "kind": "independent",
            "lengths": lengths,
            "pass_rate": pass_rate,
            "prompts": {"count": 100_000},
        },
        "rollout": {
            "groups_per_step": GROUPS,
            "group_size": GROUP_SIZE,
            "cap_tokens": setup.cap_tokens,
        },
        "collector": collector,
        "hardware": {
            "law": {"kind": "affine", "a_s": 1.0, "b_s": setup.load_s, "c_s": 0.0},
            "prefill": False,
            "slots": 4096,
        },
        "run": {"steps": STEPS},
    }
