"""Metrics to TensorBoard where it is installed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Board:
    """Event files of one run; without TensorBoard it writes nothing and says so in ``note``."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        self.note = ""
        self._writer: Any = None
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            self.note = "no TensorBoard files: pip install tensorboard"
            return
        # what a killed run wrote after its last checkpoint is hidden
        self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def write(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Add one point to every curve."""
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush what is buffered."""
        if self._writer is not None:
            self._writer.close()
