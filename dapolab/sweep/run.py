"""Run what a folder does not hold yet: joblib here, the same call on a Ray cluster."""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from joblib import Parallel, delayed, effective_n_jobs, parallel_config

from dapolab.processes import in_processes
from dapolab.scenario import ConfigError
from dapolab.store import ShardWriter, read_shards
from dapolab.sweep.expand import Point, settings_text
from dapolab.sweep.point import row_of

_CHUNK_S = 1.0
"""Seconds of work that a worker takes at once: what handing it out costs is shared by them."""
_CHUNK_POINTS = 200


@dataclass(frozen=True)
class Swept:
    """What a call did.

    Attributes
    ----------
    n_points, n_computed, n_skipped, n_left : counts; computed, skipped (there already) and left
        (the time was over) make up points.
    seconds : wall clock of the call.
    efficiency : seconds of the computed points over processes × wall clock: T₁/(n·Tₙ); NaN where
        nothing was computed.
    table : one row a point in order: id, seed, error, ``set/KEY`` for each changed key, mean and
        standard error of every metric; failed points with their error and no metrics, points that
        were left out of time not at all.
    failures : one line a failed point, whenever it was computed.
    """

    n_points: int
    n_computed: int
    n_skipped: int
    n_left: int
    seconds: float
    efficiency: float
    table: pd.DataFrame
    failures: tuple[str, ...]


def plan(points: Sequence[Point], folder: Path) -> list[Point]:
    """Return the points that ``folder`` does not hold yet; one with a defect counts as missing."""
    rows = _committed(folder)
    have = set(rows.loc[~rows["defect"].astype(bool), "id"])
    return [point for point in points if point.id not in have]


def _committed(folder: Path) -> pd.DataFrame:
    """Return one row a point; a defect gives way to the result of a later try."""
    table = read_shards(folder).table
    if not len(table):
        return pd.DataFrame({"id": [], "defect": [], "row": []})
    return table.sort_values("defect", kind="stable").drop_duplicates("id", ignore_index=True)


def _run_and_commit(points: Sequence[Point], folder: Path) -> tuple[int, float]:
    """Worker side: measure points, each row on disk a second later at most; number and seconds."""
    started = time.perf_counter()
    # The row is one cell of JSON: a hundred Parquet columns for a few rows cost 5 ms to write.
    with ShardWriter(folder) as writer:
        for point in points:
            row = row_of(point)
            cells = {"id": point.id, "defect": row["defect"], "row": json.dumps(row)}
            writer.append(cells)
    return len(points), time.perf_counter() - started


def run_sweep(
    points: Sequence[Point],
    folder: Path,
    missing: Sequence[Point] | None = None,
    *,
    engine: str = "local",
    n_jobs: int | None = None,
    max_seconds: float | None = None,
    on_done: Callable[[], None] | None = None,
) -> Swept:
    """Run the points that ``folder`` does not hold yet and return the whole table.

    ``engine`` "local" uses processes of this machine, "ray" joblib's Ray backend: the same call on
    a cluster. Workers commit their rows at least every second: whatever ends the sweep, even
    kill -9, costs no more than a second's points and those in work.

    Parameters
    ----------
    missing : the points to run, from ``plan``; absent: all that the folder does not hold.
    max_seconds : no work is begun after that; what is in work is finished.
    on_done : called after each point, failed ones included.

    Raises
    ------
    ConfigError
        ``engine`` "ray" without Ray.
    OSError
        The folder cannot be written (a full disk); rows committed before are safe.
    """
    started = time.perf_counter()
    todo = plan(points, folder) if missing is None else list(missing)
    n_processes, n_computed, busy_s = n_jobs or -1, 0, 0.0
    end_s = started + max_seconds if max_seconds is not None else float("inf")
    n_workers, backend = 1, _backend(engine)
    if todo:
        with _cluster(backend, n_processes), parallel_config(backend, n_jobs=n_processes):
            n_workers = int(effective_n_jobs(n_processes))
            for n, seconds in _in_parallel(todo, folder, backend, n_workers, end_s):
                n_computed += n
                busy_s += seconds
                if on_done:
                    for _ in range(n):
                        on_done()
    wall_s = time.perf_counter() - started
    table = _assemble(points, _committed(folder))
    changed = {point.id: point for point in points}
    failed = table[table["error"].map(lambda error: isinstance(error, str)).astype(bool)]
    return Swept(
        n_points=len(points),
        n_computed=n_computed,
        n_skipped=len(points) - len(todo),
        n_left=len(todo) - n_computed,
        seconds=time.perf_counter() - started,
        efficiency=busy_s / (wall_s * n_workers) if n_computed else float("nan"),
        table=table,
        failures=tuple(
            f"{settings_text(changed[i].changed)}, seed {changed[i].seed}: {error}"
            for i, error in zip(failed["id"], failed["error"], strict=True)
        ),
    )


