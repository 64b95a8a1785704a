"""ms-swift completions: ``completions.jsonl`` of ``log_completions``.

Read by the format's description (``swift/rlhf_trainers/grpo_trainer.py``): each line is a table of
lists (step, prompt, completion, a list a reward function, advantages), in blocks of
num_generations; lines of single rows are read too. No token length, group, truncation or time.
"""

from collections.abc import Sequence

from dapolab.reading.lines import Source, json_rows
from dapolab.records.blocks import BlockRows, rows_of_lists
from dapolab.records.draft import DESCRIPTION, Draft, Reading

BUILT_FROM = DESCRIPTION


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read completions.

    Raises
    ------
    ConfigError
        A row without prompt, rows that are no blocks of one prompt.
    """
    rows = BlockRows(reading)
    for source in sources:
        for line, raw in json_rows(source):
            several = rows_of_lists(raw)
            for row in several if several is not None else (raw,):
                rows.add(row, source=source, line=line)
    return rows.draft(
        selection_note="with dynamic_sample the file holds the batch that was trained: kept "
        "groups, or the original batch where resampling failed"
    )
