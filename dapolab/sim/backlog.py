"""What one step leaves to the next: groups that returned and wait, groups cut short, prompts."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dapolab.collectors import Carried, Finished
from dapolab.workload.model import Groups

Ints = NDArray[np.int64]


@dataclass
class Left:
    """One group that outlives its step.

    ``group`` is its row of the prompt stream as it was drawn at its submission; ``tokens_G`` what
    each response has generated, ``by_version`` the same total by the weights that generated it.
    """

    group: Groups
    finished: Finished
    begun_step: int
    begun_version: int
    tokens_G: Ints
    by_version: dict[int, int]
    submit_s: float
    """First submission."""
    end_s: float
    """End of the step that left it."""


@dataclass
class Backlog:
    """Everything that is carried between steps; cut groups are the engine's first, in order."""

    held: list[Left] = field(default_factory=list)
    cut: list[Left] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    """Places in the stream of prompts that wait to be sampled afresh."""
    note: object = None
    n_steps: int = 0

    @property
    def left(self) -> list[Left]:
        """Groups in the order of their indices in the next step."""
        return [*self.held, *self.cut]

    def carried(self, version: int) -> Carried:
        """Return what a policy is told at the start of a step that learns as ``version``."""
        held = (notice(left, index=i, version=version) for i, left in enumerate(self.held))
        return Carried(tuple(held), len(self.cut), len(self.waiting), self.note, self.n_steps)


def notice(left: Left, *, index: int, version: int) -> Finished:
    """Return what a policy hears of a carried group once it has returned."""
    told = left.finished
    age = version - left.begun_version
    return Finished(
        index, told.n_samples, told.n_correct, told.spread, told.n_tokens, told.metrics, age
    )
