"""The walk through a pool of prompts: what stands where is a function of (seed, position)."""

from collections.abc import Sequence

import numpy as np

from dapolab.rng import stream
from gpu_runs.task import Problem


class PromptStream:
    """Prompts in epochs, each in an order of its own; ``position`` is all that a resume needs.

    Parameters
    ----------
    problems : the pool.
    seed : of the orders.
    n_epochs : where the stream ends; None: never.
    """

    def __init__(
        self, problems: Sequence[Problem], *, seed: int, n_epochs: int | None = None
    ) -> None:
        self._problems = list(problems)
        self._seed = seed
        self._n_available = None if n_epochs is None else n_epochs * len(self._problems)
        self._orders: dict[int, list[int]] = {}
        self.position = 0

    def at(self, position: int) -> Problem:
        """Return the prompt at a position from 0."""
        epoch, place = divmod(position, len(self._problems))
        if epoch not in self._orders:
            rng = stream(self._seed, "prompt order", epoch)
            order: list[int] = rng.permutation(len(self._problems)).tolist()
            # an epoch and its successor may alternate within one step
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = order
        return self._problems[self._orders[epoch][place]]

    def take(self, n: int) -> list[tuple[int, Problem]]:
        """Return the next ``n`` (position, prompt), or as many as there are, and move on."""
        stop = self.position + n
        if self._n_available is not None:
            stop = min(stop, self._n_available)
        taken = [(position, self.at(position)) for position in range(self.position, stop)]
        self.position = max(self.position, stop)
        return taken


def noise_seed(seed: int, name: str) -> int:
    """Return the seed of the sampling noise of one purpose, below 2**63."""
    return int(stream(seed, "noise", name).integers(np.iinfo(np.int64).max))
