"""NeMo RL training data: ``train_data_step{N}.jsonl``.

Read by the format's description (``nemo_rl/algorithms/grpo.py``): one object a trained sample with
content, rewards, filtered_rewards under dynamic sampling, input_lengths, token_ids,
token_loss_mask, sample_loss_mask, advantages. There is no group id: samples of one prompt are
those with the same tokens before the first trained one. Under dynamic sampling ``rewards`` is the
unfiltered vector and belongs to other rows. Neither truncation, times nor rejected samples.
"""

import re
from collections.abc import Sequence
from typing import Any

from dapolab.reading.lines import Row, Source, json_rows
from dapolab.records.builder import EXTRA
from dapolab.records.cells import CellError, text_hash, whole
from dapolab.records.draft import DESCRIPTION, Draft, Reading

BUILT_FROM = DESCRIPTION
FILE = re.compile(r"^train_data_step(\d+)\.jsonl(?:\.gz)?$")
_EXTRAS = ("sample_loss_mask", "idx")


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read the data of one or more steps.

    Raises
    ------
    ConfigError
        A sample without token_ids and token_loss_mask of one length, a broken cell.
    """
    filtered = False
    for source in sources:
        found = FILE.match(source.path.name)
        step = int(found.group(1)) if found else None
        for line, raw in json_rows(source):
            if not reading.filter.keeps(raw):
                continue
            try:
                row = _row(raw, step=step)
            except CellError as error:
                raise source.error(str(error), line=line) from None
            if row is None:
                raise source.error(
                    "no token_ids with a token_loss_mask of the same length: neither length nor "
                    "group can be told (older files have only content and rewards)",
                    line=line,
                )
            filtered = filtered or "filtered_rewards" in raw
            row["source"] = source.name
            reading.builder.add(row, source=source, line=line)
    frame = reading.table()
    reading.notes.append(
        "no group id: samples of a step with the same tokens before the first trained one form a "
        "group; truncation, times and rejected samples are not in the file"
    )
    if not filtered:
        return Draft(frame, reward_name="rewards", built_from=BUILT_FROM)
    reading.notes.append(
        "reward = filtered_rewards; rewards is the unfiltered vector of other rows and is not "
        "used. NeMo keeps samples, not groups: with a leave-one-out baseline the odd one of a "
        "group is missing"
    )
    return Draft(
        frame,
        selection="kept_mixed",
        why="filtered_rewards are written under dynamic sampling alone",
        reward_name="filtered_rewards",
        built_from=BUILT_FROM,
    )


def _row(raw: Row, *, step: int | None) -> dict[str, object] | None:
    tokens, mask = _flat(raw.get("token_ids")), _flat(raw.get("token_loss_mask"))
    if tokens is None or mask is None or len(tokens) != len(mask):
        return None
    length = whole(_one(raw.get("input_lengths")))
    n_all = len(tokens) if length is None else min(length, len(tokens))
    first = next((i for i, kept in enumerate(mask) if kept), n_all)
    prompt = text_hash(repr(tokens[:first]))
    row: dict[str, object] = {
        "prompt_id": prompt,
        "group_id": f"{prompt}@{'' if step is None else step}",
        "step": step,
        "n_tokens": sum(map(bool, mask)),
        "n_prompt_tokens": first,
        "reward": _one(raw.get("filtered_rewards", raw.get("rewards"))),
    }
    return row | {EXTRA + name: _one(raw[name]) for name in _EXTRAS if name in raw}


def _flat(value: Any) -> list[Any] | None:
    """Return a list of numbers, also where it stands alone in another list."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list) or any(isinstance(item, list | dict) for item in value):
        return None
    return value


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value
