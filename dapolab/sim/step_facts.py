"""One step's facts by group and response, wherever and whenever the engine ran them.

In a plain step the engine's rows are the step's responses, in order. Otherwise a group may have
been begun earlier, run in two parts, have responses that were cut off alone, or none in the engine
at all; then rows are placed by the parts that entered the engine.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dapolab.sim.backlog import Left
from dapolab.sim.collection import (
    ABORTED,
    CARRIED,
    DEGENERATE,
    FAILED,
    SURPLUS,
    TRAINED,
    Collection,
)
from dapolab.sim.decode import FINISHED
from dapolab.sim.replica import Facts
from dapolab.workload.model import Groups

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Activity:
    """Responses that were in the engine during the step, in the order in which they entered it."""

    group: Int
    member: Int
    replica: Int
    submit_s: Float
    admit_s: Float
    first_token_s: Float
    end_s: Float
    generated_tokens: Int
    status: Int
    n_of_part: Int
    is_lost: Bool | None = None
    """Stays that failed; None where responses have one stay each."""
    is_last: Bool | None = None

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, eq=False)
class StepFacts:
    """Facts of P groups × W responses; times are NaN where nothing happened in this step.

    ``generated_PW`` counts from a response's first submission on, ``new_tokens`` this step alone;
    tokens of failed samplings are ``lost_P`` (None: none) and in neither.
    ``counted_PW`` (None: all) are the responses that make up the groups; ``fate_PW`` (None: that of
    the group) what became of each.
    """

    activity: Activity
    submit_PW: Float
    admit_PW: Float
    end_PW: Float
    generated_PW: Int
    new_tokens: int
    counted_PW: Bool | None
    fate_PW: Int | None
    lost_P: Int | None = None


def step_facts(collection: Collection, groups: Groups, facts: Facts, *, size: int) -> StepFacts:
    """Return the facts of a step that had at least one group.

    Parameters
    ----------
    groups : the step's groups in order, W columns.
    facts : the engine's, of this step.
    size : G.
    """
    shape = groups.n_tokens_PG.shape
    if collection.is_plain:
        return _plain(collection, facts, shape, size=size)
    rows, activity = _activity(collection, facts)
    at = activity.group, activity.member
    generated_PW = np.zeros(shape, dtype=np.int64)
    for index, left in enumerate(collection.left):
        n = len(left.tokens_G)
        generated_PW[index, :n] = left.tokens_G
    before = int(generated_PW.sum())

    def placed(values: Float, *, first: bool = False) -> Float:
        array_PW: Float = np.full(shape, np.nan)
        # of a response's stays, which come in order, the last one written stands
        order = slice(None, None, -1) if first else slice(None)
        array_PW[at[0][order], at[1][order]] = values[order]
        return array_PW

    lost_P = None
    if activity.is_lost is None:
        generated_PW[at] = facts.generated_tokens[rows]
    else:
        tokens = activity.generated_tokens
        np.add.at(generated_PW, at, np.where(activity.is_lost, 0, tokens))
        lost_P = np.zeros(shape[0], dtype=np.int64)
        np.add.at(lost_P, activity.group, np.where(activity.is_lost, tokens, 0))
    counted_PW = _counted(collection, shape, size=size)
    return StepFacts(
        activity,
        submit_PW=placed(activity.submit_s, first=True),
        admit_PW=placed(activity.admit_s, first=True),
        end_PW=placed(activity.end_s),
        generated_PW=generated_PW,
        new_tokens=int(generated_PW.sum()) - before,
        counted_PW=counted_PW,
        fate_PW=_fates(collection, shape, counted_PW, activity),
        lost_P=lost_P,
    )


def _plain(collection: Collection, facts: Facts, shape: tuple[int, ...], *, size: int) -> StepFacts:
    n_groups, width = shape
    activity = Activity(
        group=facts.group,
        member=np.arange(n_groups * width) % width,
        replica=facts.replica,
        submit_s=facts.submit_s,
        admit_s=facts.admit_s,
        first_token_s=facts.first_token_s,
        end_s=facts.end_s,
        generated_tokens=facts.generated_tokens,
        status=facts.status,
        n_of_part=np.full(n_groups, width),
    )
    generated_PW = facts.generated_tokens.reshape(shape)
    fates = None
    if collection.trained_members:
        fates = _fates(collection, shape, None, activity)
    return StepFacts(
        activity,
        submit_PW=facts.submit_s.reshape(shape),
        admit_PW=facts.admit_s.reshape(shape),
        end_PW=facts.end_s.reshape(shape),
        generated_PW=generated_PW,
        new_tokens=int(generated_PW.sum()),
        counted_PW=None,
        fate_PW=fates,
    )


def _activity(collection: Collection, facts: Facts) -> tuple[Int, Activity]:
    """Return the engine's rows of this step in order of entry, and what they did."""
    stays = collection.service.stays if collection.service else []
    n_own = len(facts.group) - len(stays)
    earlier_stays: dict[int, list[int]] = {}
    for k, stay in enumerate(stays):
        earlier_stays.setdefault(stay.engine_group, []).append(n_own + k)
    member_of_stay = np.array([stay.member for stay in stays], dtype=np.int64)
    n_of_group = np.bincount(facts.group[:n_own])
    first_of_group = np.cumsum(n_of_group) - n_of_group
    rows, index, member, n_of_part, entered_s = [], [], [], [], []
    before = {i: left.tokens_G for i, left in enumerate(collection.left)}
    for part in collection.parts:
        own = first_of_group[part.engine_group] + np.arange(part.n)
        # a resumed group's responses that ended in an earlier step take no part in this one
        own = own[np.isfinite(facts.end_s[own])]
        places = own - first_of_group[part.engine_group] + part.first
        if part.engine_group in earlier_stays:
            stay_rows = np.array(earlier_stays[part.engine_group])
            places = np.concatenate([part.first + member_of_stay[stay_rows - n_own], places])
            own = np.concatenate([stay_rows, own])
        rows.append(own)
        index.append(np.full(len(own), part.group))
        member.append(places)
        n_of_part.append(len(own))
        entered_s.append(np.full(len(own), part.at_s))
    row, group, place = (_whole(parts) for parts in (rows, index, member))
    earlier = np.array(
        [before[g][m] if g in before else 0 for g, m in zip(group, place, strict=True)],
        dtype=np.int64,
    )
    activity = Activity(
        group=group,
        member=place,
        replica=facts.replica[row],
        submit_s=np.concatenate(entered_s) if entered_s else np.empty(0),
        admit_s=facts.admit_s[row],
        first_token_s=facts.first_token_s[row],
        end_s=facts.end_s[row],
        generated_tokens=facts.generated_tokens[row] - earlier,
        status=facts.status[row],
        n_of_part=np.array(n_of_part, dtype=np.int64),
    )
    if collection.service:
        failed = np.array([stay.has_failed for stay in stays], dtype=np.bool_)
        is_lost, is_last = np.zeros(len(row), dtype=np.bool_), row < n_own
        is_lost[~is_last] = failed[row[~is_last] - n_own]
        activity = replace(activity, is_lost=is_lost, is_last=is_last)
    return row, activity


