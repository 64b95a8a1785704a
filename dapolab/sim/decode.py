"""The compiled decode kernel: continuous batching on replicas, jumped from event to event.

The rules are those of the design's decode iteration; this docstring fixes what they leave open.

- At a boundary: finishes, aborts, submissions, then evictions (newest admitted first, each to the
  queue head), then, if the replica evicted nobody, admissions; then the iteration runs. Where the
  evictions leave a clock nothing to run, its boundary starts over at once, with admissions.
- A response with nothing to prefill decodes in the iteration that admits it. Its prompt counts in
  the context sum K and in the store, whether prefill is charged or not.
- A later member of a cached group needs only its own generated tokens (after an eviction). While
  the paying member's prefill is unfinished it holds its slot, costs nothing, and completes with the
  payer: first token at the end of the iteration that completes the payer's prefill.
- Admission reserves prompt + generated tokens at once. Decoding responses always take their token,
  prefills share what the token budget leaves. ``context_j`` is the context held at the chunk's end
  (so a whole prompt of T tokens costs q·T², as in the published fit).
- A group is in flight on a replica while one of its members holds a slot there.
- Shared queue: of the replicas at a boundary at this instant (idle ones always are), the one with
  the fewest running responses that can take the head gets it, lowest index on ties, one at a time.
- A prefill is complete when its own tokens and the group's prompt are; a resumed response whose KV
  was kept needs a slot of its own replica and nothing else, and is the newest there again.
- A queued response is aborted at the abort's time, a running one at the first boundary ≥ it. Kept
  KV (decoding responses only) stays stored and can be evicted like any other; where nothing runs
  and the head does not fit, kept KV is evicted until it does.
- KV can be held for a response that ended and will go on (a call of a tool). It counts, and yields:
  to growth before anybody is evicted, and to a queue head that fits once it has yielded. The one
  that ended first goes first, which is no preemption, and prefills all again. One that kept its KV
  needs its own replica, room for what its context has gained, and the prefill of that.
- Speculation is a mean field: while all that run on the replicas of a clock decode, at most
  ``max_batch`` on each, an iteration is a token of each at 1/E of what drafting and verifying take.

Between two membership changes n is constant and K grows by n an iteration, so m iterations take
``m·A + c·n·m(m−1)/2`` seconds: each clock keeps one such jump and cuts it at the first boundary at
or after an event that could change its membership. Clocks are the replicas, or one for all of them
(lockstep: an iteration lasts as long as its slowest replica, and a jump ends where the slowest one
changes). A response's finish is an integer tick of its clock, kept in a heap with lazy deletion.

All compiled code and its column numbers live in this one file, longer than the house's soft cap:
numba's on-disk cache is invalidated by the file's own timestamp, so code inlined from another file
could go stale unseen.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

INF = np.inf
UNSET = -1.0

# Response rows (int32): one cache line each.
GROUP, REPLICA, LENGTH, GENERATED, STATUS, FINISH, LEFT, PREEMPTIONS = range(8)
NEXT, PREVIOUS, NEWER, OLDER, ABORT, ABORT_NEXT, STORED, QUEUE = range(8, 16)
N_RESPONSE_COLUMNS = 16
# Response times (float64).
ADMIT_S, FIRST_S, END_S = range(3)
# Status.
NEW, QUEUED, RUNNING, ABORTED, FINISHED = range(5)
# KV held: none (0), held, held by the member that pays the group's prompt, held for a later stay,
# without the last LEFT tokens of its context.
HELD, PAYER, WAITING = 1, 2, 3
# Abort requests.
DROP, KEEP = 1, 2
# Group rows (int64) and times (float64).
FIRST, SIZE, PROMPT, UNFINISHED, LIVE, EVENT_KIND, EVENT_NEXT, DONE = range(8)
SUBMIT_S, GROUP_END_S, EVENT_S = range(3)
# Then, per replica: members stored, members running, whether the payer's prefill is unfinished.
N_STORED, N_RUNNING, PENDING = range(8, 11)
N_GROUP_COLUMNS, N_COUNTS = 8, 3
# Replica rows (int64); the last row is the shared queue. A clock uses the row of its index.
N, DECODING, CONTEXT, STORE, LOAD, HEAD, TAIL, ABORTS = range(8)
NEWEST, HEAP_SIZE, N_PREFILLING, N_FRESH, N_GROUPS, JOIN_N, JOIN_CONTEXT, EVICTED = range(8, 16)
ITERATIONS, PEAK_STORE, PEAK_N, PHASE, TICK, JUMP, N_PREEMPTIONS, BLOCKED, CLEARED = range(16, 25)
N_WAITING = 25
N_REPLICA_COLUMNS = 26
# Replica and clock floats.
BUSY_S, PREFILL_S, CONCURRENCY_S, PREFILL_NOW_S, START_S, NEXT_S, FIRST_ITERATION_S, SLOPE_S = (
    range(8)
)
# Phases of a clock: nothing to do, at a boundary whose iteration has not begun, in a jump.
IDLE, BOUNDARY, JUMPING = range(3)
# Settings and counters (int64).
N_REPLICAS, SLOTS, CAPACITY, BUDGET, MAX_GROUPS, PREFILL, CACHE, LOCKSTEP, SHARED = range(9)
BY_RESPONSE, N_GROUPS_TOTAL, N_RESPONSES, N_DONE, NEXT_EVENT, LAST_EVENT = range(9, 15)
LIVE_RESPONSES, LIVE_GROUPS, TRACK_STORE, TRACK_GROUPS, OFFERED = range(15, 20)
# First rows of the lists in ``work``: prefilling in admission order, awaiting a first token.
PREFILLING, FRESH = 20, 21
# Responses up to which a replica speculates (0: never).
SPECULATES = 22
N_SETTINGS = 23

# Law and clock (float64).
A_S, C_S, RATE_S, SLACK_S, ATTENTION_S, NOW_S, SPECULATIVE_C_S, BATCH_S = range(8)
# What may be wrong with a submission.
ACCEPTED, BAD_TIME, BAD_SIZE, BAD_PROMPT, BAD_LENGTH, NEVER_FITS = range(6)
# External events (a group has at most one ahead).
SUBMIT, RESUME_BACK, RESUME_FRONT = range(3)
LEAST_LOADED, FROM_SHARED = -1, -2
UNLIMITED = np.int64(2**62)
HUGE_JUMP = np.int64(2**31)
# Typed, so that a literal does not make numba compile a second copy of what it is passed to.
ZERO, ONE, NONE = np.int64(0), np.int64(1), np.int64(-1)
_MASK = np.int64(2**32 - 1)


# Without numba's reference counts: nothing here allocates, and counting every array access costs
# more than the simulation itself. Hot functions are inlined (a call would pass every field of
# State), cold ones are not, which keeps compiling short.
_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False, "error_model": "numpy"}
_compiled = njit(**_OPTIONS, forceinline=True)
_compiled_cold = njit(**_OPTIONS)


class State(NamedTuple):
    """Everything the kernel knows, in few arrays because each costs time to pass."""

    setting: NDArray[np.int64]
    law: NDArray[np.float64]  # law and clock, then for n = 0 … slots b(n), and a + b speculating
    response: NDArray[np.int32]
    response_s: NDArray[np.float64]
    group: NDArray[np.int64]
    group_s: NDArray[np.float64]
    replica: NDArray[np.int64]
    replica_s: NDArray[np.float64]
    work: NDArray[np.int64]  # rows of R replicas: finish heaps, prefilling, fresh


# ---------------------------------------------------------------------------------- finish heap


@_compiled
def _heap_push(s, r, key):
    size = s.replica[r, HEAP_SIZE]
    if size == s.work.shape[1]:
        size = _heap_compact(s, r)
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        above = s.work[r, parent]
        if above <= key:
            break
        s.work[r, hole] = above
        hole = parent
    s.work[r, hole] = key
    s.replica[r, HEAP_SIZE] = size + 1


@_compiled
def _heap_pop(s, r):
    size = s.replica[r, HEAP_SIZE] - 1
    s.replica[r, HEAP_SIZE] = size
    key = s.work[r, size]
    _sift_down(s, r, size, ZERO, key)


@_compiled
def _sift_down(s, r, size, hole, key):
    child = 2 * hole + 1
    while child < size:
        if child + 1 < size and s.work[r, child + 1] < s.work[r, child]:
            child += 1
        if key <= s.work[r, child]:
            break
        s.work[r, hole] = s.work[r, child]
        hole = child
        child = 2 * hole + 1
    s.work[r, hole] = key


@_compiled
def _is_valid(s, r, key):
    """Tell whether a heap entry is the present finish of a response that runs on ``r``."""
    i = key & _MASK
    if s.response[i, FINISH] != key >> 32:
        return False
    return s.response[i, STATUS] == RUNNING and s.response[i, REPLICA] == r


@_compiled_cold
def _heap_compact(s, r):
    """Drop stale and double entries; at most SLOTS remain, so half the heap comes free."""
    valid = ZERO
    for j in range(s.replica[r, HEAP_SIZE]):
        key = s.work[r, j]
        if _is_valid(s, r, key):
            s.response[key & _MASK, FINISH] = -1  # seen
            s.work[r, valid] = key
            valid += 1
    for j in range(valid):
        s.response[s.work[r, j] & _MASK, FINISH] = s.work[r, j] >> 32
    for start in range(valid // 2 - 1, -1, -1):
        _sift_down(s, r, valid, start, s.work[r, start])
    s.replica[r, HEAP_SIZE] = valid
    return valid


@_compiled
def _next_finish(s, r):
    """Tick of the next finish on ``r``, or −1; stale entries at the top are dropped."""
    while s.replica[r, HEAP_SIZE] > 0:
        key = s.work[r, 0]
        if _is_valid(s, r, key):
            return key >> 32
        _heap_pop(s, r)
    return NONE


# ---------------------------------------------------------------------- queues and resident lists


@_compiled
def _append(s, q, i):
    tail = s.replica[q, TAIL]
    s.response[i, NEXT] = -1
    s.response[i, PREVIOUS] = tail
    s.response[i, QUEUE] = q
    if tail >= 0:
        s.response[tail, NEXT] = i
    else:
        s.replica[q, HEAD] = i
    s.replica[q, TAIL] = i


@_compiled
def _prepend(s, q, i):
    head = s.replica[q, HEAD]
    s.response[i, PREVIOUS] = -1
    s.response[i, NEXT] = head
    s.response[i, QUEUE] = q
    if head >= 0:
        s.response[head, PREVIOUS] = i
    else:
        s.replica[q, TAIL] = i
    s.replica[q, HEAD] = i


@_compiled
def _unqueue(s, i):
    q = s.response[i, QUEUE]
    before = s.response[i, PREVIOUS]
    after = s.response[i, NEXT]
    if before >= 0:
        s.response[before, NEXT] = after
    else:
        s.replica[q, HEAD] = after
    if after >= 0:
        s.response[after, PREVIOUS] = before
    else:
        s.replica[q, TAIL] = before


@_compiled
def _link_resident(s, r, i):
    newest = s.replica[r, NEWEST]
    s.response[i, OLDER] = newest
    s.response[i, NEWER] = -1
    if newest >= 0:
        s.response[newest, NEWER] = i
    s.replica[r, NEWEST] = i


@_compiled
def _unlink_resident(s, r, i):
    older = s.response[i, OLDER]
    newer = s.response[i, NEWER]
    if newer >= 0:
        s.response[newer, OLDER] = older
    else:
        s.replica[r, NEWEST] = older
    if older >= 0:
        s.response[older, NEWER] = newer


# -------------------------------------------------------------------------- membership of a batch


@_compiled
def _clock_of(s, r):
    return np.int64(0) if s.setting[LOCKSTEP] else r


@_compiled
def _has_place(s, r, i):
    """Whether slots and groups in flight of ``r`` allow response ``i``."""
    if s.replica[r, N] >= s.setting[SLOTS]:
        return False
    if s.setting[TRACK_GROUPS]:
        full = s.replica[r, N_GROUPS] >= s.setting[MAX_GROUPS]
        if full and s.group[s.response[i, GROUP], N_RUNNING + 3 * r] == 0:
            return False
    return True


@_compiled
def _fits(s, r, i):
    """Whether ``r`` may admit response ``i`` now: slots, groups in flight, capacity."""
    if not _has_place(s, r, i):
        return False
    stored = s.response[i, STORED]
    if s.setting[TRACK_STORE] and (stored == 0 or stored == WAITING):
        return s.replica[r, STORE] + _need(s, r, i) <= s.setting[CAPACITY]
    return True


@_compiled
def _need(s, r, i):
    """Tokens that the store of ``r`` must take to have all of response ``i``."""
    if s.response[i, STORED] == WAITING:
        return np.int64(s.response[i, LEFT])
    g = s.response[i, GROUP]
    need = np.int64(s.response[i, GENERATED])
    if not (s.setting[CACHE] and s.group[g, N_STORED + 3 * r] > 0):
        need += s.group[g, PROMPT]
    return need


@_compiled
def _admit(s, r, i, now):
    g = np.int64(s.response[i, GROUP])
    s.response[i, STATUS] = RUNNING
    s.response[i, REPLICA] = r
    s.replica[r, N] += 1
    if s.replica[r, N] > s.replica[r, PEAK_N]:
        s.replica[r, PEAK_N] = s.replica[r, N]
    if s.response_s[i, ADMIT_S] < 0:
        s.response_s[i, ADMIT_S] = now
    if s.setting[TRACK_GROUPS]:
        s.group[g, N_RUNNING + 3 * r] += 1
        if s.group[g, N_RUNNING + 3 * r] == 1:
            s.replica[r, N_GROUPS] += 1
    left = _store(s, r, i, g)
    s.response[i, LEFT] = left
    if left > 0 or (s.setting[CACHE] and s.group[g, PENDING + 3 * r]):
        s.response[i, FINISH] = -1
        s.work[s.setting[PREFILLING] + r, s.replica[r, N_PREFILLING]] = i
        s.replica[r, N_PREFILLING] += 1
        return
    generated = np.int64(s.response[i, GENERATED])
    s.replica[r, DECODING] += 1
    s.replica[r, CONTEXT] += s.group[g, PROMPT] + generated
    _begin_decoding(s, r, i, generated)


@_compiled
def _store(s, r, i, g):
    """Give response ``i`` its KV on ``r``; return the tokens it must prefill."""
    if s.setting[TRACK_STORE] and s.response[i, STORED]:
        _unlink_resident(s, r, i)
        _link_resident(s, r, i)
    if s.response[i, STORED] == WAITING:
        gained = _need(s, r, i)
        s.replica[r, STORE] += gained
        s.replica[r, N_WAITING] -= 1
        s.response[i, STORED] = HELD
        return gained if s.setting[PREFILL] else np.int64(0)
    if s.response[i, STORED]:
        return np.int64(0)
    need = _need(s, r, i)
    s.replica[r, STORE] += need
    s.response[i, STORED] = HELD
    if s.setting[TRACK_STORE]:
        _link_resident(s, r, i)
    left = need if s.setting[PREFILL] else np.int64(0)
    if s.setting[CACHE]:
        s.group[g, N_STORED + 3 * r] += 1
        if s.group[g, N_STORED + 3 * r] == 1 and left > 0:
            s.group[g, PENDING + 3 * r] = 1
            s.response[i, STORED] = PAYER
    return left


@_compiled
def _begin_decoding(s, r, i, generated):
    finish = s.replica[_clock_of(s, r), TICK] + np.int64(s.response[i, LENGTH]) - generated
    s.response[i, FINISH] = finish
    _heap_push(s, r, (finish << 32) | i)
    if generated == 0:
        s.work[s.setting[FRESH] + r, s.replica[r, N_FRESH]] = i
        s.replica[r, N_FRESH] += 1


@_compiled
def _vacate(s, r, i):
    """Take a running response out of its slot; its KV stays."""
    g = s.response[i, GROUP]
    finish = s.response[i, FINISH]
    if finish >= 0:
        tick = s.replica[_clock_of(s, r), TICK]
        generated = s.response[i, LENGTH] - (finish - tick)
        s.response[i, GENERATED] = generated
        s.response[i, FINISH] = -1
        s.replica[r, DECODING] -= 1
        s.replica[r, CONTEXT] -= s.group[g, PROMPT] + generated
    else:
        kept = 0
        for j in range(s.replica[r, N_PREFILLING]):
            other = s.work[s.setting[PREFILLING] + r, j]
            if other != i:
                s.work[s.setting[PREFILLING] + r, kept] = other
                kept += 1
        s.replica[r, N_PREFILLING] = kept
    s.replica[r, N] -= 1
    if s.setting[TRACK_GROUPS]:
        s.group[g, N_RUNNING + 3 * r] -= 1
        if s.group[g, N_RUNNING + 3 * r] == 0:
            s.replica[r, N_GROUPS] -= 1


@_compiled
def _free(s, r, i):
    """Give up the KV of response ``i``; a cached prompt goes with its last member."""
    g = s.response[i, GROUP]
    freed = np.int64(s.response[i, GENERATED])
    if s.response[i, STORED] == WAITING:
        freed -= s.response[i, LEFT]
        s.replica[r, N_WAITING] -= 1
    s.response[i, STORED] = 0
    if s.setting[CACHE]:
        s.group[g, N_STORED + 3 * r] -= 1
        if s.group[g, N_STORED + 3 * r] == 0:
            freed += s.group[g, PROMPT]
            s.group[g, PENDING + 3 * r] = 0
    else:
        freed += s.group[g, PROMPT]
    s.replica[r, STORE] -= freed
    if s.setting[TRACK_STORE]:
        _unlink_resident(s, r, i)


# ---------------------------------------------------------------------------- end of a jump


@_compiled
def _finish(s, r, i, now):
    _vacate(s, r, i)
    _free(s, r, i)
    g = np.int64(s.response[i, GROUP])
    s.response[i, STATUS] = FINISHED
    s.response_s[i, END_S] = now
    s.replica[r, LOAD] -= 1 - (s.response[i, ABORT] > 0)
    _leave(s, g)
    s.group[g, UNFINISHED] -= 1
    if s.group_s[g, GROUP_END_S] < now:
        s.group_s[g, GROUP_END_S] = now
    if s.group[g, UNFINISHED] == 0:
        s.group[s.setting[N_DONE], DONE] = g
        s.setting[N_DONE] += 1


@_compiled
def _leave(s, g):
    s.setting[LIVE_RESPONSES] -= 1
    s.group[g, LIVE] -= 1
    if s.group[g, LIVE] == 0:
        s.setting[LIVE_GROUPS] -= 1


@_compiled
def _land(s, clock):
    """End the jump of ``clock``: tokens, prefills that completed, finishes."""
    now = s.replica_s[clock, NEXT_S]
    m = s.replica[clock, JUMP]
    took = now - s.replica_s[clock, START_S]
    s.replica[clock, TICK] += m
    tick = s.replica[clock, TICK]
    first, last = (0, s.setting[N_REPLICAS]) if s.setting[LOCKSTEP] else (clock, clock + 1)
    for r in range(first, last):
        if s.replica[r, N] == 0:
            continue
        n = s.replica[r, DECODING]
        s.replica[r, ITERATIONS] += m
        s.replica_s[r, BUSY_S] += took
        s.replica_s[r, CONCURRENCY_S] += took * s.replica[r, N]
        s.replica_s[r, PREFILL_S] += s.replica_s[r, PREFILL_NOW_S]
        peak = s.replica[r, STORE] + n * (m - 1)
        if peak > s.replica[r, PEAK_STORE]:
            s.replica[r, PEAK_STORE] = peak
        s.replica[r, STORE] += n * m + s.replica[r, JOIN_N]
        s.replica[r, CONTEXT] += n * m + s.replica[r, JOIN_CONTEXT]
        s.replica[r, DECODING] += s.replica[r, JOIN_N]
        while True:
            finish = _next_finish(s, r)
            if finish < 0 or finish > tick:
                break
            i = s.work[r, 0] & _MASK
            _heap_pop(s, r)
            _finish(s, r, i, now)
    s.replica[clock, PHASE] = BOUNDARY
    s.replica_s[clock, START_S] = now
    s.replica_s[clock, NEXT_S] = now


# ---------------------------------------------------------------------------- start of a jump


@_compiled_cold
def _apply_aborts(s, r, now):
    i = s.replica[r, ABORTS]
    s.replica[r, ABORTS] = -1
    while i >= 0:
        keep = s.response[i, ABORT] == KEEP
        s.response[i, ABORT] = 0
        if s.response[i, STATUS] == RUNNING:
            keep = keep and s.response[i, FINISH] >= 0
            _vacate(s, r, i)
            _end_aborted(s, i, now)
        elif s.response[i, STATUS] == QUEUED:
            _unqueue(s, i)
            _end_aborted(s, i, now)
        if s.response[i, STORED] and not keep:
            _free(s, r, i)
        i = np.int64(s.response[i, ABORT_NEXT])


@_compiled
def _end_aborted(s, i, now):
    s.response[i, STATUS] = ABORTED
    s.response_s[i, END_S] = now
    _leave(s, np.int64(s.response[i, GROUP]))


@_compiled
def _evict_newest(s, r):
    i = s.replica[r, NEWEST]
    if s.response[i, STORED] != WAITING:
        s.response[i, PREEMPTIONS] += 1
        s.replica[r, N_PREEMPTIONS] += 1
    if s.response[i, STATUS] == RUNNING:
        _vacate(s, r, i)
        s.response[i, STATUS] = QUEUED
        _prepend(s, s.setting[N_REPLICAS] if s.setting[SHARED] else r, i)
    _free(s, r, i)


@_compiled_cold
def _evict_surplus(s, r):
    """Let KV that waits yield, then evict the newest, until the store fits the capacity."""
    while s.replica[r, STORE] > s.setting[CAPACITY]:
        if s.replica[r, N_WAITING] > 0:
            _free(s, r, _longest_waiting(s, r, NONE))
            continue
        _evict_newest(s, r)
        s.replica[r, EVICTED] = 1


@_compiled_cold
def _longest_waiting(s, r, but):
    """Return the response that ended first of those with waiting KV on ``r``; −1, if ``but``."""
    found = NONE
    i = s.replica[r, NEWEST]
    while i >= 0:
        if s.response[i, STORED] == WAITING and i != but:
            found = i
        i = np.int64(s.response[i, OLDER])
    return found


@_compiled_cold
def _fits_beside_running(s, r, i):
    """Whether ``r`` may admit response ``i`` once all other KV that waits there has yielded."""
    if s.replica[r, N_WAITING] == 0 or not _has_place(s, r, i):
        return False
    room = s.setting[CAPACITY] - s.replica[r, STORE]
    for step in (-1, 1):  # as if they were freed, and back
        if step > 0:
            room -= _need(s, r, i)
        j = s.replica[r, NEWEST]
        while j >= 0:
            if s.response[j, STORED] == WAITING and j != i:
                g = s.response[j, GROUP]
                if s.setting[CACHE]:
                    s.group[g, N_STORED + 3 * r] += step
                if step < 0:
                    room += s.response[j, GENERATED] - s.response[j, LEFT]
                    if not s.setting[CACHE] or s.group[g, N_STORED + 3 * r] == 0:
                        room += s.group[g, PROMPT]
            j = np.int64(s.response[j, OLDER])
    return room >= 0


@_compiled
def _can_take(s, r, i):
    """Whether ``r`` may admit response ``i`` now, KV that waits yielding where that suffices."""
    return _fits(s, r, i) or _fits_beside_running(s, r, i)


@_compiled_cold
def _let_yield(s, r, i):
    """Free waiting KV, of what ended first first, until response ``i`` fits."""
    while not _fits(s, r, i):
        _free(s, r, _longest_waiting(s, r, i))


@_compiled
def _clear(s, r, now):
    """Do steps 1 and 2 of a boundary: aborts, then evictions."""
    s.replica[r, N_FRESH] = 0
    s.replica[r, JOIN_N] = 0
    s.replica[r, JOIN_CONTEXT] = 0
    s.replica[r, EVICTED] = 0
    s.replica[r, BLOCKED] = 0
    s.replica_s[r, PREFILL_NOW_S] = 0.0
    if s.replica[r, ABORTS] >= 0:
        _apply_aborts(s, r, now)
    if s.setting[TRACK_STORE] and s.replica[r, STORE] > s.setting[CAPACITY]:
        _evict_surplus(s, r)


@_compiled_cold
def _make_room(s, r, i):
    """Where nothing runs, kept KV yields to the queue head."""
    while s.replica[r, N] == 0 and not _fits(s, r, i):
        _evict_newest(s, r)


@_compiled_cold
def _admit_queue(s, q, r, most, now):
    """Step 3: admit the head of queue ``q`` to ``r``, ``most`` times; False if it does not fit."""
    for _ in range(most):
        i = s.replica[q, HEAD]
        if i < 0:
            break
        if s.replica[r, N_WAITING] > 0 and _fits_beside_running(s, r, i):
            _let_yield(s, r, i)
        if s.replica[r, N] == 0:
            _make_room(s, r, i)
        if not _fits(s, r, i):
            return False
        _unqueue(s, i)
        _admit(s, r, i, now)
    return True


@_compiled_cold
def _prefill(s, r):
    """Step 4: share the token budget; returns whether the iteration prefills anything."""
    rest = UNLIMITED
    if s.setting[BUDGET] < UNLIMITED:
        rest = max(np.int64(0), s.setting[BUDGET] - s.replica[r, DECODING])
    total = np.int64(0)
    attention = np.int64(0)
    waiting = 0
    for j in range(s.replica[r, N_PREFILLING]):
        i = s.work[s.setting[PREFILLING] + r, j]
        g = np.int64(s.response[i, GROUP])
        left = np.int64(s.response[i, LEFT])
        take = min(left, rest)
        rest -= take
        left -= take
        total += take
        held = s.group[g, PROMPT] + s.response[i, GENERATED]
        attention += take * (held - left)
        s.response[i, LEFT] = left
        if left == 0 and s.response[i, STORED] == PAYER:
            s.group[g, PENDING + 3 * r] = 0
        if left > 0 or (s.setting[CACHE] and s.group[g, PENDING + 3 * r]):
            s.work[s.setting[PREFILLING] + r, waiting] = i
            waiting += 1
            continue
        s.replica[r, JOIN_N] += 1
        s.replica[r, JOIN_CONTEXT] += held + 1
        _begin_decoding(s, r, i, np.int64(s.response[i, GENERATED]))
    s.replica[r, N_PREFILLING] = waiting
    linear = max(0.0, s.law[RATE_S] * total - s.law[SLACK_S])
    s.replica_s[r, PREFILL_NOW_S] = linear + s.law[ATTENTION_S] * attention
    return total > 0


@_compiled
def _longest_jump(s, r, tick):
    """Return the iterations until ``r`` finishes a response or outgrows its capacity."""
    m = HUGE_JUMP
    finish = _next_finish(s, r)
    if finish >= 0:
        m = finish - tick
    n = s.replica[r, DECODING]
    if s.setting[TRACK_STORE] and n > 0:
        free = s.setting[CAPACITY] - s.replica[r, STORE]
        if n * (m - 1) > free:
            m = free // n + 1
    if s.replica[r, EVICTED]:
        # Nobody was admitted at this boundary because of the eviction; the next one may.
        for q in (r, s.setting[N_REPLICAS]):
            if s.replica[q, HEAD] >= 0 and _fits(s, r, s.replica[q, HEAD]):
                m = ONE
    return m


@_compiled
def _speculates(s, first, last):
    """Whether the replicas of a clock, ``first`` to before ``last``, speculate from now on."""
    most = s.setting[SPECULATES]
    if most == 0:
        return False
    for r in range(first, last):
        if s.replica[r, DECODING] > most or s.replica[r, N_PREFILLING] > 0:
            return False
    return True


@_compiled
def _iteration_s(s, r, speculates):
    """Seconds in which everyone that decodes on ``r`` gains a token."""
    n = s.replica[r, DECODING]
    if speculates:
        fixed = s.law[BATCH_S + s.setting[SLOTS] + 1 + n]
        return fixed + s.law[SPECULATIVE_C_S] * s.replica[r, CONTEXT]
    context = s.law[C_S] * s.replica[r, CONTEXT]
    return s.law[A_S] + s.law[BATCH_S + n] + context + s.replica_s[r, PREFILL_NOW_S]


@_compiled
def _plan(s, clock):
    """Do steps 4 and 5: start the longest jump without a change of membership."""
    first, last = (0, s.setting[N_REPLICAS]) if s.setting[LOCKSTEP] else (clock, clock + 1)
    tick = s.replica[clock, TICK]
    m = HUGE_JUMP
    slowest, slope, running, prefills = -1.0, 0.0, 0, False
    speculates = _speculates(s, first, last)
    context_s = s.law[SPECULATIVE_C_S] if speculates else s.law[C_S]
    for r in range(first, last):
        if s.replica[r, N] == 0:
            continue
        running += 1
        if s.replica[r, N_PREFILLING] > 0 and _prefill(s, r):
            prefills = True
        took = _iteration_s(s, r, speculates)
        growth = context_s * s.replica[r, DECODING]
        if took > slowest or (took == slowest and growth > slope):
            slowest, slope = took, growth
    if running == 0:
        _rest(s, clock, first, last)
        return
    if prefills:
        m = np.int64(1)
    else:
        for r in range(first, last):
            if s.replica[r, N] > 0:
                m = min(m, _longest_jump(s, r, tick))
            elif s.replica[r, EVICTED]:
                m = ONE  # lockstep: it starts over at the next boundary
        if running > 1:
            m = min(m, _until_overtaken(s, slowest, slope, speculates))
    now = s.replica_s[clock, START_S]
    s.replica[clock, PHASE] = JUMPING
    s.replica[clock, JUMP] = m
    s.replica_s[clock, FIRST_ITERATION_S] = slowest
    s.replica_s[clock, SLOPE_S] = slope
    s.replica_s[clock, NEXT_S] = _boundary_s(s, clock, m)
    for r in range(first, last):
        for j in range(s.replica[r, N_FRESH]):
            s.response_s[s.work[s.setting[FRESH] + r, j], FIRST_S] = now + slowest
        s.replica[r, N_FRESH] = 0


@_compiled
def _rest(s, clock, first, last):
    """Nothing runs: wait for an event; ticks start again, so stale finishes are dropped."""
    s.replica[clock, PHASE] = IDLE
    s.replica_s[clock, NEXT_S] = INF
    s.replica[clock, TICK] = 0
    for r in range(first, last):
        s.replica[r, HEAP_SIZE] = 0


@_compiled
def _until_overtaken(s, slowest, slope, speculates):
    """Lockstep: iterations for which the slowest replica stays the slowest."""
    m = HUGE_JUMP
    context_s = s.law[SPECULATIVE_C_S] if speculates else s.law[C_S]
    for r in range(s.setting[N_REPLICAS]):
        if s.replica[r, N] > 0:
            steeper = context_s * s.replica[r, DECODING] - slope
            if steeper > 0:
                lead = (slowest - _iteration_s(s, r, speculates)) / steeper
                if lead < HUGE_JUMP:
                    m = min(m, np.int64(lead) + 1)
    return m


@_compiled
def _boundary_s(s, clock, m):
    """Time of the m-th boundary of the present jump."""
    took = m * s.replica_s[clock, FIRST_ITERATION_S]
    growth = s.replica_s[clock, SLOPE_S] * (0.5 * m * (m - 1))
    return s.replica_s[clock, START_S] + (took + growth)


@_compiled_cold
def _first_boundary(s, clock, at):
    """Return the number of the jump's first boundary at or after ``at``, at most its last."""
    first = s.replica_s[clock, FIRST_ITERATION_S]
    slope = s.replica_s[clock, SLOPE_S]
    span = at - s.replica_s[clock, START_S]
    m = ONE
    if span > 0 and first > 0 and slope > 0:
        half = first - 0.5 * slope
        root = np.sqrt(half * half + 2.0 * slope * span) + half
        m = np.int64(min(2.0 * span / root, 2.0**31))
    elif span > 0 and first > 0:
        m = np.int64(min(span / first, 2.0**31))
    m = max(ONE, min(m, s.replica[clock, JUMP]))
    while m > 1 and _boundary_s(s, clock, m - 1) >= at:
        m -= 1
    while m < s.replica[clock, JUMP] and _boundary_s(s, clock, m) < at:
        m += 1
    return m


