"""The one table that every log becomes: one row a training step, metrics under dapolab's names.

A source key becomes a column of ``dapolab.metrics`` only where the two mean the same. What a log
can tell and the simulator does not is in ``LOG_METRICS``. Any other number stays under
``extra/KEY``. What a key covers is said in the notes; nothing is filled in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from dapolab.errors import ConfigError
from dapolab.metrics import BY_NAME, Metric

EXTRA = "extra/"
ID_COLUMNS = ("run", "step")

LOG_METRICS: tuple[Metric, ...] = (
    # the responses in the trained batch; all candidates too where nothing is filtered
    Metric("trained/mean_completion_tokens", "tokens", "mean length of trained responses"),
    Metric("trained/max_completion_tokens", "tokens", "longest trained response"),
    Metric("trained/min_completion_tokens", "tokens", "shortest trained response"),
    Metric("trained/truncated_share", "share", "trained responses cut at the cap"),
    Metric("trained/mean_prompt_tokens", "tokens", "mean prompt length, one count a response"),
    Metric("trained/total_tokens", "tokens", "prompt and response tokens of the trained batch"),
    Metric("trained/responses", "responses", "responses in the trained batch"),
    Metric("trained/zero_spread_share", "share", "trained groups whose rewards are all equal"),
    Metric("reward/trained_mean", "reward", "mean reward of the trained batch, log's own scale"),
    # all candidates, where the log has them
    Metric("reward/candidate_mean", "reward", "mean reward of all candidates, log's own scale"),
    Metric("rollout/candidate_responses", "responses", "responses sampled, kept or not"),
    Metric("rollout/min_completion_tokens", "tokens", "shortest finished candidate"),
    # times
    Metric("time/advantage_seconds", "s", "advantages on the driver"),
    Metric("time/values_seconds", "s", "values of a critic"),
    Metric("time/critic_update_seconds", "s", "update of a critic"),
    Metric("time/request_mean_seconds", "s", "mean seconds of a response, last wave only"),
    Metric("time/request_max_seconds", "s", "slowest response, last wave only"),
    Metric("time/request_min_seconds", "s", "fastest response, last wave only"),
    Metric("log/steps", "steps", "training steps that the row is the mean of"),
    # the update
    Metric("train/entropy", "nats", "entropy, aggregated as the log's framework does"),
    Metric("train/loss", "loss", "policy loss as the framework reports it"),
    Metric("clip/share", "share", "tokens clipped on either side"),
    Metric("train/throughput", "tok/s/GPU", "tokens a second and GPU, by the log's own rule"),
)

BY_COLUMN: dict[str, Metric] = BY_NAME | {metric.name: metric for metric in LOG_METRICS}


@dataclass(frozen=True, eq=False)
class StepTable:
    """Training steps of one or more real runs, checked.

    Attributes
    ----------
    frame : one row a (run, step), sorted by run in file order, then step. ``run`` is text,
        ``step`` int64, every other column float64 with NaN where the log is silent. Columns are
        keys of ``BY_COLUMN`` or ``extra/KEY``.
    format : how the log was written: console, jsonl, tensorboard, trainer_state, table.
    framework : whose keys they were.
    sources : column to the log's own key.
    notes : what keys cover and do not, and what was repaired or left out; one line each.
    """

    frame: pd.DataFrame
    format: str = ""
    framework: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs, in the order of the file."""
        return tuple(str(name) for name in self.frame["run"].unique())

    def one_run(self, run: str | None = None) -> pd.DataFrame:
        """Return the rows of one run; without a name, of the only one.

        Raises
        ------
        ConfigError
            An unknown run, or several and no name.
        """
        runs = self.runs
        if run is None and len(runs) == 1:
            run = runs[0]
        if run is None:
            raise ConfigError(f"the log holds {len(runs)} runs: {listed(runs)}; choose with --run")
        if run not in runs:
            raise ConfigError(f"the log has no run {run!r}; it holds {listed(runs)}")
        return self.frame[self.frame["run"] == run].reset_index(drop=True)


def finish(
    frame: pd.DataFrame,
    *,
    where: str,
    format: str = "",
    framework: str = "",
    sources: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> StepTable:
    """Order, check and freeze a table of steps. ``frame`` is not changed.

    Raises
    ------
    ConfigError
        No rows, an unknown column, a column that is no number, a step that is negative or twice
        in a run.
    """
    if frame.empty:
        raise ConfigError(f"{where}: no training step in it")
    table = frame.reset_index(drop=True)
    for name in ID_COLUMNS:
        if name not in table:
            raise ConfigError(f"{where}: no column {name!r}")
    columns = {
        "run": pd.Series([str(run) for run in table["run"]], dtype="object", index=table.index),
        "step": _steps(table["step"], where=where),
    }
    for name in _ordered(str(column) for column in table.columns):
        columns[name] = _numbers(table[name], name=name, where=where)
    ordered = pd.DataFrame(columns)
    place = {run: index for index, run in enumerate(ordered["run"].unique())}
    ordered = ordered.assign(_place=ordered["run"].map(place))
    ordered = ordered.sort_values(["_place", "step"], kind="stable").drop(columns="_place")
    again = ordered.duplicated(list(ID_COLUMNS))
    if again.any():
        row = ordered[again].iloc[0]
        raise ConfigError(f"{where}: run {row['run']!r} has step {row['step']} twice")
    return StepTable(
        frame=ordered.reset_index(drop=True),
        format=format,
        framework=framework,
        sources=dict(sources or {}),
        notes=tuple(notes),
    )


def listed(names: Sequence[str], *, n_shown: int = 8) -> str:
    """Join names for a message, the first few of many."""
    more = len(names) - n_shown
    return ", ".join(names[:n_shown]) + (f" and {more} more" if more > 0 else "")


def _steps(column: "pd.Series[int]", *, where: str) -> "pd.Series[int]":
    try:
        values = column.to_numpy(dtype="float64")
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: step is not a number in every row") from None
    if not np.isfinite(values).all() or (values != np.floor(values)).any() or (values < 0).any():
        raise ConfigError(f"{where}: step must be a whole number from 0 in every row")
    return pd.Series(values.astype("int64"), index=column.index)


def _ordered(names: Iterable[str]) -> list[str]:
    found = set(names) - set(ID_COLUMNS)
    known = [name for name in BY_COLUMN if name in found]
    return known + sorted(found - set(known))


def _numbers(column: "pd.Series[float]", *, name: str, where: str) -> "pd.Series[float]":
    if name not in BY_COLUMN and not name.startswith(EXTRA):
        raise ConfigError(f"{where}: {name!r} is no metric; other keys are called {EXTRA}KEY")
    try:
        return column.astype("float64")
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: column {name} holds something that is no number") from None
