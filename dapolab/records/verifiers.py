"""verifiers evaluation results: ``results.jsonl`` beside ``metadata.json``; prime-rl shares rows.

One object a rollout: example_id, prompt, completion, reward, is_truncated, metrics, timing,
token_usage. An evaluation saves every rollout, so the file holds all candidates.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dapolab.reading.lines import Row, Source, json_rows
from dapolab.records.builder import EXTRA
from dapolab.records.cells import (
    CellError,
    boolean,
    cut_by_limit,
    table_at,
    text_hash,
    text_id,
    whole,
)
from dapolab.records.draft import REAL_SAMPLE, Draft, Reading
from dapolab.records.tokens import text_of

BUILT_FROM = REAL_SAMPLE
# Metrics that mean "the answer is right", best first; used only where every value is 0 or 1.
CORRECT_METRICS = ("correct_answer", "correct", "is_correct", "acc", "accuracy")
_TEXTS = frozenset({"prompt", "completion"})
_USED = frozenset({"example_id", "reward", "is_truncated", "timing", "metrics", "token_usage"})


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read evaluation results; the cap and the environment come from ``metadata.json``.

    Raises
    ------
    ConfigError
        A row without example_id, or a cell that its column cannot hold.
    """
    rollouts = RolloutRows(reading)
    caps: set[int] = set()
    expected: set[int] = set()
    for source in sources:
        metadata = _metadata(source)
        env = text_id(metadata.get("env_id")) if _scalar(metadata.get("env_id")) else None
        cap = _setting(metadata, "sampling_args", "max_tokens")
        caps |= {cap} if cap else set()
        per_example = metadata.get("rollouts_per_example")
        expected |= {per_example} if isinstance(per_example, int) else set()
        rollouts.read(source, prefix=f"{env}/" if env else "")
    draft = rollouts.draft()
    draft.selection, draft.why = "all", "an evaluation saves every rollout"
    draft.cap_tokens = caps.pop() if len(caps) == 1 else None
    if len(expected) == 1:
        reading.notes += _uneven(draft, expected.pop())
    return draft


class RolloutRows:
    """Rows of the rollout object that verifiers and prime-rl share."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._metric: str | None = None
        self._n_turns_more = 0

    def read(
        self,
        source: Source,
        *,
        prefix: str = "",
        step: int | None = None,
        more: Callable[[Row], dict[str, object]] = lambda raw: {},
    ) -> None:
        """Add the rows of one file; ``prefix`` and ``step`` become part of the ids."""
        for line, raw in json_rows(source):
            if not self._reading.filter.keeps(_searchable(raw)):
                continue
            try:
                row = self._row(raw, prefix=prefix, step=step)
            except CellError as error:
                raise source.error(str(error), line=line) from None
            if "prompt_id" not in row:
                raise source.error("no example_id: rollouts cannot be grouped", line=line)
            row |= {"source": source.name, **more(raw)}
            self._reading.builder.add(row, source=source, line=line)

    def _row(self, raw: Row, *, prefix: str, step: int | None) -> dict[str, object]:
        row: dict[str, object] = {}
        for name, value in raw.items():
            if name in _TEXTS or name in _USED:
                continue
            if isinstance(value, dict):
                row.update((f"{EXTRA}{name}.{key}", inner) for key, inner in value.items())
            else:
                row[EXTRA + name] = value
        row |= {"reward": raw.get("reward"), "truncated": raw.get("is_truncated")}
        if row["truncated"] is None and "stop_condition" in raw:
            row["truncated"] = cut_by_limit(raw["stop_condition"])
        example = text_id(raw.get("example_id"))
        if example is not None:
            row["prompt_id"] = prefix + example
            row["group_id"] = prefix + example + ("" if step is None else f"@{step}")
        if step is not None:
            row["step"] = step
        self._add_metrics(row, raw.get("metrics"))
        self._add_lengths(row, raw)
        generation = table_at(table_at(raw, "timing"), "generation")
        row |= {"t_start_s": generation.get("start"), "t_end_s": generation.get("end")}
        return row

    def _add_metrics(self, row: dict[str, object], metrics: object) -> None:
        if not isinstance(metrics, dict):
            return
        row.update((f"{EXTRA}metrics.{name}", value) for name, value in metrics.items())
        if self._reading.options.correct_threshold is not None:
            return
        asked = self._reading.options.columns.get("correct")
        if self._metric is None:
            names = (asked.removeprefix("metrics."),) if asked else CORRECT_METRICS
            self._metric = next((name for name in names if name in metrics), None)
        if self._metric is not None and self._metric in metrics:
            row["correct"] = boolean(metrics[self._metric])

    def _add_lengths(self, row: dict[str, object], raw: Row) -> None:
        usage, completion = raw.get("token_usage"), raw.get("completion")
        turns = _turns(completion)
        self._n_turns_more += turns > 1
        text = text_of(completion)
        if text is not None:
            row[EXTRA + "output_chars"] = len(text)
            row[EXTRA + "output_hash"] = text_hash(text)
        if isinstance(usage, dict):
            row["n_tokens"] = usage.get("output_tokens")
            if turns <= 1:  # later turns count the earlier ones as input again
                row["n_prompt_tokens"] = usage.get("input_tokens")
        elif text is not None and self._reading.counter.active:
            row["n_tokens"] = self._reading.counter.of_text(text)

    def draft(self) -> Draft:
        """Return the rows read so far, with notes on turns and on where correctness comes from."""
        reading = self._reading
        frame = reading.table()
        if self._metric is not None:
            reading.notes.append(f"correct = metrics.{self._metric}")
        if self._n_turns_more:
            reading.notes.append(
                f"{self._n_turns_more} rollouts have several turns: n_tokens sums them, "
                "n_prompt_tokens is missing there"
            )
        if "n_tokens" not in frame or frame["n_tokens"].isna().all():
            reading.notes.append(reading.counter.describe())
        return Draft(frame, estimated=reading.counter.active)


def _searchable(raw: Row) -> Row:
    """Return the scalars of a rollout for ``--where``, nested ones under dotted names."""
    flat = {name: value for name, value in raw.items() if name not in _TEXTS}
    for name in ("info", "metrics"):
        inner = raw.get(name)
        if isinstance(inner, dict):
            flat.update((f"{name}.{key}", value) for key, value in inner.items())
    return flat


def _metadata(source: Source) -> dict[str, Any]:
    path = source.path
    beside = Path(path.parent) / path.name.replace("results.jsonl", "metadata.json")
    if beside == path or not beside.is_file():
        return {}
    try:
        found = json.loads(beside.read_bytes())
    except ValueError:
        source.notes.append(f"{beside.name} is not valid JSON and was not used")
        return {}
    return found if isinstance(found, dict) else {}


def _setting(metadata: dict[str, Any], table: str, name: str) -> int | None:
    inner = metadata.get(table)
    try:
        return whole(inner.get(name)) if isinstance(inner, dict) else None
    except CellError:
        return None


def _scalar(value: object) -> bool:
    return not isinstance(value, list | dict)


def _turns(completion: object) -> int:
    if not isinstance(completion, list):
        return 1
    return sum(
        1 for part in completion if isinstance(part, dict) and part.get("role") == "assistant"
    )


def _uneven(draft: Draft, expected: int) -> list[str]:
    if draft.frame.empty:
        return []
    sizes = draft.frame.groupby("group_id", sort=False).size()
    other = int((sizes != expected).sum())
    if not other:
        return []
    return [
        f"{other} of {len(sizes)} examples do not have the {expected} rollouts of metadata.json"
    ]