@_compiled
def _cut(s, clock, at):
    """End the jump of ``clock`` at its first boundary at or after ``at``."""
    m = _first_boundary(s, clock, at)
    s.replica[clock, JUMP] = m
    s.replica_s[clock, NEXT_S] = _boundary_s(s, clock, m)


@_compiled
def _wake(s, clock, at):
    """Something may change the membership of ``clock`` at ``at``: bring a boundary there."""
    if s.replica[clock, PHASE] == IDLE:
        s.replica[clock, PHASE] = BOUNDARY
        s.replica_s[clock, START_S] = at
        s.replica_s[clock, NEXT_S] = at
    elif s.replica[clock, PHASE] == JUMPING:
        _cut(s, clock, at)


@_compiled
def _start(s, clock, now):
    """Begin the iterations due now: of one clock, or of all at a boundary that share a queue."""
    shared = s.setting[SHARED]
    first, last = (
        (0, s.setting[N_REPLICAS]) if s.setting[LOCKSTEP] or shared else (clock, clock + 1)
    )
    running, evicted = 0, 0
    for r in range(first, last):
        if shared:
            if s.replica[_clock_of(s, r), PHASE] == IDLE:
                _wake(s, _clock_of(s, r), now)
            if s.replica[r, CLEARED] or not _is_ready(s, _clock_of(s, r), now):
                continue
            s.replica[r, CLEARED] = 1
        _clear(s, r, now)
        if not s.replica[r, EVICTED]:
            s.replica[r, BLOCKED] = not _admit_queue(s, r, r, UNLIMITED, now)
        running += s.replica[r, N]
        evicted += s.replica[r, EVICTED]
    if shared:
        if s.replica[s.setting[N_REPLICAS], HEAD] >= 0 and _gather(s, now):
            return
        _share(s, now)
    elif running == 0 and evicted > 0:
        for r in range(first, last):
            _admit_queue(s, r, r, UNLIMITED, now)
    if s.setting[LOCKSTEP]:
        last = 1
    for d in range(first, last):
        if not shared or _is_ready(s, d, now):
            _plan(s, d)
    if shared:
        for r in range(s.setting[N_REPLICAS]):
            s.replica[r, CLEARED] = 0


