"""A grid of scenarios: expand it, run what is missing, one row a point.

A point is a scenario with some dotted keys changed, under one seed. Its id comes from the settings
that can change a number (with the content of the files that they name, not where these lie) and
the seed alone, so a rerun computes only what is missing, and an edited base computes everything
again. Points share the draws of equal (seed, replication): common random numbers.
"""

import hashlib
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from joblib import Parallel, delayed, parallel_config
from pydantic import Field, model_validator

from dapolab import __version__
from dapolab.metrics import STEP_METRICS
from dapolab.scenario import Config, ConfigError, Scenario, check, load, read_toml
from dapolab.sim.run import simulate
from dapolab.store import ShardWriter, read_shards

TOTALS = ("time/step_seconds", "time/gpu_seconds", "rollout/completion_tokens")
_WORDS = ("name", "description", "source", "assumptions", "alternatives")
"""Settings of a scenario that change no number of its own policy."""


class Sweep(Config):
    """A sweep file: base scenario, grid of dotted keys, seeds."""

    name: str = Field("sweep", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    base: str = Field(description="scenario file, relative to this file")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), min_length=1)
    fixed: dict[str, Any] = Field({}, description="dotted keys laid over the base")
    grid: dict[str, tuple[Any, ...]] = Field({}, description="dotted keys and their values")

    @model_validator(mode="after")
    def _has_values(self) -> "Sweep":
        if not self.grid:
            raise ValueError(
                '[grid] is empty: name a setting and its values, "run.steps" = [5, 10]'
            )
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
    """What a call did.

    Attributes
    ----------
    n_points, n_computed, n_skipped : counts; computed and skipped (there already) make up points.
    seconds : wall clock of the call.
    table : one row a point in grid order: id, seed, error, ``set/KEY`` for each key of the grid,
        mean and standard error of every metric; failed points with their error and no metrics.
    failures : one line a failed point, whenever it was computed.
    """

    n_points: int
    n_computed: int
    n_skipped: int
    seconds: float
    table: pd.DataFrame
    failures: tuple[str, ...]


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file; ConfigError where it cannot be used."""
    return check(Sweep, read_toml(path), where=str(path))


def expand(sweep: Sweep, *, folder: Path, first_seed: int = 0) -> list[Point]:
    """Return the points in grid order, every scenario checked before any is run.

    Parameters
    ----------
    folder : what the base and the files in fixed and grid are relative to.
    first_seed : added to the file's seeds.

    Raises
    ------
    ConfigError
        A key that no scenario has, or a value out of range, naming the point.
    """
    points: dict[str, Point] = {}
    for values in itertools.product(*sweep.grid.values()):
        changed = dict(zip(sweep.grid, values, strict=True))
        try:
            scenario = load(folder / sweep.base, {**sweep.fixed, **changed}, folder=folder)
        except ConfigError as error:
            raise ConfigError(f"{error} (at {settings_text(changed)})") from None
        for seed in sweep.seeds:
            point = Point(
                identity(scenario, seed + first_seed), changed, scenario, seed + first_seed
            )
            points.setdefault(point.id, point)
    return list(points.values())


def settings_text(changed: Mapping[str, Any]) -> str:
    """Return changed settings as one reads them: key=value, key=value."""
    shown = {key: "none" if value is None else value for key, value in changed.items()}
    return ", ".join(f"{key}={value}" for key, value in shown.items())


def identity(scenario: Scenario, seed: int) -> str:
    """Return 16 hex digits of everything that can change the point's numbers.

    Names, descriptions and sources do not; files count by their content, not by their path.

    Raises
    ------
    ConfigError
        A file that the workload names cannot be read.
    """
    settings = scenario.model_dump(mode="json", exclude=set(_WORDS))
    settings["workload"].pop("source", None)
    for key in ("file", "draws"):
        if isinstance(name := settings["workload"].get(key), str):
            settings["workload"][key] = _digest(Path(name))
    text = json.dumps([settings, seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def run_point(point: Point) -> dict[str, Any]:
    """Return a point's row: id, seed, settings, mean metrics over replications, totals.

    Whatever goes wrong is the row's ``error``: one bad point does not end a long sweep. A
    ``defect`` is an error of the program or the machine, not of the point: a rerun tries it again.
    """
    row: dict[str, Any] = {
        "id": point.id,
        "seed": point.seed,
        "version": __version__,
        "settings": json.dumps(point.changed, sort_keys=True, default=str),
        "error": None,
        "defect": False,
    }
    started = time.perf_counter()
    try:
        row |= _measure(point)
    except ConfigError as error:
        row["error"] = str(error)
    except Exception as error:  # a defect, or memory: the other points are still worth having
        row |= {"error": f"{type(error).__name__}: {error}", "defect": True}
    row["seconds"] = time.perf_counter() - started
    return row


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
    names = [metric.name for metric in STEP_METRICS]
    steps = pd.concat([run.steps[names].assign(replication=r) for r, run in enumerate(runs)])
    per_replication = steps.groupby("replication").mean()
    for metric in STEP_METRICS:
        values = per_replication[metric.name].dropna()
        if len(values):
            row[metric.name] = float(values.mean())
        if len(values) > 1:
            row[f"{metric.name}/se"] = float(values.std(ddof=1) / len(values) ** 0.5)
    # as in compare: a trained group without signal (policy none) pays for nothing
    with_signal = float(steps["train/mixed_groups"].sum())
    if with_signal:
        for name in TOTALS:
            cost = float(steps[name].sum()) / with_signal
            row[f"per_trained_group/{name.partition('/')[2]}"] = cost
    return row


def plan(points: Sequence[Point], folder: Path) -> list[Point]:
    """Return the points that ``folder`` does not hold yet; one with a defect counts as missing."""
    rows = _committed(folder)
    have = set(rows.loc[~rows["defect"].astype(bool), "id"])
    return [point for point in points if point.id not in have]


def _committed(folder: Path) -> pd.DataFrame:
    table = read_shards(folder, key="id").table
    return table if len(table) else pd.DataFrame({"id": [], "defect": [], "row": []})


def _run_and_commit(point: Point, folder: Path) -> None:
    """Worker side: measure one point and commit its row before saying so."""
    row = run_point(point)
    # One shard a point under the point's own name: a retry replaces it, two sweeps may meet. The
    # row is one cell of JSON, because a hundred Parquet columns for one row cost 5 ms to write.
    cells = {"id": point.id, "defect": row["defect"], "row": json.dumps(row)}
    with ShardWriter(folder, worker=point.id) as writer:
        writer.append(cells)


def run_sweep(
    points: Sequence[Point],
    folder: Path,
    missing: Sequence[Point] | None = None,
    *,
    engine: str = "local",
    n_jobs: int | None = None,
    on_done: Callable[[], None] | None = None,
) -> Swept:
    """Run the points that ``folder`` does not hold yet and return the whole table.

    ``engine`` "local" uses processes of this machine, "ray" joblib's Ray backend: the same call on
    a cluster. A point's row is committed by the worker as soon as it is done: whatever ends the
    sweep, even kill -9, costs no more than the points in work.

    Parameters
    ----------
    missing : the points to run, from ``plan``; absent: all that the folder does not hold.
    on_done : called after each point, failed ones included.

    Raises
    ------
    ConfigError
        ``engine`` "ray" without Ray.
    """
    started = time.perf_counter()
    todo = plan(points, folder) if missing is None else list(missing)
    for _ in _in_parallel(todo, folder, engine=engine, n_jobs=n_jobs or -1):
        if on_done:
            on_done()
    table = _assemble(points, _committed(folder))
    return Swept(
        n_points=len(points),
        n_computed=len(todo),
        n_skipped=len(points) - len(todo),
        seconds=time.perf_counter() - started,
        table=table,
        failures=tuple(
            f"{settings_text(point.changed)}, seed {point.seed}: {error}"
            for point, error in zip(points, table["error"], strict=True)
            if isinstance(error, str)
        ),
    )


def _assemble(points: Sequence[Point], rows: pd.DataFrame) -> pd.DataFrame:
    """Return the points' rows in grid order, their changed settings as columns ``set/KEY``."""
    keys = list(dict.fromkeys(key for point in points for key in point.changed))
    settings = pd.DataFrame({"id": [point.id for point in points]})
    for key in keys:
        values = [point.changed.get(key) for point in points]
        plain = {type(value) for value in values} <= {int, float} or (
            len({type(value) for value in values}) == 1 and isinstance(values[0], bool | str)
        )
        # a column of several kinds of value (2, "none", a table) is text
        settings[f"set/{key}"] = (
            values if plain else ["none" if value is None else str(value) for value in values]
        )
    wanted = rows.loc[rows["id"].isin(settings["id"]), "row"]
    metrics = pd.DataFrame([json.loads(row) for row in wanted]).drop(columns="settings")
    return settings.merge(metrics, on="id", how="left", validate="one_to_one")


def _in_parallel(
    points: Sequence[Point], folder: Path, *, engine: str, n_jobs: int
) -> Iterator[None]:
    backend = _backend(engine)
    rest = list(points)
    if engine == "local" and rest:
        # the first one here: workers then find the compiled kernel in its cache
        _run_and_commit(rest.pop(0), folder)
        yield
        while n_jobs == 1 and rest:
            _run_and_commit(rest.pop(0), folder)
            yield
    if not rest:
        return
    options = {"initializer": _leave_interrupts_to_the_parent} if engine == "local" else {}
    with parallel_config(backend=backend, n_jobs=n_jobs, **options):
        work = Parallel(return_as="generator_unordered", batch_size=1)
        yield from work(delayed(_run_and_commit)(point, folder) for point in rest)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _backend(engine: str) -> str:
    if engine == "local":
        return "loky"
    try:
        from ray.util.joblib import register_ray
    except ImportError:
        raise ConfigError("--engine ray needs Ray: pip install 'dapolab[ray]'") from None
    register_ray()
    return "ray"
