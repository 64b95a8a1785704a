"""simulate(scenario, *, seed): many training steps of one collection policy, as tables.

Pure: no files, no globals, nothing printed. One replication is one independent run; the same
(seed, replication) gives every policy the same prompts, lengths and right answers.
"""

from collections.abc import Generator

import numpy as np
import simpy
from numpy.typing import NDArray

from dapolab.collectors import new_collector
from dapolab.scenario import Collector as CollectorConfig
from dapolab.scenario import ConfigError, ExactRefill, FilterNoRefill, Replenish, Scenario
from dapolab.sim.account import Ledger, StepRecord
from dapolab.sim.backlog import Backlog
from dapolab.sim.collect import Collecting, Process
from dapolab.sim.collection import Collection
from dapolab.sim.cursor import PromptCursor
from dapolab.sim.learner import LearnerTime, at_gpus, learner_gpus, learner_time
from dapolab.sim.one_step_off import Overlap
from dapolab.sim.outset import COMPLETED, DATA_EXHAUSTED, SimRun, gpus_held, set_out
from dapolab.sim.pipeline import run_pipeline
from dapolab.sim.service import Service
from dapolab.sim.service_check import check_service, needs_service
from dapolab.sim.service_draws import Draws
from dapolab.sim.service_stays import with_stays
from dapolab.workload.model import Groups, joined

__all__ = ["SimRun", "gpus_held", "simulate"]


def simulate(
    scenario: Scenario,
    *,
    seed: int,
    replication: int = 0,
    record_steps: int = 0,
    keep_groups: bool = True,
) -> SimRun:
    """Run ``scenario.run.steps`` training steps.

    Parameters
    ----------
    scenario : the experiment.
    seed, replication : together they name the draws; equal ones give equal bytes.
    record_steps : how many first steps keep a row a response (Gantt, Perfetto).
    keep_groups : false leaves the groups table empty (sweeps that need step metrics alone).

    Raises
    ------
    ConfigError
        The scenario cannot be run (a response that never fits, a replay with too few samples).
    """
    if scenario.learner.schedule.kind == "fully_async":
        check_service(scenario)
        return run_pipeline(
            scenario,
            seed=seed,
            replication=replication,
            record_steps=record_steps,
            keep_groups=keep_groups,
        )
    run = _Run(scenario, seed=seed, replication=replication)
    run.ledger.record_steps, run.ledger.keep_groups = record_steps, keep_groups
    run.env.process(run.training())
    run.env.run()
    return run.result()


