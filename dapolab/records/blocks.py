"""Completions tables of HF trainers: rows in blocks of a group, no ids, no lengths.

TRL and ms-swift write step, prompt, completion, a column a reward function, and the advantage, in
consecutive blocks of ``num_generations`` rows a prompt.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from dapolab.reading.lines import Row, Source
from dapolab.records.builder import EXTRA
from dapolab.records.cells import CellError, boolean, cut_by_limit, number, text_hash, whole
from dapolab.records.columns import ColumnMap
from dapolab.records.draft import DESCRIPTION, Draft, Reading
from dapolab.records.tokens import text_of
from dapolab.scenario import ConfigError

_NOT_REWARDS = frozenset(
    {"step", "gen_step", "prompt", "completion", "advantage", "advantages", "entropy", "num_turns"}
)
# roles whose column is no reward function: what log_extra may add
_HOOKS = (
    "n_tokens",
    "n_prompt_tokens",
    "truncated",
    "stop_reason",
    "correct",
    "t_start_s",
    "t_end_s",
)
_NEEDS = "a reward function can log lengths and stop reasons: log_extra(column, values)"


class BlockRows:
    """Rows of completions tables; groups are formed once all are read."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._roles: dict[str, str] = {}
        self._reward: str | None = None
        self._seen: set[str] = set()
        self._is_told = False

    def add(self, raw: Row, *, source: Source, line: int) -> None:
        """Add one completion.

        Raises
        ------
        ConfigError
            No prompt, or a cell that its column cannot hold.
        """
        if not self._seen >= raw.keys():
            self._seen |= raw.keys()
            self._decide(raw, where=source.name)
        if not self._reading.filter.keeps({k: v for k, v in raw.items() if not _is_nested(v)}):
            return
        try:
            row = self._row(raw)
        except CellError as error:
            raise source.error(str(error), line=line) from None
        if row is None:
            raise source.error("no prompt: groups are blocks of one prompt", line=line)
        row["source"] = source.name
        self._reading.builder.add(row, source=source, line=line)

    def _decide(self, raw: Row, *, where: str) -> None:
        """Tell which columns are hooks of log_extra, and which one is the reward."""
        names = [name for name in self._seen if name not in _NOT_REWARDS]
        asked = {r: n for r, n in self._reading.options.columns.items() if n in self._seen}
        roles = ColumnMap(sorted(self._seen), asked=asked, where=where).of_role
        self._roles = {role: roles[role] for role in _HOOKS if role in roles}
        others = sorted(
            name for name in names if name not in self._roles.values() and _is_number(raw.get(name))
        )
        self._reward = asked.get("reward") or (others[0] if len(others) == 1 else None)
        if len(others) > 1 and self._reward is None and not self._is_told:
            self._is_told = True
            self._reading.notes.append(
                f"{len(others)} columns may be rewards ({', '.join(others[:6])}) and their weights "
                "are not in the file: name the one that decides, --columns reward=NAME"
            )

    def _row(self, raw: Row) -> dict[str, object] | None:
        prompt = _text(raw.get("prompt"))
        if prompt is None:
            return None
        used = {"prompt", "completion", "step", *self._roles.values()}
        row: dict[str, object] = {
            EXTRA + name: value for name, value in raw.items() if name not in used
        }
        row["prompt_id"] = text_hash(prompt)
        row["step"] = whole(raw.get("step", raw.get("gen_step")))
        row[EXTRA + "input_chars"] = len(prompt)
        if self._reward is not None:
            row["reward"] = raw.get(self._reward)
        for role, name in self._roles.items():
            row |= _hook(role, raw.get(name))
        answer = _text(raw.get("completion"))
        if answer is not None:
            row[EXTRA + "output_chars"] = len(answer)
            row[EXTRA + "output_hash"] = text_hash(answer)
            if "n_tokens" not in self._roles and self._reading.counter.active:
                row["n_tokens"] = self._reading.counter.of_text(answer)
        return row

    def draft(self, *, selection_note: str) -> Draft:
        """Form the groups and say what the file leaves out.

        Raises
        ------
        ConfigError
            Rows that are no blocks of one prompt, or whose block size cannot be told.
        """
        reading = self._reading
        frame = reading.table()
        if len(frame):
            size = reading.options.group_size
            frame, notes = form_groups(frame, group_size=size, where=reading.where)
            reading.notes += notes
        has_lengths = "n_tokens" in self._roles
        if not has_lengths:
            reading.notes.append(f"{reading.counter.describe()}; {_NEEDS}")
        if not {"truncated", "stop_reason"} & self._roles.keys():
            reading.notes.append("truncation and times are not in the file")
        reading.notes.append(selection_note)
        return Draft(
            frame,
            estimated=reading.counter.active and not has_lengths,
            reward_name=self._reward or "reward",
            built_from=DESCRIPTION,
        )


