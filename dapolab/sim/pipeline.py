"""Fully asynchronous training: rollout and learner as two processes with a queue between them.

The rollout process owns the clock: it moves the engine to the next finished group or the next alarm
(the learner's next end, a reward that comes later), whichever is first, tells whoever waits, and
submits what the control has room for once everybody has acted at that instant. The learner process
takes batches, works, and updates the weights; SimPy switches between the two.

What the frameworks leave open:

- One step is one version. A group's version is that of its submission; tokens have the version that
  was active when their iteration ended.
- Rewards are scored beside the rollout: a group is ready ``group_size · reward_s_per_response``
  after its last answer, and runs until then. ``call_overhead_s`` is paid once, at the start.
- In-flight updates stop each replica at its next iteration boundary; the copy starts when the last
  one stands and lasts ``sync_s``; then all go on where they were, before anything new (or behind
  it: ``rollout.resumed``). Without a copy time and with kept KV nobody stops.
- Drained updates admit nothing until all that runs has finished; then the copy, then the rest.
- A group that finishes at the instant at which the learner looks is there for it.
- A failed group leaves as soon as it is seen, and makes room for another one; whoever counts what
  is on the way, a quota too, counts it no more.
- What still runs when the last step is trained is aborted; ready groups are surplus. Neither is in
  a step's row.
"""

import heapq
import math
from collections.abc import Callable, Generator
from itertools import count
from typing import cast

import numpy as np
import simpy

from dapolab.collectors import Finished, is_degenerate
from dapolab.scenario import FullyAsync, Scenario, Streaming
from dapolab.sim.control import check_pipeline, filters, oldest_trainable, room
from dapolab.sim.learner import LearnerTime, at_gpus, learner_gpus, learner_time, summed
from dapolab.sim.outset import COMPLETED, DATA_EXHAUSTED, SimRun, set_out
from dapolab.sim.pipe import Pipe, Place
from dapolab.sim.pipeline_record import PipelineRecord
from dapolab.sim.pipeline_tables import tables
from dapolab.sim.queue_order import pick
from dapolab.sim.traffic import new_traffic

Process = Generator[simpy.Event, None, None]


def run_pipeline(
    scenario: Scenario, *, seed: int, replication: int, record_steps: int, keep_groups: bool
) -> SimRun:
    """Run a fully asynchronous scenario; parameters as of ``simulate``."""
    pipeline = Pipeline(scenario, seed=seed, replication=replication)
    pipeline.env.process(pipeline.rollout())
    pipeline.env.process(pipeline.learning())
    pipeline.env.run()
    pipeline.close()
    return tables(pipeline.record, record_steps=record_steps, keep_groups=keep_groups)


