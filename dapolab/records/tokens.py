"""Lengths in tokens for dumps that hold only text or character counts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapolab.records.options import ReadOptions
from dapolab.scenario import ConfigError

NEEDED = (
    "no token counts in the file: give --tokenizer DIR or --chars-per-token X for lengths, and "
    "--cap N to mark truncated responses; difficulty can be fitted without them"
)


@dataclass(frozen=True)
class TokenCounter:
    """Counts or estimates tokens; neither option given means every count is missing."""

    chars_per_token: float | None = None
    tokenizer: Any = None

    @property
    def active(self) -> bool:
        """Whether counts can be given at all."""
        return self.chars_per_token is not None or self.tokenizer is not None

    def of_text(self, text: str) -> int | None:
        """Return the tokens of a text, without special tokens; None where not active."""
        if self.tokenizer is not None:
            return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return self.of_chars(len(text))

    def of_chars(self, n_chars: int) -> int | None:
        """Return the tokens estimated from a character count; None without chars_per_token."""
        if self.chars_per_token is None:
            return None
        return round(n_chars / self.chars_per_token)

    def describe(self) -> str:
        """Return the line that tells the user where n_tokens comes from."""
        if self.tokenizer is not None:
            return (
                "n_tokens is counted anew by the tokenizer; special tokens (the end token too) are "
                "not in the text, so counts may differ by a few from the run's own"
            )
        if self.chars_per_token is not None:
            return f"n_tokens is an estimate: characters / {self.chars_per_token:g}"
        return NEEDED


def token_counter(options: ReadOptions) -> TokenCounter:
    """Return the counter that the options ask for; a tokenizer never runs code from its folder.

    Raises
    ------
    ConfigError
        The folder is absent or holds no tokenizer, or the extra ``hf`` is not installed.
    """
    if options.tokenizer is None:
        return TokenCounter(chars_per_token=options.chars_per_token)
    return TokenCounter(tokenizer=_load(Path(options.tokenizer)))


def text_of(value: object) -> str | None:
    """Return a text, or the joined contents of a list of chat messages; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part.get("content") for part in value if isinstance(part, dict)]
        found = [part for part in parts if isinstance(part, str)]
        return "\n".join(found) if found else None
    return None


def _load(folder: Path) -> Any:
    if not folder.is_dir():
        raise ConfigError(f"--tokenizer {folder}: no such folder")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError(
            "--tokenizer needs the extra hf: pip install 'dapolab[hf]' (or use --chars-per-token)"
        ) from None
    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(f"--tokenizer {folder}: no tokenizer found there ({reason})") from None
