"""The workload as a stream of candidate groups, the same under every collection policy.

Truncation: a response that would need more than ``cap_tokens`` tokens is cut there and counts as
truncated; one that stops by itself with exactly ``cap_tokens`` is complete. (verl's
``response_length/clip_ratio``, v0.9 metric_utils, counts length == cap as clipped; the two differ
by P(L = cap), about 1e-4 for smooth laws.) A truncated response is judged correct with probability
``p_correct_if_truncated``, from its own random number.
"""

from collections import OrderedDict
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dapolab.scenario import (
    ConfigError,
    IndependentWorkload,
    JointWorkload,
    ReplayWorkload,
    Workload,
)
from dapolab.workload.prompts import BLOCK, BlockDraws, PromptPool
from dapolab.workload.replay import RecordedGroups, load_groups
from dapolab.workload.sources import IndependentSource, JointSource, ReplaySource, Source
from dapolab.workload.visits import Visits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_CACHED_BLOCKS = 64


@dataclass(frozen=True, eq=False, slots=True)
class Groups:
    """Consecutive candidate groups of the prompt stream; arrays are read-only.

    Axes: P groups in stream order, G responses of a group. ``pass_rate_P`` is the prompt's chance
    of a right answer when the answer is not cut; ``n_tokens_PG`` is already cut at the cap;
    ``correct_PG`` already follows the truncation rule.
    """

    position_P: Ints
    prompt_id_P: Ints
    epoch_P: Ints
    pass_rate_P: Floats
    prompt_tokens_P: Ints
    n_tokens_PG: Ints
    correct_PG: Bools
    truncated_PG: Bools

    def __len__(self) -> int:
        return len(self.position_P)

    def slice(self, start: int, stop: int) -> "Groups":
        """Return groups ``start:stop`` as views."""
        return Groups(
            self.position_P[start:stop],
            self.prompt_id_P[start:stop],
            self.epoch_P[start:stop],
            self.pass_rate_P[start:stop],
            self.prompt_tokens_P[start:stop],
            self.n_tokens_PG[start:stop],
            self.correct_PG[start:stop],
            self.truncated_PG[start:stop],
        )


