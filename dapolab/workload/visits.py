"""How often each prompt of the pool was trained, by version of the weights."""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_CACHED_VERSIONS = 4


class Visits:
    """Counts by prompt id; what was once asked for never changes.

    Versions count updates of the weights from 0, the weights before any update.
    """

    def __init__(self, n_prompts: int) -> None:
        self._n_prompts = n_prompts
        self._trained: list[Ints] = []  # prompt ids of the update that made version 1, 2, …
        self._counts: OrderedDict[int, Ints] = OrderedDict()
        self._latest = 0

    def add(self, prompt_ids: Ints, *, version: int) -> None:
        """Enter the groups whose update made ``version``, one prompt id a group.

        Raises
        ------
        ValueError
            A version that was entered before, or asked for.
        """
        if version <= max(len(self._trained), self._latest):
            raise ValueError(f"version {version} is known already")
        none = np.empty(0, dtype=np.int64)
        self._trained += [none] * (version - 1 - len(self._trained)) + [prompt_ids]

    def before(self, version: int) -> Ints:
        """Return how often each prompt was trained on the way to ``version``, shape (N,)."""
        self._latest = max(self._latest, version)
        found = self._counts.get(version)
        if found is None:
            earlier = max((v for v in self._counts if v < version), default=0)
            found = self._counts.get(earlier, np.zeros(self._n_prompts, dtype=np.int64))
            new = self._trained[earlier:version]
            if new:
                found = found + np.bincount(np.concatenate(new), minlength=self._n_prompts)
            self._counts[version] = found
            if len(self._counts) > _CACHED_VERSIONS:
                self._counts.popitem(last=False)
        return found
