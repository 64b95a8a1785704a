"""How far a run is: a bar where rich is installed and someone looks, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, Self

PLAIN_EVERY_S = 10.0


class Progress:
    """Steps done of all, with what the last one showed and the time that is left.

    Parameters
    ----------
    total, done : steps of the run, and those that an earlier start has made.
    title : name of the run.
    shown : False prints nothing.
    """

    def __init__(self, total: int, *, done: int = 0, title: str, shown: bool = True) -> None:
        self.total, self.done, self.title, self.shown = total, done, title, shown
        self._first, self._started = done, time.monotonic()
        self._said = -float("inf")
        self._bar: Any = _rich_bar(total, done, title) if shown and sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, text: str) -> None:
        """Count one step; ``text`` says in a few words what it showed."""
        self.done += 1
        if not self.shown:
            return
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, text=text)
            return
        now = time.monotonic()
        if now - self._said >= PLAIN_EVERY_S or self.done == self.total:
            self._said = now
            left = eta_s(now - self._started, self.done - self._first, self.total - self.done)
            line = f"{self.title}: step {self.done}/{self.total} · {text} · {clock(left)} left"
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def eta_s(elapsed_s: float, n_done: int, n_left: int) -> float:
    """Return the seconds left at the pace so far."""
    return elapsed_s / n_done * n_left if n_done else 0.0


def clock(seconds: float) -> str:
    """Return seconds as M:SS or H:MM:SS."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _rich_bar(total: int, done: int, title: str) -> Any:
    try:
        from rich import progress as rich
        from rich.console import Console
    except ImportError:
        return None
    bar = rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[text]}"),
        rich.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    bar.add_task(title, total=total, completed=done, text="")
    return bar
