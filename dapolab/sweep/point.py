"""One point measured: its replications, and the row that they make."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dapolab import __version__
from dapolab.metrics import STEP_METRICS
from dapolab.scenario import ConfigError, Workload
from dapolab.sim.run import simulate
from dapolab.stats import ratio_standard_error
from dapolab.sweep.expand import Point

COSTS = {
    f"per_trained_group/{name.partition('/')[2]}": name
    for name in ("time/step_seconds", "time/gpu_seconds", "rollout/completion_tokens")
}
"""Cost of a trained group that carries signal: name -> the column that is paid.

As in compare: a trained group without signal (policy none) pays for nothing.
"""
SIGNAL = "train/mixed_groups"
_NAMES = [metric.name for metric in STEP_METRICS]


@dataclass(frozen=True)
class Replications:
    """A point's independent repetitions.

    Attributes
    ----------
    means : one row a replication, its step metrics averaged over steps; absent is NaN.
    totals : likewise the totals behind ``COSTS``, and of ``SIGNAL``.
    endings : how each run ended.
    n_failed : runs that the policy ended with an error.
    """

    means: pd.DataFrame
    totals: pd.DataFrame
    endings: tuple[str, ...]
    n_failed: int


def measure(point: Point, workloads: Sequence[Workload] | None = None) -> Replications:
    """Simulate every replication of a point.

    ``workloads`` holds one a replication, where the workload itself is uncertain.
    """
    means, totals, endings, n_failed = [], [], [], 0
    for r in range(point.scenario.run.replications):
        scenario = point.scenario
        if workloads is not None:
            scenario = scenario.model_copy(update={"workload": workloads[r]})
        run = simulate(scenario, seed=point.seed, replication=r, keep_groups=False)
        steps = run.steps[_NAMES].to_numpy(dtype=float)
        present = ~np.isnan(steps)
        n_present = present.sum(axis=0)
        sums = np.where(present, steps, 0.0).sum(axis=0)
        means.append(
            np.divide(sums, n_present, out=np.full(len(_NAMES), np.nan), where=n_present > 0)
        )
        totals.append(sums)
        endings.append(run.ended)
        n_failed += run.failed
    return Replications(
        means=pd.DataFrame(means, columns=_NAMES),
        totals=pd.DataFrame(totals, columns=_NAMES)[[*COSTS.values(), SIGNAL]],
        endings=tuple(endings),
        n_failed=n_failed,
    )


def row_of(point: Point) -> dict[str, Any]:
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
        row |= _summary(point, measure(point))
    except ConfigError as error:
        row["error"] = str(error)
    except Exception as error:  # a defect, or memory: the other points are still worth having
        row |= {"error": f"{type(error).__name__}: {error}", "defect": True}
    row["seconds"] = time.perf_counter() - started
    return row


def _summary(point: Point, runs: Replications) -> dict[str, Any]:
    n = len(runs.endings)
    failure = next((ending for ending in runs.endings if ending.startswith("failed")), None)
    row: dict[str, Any] = {
        "policy": point.changed.get("policy", point.scenario.collector.kind),
        "replications": n,
        "p_fails": runs.n_failed / n,
        "error": failure if runs.n_failed == n else None,
    }
    values = runs.means.to_numpy()
    present = ~np.isnan(values)
    for i, name in enumerate(_NAMES):
        known = values[present[:, i], i]
        if known.size:
            row[name] = float(known.mean())
        if known.size > 1:
            row[f"{name}/se"] = float(known.std(ddof=1)) / known.size**0.5
    trained = runs.totals[SIGNAL].to_numpy()
    if trained.sum() > 0:
        for name, column in COSTS.items():
            paid = runs.totals[column].to_numpy()
            row[name] = float(paid.sum() / trained.sum())
            error = ratio_standard_error(paid, trained)
            if error is not None:
                row[f"{name}/se"] = error
    return row
