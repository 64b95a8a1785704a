"""Evaluation files of agentic-rl-lab 06-dapo (``eval.py``): a problem and its generations a line.

Read by the format's description: ``{type: "problem", problem_id, problem, val_n, num_correct,
generations: [{correct, completion_tokens, stop_reason, …}]}`` and a summary line. Training writes
no rollouts. Every generation of the evaluation is in the file; times are not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dapolab.reading.lines import Row, Source, json_rows
from dapolab.records.builder import EXTRA
from dapolab.records.cells import (
    CellError,
    boolean,
    cut_by_limit,
    tables_at,
    text_hash,
    text_id,
    whole,
)
from dapolab.records.draft import DESCRIPTION, Draft, Reading

BUILT_FROM = DESCRIPTION
_EXTRAS = ("formatted", "stop_reason")


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read one or more evaluations.

    Raises
    ------
    ConfigError
        A problem without problem_id or whose generations are not as many as it says, a broken cell.
    """
    several = len(sources) > 1
    for source in sources:
        for line, raw in json_rows(source):
            if raw.get("type") != "problem" or not reading.filter.keeps(raw):
                continue
            prefix = f"{source.name}/" if several else ""
            try:
                found = _rows(raw, prefix=prefix)
            except CellError as error:
                raise source.error(str(error), line=line) from None
            for row in found:
                row["source"] = source.name
                reading.builder.add(row, source=source, line=line)
    frame = reading.table()
    why = "an evaluation saves every generation"
    return Draft(frame, selection="all", why=why, built_from=BUILT_FROM)


def _rows(raw: Row, *, prefix: str) -> list[dict[str, object]]:
    problem = text_id(raw.get("problem_id"))
    if problem is None:
        raise CellError("a problem without problem_id")
    generations = tables_at(raw, "generations")
    said = whole(raw.get("val_n"))
    if said is not None and said != len(generations):
        raise CellError(f"problem {problem}: val_n {said}, but {len(generations)} generations")
    return [
        {"prompt_id": prefix + problem, "group_id": prefix + problem, "sample": place}
        | _generation(generation)
        for place, generation in enumerate(generations)
    ]


def _generation(generation: Mapping[str, Any]) -> dict[str, object]:
    row: dict[str, object] = {
        "n_tokens": generation.get("completion_tokens"),
        "correct": boolean(generation.get("correct")),
        "truncated": cut_by_limit(generation.get("stop_reason")),
    }
    text = generation.get("text")
    if isinstance(text, str):
        row[EXTRA + "output_chars"] = len(text)
        row[EXTRA + "output_hash"] = text_hash(text)
    return row | {EXTRA + name: generation[name] for name in _EXTRAS if name in generation}
