"""slime rollout data: ``rollout_data/{rollout_id}.pt`` of ``--save-debug-rollout-data``.

Read by the format's description (``utils/types.py``, ``utils/trace_utils.py``): ``torch.save`` of
``{rollout_id, samples: [Sample.to_dict()]}``, a zip archive whose ``data.pkl`` holds everything
that is needed here. It is read as plain data (``plain_pickle``): no torch, and no code of the file
ever runs. Only kept groups are in it.
"""

import re
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dapolab.reading.lines import Row, Source
from dapolab.records.builder import EXTRA
from dapolab.records.cells import CellError, number, table_at, tables_at, text_hash, text_id, whole
from dapolab.records.draft import DESCRIPTION, Draft, Reading
from dapolab.records.pickle_names import Opaque, RefusedPickleError
from dapolab.records.plain_pickle import load_plain
from dapolab.records.tokens import text_of
from dapolab.scenario import ConfigError

BUILT_FROM = DESCRIPTION
LARGEST_BYTES = 4 << 30
_FILE = re.compile(r"^(\d+)\.pt$")
# zipfile takes offsets, sizes and names of a damaged archive at their word
_BROKEN_ZIP = (
    *(zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError),
    *(ValueError, OverflowError, IndexError, KeyError, struct.error, MemoryError),
)
_USED = frozenset(
    {"group_index", "index", "prompt", "response", "response_length", "tokens", "trace", "reward"}
)
_FINISHED = {"completed": False, "truncated": True}


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read rollout data.

    Raises
    ------
    ConfigError
        No ``torch.save`` archive, a pickle that names more than plain data and tensors, a sample
        without group_index or prompt, a broken cell.
    """
    unfinished: dict[str, int] = {}
    for source in sources:
        for place, sample in _samples(source):
            try:
                if not reading.filter.keeps(sample):
                    continue
                row = _row(sample, source=source, reading=reading)
            except CellError as error:
                raise source.error(f"sample {place}: {error}") from None
            except RecursionError:
                raise source.error(f"sample {place}: nested too deep") from None
            if "group_id" not in row:
                raise source.error(f"sample {place}: no group_index and no prompt")
            status = _status(sample)
            if status not in _FINISHED:
                unfinished[status] = unfinished.get(status, 0) + 1
            row["source"] = source.name
            reading.builder.add(row, source=source, line=place)
    frame = reading.table()
    if unfinished:
        shown = ", ".join(f"{status} ({n})" for status, n in sorted(unfinished.items()))
        reading.notes.append(
            f"neither completed nor truncated, so truncation is missing and the length is only "
            f"what was generated: {shown}"
        )
    reading.notes.append(
        "slime writes the groups it kept; rejected groups are in no file but the one of "
        "rollout_all_samples_process_path"
    )
    return Draft(frame, built_from=BUILT_FROM)


def _samples(source: Source) -> Iterator[tuple[int, Row]]:
    content = load(source)
    samples = content.get("samples") if isinstance(content, dict) else None
    if not isinstance(samples, list):
        raise source.error("no list of samples: not the rollout data of slime")
    found = _FILE.match(source.path.name)
    step = content.get("rollout_id", int(found.group(1)) if found else None)
    for place, sample in enumerate(samples, start=1):
        if not isinstance(sample, dict):
            raise source.error(f"sample {place}: not a dict")
        yield place, {"step": step} | {k: v for k, v in sample.items() if isinstance(k, str)}


def load(source: Source) -> Any:
    """Return the plain data of a ``torch.save`` archive.

    Raises
    ------
    ConfigError
        No such archive, a compressed or huge part, a pickle of more than plain data.
    """
    try:
        with zipfile.ZipFile(source.path) as archive:
            parts = [part for part in archive.infolist() if part.filename.endswith("data.pkl")]
            if len(parts) != 1:
                raise source.error("no archive of torch.save (no data.pkl in it)")
            part = parts[0]
            if part.compress_type != zipfile.ZIP_STORED or part.file_size > LARGEST_BYTES:
                raise source.error("its data.pkl is compressed or beyond 4 GiB: not of torch.save")
            data = archive.read(part)
    except ConfigError:
        raise
    except _BROKEN_ZIP as error:
        raise source.error(
            f"not a readable archive of torch.save ({type(error).__name__}); files of torch before "
            "1.6 are plain pickles and are not opened"
        ) from None
    source.progress.advance(source.path.stat().st_size)
    try:
        return load_plain(data)
    except RefusedPickleError as error:
        raise source.error(
            f"its pickle is not opened: {error}; only plain data and tensors are read, never code"
        ) from None


def _row(sample: Row, *, source: Source, reading: Reading) -> dict[str, object]:
    step = whole(sample.get("step"))
    row: dict[str, object] = {
        EXTRA + name: value
        for name, value in sample.items()
        if name not in _USED and name != "step" and not isinstance(value, dict | list | Opaque)
    }
    text = text_of(sample.get("prompt"))
    prompt = None if text is None else text_hash(text)
    group = text_id(sample.get("group_index"))
    if group is not None or prompt is not None:
        row["group_id"] = f"{prompt if group is None else group}@{'' if step is None else step}"
        row["prompt_id"] = prompt if prompt is not None else row["group_id"]
    length = whole(sample.get("response_length"))
    tokens = sample.get("tokens")
    row |= {"step": step, "n_tokens": length, "reward": _reward(sample.get("reward"), reading)}
    if isinstance(tokens, list) and length is not None and len(tokens) >= length:
        row["n_prompt_tokens"] = len(tokens) - length
    row["truncated"] = _FINISHED.get(_status(sample))
    row[EXTRA + "index"] = sample.get("index")
    row |= _times(table_at(sample, "trace"))
    return row


def _status(sample: Row) -> str:
    status = sample.get("status")
    return status if isinstance(status, str) else "unknown"


def _reward(value: object, reading: Reading) -> object:
    """Return the number; of a dict of rewards the one that ``--columns reward=NAME`` names."""
    if not isinstance(value, dict):
        return None if isinstance(value, Opaque | list) else value
    asked = reading.options.columns.get("reward")
    key = asked if asked in value else next((k for k in ("score", "reward") if k in value), None)
    return value[key] if key is not None else None


def _is_generation(event: Mapping[str, Any]) -> bool:
    name = event.get("name")
    return isinstance(name, str) and "generate" in name


def _times(trace: Mapping[str, Any]) -> dict[str, object]:
    """Return first start and last end of the spans of generation."""
    ends: dict[str, list[float]] = {"span_start": [], "span_end": []}
    for event in tables_at(trace, "events"):
        kind, at = event.get("type"), number(event.get("ts"))
        if kind in ends and at is not None and _is_generation(event):
            ends[str(kind)].append(at)
    if not ends["span_start"] or not ends["span_end"]:
        return {}
    return {"t_start_s": min(ends["span_start"]), "t_end_s": max(ends["span_end"])}