@_compiled
def _is_ready(s, clock, now):
    return s.replica[clock, PHASE] == BOUNDARY and s.replica_s[clock, START_S] == now


@_compiled_cold
def _gather(s, now):
    """Bring clocks with a boundary at exactly ``now`` to it; returns whether there were any.

    All replicas at a boundary share the queue together, so the start waits for them to land.
    """
    found = False
    for clock in range(1 if s.setting[LOCKSTEP] else s.setting[N_REPLICAS]):
        if s.replica[clock, PHASE] == JUMPING and s.replica_s[clock, NEXT_S] > now:
            m = _first_boundary(s, clock, now)
            if _boundary_s(s, clock, m) == now:
                s.replica[clock, JUMP] = m
                s.replica_s[clock, NEXT_S] = now
                found = True
    return found


@_compiled_cold
def _share(s, now):
    """Hand out the shared queue, one response at a time, until its head fits nowhere."""
    shared = s.setting[N_REPLICAS]
    while s.replica[shared, HEAD] >= 0:
        i = s.replica[shared, HEAD]
        best = NONE
        for r in range(shared):
            if not _is_ready(s, _clock_of(s, r), now):
                continue
            if s.replica[r, EVICTED] or s.replica[r, BLOCKED]:
                continue
            if best >= 0 and s.replica[r, N] >= s.replica[best, N]:
                continue
            if s.replica[r, N] == 0 or _can_take(s, r, i):
                best = r
        if best < 0 and not _restart_empty(s, now):
            break
        if best >= 0:
            _admit_queue(s, shared, best, ONE, now)


