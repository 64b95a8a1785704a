"""What befalls responses beside their tokens: scores that take time, calls of tools, failures.

Stands between a step's submission and the engine wherever the scenario has such a table. The engine
tells of every response that reaches the token at which something happens to it; what happens next
is a timer here or another stay in the engine. A group is told of once all of it is known.

What the frameworks leave open:

- A stay ends at a token: the end of the response, of a turn, or the one at which it fails. The next
  stay queues at the back and prefills prompt and all it has, or what a call added where KV is kept;
  a new sampling has the prompt alone. A call that does not return to the engine gives the KV up.
- Scores are given out in the order of last tokens (submission order at one instant); a score's time
  limit runs from its start. Those of aborted responses are given all the same: workers stay busy.
- A group that needs only some of its responses (``enough``) takes those whose last tokens came
  first; the others are cut off at that instant. They do not make up for a failure: it ends its
  group, whose other responses are cut off at the next iteration boundary.
- Between two steps the workers are idle.
"""

import heapq
import math
from itertools import count

import numpy as np
from numpy.typing import NDArray

from dapolab.scenario import (
    ConfigError,
    Failures,
    RewardService,
    Rollout,
    ToolCalls,
)
from dapolab.sim.decode import FINISHED as ENDED
from dapolab.sim.replica import Engine, FinishedGroups, Stay
from dapolab.sim.service_draws import Draws
from dapolab.sim.service_state import (
    CALLING,
    CUT_OFF,
    DECODING,
    GENERATING,
    SCORED,
    SCORING,
    End,
    Group,
    Response,
)

Ints = NDArray[np.int64]


