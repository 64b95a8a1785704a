"""Rewards of simulated groups: what the filter compares and what the metrics report.

Correct +1, wrong −1 (DAPO Eq. 7), plus the soft overlong penalty (Eq. 13) where it is switched on.
"""

from collections import OrderedDict
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dapolab.collectors import Finished
from dapolab.scenario import Rollout
from dapolab.workload.model import Groups, PromptStream
from dapolab.workload.prompts import BLOCK

Float = NDArray[np.float64]
_CACHED_BLOCKS = 16


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
        return np.asarray(np.where(groups.correct_PG, 1.0, -1.0) + self.penalty(groups.n_tokens_PG))

    def spread(self, groups: Groups) -> Float:
        """Return max − min of the filter metric within each group, shape (P,)."""
        if self._rollout.filter_metric == "correct":
            n_correct_P = groups.correct_PG.sum(axis=1)
            mixed_P = (n_correct_P > 0) & (n_correct_P < groups.correct_PG.shape[1])
            return np.asarray(mixed_P, dtype=np.float64)
        return np.asarray(np.ptp(self.shaped(groups), axis=1))

    def metric(self, n_tokens_G: NDArray[np.int64], correct_G: NDArray[np.bool_]) -> Float:
        """Return the filter metric of single responses."""
        if self._rollout.filter_metric == "correct":
            return np.asarray(correct_G, dtype=np.float64)
        return np.asarray(np.where(correct_G, 1.0, -1.0) + self.penalty(n_tokens_G))

    def note(
        self,
        n_tokens_G: NDArray[np.int64],
        correct_G: NDArray[np.bool_],
        *,
        index: int,
        with_metrics: bool = False,
    ) -> Finished:
        """Return what a policy hears of a group that consists of these responses."""
        metric_G = self.metric(n_tokens_G, correct_G)
        return Finished(
            index,
            len(n_tokens_G),
            int(correct_G.sum()),
            float(np.ptp(metric_G)),
            int(n_tokens_G.sum()),
            tuple(metric_G.tolist()) if with_metrics else (),
        )


class _ScoredBlock(NamedTuple):
    """What policies hear of consecutive groups, as plain numbers: streaming asks one by one."""

    n_correct: list[int]
    spread: list[float]
    n_tokens: list[int]


class ScoredStream:
    """The prompt stream with what a policy hears of each group once it has returned.

    Groups are scored a block at a time, because a policy without a barrier asks for one group at a
    time and a handful of array operations on one group cost more than its decoding.
    """

    def __init__(self, stream: PromptStream, scores: Scores, *, drifts: bool) -> None:
        self.stream = stream
        self.scores = scores
        self._drifts = drifts
        self._blocks: OrderedDict[tuple[int, int], _ScoredBlock] = OrderedDict()

    def draw(
        self, start: int, n: int, *, first_index: int, trained_steps: int
    ) -> tuple[Groups, list[Finished]]:
        """Return groups ``start … start + n − 1`` and their notes, numbered from ``first_index``.

        Raises
        ------
        IndexError
            If the stream ends before.
        """
        groups = self.stream.draw(start, n, trained_steps=trained_steps)
        size = groups.n_tokens_PG.shape[1]
        notes: list[Finished] = []
        for block in range(start // BLOCK, (start + n - 1) // BLOCK + 1):
            scored = self._block(block, trained_steps if self._drifts else 0)
            low = max(start - block * BLOCK, 0)
            high = min(start + n - block * BLOCK, BLOCK)
            indices = range(first_index + len(notes), first_index + len(notes) + high - low)
            columns = (column[low:high] for column in scored)
            notes += map(Finished, indices, repeat(size), *columns)
        return groups, notes

    def _block(self, block: int, trained_steps: int) -> _ScoredBlock:
        key = (block, trained_steps)
        found = self._blocks.get(key)
        if found is None:
            n = self.stream.n_available(block * BLOCK, BLOCK)
            groups = self.stream.draw(block * BLOCK, n, trained_steps=trained_steps)
            found = self._blocks[key] = _ScoredBlock(
                groups.correct_PG.sum(axis=1).tolist(),
                self.scores.spread(groups).tolist(),
                groups.n_tokens_PG.sum(axis=1).tolist(),
            )
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        return found
