"""Play one collection policy against the engine for one training step.

The policy decides (``dapolab.collectors``), the engine moves tokens (``replica.py``), SimPy keeps
the clock in between. A barrier policy hears of a wave when its last group has returned; the others
hear of every group. A budget in seconds is a decision point: what has finished is judged, the rest
is aborted, and nothing is submitted that could not start before it.
"""

import math
from collections.abc import Generator, Sequence

import simpy

from dapolab.collectors import (
    Abort,
    Action,
    Carry,
    Collector,
    Continue,
    Drop,
    Fail,
    Keep,
    Later,
    Limit,
    Repeat,
    Stop,
    Submit,
    is_degenerate,
)
from dapolab.scenario import Budget, Hardware
from dapolab.sim.backlog import Backlog
from dapolab.sim.collection import (
    ABORTED,
    CARRIED,
    DEGENERATE,
    FAILED,
    IN_FLIGHT,
    STALE,
    SURPLUS,
    TRAINED,
    Collection,
    Wave,
)
from dapolab.sim.cursor import AnyCursor
from dapolab.sim.dispatch_order import LongestFirst
from dapolab.sim.replica import Engine
from dapolab.sim.score import ScoredStream
from dapolab.sim.service import Service
from dapolab.sim.submission import Submission

Process = Generator[simpy.Event, None, None]
_DROPPED = {"degenerate": DEGENERATE, "surplus": SURPLUS, "stale": STALE}
_SETTLING = Keep | Drop | Carry


