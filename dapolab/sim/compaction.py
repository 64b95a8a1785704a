"""Keeping unfinished groups over the end of a step: their rows move to the front of the state.

Between steps nothing runs and nothing is queued: responses are finished or aborted, and only
aborted ones may still hold KV. So the kept rows need no clock, no heap and no queue; what stays is
their progress, their place (replica) and, where KV was kept, the store and the order of residents,
which decides who is evicted first.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dapolab.sim import decode

Ints = NDArray[np.int64]
_LINKS = [decode.NEXT, decode.PREVIOUS, decode.NEWER, decode.OLDER, decode.ABORT_NEXT]


def compact(state: decode.State, keep: Ints, *, at_s: float) -> None:
    """Forget everything but the groups ``keep``, which get the ids 0 … in this order.

    Generated tokens, lengths and kept KV stay; times, preemptions and counters start anew, so that
    what the engine reports afterwards is the new step's alone.

    Raises
    ------
    ValueError
        A group that is not kept still holds KV.
    """
    if len(keep) == 0:
        _clear(state, at_s=at_s)
        return
    group, ends_s = state.group[keep], state.group_s[keep]
    rows = _rows(group)
    response = state.response[rows]
    residents = [_residents(state, r) for r in range(len(state.replica) - 1)]
    stored = state.response[: int(state.setting[decode.N_RESPONSES]), decode.STORED]
    if np.count_nonzero(stored) != np.count_nonzero(response[:, decode.STORED]):
        raise ValueError("reset: a group that is not kept still holds KV; abort it without keep_kv")
    store = state.replica[:, [decode.STORE, decode.N_WAITING]].copy()
    _clear(state, at_s=at_s)
    n_groups, n_responses = len(keep), len(rows)
    state.setting[[decode.N_GROUPS_TOTAL, decode.N_RESPONSES]] = n_groups, n_responses
    group[:, decode.FIRST] = np.cumsum(group[:, decode.SIZE]) - group[:, decode.SIZE]
    group[:, [decode.EVENT_KIND, decode.EVENT_NEXT]] = -1
    state.group[:n_groups] = group
    state.group_s[:n_groups] = ends_s
    response[:, decode.GROUP] = np.repeat(np.arange(n_groups), group[:, decode.SIZE])
    response[:, _LINKS] = -1
    response[:, decode.FINISH] = -1
    response[:, [decode.PREEMPTIONS, decode.ABORT]] = 0
    state.response[:n_responses] = response
    state.response_s[:n_responses] = decode.UNSET
    state.replica[:, [decode.STORE, decode.N_WAITING]] = store
    new_row = {int(old): new for new, old in enumerate(rows)}
    for r, chain in enumerate(residents):
        _link(state, r, [new_row[old] for old in chain])


def extend(state: decode.State, groups: Ints, n_tokens_PG: Ints) -> None:
    """Let responses that reached their length go on to a new one; ``resume`` queues them again."""
    for g, lengths in zip(groups.tolist(), n_tokens_PG.astype(np.int64), strict=True):
        first, size = int(state.group[g, decode.FIRST]), int(state.group[g, decode.SIZE])
        rows = state.response[first : first + size]
        longer = (rows[:, decode.STATUS] == decode.FINISHED) & (lengths > rows[:, decode.LENGTH])
        rows[longer, decode.STATUS] = decode.ABORTED
        rows[:, decode.LENGTH] = np.maximum(lengths, rows[:, decode.LENGTH])
        state.group[g, decode.UNFINISHED] += int(longer.sum())


def go_on(state: decode.State, row: int, *, n_context: int, n_tokens: int) -> None:
    """Let one response that reached its length go on from another context to another length.

    Where its KV is held, the context may only have gained tokens: these are prefilled.
    """
    if state.response[row, decode.STATUS] != decode.FINISHED or n_context >= n_tokens:
        raise ValueError("go_on: the response has not ended, or has nothing left to generate")
    if state.response[row, decode.STORED]:
        gained = n_context - int(state.response[row, decode.GENERATED])
        if gained < 0:
            raise ValueError("go_on: held KV of another context; release it first")
        state.response[row, decode.LEFT] = gained
    state.response[row, decode.STATUS] = decode.ABORTED
    state.response[row, decode.GENERATED] = n_context
    state.response[row, decode.LENGTH] = n_tokens
    state.response[row, decode.PREEMPTIONS] = 0
    state.response_s[row] = decode.UNSET


def _rows(group: Ints) -> Ints:
    firsts, sizes = group[:, decode.FIRST], group[:, decode.SIZE]
    parts = [np.arange(first, first + size) for first, size in zip(firsts, sizes, strict=True)]
    return np.concatenate(parts).astype(np.int64)


def _clear(state: decode.State, *, at_s: float) -> None:
    setting = state.setting
    # what lies beyond has never been used: room grows by doubling
    state.response[: setting[decode.N_RESPONSES]] = 0
    state.group[: setting[decode.N_GROUPS_TOTAL]] = 0
    setting[[decode.N_GROUPS_TOTAL, decode.N_RESPONSES, decode.N_DONE]] = 0
    setting[[decode.NEXT_EVENT, decode.OFFERED]] = -1
    state.replica[:] = 0
    state.replica[:, [decode.HEAD, decode.TAIL, decode.ABORTS, decode.NEWEST]] = -1
    state.replica_s[:] = 0
    state.replica_s[:, decode.NEXT_S] = np.inf
    state.law[decode.NOW_S] = at_s


def _residents(state: decode.State, replica: int) -> list[int]:
    """Return the responses with KV on a replica, newest first (kept only where KV is limited)."""
    found, i = [], int(state.replica[replica, decode.NEWEST])
    while state.setting[decode.TRACK_STORE] and i >= 0:
        found.append(i)
        i = int(state.response[i, decode.OLDER])
    return found


def _link(state: decode.State, replica: int, newest_first: list[int]) -> None:
    if newest_first:
        state.replica[replica, decode.NEWEST] = newest_first[0]
    for newer, older in pairwise(newest_first):
        state.response[newer, decode.OLDER] = older
        state.response[older, decode.NEWER] = newer
