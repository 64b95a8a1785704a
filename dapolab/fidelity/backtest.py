"""Calibrate on one run, change settings, predict another, compare with what happened.

Law, learner constants and workload come from LOG_A; collector, batch and engine settings from
SCENARIO_B. A learner constant that SCENARIO_B sets to 0 stays 0: that pass does not exist there.
Every replication draws law, learner, workload and prompt share anew from what LOG_A leaves open, so
an interval holds chance and ignorance both; the part of chance alone is kept beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from dapolab.errors import ConfigError
from dapolab.fidelity.calibrate import Calibration, law_table, of_steps
from dapolab.fidelity.steps import (
    MAX_TOKENS,
    MEAN_TOKENS,
    column,
    polled_seconds,
    trained_tokens,
)
from dapolab.rng import stream
from dapolab.scenario import Hardware, Learner, Rollout, Scenario, build
from dapolab.sim.hardware import Law
from dapolab.sim.run import simulate

Floats = NDArray[np.float64]
LEVEL = 0.90


@dataclass(frozen=True)
class Quantity:
    """A compared quantity: its name and unit, its column in a simulated and in a logged step."""

    name: str
    unit: str
    simulated: str
    logged: tuple[str, ...]


QUANTITIES = (
    Quantity("waves", "waves", "rollout/waves", ("rollout/waves",)),
    Quantity("rollout seconds", "s", "time/rollout_seconds", ("time/rollout_seconds",)),
    Quantity("step seconds", "s", "time/step_seconds", ("time/step_seconds",)),
    Quantity("update seconds", "s", "time/update_seconds", ("time/update_seconds",)),
    Quantity("trained tokens", "tokens", "trained/total_tokens", ("trained/total_tokens",)),
    Quantity("trained length", "tokens", "trained/mean", MEAN_TOKENS[::-1]),
    Quantity("longest trained", "tokens", "trained/max", MAX_TOKENS[::-1]),
    Quantity(
        "generated tokens", "tokens", "rollout/completion_tokens", ("rollout/completion_tokens",)
    ),
)


@dataclass(frozen=True)
class Row:
    """One compared quantity, a mean over the steps of the run.

    ``low`` … ``high`` is the 90 % prediction interval, ``chance_low`` … ``chance_high`` the part
    that is there with all parameters known. ``step_coverage`` is the share of the logged steps
    inside the 90 % interval of a single step, ``n_steps`` their number.
    """

    quantity: str
    unit: str
    predicted: float
    low: float
    high: float
    chance_low: float
    chance_high: float
    measured: float | None = None
    step_coverage: float | None = None
    n_steps: int = 0

    @property
    def error_share(self) -> float | None:
        """predicted/measured − 1, where measured."""
        return None if not self.measured else self.predicted / self.measured - 1

    @property
    def covered(self) -> bool | None:
        """Whether the measured mean lies in the interval."""
        return None if self.measured is None else self.low <= self.measured <= self.high


@dataclass(frozen=True, eq=False)
class Backtest:
    """A prediction of one run from another, judged where the other was measured.

    ``steps`` are the simulated steps with a column ``replication``.
    """

    rows: tuple[Row, ...]
    calibration: Calibration
    steps: pd.DataFrame
    n_steps: int
    notes: tuple[str, ...]

    def coverage(self) -> tuple[int, int]:
        """Return how many measured run means lie in their intervals, and of how many."""
        judged = [row.covered for row in self.rows if row.covered is not None]
        return int(sum(judged)), len(judged)

    def step_coverage(self) -> tuple[float, int]:
        """Return the share of measured single-step values inside theirs, and of how many."""
        rows = [row for row in self.rows if row.step_coverage is not None]
        n = sum(row.n_steps for row in rows)
        inside = sum(float(row.step_coverage or 0.0) * row.n_steps for row in rows)
        return (inside / n if n else float("nan")), n

    def to_json(self) -> dict[str, Any]:
        """Return DESIGN.md §8's body of ``backtest``; what was not measured is null."""
        inside, judged = self.coverage()
        share, n = self.step_coverage()
        return {
            "level": LEVEL,
            "rows": [
                {
                    "quantity": row.quantity,
                    "unit": row.unit,
                    "predicted": row.predicted,
                    "low": row.low,
                    "high": row.high,
                    "measured": row.measured,
                    "error_share": row.error_share,
                    "chance": {"low": row.chance_low, "high": row.chance_high},
                    "step_coverage": row.step_coverage,
                    "n_steps": row.n_steps,
                }
                for row in self.rows
            ],
            "coverage": {"inside": inside, "of": judged},
            "step_coverage": {"share": share if n else None, "of": n},
            "not_identified": [
                {"name": name, "reason": why} for name, why in self.calibration.not_identified
            ],
            "notes": list(self.notes),
        }


