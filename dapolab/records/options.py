"""What a user may say about a file that the file does not say itself."""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from dapolab.scenario import ConfigError

Format = Literal[
    "auto",
    "table",
    "verl",
    "prime_rl",
    "verifiers",
    "tinker",
    "trl",
    "ms_swift",
    "open_instruct",
    "areal",
    "nemo_rl",
    "slime",
    "dapo_06",
]
Selection = Literal["all", "kept_mixed", "kept_first_finished", "unknown"]
FORMATS: tuple[str, ...] = get_args(Format)
SELECTIONS: tuple[str, ...] = get_args(Selection)

# What a column of a plain table can be. Sources of prompt_id, n_tokens, correct and truncated that
# need a computation (text, chars, n_correct, pass_rate, stop_reason) are roles of their own.
ROLES: tuple[str, ...] = (
    "set",
    "prompt_id",
    "group_id",
    "sample",
    "step",
    "wave",
    "n_tokens",
    "n_prompt_tokens",
    "reward",
    "correct",
    "truncated",
    "stop_reason",
    "kept",
    "t_start_s",
    "t_end_s",
    "cap_tokens",
    "n_samples",
    "n_correct",
    "pass_rate",
    "chars",
    "text",
    "prompt_text",
)


@dataclass(frozen=True)
class ReadOptions:
    """How to read a dump; every field has a meaning only where the file is silent.

    Attributes
    ----------
    format : reader, or ``auto`` to decide from name and content.
    columns : role to column name, e.g. ``{"n_tokens": "est_tokens"}``; an empty name switches the
        role off. Nested keys are written with dots (``metrics.correct_answer``).
    where : column to value; only rows with exactly these values are read.
    selection : which candidates the file holds, where the user knows better than the reader.
    cap_tokens : the cap on response tokens of the run behind the file.
    tokenizer : folder of a saved tokenizer, to count the tokens of text dumps.
    chars_per_token : the cheaper estimate; characters over this give tokens.
    correct_threshold : a response is correct where its reward is above this.
    group_size : samples behind a column of pass rates.
    progress : show a bar on stderr when reading takes more than two seconds.

    Raises
    ------
    ConfigError
        A value out of range, an unknown name, or both ways of counting tokens at once.
    """

    format: str = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    selection: str | None = None
    cap_tokens: int | None = None
    tokenizer: Path | None = None
    chars_per_token: float | None = None
    correct_threshold: float | None = None
    group_size: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        _one_of(self.format, FORMATS, "--format")
        if self.selection is not None:
            _one_of(self.selection, SELECTIONS, "--selection")
        for role in self.columns:
            _one_of(role, ROLES, "--columns")
        if self.cap_tokens is not None and self.cap_tokens < 1:
            raise ConfigError(f"--cap must be at least 1 token, got {self.cap_tokens}")
        if self.group_size is not None and self.group_size < 1:
            raise ConfigError(f"--group-size must be at least 1, got {self.group_size}")
        ratio = self.chars_per_token
        if ratio is not None and not (math.isfinite(ratio) and ratio > 0):
            raise ConfigError(f"--chars-per-token must be a positive number, got {ratio}")
        if self.correct_threshold is not None and not math.isfinite(self.correct_threshold):
            raise ConfigError("--correct-threshold must be a finite number")
        if self.tokenizer is not None and ratio is not None:
            raise ConfigError("give --tokenizer or --chars-per-token, not both")


def parse_pairs(items: Iterable[str], *, flag: str) -> dict[str, str]:
    """Turn ``["a=b,c=d", "e=f"]`` into a mapping.

    A comma separates pairs only where the text after it holds ``=``, so a value may hold commas.

    Raises
    ------
    ConfigError
        A piece without ``=`` or a name given twice.
    """
    found: dict[str, str] = {}
    for item in items:
        pieces: list[str] = []
        for piece in item.split(","):
            if pieces and "=" not in piece:
                pieces[-1] += "," + piece
            else:
                pieces.append(piece)
        for piece in pieces:
            name, equals, value = piece.partition("=")
            if not equals or not name.strip():
                raise ConfigError(f"{flag} takes NAME=VALUE, got {piece!r}")
            if name.strip() in found:
                raise ConfigError(f"{flag} names {name.strip()!r} twice")
            found[name.strip()] = value.strip()
    return found


def _one_of(value: str, allowed: tuple[str, ...], flag: str) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        hint = f"; nearest: {near[0]!r}" if near else ""
        raise ConfigError(f"{flag}: unknown {value!r}, expected one of {', '.join(allowed)}{hint}")
