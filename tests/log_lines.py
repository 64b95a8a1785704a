"""Lines as the frameworks print them, written out by hand from their sources."""

from pathlib import Path

from dapolab.logs import LogOptions, StepTable, read_log

FIELD_CASE = """\
(TaskRunner pid=4242) step:0 - val-core/math/acc/mean@4:0.125 - val-aux/math/reward/std@4:nan
(TaskRunner pid=4242) num_prompt_in_batch=5 < prompt_bsz=16
(TaskRunner pid=4242) num_gen_batches=1. Keep generating...
Training Progress:   0%|          | 6/1165 [05:12<16:44:00, 51.98s/it]
(TaskRunner pid=4242) num_prompt_in_batch=11 < prompt_bsz=16
(TaskRunner pid=4242) num_gen_batches=2. Keep generating...
(TaskRunner pid=4242) step:7 - actor/pg_loss:-0.002 - actor/ppo_kl:-8.1e-06 - \
actor/grad_norm:nan - critic/score/mean:-0.25 - response_length/clip_ratio:0.0625 - \
timing_s/gen:41.7 - timing_s/step:63.2 - train/num_gen_batches:3
"""


def verl_line(step: int, *, pid: int | None = 7, **values: float) -> str:
    """One step line; ``timing_s__gen=1.5`` becomes ``timing_s/gen:1.5``."""
    prefix = f"(TaskRunner pid={pid}) " if pid is not None else ""
    pieces = [f"{name.replace('__', '/')}:{value}" for name, value in values.items()]
    return prefix + " - ".join([f"step:{step}", *pieces]) + "\n"


def read_text(folder: Path, text: str | bytes, name: str = "a.log", **options: object) -> StepTable:
    """Write a log and read it."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_log(path, options=LogOptions(**options))  # type: ignore[arg-type]


def column(table: StepTable, name: str) -> list[float | None]:
    """A column with None where it is missing."""
    return [None if value != value else float(value) for value in table.frame[name]]


def has_note(table: StepTable, *words: str) -> bool:
    """Whether one note has all the words."""
    return any(all(word in note for word in words) for note in table.notes)