@_compiled_cold
def _restart_empty(s, now):
    """Start over where evictions left a clock nothing to run; returns whether that happened."""
    again = False
    for clock in range(1 if s.setting[LOCKSTEP] else s.setting[N_REPLICAS]):
        if not _is_ready(s, clock, now):
            continue
        first, last = (0, s.setting[N_REPLICAS]) if s.setting[LOCKSTEP] else (clock, clock + 1)
        running, evicted = 0, 0
        for r in range(first, last):
            running += s.replica[r, N]
            evicted += s.replica[r, EVICTED]
        if running == 0 and evicted > 0:
            again = True
            for r in range(first, last):
                s.replica[r, EVICTED] = 0
                s.replica[r, BLOCKED] = not _admit_queue(s, r, r, UNLIMITED, now)
    return again


@_compiled_cold
def _offer(s, at):
    """Bring the clocks with room for a new shared head to a boundary at or after ``at``."""
    n_replicas = s.setting[N_REPLICAS]
    i = s.replica[n_replicas, HEAD]
    s.setting[OFFERED] = i
    if i < 0:
        return
    for r in range(n_replicas):
        clock = _clock_of(s, r)
        if s.replica[clock, PHASE] == IDLE or _can_take(s, r, i):
            _wake(s, clock, at)


