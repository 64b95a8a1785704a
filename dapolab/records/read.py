"""From a path to checked records: detect, read, conclude, finish."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from dapolab.reading.lines import Source
from dapolab.reading.progress import ByteProgress
from dapolab.records import (
    areal,
    dapo_06,
    ms_swift,
    nemo_rl,
    open_instruct,
    prime_rl,
    slime,
    tabular,
    tinker,
    trl,
    verifiers,
    verl,
)
from dapolab.records.builder import EXTRA
from dapolab.records.detect import detect
from dapolab.records.draft import DESCRIPTION, Draft, Reading
from dapolab.records.judge import correct_from_reward, truncation_from_lengths
from dapolab.records.options import ReadOptions
from dapolab.records.outcomes import conclude_selection
from dapolab.records.schema import COLUMNS, Records, finish
from dapolab.records.tokens import token_counter
from dapolab.records.where import RowFilter
from dapolab.scenario import ConfigError

READERS: dict[str, Callable[[Sequence[Source], Reading], Draft]] = {
    "table": tabular.read,
    "verl": verl.read,
    "prime_rl": prime_rl.read,
    "verifiers": verifiers.read,
    "tinker": tinker.read,
    "trl": trl.read,
    "ms_swift": ms_swift.read,
    "open_instruct": open_instruct.read,
    "areal": areal.read,
    "nemo_rl": nemo_rl.read,
    "slime": slime.read,
    "dapo_06": dapo_06.read,
}
N_PARTIAL_SHOWN = 8


def read_records(path: str | Path, *, options: ReadOptions | None = None) -> Records:
    """Read a rollout dump, file or folder, into the one table.

    Memory stays near the table's own size: files are streamed, texts become a hash and a count.

    Parameters
    ----------
    path : a file, or a folder of a framework's own layout.
    options : what the user says about the file.

    Raises
    ------
    ConfigError
        Anything that makes the file unusable, in one line with file, line and what to do.
    """
    options = options or ReadOptions()
    path = Path(path)
    found = detect(path, format=options.format)
    reading = Reading(
        options=options,
        where=str(path),
        counter=token_counter(options),
        filter=RowFilter(options.where),
    )
    total = sum(file.stat().st_size for file in found.files)
    with ByteProgress(total, title=f"reading {path.name}", shown=options.progress) as progress:
        root = path if path.is_dir() else path.parent
        sources = [
            Source(file, file.relative_to(root).as_posix(), reading.notes, progress)
            for file in found.files
        ]
        draft = READERS[found.format](sources, reading)
    return _conclude(draft, reading, format=found.format)


def _conclude(draft: Draft, reading: Reading, *, format: str) -> Records:
    options, notes = reading.options, reading.notes
    table = draft.frame
    if table.empty:
        raise ConfigError(f"{reading.where}: no rows to read")
    if draft.built_from == DESCRIPTION:
        notes.insert(0, f"the {format} reader is built from the format's description: no real file")
    for name in ("reward", "correct", "truncated", "n_tokens", "kept"):
        if name not in table:
            table[name] = pd.Series(pd.NA, index=table.index, dtype=COLUMNS[name])
    notes += correct_from_reward(table, threshold=options.correct_threshold, name=draft.reward_name)
    cap_tokens, more = truncation_from_lengths(
        table,
        cap_tokens=options.cap_tokens if options.cap_tokens is not None else draft.cap_tokens,
        estimated=draft.estimated,
    )
    notes += more
    records = finish(
        table,
        selection="unknown",
        cap_tokens=cap_tokens,
        notes=notes,
        where=reading.where,
        format=format,
        built_from=draft.built_from,
    )
    selection, why = conclude_selection(
        records.table, declared=draft.selection, asked=options.selection, why=draft.why
    )
    return Records(
        table=records.table,
        selection=selection,
        cap_tokens=records.cap_tokens,
        notes=(*records.notes, *_partial(records.table), why),
        format=format,
        built_from=draft.built_from,
    )


def _partial(table: pd.DataFrame) -> list[str]:
    """Name the columns that only some rows have (mixed dict and number rewards, verl#1031)."""
    n_rows = len(table)
    partial = []
    for name in table.columns:
        present = int(table[name].notna().sum())
        if 0 < present < n_rows:
            partial.append(f"{name.removeprefix(EXTRA)} present in {present} of {n_rows}")
    if not partial:
        return []
    more = len(partial) - N_PARTIAL_SHOWN
    listed = ", ".join(partial[:N_PARTIAL_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return [f"missing cells stay missing: {listed}"]
