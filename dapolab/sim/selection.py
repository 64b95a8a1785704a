"""Which places of the prompt stream are sampled: ``rollout.selection`` at work.

A skipped place is still a place: the draws of every other one stay what they were, and whether a
place is skipped depends on the seed, the place and what its prompt did before, on nothing else
(MoPPS: and on its rivals in the same submission).
Outcomes are heard at the end of each step (a prompt that comes twice in one step is judged by what
was known before it).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dapolab.collectors import Finished
from dapolab.scenario import (
    GresoSelection,
    MoppsSelection,
    OracleSelection,
    Selection,
    SolvedOutSelection,
    UniformSelection,
)
from dapolab.workload.model import Groups
from dapolab.workload.prompts import BLOCK, BlockDraws

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Selector(Protocol):
    """Decides place by place; ``may_run_dry``: an epoch without a chosen prompt stays so."""

    may_run_dry: bool

    def chosen(self, groups: Groups) -> Bools:
        """Say which of a block's places are sampled, given what was heard so far."""

    def hear(self, groups: Groups, finished: Sequence[tuple[int, Finished]]) -> None:
        """Take in a step: the groups that returned, as (row of ``groups``, what was told)."""


def new_selector(selection: Selection, *, n_prompts: int, seed: int) -> "Selector | Mopps | None":
    """Return the selector of ``selection``; None where every prompt takes its turn."""
    match selection:
        case UniformSelection():
            return None
        case GresoSelection():
            return Greso(selection, n_prompts=n_prompts, seed=seed)
        case OracleSelection():
            return Oracle(selection)
        case SolvedOutSelection():
            return SolvedOut(selection, n_prompts=n_prompts)
        case MoppsSelection():
            return Mopps(selection, n_prompts=n_prompts, seed=seed)


class Greso:
    """Skip in proportion to the run of outcomes without signal; see :class:`GresoSelection`."""

    may_run_dry = False

    def __init__(self, selection: GresoSelection, *, n_prompts: int, seed: int) -> None:
        self._selection = selection
        self.p_easy, self.p_hard = selection.p_easy, selection.p_hard
        self._run_N = np.zeros(n_prompts, dtype=np.int64)  # > 0: all right, < 0: all wrong
        self._draws = BlockDraws(seed, "selection")

    def chosen(self, groups: Groups) -> Bools:
        """Say which places are sampled: u < max(p^z, p_sampled_min)."""
        run_P = self._run_N[groups.prompt_id_P]
        base_P = np.where(run_P > 0, self.p_easy, self.p_hard)
        p_P = np.maximum(base_P ** np.abs(run_P), self._selection.p_sampled_min)
        block, place_P = int(groups.position_P[0]) // BLOCK, groups.position_P % BLOCK
        return np.asarray(self._draws.uniform(block, 1)[0, place_P] < p_P)

    def hear(self, groups: Groups, finished: Sequence[tuple[int, Finished]]) -> None:
        """Lengthen or end each prompt's run, then move the bases by the step's shares."""
        if not finished:
            return
        n_easy = n_hard = 0
        for row, told in finished:
            prompt = groups.prompt_id_P[row]
            run = int(self._run_N[prompt])
            if told.n_correct == told.n_samples:
                n_easy, run = n_easy + 1, max(run, 0) + 1
            elif told.n_correct == 0:
                n_hard, run = n_hard + 1, min(run, 0) - 1
            else:
                run = 0
            self._run_N[prompt] = run
        if int(groups.epoch_P.max()) > 0:
            # A third of a quarter is no dyadic number: 1 of 6 groups reaches a target of 1/6.
            target = self._selection.target_degenerate_share * len(finished) - 1e-9
            easy = self._selection.easy_share_of_target
            self.p_easy = self._moved(self.p_easy, down=n_easy >= target * easy)
            self.p_hard = self._moved(self.p_hard, down=n_hard >= target * (1 - easy))

    def _moved(self, p: float, *, down: bool) -> float:
        step = self._selection.step
        p_min, p_max = self._selection.p_min, self._selection.p_max
        return max(p - step, p_min) if down else min(p + step, p_max)


class Oracle:
    """Sample what lies in a band of true pass rates."""

    may_run_dry = True

    def __init__(self, selection: OracleSelection) -> None:
        self._lowest, self._highest = selection.lowest, selection.highest

    def chosen(self, groups: Groups) -> Bools:
        """Say which places are sampled, by the pass rates of the weights that sample now."""
        rate_P = groups.pass_rate_P
        return np.asarray((rate_P >= self._lowest) & (rate_P <= self._highest))

    def hear(self, groups: Groups, finished: Sequence[tuple[int, Finished]]) -> None:
        """Learn nothing: it knows."""


class SolvedOut:
    """Prompts once solved never come back."""

    may_run_dry = True

    def __init__(self, selection: SolvedOutSelection, *, n_prompts: int) -> None:
        self._rate = selection.pass_rate
        self._gone_N = np.zeros(n_prompts, dtype=np.bool_)

    def chosen(self, groups: Groups) -> Bools:
        """Say which places hold a prompt that was never solved."""
        return np.asarray(~self._gone_N[groups.prompt_id_P])

    def hear(self, groups: Groups, finished: Sequence[tuple[int, Finished]]) -> None:
        """Let go of what was solved."""
        for row, told in finished:
            if told.n_correct / told.n_samples >= self._rate:
                self._gone_N[groups.prompt_id_P[row]] = True


class Mopps:
    """Choose among the candidates of a submission; see :class:`MoppsSelection`."""

    def __init__(self, selection: MoppsSelection, *, n_prompts: int, seed: int) -> None:
        self._selection = selection
        self._n_prompts = n_prompts
        self.right_N = np.full(n_prompts, selection.prior_right)
        self.wrong_N = np.full(n_prompts, selection.prior_wrong)
        self._draws = BlockDraws(seed, "selection")

    def n_candidates(self, n: int) -> int:
        """Return how many places a submission of ``n`` prompts looks at: an epoch at most."""
        return max(n, min(int(self._selection.candidate_ratio * n), self._n_prompts))

    def chosen(self, groups: Groups, n: int) -> Ints:
        """Return the rows of the ``n`` candidates nearest the target, ascending."""
        distance_P = np.abs(self.drawn_rates(groups) - self._selection.target_pass_rate)
        return np.sort(np.argsort(distance_P, kind="stable")[:n])

    def drawn_rates(self, groups: Groups) -> Floats:
        """Return a pass rate drawn from each candidate's posterior, shape (P,)."""
        block_P, place_P = np.divmod(groups.position_P, BLOCK)
        uniform_P = np.empty(len(groups))
        for block in np.unique(block_P):
            here = block_P == block
            uniform_P[here] = self._draws.uniform(int(block), 1)[0, place_P[here]]
        prompt_P = groups.prompt_id_P
        drawn = special.betaincinv(self.right_N[prompt_P], self.wrong_N[prompt_P], uniform_P)
        return np.asarray(drawn)

    def hear(self, groups: Groups, finished: Sequence[tuple[int, Finished]]) -> None:
        """Move the posterior of each prompt that returned."""
        decay = self._selection.decay
        for row, told in finished:
            prompt = groups.prompt_id_P[row]
            for counts_N, prior, n in (
                (self.right_N, self._selection.prior_right, told.n_correct),
                (self.wrong_N, self._selection.prior_wrong, told.n_samples - told.n_correct),
            ):
                counts_N[prompt] = decay * counts_N[prompt] + (1.0 - decay) * prior + n
