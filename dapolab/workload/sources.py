"""Where responses come from: the joint law, an independent law, recorded groups.

A source returns one block of the prompt stream, place-major, before the cap is applied.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dapolab.scenario import Drift, IndependentWorkload, JointWorkload, LognormalLengths
from dapolab.workload.difficulty import logit_mean_for, pass_rate_law
from dapolab.workload.lengths import latent_law
from dapolab.workload.prompts import BlockDraws, PromptPool
from dapolab.workload.replay import RecordedGroups

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class Responses:
    """What a source returns for one block, place-major (G, BLOCK), lengths in latent tokens."""

    pass_rate_P: Floats
    latent_GP: Floats
    correct_GP: Bools
    recorded_cut_GP: Bools | None = None


class Source(Protocol):
    """A kind of workload; ``drifts`` says whether trained steps change what it returns."""

    drifts: bool

    @property
    def p_correct_if_truncated(self) -> float | None:
        """None: a cut answer keeps its correctness."""

    def responses(
        self, block: int, prompt_id_P: Ints, trained_steps: int, visits_P: Ints | int = 0
    ) -> Responses:
        """Return one block; ``prompt_id_P`` names the prompt of each of its positions.

        ``visits_P`` is how often each of these prompts was trained.
        """
        ...


def logit_shift(drift: Drift, trained_steps: int, visits: Ints | int) -> Floats:
    """Return what drift adds to logit pass rates; shape of ``visits``."""
    return np.asarray(drift.logit_per_step * trained_steps + drift.logit_per_visit * visits)


def log_length_shift(drift: Drift, trained_steps: int, visits: Ints | int) -> Floats:
    """Return what drift adds to log lengths; shape of ``visits``."""
    by_step = drift.log_tokens_per_step * trained_steps
    return np.asarray(by_step + drift.log_tokens_per_visit * visits)


class JointSource:
    """Stop or loop; log length = prompt level + δ·correct + ε (DESIGN §4, Workload)."""

    def __init__(
        self, workload: JointWorkload, pool: PromptPool, *, group_size: int, cap: int, seed: int
    ) -> None:
        self.p_correct_if_truncated = workload.p_correct_if_truncated
        self.drifts = workload.drift.moves
        self._workload = workload
        self._n = group_size
        self._ceiling = np.log(cap) + 1.0
        rho = workload.correlation
        z_level, z_own = pool.normal("level"), pool.normal("pass rate")
        z_logit = rho * z_level + np.sqrt(1.0 - rho * rho) * z_own
        share = workload.prompt_share
        self._log_N = np.log(workload.median_tokens) + np.sqrt(share) * workload.sigma * z_level
        self._logit_N = workload.mean_logit + workload.sd_logit * z_logit
        self._unsolvable_N: Bools | None = None
        if workload.unsolvable_share > 0.0:
            # Levels and loops keep the prompt's own normal numbers.
            self._unsolvable_N = pool.uniform("unsolvable") < workload.unsolvable_share
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

    def responses(
        self, block: int, prompt_id_P: Ints, trained_steps: int, visits_P: Ints | int = 0
    ) -> Responses:
        """Return one block of the stream."""
        drift = self._workload.drift
        p = special.expit(self._logit_N[prompt_id_P] + logit_shift(drift, trained_steps, visits_P))
        if self._unsolvable_N is not None:
            p = np.where(self._unsolvable_N[prompt_id_P], self._workload.guess_rate, p)
        correct = self._correct.uniform(block, self._n) < p
        log_length = self._epsilon.normal(block, self._n)
        log_length *= self._within
        log_length += self._log_N[prompt_id_P] + log_length_shift(drift, trained_steps, visits_P)
        log_length += self._workload.correct_effect * correct
        # Beyond the cap only "longer" matters; the ceiling keeps exp finite.
        np.minimum(log_length, self._ceiling, out=log_length)
        latent = np.exp(log_length, out=log_length)
        if self._loop_N is not None:
            latent[self._loop.uniform(block, self._n) < self._loop_N[prompt_id_P]] = np.inf
        return Responses(p, latent, correct)


class IndependentSource:
    """Lengths of any law, independent of correctness."""

    p_correct_if_truncated: float | None

    def __init__(
        self, workload: IndependentWorkload, pool: PromptPool, *, group_size: int, seed: int
    ) -> None:
        self.p_correct_if_truncated = workload.p_correct_if_truncated
        self.drifts = workload.drift.moves
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

    def responses(
        self, block: int, prompt_id_P: Ints, trained_steps: int, visits_P: Ints | int = 0
    ) -> Responses:
        """Return one block of the stream."""
        logit_P = self._logit_N[prompt_id_P] + logit_shift(self._drift, trained_steps, visits_P)
        p = special.expit(logit_P)
        correct = self._correct.uniform(block, self._n) < p
        if self._shared is None:
            latent = self._latent.quantile(self._length.uniform(block, self._n))
        else:
            epsilon = self._length.normal(block, self._n)
            latent = np.exp(self._shared[prompt_id_P] + self._within * epsilon)
        if self._drift.log_tokens_per_step or self._drift.log_tokens_per_visit:
            latent = latent * np.exp(log_length_shift(self._drift, trained_steps, visits_P))
        return Responses(p, latent, correct)


class ReplaySource:
    """G of a recorded group's n responses, without replacement, by prompt."""

    drifts = False

    def __init__(self, recorded: RecordedGroups, *, p_truncated: float, n: int, seed: int) -> None:
        self.p_correct_if_truncated = p_truncated
        self._recorded = recorded
        self._n = n
        self._pick = BlockDraws(seed, "pick")
        self._missing = BlockDraws(seed, "missing correctness")

    def responses(
        self, block: int, prompt_id_P: Ints, trained_steps: int, visits_P: Ints | int = 0
    ) -> Responses:
        """Return one block of the stream."""
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
        return Responses(
            recorded.pass_rate_N[prompt_id_P], latent, correct, recorded.truncated[row]
        )