def backtest(
    log_a: pd.DataFrame,
    scenario_b: Scenario,
    *,
    against: pd.DataFrame | None = None,
    hardware_a: Hardware | None = None,
    rollout_a: Rollout | None = None,
    polled_s: float = 0.0,
    fixed: Mapping[str, float] | None = None,
    physics: Law | None = None,
    replications: int = 40,
    seed: int = 0,
) -> Backtest:
    """Predict ``scenario_b`` from the steps of ``log_a``.

    Parameters
    ----------
    log_a, against : rows of one run in a step table.
    hardware_a, rollout_a : of LOG_A where they differ from those of ``scenario_b``.
    polled_s : both runs see ends up to so much too late; 0: as LOG_A tells, where it does.

    Raises
    ------
    ConfigError
        LOG_A gives no law or no workload; SCENARIO_B ends with an error in every replication.
    """
    polled_s = polled_s or polled_seconds(log_a)
    calibration = of_steps(
        log_a,
        hardware=hardware_a or scenario_b.hardware,
        rollout=rollout_a or scenario_b.rollout,
        fixed=fixed or {},
        physics=physics,
        polled_s=polled_s,
        updates_per_step=scenario_b.learner.updates_per_step,
        source="calibrated",
    )
    if calibration.step_workload is None:
        raise ConfigError("; ".join(calibration.notes) or "the log gives no workload")
    n_steps = scenario_b.run.steps if against is None else len(against)
    notes = list(calibration.notes)
    if calibration.learner is not None and calibration.learner.learner.validation_s:
        notes.append("validation is left out of predicted steps")
    drawn = _replications(
        calibration, scenario_b, n_steps, polled_s, replications=replications, seed=seed, draws=True
    )
    fixed_runs = _replications(
        calibration,
        scenario_b,
        n_steps,
        polled_s,
        replications=replications,
        seed=seed,
        draws=False,
    )
    rows = _rows(drawn, fixed_runs, against, scenario_b.rollout)
    return Backtest(tuple(rows), calibration, drawn, n_steps, tuple(notes))


def scenario_of(
    calibration: Calibration,
    scenario_b: Scenario,
    *,
    n_steps: int,
    polled_s: float,
    rng: np.random.Generator | None = None,
) -> Scenario:
    """Return SCENARIO_B on the calibrated system; with ``rng`` on one drawn from what is open."""
    found, learner_fit = calibration.step_workload, calibration.learner
    assert found is not None
    assert learner_fit is not None
    assert calibration.fit is not None
    if rng is None:
        law, overhead = calibration.law, calibration.call_overhead_s
        workload, learner = found.workload, learner_fit.learner
    else:
        law, overhead = calibration.fit.draw(rng)
        workload, learner = found.draw(rng), learner_fit.draw(rng)
    prompts = scenario_b.workload.prompts.model_copy(
        update={"tokens_median": found.workload.prompts.tokens_median}
    )
    drift = getattr(scenario_b.workload, "drift", workload.drift)
    hardware = scenario_b.hardware.model_dump() | {
        "law": law_table(law),
        "call_overhead_s": overhead,
        "poll_s": polled_s or scenario_b.hardware.poll_s,
    }
    data = scenario_b.model_dump() | {
        "workload": workload.model_copy(update={"prompts": prompts, "drift": drift}).model_dump(),
        "hardware": hardware,
        "learner": _learner(learner, scenario_b.learner).model_dump(),
        "run": scenario_b.run.model_dump() | {"steps": n_steps},
    }
    return build(data, where="backtest")


def _learner(calibrated: Learner, stated: Learner) -> Learner:
    """Return SCENARIO_B's learner with the constants of LOG_A; what it sets to 0 stays 0."""
    constants = [name for name in Learner.model_fields if name.endswith(("_s", "_s_per_token"))]
    constants.append("reward_s_per_response")
    kept = {n for n in constants if n in stated.model_fields_set and getattr(stated, n) == 0}
    update = {name: getattr(calibrated, name) for name in constants if name not in kept}
    return stated.model_copy(update=update | {"validation_s": 0.0})