class Pipeline:
    """One run: the two processes and what they share."""

    def __init__(self, scenario: Scenario, *, seed: int, replication: int) -> None:
        self.schedule = cast(FullyAsync, scenario.learner.schedule)
        check_pipeline(scenario, self.schedule)
        self.scenario = scenario
        self.env = simpy.Environment()
        self._outset = set_out(scenario, seed=seed, replication=replication)
        self.engine = self._outset.engine
        self.traffic = new_traffic(scenario, self._outset)
        self.pipe = Pipe(groups_per_step=scenario.rollout.groups_per_step)
        self._n_learner_gpus = learner_gpus(scenario)
        self._learner = at_gpus(scenario.learner, self._n_learner_gpus)
        self._filters = filters(scenario.collector)
        self._notes: list[Finished] = []
        self._prompt_tokens: list[int] = []
        self._prompt_ids: list[int] = []
        self._alarms: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._changed = self.env.event()
        self._holds = self._drains = False
        self._out_of_data = False
        self._over = False
        self.record = PipelineRecord(
            scenario=scenario, outset=self._outset, pipe=self.pipe, service=self.traffic.books
        )

    @property
    def now_s(self) -> float:
        """Time reached; SimPy's own clock follows it and rounds."""
        return self.engine.now_s

    # ------------------------------------------------------------------ rollout

    def rollout(self) -> Process:
        """Drive the clock (a SimPy process body)."""
        self.engine.advance(self.scenario.hardware.call_overhead_s)
        while True:
            yield self.env.timeout(max(self.now_s - self.env.now, 0.0))
            if self._over:
                return
            if self._ring():
                continue
            if self.traffic.failure is not None:
                self._end(f"failed: {self.traffic.failure}")
                return
            resumed = self.scenario.rollout.resumed
            if resumed == "first":
                self.traffic.release(self.pipe.is_running, front=True)
            self._submit()
            if resumed == "last":
                self.traffic.release(self.pipe.is_running, front=False)
            until_s = self._alarms[0][0] if self._alarms else math.inf
            if not self.traffic.is_live and math.isinf(until_s):
                self._stand_still()
                return
            done = self.traffic.advance(until_s, until_quiet=self._drains)
            if done is not None:
                for group in done.groups.tolist():
                    self._return(group, done.at_s)
            if not self.traffic.is_generating:
                self._notify()  # drained, or what was cancelled has stopped

    def _submit(self) -> None:
        """Start as many groups as the control has room for."""
        while not self._holds and not self._out_of_data:
            n = room(self.schedule, self.pipe)
            if isinstance(self.scenario.collector, Streaming) and self.scenario.collector.slots:
                n = min(n, self.scenario.collector.slots - self.pipe.n_running)
            if n <= 0:
                return
            # a streaming loader hands out prompts one by one: it never drops an epoch's tail
            n = 1 if self.scenario.workload.prompts.drop_last else n
            runs = self._outset.cursor.take_runs(n, trained_steps=self.pipe.version)
            if not runs:
                self._out_of_data = True
                return
            for start, available in runs:
                self._start(start, available)

    def _start(self, start: int, n: int) -> None:
        version = self.pipe.version
        groups, notes = self._outset.stream.draw(
            start, n, first_index=self.pipe.n_submitted, trained_steps=version
        )
        self.pipe.submit(n)
        self._notes += notes
        self._prompt_tokens += groups.prompt_tokens_P.tolist()
        self._prompt_ids += groups.prompt_id_P.tolist()
        self.record.started(start, n, version=version)
        self.traffic.submit(groups)

    def _return(self, group: int, at_s: float) -> None:
        """Score a group whose last answer has come, now or when it is seen and rewarded."""
        poll_s = self.scenario.hardware.poll_s
        ready_s = max(math.ceil(at_s / poll_s - 1e-9) * poll_s if poll_s else at_s, at_s)
        note = self.traffic.outcome(group, self._notes[group])
        if note is not None:
            self._notes[group] = note
            ready_s += self._learner.reward_s_per_response * self.scenario.rollout.group_size
        if ready_s > self.now_s:
            self._alarm(ready_s, lambda: self._judge(group, has_failed=note is None))
        else:
            self._judge(group, has_failed=note is None)

    def _judge(self, group: int, *, has_failed: bool) -> None:
        pipe, rollout = self.pipe, self.scenario.rollout
        if pipe.place[group] is not Place.RUNNING:
            return  # cancelled, yet finished at the boundary
        note = self._notes[group]
        if has_failed:
            pipe.move(group, Place.FAILED)
        elif self._filters and is_degenerate(note, keep_singletons=rollout.singletons == "keep"):
            pipe.move(group, Place.DEGENERATE)
        elif pipe.version_of[group] < oldest_trainable(self.schedule.control, pipe.version):
            pipe.move(group, Place.STALE)
        else:
            pipe.move(group, Place.READY)
        self._notify()

    def _stand_still(self) -> None:
        """Nothing runs and nobody will act again: the data have run out."""
        if not self._out_of_data:
            raise RuntimeError("the pipeline stands still with prompts left")
        self._end(DATA_EXHAUSTED)

    def _end(self, how: str) -> None:
        self.record.ended = how
        self._over = True

    # ------------------------------------------------------------------ learner

    def learning(self) -> Process:
        """Take batches, train, update the weights (a SimPy process body)."""
        n_parts = self.schedule.fetches_per_step
        sizes = [len(part) for part in np.array_split(range(self.pipe.groups_per_step), n_parts)]
        for step in range(self.scenario.run.steps):
            trained: list[int] = []
            times: list[LearnerTime] = []
            for part, size in enumerate(sizes):
                n_left = self.pipe.groups_per_step - len(trained)
                batch = yield from self._fetch(size, n_left)
                time = self._learner_time(batch, step=step, part=part)
                yield from self._until(self.now_s + time.total_s - time.sync_s)
                trained += batch
                times.append(time)
            yield from self._new_weights(trained, summed(times))
        self._end(COMPLETED)

    def _fetch(self, n: int, n_left: int) -> Generator[simpy.Event, None, list[int]]:
        while (batch := pick(self.schedule, self.pipe, n=n, n_left=n_left)) is None:
            yield self._changed
        self.record.fetched(n_queued=self.pipe.n_ready - n)
        self.pipe.take(batch)
        return batch

    def _learner_time(self, batch: list[int], *, step: int, part: int) -> LearnerTime:
        size = self.scenario.rollout.group_size
        prompt_tokens = size * sum(self._prompt_tokens[group] for group in batch)
        packed = self._learner.packing is not None
        return learner_time(
            self._learner,
            step=step,
            n_responses=0,
            n_train_tokens=sum(self._notes[group].n_tokens for group in batch) + prompt_tokens,
            skipped=False,
            lengths=self.record.lengths(batch) if packed else None,
            n_gpus=self._n_learner_gpus,
            seed=self._outset.seed,
            part=part,
            n_parts=self.schedule.fetches_per_step,
        )

    def _new_weights(self, trained: list[int], time: LearnerTime) -> Process:
        """Copy the weights and begin the next version."""
        stops = self.schedule.weights == "in_flight" and (
            time.sync_s > 0.0 or self.schedule.kv == "recomputed"
        )
        self._holds = stops or self.schedule.weights == "drained"
        if stops:
            for group in self.traffic.interrupt(keep_kv=self.schedule.kv == "kept"):
                self._return(group, self.now_s)
        elif self._holds:
            self._drains = True
            while self.traffic.is_generating:
                yield self._changed
            self._drains = False
        pause_start_s = self.now_s
        yield from self._until(self.now_s + time.sync_s)
        if stops:
            self.record.paused(pause_start_s, self.now_s)
        for group in trained:
            self.pipe.move(group, Place.TRAINED)
        if self._outset.visits is not None:
            prompts = np.array([self._prompt_ids[group] for group in trained], dtype=np.int64)
            self._outset.visits.add(prompts, version=self.pipe.version + 1)
        self.record.updated(self.traffic, time)
        self.pipe.update()
        self.traffic.cancel(self._drop_old())
        if stops:
            self.traffic.go_on()
        self._holds = False

    def _drop_old(self) -> list[int]:
        """Drop ready groups that grew too old; return the running ones to cancel."""
        oldest = oldest_trainable(self.schedule.control, self.pipe.version)
        for group in [g for g in self.pipe.ready if self.pipe.version_of[g] < oldest]:
            self.pipe.move(group, Place.STALE)
        if not getattr(self.schedule.control, "cancel", False):
            return []
        cancelled = self.pipe.running_up_to(oldest - 1)
        for group in cancelled:
            self.pipe.move(group, Place.ABORTED)
        return cancelled

    # ------------------------------------------------------------------ time

    def _alarm(self, at_s: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._alarms, (at_s, next(self._order), act))

    def _ring(self) -> bool:
        """Let everything act that is due by now; say whether there was anything."""
        rang = False
        while self._alarms and self._alarms[0][0] <= self.now_s:
            heapq.heappop(self._alarms)[2]()
            rang = True
        return rang

    def _until(self, at_s: float) -> Process:
        reached = self.env.event()
        self._alarm(at_s, reached.succeed)
        yield reached

    def _notify(self) -> None:
        changed, self._changed = self._changed, self.env.event()
        changed.succeed()

    def close(self) -> None:
        """Abort what still runs; the run is over."""
        self.record.closed(self.traffic)