class Collecting:
    """One step in progress: carries the policy's actions out and tells it what happened."""

    def __init__(
        self,
        env: simpy.Environment,
        *,
        engine: Engine,
        stream: ScoredStream,
        cursor: AnyCursor,
        collector: Collector,
        hardware: Hardware,
        budget: Budget,
        trained_steps: int,
        group_size: int,
        backlog: Backlog,
        step: int,
        longest_first: LongestFirst | None = None,
        service: Service | None = None,
        resumed_last: bool = False,
    ) -> None:
        self._env = env
        self._engine = engine
        self._collector = collector
        self._hardware = hardware
        self._backlog, self._step = backlog, step
        self._now_s = engine.now_s
        self._deadline_s = self._now_s + budget.seconds if budget.seconds else math.inf
        self._asked: list[Submit | Continue] = []
        self._later: Later = "never"
        self._too_late = False
        self.result = Collection(
            start_s=self._now_s,
            trained_steps=trained_steps,
            has_memory=collector.memory,
        )
        self._submission = Submission(
            self.result,
            engine=engine,
            stream=stream,
            cursor=cursor,
            group_size=group_size,
            backlog=backlog,
            with_metrics=collector.wants_metrics,
            keep_rows=collector.memory or collector.samples_apart,
            longest_first=longest_first,
            service=service,
            resumed_last=resumed_last,
        )
        self._is_plain_engine = service is None

    @property
    def _open(self) -> bool:
        return self.result.stop is None and self.result.failure is None

    def run(self) -> Process:
        """Run the collection to its end (a SimPy process body)."""
        if not self._collector.barrier:
            yield from self._wait(self._now_s + self._hardware.call_overhead_s)
        self._carry_out(self._collector.on_start())
        self._send()
        while self._open:
            if self._too_late:
                yield from self._wait(self._deadline_s)
                self._reach("seconds")
            elif self._submission.n_in_flight == 0 and not self._submission.ready:
                self._reach("data")
                self._send()
            elif self._collector.barrier:
                yield from self._wave()
            else:
                yield from self._next_groups()
        self._close()

    # ------------------------------------------------------------------ the two rhythms

    def _wave(self) -> Process:
        """Wait for everything submitted since the last barrier, then let the policy judge it."""
        wave = self.result.waves[-1]
        if math.isinf(self._deadline_s) and self._is_plain_engine:
            self._engine.drain()
        while self._open and self._submission.is_waiting:
            if self._submission.advance(self._deadline_s) is None:
                break
        all_returned = self._submission.n_in_flight == 0
        returned_s = max(self._engine.now_s, wave.decode_start_s)
        wave.end_s = max(self._submission.decode_end_s(wave), wave.decode_start_s)
        wave.seen_s = min(self._polled(returned_s, since_s=wave.start_s), self._deadline_s)
        yield from self._wait(wave.seen_s)
        if not self._open:
            return
        returned = self._submission.returned(wave, all_returned=all_returned)
        actions = self._collector.on_wave_end([self.result.finished[i] for i in returned])
        self._carry_out(actions if all_returned else [a for a in actions if _settles(a)])
        self._send()
        if self._now_s >= self._deadline_s:
            self._reach("seconds")

    def _next_groups(self) -> Process:
        """Wait for the next finished group (or poll, or deadline) and let the policy judge."""
        found = self._submission.take_ready()
        if not found:
            done = self._submission.advance(self._deadline_s)
            if done is None:
                yield from self._wait(self._deadline_s)
                self._reach("seconds")
                return
            found = self._submission.indices(done.groups)
            seen_s = min(self._polled(done.at_s, since_s=self.result.start_s), self._deadline_s)
            if seen_s > done.at_s:
                while more := self._submission.advance(seen_s):
                    found += self._submission.indices(more.groups)
            yield from self._wait(seen_s)
        for index in sorted(found):
            if self._open:
                self._carry_out(self._collector.on_group(self.result.finished[index]))
            else:
                self.result.status[index] = self._leftover(index)
        if self._open:
            self._carry_out(self._collector.on_poll())
        self._send()
        if self._now_s >= self._deadline_s:
            self._reach("seconds")

    # ------------------------------------------------------------------ actions

    def _carry_out(self, actions: Sequence[Action]) -> None:
        result = self.result
        failed = result.service.failed if result.service is not None else ()
        for action in actions:
            if not self._open:
                return
            match action:
                case Submit() | Continue():
                    self._asked.append(action)
                case Keep(index=index) | Drop(index=index) | Carry(index=index) if index in failed:
                    result.status[index] = FAILED  # whatever the policy makes of it
                case Keep(index=index, members=members):
                    result.kept.append(index)
                    result.status[index] = TRAINED
                    if members is not None:
                        result.trained_members[index] = members
                case Drop(index=index, reason=reason):
                    result.status[index] = _DROPPED[reason]
                case Carry(index=index):
                    result.status[index] = CARRIED
                    result.holds.add(index)
                case Repeat(index=index):
                    result.repeated.append(index)
                case Abort(later=later):
                    self._later = later
                    self._submission.abort(keep_kv=later == "resume_with_kv")
                case Stop():
                    result.stop = action
                case Fail(message=message):
                    result.failure = message

    def _send(self) -> None:
        """Submit what was asked for at this instant; a stop in the same instant withdraws it."""
        if not self._asked:
            return
        asked, self._asked = self._asked, []
        first_part, sent = len(self.result.parts), False
        barrier = self._collector.barrier
        decode_start_s = self._now_s + (self._hardware.call_overhead_s if barrier else 0.0)
        for action in asked:
            if not self._open:
                break
            if decode_start_s >= self._deadline_s:
                self._too_late = True
            elif self._submission.send(action, at_s=decode_start_s):
                sent = True
            else:
                self._reach("data")
        n_parts = len(self.result.parts)
        if barrier and sent:
            self.result.waves.append(Wave(first_part, n_parts, self._now_s, decode_start_s))
        if self._asked:
            self._send()

    def _reach(self, limit: Limit) -> None:
        """Tell the policy that a limit was reached."""
        if self._open:
            self._carry_out(self._collector.on_limit(limit))

    def _close(self) -> None:
        """Whatever still runs is aborted at the next iteration boundary."""
        if self._engine.n_groups_in_flight:
            self._submission.abort(keep_kv=self._later == "resume_with_kv")
            self._engine.drain()
            for wave in self.result.waves[-1:]:  # cut by the deadline: it lasts to the boundary
                wave.end_s = wave.seen_s = self._engine.now_s
        train = self.result.stop is not None and self.result.stop.train
        unfinished = CARRIED if self._later.startswith("resume") else ABORTED
        for index, status in enumerate(self.result.status):
            if status == IN_FLIGHT and self._has_failed(index):
                self.result.status[index] = FAILED
            elif status == IN_FLIGHT:
                self.result.status[index] = unfinished
                self.result.lost.append(index)
            elif status == TRAINED and not train:
                self.result.status[index] = SURPLUS  # accepted, then thrown away with the step
        if not train:
            self.result.kept.clear()
            self.result.repeated.clear()
            self.result.trained_members.clear()
        self.result.end_s = max(self._now_s, self._engine.now_s)
        self._backlog.note = self._collector.note
        self._submission.leave(restart=self._later == "restart", step=self._step)

    # ------------------------------------------------------------------ small things

    def _wait(self, until_s: float) -> Process:
        """Let SimPy reach ``until_s``; its sums round, so the exact instant is kept beside it."""
        if until_s > self._env.now:
            yield self._env.timeout(until_s - self._env.now)
        self._now_s = max(self._now_s, until_s)

    def _polled(self, end_s: float, *, since_s: float) -> float:
        """Return the first poll at or after ``end_s``, polls being counted from ``since_s``."""
        poll_s = self._hardware.poll_s
        if poll_s == 0:
            return end_s
        # An end exactly on a poll is seen by it; differences of large times round.
        n_polls = math.ceil((end_s - since_s) / poll_s - 1e-9)
        return max(end_s, since_s + n_polls * poll_s)

    def _has_failed(self, index: int) -> bool:
        service = self.result.service
        return service is not None and index in service.failed

    def _leftover(self, index: int) -> int:
        """Status of a group that finished together with the one that ended the step."""
        if self._has_failed(index):
            return FAILED
        group = self.result.finished[index]
        return DEGENERATE if is_degenerate(group, keep_singletons=True) else SURPLUS


def _settles(action: Action) -> bool:
    return isinstance(action, _SETTLING)
