"""simulate(scenario, *, seed): many training steps of one collection policy, as tables.

Pure: no files, no globals, nothing printed. One replication is one independent run; the same
(seed, replication) gives every policy the same prompts, lengths and right answers.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import simpy

from dapolab.collectors import new_collector
from dapolab.metrics import STEP_METRICS
from dapolab.rng import seed_sequence
from dapolab.scenario import ConfigError, Scenario
from dapolab.sim.account import (
    STATUS_NAMES,
    ResponseFacts,
    group_rows,
    join,
    step_row,
    wave_rows,
)
from dapolab.sim.collect import Collecting, Collection, Process, PromptCursor
from dapolab.sim.hardware import resolve
from dapolab.sim.learner import LearnerTime, learner_time
from dapolab.sim.replica import Engine
from dapolab.sim.score import Scores
from dapolab.workload.model import Groups, PromptStream

COMPLETED = "completed"
DATA_EXHAUSTED = "data exhausted"


@dataclass(frozen=True)
class SimRun:
    """One replication of one policy.

    Attributes
    ----------
    steps : one row a step; columns are ``step, start_s`` and metrics.STEP_METRICS; absent is NaN.
    groups : one row a group (metrics.GROUP_COLUMNS without policy and replication).
    waves : one row a barrier wave; empty without a barrier.
    responses : one row a response of the recorded steps (for Gantt and trace).
    ended : "completed", "data exhausted" or "failed: …"; the tables hold what came before.
    n_prompts_used : positions of the prompt stream consumed, dropped tails included.
    """

    steps: pd.DataFrame
    groups: pd.DataFrame
    waves: pd.DataFrame
    responses: pd.DataFrame
    ended: str
    n_prompts_used: int

    @property
    def failed(self) -> bool:
        """Whether the policy itself ended the run with an error."""
        return self.ended.startswith("failed")


@dataclass
class _Tables:
    steps: list[dict[str, float]] = field(default_factory=list)
    groups: list[pd.DataFrame] = field(default_factory=list)
    waves: list[dict[str, float]] = field(default_factory=list)
    responses: list[pd.DataFrame] = field(default_factory=list)


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
    run = _Run(scenario, seed=seed, replication=replication)
    run.record_steps, run.keep_groups = record_steps, keep_groups
    env = run.env
    env.process(run.training())
    env.run()
    return run.result()


class _Run:
    """State of one simulated run: engine, prompt cursor, tables so far."""

    def __init__(self, scenario: Scenario, *, seed: int, replication: int) -> None:
        draws = int(seed_sequence(seed, "replication", replication).generate_state(1, np.uint64)[0])
        rollout, prompts = scenario.rollout, scenario.workload.prompts
        self.scenario = scenario
        self.env = simpy.Environment()
        self.engine = Engine(scenario.hardware, resolve(scenario.hardware))
        self.stream = PromptStream(
            scenario.workload,
            group_size=rollout.group_size,
            cap_tokens=rollout.cap_tokens,
            seed=draws >> 1,
        )
        self.cursor = PromptCursor(
            self.stream, count=self.stream.n_prompts, drop_last=prompts.drop_last
        )
        self.scores = Scores(rollout)
        self.tables = _Tables()
        self.ended = COMPLETED
        self.record_steps = 0
        self.keep_groups = True

    def training(self) -> Process:
        """Collect, learn, repeat (a SimPy process body)."""
        trained_steps = 0
        for step in range(self.scenario.run.steps):
            collecting = Collecting(
                self.env,
                engine=self.engine,
                stream=self.stream,
                cursor=self.cursor,
                collector=new_collector(self.scenario.collector, self.scenario.rollout),
                scores=self.scores,
                hardware=self.scenario.hardware,
                budget=self.scenario.collector.budget,
                trained_steps=trained_steps,
            )
            yield from collecting.run()
            collection = collecting.result
            if collection.failure is not None:
                self.ended = f"failed: {collection.failure}"
                return
            assert collection.stop is not None
            out_of_data = collection.stop.reason == "data"
            if out_of_data:
                self.ended = DATA_EXHAUSTED
            if not collection.groups or (out_of_data and not collection.kept):
                return
            learner = self._account(step, collection)
            trained_steps += 1 if collection.kept else 0
            yield self.env.timeout(max(collection.end_s - self.env.now, 0.0) + learner.total_s)
            self.engine.reset(at_s=self.env.now)
            if out_of_data:
                return

    def _account(self, step: int, collection: Collection) -> LearnerTime:
        groups = join(collection.groups)
        facts = self._facts(groups)
        kept = np.array(collection.kept, dtype=np.int64)
        size = groups.n_tokens_PG.shape[1]
        train_tokens = groups.n_tokens_PG[kept].sum() + size * groups.prompt_tokens_P[kept].sum()
        learner = learner_time(
            self.scenario.learner,
            step=step,
            n_responses=int(np.isfinite(facts.end_s_PG).sum()),
            n_train_tokens=int(train_tokens),
            skipped=len(kept) == 0,
        )
        hardware = self.scenario.hardware
        waves = wave_rows(collection, facts)
        row = step_row(
            collection,
            groups,
            facts,
            waves=waves,
            learner=learner,
            rollout=self.scenario.rollout,
            scores=self.scores,
            n_gpus=hardware.replicas * hardware.gpus_per_replica
            + (self.scenario.learner.gpus or 0),
        )
        self.tables.steps.append({"step": step, "start_s": collection.start_s, **row})
        self.tables.waves += [{"step": step, **wave} for wave in waves]
        if self.keep_groups:
            frame = pd.DataFrame(group_rows(collection, groups, facts))
            frame.insert(0, "step", step)
            self.tables.groups.append(frame)
        if step < self.record_steps:
            self.tables.responses.append(_response_rows(step, collection, facts))
        return learner

    def _facts(self, groups: Groups) -> ResponseFacts:
        facts = self.engine.facts()
        shape = groups.n_tokens_PG.shape
        return ResponseFacts(
            replica_PG=facts.replica.reshape(shape),
            submit_s_PG=facts.submit_s.reshape(shape),
            admit_s_PG=facts.admit_s.reshape(shape),
            first_token_s_PG=facts.first_token_s.reshape(shape),
            end_s_PG=facts.end_s.reshape(shape),
            generated_PG=facts.generated_tokens.reshape(shape),
            n_preemptions=int(facts.n_preemptions.sum()),
            prefill_s_R=facts.prefill_s,
            peak_kv_tokens_R=facts.peak_kv_tokens,
        )

    def result(self) -> SimRun:
        """Return the tables so far."""
        names = [metric.name for metric in STEP_METRICS]
        steps = pd.DataFrame(self.tables.steps, columns=["step", "start_s", *names])
        return SimRun(
            steps=steps.astype({"step": np.int64}),
            groups=_concat(self.tables.groups),
            waves=pd.DataFrame(self.tables.waves),
            responses=_concat(self.tables.responses),
            ended=self.ended,
            n_prompts_used=self.cursor.position,
        )


def _concat(frames: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _response_rows(step: int, collection: Collection, facts: ResponseFacts) -> pd.DataFrame:
    n_groups, size = facts.end_s_PG.shape
    wave_P = np.full(n_groups, -1)
    for number, wave in enumerate(collection.waves):
        wave_P[wave.first : wave.last] = number
    columns: dict[str, Any] = {
        "step": step,
        "wave": np.repeat(wave_P, size),
        "group": np.repeat(np.arange(n_groups), size),
        "member": np.tile(np.arange(size), n_groups),
        "replica": facts.replica_PG.ravel(),
        "submit_s": facts.submit_s_PG.ravel(),
        "admit_s": facts.admit_s_PG.ravel(),
        "first_token_s": facts.first_token_s_PG.ravel(),
        "end_s": facts.end_s_PG.ravel(),
        "generated_tokens": facts.generated_PG.ravel(),
        "status": np.repeat(STATUS_NAMES[np.array(collection.status)], size),
    }
    return pd.DataFrame(columns)


__all__ = ["ConfigError", "SimRun", "simulate"]
