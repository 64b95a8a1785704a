"""One step off: rollout k + 1 runs during training k, and both wait for each other at the boundary.

Batch 0 is generated and trained by the first weights. From then on boundary k comes when rollout k
and training k − 1 have ended; the new weights are copied (``sync_s``), then rollout k + 1 and
training k start together. So every later batch is one version old, and a cycle lasts
max(D, T) + sync (theory F1; verl recipe/one_step_off_policy).
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.sim.learner import LearnerTime
from dapolab.sim.residency import share


@dataclass
class Overlap:
    """Times and ages of the learned batches of a run one step off, in order."""

    _free_s: float = 0.0
    _sync_s: float = 0.0
    _start_s: list[float] = field(default_factory=list)
    _work_s: list[float] = field(default_factory=list)
    _age: list[int] = field(default_factory=list)

    def next_start_s(self, rollout_end_s: float, learner: LearnerTime | None, *, age: int) -> float:
        """Enter a batch whose rollout has ended; return when the next rollout starts.

        Parameters
        ----------
        learner : None where the batch is never trained: the run ends.
        age : versions between the weights that generated the batch and those that learn from it.
        """
        if learner is None:
            return rollout_end_s
        start_s = max(rollout_end_s, self._free_s) + self._sync_s
        self._start_s.append(start_s)
        self._work_s.append(learner.total_s - learner.sync_s)
        self._age.append(age)
        self._sync_s = learner.sync_s
        self._free_s = start_s + self._work_s[-1]
        return start_s

    def amend(self, steps: pd.DataFrame, *, n_gpus: int) -> pd.DataFrame:
        """Return the table of steps with the seconds and ages of overlapped ones.

        A step lasts from the start of its training to that of the next one, its weight copy
        included; the first one has the first rollout too. So steps add up to the run.
        """
        if not self._start_s:
            return steps
        edges = np.array([0.0, *self._start_s[1:], self._free_s + self._sync_s])
        seconds, work = np.diff(edges), np.array(self._work_s)
        busy = work + steps["time/sync_seconds"].to_numpy()
        trains = steps["rollout/effective_groups"].to_numpy() > 0
        age = np.where(trains, np.array(self._age, dtype=np.float64), np.nan)
        columns = {
            "time/step_seconds": seconds,
            "time/gpu_seconds": seconds * n_gpus,
            "pipeline/learner_wait_seconds": np.maximum(seconds - busy, 0.0),
            "pipeline/learner_busy_share": share(busy, seconds),
            "staleness/off_policy_token_share": np.where(
                age > 0, age > 0, age + _known(steps, "staleness/off_policy_token_share")
            ),
        }
        for name in ("mean_versions", "mean_versions_by_response", "max_versions"):
            # what a policy carried over is older still
            columns[f"staleness/{name}"] = age + _known(steps, f"staleness/{name}")
        return steps.assign(**columns)


def _known(steps: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """Return a column, 0 where the policy has no such metric."""
    return np.asarray(steps[name].fillna(0.0), dtype=np.float64)
