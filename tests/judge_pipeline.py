"""A plain judge of the asynchronous pipeline: one replica, one iteration a loop, no kernel.

It shares no code with dapolab.sim. Every iteration takes ``a_s`` whatever runs; a prompt costs
nothing. At a boundary: what has its last token finishes; the learner acts; new groups are queued;
free slots take the queue's head (first submitted, first served); the next iteration starts.

With ``luck`` a response may fail at a token, call tools between its turns, and needs a score; then
what goes on queues behind what is submitted at that instant, or, where the weights are being
copied, among what was interrupted.
"""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Luck:
    """What befalls one group: by response, and there by sampling or call.

    ``fails_at`` are shares of the length, None for a sampling that does not fail.
    """

    fails_at: list[list[float | None]]
    call_s: list[list[float]]
    score_s: list[float]


@dataclass
class Judged:
    """One group as the judge sees it."""

    lengths: list[int]
    is_mixed: bool
    version: int
    submit_s: float
    got: list[int] = field(default_factory=list)
    attempt: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    n_scored: int = 0
    n_failures: int = 0
    lost_tokens: int = 0
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
    turns: int = 1
    workers: int | None = None
    on_failure: str = "drop_group"
    max_retries: int = 0
    resumed: str = "first"


class Judge:
    """Play ``settings`` on the groups of ``source`` (lengths, is_mixed), in this order."""

    def __init__(
        self,
        settings: Settings,
        source: list[tuple[list[int], bool]],
        luck: list[Luck] | None = None,
    ) -> None:
        self.s = settings
        self.luck = luck
        self.timers: list[tuple[float, str, int, int]] = []  # in the order in which they were set
        self.going: list[tuple[int, int]] = []
        self.stopped: list[tuple[int, int]] = []  # interrupted by new weights
        self.back: set[int] = set()  # groups that came back and are not told of
        self.free = [-math.inf] * (settings.workers or 0)
        self.n_calling = 0
        self.has_failed = False
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
        """Return "completed", "data exhausted" or "failed"."""
        while True:
            self._settle()
            if self.step == self.s.steps:
                return "completed"
            if self.has_failed:
                return "failed"
            reward = self.rewards[0][0] if self.rewards else math.inf
            timer = min((t[0] for t in self.timers if self._is_live(t[2])), default=math.inf)
            after = min(self.boundary, self.learner_end, reward, timer)
            if math.isinf(after):
                assert self.out_of_data
                return "data exhausted"
            self.now = after
            if self.boundary == after:
                self._end_iteration()

    def _settle(self) -> None:
        """Let everybody act at this instant until nothing changes, then start an iteration."""
        while self.step < self.s.steps:
            self._ring()
            self._tell()
            if self.rewards and self.rewards[0][0] <= self.now:
                self._judge(self.rewards.pop(0)[2])
            elif not self._learner_acts():
                break
        if self.step == self.s.steps or self.has_failed:
            return
        if not self.halted and self.s.resumed == "first":
            self.queue, self.stopped = sorted(self.stopped) + self.queue, []
        self._submit()
        if not self.halted:
            self.queue, self.stopped = self.queue + sorted(self.stopped), []
            for group in dict.fromkeys(g for g, _ in self.going):
                self.queue += sorted(place for place in self.going if place[0] == group)
            self.going = []
        if math.isinf(self.boundary) and not self.halted:
            while self.queue and len(self.running) < self.s.slots:
                self.running.append(self.queue.pop(0))
            if self.running:
                self.boundary = self.now + self.s.a_s

    def _end_iteration(self) -> None:
        self.boundary = math.inf
        ran, self.running = sorted(self.running), []
        slots = []
        for group, member in ran:
            one = self.groups[group]
            one.got[member] += 1
            if not self._is_live(group):
                continue  # cancelled: it stops here
            if one.got[member] == self._stop(group, member):
                self._stopped(group, member)
            else:
                slots.append((group, member))
        self.running = [place for place in slots if self._is_live(place[0])]
        self.queue = [place for place in self.queue if self._is_live(place[0])]

    def _is_live(self, group: int) -> bool:
        return self.groups[group].state == "running"

    def _fail_token(self, group: int, member: int) -> int | None:
        if self.luck is None:
            return None
        one = self.groups[group]
        share = self.luck[group].fails_at[member][one.attempt[member]]
        return None if share is None else max(1, math.ceil(share * one.lengths[member]))

    def _stop(self, group: int, member: int) -> int:
        """Return the token at which the response leaves the engine next."""
        one = self.groups[group]
        length, turns = one.lengths[member], self.s.turns
        ends = [math.ceil(length * k / turns) for k in range(1, turns + 1)]
        end = min(e for e in ends if e >= one.got[member])
        fails = self._fail_token(group, member)
        return end if fails is None else min(end, fails)

    def _stopped(self, group: int, member: int) -> None:
        one = self.groups[group]
        if self._fail_token(group, member) == one.got[member]:
            self._fail(group, member)
            return
        if one.got[member] < one.lengths[member]:
            assert self.luck is not None
            self.n_calling += 1
            seconds = self.luck[group].call_s[member][one.calls[member]]
            self.timers.append((self.now + seconds, "call", group, member))
            return
        one.end_s = self.now
        if self.luck is None:
            one.n_scored += 1
            if one.n_scored == len(one.lengths):
                self._came_back(group)
        else:
            start = self.now
            if self.free:
                start = max(start, min(self.free))
                self.free.remove(min(self.free))
                self.free.append(start + self.luck[group].score_s[member])
            self.timers.append((start + self.luck[group].score_s[member], "score", group, member))

    def _fail(self, group: int, member: int) -> None:
        one = self.groups[group]
        one.n_failures += 1
        if self.s.on_failure == "retry" and one.attempt[member] < self.s.max_retries:
            one.attempt[member] += 1
            one.lost_tokens += one.got[member]
            one.got[member] = one.calls[member] = 0
            self.going.append((group, member))
            return
        self.has_failed |= self.s.on_failure == "fail_run"
        one.state = "failing"
        self._came_back(group)
        self._forget(group)

    def _forget(self, group: int) -> None:
        """Drop what would still have come of a group that is over."""
        self.n_calling -= sum(t[1] == "call" and t[2] == group for t in self.timers)
        self.timers = [t for t in self.timers if t[2] != group]
        self.going = [place for place in self.going if place[0] != group]

    def _ring(self) -> None:
        while due := [t for t in self.timers if t[0] <= self.now]:
            timer = min(due, key=lambda t: t[0])
            self.timers.remove(timer)
            _, kind, group, member = timer
            if kind == "call":
                self.n_calling -= 1
                self.groups[group].calls[member] += 1
                self.going.append((group, member))
                continue
            self.groups[group].n_scored += 1
            if self.groups[group].n_scored == len(self.groups[group].lengths):
                self._came_back(group)

    def _came_back(self, group: int) -> None:
        self.back.add(group)

    def _tell(self) -> None:
        for group in sorted(self.back):
            one = self.groups[group]
            self.n_rewards += 1
            reward_s = self.s.reward_s * len(one.lengths) if one.state == "running" else 0.0
            self.rewards.append((self.now + reward_s, self.n_rewards, group))
        self.back = set()
        self.rewards.sort()

    def _judge(self, group: int) -> None:
        one = self.groups[group]
        if one.state == "failing":
            one.state, one.step = "failed", self.version
            self.counted -= 1
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
            none = [0] * len(lengths)
            self.groups.append(
                Judged(lengths, mixed, self.version, self.now, none, [*none], [*none])
            )
            self.queue += [(number, member) for member in range(len(lengths))]
            self.counted += 1

    # ---------------------------------------------------------------- learner

    def _learner_acts(self) -> bool:
        if self.mode == "wait":
            return self._try_fetch()
        if self.mode == "drain":
            if self.running or self.queue or self.going or self.n_calling:
                return False
            return self._copy()
        if self.mode == "stop":
            if not math.isinf(self.boundary):
                return False
            self.stopped += self.running + self.queue
            self.running, self.queue = [], []
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
                    self._forget(group)
                    self.queue = [place for place in self.queue if place[0] != group]
                    self.stopped = [place for place in self.stopped if place[0] != group]
                    if math.isinf(self.boundary):
                        self.running = [place for place in self.running if place[0] != group]
        if self.halted:
            self.stopped += self.queue + self.going
            self.queue, self.going = [], []
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
