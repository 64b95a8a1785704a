"""The count that every policy keeps: what was submitted, what became of it, and why.

Here also stands the one rule by which all policies call a group degenerate.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from dapolab.collectors.actions import (
    Abort,
    Action,
    Carried,
    Carry,
    Drop,
    Fail,
    Finished,
    Keep,
    Later,
    Limit,
    Stop,
    StopReason,
    Submit,
)
from dapolab.scenario import Budget, Rollout
from dapolab.scenario.collector import SPREAD_TOLERANCE

GUARD_PER_TARGET = 1000
"""Candidates per wanted group after which a policy without a limit of its own is ended."""


def is_degenerate(group: Finished, *, keep_singletons: bool) -> bool:
    """Say whether a group carries no signal: its metric does not spread, or is missing (NaN).

    The frameworks differ in the floating-point test (std > 0, std > 1e-6, mean in (0, 1)) and agree
    on every 0/1 or ±1 reward; a spread is exact for equal values whatever their sum rounds to. A
    group of one has no spread: verl's recipe keeps it (dapo_ray_trainer.py:261-265).
    """
    if group.n_samples == 1 and keep_singletons:
        return False
    return not group.spread > SPREAD_TOLERANCE


@dataclass
class Tally:
    """Counts of one step, in groups unless named otherwise."""

    rollout: Rollout
    budget: Budget
    filters: bool = True
    max_candidates: int | None = None
    n_waves: int = 0
    n_submitted: int = 0
    n_kept: int = 0
    n_surplus: int = 0
    n_all_wrong: int = 0
    n_all_right: int = 0
    n_tied: int = 0
    n_unscored: int = 0
    n_stale: int = 0
    n_carried: int = 0
    candidate_tokens: int = 0
    train_tokens: int = 0
    n_target: int = field(init=False)
    """B, the groups that the step wants."""

    def __post_init__(self) -> None:
        self.n_target = self.rollout.groups_per_step

    @property
    def n_missing(self) -> int:
        """Groups still wanted."""
        return self.n_target - self.n_kept

    @property
    def n_judged(self) -> int:
        """Groups that returned and were kept or dropped."""
        return self.n_kept + self.n_surplus + self.n_degenerate + self.n_stale + self.n_carried

    @property
    def n_degenerate(self) -> int:
        """Groups dropped because their metric does not spread."""
        return self.n_all_wrong + self.n_all_right + self.n_tied + self.n_unscored

    @property
    def is_full(self) -> bool:
        """Whether B groups are kept."""
        return self.n_kept >= self.n_target

    @property
    def most_candidates(self) -> int:
        """Guard of this lab where a framework has no limit of its own."""
        return self.max_candidates or GUARD_PER_TARGET * self.n_target

    @property
    def is_at_guard(self) -> bool:
        """Whether the guard forbids another group."""
        return self.n_submitted >= self.most_candidates

    def take_over(self, carried: Carried) -> None:
        """Count the returned groups that earlier steps left; cut ones count when resumed."""
        self.n_submitted += len(carried.held)

    def submit(self, n: int) -> Submit:
        """Ask for ``n`` more groups: one more wave where the policy has a barrier."""
        self.n_waves += 1
        self.n_submitted += n
        return Submit(n)

    def judge(self, group: Finished) -> Keep | Drop:
        """Keep the group, or drop it as degenerate or, where B are kept already, as surplus."""
        self.hear(group)
        if self.filters and self.is_degenerate(group):
            return self.drop_degenerate(group)
        return self.settle(group)

    def is_degenerate(self, group: Finished) -> bool:
        """Say whether the group carries no signal, a group of one by the rollout's own rule."""
        return is_degenerate(group, keep_singletons=self.rollout.singletons == "keep")

    def hear(self, group: Finished) -> None:
        """Count the tokens of a group that has returned, be it judged now or later."""
        self.candidate_tokens += group.n_tokens

    def settle(self, group: Finished) -> Keep | Drop:
        """Keep a group that passed, or drop it as surplus where B are kept already."""
        return self.drop_surplus(group) if self.is_full else self._kept(group)

    def _kept(self, group: Finished) -> Keep:
        self.n_kept += 1
        self.train_tokens += group.n_tokens
        return Keep(group.index)

    def keep_members(self, group: Finished, members: Sequence[int]) -> Keep:
        """Keep some responses of a group; they count as its tokens' share."""
        self.n_kept += 1
        self.train_tokens += group.n_tokens * len(members) // group.n_samples
        return Keep(group.index, tuple(members))

    def drop_degenerate(self, group: Finished) -> Drop:
        """Throw away a group that carries no signal."""
        if math.isnan(group.spread):
            self.n_unscored += 1
        elif group.n_correct == 0:
            self.n_all_wrong += 1
        elif group.n_correct == group.n_samples:
            self.n_all_right += 1
        else:
            self.n_tied += 1
        return Drop(group.index, "degenerate")

    def drop_surplus(self, group: Finished) -> Drop:
        """Throw away a group that passed and is not needed."""
        self.n_surplus += 1
        return Drop(group.index, "surplus")

    def settle_or_carry(self, group: Finished) -> Keep | Carry:
        """Keep a group that passed, or hold it for the next step where B are kept already."""
        return self.carry(group) if self.is_full else self._kept(group)

    def carry(self, group: Finished) -> Carry:
        """Hold a group that passed for the next step."""
        self.n_carried += 1
        return Carry(group.index)

    def drop_stale(self, group: Finished) -> Drop:
        """Throw away a group that is too old to be trained."""
        self.n_stale += 1
        return Drop(group.index, "stale")

    def judge_wave(self, wave: Iterable[Finished]) -> list[Action]:
        """Judge a wave in submission order, so that the first B in that order are the kept ones."""
        return [self.judge(group) for group in sorted(wave, key=attrgetter("index"))]

    def spent(self, *, held_tokens: int = 0) -> Limit | None:
        """Name the token budget that the groups have used up, if any.

        ``held_tokens`` are those of groups that passed and wait to be settled.
        """
        if _reached(self.budget.candidate_tokens, self.candidate_tokens):
            return "candidate_tokens"
        if _reached(self.budget.train_tokens, self.train_tokens + held_tokens):
            return "train_tokens"
        return None

    def stop(
        self, reason: StopReason, *, train: bool = True, later: Later = "never"
    ) -> list[Action]:
        """Abort what may be in flight and stop; the update is skipped where nothing was kept."""
        stop = Stop(reason, train=train and self.n_kept > 0)
        return [Abort(later), stop] if self.n_judged < self.n_submitted else [stop]

    def fail(self, what: str, *, advice: str) -> list[Action]:
        """End the run: say what happened, what was collected, where the rest went, what to do."""
        return [Fail(f"{what}: {self.describe()}; {advice}")]

    def fail_at_guard(self) -> list[Action]:
        """End the run at the guard on candidates."""
        what = f"no full batch in max_candidates={self.most_candidates}"
        return self.fail(what, advice="the filter may never fill: check difficulty")

    def describe(self) -> str:
        """Return what was collected and why groups were dropped, in one phrase (field case B41)."""
        text = f"kept {self.n_kept} of {self.n_target} groups from {self.n_judged} candidates"
        if not self.n_judged:
            return text
        causes = {"all-wrong": self.n_all_wrong, "all-right": self.n_all_right}
        rare = {"tied": self.n_tied, "without a reward": self.n_unscored}
        causes |= {name: n for name, n in rare.items() if n}
        shares = (f"{name} {n / self.n_judged:.1%}" for name, n in causes.items())
        return f"{text} ({', '.join(shares)})"


def _reached(limit: int | None, used: int) -> bool:
    return limit is not None and used >= limit
