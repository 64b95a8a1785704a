"""A service that outlives weight updates: it stands still with the engine, and lets groups go."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dapolab.sim.service import Service
from dapolab.sim.service_state import GENERATING

Int = NDArray[np.int64]


class PausingService(Service):
    """The responses of a whole run beside their tokens."""

    def halt(self, *, keep_kv: bool) -> list[int]:
        """Stop every replica at its next boundary; return the groups that came back by then.

        Until ``end_halt`` what a call returns to waits with what was interrupted. Without
        ``keep_kv`` the KV over calls is given up too.
        """
        self.is_halted = True
        self._engine.abort(at_s=self._engine.now_s, keep_kv=keep_kv)
        holds_kv, self._holds_kv = self._holds_kv, self._holds_kv and keep_kv
        self._hear(self._engine.drain())
        self._holds_kv = holds_kv
        self._ring_due()
        return self._take_returned()

    def end_halt(self) -> None:
        """Make everything that waits resumable; the caller resumes it."""
        self.is_halted = False
        self._begin_stays()

    def cut(self, groups: Iterable[int]) -> None:
        """Let nothing more happen to ``groups``, save what the engine still does to them."""
        for group in groups:
            self._cut(group)

    def own_tokens(self, groups: Iterable[int], context: Int) -> Int:
        """Return the generated tokens in each response's ``context``, 0 past its last token."""
        responses = [r for g in groups for r in self._groups[g].responses]
        added = np.array([r.added for r in responses], dtype=np.int64)
        goes_on = np.array([r.state in GENERATING for r in responses], dtype=np.bool_)
        return np.where(goes_on, context - added, 0)

    def all_added_tokens(self, groups: Iterable[int]) -> Int:
        """Return the tokens of tool results in the responses' present contexts, flat."""
        responses = [r for g in groups for r in self._groups[g].responses]
        return np.array([r.added for r in responses], dtype=np.int64)
