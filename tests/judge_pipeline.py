"""A plain judge of the asynchronous pipeline: one replica, one iteration a loop, no kernel.

It shares no code with dapolab.sim. Every iteration takes ``a_s`` whatever runs; a prompt costs
nothing. At a boundary: what has its last token finishes; the learner acts; new groups are queued;
free slots take the queue's head (first submitted, first served); the next iteration starts.
"""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Judged:
    """One group as the judge sees it."""

    lengths: list[int]
    is_mixed: bool
    version: int
    submit_s: float
    left: list[int] = field(default_factory=list)
    state: str = "running"
    step: int = -1
    end_s: float = math.nan


@dataclass
class Settings:
    """What is played; ``control`` and ``schedule`` as in the scenario's tables."""

    groups_per_step: int
    steps: int
    slots: int
    a_s: float
    filters: bool
    control: dict[str, Any]
    queue: str = "fifo"
    weights: str = "in_flight"
    pauses: bool = False
    sync_s: float = 0.0
    fixed_s: float = 0.0
    s_per_token: float = 0.0
    fetches: int = 1
    reward_s: float = 0.0
    prompt_tokens: int = 10


class Judge:
    """Play ``settings`` on the groups of ``source`` (lengths, is_mixed), in this order."""

    def __init__(self, settings: Settings, source: list[tuple[list[int], bool]]) -> None:
        self.s = settings
        self.source = source
        self.groups: list[Judged] = []
        self.ready: list[int] = []
        self.version = 0
        self.counted = 0
        self.bumps: list[float] = []
        self.now = 0.0
        self.boundary = math.inf  # end of the iteration that runs
        self.running: list[tuple[int, int]] = []  # (group, member) in slots
        self.queue: list[tuple[int, int]] = []
        self.rewards: list[tuple[float, int, int]] = []
        self.n_rewards = 0
        self.halted = False
        self.holding = False
        self.step = 0
        self.batch: list[int] = []
        self.fetched = 0
        self.mode = "wait"  # wait | work | stop | drain | copy
        self.learner_end = math.inf
        self.out_of_data = False

    # ---------------------------------------------------------------- one instant after another

    def play(self) -> str:
        """Return "completed" or "data exhausted"."""
        while True:
            self._settle()
            if self.step == self.s.steps:
                return "completed"
            reward = self.rewards[0][0] if self.rewards else math.inf
            after = min(self.boundary, self.learner_end, reward)
            if math.isinf(after):
                assert self.out_of_data
                return "data exhausted"
            self.now = after
            if self.boundary == after:
                self._end_iteration()

    def _settle(self) -> None:
        """Let everybody act at this instant until nothing changes, then start an iteration."""
        while self.step < self.s.steps:
            if self.rewards and self.rewards[0][0] <= self.now:
                self._judge(self.rewards.pop(0)[2])
            elif not self._learner_acts():
                break
        if self.step == self.s.steps:
            return
        self._submit()
        if math.isinf(self.boundary) and not self.halted:
            while self.queue and len(self.running) < self.s.slots:
                self.running.append(self.queue.pop(0))
            if self.running:
                self.boundary = self.now + self.s.a_s

    def _end_iteration(self) -> None:
        self.boundary = math.inf
        finished = set()
        for place in self.running:
            group, member = place
            self.groups[group].left[member] -= 1
        for group, _ in self.running:
            if all(n == 0 for n in self.groups[group].left):
                finished.add(group)
        cancelled = [g for g, one in enumerate(self.groups) if one.state == "cancelled"]
        self.running = [
            (g, m) for g, m in self.running if self.groups[g].left[m] > 0 and g not in cancelled
        ]
        for group in sorted(finished):
            self.groups[group].end_s = self.now
            self.n_rewards += 1
            at = self.now + self.s.reward_s * len(self.groups[group].lengths)
            self.rewards.append((at, self.n_rewards, group))
            self.rewards.sort()

    def _judge(self, group: int) -> None:
        one = self.groups[group]
        if one.state != "running":
            return
        if self.s.filters and not one.is_mixed:
            one.state, one.step = "degenerate", self.version
        elif one.version < self._oldest():
            one.state, one.step = "stale", self.version
        else:
            one.state = "ready"
            self.ready.append(group)

    def _oldest(self) -> int:
        return self.version - self.s.control["max_age"] if "max_age" in self.s.control else 0

    # ---------------------------------------------------------------- rollout

    def _count(self, *states: str) -> int:
        return sum(one.state in states for one in self.groups)

    def _room(self) -> int:
        c, B = self.s.control, self.s.groups_per_step
        running = self._count("running")
        if c["kind"] in ("admission", "pacing"):
            accepted = self._count("ready", "training", "trained")
            room = (c["staleness"] + self.version + 1) * B - accepted - running
        elif c["kind"] == "quota":
            room = int((1 + c["staleness"]) * B) - self.counted
        else:
            here = running + (len(self.ready) if c["counts"] == "running_and_ready" else 0)
            return int(c["ahead_groups"]) - here
        limit = c.get("max_running_groups")
        return room if limit is None else min(room, limit - running)

    def _submit(self) -> None:
        while not self.holding and not self.out_of_data and self._room() > 0:
            number = len(self.groups)
            if number >= len(self.source):
                self.out_of_data = True
                return
            lengths, mixed = self.source[number]
            self.groups.append(Judged(lengths, mixed, self.version, self.now, list(lengths)))
            self.queue += [(number, member) for member in range(len(lengths))]
            self.counted += 1

    # ---------------------------------------------------------------- learner

    def _learner_acts(self) -> bool:
        if self.mode == "wait":
            return self._try_fetch()
        if self.mode == "drain":
            if self.running or self.queue:
                return False
            return self._copy()
        if self.mode == "stop":
            if not math.isinf(self.boundary):
                return False
            self.queue = sorted(self.running + self.queue)
            self.running = []
            return self._copy()
        if self.learner_end > self.now:
            return False
        self.learner_end = math.inf
        if self.mode == "work":
            if self.fetched < self.s.fetches:
                self.mode = "wait"
                return True
            if self.s.weights == "drained":
                self.mode, self.holding = "drain", True
            elif self.s.pauses:
                self.mode, self.holding, self.halted = "stop", True, True
            else:
                return self._copy()
            return True
        return self._update()

    def _copy(self) -> bool:
        self.mode, self.learner_end = "copy", self.now + self.s.sync_s
        return True

    def _update(self) -> bool:
        for group in self.batch:
            self.groups[group].state, self.groups[group].step = "trained", self.version
        self.batch, self.fetched = [], 0
        self.version += 1
        self.bumps.append(self.now)
        self.step += 1
        self.counted = self._count("running", "ready")
        for group in list(self.ready):
            if self.groups[group].version < self._oldest():
                self.ready.remove(group)
                self.groups[group].state, self.groups[group].step = "stale", self.version
        if self.s.control.get("cancel"):
            for group, one in enumerate(self.groups):
                if one.state == "running" and one.version < self._oldest():
                    one.state, one.step = "cancelled", self.version
                    self.queue = [place for place in self.queue if place[0] != group]
                    if math.isinf(self.boundary):
                        self.running = [place for place in self.running if place[0] != group]
        self.holding = self.halted = False
        self.mode = "wait"
        return True

    def _try_fetch(self) -> bool:
        B, parts = self.s.groups_per_step, self.s.fetches
        n = B // parts + (self.fetched < B % parts)
        chosen = self._choose(n, B - len(self.batch))
        if chosen is None:
            return False
        tokens = 0
        for group in chosen:
            self.ready.remove(group)
            self.groups[group].state = "training"
            tokens += sum(self.groups[group].lengths)
            tokens += self.s.prompt_tokens * len(self.groups[group].lengths)
        self.batch += chosen
        self.fetched += 1
        last_s = self.s.fixed_s if self.fetched == parts else 0.0
        self.mode = "work"
        self.learner_end = self.now + self.s.s_per_token * tokens + last_s
        return True

    def _choose(self, n: int, n_left: int) -> list[int] | None:
        version = {group: self.groups[group].version for group in self.ready}
        running = [g for g, one in enumerate(self.groups) if one.state == "running"]
        order = list(self.ready)
        if self.s.queue != "fifo":
            order.sort()
        if self.s.queue == "freshest_first":
            order.sort(key=lambda g: -version[g])
        if self.s.queue == "in_order":
            order = [g for g in order if all(r > g for r in running)]
        if self.s.queue == "weight_fifo":
            order = [g for g in order if all(self.groups[r].version >= version[g] for r in running)]
        if self.s.control["kind"] == "pacing":
            due = self.version - self.s.control["staleness"]
            must = [g for g in order if version[g] <= due]
            late = sum(self.groups[r].version <= due for r in running)
            rest = [g for g in order if version[g] > due]
            order = must + rest[: max(n_left - len(must) - late, 0)]
        return order[:n] if len(order) >= n else None
