"""verl rollout dumps: ``trainer.rollout_data_dir`` and ``validation_data_dir``, legacy and V1.

One ``{step}.jsonl`` a training step, one object a response: input, output, gts, score, step (verl
0.4 to 0.9.1, ``ray_trainer.py``), plus uid in V1 (0.9, ``trainer_base.py``). Special tokens are
skipped on decoding, so neither length in tokens nor truncation is in the file. Dumps hold the
trained batch alone: surplus and filtered groups are in no file.

``acc``, ``pred`` and the other extras of the legacy DAPO trainer are those of the last generation
batch, before filtering and reordering: not of their row. They are kept as extra columns and never
used. ``score`` belongs to its row, but is raw or shaped depending on the reward function.
"""

import re
from collections.abc import Sequence

import pandas as pd

from dapolab.reading.lines import Row, Source, json_rows
from dapolab.records.builder import EXTRA
from dapolab.records.cells import CellError, text_hash, text_id, whole
from dapolab.records.draft import DESCRIPTION, REAL_SAMPLE, Draft, Reading
from dapolab.records.tokens import text_of

BUILT_FROM = REAL_SAMPLE
BUILT_FROM_V1 = DESCRIPTION  # dumps with a uid: no real file was at hand
_UID = re.compile(r"^(.+)_(\d+)_(\d+)$")
_STEP_FILE = re.compile(r"^(\d+)\.jsonl(?:\.gz)?$")
_USED = frozenset({"input", "output", "score", "step", "uid"})
_SESSION, _OUTPUT = EXTRA + "session", EXTRA + "output_index"


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read one or more dumps.

    Raises
    ------
    ConfigError
        A row without input or step, a uid of another form, a score that is no number.
    """
    state = _Counts()
    for source in sources:
        found = _STEP_FILE.match(source.path.name)
        file_step = int(found.group(1)) if found else None
        for line, raw in json_rows(source):
            if not reading.filter.keeps(raw):
                continue
            if str(raw.get("uid", "")).startswith("pad"):
                state.padding += 1
                continue
            try:
                row = _row(raw, source=source, line=line, file_step=file_step, reading=reading)
            except CellError as error:
                raise source.error(str(error), line=line) from None
            state.n_uid += "uid" in raw
            state.misaligned = state.misaligned or "acc" in raw or "pred" in raw
            reading.builder.add(row, source=source, line=line)
    frame = reading.table()
    reading.notes += state.notes(len(frame))
    if state.n_uid:
        frame, notes = _number_outputs(frame)
        reading.notes += notes
    reading.notes += _repeated_prompts(frame)
    reading.notes.append(reading.counter.describe())
    built_from = BUILT_FROM_V1 if state.n_uid else BUILT_FROM
    return Draft(
        frame, estimated=reading.counter.active, reward_name="score", built_from=built_from
    )


class _Counts:
    """What is told to the user about the rows as a whole."""

    def __init__(self) -> None:
        self.padding = 0
        self.n_uid = 0
        self.misaligned = False

    def notes(self, n_rows: int) -> list[str]:
        found = []
        if self.padding:
            found.append(f"{self.padding} padding rows (uid pad…) were dropped")
        if 0 < self.n_uid < n_rows:
            found.append(f"uid present in {self.n_uid} of {n_rows} rows; the rest by input text")
        elif not self.n_uid:
            found.append("no uid: rows with the same input in a step form a group")
        if self.misaligned:
            found.append(
                "acc and pred are not used: with the legacy DAPO trainer they belong to other rows "
                "(last generation batch, unfiltered); correctness comes from score"
            )
        return found


def _row(
    raw: Row, *, source: Source, line: int, file_step: int | None, reading: Reading
) -> dict[str, object]:
    prompt, answer = text_of(raw.get("input")), text_of(raw.get("output"))
    if prompt is None:
        raise source.error("no input: groups are formed by the prompt's text", line=line)
    step = whole(raw.get("step", file_step))
    row: dict[str, object] = {
        EXTRA + name: value for name, value in raw.items() if name not in _USED
    }
    prompt_id = text_hash(prompt)
    row |= {
        "prompt_id": prompt_id,
        "group_id": prompt_id if step is None else f"{prompt_id}@{step}",
        "step": step,
        "reward": raw.get("score"),
        "source": source.name,
        EXTRA + "input_chars": len(prompt),
    }
    if answer is not None:
        row[EXTRA + "output_chars"] = len(answer)
        row[EXTRA + "output_hash"] = text_hash(answer)
        if reading.counter.active:
            row["n_tokens"] = reading.counter.of_text(answer)
            row["n_prompt_tokens"] = reading.counter.of_text(prompt)
    uid = text_id(raw.get("uid"))
    if uid is not None:
        parts = _UID.match(uid)
        if parts is None:
            raise source.error(f"uid {uid!r} is not PROMPT_SESSION_OUTPUT", line=line)
        row["group_id"] = parts.group(1)
        row |= {_SESSION: whole(parts.group(2)), _OUTPUT: whole(parts.group(3))}
    return row


def _number_outputs(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Make the session the sample; where a session has several outputs, their rank in order."""
    with_uid = frame[_SESSION].notna()
    keys = frame.loc[with_uid, ["group_id", _SESSION, _OUTPUT]].drop_duplicates()
    several = keys.duplicated(["group_id", _SESSION]).any()
    if not several:
        return frame.assign(sample=frame[_SESSION].astype("Int64")), []
    keys = keys.sort_values(["group_id", _SESSION, _OUTPUT])
    keys["sample"] = keys.groupby("group_id").cumcount().astype("Int64")
    joined = frame.merge(keys, on=["group_id", _SESSION, _OUTPUT], how="left")
    return joined, ["some sessions have several outputs: each output counts as a response"]


def _repeated_prompts(frame: pd.DataFrame) -> list[str]:
    """Tell when groups by text are twice the usual size: the prompt was drawn twice in a step."""
    sizes = frame.groupby("group_id", sort=False).size()
    usual = int(sizes.mode().min()) if len(sizes) else 0
    if usual < 2:
        return []
    n_multiples = int(((sizes > usual) & (sizes % usual == 0)).sum())
    if not n_multiples:
        return []
    return [
        f"{n_multiples} groups hold a multiple of the usual {usual} responses: the same prompt was "
        "probably drawn more than once in a step (DAPO-Math-17k repeats its prompts); without a "
        "uid they stay one group"
    ]