def read_table(points: Sequence[Point], folder: Path) -> pd.DataFrame:
    """Return the rows that ``folder`` holds of these points, as ``Swept.table``."""
    return _assemble(points, _committed(folder))


def _assemble(points: Sequence[Point], rows: pd.DataFrame) -> pd.DataFrame:
    """Return the points' rows in order, their changed settings as columns ``set/KEY``."""
    known = set(rows["id"])
    points = [point for point in points if point.id in known]
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
    if not points:
        return settings.assign(seed=[], error=[])
    wanted = rows.loc[rows["id"].isin(settings["id"]), "row"]
    metrics = pd.DataFrame([json.loads(row) for row in wanted]).drop(columns="settings")
    return settings.merge(metrics, on="id", how="left", validate="one_to_one")


def _in_parallel(
    points: Sequence[Point], folder: Path, backend: str, n_workers: int, end_s: float
) -> Iterator[tuple[int, float]]:
    if time.perf_counter() >= end_s:
        return
    rest, chunk = list(points), 1
    if backend == "loky":
        # the first ones here: workers then find the compiled kernel in its cache, and the seconds
        # of a point are known; the very first may have compiled it
        for _ in range(min(2, len(rest))):
            n, seconds = _run_and_commit([rest.pop(0)], folder)
            chunk = _chunk(seconds, len(rest), n_workers)
            yield n, seconds
    chunks = (list(part) for part in _batched(rest, chunk))
    timely = itertools.takewhile(lambda _: time.perf_counter() < end_s, chunks)
    if backend == "loky" and n_workers == 1:
        yield from (_run_and_commit(part, folder) for part in timely)
        return
    work = (delayed(_run_and_commit)(part, folder) for part in timely)
    if backend == "loky":
        yield from in_processes(work, n_jobs=n_workers, ordered=False, batch_size=1)
        return
    # Ray's backend returns lists alone: a few hand-outs a worker at a time keep the bar moving
    while some := list(itertools.islice(work, 4 * n_workers)):
        yield from Parallel(batch_size=1)(some)


def _chunk(seconds: float, n_left: int, n_workers: int) -> int:
    """Return points a hand-out: a second of work, yet enough hand-outs to keep all busy."""
    share = n_left // (4 * n_workers)
    return max(1, min(int(_CHUNK_S / max(seconds, 1e-6)), _CHUNK_POINTS, share))


def _batched(points: Sequence[Point], n: int) -> Iterator[Sequence[Point]]:
    return (points[i : i + n] for i in range(0, len(points), n))


def _backend(engine: str) -> str:
    if engine == "local":
        return "loky"
    try:
        from ray.util.joblib import register_ray
    except ImportError:
        raise ConfigError("--engine ray needs Ray: pip install 'dapolab[ray]'") from None
    register_ray()
    return "ray"


@contextmanager
def _cluster(backend: str, n_jobs: int) -> Iterator[None]:
    """Join Ray's cluster, or begin one, and leave it at the end; processes need nothing."""
    if backend != "ray":
        yield
        return
    import ray

    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "configure_logging": False}
    # Ray prints its nodes' troubles on stdout at any moment; that is for the command's own answer
    with redirect_stdout(sys.stderr):
        try:
            ray.init(address="auto", **quiet)  # a running cluster: RAY_ADDRESS or this machine's
        except ConnectionError:
            n_cpus = n_jobs if n_jobs > 0 else None
            ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, **quiet)
        try:
            yield
        finally:
            ray.shutdown()