# ------------------------------------------------------------------------------ external events


@_compiled
def _refusal(s, earliest, times, prompts, sizes, lengths):
    """Return what is wrong with a submission, and with which group or response of it."""
    k = 0
    for p in range(sizes.size):
        if not earliest <= times[p] < INF:
            return BAD_TIME, p
        earliest = times[p]
        if sizes[p] < 1 or k + sizes[p] > lengths.size:
            return BAD_SIZE, p
        if prompts[p] < 0:
            return BAD_PROMPT, p
        for _ in range(sizes[p]):
            if lengths[k] < 1:
                return BAD_LENGTH, k
            if prompts[p] + lengths[k] > s.setting[CAPACITY]:
                return NEVER_FITS, k
            k += 1
    return (ACCEPTED, 0) if k == lengths.size else (BAD_SIZE, sizes.size)


@_compiled_cold
def register(s, earliest, times, prompts, sizes, lengths, replicas):
    """Write new groups and their submission events, or return why not and which."""
    refusal, which = _refusal(s, earliest, times, prompts, sizes, lengths)
    if refusal != ACCEPTED:
        return refusal, which
    k = 0
    for p in range(sizes.size):
        g = s.setting[N_GROUPS_TOTAL]
        i = s.setting[N_RESPONSES]
        s.group[g, FIRST] = i
        s.group[g, SIZE] = sizes[p]
        s.group[g, UNFINISHED] = sizes[p]
        s.group[g, LIVE] = sizes[p]
        s.group[g, PROMPT] = prompts[p]
        s.group_s[g, SUBMIT_S] = times[p]
        s.group_s[g, GROUP_END_S] = UNSET
        for member in range(i, i + sizes[p]):
            s.response[member, GROUP] = g
            s.response[member, REPLICA] = replicas[k]
            s.response[member, LENGTH] = lengths[k]
            s.response[member, FINISH] = -1
            s.response_s[member, ADMIT_S] = UNSET
            s.response_s[member, FIRST_S] = UNSET
            s.response_s[member, END_S] = UNSET
            k += 1
        s.setting[N_GROUPS_TOTAL] = g + 1
        s.setting[N_RESPONSES] = i + sizes[p]
        s.setting[LIVE_RESPONSES] += sizes[p]
        s.setting[LIVE_GROUPS] += 1
        _schedule(s, times[p], SUBMIT, g)
    return ACCEPTED, 0


