"""One bar on stderr for reads that take more than two seconds."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

DELAY_S = 2.0


class ByteProgress:
    """Counts bytes; draws nothing before ``DELAY_S`` seconds, and only on a terminal."""

    def __init__(self, total_bytes: int, *, title: str, shown: bool = True) -> None:
        self._total = total_bytes
        self._title = title
        self._shown = shown and sys.stderr.isatty()
        self._done = 0
        self._drawn = 0
        self._start_s = time.monotonic()
        self._bar: Progress | None = None

    def advance(self, n_bytes: int) -> None:
        """Add bytes read."""
        self._done += n_bytes
        if self._shown and self._done - self._drawn > self._total // 500:
            self._drawn = self._done
            self._draw()

    def _draw(self) -> None:
        if self._bar is None:
            if time.monotonic() - self._start_s < DELAY_S:
                return
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(self._title, total=self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
