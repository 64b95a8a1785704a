"""tinker-cookbook rollout summaries: ``iteration_N/*_rollout_summaries.jsonl``.

Read by the format's description (``rl/rollout_logging.py``): one object a trajectory with split,
iteration, group_idx, traj_idx, total_reward and steps of observation and action lengths. In
synchronous training the file is written before constant groups are removed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dapolab.reading.lines import Row, Source, json_rows
from dapolab.records.builder import EXTRA
from dapolab.records.cells import CUT_WORDS, CellError, table_at, tables_at, text_id, whole
from dapolab.records.draft import DESCRIPTION, Draft, Reading

BUILT_FROM = DESCRIPTION
_EXTRAS = ("split", "sampling_client_step", "final_reward", "final_ob_len")


def read(sources: Sequence[Source], reading: Reading) -> Draft:
    """Read rollout summaries.

    Raises
    ------
    ConfigError
        A row without group_idx, or a cell that its column cannot hold.
    """
    n_multi = 0
    for source in sources:
        for line, raw in json_rows(source):
            if not reading.filter.keeps(raw):
                continue
            try:
                row = _row(raw)
            except CellError as error:
                raise source.error(str(error), line=line) from None
            if row is None:
                raise source.error("no group_idx: rollouts cannot be grouped", line=line)
            row["source"] = source.name
            n_multi += isinstance(raw.get("steps"), list) and len(raw["steps"]) > 1
            reading.builder.add(row, source=source, line=line)
    frame = reading.table()
    if n_multi:
        reading.notes.append(f"{n_multi} trajectories have several steps: n_tokens sums them")
    why = "written before constant groups are removed (synchronous training; else --selection)"
    return Draft(frame, selection="all", why=why, reward_name="total_reward", built_from=BUILT_FROM)


def _row(raw: Row) -> dict[str, object] | None:
    group = text_id(raw.get("group_idx"))
    if group is None:
        return None
    split = text_id(raw.get("split")) or "train"
    iteration = whole(raw.get("iteration"))
    steps = tables_at(raw, "steps")
    row: dict[str, object] = {
        "group_id": f"{split}/{group}@{'' if iteration is None else iteration}",
        "sample": raw.get("traj_idx"),
        "step": iteration,
        "reward": raw.get("total_reward"),
        "truncated": _truncated(raw, steps),
    }
    lengths = [whole(step.get("ac_len")) for step in steps]
    if steps and None not in lengths:
        row["n_tokens"] = sum(length for length in lengths if length is not None)
        row["n_prompt_tokens"] = steps[0].get("ob_len")
    for name in _EXTRAS:
        if name in raw:
            row[EXTRA + name] = raw[name]
    tags = raw.get("tags")
    if isinstance(tags, list):
        row[EXTRA + "tags"] = ",".join(str(tag) for tag in tags)
    row.update(
        (f"{EXTRA}{name}", value) for name, value in table_at(raw, "trajectory_metrics").items()
    )
    return row


def _truncated(raw: Row, steps: Sequence[Mapping[str, Any]]) -> bool | None:
    """Read the metrics ``stop/<reason>``; None where there are none."""
    metrics = [table_at(raw, "trajectory_metrics"), *(table_at(step, "metrics") for step in steps)]
    reasons = {
        name.removeprefix("stop/").lower(): bool(value)
        for table in metrics
        for name, value in table.items()
        if name.startswith("stop/") and value
    }
    if not reasons:
        return None
    return any(reason in CUT_WORDS for reason in reasons)
