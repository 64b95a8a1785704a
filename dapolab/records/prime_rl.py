"""prime-rl rollouts: ``step_N/train_rollouts.jsonl``, and the newer ``traces.jsonl``.

``train_rollouts.jsonl`` holds verifiers rollout objects (a real sample was seen). ``traces.jsonl``
(``rollouts/step_N/{train,eval}/{all,effective}/``) is read by its description
(``monitors/file.py``): one episode a line with group, run.work.step, traces of message nodes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dapolab.reading.lines import Row, Source, json_rows
from dapolab.records.builder import EXTRA
from dapolab.records.cells import CellError, cut_by_limit, number, table_at, tables_at, text_id
from dapolab.records.draft import DESCRIPTION, REAL_SAMPLE, Draft, Reading
from dapolab.records.options import Selection
from dapolab.records.verifiers import RolloutRows

BUILT_FROM = REAL_SAMPLE
BUILT_FROM_TRACES = DESCRIPTION
_STEP_FOLDER = re.compile(r"^step_(\d+)$")
_EPISODE = ("ok", "env")


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read either layout; files of both kinds cannot be mixed in one call.

    Raises
    ------
    ConfigError
        A rollout without example_id or an episode without group or task, a broken cell, both kinds
        of files at once.
    """
    kinds = {"traces" in first for first in map(_first_row, sources) if first}
    if len(kinds) > 1:
        raise sources[0].error("train_rollouts and traces files side by side: give one kind")
    draft = _read_traces(sources, reading) if True in kinds else _read_rollouts(sources, reading)
    draft.selection, draft.why = _declared(sources)
    return draft


def _read_rollouts(sources: Sequence[Source], reading: Reading) -> Draft:
    rollouts = RolloutRows(reading)
    for source in sources:
        rollouts.read(source, step=_step(source))
    return rollouts.draft()


def _read_traces(sources: Sequence[Source], reading: Reading) -> Draft:
    for source in sources:
        for line, episode in json_rows(source):
            if not reading.filter.keeps(episode):
                continue
            try:
                found = _episode_rows(episode, source=source, line=line)
            except CellError as error:
                raise source.error(str(error), line=line) from None
            for row in found:
                reading.builder.add(row, source=source, line=line)
    frame = reading.table()
    return Draft(frame, built_from=BUILT_FROM_TRACES)


def _episode_rows(episode: Row, *, source: Source, line: int) -> list[dict[str, object]]:
    task, group = table_at(episode, "task"), table_at(episode, "group")
    work = table_at(table_at(episode, "run"), "work")
    prompt = text_id(task.get("key")) or text_id(task.get("hash"))
    group_id = text_id(group.get("id"))
    if prompt is None and group_id is None:
        raise source.error("an episode without group.id, task.key or task.hash", line=line)
    step = work.get("step", _step(source))
    common: dict[str, object] = {"source": source.name, "step": step}
    common["prompt_id"] = prompt if prompt is not None else group_id
    common["group_id"] = group_id if group_id is not None else f"{prompt}@{step}"
    for name in _EPISODE:
        if name in episode:
            common[EXTRA + name] = episode[name]
    for end in ("start", "end"):
        if end in table_at(work, "policy"):
            common[f"{EXTRA}policy.{end}"] = table_at(work, "policy")[end]
    if "effective" in source.path.parts[-2:-1]:
        common["kept"] = True
    return [common | _trace_row(trace) for trace in tables_at(episode, "traces")]


def _trace_row(trace: Mapping[str, Any]) -> dict[str, object]:
    nodes = tables_at(trace, "nodes")
    masks = [node["mask"] for node in nodes if isinstance(node.get("mask"), list)]
    row: dict[str, object] = {"reward": _weighted(trace.get("rewards"))}
    if masks:
        row["n_tokens"] = sum(sum(map(bool, mask)) for mask in masks)
        row["n_prompt_tokens"] = _prompt_tokens(nodes)
    row["truncated"] = cut_by_limit(trace.get("stop_condition"))
    agent = table_at(table_at(trace, "timing"), "agent")
    row |= {"t_start_s": agent.get("start"), "t_end_s": agent.get("end")}
    row.update((f"{EXTRA}metrics.{k}", v) for k, v in table_at(trace, "metrics").items())
    for name in ("is_completed", "stop_condition"):
        row[EXTRA + name] = trace.get(name)
    return row


def _prompt_tokens(nodes: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the tokens before the first sampled node; None where token ids are absent."""
    n_tokens = 0
    for node in nodes:
        mask, ids = node.get("mask"), node.get("token_ids")
        if isinstance(mask, list) and any(mask):
            return n_tokens
        if not isinstance(ids, list):
            return None
        n_tokens += len(ids)
    return n_tokens


def _weighted(rewards: object) -> float | None:
    """Return Σ score·weight over the named rewards; a weight not given counts as 1."""
    if not isinstance(rewards, dict) or not rewards:
        return None
    total = 0.0
    for part in rewards.values():
        score = number(part.get("score") if isinstance(part, dict) else part)
        weight = number(part.get("weight", 1.0)) if isinstance(part, dict) else 1.0
        if score is None or weight is None:
            return None
        total += score * weight
    return total


def _declared(sources: Sequence[Source]) -> tuple[Selection | None, str]:
    folders = {source.path.parent.name for source in sources}
    if folders == {"all"}:
        return "all", "the folder all/ includes rejected rollouts"
    if folders == {"effective"}:
        return "kept_mixed", "the folder effective/ holds rollouts with an advantage other than 0"
    return None, ""


def _step(source: Source) -> int | None:
    for folder in reversed(source.path.parts[:-1]):
        found = _STEP_FOLDER.match(folder)
        if found:
            return int(found.group(1))
    return None


def _first_row(source: Source) -> Row:
    quiet = Source(source.path, source.name, [], source.progress)
    for _, row in json_rows(quiet):
        return row
    return {}
