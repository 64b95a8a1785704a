"""The walk through the prompt stream: which positions the next submission takes."""

from collections.abc import Callable

from dapolab.scenario import ConfigError


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
