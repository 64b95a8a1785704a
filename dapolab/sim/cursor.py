"""The walk through the prompt stream: which positions the next submission takes."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dapolab.scenario import ConfigError
from dapolab.sim.selection import Mopps, Selector
from dapolab.workload.model import Groups
from dapolab.workload.prompts import BLOCK

Screen = TypeVar("Screen", Selector, Mopps)


class Stream(Protocol):
    """What the walk asks of a prompt stream."""

    @property
    def n_prompts(self) -> int:
        """Prompts of one epoch."""

    def n_available(self, start: int, n: int) -> int:
        """Return how many of ``n`` places from ``start`` on exist."""

    def draw(self, start: int, n: int, *, trained_steps: int = 0) -> Groups:
        """Return the groups of these places."""


class PromptCursor:
    """The walk through the prompt stream; ``drop_last`` skips an epoch's tail (verl's loader)."""

    def __init__(
        self, *, n_available: Callable[[int, int], int], count: int, drop_last: bool
    ) -> None:
        self._n_available = n_available
        self._count = count
        self._drop_last = drop_last
        self.position = 0
        self.dropped = 0

    def take_runs(self, n: int, *, trained_steps: int) -> list[tuple[int, int]]:
        """Return what :meth:`take` takes as (start, number) runs, none where nothing is left."""
        start, available = self.take(n)
        return [(start, available)] if available else []

    def take(self, n: int) -> tuple[int, int]:
        """Return (start, how many of the ``n`` next prompts exist) and move on.

        Raises
        ------
        ConfigError
            ``drop_last`` and an epoch that holds fewer than ``n`` prompts.
        """
        if self._drop_last:
            if n > self._count:
                raise ConfigError(
                    f"workload.prompts: {self._count} prompts with drop_last never fill a batch of "
                    f"{n} groups; use more prompts, a smaller batch, or drop_last = false"
                )
            left = self._count - self.position % self._count
            if left < n:
                self.position += left
                self.dropped += left
        available = self._n_available(self.position, n)
        if self._drop_last and available < n:
            available = 0
        start = self.position
        self.position += available
        return start, available


class _ScreenedCursor(Generic[Screen]):
    """What every walk that screens prompts has: the stream, who screens, and where it stands.

    ``skipped`` counts places passed over so far.
    """

    def __init__(self, stream: Stream, selector: Screen) -> None:
        self._stream = stream
        self._selector: Screen = selector
        self.hear = selector.hear
        self.position = 0
        self.skipped = 0


class SelectingCursor(_ScreenedCursor[Selector]):
    """The walk that leaves out what ``selector`` does not choose.

    The data have run out where the stream ends, and where a selector that may run dry chooses
    nobody of a whole epoch.
    """

    def take_runs(self, n: int, *, trained_steps: int) -> list[tuple[int, int]]:
        """Return the next ``n`` chosen places, or what there is, as (start, number) runs."""
        runs: list[tuple[int, int]] = []
        found = n_idle = 0
        while found < n:
            block = self.position // BLOCK
            n_here = self._stream.n_available(self.position, (block + 1) * BLOCK - self.position)
            if n_here == 0 or (self._selector.may_run_dry and n_idle >= self._stream.n_prompts):
                break
            groups = self._stream.draw(self.position, n_here, trained_steps=trained_steps)
            place = self.position + np.flatnonzero(self._selector.chosen(groups))[: n - found]
            found += len(place)
            last = int(place[-1]) + 1 if found == n else self.position + n_here
            self.skipped += last - self.position - len(place)
            n_idle = 0 if len(place) else n_idle + n_here
            self.position = last
            runs += _runs(place)
        return runs


class ChoosingCursor(_ScreenedCursor[Mopps]):
    """The walk that takes the best of the next places: what each submission leaves is passed over.

    Fewer candidates than wanted are all taken.
    """

    def take_runs(self, n: int, *, trained_steps: int) -> list[tuple[int, int]]:
        """Return the ``n`` chosen of the next candidates, as (start, number) runs."""
        n_here = self._stream.n_available(self.position, self._selector.n_candidates(n))
        if n_here == 0:
            return []
        groups = self._stream.draw(self.position, n_here, trained_steps=trained_steps)
        place = self.position + self._selector.chosen(groups, n)
        self.position += n_here
        self.skipped += n_here - len(place)
        return _runs(place)


AnyCursor = PromptCursor | SelectingCursor | ChoosingCursor


def _runs(place: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return ascending places as (start, number) of consecutive ones."""
    if not len(place):
        return []
    parts = np.split(place, np.flatnonzero(np.diff(place) > 1) + 1)
    return [(int(part[0]), len(part)) for part in parts]
