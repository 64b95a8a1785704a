"""The workload as a stream of candidate groups, the same under every collection policy.

Truncation: a response that would need more than ``cap_tokens`` tokens is cut there and counts as
truncated; one that stops by itself with exactly ``cap_tokens`` is complete. (verl's
``response_length/clip_ratio``, v0.9 metric_utils, counts length == cap as clipped; the two differ
by P(L = cap), about 1e-4 for smooth laws.) A truncated response is judged correct with probability
``p_correct_if_truncated``, from its own random number.
"""

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dapolab.scenario import (
    ConfigError,
    IndependentWorkload,
    JointWorkload,
    LognormalLengths,
    ReplayWorkload,
    Workload,
)
from dapolab.workload.difficulty import logit_mean_for, pass_rate_law
from dapolab.workload.lengths import latent_law
from dapolab.workload.prompts import BLOCK, BlockDraws, PromptPool
from dapolab.workload.replay import RecordedGroups, load_groups

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


def _joined(parts: list[Groups]) -> Groups:
    names = [field.name for field in fields(Groups)]
    return Groups(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False, slots=True)
class _Responses:
    """What a source returns for one block, place-major (G, BLOCK), lengths in latent tokens."""

    pass_rate_P: Floats
    latent_GP: Floats
    correct_GP: Bools
    recorded_cut_GP: Bools | None = None


class _Source(Protocol):
    drifts: bool

    @property
    def p_correct_if_truncated(self) -> float | None:
        """None: a cut answer keeps its correctness."""

    def responses(self, block: int, prompt_id_P: Ints, trained_steps: int) -> _Responses: ...


class _Joint:
    """Stop or loop; log length = prompt level + δ·correct + ε (DESIGN §4, Workload)."""

    def __init__(
        self, workload: JointWorkload, pool: PromptPool, *, group_size: int, cap: int, seed: int
    ) -> None:
        self.p_correct_if_truncated = workload.p_correct_if_truncated
        self.drifts = bool(workload.drift.logit_per_step or workload.drift.log_tokens_per_step)
        self._workload = workload
        self._n = group_size
        self._ceiling = np.log(cap) + 1.0
        rho = workload.correlation
        z_level, z_own = pool.normal("level"), pool.normal("pass rate")
        z_logit = rho * z_level + np.sqrt(1.0 - rho * rho) * z_own
        share = workload.prompt_share
        self._log_N = np.log(workload.median_tokens) + np.sqrt(share) * workload.sigma * z_level
        self._logit_N = workload.mean_logit + workload.sd_logit * z_logit
        self._within = np.sqrt(1.0 - share) * workload.sigma
        self._loop_N = self._loop_probability(pool, z_logit)
        self._epsilon = BlockDraws(seed, "length")
        self._correct = BlockDraws(seed, "correct")
        self._loop = BlockDraws(seed, "loop")

    def _loop_probability(self, pool: PromptPool, z_logit: Floats) -> Floats | None:
        workload = self._workload
        if workload.loop_share == 0.0:
            return None
        sd, rho = workload.loop_sd_logit, workload.loop_correlation
        mean = logit_mean_for(workload.loop_share, sd=sd)
        z = rho * z_logit + np.sqrt(1.0 - rho * rho) * pool.normal("loop")
        return np.asarray(special.expit(mean + sd * z))

    def responses(self, block: int, prompt_id_P: Ints, trained_steps: int) -> _Responses:
        drift = self._workload.drift
        p = special.expit(self._logit_N[prompt_id_P] + drift.logit_per_step * trained_steps)
        correct = self._correct.uniform(block, self._n) < p
        log_length = self._epsilon.normal(block, self._n)
        log_length *= self._within
        log_length += self._log_N[prompt_id_P] + drift.log_tokens_per_step * trained_steps
        log_length += self._workload.correct_effect * correct
        # Beyond the cap only "longer" matters; the ceiling keeps exp finite.
        np.minimum(log_length, self._ceiling, out=log_length)
        latent = np.exp(log_length, out=log_length)
        if self._loop_N is not None:
            latent[self._loop.uniform(block, self._n) < self._loop_N[prompt_id_P]] = np.inf
        return _Responses(p, latent, correct)


