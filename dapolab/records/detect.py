"""Which format a file or folder is in, from its name and its first row."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dapolab.reading.lines import PARQUET_MAGIC, head, magic
from dapolab.records import nemo_rl, trl
from dapolab.scenario import ConfigError

KNOWN = (
    "a CSV, Parquet or JSON-lines table; verl {step}.jsonl dumps; prime-rl train_rollouts.jsonl or "
    "traces.jsonl; verifiers results.jsonl; tinker *_rollout_summaries.jsonl; TRL "
    "completions_*.parquet; ms-swift completions.jsonl; open-instruct *_rollouts_*.jsonl; AReaL "
    "{version}/{task}.jsonl; NeMo RL train_data_step*.jsonl; slime rollout_data/*.pt; 06-dapo eval"
)
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("tinker", "**/*_rollout_summaries.jsonl"),
    ("prime_rl", "**/train_rollouts.jsonl"),
    ("prime_rl", "**/traces.jsonl"),
    ("verifiers", "**/results.jsonl"),
    ("trl", "**/completions_[0-9]*.parquet"),
    ("ms_swift", "**/completions.jsonl"),
    ("open_instruct", "**/*_rollouts_[0-9]*.jsonl"),
    ("nemo_rl", "**/train_data_step[0-9]*.jsonl"),
    ("slime", "**/[0-9]*.pt"),
    ("areal", "**/[0-9]*/*.jsonl"),
)
_AREAL_KEYS = frozenset({"task_id", "seqlen", "prompt_len"})
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_STEP_FILE = re.compile(r"^\d+\.jsonl(?:\.gz)?$")
_TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")


@dataclass(frozen=True)
class Found:
    """A format and the files in it, in reading order."""

    format: str
    files: tuple[Path, ...]


def detect(path: Path, *, format: str = "auto") -> Found:
    """Decide how to read a path; ``format`` other than auto is taken at its word.

    Raises
    ------
    ConfigError
        No such path, an empty file, a folder without known files, or content in no known format;
        the line says what was seen and which formats exist.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    if path.is_dir():
        return _detect_folder(path, format=format)
    if path.stat().st_size == 0 or not head(path).strip():
        raise ConfigError(f"{path}: the file is empty")
    return Found(_detect_file(path) if format == "auto" else format, (path,))


def _detect_folder(folder: Path, *, format: str) -> Found:
    steps = [f for f in folder.iterdir() if f.is_file() and _STEP_FILE.match(f.name)]
    steps.sort(key=lambda f: int(f.name.partition(".")[0]))
    if steps and format in ("auto", "areal") and (format == "areal" or _is_areal(steps[0])):
        return Found("areal", tuple(steps))
    if steps and format in ("auto", "verl"):
        return Found("verl", tuple(steps))
    for name, pattern in _PATTERNS:
        files = sorted(folder.glob(pattern), key=_natural) if format in ("auto", name) else []
        if files and (name != "areal" or format == name or _is_areal(files[0])):
            return Found(name, tuple(files))
    tables = [f for f in sorted(folder.iterdir(), key=_natural) if f.suffix in _TABLE_SUFFIXES]
    if tables and (format == "table" or len(tables) == 1):
        return Found("table", tuple(tables))
    pickles = [f for f in sorted(folder.glob("**/*")) if f.suffix in (".pkl", ".pickle")]
    if pickles:
        raise _pickle_error(pickles[0])
    seen = ", ".join(sorted(f.name for f in folder.iterdir())[:8]) or "nothing"
    raise ConfigError(f"{folder}: no rollouts recognised (it holds {seen}); expected {KNOWN}")


def _is_areal(path: Path) -> bool:
    row = _first_object(head(path).removeprefix(b"\xef\xbb\xbf").lstrip())
    return row is not None and row.keys() >= _AREAL_KEYS


def _parquet_names(path: Path) -> list[str]:
    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return []  # the reader says what is wrong with it


