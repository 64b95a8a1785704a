"""Every candidate of every step on disk, in the columns of ``dapolab.records``.

While the run goes on each step has a file of its own; at the end they become one. An aborted
response has no length: ``n_tokens``, ``correct`` and ``truncated`` are missing there and what it
had written is ``extra/generated_tokens``.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dapolab.store import atomic_write
from gpu_runs.checkpoint import remove_unfinished
from gpu_runs.evaluate import Evaluated
from gpu_runs.rollout import Rollout
from gpu_runs.score import Score
from gpu_runs.slots import Completion
from gpu_runs.task import Problem

METADATA_KEY = b"dapolab.records"
"""Where ``dapolab.records`` looks for what the file says of itself (its ``write.METADATA_KEY``)."""

_TEXT, _INT, _REAL, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
SCHEMA = pa.schema(
    [
        ("prompt_id", _TEXT),
        ("group_id", _TEXT),
        ("sample", _INT),
        ("step", _INT),
        ("wave", _INT),
        ("n_tokens", _INT),
        ("n_prompt_tokens", _INT),
        ("reward", _REAL),
        ("correct", _BOOL),
        ("truncated", _BOOL),
        ("kept", _BOOL),
        ("t_start_s", _REAL),
        ("t_end_s", _REAL),
        ("source", _TEXT),
        ("extra/finish", _TEXT),
        ("extra/status", _TEXT),
        ("extra/position", _INT),
        ("extra/sampler_version", _INT),
        ("extra/stratum", _TEXT),
        ("extra/difficulty", _INT),
        ("extra/generated_tokens", _INT),
        ("extra/filler", _INT),
        ("extra/answer", _TEXT),
        ("extra/surprisal", _REAL),
        ("extra/t_submit_s", _REAL),
    ]
)


def rows(rollout: Rollout, *, source: str, version: int) -> pa.Table:
    """Return one row a response that was asked for; times count from the start of the step.

    Parameters
    ----------
    source : name of the run.
    version : of the weights that sampled, in trained steps.
    """
    found = []
    for candidate in rollout.candidates:
        shared = _prompt(candidate.problem, step=rollout.step, source=source) | {
            "group_id": f"{rollout.step}/{candidate.position}",
            "wave": candidate.wave,
            "kept": candidate.status == "trained",
            "extra/status": candidate.status,
            "extra/position": candidate.position,
            "extra/sampler_version": version,
        }
        pairs = zip(candidate.completions, candidate.scores, strict=True)
        for sample, (completion, score) in enumerate(pairs):
            own = _response(completion, score, start_s=rollout.start_s)
            found.append(shared | {"sample": sample} | own)
    return pa.Table.from_pylist(found, schema=SCHEMA)


def heldout_rows(found: Evaluated, *, step: int, source: str) -> pa.Table:
    """Return the answers to the held-out set in the same columns, without times."""
    rows = []
    for index, problem in enumerate(found.problems):
        shared = _prompt(problem, step=step, source=source) | {
            "group_id": f"{step}/{index}",
            "extra/status": "heldout",
            "extra/position": index,
            "extra/sampler_version": step,
        }
        pairs = zip(found.completions[index], found.scores[index], strict=True)
        for sample, (completion, score) in enumerate(pairs):
            own = _response(completion, score, start_s=completion.submit_s)
            rows.append(shared | {"sample": sample} | own)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _prompt(problem: Problem, *, step: int, source: str) -> dict[str, Any]:
    return {
        "prompt_id": str(problem.id),
        "step": step,
        "n_prompt_tokens": len(problem.prompt),
        "source": source,
        "extra/stratum": problem.stratum,
        "extra/difficulty": problem.difficulty,
    }


def _response(
    completion: Completion | None, score: Score | None, *, start_s: float
) -> dict[str, Any]:
    if completion is None:  # its group was never handed to the engine
        return {"extra/finish": "abort", "extra/generated_tokens": 0}
    n_tokens = len(completion.tokens)
    row: dict[str, Any] = {
        "extra/finish": completion.finish,
        "extra/generated_tokens": n_tokens,
        "extra/t_submit_s": completion.submit_s - start_s,
        "t_start_s": completion.start_s - start_s,
        "t_end_s": completion.end_s - start_s,
    }
    if score is None:
        return row
    return row | {
        "n_tokens": n_tokens,
        "reward": score.reward,
        "correct": score.right,
        "truncated": completion.finish == "length",
        "extra/filler": score.filler,
        "extra/answer": None if score.answer is None else str(score.answer),
        "extra/surprisal": -sum(completion.logprobs) / n_tokens,
    }


class Dump:
    """The files of one kind of table while a run goes on: one a step, then one for all.

    Parameters
    ----------
    folder : of the run.
    name : of the table: ``NAME/000012.parquet``, at the end ``NAME.parquet``.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.parts, self.whole = folder / name, folder / f"{name}.parquet"

    def write(self, table: pa.Table, *, step: int) -> None:
        """Write the table of one step."""
        atomic_write(self.parts / f"{step:06d}.parquet", _bytes(table))

    def cut(self, n_steps: int) -> None:
        """Delete what belongs to a step from ``n_steps`` on, and what a kill left half written."""
        remove_unfinished(self.parts)
        for path in self._files():
            if int(path.stem) >= n_steps:
                path.unlink()
        if self.whole.is_file():
            table = pq.ParquetFile(self.whole).read()
            kept = table.filter(pc.less(table["step"], n_steps))
            if kept.num_rows < table.num_rows:
                atomic_write(self.whole, _bytes(kept))

    def join(self, describe: Callable[[pa.Table], dict[str, Any]] = lambda table: {}) -> None:
        """Make one file of all; what ``describe`` says of it goes into its metadata."""
        files = self._files()
        tables = [pq.ParquetFile(path).read() for path in files]
        if tables and self.whole.is_file():
            before = pq.ParquetFile(self.whole).read()
            # a kill between the next two lines leaves the parts and the whole, with the same rows
            first = int(files[0].stem)
            tables.insert(0, before.filter(pc.less(before["step"], first)))
        if tables:
            table = pa.concat_tables(tables)
            said = {METADATA_KEY: json.dumps(describe(table)).encode()}
            table = table.replace_schema_metadata(said)
            atomic_write(self.whole, _bytes(table))
        for path in files:
            path.unlink()
        if self.parts.is_dir():
            self.parts.rmdir()

    def _files(self) -> list[Path]:
        return sorted(self.parts.glob("[0-9]*.parquet"))


def about(table: pa.Table, *, cap_tokens: int) -> dict[str, Any]:
    """Say of a dump which candidates it holds: without the aborted ones it is short-biased."""
    aborted = bool(pc.any(pc.equal(table["extra/finish"], "abort")).as_py())
    selection = "kept_first_finished" if aborted else "all"
    return {"selection": selection, "cap_tokens": cap_tokens}


def _bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()
