"""All rules: one small function each, grouped by theme; a rule takes a Run and yields findings."""

from collections.abc import Callable, Iterator

from dapolab.check.findings import Finding
from dapolab.check.rules import (
    batch,
    clip,
    clip_range,
    correction,
    filter,
    kl,
    known,
    length,
    loss,
    nemo_loss,
    refused,
    sampling,
    updates,
)
from dapolab.check.run import Run

RULES: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    *known.RULES,
    *clip.RULES,
    *clip_range.RULES,
    *loss.RULES,
    *kl.RULES,
    *length.RULES,
    *filter.RULES,
    *batch.RULES,
    *refused.RULES,
    *updates.RULES,
    *sampling.RULES,
    *correction.RULES,
    *nemo_loss.RULES,
)
