"""The rollout engine as its caller sees it: submit, abort, resume, advance, read the facts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dapolab import scenario
from dapolab.sim import decode
from dapolab.sim.compaction import compact, extend, go_on
from dapolab.sim.hardware import Law, batch_seconds, speculative_seconds

STATUS_NAMES = ("queued", "queued", "running", "aborted", "finished")
_UINT = np.uint64
_MARKS = {"shared": decode.FROM_SHARED, "least_loaded": decode.LEAST_LOADED}
Number = TypeVar("Number", np.int32, np.int64, np.float64)


class FinishedGroups(NamedTuple):
    """Groups that finished at one instant, in submission order."""

    at_s: float
    groups: NDArray[np.int64]


class Stay(NamedTuple):
    """One stay of a response that a later one followed; ``has_failed``: its tokens are lost."""

    engine_group: int
    member: int
    replica: int
    submit_s: float
    admit_s: float
    first_token_s: float
    end_s: float
    n_tokens: int
    n_preemptions: int
    has_failed: bool = False


@dataclass(frozen=True)
class Facts:
    """What happened so far; response arrays have one row a response, in submission order.

    Times are seconds, NaN where they have not come. ``status`` indexes ``STATUS_NAMES``. An aborted
    response's ``end_s`` is the boundary at which the abort acted (a queued one: the abort's time).
    ``generated_tokens`` are as of the last iteration boundary not after now; the replica rows
    cover completed jumps, which is everything once nothing is in flight. ``iterations`` are of one
    token each: an engine that speculates makes fewer, by what one of them yields.
    ``concurrency_s`` is ∫N dt over responses that hold a slot, ``peak_kv_tokens`` the largest store
    at the start of an iteration, ``prefill_s`` the prefill term of the replica's own iterations.
    """

    group: NDArray[np.int64]
    replica: NDArray[np.int64]
    submit_s: NDArray[np.float64]
    admit_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    generated_tokens: NDArray[np.int64]
    n_preemptions: NDArray[np.int64]
    status: NDArray[np.int64]
    group_end_s: NDArray[np.float64]
    iterations: NDArray[np.int64]
    busy_s: NDArray[np.float64]
    prefill_s: NDArray[np.float64]
    concurrency_s: NDArray[np.float64]
    peak_kv_tokens: NDArray[np.int64]
    peak_running: NDArray[np.int64]


class Engine:
    """Replicas that run continuous batching, on one time line.

    Parameters
    ----------
    hardware : the scenario's table; its law is not read (``law`` is), its call overhead and polling
        are the caller's business.
    law : seconds of an iteration.
    n_expected : responses to make room for at the start (room grows by itself).

    Time only moves forward: ``advance`` and ``drain`` move it, everything else happens at ``now_s``
    (submissions may lie ahead). Group ids count submissions from 0, response ids likewise.
    """

    def __init__(self, hardware: scenario.Hardware, law: Law, *, n_expected: int = 0) -> None:
        self._hardware = hardware
        self._law = law
        self._n_cycled = 0
        self._offset = 0
        self._last_event_s = 0.0
        self._room = 0
        self._group_room = 0
        self._state = self._new_state(max(1024, n_expected))

    def _new_state(self, room: int) -> decode.State:
        h, replicas = self._hardware, self._hardware.replicas
        setting = np.zeros(decode.N_SETTINGS, dtype=np.int64)
        unlimited = int(decode.UNLIMITED)
        setting[decode.N_REPLICAS] = replicas
        setting[decode.SLOTS] = h.slots
        setting[decode.CAPACITY] = h.kv_capacity_tokens or unlimited
        setting[decode.BUDGET] = h.token_budget or unlimited
        setting[decode.MAX_GROUPS] = h.max_groups_in_flight or unlimited
        setting[decode.PREFILL] = h.prefill
        setting[decode.CACHE] = h.prefix_cache
        setting[decode.LOCKSTEP] = h.lockstep
        setting[decode.SHARED] = h.dispatch == "shared"
        setting[decode.BY_RESPONSE] = h.dispatch_by == "response"
        setting[decode.TRACK_STORE] = h.kv_capacity_tokens is not None
        setting[decode.TRACK_GROUPS] = h.max_groups_in_flight is not None
        setting[decode.OFFERED] = -1
        setting[decode.NEXT_EVENT] = -1
        setting[[decode.PREFILLING, decode.FRESH]] = replicas, 2 * replicas
        setting[decode.SPECULATES] = h.speculation.max_batch if h.speculation else 0
        replica = np.zeros((replicas + 1, decode.N_REPLICA_COLUMNS), dtype=np.int64)
        replica[:, [decode.HEAD, decode.TAIL, decode.ABORTS, decode.NEWEST]] = -1
        replica_s = np.zeros((replicas + 1, 8))
        replica_s[:, decode.NEXT_S] = np.inf
        groups = max(64, room // 8)
        self._room, self._group_room = room, groups
        columns = decode.N_GROUP_COLUMNS + (decode.N_COUNTS * replicas if self._counts else 0)
        return decode.State(
            setting=setting,
            law=self._law_rows(),
            response=np.zeros((room, decode.N_RESPONSE_COLUMNS), dtype=np.int32),
            response_s=np.zeros((room, 3)),
            group=np.zeros((groups, columns), dtype=np.int64),
            group_s=np.zeros((groups, 3)),
            replica=replica,
            replica_s=replica_s,
            work=np.zeros((3 * replicas, 2 * min(h.slots, room) + 2), dtype=np.int64),
        )

    def _law_rows(self) -> NDArray[np.float64]:
        """Return the law as the kernel wants it: numbers and clock, then tables by n."""
        law, slots, speculation = self._law, self._hardware.slots, self._hardware.speculation
        prefill = (law.prefill_s, law.prefill_slack_s, law.prefill_context_s)
        batch_s = batch_seconds(law, slots=slots)
        if speculation is None:
            return np.array([law.a_s, law.c_s, *prefill, 0.0, 0.0, *batch_s])
        fixed_s, context_s = speculative_seconds(law, speculation, slots=slots)
        return np.array([law.a_s, law.c_s, *prefill, 0.0, context_s, *batch_s, *fixed_s])

    @property
    def _counts(self) -> bool:
        return self._hardware.prefix_cache or self._hardware.max_groups_in_flight is not None

    @property
    def now_s(self) -> float:
        """Time reached."""
        return float(self._state.law[decode.NOW_S])

    @property
    def n_responses_in_flight(self) -> int:
        """Responses submitted and neither finished nor aborted."""
        return int(self._state.setting[decode.LIVE_RESPONSES])

    @property
    def n_groups_in_flight(self) -> int:
        """Groups with a response in flight."""
        return int(self._state.setting[decode.LIVE_GROUPS])

    def submit(
        self,
        *,
        at_s: float | NDArray[np.float64],
        group_P: ArrayLike,
        prompt_tokens_P: ArrayLike,
        n_tokens_PG: ArrayLike,
        members_P: ArrayLike | None = None,
        enough: int | None = None,
    ) -> int:
        """Submit groups at ``at_s``; returns the id of the first, the others follow.

        Parameters
        ----------
        at_s : seconds, one for all or (P,) ascending; not before ``now_s`` nor before an earlier
            submission. May lie ahead.
        group_P : labels that ``sticky`` dispatch hashes (the prompt, say).
        prompt_tokens_P : tokens of each prompt, ≥ 0.
        n_tokens_PG : tokens of each response, ≥ 1: (P, G), or flat where ``members_P`` says how
            many responses each group has.
        enough : a group counts as finished with so many of its responses; what becomes of the
            others is the caller's to say (``abort`` at that instant cuts them off there).

        Raises
        ------
        ConfigError
            A response that can never fit the KV capacity, or a length that is not positive.
        """
        # Copies: contiguous and writable whatever came, so that the kernel compiles once only.
        labels = np.array(group_P, dtype=np.int64, ndmin=1)
        prompts = np.array(prompt_tokens_P, dtype=np.int64, ndmin=1)
        lengths = np.array(n_tokens_PG, dtype=np.int64, order="C")
        if members_P is None:
            if lengths.ndim != 2 or lengths.shape[0] != labels.size:
                raise ValueError(f"n_tokens_PG has shape {lengths.shape} for {labels.size} groups")
            sizes = np.empty(labels.size, dtype=np.int64)
            sizes[:] = lengths.shape[1]
        else:
            sizes = np.array(members_P, dtype=np.int64, ndmin=1)
        lengths = lengths.reshape(-1)
        times = np.empty(labels.size)
        times[:] = at_s
        if prompts.size != labels.size or sizes.size != labels.size:
            raise ValueError("labels, prompts and sizes differ in number")
        self._grow(lengths.size, labels.size)
        replicas = self._dispatch(labels, sizes, lengths.size)
        first = int(self._state.setting[decode.N_GROUPS_TOTAL])
        earliest = max(self.now_s, self._last_event_s)
        refusal, which = decode.register(
            self._state, earliest, times, prompts, sizes, lengths, replicas
        )
        if refusal != decode.ACCEPTED:
            self._refuse(refusal, which, prompts, sizes, lengths)
        if times.size:
            self._last_event_s = float(times[-1])
        if enough is not None:
            needed = np.minimum(sizes, enough)
            self._state.group[first : first + sizes.size, decode.UNFINISHED] = needed
        return first

    def _refuse(
        self,
        refusal: int,
        which: int,
        prompts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> NoReturn:
        if refusal == decode.NEVER_FITS:
            prompt = int(prompts[np.searchsorted(np.cumsum(sizes), which, side="right")])
            raise scenario.ConfigError(
                f"hardware.kv_capacity_tokens {self._hardware.kv_capacity_tokens} cannot hold a "
                f"response of prompt {prompt} + {int(lengths[which])} tokens; raise the capacity "
                "or lower rollout.cap_tokens"
            )
        if refusal == decode.BAD_LENGTH:
            raise scenario.ConfigError(
                f"a response of {int(lengths[which])} tokens: needs at least 1; check the workload"
            )
        if refusal == decode.BAD_PROMPT:
            raise scenario.ConfigError(
                f"a prompt of {int(prompts[which])} tokens: needs at least 0; check the workload"
            )
        if refusal == decode.BAD_TIME:
            raise ValueError(
                "submission times must ascend, from now and the last one, and be finite"
            )
        raise ValueError("every group needs a response, and every response a group")

    def _grow(self, n_responses: int, n_groups: int) -> None:
        """Make room; growth doubles, so its cost is spread over the submissions."""
        state = self._state
        rows = int(state.setting[decode.N_RESPONSES]) + n_responses
        groups = int(state.setting[decode.N_GROUPS_TOTAL]) + n_groups
        if rows > self._room:
            self._room = max(rows, 2 * self._room)
            width = 2 * min(self._hardware.slots, self._room) + 2
            state = state._replace(
                response=_longer(state.response, self._room),
                response_s=_longer(state.response_s, self._room),
                work=_wider(state.work, width),
            )
        if groups > self._group_room:
            self._group_room = max(groups, 2 * self._group_room)
            state = state._replace(
                group=_longer(state.group, self._group_room),
                group_s=_longer(state.group_s, self._group_room),
            )
        self._state = state

    def _dispatch(
        self, labels: NDArray[np.int64], sizes: NDArray[np.int64], n_responses: int
    ) -> NDArray[np.int64]:
        """Replica of each response, or the kernel's marks for least-loaded and shared."""
        h = self._hardware
        if h.replicas == 1 and h.dispatch != "shared":
            return np.zeros(n_responses, dtype=np.int64)
        if h.dispatch in _MARKS:
            marks = np.empty(n_responses, dtype=np.int64)
            marks[:] = _MARKS[h.dispatch]
            return marks
        by_response = h.dispatch_by == "response"
        n = n_responses if by_response else labels.size
        if h.dispatch == "round_robin":
            replica = (self._n_cycled + np.arange(n, dtype=np.int64)) % h.replicas
            self._n_cycled = (self._n_cycled + n) % h.replicas
        elif h.dispatch == "chunks":
            replica = self._chunks(n)
        else:
            replica = _sticky(labels, sizes, by_response=by_response, replicas=h.replicas)
        return replica if by_response else np.repeat(replica, sizes)

    def _chunks(self, n: int) -> NDArray[np.int64]:
        """Contiguous parts of equal size; who gets one more rotates from call to call."""
        replicas = self._hardware.replicas
        part, extra = divmod(n, replicas)
        if part == 0:  # streaming: a handful of array operations cost more than the decoding
            chosen = sorted((self._offset + i) % replicas for i in range(n))
            self._offset = (self._offset + extra) % replicas
            return np.array(chosen, dtype=np.int64)
        index = np.arange(replicas, dtype=np.int64)
        one_more = (index - self._offset) % replicas < extra
        self._offset = (self._offset + extra) % replicas
        return np.repeat(index, part + one_more)

    def abort(
        self, *, at_s: float, groups: Sequence[int] | None = None, keep_kv: bool = False
    ) -> None:
        """Abort what is in flight of ``groups`` (None: everything released so far) at ``at_s``.

        A queued response leaves at once, a running one at its replica's first boundary ≥ ``at_s``;
        one that reaches its length there has finished. Submissions at this very instant come after.
        ``keep_kv`` leaves the KV of decoding responses on their replica for ``resume``; a later
        abort without it gives that KV up, and what ``hold`` kept.
        """
        self._check_now(at_s, "abort")
        setting = self._state.setting
        total = int(setting[decode.N_GROUPS_TOTAL])
        if groups is None:
            wanted = np.arange(total, dtype=np.int64)
            wanted = wanted[self._state.group[:total, decode.LIVE] > 0]
            if self._state.replica[:, decode.N_WAITING].any():
                wanted = np.union1d(wanted, self._holders())
        else:
            wanted = self._known(groups)
        decode.abort(self._state, at_s, wanted, keep_kv)

    def resume(self, *, at_s: float, groups: Sequence[int], front: bool = False) -> int:
        """Queue the aborted responses of ``groups`` again; returns how many there are.

        Those whose KV was kept decode as soon as they get a slot of their replica, the others
        prefill prompt + generated tokens. ``front`` puts them before all that is queued, in order.

        Raises
        ------
        ValueError
            A group whose abort has not yet taken effect (advance first).
        """
        self._check_now(at_s, "resume")
        wanted = self._known(groups)
        if not all(self._is_resumable(group) for group in wanted):
            raise ValueError("resume: a group has nothing aborted, or its abort is still pending")
        return int(decode.resume(self._state, at_s, wanted, front))

    def resumable(self) -> NDArray[np.int64]:
        """Return the groups with aborted responses, none of which is still waiting to stop."""
        rows = self._state.response[: int(self._state.setting[decode.N_RESPONSES])]
        aborted = np.unique(rows[rows[:, decode.STATUS] == decode.ABORTED, decode.GROUP])
        return np.array([g for g in aborted if self._is_resumable(g)], dtype=np.int64)

    def _is_resumable(self, group: int) -> bool:
        first, size, kind = self._state.group[group, [decode.FIRST, decode.SIZE, decode.EVENT_KIND]]
        rows = self._state.response[first : first + size]
        is_aborted = bool((rows[:, decode.STATUS] == decode.ABORTED).any())
        return kind < 0 and is_aborted and not bool((rows[:, decode.ABORT] > 0).any())

    def extend(self, groups: Sequence[int], n_tokens_PG: ArrayLike) -> None:
        """Give responses of ``groups`` new, longer lengths; shape (P, G).

        One that had finished at its old length is as if aborted there: ``resume`` lets it go on.
        """
        extend(self._state, self._known(groups), np.asarray(n_tokens_PG, dtype=np.int64))

    @property
    def kv_capacity_tokens(self) -> int | None:
        """KV capacity of a replica, None: no limit."""
        return self._hardware.kv_capacity_tokens

    def tell_next(self, group: int) -> None:
        """Let ``group`` count as finished with its next response (as with ``enough`` = 1)."""
        self._state.group[group, decode.UNFINISHED] = 1

    def hold(self, group: int, member: int) -> None:
        """Keep the KV of a response that has just ended, until it goes on or ``release``.

        Raises
        ------
        ValueError
            A response that has not ended, or after whose end its replica went on; KV that is held
            already.
        """
        row, state = self._row(group, member), self._state
        clock = 0 if self._hardware.lockstep else int(state.response[row, decode.REPLICA])
        has_ended = state.response[row, decode.STATUS] == decode.FINISHED
        is_last = state.response_s[row, decode.END_S] == state.replica_s[clock, decode.START_S]
        if not has_ended or not is_last or state.replica[clock, decode.PHASE] == decode.JUMPING:
            raise ValueError("hold: the response has not just ended")
        if state.response[row, decode.STORED]:
            raise ValueError("hold: its KV is held already")
        decode.hold(state, row)

    def release(self, group: int, member: int) -> None:
        """Give up the KV that ``hold`` kept of a response, if it is still there."""
        decode.release(self._state, self._row(group, member), self.now_s)

    def go_on(self, group: int, member: int, *, n_context: int, n_tokens: int) -> None:
        """Let one response that ended go on from ``n_context`` tokens to ``n_tokens``.

        ``resume`` queues it again; ``tell_next`` holds for the group. Its times and preemptions are
        forgotten: they are the new stay's (see ``stay``). Where its KV is held and has not yielded,
        it prefills what the context gained; else prompt and context.
        """
        row = self._row(group, member)
        go_on(self._state, row, n_context=n_context, n_tokens=n_tokens)
        self.tell_next(group)

    def stay(self, group: int, member: int) -> Stay:
        """Return the present stay of a response that ended, its prompt's submission as its own."""
        row = self._row(group, member)
        response, times = self._state.response[row], self._state.response_s[row]
        first_s = float(times[decode.FIRST_S])
        return Stay(
            group,
            member,
            int(response[decode.REPLICA]),
            float(self._state.group_s[group, decode.SUBMIT_S]),
            admit_s=float(times[decode.ADMIT_S]),
            first_token_s=first_s if first_s >= 0 else np.nan,
            end_s=float(times[decode.END_S]),
            n_tokens=int(response[decode.GENERATED]),
            n_preemptions=int(response[decode.PREEMPTIONS]),
        )

    def spans(self, groups: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return ends (seconds, NaN while open) and statuses of the groups' responses, flat."""
        rows = np.concatenate(
            [np.arange(first, first + n) for first, n in self._state.group[list(groups), :2]]
        )
        ends = self._state.response_s[rows, decode.END_S]
        return np.where(ends < 0, np.nan, ends), self._state.response[rows, decode.STATUS]

    def progress(self, first_group: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Return what responses of ``first_group`` and later ones have generated by now.

        Returns
        -------
        The id of the first of these responses, their tokens as of the last boundary not after now,
        and their statuses, both in submission order.
        """
        setting = self._state.setting
        total, n = int(setting[decode.N_GROUPS_TOTAL]), int(setting[decode.N_RESPONSES])
        start = int(self._state.group[first_group, decode.FIRST]) if first_group < total else n
        generated = np.empty(n - start, dtype=np.int64)
        decode.observe(self._state, np.int64(start), generated)
        return start, generated, self._state.response[start:n, decode.STATUS].astype(np.int64)

    def _check_now(self, at_s: float, what: str) -> None:
        if at_s != self.now_s:
            raise ValueError(f"{what} at {at_s} s, but the engine stands at {self.now_s} s")

    def _row(self, group: int, member: int) -> int:
        return int(self._state.group[group, decode.FIRST]) + member

    def _holders(self) -> NDArray[np.int64]:
        """Return the groups of which ``hold`` keeps KV."""
        rows = self._state.response[: int(self._state.setting[decode.N_RESPONSES])]
        waiting = rows[:, decode.STORED] == decode.WAITING
        return np.asarray(rows[waiting, decode.GROUP], dtype=np.int64)

    def _known(self, groups: Sequence[int]) -> NDArray[np.int64]:
        wanted = np.array(groups, dtype=np.int64).reshape(-1)
        total = int(self._state.setting[decode.N_GROUPS_TOTAL])
        if wanted.size and (wanted.min() < 0 or wanted.max() >= total):
            raise ValueError(f"groups outside 0 … {total - 1}")
        return wanted

    def advance(self, until_s: float = np.inf) -> FinishedGroups | None:
        """Move to the next instant at which groups finish and return them.

        None when ``until_s`` is reached first (``now_s`` is then ``until_s``) or when nothing is
        left to happen (without a limit ``now_s`` is then the last event). Never passes ``until_s``;
        what the caller submits or aborts at the instant returned still acts at its boundary.
        """
        state = self._state
        if until_s < self.now_s:
            raise ValueError(f"cannot go back from {self.now_s} s to {until_s} s")
        n_done = decode.run(state, until_s, True)
        self._last_event_s = max(self._last_event_s, self.now_s)
        if n_done == 0:
            return None
        return FinishedGroups(self.now_s, self._done(n_done))

    def drain(self) -> FinishedGroups:
        """Run all that is in flight to its end in one call.

        Returns the groups that finished meanwhile, ordered by (end, submission); their ends are
        ``facts().group_end_s``; ``at_s`` is the last event.
        """
        state = self._state
        groups = self._done(decode.run(state, np.inf, False))
        order = np.argsort(state.group_s[groups, decode.GROUP_END_S], kind="stable")
        self._last_event_s = max(self._last_event_s, self.now_s)
        return FinishedGroups(self.now_s, groups[order])

    def _done(self, n_done: int) -> NDArray[np.int64]:
        """Take the groups that the kernel noted as finished, by submission."""
        groups = self._state.group[:n_done, decode.DONE].copy()
        if n_done > 1:
            groups.sort()
        self._state.setting[decode.N_DONE] = 0
        return groups

    def group_end_s(self, groups: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return the end of each group (all of them, in order, without ``groups``); NaN if none."""
        total = int(self._state.setting[decode.N_GROUPS_TOTAL])
        rows = self._state.group_s[:total] if groups is None else self._state.group_s[groups]
        unfinished = self._state.group[:total, decode.UNFINISHED]
        open_ = (unfinished if groups is None else unfinished[groups]) > 0
        return np.where(open_, np.nan, rows[:, decode.GROUP_END_S])

    def reset(self, *, at_s: float, keep: Sequence[int] = ()) -> None:
        """Forget groups and counters and stand at ``at_s``; ids start again from 0.

        The groups ``keep`` stay, with what they have generated and the KV that an abort kept, and
        get the first ids in the order given; ``resume`` lets them go on. Their times and
        preemptions are forgotten, so that facts speak of what follows.

        Raises
        ------
        ValueError
            Responses in flight; kept KV of a group that is not to stay.
        """
        if self.n_responses_in_flight > 0:
            raise ValueError("reset with responses in flight: abort or drain them first")
        if at_s < self.now_s:
            raise ValueError(f"cannot go back from {self.now_s} s to {at_s} s")
        compact(self._state, self._known(keep), at_s=at_s)
        self._last_event_s = at_s

    def facts(self) -> Facts:
        """Return copies of everything known about responses, groups and replicas."""
        s = self._state
        n = int(s.setting[decode.N_RESPONSES])
        rows = s.response[:n]
        generated = np.empty(n, dtype=np.int64)
        decode.observe(s, decode.ZERO, generated)
        times = np.where(s.response_s[:n] < 0, np.nan, s.response_s[:n])
        first = times[:, decode.FIRST_S]
        replica, seconds = s.replica[:-1], s.replica_s[:-1]
        return Facts(
            group=rows[:, decode.GROUP].astype(np.int64),
            replica=rows[:, decode.REPLICA].astype(np.int64),
            submit_s=s.group_s[rows[:, decode.GROUP], decode.SUBMIT_S],
            admit_s=times[:, decode.ADMIT_S],
            first_token_s=np.where(first > self.now_s, np.nan, first),
            end_s=times[:, decode.END_S],
            generated_tokens=generated,
            n_preemptions=rows[:, decode.PREEMPTIONS].astype(np.int64),
            status=rows[:, decode.STATUS].astype(np.int64),
            group_end_s=self.group_end_s(),
            iterations=replica[:, decode.ITERATIONS].copy(),
            busy_s=seconds[:, decode.BUSY_S].copy(),
            prefill_s=seconds[:, decode.PREFILL_S].copy(),
            concurrency_s=seconds[:, decode.CONCURRENCY_S].copy(),
            peak_kv_tokens=replica[:, decode.PEAK_STORE].copy(),
            peak_running=replica[:, decode.PEAK_N].copy(),
        )


def _longer(array: NDArray[Number], n: int) -> NDArray[Number]:
    grown = np.zeros((n, *array.shape[1:]), dtype=array.dtype)
    grown[: array.shape[0]] = array
    return grown


def _wider(array: NDArray[Number], n: int) -> NDArray[Number]:
    grown = np.zeros((*array.shape[:-1], n), dtype=array.dtype)
    grown[..., : array.shape[-1]] = array
    return grown


def _sticky(
    labels: NDArray[np.int64], sizes: NDArray[np.int64], *, by_response: bool, replicas: int
) -> NDArray[np.int64]:
    """Hash labels (and member numbers) to replicas: the finaliser of splitmix64 (Steele 2014)."""
    key = labels.astype(_UINT)
    if by_response:
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        member = np.arange(int(sizes.sum()), dtype=np.int64) - starts
        key = np.repeat(key, sizes) * _UINT(0x9E3779B97F4A7C15) + member.astype(_UINT)
    key = key + _UINT(0x9E3779B97F4A7C15)
    key = (key ^ (key >> _UINT(30))) * _UINT(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> _UINT(27))) * _UINT(0x94D049BB133111EB)
    return ((key ^ (key >> _UINT(31))) % _UINT(replicas)).astype(np.int64)