def _whole(parts: list[Int]) -> Int:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _counted(collection: Collection, shape: tuple[int, ...], *, size: int) -> Bool | None:
    if shape[1] == size and not collection.members:
        return None
    counted_PW = np.zeros(shape, dtype=np.bool_)
    counted_PW[:, :size] = True
    for index, members in collection.members.items():
        counted_PW[index] = False
        counted_PW[index, list(members)] = True
    return counted_PW


def _fates(
    collection: Collection,
    shape: tuple[int, ...],
    counted_PW: Bool | None,
    activity: Activity,
) -> Int | None:
    """Return what became of each response where that differs from its group's fate."""
    if counted_PW is None and not collection.trained_members:
        return None
    status_P = np.array(collection.status, dtype=np.int64)
    fate_PW = np.repeat(status_P[:, None], shape[1], axis=1)
    if counted_PW is not None:
        ended_PW = np.zeros(shape, dtype=np.bool_)
        ended_PW[activity.group, activity.member] = activity.status == FINISHED
        came_back = (status_P != ABORTED) & (status_P != CARRIED) & (status_P != FAILED)
        beside = ~counted_PW & came_back[:, None]
        fate_PW[beside] = np.where(ended_PW, SURPLUS, ABORTED)[beside]
    for index, members in collection.trained_members.items():
        if status_P[index] == TRAINED:
            fate_PW[index] = DEGENERATE
            fate_PW[index, list(members)] = TRAINED
    return fate_PW


@dataclass(frozen=True)
class Ages:
    """Ages in versions of what a step trains, as sums over its tokens and groups.

    ``token_versions`` is Σ age over tokens, ``old_tokens`` how many are older than the policy that
    learns, ``oldest`` the greatest age, ``group_versions`` Σ over groups of the age since their
    submission. Groups begun in the step itself are 0 old.
    """

    token_versions: int
    old_tokens: int
    oldest: int
    group_versions: int

    @classmethod
    def of(cls, collection: Collection) -> "Ages":
        """Return the ages of the groups that the step trains."""
        version = collection.trained_steps
        trained = [
            left
            for left, status in zip(collection.left, collection.status, strict=False)
            if status == TRAINED
        ]
        ages = [(version - v, n) for left in trained for v, n in left.by_version.items()]
        return cls(
            token_versions=sum(age * n for age, n in ages),
            old_tokens=sum(n for age, n in ages if age > 0),
            oldest=max((age for age, _ in ages), default=0),
            group_versions=sum(version - left.begun_version for left in trained),
        )


def mean_age(left: Left, *, version: int, tokens: int) -> float:
    """Return the mean age in versions over a group's tokens."""
    return sum((version - v) * n for v, n in left.by_version.items()) / tokens if tokens else 0.0
