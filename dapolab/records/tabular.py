"""Plain tables: CSV, TSV, JSON lines or Parquet with a row a response, a group, or a prompt.

The set or run column becomes part of the ids, so runs of the same prompt are never merged. Also
reads what ``write_records`` writes.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.parquet as pq

from dapolab.reading.lines import PARQUET_MAGIC, Row, Source, magic, rows
from dapolab.records.builder import EXTRA
from dapolab.records.cells import (
    CellError,
    boolean,
    cut_by_limit,
    flatten,
    is_missing,
    number,
    text_hash,
    text_id,
    whole,
)
from dapolab.records.columns import ColumnMap
from dapolab.records.counts import expand_counts, settle_counts
from dapolab.records.draft import REAL_SAMPLE, Draft, Reading
from dapolab.records.schema import COLUMNS
from dapolab.records.tokens import text_of
from dapolab.records.write import METADATA_KEY, read_metadata

BUILT_FROM = REAL_SAMPLE
N_FIRST_ROWS = 500
_WIDE = re.compile(r"^(?:e|ep|epoch|s|step|iter|iteration)[_-]?(\d+)$")
_COPIED: tuple[str, ...] = (
    *("sample", "step", "wave", "n_tokens", "n_prompt_tokens", "reward", "truncated", "kept"),
    *("t_start_s", "t_end_s", "n_samples", "n_correct", "pass_rate"),
)
# Roles whose column is also kept as an extra: the computation loses something.
_ALSO_EXTRA = ("set", "chars", "stop_reason", "cap_tokens")


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read plain tables into one draft.

    Raises
    ------
    ConfigError
        No id or no measure among the columns, a cell that its column cannot hold, counts that do
        not fit.
    """
    table = _Table(reading)
    for source in sources:
        table.read(source)
    reading.notes += reading.filter.notes(where=reading.where)
    return table.draft()