def _pickle_error(path: Path) -> ConfigError:
    return ConfigError(
        f"{path}: a pickle can run code and is never opened; SkyRL: give its eval JSONL, or write "
        "sequences, masks, rewards and uids to Parquet or JSON lines where you trust the file"
    )


def _natural(path: Path) -> list[tuple[int, str]]:
    return [
        (int(piece), "") if piece.isdigit() else (-1, piece)
        for piece in re.split(r"(\d+)", path.as_posix())
    ]


def _detect_file(path: Path) -> str:
    if magic(path) == PARQUET_MAGIC:
        return "trl" if set(_parquet_names(path)) >= trl.COLUMNS else "table"
    if magic(path) == b"PK\x03\x04":
        return "slime"
    if magic(path, 2) in _PICKLES or path.suffix in (".pkl", ".pickle"):
        raise _pickle_error(path)
    start = head(path).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] == b"[":
        raise ConfigError(
            f"{path}: a JSON array, not JSON lines; one object a line is needed (jq -c '.[]' FILE)"
        )
    if start[:1] != b"{":
        return _detect_text(path, start)
    if path.name.endswith("_rollout_summaries.jsonl"):
        return "tinker"
    row = _first_object(start)
    if row is None:
        return _by_name_or_keys(path, start)
    return _by_row(path, row)


def _by_row(path: Path, row: dict[str, Any]) -> str:
    keys = set(row)
    if {"traj_idx", "group_idx"} <= keys:
        return "tinker"
    if "traces" in keys and keys & {"group", "task", "run"}:
        return "prime_rl"
    if {"example_id", "reward"} <= keys and keys & {"completion", "token_usage", "timing"}:
        return "prime_rl" if "train_rollouts" in path.name else "verifiers"
    if {"input", "output", "score"} <= keys:
        return "verl"
    if keys >= _AREAL_KEYS:
        return "areal"
    if {"prompt_tokens", "response_tokens", "prompt_idx"} <= keys:
        return "open_instruct"
    if {"token_ids", "token_loss_mask"} <= keys or nemo_rl.FILE.match(path.name):
        return "nemo_rl"
    named = {"advantages"} if path.name.startswith("completions.jsonl") else set()
    if {"prompt", "completion", "advantages"} <= keys | named:
        return "ms_swift"
    if row.get("type") == "problem" and "generations" in keys:
        return "dapo_06"
    if keys == {"step", "data"} and isinstance(row["data"], dict):
        raise ConfigError(
            f"{path}: verl's metric log (step, data), not responses: dapolab import-log reads it; "
            "the dumps are written where trainer.rollout_data_dir points"
        )
    return "table"


def _by_name_or_keys(path: Path, start: bytes) -> str:
    """Decide from the beginning of a first line that is too long to parse, or is broken."""
    if "train_rollouts" in path.name or path.name == "traces.jsonl" or b'"traces"' in start:
        return "prime_rl"
    if b'"example_id"' in start:
        return "verifiers"
    if b'"token_loss_mask"' in start or nemo_rl.FILE.match(path.name):
        return "nemo_rl"
    if b'"prompt_tokens"' in start and b'"sample_idx"' in start:
        return "open_instruct"
    if path.name.startswith("completions.jsonl"):
        return "ms_swift"
    if b'"type": "problem"' in start:
        return "dapo_06"
    if b'"input"' in start and (b'"output"' in start or len(start) >= 1 << 15):
        return "verl"
    return "table"


def _detect_text(path: Path, start: bytes) -> str:
    first = start.split(b"\n", 1)[0]
    printable = first.decode("utf-8", "replace")
    looks_like_table = any(separator in printable for separator in ",\t;")
    if b"\0" in start or "\ufffd" in printable or not looks_like_table or " - " in printable:
        plain = printable.isprintable() and b"\0" not in start
        shown = printable[:60] if plain else "binary data"
        raise ConfigError(
            f"{path}: not a known format (it starts with {shown!r}); expected {KNOWN}"
        )
    return "table"


def _first_object(start: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(start.split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