@_compiled
def _schedule(s, at, kind, g):
    s.group[g, EVENT_KIND] = kind
    s.group[g, EVENT_NEXT] = -1
    s.group_s[g, EVENT_S] = at
    if s.setting[NEXT_EVENT] < 0:
        s.setting[NEXT_EVENT] = g
    else:
        s.group[s.setting[LAST_EVENT], EVENT_NEXT] = g
    s.setting[LAST_EVENT] = g


@_compiled
def _lightest(s):
    best = ZERO
    for r in range(1, s.setting[N_REPLICAS]):
        if s.replica[r, LOAD] < s.replica[best, LOAD]:
            best = r
    return best


@_compiled
def _enqueue(s, i, front, at):
    """Put response ``i`` on the queue of its replica, or on the shared one."""
    shared = s.setting[N_REPLICAS]
    s.response[i, STATUS] = QUEUED
    r = np.int64(s.response[i, REPLICA])
    if r >= 0:
        s.replica[r, LOAD] += 1
    q = r
    if s.setting[SHARED] and not s.response[i, STORED]:
        q = shared
    if front:
        _prepend(s, q, i)
    else:
        _append(s, q, i)
    if q != shared and s.replica[q, HEAD] == i and s.replica[q, N] < s.setting[SLOTS]:
        _wake(s, _clock_of(s, q), at)