class _Table:
    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.columns: ColumnMap | None = None
        self.asked: dict[str, str] = {}
        self.seen: dict[str, None] = {}
        self.copied: list[tuple[str, str]] = []
        self.sets: dict[str, int] = {}
        self.caps: tuple[int, int] | None = None
        self.wide: dict[str, int] = {}
        self.written = False
        self.stored: dict[str, Any] = {}

    def read(self, source: Source) -> None:
        stream = ((line, flatten(row)) for line, row in rows(source))
        first = list(itertools.islice(stream, N_FIRST_ROWS))
        if not first:
            raise source.error("no rows to read")
        seen = list(dict.fromkeys(itertools.chain.from_iterable(row for _, row in first)))
        if self.columns is None:
            self._decide(seen, source)
        for line, row in self._wanted(itertools.chain(first, stream)):
            if self.wide:
                self._add_wide(row, source=source, line=line)
            else:
                self._add(row, source=source, line=line)

    def _wanted(self, stream: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
        return ((line, row) for line, row in stream if self.reading.filter.keeps(row))

    def _decide(self, seen: list[str], source: Source) -> None:
        reading = self.reading
        self.written = set(COLUMNS) <= set(seen)
        asked = dict(reading.options.columns)
        if self.written:
            asked = {name: name for name in COLUMNS if name != "source"} | {"set": ""} | asked
            if magic(source.path) == PARQUET_MAGIC:
                stored = pq.read_schema(source.path).metadata or {}
                self.stored = read_metadata(stored.get(METADATA_KEY))
        columns = ColumnMap(seen, asked=asked, where=source.name)
        self.asked, self.seen = asked, dict.fromkeys(seen)
        wide = {name: int(m.group(1)) for name in seen if (m := _WIDE.match(name.lower()))}
        if len(wide) >= 2 and columns.has("prompt_id") and not columns.has("n_tokens", "correct"):
            self.wide = wide
            reading.notes.append(f"{len(wide)} columns of pass rates ({seen[1]} …) read as steps")
        else:
            columns.check(seen, where=source.name)
        self.columns, self.copied = columns, self._copies(columns)

    def _notice(self, raw: Row) -> None:
        """Give a key that appears late (sparse JSON lines) the role that is still free."""
        assert self.columns is not None
        if raw.keys() <= self.seen.keys():
            return
        self.seen.update(dict.fromkeys(raw))
        later = ColumnMap(self.seen, asked=self.asked, where=self.reading.where)
        for role, name in later.of_role.items():
            self.columns.of_role.setdefault(role, name)
        self.copied = self._copies(self.columns)

    def _copies(self, columns: ColumnMap) -> list[tuple[str, str]]:
        """Return (name in the file, name in the table) of the cells that are taken as they are."""
        roles = columns.of_role
        used = {name for role, name in roles.items() if role not in _ALSO_EXTRA}
        used |= {"source"} if self.written else set()
        extras = [(name, _extra(name)) for name in self.seen if name not in used]
        return extras + [(roles[role], role) for role in _COPIED if role in roles]

    def _add(self, raw: Row, *, source: Source, line: int) -> None:
        self._notice(raw)
        assert self.columns is not None
        row: dict[str, object] = {key: raw[name] for name, key in self.copied if name in raw}
        try:
            self._add_computed(row, raw)
            self._add_ids(row, raw)
        except CellError as error:
            raise source.error(str(error), line=line) from None
        row["source"] = raw.get("source", source.name) if self.written else source.name
        self.reading.builder.add(row, source=source, line=line)

    def _add_computed(self, row: dict[str, object], raw: Row) -> None:
        """Fill what follows from a cell by a rule: correctness, truncation, lengths from text."""
        assert self.columns is not None
        roles, counter = self.columns.of_role, self.reading.counter
        if "correct" in roles:
            threshold = self.reading.options.correct_threshold
            row["correct"] = _correct(raw.get(roles["correct"]), threshold, roles["correct"])
        if "stop_reason" in roles and "truncated" not in roles:
            row["truncated"] = cut_by_limit(raw.get(roles["stop_reason"]))
        if "cap_tokens" in roles and (cap := whole(raw.get(roles["cap_tokens"]))) is not None:
            low, high = self.caps or (cap, cap)
            self.caps = (min(low, cap), max(high, cap))
        if "text" in roles and (text := text_of(raw.get(roles["text"]))) is not None:
            row[EXTRA + "output_chars"] = len(text)
            row[EXTRA + "output_hash"] = text_hash(text)
            if "n_tokens" not in roles and counter.active:
                row["n_tokens"] = counter.of_text(text)
        elif "chars" in roles and "n_tokens" not in roles:
            chars = whole(raw.get(roles["chars"]))
            row["n_tokens"] = None if chars is None else counter.of_chars(chars)

    def _add_ids(self, row: dict[str, object], raw: Row) -> None:
        """Form ``set/prompt`` and ``set/group@step``."""
        assert self.columns is not None
        roles = self.columns.of_role
        prompt = text_id(raw.get(roles["prompt_id"])) if "prompt_id" in roles else None
        group = text_id(raw.get(roles["group_id"])) if "group_id" in roles else None
        text = text_of(raw.get(roles["prompt_text"])) if "prompt_text" in roles else None
        if text is not None:
            row[EXTRA + "input_chars"] = len(text)
            if "prompt_id" not in roles:
                prompt = text_hash(text)
        if self.written:
            row["prompt_id"], row["group_id"] = prompt, group
            return
        prefix = ""
        if "set" in roles:
            name = text_id(raw.get(roles["set"])) or "(none)"
            self.sets[name] = self.sets.get(name, 0) + 1
            prefix = name + "/"
        if prompt is not None:
            row["prompt_id"] = prefix + prompt
        within = group if group is not None else prompt
        if within is not None:
            step = whole(raw.get(roles["step"])) if "step" in roles else None
            row["group_id"] = prefix + within + ("" if step is None else f"@{step}")

    def _add_wide(self, raw: Row, *, source: Source, line: int) -> None:
        base = {name: value for name, value in raw.items() if name not in self.wide}
        for name, step in self.wide.items():
            if is_missing(raw.get(name)):
                continue
            row: dict[str, object] = {}
            self._add_ids(row, base)
            row |= {"step": step, "pass_rate": raw[name], "source": source.name}
            row["group_id"] = f"{row['prompt_id']}@{step}"
            self.reading.builder.add(row, source=source, line=line)

    def draft(self) -> Draft:
        """Expand counts, and say what was found."""
        reading, columns = self.reading, self.columns
        assert columns is not None
        frame = reading.builder.frame()
        reading.notes += reading.builder.notes()
        if not self.written:
            reading.notes.insert(0, columns.describe())
        if self.wide or columns.counts:
            frame, notes = settle_counts(
                frame, group_size=reading.options.group_size, where=reading.where
            )
            frame, more = expand_counts(frame)
            reading.notes += notes + more
        if len(self.sets) > 1:
            name = columns.of_role["set"]
            listed = ", ".join(f"{key} ({n})" for key, n in itertools.islice(self.sets.items(), 8))
            reading.notes.append(
                f"{len(self.sets)} sets in column {name}, kept apart: {listed}; to read one, "
                f"--where {name}=VALUE"
            )
        estimated = self._length_notes(columns)
        return Draft(
            frame=frame,
            selection=self.stored.get("selection"),
            why="as written in the file" if self.stored else "",
            cap_tokens=self.caps[1] if self.caps else self.stored.get("cap_tokens"),
            estimated=estimated,
            reward_name=columns.of_role.get("reward", "reward"),
        )

    def _length_notes(self, columns: ColumnMap) -> bool:
        notes = self.reading.notes
        if self.caps and self.caps[0] != self.caps[1]:
            notes.append(f"the cap differs by row: {self.caps[0]} to {self.caps[1]} tokens")
        name = columns.of_role.get("n_tokens", "")
        if name.lower().startswith("est"):
            notes.append(f"n_tokens is an estimate of the file's author (column {name})")
        if name:
            return name.lower().startswith("est")
        if columns.has("text", "chars"):
            notes.append(self.reading.counter.describe())
            return self.reading.counter.active
        notes.append("no lengths in the file: only difficulty can be fitted")
        return False


def _extra(name: str) -> str:
    return name if name.startswith(EXTRA) else EXTRA + name


def _correct(value: object, threshold: float | None, name: str) -> bool | None:
    try:
        if threshold is None:
            return boolean(value)
        read = number(value)
    except CellError as error:
        raise CellError(
            f"{name}: {error}; say --correct-threshold X, or --columns pass_rate={name} where a "
            "row is a group"
        ) from None
    return None if read is None else read > threshold
