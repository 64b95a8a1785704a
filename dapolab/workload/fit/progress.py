"""The one progress display of a fit, silent unless asked for."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


class Progress:
    """A bar on stderr that names what is being computed."""

    def __init__(self, *, total: int, shown: bool) -> None:
        self._bar = RichProgress(
            TextColumn("fit: {task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not shown,
        )
        self._task = self._bar.add_task("maximum likelihood", total=total)

    def advance(self, doing: str) -> None:
        """Finish one part and name the next."""
        self._bar.update(self._task, advance=1, description=doing)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