@_compiled_cold
def _release(s, kind, g, at):
    """Let a submission or a resume take place: dispatch the members of group ``g``."""
    first = s.group[g, FIRST]
    size = s.group[g, SIZE]
    wanted = NEW if kind == SUBMIT else ABORTED
    replica = NONE
    for j in range(size):
        i = first + size - 1 - j if kind == RESUME_FRONT else first + j
        if s.response[i, STATUS] != wanted:
            continue
        s.response_s[i, END_S] = UNSET
        if s.response[i, REPLICA] == LEAST_LOADED:
            if replica < 0 or s.setting[BY_RESPONSE]:
                replica = _lightest(s)
            s.response[i, REPLICA] = replica
        _enqueue(s, i, kind == RESUME_FRONT, at)


@_compiled_cold
def resume(s, at, groups, front):
    """Schedule the aborted members of ``groups``; returns how many there are."""
    n_resumed = 0
    for j in range(groups.size):
        g = groups[groups.size - 1 - j] if front else groups[j]
        n_aborted = 0
        for i in range(s.group[g, FIRST], s.group[g, FIRST] + s.group[g, SIZE]):
            n_aborted += s.response[i, STATUS] == ABORTED
        if n_aborted == 0:
            continue
        if s.group[g, LIVE] == 0:
            s.setting[LIVE_GROUPS] += 1
        s.group[g, LIVE] += n_aborted
        s.setting[LIVE_RESPONSES] += n_aborted
        n_resumed += n_aborted
        _schedule(s, at, RESUME_FRONT if front else RESUME_BACK, g)
    return n_resumed


