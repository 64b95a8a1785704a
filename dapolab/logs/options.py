"""What a user may say about a log that the log does not say itself."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from dapolab.errors import ConfigError
from dapolab.logs.schema import BY_COLUMN, EXTRA, ID_COLUMNS

Format = Literal["auto", "console", "jsonl", "trainer_state", "tensorboard", "table"]
Framework = Literal["auto", "verl", "trl", "openrlhf", "prime_rl", "tinker", "dapolab"]
FORMATS: tuple[str, ...] = get_args(Format)
FRAMEWORKS: tuple[str, ...] = get_args(Framework)


@dataclass(frozen=True)
class LogOptions:
    """How to read a log; every field has a meaning only where the log is silent.

    Attributes
    ----------
    format : how the log is written (its container), or ``auto`` to decide from the content.
    framework : whose keys they are, or ``auto`` to decide from the keys.
    run : the one run to keep, by name; None keeps all.
    columns : column of the step table to the log's own key, ``step`` and ``run`` included; goes
        before the framework's keys. An empty key leaves the column out.
    unfiltered : the run used no filter, so its trained batch is all that was sampled.
    every : training steps between two rows of a log that does not number them (TRL's console).
    progress : show a bar on stderr when reading takes more than two seconds.

    Raises
    ------
    ConfigError
        An unknown name or a number out of range.
    """

    format: str = "auto"
    framework: str = "auto"
    run: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    unfiltered: bool = False
    every: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        one_of(self.format, FORMATS, "--format")
        one_of(self.framework, FRAMEWORKS, "--framework")
        for column in self.columns:
            if not column.startswith(EXTRA):
                one_of(column, (*ID_COLUMNS, *BY_COLUMN), "--columns")
        if self.every is not None and self.every < 1:
            raise ConfigError(f"--every must be at least 1 step, got {self.every}")


def one_of(value: str, allowed: tuple[str, ...], flag: str) -> None:
    """Refuse a value that is not among the allowed ones, naming the nearest.

    Raises
    ------
    ConfigError
        It is not.
    """
    if value in allowed:
        return
    near = difflib.get_close_matches(value, allowed, n=1)
    hint = f"; nearest: {near[0]!r}" if near else ""
    listed = f", expected one of {', '.join(allowed)}" if len(allowed) <= 12 else ""
    raise ConfigError(f"{flag}: unknown {value!r}{listed}{hint}")
