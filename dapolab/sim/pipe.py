"""The groups between rollout and learner: where each of them is, and how many there are.

Groups are numbered in submission order. A group runs (until its last answer is scored), is ready,
trains, or has left: trained, degenerate, stale, aborted, failed. Each is in one place at a time, so
the counters add up to what was submitted; ``check`` says so in tests.
"""

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum


class Place(IntEnum):
    """Where a group is."""

    RUNNING = 0
    READY = 1
    TRAINING = 2
    TRAINED = 3
    DEGENERATE = 4
    STALE = 5
    ABORTED = 6
    FAILED = 7


_LEFT = (Place.TRAINED, Place.DEGENERATE, Place.STALE, Place.ABORTED, Place.FAILED)


class Pipe:
    """State of the pipeline; ``version`` counts the updates behind the rollout's weights.

    ``step_of`` is the step in whose time a group left, −1 while it is here. ``n_counted`` is what a
    quota counts: groups submitted since the last update, and those that were here then, but for
    failed ones: whoever waits for so many would wait for ever.
    """

    def __init__(self, *, groups_per_step: int) -> None:
        self.groups_per_step = groups_per_step
        self.version = 0
        self.n_counted = 0
        self.place: list[Place] = []
        self.version_of: list[int] = []
        self.step_of: list[int] = []
        self.ready: list[int] = []
        self._count: Counter[Place] = Counter()
        self._running_of_version: Counter[int] = Counter()
        self._first_running = 0

    @property
    def n_submitted(self) -> int:
        """Groups submitted so far."""
        return len(self.place)

    @property
    def n_running(self) -> int:
        """Groups that generate or wait for their reward."""
        return self._count[Place.RUNNING]

    @property
    def n_ready(self) -> int:
        """Groups that wait for the learner."""
        return self._count[Place.READY]

    @property
    def n_accepted(self) -> int:
        """Groups that passed the filter and were not thrown away since, trained ones included."""
        return sum(self._count[p] for p in (Place.READY, Place.TRAINING, Place.TRAINED))

    @property
    def first_running(self) -> int:
        """The running group that was submitted first; ``n_submitted`` where none runs."""
        while self._first_running < len(self.place) and (
            self.place[self._first_running] is not Place.RUNNING
        ):
            self._first_running += 1
        return self._first_running

    def is_running(self, group: int) -> bool:
        """Whether a group generates or waits for its reward."""
        return self.place[group] is Place.RUNNING

    def n_running_up_to(self, version: int) -> int:
        """Return how many running groups were submitted at ``version`` or before."""
        return sum(n for v, n in self._running_of_version.items() if v <= version)

    def running_up_to(self, version: int) -> list[int]:
        """Return the running groups that were submitted at ``version`` or before, in order."""
        found = []
        for group in range(self.first_running, len(self.place)):
            if self.version_of[group] > version:
                break
            if self.place[group] is Place.RUNNING:
                found.append(group)
        return found

    def submit(self, n: int) -> None:
        """Enter ``n`` groups that start now."""
        self.place += [Place.RUNNING] * n
        self.version_of += [self.version] * n
        self.step_of += [-1] * n
        self._count[Place.RUNNING] += n
        self._running_of_version[self.version] += n
        self.n_counted += n

    def move(self, group: int, to: Place) -> None:
        """Move a group on; what has left stays where it is for ever."""
        before = self.place[group]
        if before in _LEFT:
            raise ValueError(f"group {group} has left already ({before.name.lower()})")
        if before is Place.RUNNING:
            version = self.version_of[group]
            self._running_of_version[version] -= 1
            if not self._running_of_version[version]:
                del self._running_of_version[version]
        elif before is Place.READY:
            self.ready.remove(group)
        if to is Place.READY:
            self.ready.append(group)
        elif to in _LEFT:
            self.step_of[group] = self.version
        self.n_counted -= to is Place.FAILED
        self.place[group] = to
        self._count[before] -= 1
        self._count[to] += 1

    def take(self, groups: Sequence[int]) -> None:
        """Hand ready groups to the learner, all at once."""
        taken = set(groups)
        self.ready = [group for group in self.ready if group not in taken]
        for group in groups:
            self.place[group] = Place.TRAINING
        self._count[Place.READY] -= len(groups)
        self._count[Place.TRAINING] += len(groups)

    def update(self) -> None:
        """Begin the next version."""
        self.version += 1
        self.n_counted = self.n_running + self.n_ready

    def check(self) -> None:
        """Raise AssertionError where a counter does not say what the places do."""
        places = Counter(self.place)
        assert all(self._count[place] == places[place] for place in Place), (self._count, places)
        assert sorted(self.ready) == [i for i, p in enumerate(self.place) if p is Place.READY]
        running = Counter(
            v for v, p in zip(self.version_of, self.place, strict=True) if p is Place.RUNNING
        )
        assert self._running_of_version == running
