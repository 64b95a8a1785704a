"""Rewards of simulated groups: what the filter compares and what the metrics report.

Correct +1, wrong −1 (DAPO Eq. 7), plus the soft overlong penalty (Eq. 13) where it is switched on.
"""

import numpy as np
from numpy.typing import NDArray

from dapolab.collectors import Finished
from dapolab.scenario import Rollout
from dapolab.workload.model import Groups

Float = NDArray[np.float64]


class Scores:
    """Reward rules of one scenario, vectorised over groups."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout

    def penalty(self, n_tokens: NDArray[np.int64]) -> Float:
        """Return the overlong penalty of each length in tokens, in [−factor, 0]."""
        overlong = self._rollout.overlong
        if overlong is None:
            return np.zeros(np.shape(n_tokens))
        start = self._rollout.cap_tokens - overlong.buffer_tokens
        used_share = np.clip((n_tokens - start) / overlong.buffer_tokens, 0.0, 1.0)
        return np.asarray(-overlong.factor * used_share)

    def shaped(self, groups: Groups) -> Float:
        """Return reward with penalty, shape (P, G)."""
        return np.where(groups.correct_PG, 1.0, -1.0) + self.penalty(groups.n_tokens_PG)

    def spread(self, groups: Groups) -> Float:
        """Return max − min of the filter metric within each group, shape (P,)."""
        if self._rollout.filter_metric == "correct":
            n_correct_P = groups.correct_PG.sum(axis=1)
            mixed_P = (n_correct_P > 0) & (n_correct_P < groups.correct_PG.shape[1])
            return mixed_P.astype(np.float64)
        return np.asarray(np.ptp(self.shaped(groups), axis=1))

    def finished(self, groups: Groups, *, first: int) -> list[Finished]:
        """Return what the policy is told of each group; ``first`` is the first one's index."""
        n_samples = groups.n_tokens_PG.shape[1]
        columns = zip(
            groups.correct_PG.sum(axis=1).tolist(),
            self.spread(groups).tolist(),
            groups.n_tokens_PG.sum(axis=1).tolist(),
            strict=True,
        )
        return [
            Finished(
                index=first + i,
                n_samples=n_samples,
                n_correct=n_correct,
                spread=spread,
                n_tokens=n_tokens,
            )
            for i, (n_correct, spread, n_tokens) in enumerate(columns)
        ]
