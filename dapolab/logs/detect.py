"""How a log is written, from its name and its beginning; which files of a folder belong to it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from dapolab.errors import ConfigError
from dapolab.logs.tables import STEP_NAMES
from dapolab.reading.lines import PARQUET_MAGIC, delimiter, head, magic

KNOWN = (
    "a console log of verl, TRL, OpenRLHF or prime-rl; verl's file logger or metrics.jsonl; a "
    "trainer_state.json; TensorBoard event files; a CSV, Parquet or JSON-lines table of steps"
)
BINARY_SHARE = 0.01
_EVENTS = "events.out.tfevents."


@dataclass(frozen=True)
class Found:
    """The way a log is written, and its files in reading order."""

    format: str
    files: tuple[Path, ...]


def detect(path: Path, *, format: str = "auto") -> Found:
    """Decide how to read a path; ``format`` other than auto is taken at its word.

    Raises
    ------
    ConfigError
        No such path, an empty file, a folder without a known log, content that is none.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    if path.is_dir():
        return _in_folder(path, format=format)
    if not path.is_file():
        raise ConfigError(f"{path}: not a regular file")
    if path.stat().st_size == 0 or not head(path).strip():
        raise ConfigError(f"{path}: the file is empty")
    return Found(_of_file(path) if format == "auto" else format, (path,))


def _in_folder(folder: Path, *, format: str) -> Found:
    if format in ("auto", "tensorboard"):
        events = sorted(folder.rglob(f"*{_EVENTS}*"), key=_by_folder_then_time)
        if events:
            return Found("tensorboard", tuple(events))
    if format in ("auto", "trainer_state"):
        states = [*folder.glob("trainer_state.json"), *folder.glob("*/trainer_state.json")]
        if states:
            return Found("trainer_state", (max(states, key=_checkpoint),))
    for kind, pattern in (("jsonl", "metrics.jsonl"), ("console", "*.log"), ("table", "*.csv")):
        files = sorted(folder.glob(pattern)) if format in ("auto", kind) else []
        if len(files) == 1:
            return Found(kind, tuple(files))
    seen = ", ".join(sorted(f.name for f in folder.iterdir())[:8]) or "nothing"
    raise ConfigError(f"{folder}: no log recognised (it holds {seen}); name the file, or {KNOWN}")


def _by_folder_then_time(path: Path) -> tuple[str, int, str]:
    stamp = re.search(r"tfevents\.(\d+)", path.name)
    return str(path.parent), int(stamp.group(1)) if stamp else 0, path.name


def _checkpoint(path: Path) -> tuple[int, str]:
    """Order states by the step of their folder; the output folder's own comes last of all."""
    step = re.search(r"checkpoint-(\d+)$", path.parent.name)
    return int(step.group(1)) if step else 2**62, str(path)


def _of_file(path: Path) -> str:
    start = head(path)
    if magic(path) == PARQUET_MAGIC:
        return "table"
    if _EVENTS in path.name or b"brain.Event:" in start[:64]:
        return "tensorboard"
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"):
        raise ConfigError(f"{path}: a pickle or an archive is not a log; expected {KNOWN}")
    text = start.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    if text.startswith("[") and text[1:].lstrip()[:1] in ("{", "]"):
        raise ConfigError(
            f"{path}: a JSON array, not JSON lines; one object a line is needed (jq -c '.[]' FILE)"
        )
    if text.startswith("{"):
        return _of_json(path, text)
    if start.count(b"\0") > BINARY_SHARE * len(start):  # a model may print a few
        raise ConfigError(f"{path}: binary data; expected {KNOWN}")
    return "table" if _is_table(path, start) else "console"


def _of_json(path: Path, text: str) -> str:
    if path.name == "trainer_state.json":
        return "trainer_state"
    try:
        row = json.loads(text.split("\n", 1)[0])
    except (ValueError, RecursionError):
        if re.match(r'\{\s*"', text):
            return "trainer_state" if "\n" in text[:4] or '"log_history"' in text else "jsonl"
        return "console"
    return "trainer_state" if isinstance(row, dict) and "log_history" in row else "jsonl"


def _is_table(path: Path, start: bytes) -> bool:
    if path.suffix in (".csv", ".tsv"):
        return True
    first = start.split(b"\n", 1)[0].decode("utf-8", "replace").strip().removeprefix("\ufeff")
    cells = [cell.strip().strip('"') for cell in first.split(delimiter(start))]
    return len(cells) > 1 and any(cell in STEP_NAMES for cell in cells)