class _Independent:
    """Lengths of any law, independent of correctness."""

    p_correct_if_truncated: float | None

    def __init__(
        self, workload: IndependentWorkload, pool: PromptPool, *, group_size: int, seed: int
    ) -> None:
        self.p_correct_if_truncated = workload.p_correct_if_truncated
        self.drifts = bool(workload.drift.logit_per_step or workload.drift.log_tokens_per_step)
        self._drift = workload.drift
        self._n = group_size
        law = pass_rate_law(workload.pass_rate, group_size=group_size)
        with np.errstate(divide="ignore"):
            self._logit_N = law.logits(pool.uniform("pass rate"))
        self._latent = latent_law(workload.lengths)
        self._shared: Floats | None = None
        self._within = 0.0
        lengths = workload.lengths
        if isinstance(lengths, LognormalLengths):
            share = lengths.prompt_share
            level = np.sqrt(share) * lengths.sigma * pool.normal("level")
            self._shared = np.log(lengths.median_tokens) + level
            self._within = float(np.sqrt(1.0 - share)) * lengths.sigma
        self._length = BlockDraws(seed, "length")
        self._correct = BlockDraws(seed, "correct")

    def responses(self, block: int, prompt_id_P: Ints, trained_steps: int) -> _Responses:
        logit = self._logit_N[prompt_id_P] + self._drift.logit_per_step * trained_steps
        p = special.expit(logit)
        correct = self._correct.uniform(block, self._n) < p
        if self._shared is None:
            latent = self._latent.quantile(self._length.uniform(block, self._n))
        else:
            epsilon = self._length.normal(block, self._n)
            latent = np.exp(self._shared[prompt_id_P] + self._within * epsilon)
        if self._drift.log_tokens_per_step:
            latent = latent * np.exp(self._drift.log_tokens_per_step * trained_steps)
        return _Responses(p, latent, correct)


class _Replay:
    """G of a recorded group's n responses, without replacement, by prompt."""

    drifts = False

    def __init__(self, recorded: RecordedGroups, *, p_truncated: float, n: int, seed: int) -> None:
        self.p_correct_if_truncated = p_truncated
        self._recorded = recorded
        self._n = n
        self._pick = BlockDraws(seed, "pick")
        self._missing = BlockDraws(seed, "missing correctness")

    def responses(self, block: int, prompt_id_P: Ints, trained_steps: int) -> _Responses:
        recorded = self._recorded
        key = self._pick.uniform(block, recorded.n_most)
        rows_here = recorded.n_rows_N[prompt_id_P]
        # Places beyond a prompt's own n sort last and are never picked (n ≥ G is checked).
        key[np.arange(recorded.n_most)[:, None] >= rows_here] = 2.0
        place = np.argsort(key, axis=0, kind="stable")[: self._n]
        row = recorded.first_row_N[prompt_id_P] + place
        correct = recorded.correct[row]
        unknown = recorded.correct_missing[row]
        if unknown.any():
            guess = self._missing.uniform(block, self._n) < self.p_correct_if_truncated
            correct = np.where(unknown, guess, correct)
        latent = recorded.n_tokens[row].astype(np.float64)
        return _Responses(
            recorded.pass_rate_N[prompt_id_P], latent, correct, recorded.truncated[row]
        )


class PromptStream:
    """Candidate groups 0, 1, 2, … of a workload under one seed.

    Parameters
    ----------
    workload : a ``[workload]`` table.
    group_size : responses per prompt, G.
    cap_tokens : response cap (max_tokens).
    seed : non-negative; (seed, position, trained_steps) fixes everything that ``draw`` returns.

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
        self._truncated = BlockDraws(seed, "truncated")
        self._blocks: OrderedDict[tuple[int, int], Groups] = OrderedDict()

    def _new_source(
        self, workload: Workload, recorded: RecordedGroups | None, seed: int
    ) -> _Source:
        n, pool = self.group_size, self._pool
        if isinstance(workload, JointWorkload):
            return _Joint(workload, pool, group_size=n, cap=self.cap_tokens, seed=seed)
        if isinstance(workload, IndependentWorkload):
            return _Independent(workload, pool, group_size=n, seed=seed)
        assert recorded is not None
        p_truncated = workload.p_correct_if_truncated
        return _Replay(recorded, p_truncated=p_truncated, n=n, seed=seed)

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
        return parts[0] if len(parts) == 1 else _joined(parts)

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
        found = self._source.responses(block, prompt_id, trained_steps)
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
