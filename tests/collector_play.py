"""A driver of one collection step that shares no code with the simulator, for tests of policies.

It keeps its own books and checks them after every action: whatever was submitted is kept, dropped,
aborted, in flight or held (returned, but neither kept nor dropped yet), and never more than B
groups are kept.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dapolab.collectors import (
    Abort,
    Action,
    Carried,
    Carry,
    Collector,
    Drop,
    Fail,
    Finished,
    Keep,
    Repeat,
    Stop,
    Submit,
    new_collector,
)
from dapolab.scenario import Rollout


@dataclass(frozen=True)
class Candidate:
    """One group of a made-up prompt stream."""

    n_correct: int = 4
    duration_s: float = 1.0
    n_samples: int = 8
    n_tokens: int = 100
    spread: float | None = None

    @property
    def metrics(self) -> tuple[float, ...]:
        """Right answers first."""
        return tuple(float(i < self.n_correct) for i in range(self.n_samples))

    def finished(self, index: int, age: int = 0) -> Finished:
        mixed = 0 < self.n_correct < self.n_samples
        spread = float(mixed) if self.spread is None else self.spread
        n, right = self.n_samples, self.n_correct
        return Finished(index, n, right, spread, self.n_tokens, self.metrics, age)


MIXED, WRONG, RIGHT = Candidate(4), Candidate(0), Candidate(8)


def stream(letters: str) -> Iterator[Candidate]:
    """Return groups by letter: m(ixed), w(rong), r(ight)."""
    return iter([{"m": MIXED, "w": WRONG, "r": RIGHT}[letter] for letter in letters])


@dataclass
class Left:
    """What a step left to the next: groups that wait, groups cut with the seconds they still need,
    each with the version that began it.
    """

    held: list[tuple[Candidate, int]] = field(default_factory=list)
    cut: list[tuple[Candidate, int, float]] = field(default_factory=list)
    version: int = 0
    step: int = 0


@dataclass
class Played:
    """What one step did."""

    candidates: list[Candidate] = field(default_factory=list)
    submits: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    aborted: list[int] = field(default_factory=list)
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    repeated: list[int] = field(default_factory=list)
    left: Left = field(default_factory=Left)
    n_before_last: int = 0
    end_s: float = 0.0
    stop: Stop | None = None
    failure: str | None = None

    def n_dropped(self, reason: str) -> int:
        return sum(r == reason for r in self.dropped.values())

    @property
    def trained(self) -> list[Candidate]:
        train = self.stop is not None and self.stop.train
        return [self.candidates[i] for i in self.kept] if train else []


class _Step:
    def __init__(
        self,
        collector: Collector,
        prompts: Iterator[Candidate],
        *,
        n_target: int,
        deadline_s: float,
        left: Left,
    ) -> None:
        self.collector, self.prompts = collector, prompts
        self.n_target, self.deadline_s = n_target, deadline_s
        self.now_s, self.ends_s, self.out = 0.0, dict[int, float](), Played()
        self.held: set[int] = set(range(len(left.held)))
        self.began = [began for _, began in left.held] + [began for _, began, _ in left.cut]
        self.version = left.version
        self.out.candidates = [one for one, _ in left.held] + [one for one, _, _ in left.cut]
        first = len(left.held)
        self.cut = {first + i: rest_s for i, (_, _, rest_s) in enumerate(left.cut)}
        self.carried: list[int] = []

    @property
    def open(self) -> bool:
        return self.out.stop is None and self.out.failure is None

    def carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            assert self.open, f"{action} after the end"
            match action:
                case Submit(n):
                    assert n >= 1
                    self.submit(n)
                case Keep(index, members):
                    self.settle(index)
                    self.out.kept.append(index)
                    if members is not None:
                        self.out.members[index] = members
                case Drop(index, reason):
                    self.settle(index)
                    self.out.dropped[index] = reason
                case Carry(index):
                    self.settle(index)
                    self.carried.append(index)
                case Repeat(index):
                    assert index in self.out.kept
                    self.out.repeated.append(index)
                case Abort(later):
                    if later == "never":
                        self.out.aborted += sorted(self.ends_s)
                    else:
                        self.cut |= {i: end - self.now_s for i, end in self.ends_s.items()}
                    self.ends_s.clear()
                case Stop():
                    self.out.stop = action
                case Fail(message):
                    self.out.failure = message
            self.check()

    def settle(self, index: int) -> None:
        if index in self.held:
            self.held.remove(index)
        else:
            self.ends_s.pop(index)

    def check(self) -> None:
        out = self.out
        settled = len(out.kept) + len(out.dropped) + len(out.aborted) + len(self.carried)
        assert len(out.candidates) == settled + len(self.ends_s) + len(self.held) + len(self.cut)
        if out.members:
            assert (
                sum(map(len, out.members.values())) <= self.n_target * out.candidates[0].n_samples
            )
        else:
            assert len(out.kept) <= self.n_target

    def submit(self, n: int) -> None:
        resumed = sorted(self.cut)[:n]
        for index in resumed:
            self.ends_s[index] = self.now_s + self.cut.pop(index)
        served = [c for _, c in zip(range(n - len(resumed)), self.prompts, strict=False)]
        for candidate in served:
            self.ends_s[len(self.out.candidates)] = self.now_s + candidate.duration_s
            self.out.candidates.append(candidate)
            self.began.append(self.version)
        if served or resumed:
            self.out.submits.append(len(served) + len(resumed))
        else:
            self.carry_out(self.collector.on_limit("data"))

    def told(self, indices: Iterable[int]) -> list[Finished]:
        return [
            self.out.candidates[i].finished(i, self.version - self.began[i])
            for i in sorted(indices)
        ]

    def wave(self) -> None:
        end_s = max(self.ends_s.values())
        self.now_s = min(end_s, self.deadline_s)
        returned = [i for i, t in self.ends_s.items() if t <= self.now_s]
        back = self.told(returned)
        for index in returned:
            self.held.add(index)
            del self.ends_s[index]
        actions = self.collector.on_wave_end(back)
        if end_s <= self.deadline_s:
            self.carry_out(actions)
        else:
            self.carry_out(a for a in actions if isinstance(a, Keep | Drop | Carry))
            self.carry_out(self.collector.on_limit("seconds"))

    def groups(self) -> None:
        end_s = min(self.ends_s.values())
        if end_s > self.deadline_s:
            self.now_s = self.deadline_s
            self.carry_out(self.collector.on_limit("seconds"))
            return
        self.now_s = end_s
        self.out.n_before_last = len(self.out.kept) + len(self.out.dropped)
        for group in self.told(i for i, t in self.ends_s.items() if t == end_s):
            if self.open:
                self.held.add(group.index)
                del self.ends_s[group.index]
                self.carry_out(self.collector.on_group(group))
        if self.open:
            self.carry_out(self.collector.on_poll())

    def leave(self, step: int) -> Left:
        one, began = self.out.candidates, self.began
        held = [(one[i], began[i]) for i in sorted(self.carried)]
        cut = [(one[i], began[i], rest_s) for i, rest_s in sorted(self.cut.items())]
        return Left(held, cut, self.version + bool(self.out.trained), step + 1)


def play(
    config: object,
    prompts: Iterable[Candidate],
    *,
    rollout: Rollout,
    deadline_s: float = math.inf,
    left: Left | None = None,
) -> Played:
    """Play one step of a policy; an iterator of prompts is left where the step ends."""
    left = left or Left()
    held = tuple(one.finished(i, left.version - began) for i, (one, began) in enumerate(left.held))
    carried = Carried(held, len(left.cut), step=left.step)
    collector = new_collector(config, rollout, carried=carried)  # type: ignore[arg-type]
    step = _Step(
        collector,
        iter(prompts),
        n_target=rollout.groups_per_step,
        deadline_s=deadline_s,
        left=left,
    )
    step.carry_out(collector.on_start())
    for _ in range(10_000):
        if not step.open:
            break
        if not step.ends_s:
            step.carry_out(collector.on_limit("data"))
        elif collector.barrier:
            step.wave()
        else:
            step.groups()
    else:
        raise AssertionError("the step never ends")
    step.out.end_s = step.now_s
    step.out.left = step.leave(left.step)
    if step.out.stop is not None:
        assert not step.ends_s, "stopped with groups in flight and no Abort"
        assert not step.held, "stopped with groups neither kept nor dropped"
        assert step.out.kept or not step.out.stop.train, "trains nothing"
    return step.out


def play_steps(
    config: object, prompts: Iterable[Candidate], *, rollout: Rollout, n_steps: int
) -> list[Played]:
    """Play steps that hand over what they leave, until one fails or runs out of data."""
    stream_of_prompts, left, played = iter(prompts), Left(), list[Played]()
    for _ in range(n_steps):
        played.append(play(config, stream_of_prompts, rollout=rollout, left=left))
        left = played[-1].left
        stop = played[-1].stop
        if stop is None or stop.reason == "data":
            break
    return played
