"""TRL completions: ``completions/completions_{step:05d}.parquet`` of ``log_completions``.

Read by the format's description (``trl/trainer/grpo_trainer.py``): step, prompt, completion, a
column a reward function, columns of ``log_extra``, advantage. No token length, group, truncation
or time. Of each logging interval only the last generation batch is kept.
"""

from collections.abc import Sequence

from dapolab.reading.lines import Source, parquet_rows
from dapolab.records.blocks import BlockRows
from dapolab.records.draft import DESCRIPTION, Draft, Reading

BUILT_FROM = DESCRIPTION
COLUMNS = frozenset({"step", "prompt", "completion", "advantage"})


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read one or more completions tables.

    Raises
    ------
    ConfigError
        A file that is no Parquet, a row without prompt, rows that are no blocks of one prompt.
    """
    rows = BlockRows(reading)
    for source in sources:
        for line, raw in parquet_rows(source, lists=("prompt", "completion")):
            rows.add(raw, source=source, line=line)
    return rows.draft(
        selection_note="TRL filters nothing; of each logging interval the file holds the last "
        "generation batch alone"
    )