def form_groups(
    frame: pd.DataFrame, *, group_size: int | None, where: str
) -> tuple[pd.DataFrame, list[str]]:
    """Cut the rows of each file and step into blocks of one prompt.

    Parameters
    ----------
    frame : rows in file order with prompt_id, step, source.
    group_size : rows a block; None: the shortest stretch of one prompt, if all are multiples of it.

    Raises
    ------
    ConfigError
        A step whose rows are no multiple of the size, a block of two prompts, stretches of one
        prompt that have no common size.
    """
    part = _codes(frame["source"], frame.get("step"))
    prompt = _codes(frame["prompt_id"])
    new_part = _changes(part)
    starts = np.flatnonzero(new_part | _changes(prompt))
    lengths = np.diff(np.append(starts, len(frame)))
    notes: list[str] = []
    size = group_size
    if size is None:
        size = int(lengths.min())
        odd = np.flatnonzero(lengths % size)
        if len(odd):
            raise ConfigError(
                f"{where}: one prompt in {lengths[odd[0]]} rows from row {starts[odd[0]] + 1}, "
                f"another in {size}: the rows are no blocks of one size; say --group-size N"
            )
        notes.append(f"groups are blocks of {size} rows of one prompt (--group-size N if not)")
    first_row = np.maximum.accumulate(np.where(new_part, np.arange(len(frame)), 0))
    place = np.arange(len(frame)) - first_row
    block = np.cumsum(new_part | (place % size == 0)) - 1
    block_starts = np.flatnonzero(_changes(block))
    mixed = np.flatnonzero(prompt != prompt[block_starts][block])
    if len(mixed):
        raise ConfigError(f"{where}: row {mixed[0] + 1}: a block of {size} rows holds two prompts")
    short = np.flatnonzero(np.diff(np.append(block_starts, len(frame))) != size)
    if len(short):
        row = int(block_starts[short[0]]) + 1
        raise ConfigError(
            f"{where}: row {row}: the rows of a step from here on are no multiple of {size}"
        )
    ids = frame["prompt_id"].astype("object") + pd.Series([f"/{n}" for n in block], frame.index)
    return frame.assign(group_id=ids, sample=pd.array(place % size, dtype="Int64")), notes


def _codes(*columns: "pd.Series[Any] | None") -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return one number for each distinct combination, missing cells included."""
    present = [column for column in columns if column is not None]
    numbers = [
        pd.factorize(column.astype("object"), use_na_sentinel=False)[0] for column in present
    ]
    joined = pd.MultiIndex.from_arrays(numbers)
    return np.asarray(pd.factorize(joined)[0], dtype=np.int64)


def _changes(
    codes: "np.ndarray[tuple[int], np.dtype[np.int64]]",
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Tell for each row whether it differs from the one before; the first does."""
    return np.append(True, codes[1:] != codes[:-1])


def rows_of_lists(raw: Mapping[str, Any]) -> Iterable[Row] | None:
    """Return the rows of a table of lists, None where the object is a row itself."""
    prompts = raw.get("prompt")
    if not isinstance(prompts, list) or isinstance(raw.get("completion"), str):
        return None
    n_rows = len(prompts)
    lists = {k: v for k, v in raw.items() if isinstance(v, list) and len(v) == n_rows}
    return ({name: values[i] for name, values in lists.items()} for i in range(n_rows))


def _hook(role: str, value: object) -> dict[str, object]:
    if role == "stop_reason":
        return {"truncated": cut_by_limit(value), EXTRA + role: value}
    return {role: boolean(value) if role in ("truncated", "correct") else value}


def _is_nested(value: object) -> bool:
    return isinstance(value, list | dict)


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, str) and number(value) is not None
    except CellError:
        return False


def _text(value: object) -> str | None:
    """Return a text, the contents of messages, or their JSON where the contents are no texts."""
    text = text_of(value)
    if text is not None or not isinstance(value, list | dict):
        return text
    return json.dumps(value, sort_keys=True, default=str)
