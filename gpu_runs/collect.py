"""Play one collection policy of ``dapolab.collectors`` against the real engine for one step.

The policy object is the simulator's (``dapolab.sim.collect`` is the other driver; the contract is
``dapolab.collectors.actions``): it hears of whole waves or of groups as they return, found by one
poll, and answers with actions. The clock here is the wall clock, read between iterations, and only
a budget in seconds looks at it: without one a step is a function of weights, seed and prompts.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

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
    new_collector,
)
from dapolab.scenario import Collector as CollectorConfig
from dapolab.scenario import ConfigError
from dapolab.scenario import Rollout as RolloutConfig
from gpu_runs.generate import Generator, Request
from gpu_runs.prompts import PromptStream
from gpu_runs.rollout import Candidate, Rollout, Wave
from gpu_runs.score import Scores


def collect_step(
    generator: Generator,
    prompts: PromptStream,
    *,
    scores: Scores,
    collector: CollectorConfig,
    rollout: RolloutConfig,
    step: int,
    poll_iterations: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Rollout:
    """Collect one step and leave nothing in flight.

    Parameters
    ----------
    generator : idle; its iterations are cleared.
    prompts : moved on by every prompt taken.
    scores : judges a finished response.
    collector, rollout : which policy fills which batch.
    step : part of the key of the noise.
    poll_iterations : finished groups are found every so many iterations, together.
    clock : seconds, for budgets and times.

    Raises
    ------
    ConfigError
        A prompt does not fit the model together with the cap.
    """
    generator.iterations.clear()
    policy = new_collector(collector, rollout)
    if not policy.is_plain:
        raise ConfigError(
            f"collector.kind {collector.kind}: with these settings the simulator alone plays it "
            "(parts of groups, copies, a memory of steps); use one of whole groups and single steps"
        )
    playing = _Step(generator, prompts, scores, policy, rollout, step, clock)
    playing.deadline_s = playing.out.start_s + (collector.budget.seconds or math.inf)
    playing.poll_iterations = poll_iterations
    playing.n_concurrent = getattr(collector, "concurrent_groups", None) or math.inf
    playing.run()
    return playing.out


class _Step:
    def __init__(
        self,
        generator: Generator,
        prompts: PromptStream,
        scores: Scores,
        policy: Collector,
        rollout: RolloutConfig,
        step: int,
        clock: Callable[[], float],
    ) -> None:
        self.generator, self.prompts, self.scores = generator, prompts, scores
        self.policy, self.rollout, self.clock = policy, rollout, clock
        self.out = Rollout(step=step, start_s=clock())
        self.deadline_s = math.inf
        self.n_concurrent: float = math.inf
        self.poll_iterations = 1
        self.asked: list[int] = []
        self.waiting: deque[int] = deque()
        self.running: set[int] = set()

    @property
    def open(self) -> bool:
        return self.out.stop is None and self.out.failure is None

    @property
    def late(self) -> bool:
        return self.clock() >= self.deadline_s

    def run(self) -> None:
        self.carry_out(self.policy.on_start())
        self.send()
        while self.open:
            if self.late:
                self.reach("seconds")
            elif not self.running and not self.waiting:
                self.reach("data")
            elif self.policy.barrier:
                self.wave()
            else:
                self.groups()
        self.close()

    # ------------------------------------------------------------------ the two rhythms

    def wave(self) -> None:
        """Decode until everything submitted since the last barrier is back, or time is up."""
        wave = self.out.waves[-1]
        while (self.running or self.waiting) and not self.late:
            self.advance()
        self.end_wave()
        group = self.out.candidates[wave.first : wave.last]
        back = [c.finished for c in group if c.finished is not None]
        actions = self.policy.on_wave_end(back)
        if len(back) < len(group):  # the time ran out: nothing more is submitted
            actions = [a for a in actions if isinstance(a, Keep | Drop)]
        self.carry_out(actions)
        self.send()

    def groups(self) -> None:
        """Decode until a poll finds a group, or time is up; the policy judges what is back."""
        found: list[int] = []
        n = 0
        while (self.running or self.waiting) and not self.late:
            found += self.advance()
            n += 1
            if found and n % self.poll_iterations == 0:
                break
        for index in sorted(found):
            candidate = self.out.candidates[index]
            assert candidate.finished is not None
            if self.open:
                self.carry_out(self.policy.on_group(candidate.finished))
            else:  # it returned together with the group that ended the step
                degenerate = is_degenerate(candidate.finished, keep_singletons=True)
                candidate.status = "degenerate" if degenerate else "surplus"
        if self.open and found:
            self.carry_out(self.policy.on_poll())
        self.send()

    def advance(self) -> list[int]:
        """Run one iteration; return the groups that are complete with it."""
        self.admit()
        complete = []
        for completion in self.generator.step():
            _, index, sample = completion.request.key
            candidate = self.out.candidates[index]
            candidate.completions[sample] = completion
            if not candidate.n_left:
                self.score(candidate)
                self.running.discard(index)
                complete.append(index)
        return complete

    # ------------------------------------------------------------------ actions

    def carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if not self.open:
                return
            match action:
                case Submit(n=n):
                    self.asked.append(n)
                case Keep(index=index):
                    self.out.kept.append(index)
                    self.out.candidates[index].status = "trained"
                case Drop(index=index, reason=reason):
                    self.out.candidates[index].status = reason
                case Abort():
                    self.abort()
                case Stop():
                    self.out.stop = action
                case Fail(message=message):
                    self.out.failure = message

    def send(self) -> None:
        """Submit what was asked for at this instant; a stop in the same instant withdraws it."""
        asked, self.asked = self.asked, []
        for n in asked:
            if self.open and not self.late:
                self.submit(n)

    def submit(self, n: int) -> None:
        taken = self.prompts.take(n)
        if not taken:
            self.reach("data")
            return
        first, size = len(self.out.candidates), self.rollout.group_size
        barrier = self.policy.barrier
        number = len(self.out.waves) if barrier else None
        for index, (position, problem) in enumerate(taken, start=first):
            self.out.candidates.append(
                Candidate(index, position, problem, number, [None] * size, [None] * size)
            )
        if barrier:
            now, done = self.clock(), len(self.generator.iterations)
            self.out.waves.append(Wave(first, first + len(taken), now, done))
        self.waiting.extend(range(first, first + len(taken)))

    def admit(self) -> None:
        """Hand groups to the engine as far as their number in flight is not limited."""
        while self.waiting and len(self.running) < self.n_concurrent:
            index = self.waiting.popleft()
            self.running.add(index)
            prompt = self.out.candidates[index].problem.prompt
            samples = range(self.rollout.group_size)
            self.generator.submit(Request((self.out.step, index, s), prompt) for s in samples)

    def reach(self, limit: Limit) -> None:
        """Tell the policy that a limit was reached."""
        if self.open:
            self.carry_out(self.policy.on_limit(limit))
            self.send()

    def abort(self) -> None:
        """Cut off everything in flight; what a sample has so far stays on record."""
        for completion in self.generator.abort():
            _, index, sample = completion.request.key
            self.out.candidates[index].completions[sample] = completion
        for index in self.running:
            self.score(self.out.candidates[index])
        self.running.clear()
        self.waiting.clear()

    # ------------------------------------------------------------------ ends

    def score(self, candidate: Candidate) -> None:
        """Judge the samples that finished; say so to the policy where all of them did."""
        started = self.clock()
        for sample, completion in enumerate(candidate.completions):
            if completion is not None and completion.finish != "abort":
                candidate.scores[sample] = self.scores.judge(candidate.problem, completion)
        scored = [score for score in candidate.scores if score is not None]
        self.out.reward_s += self.clock() - started
        if len(scored) == len(candidate.scores):
            candidate.finished = Finished(
                index=candidate.index,
                n_samples=len(scored),
                n_correct=sum(score.right for score in scored),
                spread=self.scores.spread(scored),
                n_tokens=sum(len(c.tokens) for c in candidate.completions if c is not None),
            )

    def end_wave(self) -> None:
        wave = self.out.waves[-1]
        wave.end_s, wave.last_iteration = self.clock(), len(self.generator.iterations)

    def close(self) -> None:
        """Abort what still runs and settle what nobody judged."""
        cut = bool(self.running or self.waiting)
        self.abort()
        if cut and self.out.waves:
            self.end_wave()
        train = self.out.stop is not None and self.out.stop.train
        for candidate in self.out.candidates:
            if candidate.status == "in_flight":
                candidate.status = "aborted" if candidate.finished is None else "surplus"
            elif candidate.status == "trained" and not train:
                candidate.status = "surplus"  # accepted, then thrown away with the step
        if not train:
            self.out.kept.clear()
        self.out.iterations = list(self.generator.iterations)
        self.out.end_s = self.clock()