def joined(parts: list[Groups]) -> Groups:
    """Return the groups of all parts, in their order."""
    names = [field.name for field in fields(Groups)]
    return Groups(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def n_prompts_of(workload: Workload, *, group_size: int, cap_tokens: int) -> int:
    """Return the prompts of one epoch; those of the file where the workload replays one.

    Raises
    ------
    ConfigError
        As :class:`PromptStream`, for a replay file.
    """
    if isinstance(workload, ReplayWorkload):
        return len(load_groups(workload, group_size=group_size, cap_tokens=cap_tokens).n_rows_N)
    return workload.prompts.count


class PromptStream:
    """Candidate groups 0, 1, 2, … of a workload under one seed.

    Parameters
    ----------
    workload : a ``[workload]`` table.
    group_size : responses per prompt, G.
    cap_tokens : response cap (max_tokens).
    seed : non-negative; (seed, position, trained_steps) fixes everything that ``draw`` returns,
        with ``visits`` where drift goes by visit.

    ``visits`` is to be told which prompts are trained where drift goes by visit, else None.

    Raises
    ------
    ConfigError
        A replay file that is missing, holds fewer than G responses for a prompt, or was recorded
        under a lower cap than ``cap_tokens``; a ``p_mixed`` out of reach.
    """

    def __init__(self, workload: Workload, *, group_size: int, cap_tokens: int, seed: int) -> None:
        if group_size < 1 or cap_tokens < 1:
            raise ConfigError("rollout.group_size and rollout.cap_tokens must be at least 1")
        self.group_size = group_size
        self.cap_tokens = cap_tokens
        count = workload.prompts.count
        recorded = None
        if isinstance(workload, ReplayWorkload):
            recorded = load_groups(workload, group_size=group_size, cap_tokens=cap_tokens)
            count = len(recorded.n_rows_N)
        self._pool = PromptPool(workload.prompts, count=count, seed=seed)
        self._source = self._new_source(workload, recorded, seed)
        drift = getattr(workload, "drift", None)
        self.visits = Visits(count) if drift is not None and drift.by_visit else None
        self._truncated = BlockDraws(seed, "truncated")
        self._blocks: OrderedDict[tuple[int, int], Groups] = OrderedDict()

    def _new_source(self, workload: Workload, recorded: RecordedGroups | None, seed: int) -> Source:
        n, pool = self.group_size, self._pool
        if isinstance(workload, JointWorkload):
            return JointSource(workload, pool, group_size=n, cap=self.cap_tokens, seed=seed)
        if isinstance(workload, IndependentWorkload):
            return IndependentSource(workload, pool, group_size=n, seed=seed)
        assert recorded is not None
        p_truncated = workload.p_correct_if_truncated
        return ReplaySource(recorded, p_truncated=p_truncated, n=n, seed=seed)

    @property
    def n_prompts(self) -> int:
        """Prompts in the pool (one epoch)."""
        return self._pool.count

    def n_available(self, start: int, n: int) -> int:
        """Return how many of positions ``start … start + n − 1`` exist; ``n`` where endless."""
        total = self._pool.n_positions
        return n if total is None else max(0, min(n, total - start))

    def n_left_in_epoch(self, start: int) -> int:
        """Return positions from ``start`` to the end of its epoch, ``start`` included."""
        return self.n_prompts - start % self.n_prompts

    def draw(self, start: int, n: int, *, trained_steps: int = 0) -> Groups:
        """Return candidate groups ``start … start + n − 1`` (axis P has length n).

        ``trained_steps`` moves pass rates and lengths along ``workload.drift``; the random numbers
        stay those of (seed, position).

        Raises
        ------
        IndexError
            If the stream ends before; ask ``n_available`` first.
        """
        if start < 0 or n < 0 or self.n_available(start, n) < n:
            raise IndexError(f"positions {start}..{start + n - 1} are not all in the stream")
        first, last = start // BLOCK, max(start + n - 1, start) // BLOCK
        steps = trained_steps if self._source.drifts else 0
        parts = []
        for block in range(first, last + 1):
            low = max(start - block * BLOCK, 0)
            high = min(start + n - block * BLOCK, BLOCK)
            parts.append(self._block(block, steps).slice(low, high))
        return parts[0] if len(parts) == 1 else joined(parts)

    def _block(self, block: int, trained_steps: int) -> Groups:
        key = (block, trained_steps)
        found = self._blocks.get(key)
        if found is None:
            found = self._blocks[key] = self._make(block, trained_steps)
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        return found

    def _make(self, block: int, trained_steps: int) -> Groups:
        position = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.int64)
        prompt_id, epoch = self._pool.walk(position)
        visits = self.visits.before(trained_steps)[prompt_id] if self.visits else 0
        found = self._source.responses(block, prompt_id, trained_steps, visits)
        truncated = found.latent_GP > self.cap_tokens
        tokens = np.clip(np.ceil(found.latent_GP), 1, self.cap_tokens).astype(np.int64)
        p_right = self._source.p_correct_if_truncated
        if p_right is None:
            correct = found.correct_GP
        elif p_right > 0.0:
            lucky = self._truncated.uniform(block, self.group_size) < p_right
            correct = np.where(truncated, lucky, found.correct_GP)
        else:
            correct = found.correct_GP & ~truncated
        if found.recorded_cut_GP is not None:
            truncated = truncated | found.recorded_cut_GP
        arrays = (
            position,
            prompt_id,
            epoch,
            found.pass_rate_P,
            self._pool.tokens_N[prompt_id],
            np.ascontiguousarray(tokens.T),
            np.ascontiguousarray(correct.T),
            np.ascontiguousarray(truncated.T),
        )
        for array in arrays:
            array.flags.writeable = False
        return Groups(*arrays)
