"""What a pipeline's run leaves behind for its tables: submissions, updates, pauses."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dapolab.scenario import Scenario
from dapolab.sim.collection import Serviced
from dapolab.sim.learner import LearnerTime
from dapolab.sim.outset import COMPLETED, Outset
from dapolab.sim.pipe import Pipe
from dapolab.sim.replica import Facts
from dapolab.sim.traffic import Traffic
from dapolab.workload.model import Groups, joined

Int = NDArray[np.int64]


@dataclass(frozen=True)
class Update:
    """One weight update: its instant, the learner's seconds of its step, and what was under way.

    ``generated`` are the tokens by then of responses ``first``, ``first + 1``, …, 0 for those that
    had finished; every response before ``first`` had. ``waited_s`` are the seconds since the start
    of the run in which nothing decoded and a score, a call was waited for.
    """

    at_s: float
    learner: LearnerTime
    n_queued: int
    first: int
    generated: Int
    waited_s: tuple[float, float] = (0.0, 0.0)


@dataclass
class PipelineRecord:
    """Books of one run; ``runs`` are stretches of the prompt stream as (start, n, version)."""

    scenario: Scenario
    outset: Outset
    pipe: Pipe
    service: Serviced | None = None
    """What befell responses beside their tokens; None: nothing can."""
    ended: str = COMPLETED
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    end_s: float = 0.0
    facts: Facts | None = None
    _queued: int = 0
    _lengths: list[Int] = field(default_factory=list)

    def started(self, start: int, n: int, *, version: int) -> None:
        """Enter ``n`` groups from position ``start`` on, drawn at ``version`` trained steps."""
        if self.runs and self.runs[-1][2] == version and sum(self.runs[-1][:2]) == start:
            first, before, _ = self.runs[-1]
            self.runs[-1] = (first, before + n, version)
        else:
            self.runs.append((start, n, version))

    def fetched(self, *, n_queued: int) -> None:
        """Enter the ready groups that a batch left in the queue."""
        self._queued = n_queued

    def paused(self, start_s: float, end_s: float) -> None:
        """Enter a time in which no replica ran."""
        self.pauses.append((start_s, end_s))

    def updated(self, traffic: Traffic, learner: LearnerTime) -> None:
        """Enter a weight update at the engine's present time."""
        first, generated = traffic.under_way(self.pipe.first_running)
        at_s, waited_s = traffic.engine.now_s, traffic.waited_s
        self.updates.append(Update(at_s, learner, self._queued, first, generated, waited_s))

    def closed(self, traffic: Traffic) -> None:
        """Enter the end of the run: what still runs is cut off."""
        traffic.close()
        self.facts, self.end_s = traffic.facts(self.pipe.is_running), traffic.engine.now_s

    def lengths(self, batch: list[int]) -> Int:
        """Return prompt + response tokens of each response of the groups ``batch``, flat."""
        while len(self._lengths) < self.pipe.n_submitted:
            self._lengths += self._drawn_lengths(len(self._lengths))
        changed = self.service.changed if self.service else {}
        return np.concatenate(
            [_lengths(changed[g])[0] if g in changed else self._lengths[g] for g in batch]
        )

    def _drawn_lengths(self, first: int) -> list[Int]:
        """Return the lengths of groups ``first`` to the end of the stretch that holds it."""
        before = 0
        for start, n, version in self.runs:
            if first < before + n:
                skip = first - before
                draw = self.outset.stream.stream.draw
                return list(_lengths(draw(start + skip, n - skip, trained_steps=version)))
            before += n
        raise IndexError(f"group {first} was not submitted")

    @cached_property
    def groups(self) -> Groups:
        """All groups in submission order, drawn once more (the stream is a pure function)."""
        draw = self.outset.stream.stream.draw
        groups = joined([draw(start, n, trained_steps=version) for start, n, version in self.runs])
        return groups if self.service is None else self.service.as_ended(groups)


def _lengths(groups: Groups) -> Int:
    return np.asarray(groups.n_tokens_PG + groups.prompt_tokens_P[:, None])
