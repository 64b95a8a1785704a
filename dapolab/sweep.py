"""A grid of scenarios: expand it, run what is missing, one row a point.

A point is a scenario with some dotted keys changed, under one seed. Its id comes from the resolved
configuration and the seed alone, so a rerun computes only what is missing, and an edited base file
computes everything again. Points share the draws of equal (seed, replication): common random
numbers.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from joblib import Parallel, delayed, parallel_config
from pydantic import Field, model_validator

from dapolab.metrics import STEP_METRICS
from dapolab.scenario import Config, ConfigError, Scenario, check, load, read_toml
from dapolab.sim.run import simulate
from dapolab.store import ShardWriter, read_shards

TOTALS = ("time/step_seconds", "time/gpu_seconds", "rollout/completion_tokens")


class Sweep(Config):
    """A sweep file: base scenario, grid of dotted keys, seeds."""

    name: str = Field("sweep", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    base: str = Field(description="scenario file, relative to this file")
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    fixed: dict[str, Any] = Field({}, description="dotted keys laid over the base")
    grid: dict[str, tuple[Any, ...]] = Field({}, description="dotted keys and their values")

    @model_validator(mode="after")
    def _has_values(self) -> "Sweep":
        for key, values in self.grid.items():
            if not values:
                raise ValueError(f"grid.{key} has no value")
        return self


@dataclass(frozen=True)
class Point:
    """One scenario of a sweep: its id, what was changed, and under which seed."""

    id: str
    changed: Mapping[str, Any]
    scenario: Scenario
    seed: int


@dataclass(frozen=True)
class Swept:
    """What a call did; ``table`` has one row a point, failed ones with their error."""

    n_points: int
    n_computed: int
    n_skipped: int
    n_failed: int
    seconds: float
    table: pd.DataFrame


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file; ConfigError where it cannot be used."""
    return check(Sweep, read_toml(path), where=str(path))


def expand(sweep: Sweep, *, folder: Path) -> list[Point]:
    """Return the points in grid order, every scenario checked before any is run.

    Raises
    ------
    ConfigError
        A key that no scenario has, or a value out of range, naming the point.
    """
    points = []
    for values in itertools.product(*sweep.grid.values()):
        changed = dict(zip(sweep.grid, values, strict=True))
        scenario = load(folder / sweep.base, {**sweep.fixed, **changed})
        for seed in sweep.seeds:
            key = f"{scenario.fingerprint()}-{seed}"
            identity = hashlib.sha256(key.encode()).hexdigest()[:16]
            points.append(Point(identity, changed, scenario, seed))
    return points


def run_point(point: Point) -> dict[str, Any]:
    """Return a point's row: keys, changed settings, mean metrics over replications, totals."""
    row: dict[str, Any] = {"id": point.id, "seed": point.seed, "error": None}
    row |= {f"set/{key}": _scalar(value) for key, value in point.changed.items()}
    started = time.perf_counter()
    try:
        row |= _measure(point)
    except ConfigError as error:
        row["error"] = str(error)
    row["seconds"] = time.perf_counter() - started
    return row


def _scalar(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool) else str(value)


def _measure(point: Point) -> dict[str, Any]:
    runs = [
        simulate(point.scenario, seed=point.seed, replication=r, keep_groups=False)
        for r in range(point.scenario.run.replications)
    ]
    failed = [run for run in runs if run.failed]
    row: dict[str, Any] = {
        "policy": point.scenario.collector.kind,
        "replications": len(runs),
        "p_fails": len(failed) / len(runs),
        "error": failed[0].ended if len(failed) == len(runs) else None,
    }
    steps = pd.concat([run.steps.assign(replication=r) for r, run in enumerate(runs)])
    per_replication = steps.groupby("replication").mean()
    for metric in STEP_METRICS:
        values = per_replication[metric.name].dropna()
        if len(values):
            row[metric.name] = float(values.mean())
            row[f"{metric.name}/se"] = float(values.std(ddof=1) / len(values) ** 0.5)
    trained = float(steps["rollout/effective_groups"].sum())
    if trained:
        for name in TOTALS:
            row[f"per_trained_group/{name.partition('/')[2]}"] = float(steps[name].sum()) / trained
    return row


def _run_and_commit(point: Point, folder: Path) -> bool:
    """Worker side: measure one point and commit its row before saying so."""
    row = run_point(point)
    with ShardWriter(folder, worker=f"{point.id}") as writer:
        writer.append(row)
    return row["error"] is not None


def run_sweep(
    points: list[Point],
    folder: Path,
    *,
    engine: str = "local",
    n_jobs: int | None = None,
    on_done: Callable[[], None] | None = None,
) -> Swept:
    """Run the points that ``folder`` does not hold yet and return the whole table.

    ``engine`` "local" uses processes of this machine, "ray" joblib's Ray backend: the same call on
    a cluster. A point's row is committed by the worker as soon as it is done.
    """
    started = time.perf_counter()
    have = _finished(folder)
    missing = [point for point in points if point.id not in have]
    n_failed = 0
    with parallel_config(backend=_backend(engine), n_jobs=n_jobs or -1):
        work = Parallel(return_as="generator_unordered", batch_size=1)
        for failed in work(delayed(_run_and_commit)(point, folder) for point in missing):
            n_failed += failed
            if on_done:
                on_done()
    table = read_shards(folder).table
    wanted = [point.id for point in points]
    table = table[table["id"].isin(wanted)].drop_duplicates("id", keep="last")
    table = table.set_index("id").reindex(wanted).reset_index()
    return Swept(
        n_points=len(points),
        n_computed=len(missing),
        n_skipped=len(points) - len(missing),
        n_failed=n_failed,
        seconds=time.perf_counter() - started,
        table=table,
    )


def _finished(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    table = read_shards(folder).table
    return set(table["id"]) if "id" in table else set()


def _backend(engine: str) -> str:
    if engine == "local":
        return "loky"
    try:
        from ray.util.joblib import register_ray
    except ImportError:
        raise ConfigError("--engine ray needs Ray: pip install 'dapolab[ray]'") from None
    register_ray()
    return "ray"