class _Run:
    """State of one simulated run: engine, prompt stream and cursor, books."""

    def __init__(self, scenario: Scenario, *, seed: int, replication: int) -> None:
        _check_budget(scenario)
        check_service(scenario)
        self.scenario = scenario
        self.env = simpy.Environment()
        outset = set_out(scenario, seed=seed, replication=replication)
        self.engine, self.stream, self.cursor = outset.engine, outset.stream, outset.cursor
        self.longest_first, self.visits = outset.longest_first, outset.visits
        self.draws = None
        if needs_service(scenario.rollout):
            self.draws = Draws(scenario.rollout, seed=outset.seed)
        self.seed = outset.seed
        self.n_learner_gpus = learner_gpus(scenario)
        self.learner = at_gpus(scenario.learner, self.n_learner_gpus)
        self.overlap = Overlap() if scenario.learner.schedule.kind == "one_step_off" else None
        self.ledger = Ledger(
            scores=outset.scores,
            n_wanted=scenario.rollout.groups_per_step,
            n_gpus=gpus_held(scenario),
            estimates_q=_estimates_q(scenario.collector),
            group_size=scenario.rollout.group_size,
        )
        self.backlog = Backlog()
        self.ended = COMPLETED
        self.unlearned_s = 0.0

    def training(self) -> Process:
        """Collect, learn, repeat (a SimPy process body)."""
        trained_steps = generating = 0
        for step in range(self.scenario.run.steps):
            collection = yield from self._collect(generating, step=step)
            out_of_data = collection.stop is not None and collection.stop.reason == "data"
            if collection.failure is not None:
                self.ended = f"failed: {collection.failure}"
            elif out_of_data:
                self.ended = DATA_EXHAUSTED
            learned = collection.failure is None and not (out_of_data and not collection.kept)
            if not collection.is_empty:
                age = trained_steps - generating
                self._account(step, collection, learned=learned, age=age)
            if not learned:
                self.unlearned_s = collection.end_s - collection.start_s
                return
            # one step off, the next rollout starts before this training ends
            before, trained_steps = trained_steps, trained_steps + bool(collection.kept)
            generating = before if self.overlap else trained_steps
            yield from self._sleep_until(self.engine.now_s)
            if out_of_data:
                return

    def _collect(
        self, trained_steps: int, *, step: int
    ) -> Generator[simpy.Event, None, Collection]:
        rollout = self.scenario.rollout
        collecting = Collecting(
            self.env,
            engine=self.engine,
            stream=self.stream,
            cursor=self.cursor,
            collector=new_collector(
                self.scenario.collector, rollout, carried=self.backlog.carried(trained_steps)
            ),
            hardware=self.scenario.hardware,
            budget=self.scenario.collector.budget,
            trained_steps=trained_steps,
            group_size=rollout.group_size,
            backlog=self.backlog,
            step=step,
            longest_first=self.longest_first,
            service=Service(self.engine, rollout, draws=self.draws) if self.draws else None,
            resumed_last=rollout.resumed == "last",
        )
        before = self.cursor.skipped if not isinstance(self.cursor, PromptCursor) else None
        yield from collecting.run()
        if not isinstance(self.cursor, PromptCursor) and before is not None:
            collecting.result.n_skipped = self.cursor.skipped - before
        return collecting.result

    def _account(self, step: int, collection: Collection, *, learned: bool, age: int) -> None:
        """Enter the step into the books, and move the engine to the start of the next one."""
        facts, groups = self.engine.facts(), self._groups(collection)
        if collection.service is not None:
            facts = with_stays(facts, collection.service.stays, last=collection.service.last)
        if not isinstance(self.cursor, PromptCursor):
            self.cursor.hear(groups, collection.returned())
        if self.visits is not None and collection.kept:
            trained = groups.prompt_id_P[collection.kept + collection.repeated]
            self.visits.add(trained, version=collection.trained_steps + age + 1)
        learner = self._learner_time(step, collection, groups) if learned else None
        self.ledger.add(StepRecord(step, collection, groups, facts, learner))
        if self.overlap:
            next_s = self.overlap.next_start_s(collection.end_s, learner, age=age)
        else:
            next_s = collection.end_s + (learner.total_s if learner else 0.0)
        # SimPy's clock adds up delays and rounds; the engine's is the exact one.
        self.engine.reset(at_s=next_s, keep=collection.keep)

    def _groups(self, collection: Collection) -> Groups:
        """Draw the step's new groups once more, at a stretch: the stream is a pure function."""
        draw, trained = self.stream.stream.draw, collection.trained_steps
        parts = [left.group for left in collection.left]
        parts += [draw(start, n, trained_steps=trained) for start, n in collection.runs]
        parts += collection.again
        groups = parts[0] if len(parts) == 1 else joined(parts)
        return groups if collection.service is None else collection.service.as_ended(groups)

    def _learner_time(self, step: int, collection: Collection, groups: Groups) -> LearnerTime:
        size = self.scenario.rollout.group_size
        lengths = _trained_lengths(collection, groups, size=size)
        return learner_time(
            self.learner,
            step=step,
            n_responses=size * collection.n_returned,
            n_train_tokens=int(lengths.sum()),
            skipped=not collection.kept,
            lengths=lengths,
            n_gpus=self.n_learner_gpus,
            seed=self.seed,
        )

    def _sleep_until(self, at_s: float) -> Process:
        if at_s > self.env.now:
            yield self.env.timeout(at_s - self.env.now)

    def result(self) -> SimRun:
        """Return the tables so far."""
        steps, groups, waves, responses = self.ledger.tables()
        if self.overlap:
            steps = self.overlap.amend(steps, n_gpus=self.ledger.n_gpus)
        return SimRun(
            steps=steps,
            groups=groups,
            waves=waves,
            responses=responses,
            ended=self.ended,
            n_prompts_used=self.cursor.position,
            unlearned_s=self.unlearned_s,
        )


def _trained_lengths(collection: Collection, groups: Groups, *, size: int) -> NDArray[np.int64]:
    """Return prompt + response tokens of every trained response, copies included."""
    trained = collection.kept + collection.repeated
    lengths_PG = groups.n_tokens_PG[trained] + groups.prompt_tokens_P[trained, None]
    members = collection.members | collection.trained_members
    if not members:
        return np.asarray(lengths_PG[:, :size].reshape(-1))
    chosen = [list(members.get(index, range(size))) for index in trained]
    rows = [row[own] for row, own in zip(lengths_PG, chosen, strict=True)]
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)


def _estimates_q(collector: CollectorConfig) -> bool:
    """Say whether the policy judges every candidate and stops at the B-th kept (theory A7)."""
    match collector:
        case FilterNoRefill(keep_one=keep_one):
            return not keep_one
        case ExactRefill():
            return True
        case Replenish(min_in_flight=min_in_flight):
            return min_in_flight == 0
    return False


def _check_budget(scenario: Scenario) -> None:
    seconds, overhead_s = scenario.collector.budget.seconds, scenario.hardware.call_overhead_s
    if seconds is not None and seconds <= overhead_s:
        raise ConfigError(
            f"collector.budget.seconds {seconds:g} is spent by hardware.call_overhead_s "
            f"{overhead_s:g} before anything is generated; raise the budget"
        )
