"""AReaL dumps: ``{dump_dir}/{version}/{task_id}.jsonl``.

Read by the format's description (``infra/workflow_executor.py``): one file a task, one object a
sample with task_id, sample_idx, seqlen, prompt_len, head_version, tail_version, reward, prompt,
completion. Rejected groups are written too. Neither truncation nor times are.
"""

from collections.abc import Sequence

from dapolab.reading.lines import Row, Source, json_rows
from dapolab.records.builder import EXTRA
from dapolab.records.cells import CellError, text_hash, text_id, whole
from dapolab.records.draft import DESCRIPTION, Draft, Reading
from dapolab.records.tokens import text_of

BUILT_FROM = DESCRIPTION


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read the files of one or more versions; a task's samples may end at different versions.

    Raises
    ------
    ConfigError
        A sample without task_id, one longer in prompt than in all, a broken cell.
    """
    for source in sources:
        for line, raw in json_rows(source):
            if not reading.filter.keeps(raw):
                continue
            try:
                row = _row(raw)
            except CellError as error:
                raise source.error(str(error), line=line) from None
            if row is None:
                raise source.error("no task_id: samples cannot be grouped", line=line)
            row["source"] = source.name
            reading.builder.add(row, source=source, line=line)
    frame = reading.table()
    reading.notes.append(
        "step is the version that ended a sample; truncation and times are not in the file (--cap "
        "N marks responses of that length)"
    )
    why = "AReaL writes rejected groups too"
    return Draft(frame, selection="all", why=why, built_from=BUILT_FROM)


def _row(raw: Row) -> dict[str, object] | None:
    task = text_id(raw.get("task_id"))
    if task is None:
        return None
    whole_length, prompt_length = whole(raw.get("seqlen")), whole(raw.get("prompt_len"))
    row: dict[str, object] = {
        "group_id": task,
        "sample": raw.get("sample_idx"),
        "step": raw.get("tail_version"),
        "n_prompt_tokens": prompt_length,
        "reward": raw.get("reward"),
        EXTRA + "head_version": raw.get("head_version"),
    }
    prompt = text_of(raw.get("prompt"))
    if prompt is not None:
        row["prompt_id"] = text_hash(prompt)
    else:
        row["prompt_id"] = task
    if whole_length is not None and prompt_length is not None:
        if whole_length < prompt_length:
            raise CellError(f"seqlen {whole_length} is less than prompt_len {prompt_length}")
        row["n_tokens"] = whole_length - prompt_length
    return row