class Service:
    """One step's responses beside their tokens.

    ``stays`` are those that a later one followed; ``failure`` is the message of a failure that ends
    the run. Counters: failed samplings and timeouts, by engine group; seconds in which the engine
    was empty and a call or a score was waited for. While ``is_halted`` nobody queues again.
    """

    def __init__(self, engine: Engine, rollout: Rollout, *, draws: Draws) -> None:
        self._engine = engine
        self._draws = draws
        self._reward = rollout.reward or RewardService()
        self._failures = rollout.failures or Failures()
        self._tools = rollout.tools
        self._holds_kv = rollout.tools is not None and rollout.tools.kv == "kept"
        self._groups: dict[int, Group] = {}
        self._timers: list[tuple[float, int, int, int]] = []
        self._serial = count()
        self._returned: list[int] = []
        self._going: list[tuple[int, int, bool]] = []
        self._free_s = [-math.inf] * (self._reward.workers or 0)
        self._n_calling = 0
        self._n_generating = 0
        self._stays_of: dict[tuple[int, int], list[int]] = {}
        self.is_halted = False
        self._live: dict[int, Group] = {}
        self.stays: list[Stay] = []
        self.failure: str | None = None
        self.failed: dict[int, int] = {}
        self.timed_out: dict[int, int] = {}
        self.score_wait_s = 0.0
        self.call_wait_s = 0.0

    # ------------------------------------------------------------------ what the caller does

    def submit(
        self,
        *,
        at_s: float,
        group_P: Ints,
        position_P: Ints,
        prompt_tokens_P: Ints,
        n_tokens_PG: Ints,
        first: int = 0,
        enough: int | None = None,
        visit: int = 0,
    ) -> int:
        """Submit groups as ``Engine.submit`` does; ``first`` is the place of the first response."""
        groups = []
        stops_PG = np.empty_like(n_tokens_PG)
        for p, position in enumerate(position_P.tolist()):
            n = n_tokens_PG.shape[1]
            luck = self._draws.luck(position, first + n, visit=visit)
            own = [Response(n_tokens, since_s=at_s) for n_tokens in n_tokens_PG[p].tolist()]
            group = Group(luck, first, min(n, enough or n), own)
            for member, response in enumerate(own):
                response.stop = stops_PG[p, member] = self._next_stop(group, member)
            groups.append(group)
        self._check_room(prompt_tokens_P, n_tokens_PG)
        engine_group = self._engine.submit(
            at_s=at_s,
            group_P=group_P,
            prompt_tokens_P=prompt_tokens_P,
            n_tokens_PG=stops_PG,
            enough=1,
        )
        entered = dict(enumerate(groups, start=engine_group))
        self._groups |= entered
        self._live |= entered
        self._n_generating += n_tokens_PG.size
        return engine_group

    def advance(
        self, until_s: float = math.inf, *, until_quiet: bool = False
    ) -> FinishedGroups | None:
        """Move to the next instant at which groups return; otherwise as ``Engine.advance``.

        ``until_quiet`` returns None as soon as no response generates any more.
        """
        engine = self._engine
        while True:
            if until_quiet and not self._n_generating:
                engine.drain()  # what was cut off stops at its boundary
                self._ring_due()
                if not self._returned:
                    return None
            target_s = engine.now_s if self._returned else min(until_s, self._next_timer_s())
            if target_s > engine.now_s and not self.is_halted:
                self._go_on()
            before_s, is_empty = engine.now_s, engine.n_responses_in_flight == 0
            done = engine.advance(max(target_s, engine.now_s))
            if done is not None:
                self._hear(done)
                continue
            if is_empty and not self.is_halted:
                self._wait(engine.now_s - before_s)
            has_rung = self._ring_due()
            if self._returned:
                return FinishedGroups(engine.now_s, np.array(self._take_returned(), dtype=np.int64))
            if engine.now_s >= until_s or not (has_rung or self._timers or self._going):
                return None

    @property
    def is_generating(self) -> bool:
        """Whether a response has not come to its last token, or has yet to stop."""
        return self._engine.n_groups_in_flight > 0 or self._n_generating > 0

    @property
    def n_live(self) -> int:
        """Groups that are not known in full and have not failed."""
        return len(self._live)

    def abort(self, *, at_s: float) -> None:
        """Abort all that has not returned."""
        for g in list(self._live):
            self._cut(g)
        self._returned.clear()
        self._engine.abort(at_s=at_s)

    def has_returned(self, engine_group: int) -> bool:
        """Whether the group is known in full, or has failed."""
        group = self._groups[engine_group]
        return group.has_failed or group.n_scored == group.enough

    def has_failed(self, engine_group: int) -> bool:
        """Whether the group has a response that failed for good."""
        return self._groups[engine_group].has_failed

    def members(self, engine_group: int) -> list[int]:
        """Return the places within the submission of the responses that make up the group."""
        return sorted(self._groups[engine_group].chosen)

    def ends(self, engine_group: int) -> dict[int, End]:
        """Return, by place in the group, the responses that came out otherwise than drawn."""
        group = self._groups[engine_group]
        return {group.first + k: r.end for k, r in enumerate(group.responses) if r.end is not None}

    def added_tokens(self, engine_group: int) -> Ints:
        """Return the tokens of tool results in each response's present context."""
        return np.array([r.added for r in self._groups[engine_group].responses], dtype=np.int64)

    def stays_from(self, engine_group: int) -> list[tuple[float, int]]:
        """Return when each response's last stay was submitted and its context then, in tokens."""
        return [(r.since_s, r.stay_from) for r in self._groups[engine_group].responses]

    def failed_place(self, engine_group: int) -> int:
        """Return the place in the group of the response that failed for good."""
        group = self._groups[engine_group]
        if group.failed_member is None:
            raise ValueError(f"group {engine_group} has not failed")
        return group.first + group.failed_member

    # ------------------------------------------------------------------ what happens

    def _take_returned(self) -> list[int]:
        """Return the groups that have come back and not been told of, in submission order."""
        found, self._returned = sorted(self._returned), []
        return found

    def _ring_due(self) -> bool:
        """Let everything act that is due by now; say whether there was anything."""
        has_rung = False
        while self._next_timer_s() <= self._engine.now_s:
            has_rung = True
            self._ring(*heapq.heappop(self._timers)[2:])
        return has_rung

    def _hear(self, done: FinishedGroups) -> None:
        """Take note of the responses that left the engine at this instant."""
        for g in done.groups.tolist():
            group = self._groups[g]
            _, status = self._engine.spans([g])
            for member in np.flatnonzero(status == ENDED).tolist():
                response = group.responses[member]
                if response.state == DECODING and response.reached < response.stop:
                    response.reached = response.stop
                    self._stopped(g, member, at_s=done.at_s)
            if any(r.state == DECODING and r.reached < r.stop for r in group.responses):
                self._engine.tell_next(g)

    def _stopped(self, g: int, member: int, *, at_s: float) -> None:
        group = self._groups[g]
        response = group.responses[member]
        if self._fail_token(group, member) == response.stop:
            self._fail(g, member, "a response failed")
        elif response.reached == response.n_tokens:
            self._decoded(g, member, at_s=at_s)
        else:
            tools = self._tool_calls
            seconds = float(group.luck.call_s_KC[group.first + member, response.n_calls])
            is_late = tools.timeout_s is not None and seconds > tools.timeout_s
            self._enter(response, CALLING)
            if self._holds_kv:
                self._engine.hold(g, member)
            self._timer(at_s + (tools.timeout_s or 0.0 if is_late else seconds), g, member)

    def _ring(self, g: int, member: int) -> None:
        group = self._groups[g]
        response = group.responses[member]
        if response.state == CALLING:
            self._called(g, member)
        elif response.state == SCORING:
            self._scored(g, member)

    def _called(self, g: int, member: int) -> None:
        """Go on, as a call has returned, or act on its time limit."""
        group, tools = self._groups[g], self._tool_calls
        response = group.responses[member]
        seconds = float(group.luck.call_s_KC[group.first + member, response.n_calls])
        self._enter(response, DECODING)
        if tools.timeout_s is not None and seconds > tools.timeout_s:
            self.timed_out[g] = self.timed_out.get(g, 0) + 1
            if tools.on_timeout != "go_on":
                self._engine.release(g, member)
            if tools.on_timeout == "fail":
                self._fail(g, member, "a tool did not answer in time")
                return
            if tools.on_timeout == "truncate":
                response.n_tokens = response.reached
                response.end = End(response.reached, correct=False, truncated=True)
                self._decoded(g, member, at_s=self._engine.now_s)
                return
        response.n_calls += 1
        self._going.append((g, member, False))

    def _decoded(self, g: int, member: int, *, at_s: float) -> None:
        """Choose a response whose last token is out, and have it scored."""
        group, reward = self._groups[g], self._reward
        response = group.responses[member]
        if len(group.chosen) == group.enough:
            self._enter(response, CUT_OFF)
            return
        group.chosen.append(member)
        self._enter(response, SCORING)
        if len(group.chosen) == group.enough < len(group.responses):
            self._cut(g, but=SCORING)
            self._engine.abort(at_s=self._engine.now_s, groups=[g])
        seconds = float(group.luck.score_s_K[group.first + member])
        if reward.timeout_s is not None:
            seconds = min(seconds, reward.timeout_s)
        start_s = at_s
        if self._free_s:
            start_s = max(at_s, heapq.heappop(self._free_s))
            heapq.heappush(self._free_s, start_s + seconds)
        self._timer(start_s + seconds, g, member)

    def _scored(self, g: int, member: int) -> None:
        group, reward = self._groups[g], self._reward
        response = group.responses[member]
        seconds = float(group.luck.score_s_K[group.first + member])
        if reward.timeout_s is not None and seconds > reward.timeout_s:
            self.timed_out[g] = self.timed_out.get(g, 0) + 1
            if reward.on_timeout == "fail":
                self._fail(g, member, "a score did not come in time")
                return
            is_cut = response.end is not None and response.end.truncated
            response.end = End(response.n_tokens, correct=False, truncated=is_cut)
        self._enter(response, SCORED)
        group.n_scored += 1
        if group.n_scored == group.enough:
            self._return(g)

    def _fail(self, g: int, member: int, what: str) -> None:
        """Sample a failed response again, throw its group away, or end the run."""
        group, rule = self._groups[g], self._failures
        response = group.responses[member]
        self.failed[g] = self.failed.get(g, 0) + 1
        can_retry = response.state != SCORING and response.attempt < rule.max_retries
        if rule.on_failure == "retry" and can_retry:
            response.attempt += 1
            response.n_calls = 0
            self._going.append((g, member, True))
            return
        if rule.on_failure == "fail_run":
            self.failure = f"{what} and rollout.failures.on_failure is fail_run"
        self._cut(g)
        group.failed_member = member
        self._engine.abort(at_s=self._engine.now_s, groups=[g])
        self._returned.append(g)

    def _return(self, g: int) -> None:
        self._cut(g, but=SCORED)
        self._returned.append(g)

    def _cut(self, g: int, *, but: int | None = None) -> None:
        """Nothing more happens to the group's responses, save to those in state ``but``.

        Without ``but``, or once all are scored, the group is over.
        """
        for response in self._groups[g].responses:
            if response.state not in (but, SCORED):
                self._enter(response, CUT_OFF)
        if but != SCORING:
            self._live.pop(g, None)

    # ------------------------------------------------------------------ stays in the engine

    def _go_on(self) -> None:
        """Let the responses that are due queue again, all of this instant together."""
        groups = self._begin_stays()
        if groups:
            self._engine.resume(at_s=self._engine.now_s, groups=groups)

    def _begin_stays(self) -> list[int]:
        """Prepare the next stays of the responses that are due; return their groups, once each."""
        groups = []
        for g, member, is_new in self._going:
            response = self._groups[g].responses[member]
            if response.state != DECODING:
                continue
            stay = self._engine.stay(g, member)
            if is_new:
                self._lose(g, member)
            self._stays_of.setdefault((g, member), []).append(len(self.stays))
            self.stays.append(
                stay._replace(
                    has_failed=is_new,
                    submit_s=response.since_s,
                    n_tokens=stay.n_tokens - response.stay_from,
                )
            )
            self._prepare(g, member, is_new=is_new)
            groups.append(g)
        self._going.clear()
        return list(dict.fromkeys(groups))

    def _lose(self, g: int, member: int) -> None:
        """Count the earlier turns of a failed sampling as lost with it."""
        for k in self._stays_of.get((g, member), ()):
            self.stays[k] = self.stays[k]._replace(has_failed=True)

    def _prepare(self, g: int, member: int, *, is_new: bool) -> None:
        response = self._groups[g].responses[member]
        if is_new:
            response.reached = response.added = 0
        else:
            response.added += self._tool_calls.result_tokens
        response.stay_from = response.reached + response.added
        response.since_s = self._engine.now_s
        response.stop = self._next_stop(self._groups[g], member)
        self._engine.go_on(
            g,
            member,
            n_context=response.stay_from,
            n_tokens=response.stop + response.added,
        )

    def _next_stop(self, group: Group, member: int) -> int:
        """Return the token at which the response next leaves the engine."""
        response = group.responses[member]
        L, turns = response.n_tokens, self._tools.turns if self._tools else 1
        ends = (-(-L * turn // turns) for turn in range(1, turns + 1))
        stop = next(end for end in ends if end > response.reached)
        fails = self._fail_token(group, member)
        return stop if fails is None else min(stop, fails)

    @staticmethod
    def _fail_token(group: Group, member: int) -> int | None:
        response = group.responses[member]
        place = group.first + member
        return group.luck.fails_after(place, response.attempt, n_tokens=response.n_tokens)

    # ------------------------------------------------------------------ small things

    def _enter(self, response: Response, state: int) -> None:
        """Let a response stand elsewhere; keep count of those that call, and of all that go on.

        The counts spare a look at every response at each event.
        """
        self._n_calling += (state == CALLING) - (response.state == CALLING)
        self._n_generating += (state in GENERATING) - (response.state in GENERATING)
        response.state = state

    @property
    def _tool_calls(self) -> ToolCalls:
        assert self._tools is not None, "only tools end a turn"
        return self._tools

    def _timer(self, at_s: float, g: int, member: int) -> None:
        heapq.heappush(self._timers, (at_s, next(self._serial), g, member))

    def _next_timer_s(self) -> float:
        """Return when the next timer rings; those of responses that were cut off are forgotten."""
        while self._timers:
            at_s, _, g, member = self._timers[0]
            if self._groups[g].responses[member].state in (CALLING, SCORING):
                return at_s
            heapq.heappop(self._timers)
        return math.inf

    def _wait(self, seconds: float) -> None:
        if self._n_calling:
            self.call_wait_s += seconds
        elif self.n_live:
            self.score_wait_s += seconds

    def _check_room(self, prompt_tokens_P: Ints, n_tokens_PG: Ints) -> None:
        if self._tools is None or self._engine.kv_capacity_tokens is None:
            return
        added = (self._tools.turns - 1) * self._tools.result_tokens
        most = int((prompt_tokens_P + n_tokens_PG.max(axis=1)).max()) + added
        if most > self._engine.kv_capacity_tokens:
            raise ConfigError(
                f"hardware.kv_capacity_tokens {self._engine.kv_capacity_tokens} cannot hold a "
                f"response of {most} tokens, prompt and results of tools included; raise the "
                "capacity, or lower rollout.cap_tokens or rollout.tools.result_tokens"
            )
