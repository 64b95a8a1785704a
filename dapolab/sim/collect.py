"""Play one collection policy against the engine for one training step.

The policy decides (``dapolab.collectors``), the engine moves tokens (``replica.py``), SimPy keeps
the clock in between. A barrier policy hears of a wave when its last group has returned; the others
hear of every group. A budget in seconds is a decision point: what has finished is judged, the rest
is aborted, and nothing is submitted that could not start before it.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy

from dapolab.collectors import (
    Abort,
    Action,
    Collector,
    Drop,
    Fail,
    Finished,
    Keep,
    Limit,
    Stop,
    Submit,
    is_degenerate,
)
from dapolab.scenario import Budget, Hardware
from dapolab.sim.cursor import PromptCursor
from dapolab.sim.replica import Engine
from dapolab.sim.score import ScoredStream

Process = Generator[simpy.Event, None, None]

IN_FLIGHT, TRAINED, DEGENERATE, SURPLUS, ABORTED = range(5)


@dataclass
class Wave:
    """One barrier round: group indices [first, last) of the step and its times in seconds."""

    first: int
    last: int
    start_s: float
    decode_start_s: float
    end_s: float = math.nan
    seen_s: float = math.nan


@dataclass
class Collection:
    """What one step collected; lists over the step's groups in submission order.

    ``finished[i]`` is what the policy is told of group i once it has returned. ``runs`` are the
    groups' places in the prompt stream as (start, number of positions).
    """

    start_s: float
    trained_steps: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    waves: list[Wave] = field(default_factory=list)
    end_s: float = math.nan
    stop: Stop | None = None
    failure: str | None = None

    @property
    def n_returned(self) -> int:
        """Groups whose responses all returned, trained or not."""
        return len(self.status) - self.status.count(ABORTED)


class Collecting:
    """One step in progress: carries the policy's actions out and tells it what happened."""

    def __init__(
        self,
        env: simpy.Environment,
        *,
        engine: Engine,
        stream: ScoredStream,
        cursor: PromptCursor,
        collector: Collector,
        hardware: Hardware,
        budget: Budget,
        trained_steps: int,
    ) -> None:
        self._env = env
        self._engine = engine
        self._stream = stream
        self._cursor = cursor
        self._collector = collector
        self._hardware = hardware
        self._now_s = engine.now_s
        self._deadline_s = self._now_s + budget.seconds if budget.seconds else math.inf
        self._asked: list[int] = []
        self._too_late = False
        self.result = Collection(start_s=self._now_s, trained_steps=trained_steps)

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
            elif self._engine.n_groups_in_flight == 0:
                self._reach("data")
            elif self._collector.barrier:
                yield from self._wave()
            else:
                yield from self._next_groups()
        self._close()

    # ------------------------------------------------------------------ the two rhythms

    def _wave(self) -> Process:
        """Wait for everything submitted since the last barrier, then let the policy judge it."""
        wave = self.result.waves[-1]
        if math.isinf(self._deadline_s):
            self._engine.drain()
        while self._engine.n_groups_in_flight and self._engine.advance(self._deadline_s):
            pass
        all_returned = self._engine.n_groups_in_flight == 0
        wave.end_s = self._engine.now_s
        wave.seen_s = min(self._polled(wave.end_s, since_s=wave.start_s), self._deadline_s)
        yield from self._wait(wave.seen_s)
        indices = range(wave.first, wave.last)
        if all_returned:
            self._carry_out(self._collector.on_wave_end([self.result.finished[i] for i in indices]))
        else:
            ends_P = self._engine.group_end_s(np.asarray(indices))
            returned = [i for i, end in zip(indices, ends_P.tolist(), strict=True) if end == end]
            actions = self._collector.on_wave_end([self.result.finished[i] for i in returned])
            self._carry_out([a for a in actions if isinstance(a, Keep | Drop)])
        self._send()
        if self._now_s >= self._deadline_s:
            self._reach("seconds")

    def _next_groups(self) -> Process:
        """Wait for the next finished group (or poll, or deadline) and let the policy judge."""
        done = self._engine.advance(self._deadline_s)
        if done is None:
            yield from self._wait(self._deadline_s)
            self._reach("seconds")
            return
        found = done.groups.tolist()
        seen_s = min(self._polled(done.at_s, since_s=self.result.start_s), self._deadline_s)
        if seen_s > done.at_s:
            while more := self._engine.advance(seen_s):
                found += more.groups.tolist()
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
        for action in actions:
            if not self._open:
                return
            match action:
                case Submit(n=n):
                    self._asked.append(n)
                case Keep(index=index):
                    self.result.kept.append(index)
                    self.result.status[index] = TRAINED
                case Drop(index=index, reason=reason):
                    self.result.status[index] = DEGENERATE if reason == "degenerate" else SURPLUS
                case Abort():
                    self._engine.abort(at_s=self._engine.now_s)
                case Stop():
                    self.result.stop = action
                case Fail(message=message):
                    self.result.failure = message

    def _send(self) -> None:
        """Submit what was asked for at this instant; a stop in the same instant withdraws it."""
        for n in self._asked:
            if self._open:
                self._submit(n)
        self._asked.clear()

    def _submit(self, n: int) -> None:
        barrier = self._collector.barrier
        decode_start_s = self._now_s + (self._hardware.call_overhead_s if barrier else 0.0)
        if decode_start_s >= self._deadline_s:
            self._too_late = True
            return
        start, available = self._cursor.take(n)
        if available == 0:
            self._reach("data")
            return
        result = self.result
        first = len(result.status)
        groups, finished = self._stream.draw(
            start, available, first_index=first, trained_steps=result.trained_steps
        )
        result.finished += finished
        result.status += [IN_FLIGHT] * available
        if result.runs and sum(result.runs[-1]) == start:
            result.runs[-1] = (result.runs[-1][0], result.runs[-1][1] + available)
        else:
            result.runs.append((start, available))
        if barrier:
            result.waves.append(Wave(first, first + available, self._now_s, decode_start_s))
        self._engine.submit(
            at_s=decode_start_s,
            group_P=groups.prompt_id_P,
            prompt_tokens_P=groups.prompt_tokens_P,
            n_tokens_PG=groups.n_tokens_PG,
        )

    def _reach(self, limit: Limit) -> None:
        """Tell the policy that a limit was reached."""
        if self._open:
            self._carry_out(self._collector.on_limit(limit))

    def _close(self) -> None:
        """Whatever still runs is aborted at the next iteration boundary."""
        if self._engine.n_groups_in_flight:
            self._engine.abort(at_s=self._engine.now_s)
            self._engine.drain()
            for wave in self.result.waves[-1:]:  # cut by the deadline: it lasts to the boundary
                wave.end_s = wave.seen_s = self._engine.now_s
        train = self.result.stop is not None and self.result.stop.train
        for index, status in enumerate(self.result.status):
            if status == IN_FLIGHT:
                self.result.status[index] = ABORTED
            elif status == TRAINED and not train:
                self.result.status[index] = SURPLUS  # accepted, then thrown away with the step
        if not train:
            self.result.kept.clear()
        self.result.end_s = max(self._now_s, self._engine.now_s)

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

    def _leftover(self, index: int) -> int:
        """Status of a group that finished together with the one that ended the step."""
        group = self.result.finished[index]
        return DEGENERATE if is_degenerate(group, keep_singletons=True) else SURPLUS
