"""open-instruct rollouts: ``{run}_rollouts_{shard:06d}.jsonl`` of ``save_traces``.

Read by the format's description (``open_instruct/rl_utils.py``, RolloutRecord): one object a
response with step, prompt_idx (the place in the batch), prompt_tokens, response_tokens, reward,
finish_reason. Only the trained batch is written; no times. Where truncated responses were masked,
rows were dropped before they were numbered, so prompt_idx may join responses of two prompts.
"""

import re
from collections.abc import Sequence

from dapolab.reading.lines import Row, Source, json_rows
from dapolab.records.builder import EXTRA
from dapolab.records.cells import CellError, cut_by_limit, text_hash, text_id, whole
from dapolab.records.draft import DESCRIPTION, Draft, Reading
from dapolab.scenario import ConfigError

BUILT_FROM = DESCRIPTION
_FILE = re.compile(r"^(.+)_rollouts_\d+\.jsonl(?:\.gz)?$")
_EXTRAS = ("advantage", "finish_reason", "dataset")


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read rollout records.

    Raises
    ------
    ConfigError
        A record without prompt tokens or prompt_idx, a broken cell, a prompt_idx of two prompts.
    """
    prompts: dict[str, str] = {}
    found = {source.name: _FILE.search(source.path.name) for source in sources}
    runs = {name: f"{match.group(1)}/" if match else "" for name, match in found.items()}
    several = len(set(runs.values())) > 1
    for source in sources:
        for line, raw in json_rows(source):
            if not reading.filter.keeps(raw):
                continue
            try:
                row = _row(raw, run=runs[source.name] if several else "")
            except CellError as error:
                raise source.error(str(error), line=line) from None
            if row is None:
                raise source.error("no prompt_tokens or no prompt_idx", line=line)
            group, prompt = str(row["group_id"]), str(row["prompt_id"])
            if prompts.setdefault(group, prompt) != prompt:
                raise _misaligned(source, raw, line=line)
            row["source"] = source.name
            reading.builder.add(row, source=source, line=line)
    frame = reading.table()
    reading.notes.append(
        "open-instruct writes the trained batch: groups that were filtered are in no file, nor are "
        "times; a response is truncated where its finish_reason is the length, not where a tool "
        "loop ran out of budget"
    )
    return Draft(frame, built_from=BUILT_FROM)


def _misaligned(source: Source, raw: Row, *, line: int) -> ConfigError:
    return source.error(
        f"prompt_idx {raw.get('prompt_idx')} of step {raw.get('step')} joins two prompts "
        "(mask_truncated_completions drops rows before they are numbered, or a resumed run wrote "
        "the step again): groups cannot be told",
        line=line,
    )


def _row(raw: Row, *, run: str) -> dict[str, object] | None:
    tokens, answer = raw.get("prompt_tokens"), raw.get("response_tokens")
    place, step = whole(raw.get("prompt_idx")), whole(raw.get("step"))
    if not isinstance(tokens, list) or place is None:
        return None
    prompt = text_hash(f"{text_id(raw.get('dataset')) if _flat(raw) else ''}{tokens}")
    row: dict[str, object] = {
        "prompt_id": prompt,
        "group_id": f"{run}{place}@{'' if step is None else step}",
        "sample": raw.get("sample_idx"),
        "step": step,
        "n_prompt_tokens": len(tokens),
        "reward": raw.get("reward"),
        "truncated": cut_by_limit(raw.get("finish_reason")),
    }
    if isinstance(answer, list):
        row["n_tokens"] = len(answer)
    return row | {EXTRA + name: raw[name] for name in _EXTRAS if name in raw}


def _flat(raw: Row) -> bool:
    return not isinstance(raw.get("dataset"), list | dict)