def _replications(
    calibration: Calibration,
    scenario_b: Scenario,
    n_steps: int,
    polled_s: float,
    *,
    replications: int,
    seed: int,
    draws: bool,
) -> pd.DataFrame:
    tables = []
    for replication in range(replications):
        rng = stream(seed, "backtest", replication)
        one = scenario_of(
            calibration,
            scenario_b,
            n_steps=n_steps,
            polled_s=polled_s,
            rng=rng if draws else None,
        )
        steps = simulate(one, seed=seed, replication=replication, keep_groups=True)
        if not len(steps.steps):
            continue
        table = _trained(steps.steps, steps.groups, one)
        _add_noise(table, calibration, stream(seed, "noise", replication))
        tables.append(table.assign(replication=replication))
    if not tables:
        raise ConfigError("the scenario ends with an error before its first step, every time")
    return pd.concat(tables, ignore_index=True)


def _trained(steps: pd.DataFrame, groups: pd.DataFrame, scenario: Scenario) -> pd.DataFrame:
    """Add what a log tells of the trained batch: tokens, mean and longest response."""
    size = scenario.rollout.group_size
    trained = groups[groups["status"] == "trained"].groupby("step")
    table = steps.copy()
    n = table["rollout/effective_groups"] * size
    prompt = scenario.workload.prompts.tokens_median
    table["trained/total_tokens"] = table["rollout/train_completion_tokens"] + n * prompt
    table["trained/mean"] = table["rollout/train_completion_tokens"] / n.where(n > 0)
    table["trained/max"] = table["step"].map(trained["n_tokens_max"].max())
    return table


def _add_noise(table: pd.DataFrame, calibration: Calibration, rng: np.random.Generator) -> None:
    """Let rollouts and updates scatter as LOG_A's did around their fits."""
    share = calibration.residuals["sigma_share"]
    noise = table["time/rollout_seconds"] * share * rng.standard_normal(len(table))
    table["time/rollout_seconds"] += noise
    extra = noise
    if calibration.learner is not None:
        spread = calibration.learner.noise_share.get("update_s_per_token", 0.0)
        more = table["time/update_seconds"] * spread * rng.standard_normal(len(table))
        table["time/update_seconds"] += more
        extra = extra + more
    table["time/step_seconds"] += extra


def _rows(
    drawn: pd.DataFrame, known: pd.DataFrame, against: pd.DataFrame | None, rollout: Rollout
) -> list[Row]:
    rows = []
    for quantity in QUANTITIES:
        if quantity.simulated not in drawn or not drawn[quantity.simulated].notna().any():
            continue
        means = drawn.groupby("replication")[quantity.simulated].mean().to_numpy(float)
        chance = known.groupby("replication")[quantity.simulated].mean().to_numpy(float)
        predicted, low, high = _interval(means)
        _, chance_low, chance_high = _interval(chance)
        row = Row(quantity.name, quantity.unit, predicted, low, high, chance_low, chance_high)
        rows.append(row if against is None else _judged(row, quantity, drawn, against, rollout))
    return rows


def _interval(means: Floats) -> tuple[float, float, float]:
    """Return the mean and the 90 % prediction interval of one more run, not below 0."""
    n, mean = len(means), float(means.mean())
    if n < 2:
        return mean, mean, mean
    factor = float(special.stdtrit(n - 1, 0.5 + LEVEL / 2))
    half = factor * float(means.std(ddof=1)) * np.sqrt(1 + 1 / n)
    return mean, float(max(mean - half, 0.0)), float(mean + half)


def _judged(
    row: Row, quantity: Quantity, drawn: pd.DataFrame, against: pd.DataFrame, rollout: Rollout
) -> Row:
    measured = column(against, quantity.logged)
    if quantity.name == "trained tokens":
        measured = trained_tokens(against, rollout)
    known = measured[np.isfinite(measured)]
    if not len(known):
        return row
    values = drawn[quantity.simulated].dropna().to_numpy(float)
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    inside = float(((known >= low) & (known <= high)).mean())
    return replace(row, measured=float(known.mean()), step_coverage=inside, n_steps=len(known))


def split_in_time(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the first and the second half of a run's steps."""
    middle = len(frame) // 2
    return frame.iloc[:middle].reset_index(drop=True), frame.iloc[middle:].reset_index(drop=True)


def quantity_names() -> Sequence[str]:
    """Return the names of what is compared, in order."""
    return [quantity.name for quantity in QUANTITIES]