@_compiled_cold
def abort(s, at, groups, keep):
    """Abort the members of ``groups`` that are queued or running (and drop kept KV)."""
    for j in range(groups.size):
        g = groups[j]
        if s.group[g, EVENT_KIND] >= 0:
            continue
        for i in range(s.group[g, FIRST], s.group[g, FIRST] + s.group[g, SIZE]):
            _abort_one(s, i, at, keep)
    if s.setting[SHARED] and s.replica[s.setting[N_REPLICAS], HEAD] != s.setting[OFFERED]:
        _offer(s, at)


@_compiled
def _abort_one(s, i, at, keep):
    status = s.response[i, STATUS]
    r = np.int64(s.response[i, REPLICA])
    if s.response[i, ABORT] > 0:
        if not keep:
            s.response[i, ABORT] = DROP
        return
    if status == FINISHED and not s.response[i, STORED]:
        return
    is_out = status >= ABORTED
    if not is_out and r >= 0:
        s.replica[r, LOAD] -= 1
    if s.response[i, STORED]:
        if is_out and keep:
            return
        s.response[i, ABORT] = KEEP if keep else DROP
        s.response[i, ABORT_NEXT] = s.replica[r, ABORTS]
        s.replica[r, ABORTS] = i
        _wake(s, _clock_of(s, r), at)
    elif status == QUEUED:
        _unqueue(s, i)
        _end_aborted(s, i, at)
        q = np.int64(s.response[i, QUEUE])
        if q < s.setting[N_REPLICAS] and s.replica[q, HEAD] >= 0:
            _wake(s, _clock_of(s, q), at)


@_compiled_cold
def hold(s, i):
    """Keep the KV of response ``i``, which ended at this instant, for a later stay."""
    r = np.int64(s.response[i, REPLICA])
    s.replica[r, STORE] += _need(s, r, i)
    s.replica[r, N_WAITING] += 1
    s.response[i, STORED] = WAITING
    s.response[i, LEFT] = 0
    if s.setting[CACHE]:
        s.group[s.response[i, GROUP], N_STORED + 3 * r] += 1
    if s.setting[TRACK_STORE]:
        _link_resident(s, r, i)


@_compiled_cold
def release(s, i, at):
    """Give up KV that ``hold`` kept, now: the next iteration has the room."""
    if s.response[i, STORED] != WAITING:
        return
    r = np.int64(s.response[i, REPLICA])
    clock = _clock_of(s, r)
    _wake(s, clock, at)
    if s.replica[clock, PHASE] == JUMPING and s.replica[r, N] > 0:
        # the iterations until then began with it in store
        peak = s.replica[r, STORE] + s.replica[r, DECODING] * (s.replica[clock, JUMP] - 1)
        s.replica[r, PEAK_STORE] = max(s.replica[r, PEAK_STORE], peak)
    _free(s, r, i)


# ------------------------------------------------------------------------------------ main loop


@_compiled
def _next(s):
    """Time, order (0 end of a jump, 1 external event, 2 start of one) and clock of what is next."""
    time, order, clock = INF, 3, NONE
    for d in range(1 if s.setting[LOCKSTEP] else s.setting[N_REPLICAS]):
        at = s.replica_s[d, NEXT_S]
        if at <= time and at < INF:
            key = 0 if s.replica[d, PHASE] == JUMPING else 2
            if at < time or key < order:
                time, order, clock = at, key, d
    if s.setting[NEXT_EVENT] >= 0:
        at = s.group_s[s.setting[NEXT_EVENT], EVENT_S]
        if at < time or (at == time and order == 2):
            time, order, clock = at, 1, NONE
    return time, order, clock


@_compiled_cold
def run(s, until, stop):
    """Move time on: to the next instant at which groups finish if ``stop``, never past ``until``.

    What happens at ``until`` itself is seen (finishes) but no iteration begins there, so that the
    caller can still add events at that instant. Returns the number of groups in ``done``.
    """
    alone = not stop and until == INF and not s.setting[SHARED]
    held = NONE
    while True:
        if held >= 0 and s.replica[held, PHASE] != IDLE:
            # Nothing outside can touch this clock: run it to its end.
            time, clock = s.replica_s[held, NEXT_S], held
            order = 0 if s.replica[held, PHASE] == JUMPING else 2
        else:
            time, order, clock = _next(s)
            now = s.law[NOW_S]
            if stop and s.setting[N_DONE] > 0 and (order != 0 or time > now):
                return s.setting[N_DONE]
            if time == INF or time > until or (order > 0 and time >= until):
                if until < INF:
                    s.law[NOW_S] = until
                return s.setting[N_DONE]
            if alone and s.setting[NEXT_EVENT] < 0:
                held = clock
        if time > s.law[NOW_S]:
            s.law[NOW_S] = time
        if order == 0:
            _land(s, clock)
        elif order == 1:
            g = s.setting[NEXT_EVENT]
            s.setting[NEXT_EVENT] = s.group[g, EVENT_NEXT]
            kind = s.group[g, EVENT_KIND]
            s.group[g, EVENT_KIND] = -1
            _release(s, kind, g, time)
        else:
            _start(s, clock, time)
        if s.setting[SHARED] and s.replica[s.setting[N_REPLICAS], HEAD] != s.setting[OFFERED]:
            _offer(s, time)


@_compiled_cold
def observe(s, start, generated):
    """Write the tokens generated by responses from ``start`` on, at the last boundary until now."""
    now = s.law[NOW_S]
    for i in range(start, s.setting[N_RESPONSES]):
        generated[i - start] = s.response[i, GENERATED]
        finish = s.response[i, FINISH]
        if s.response[i, STATUS] != RUNNING or finish < 0:
            continue
        clock = _clock_of(s, np.int64(s.response[i, REPLICA]))
        passed = s.replica[clock, TICK]
        if s.replica[clock, PHASE] == JUMPING:
            low, high = np.int64(0), s.replica[clock, JUMP]
            while low < high:
                middle = (low + high + 1) // 2
                if _boundary_s(s, clock, middle) <= now:
                    low = middle
                else:
                    high = middle - 1
            passed += low
        generated[i - start] = s.response[i, LENGTH] - (finish - passed)
