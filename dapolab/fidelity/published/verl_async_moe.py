"""verl's fully asynchronous trainer on Qwen3-30B-A3B: 498 s a step colocated, 283 on 96:32.

Published (verl docs/advance/fully_async.md, "30B Model Mode Experiment"): GRPO, cap 8k, n 16,
128 H20; colocated generation 348 s; asynchronous wait 22, reference 50 and update 207 s of a step
of 283. From recipe/fully_async_policy/shell/grpo_30b_a3b_base_math_megatron_96_32.sh: 4 GPUs a
replica, 4 fetches of one mini-batch of 128 prompts, staleness 0.5. The same page has 4.4 and 15.8 s
for a weight sync of this model, with and without its checkpoint engine; which of them ran is not
said. The law is an H100's; its scalar is fitted to the 348 s.
"""

from collections.abc import Mapping
from functools import cache

from dapolab.fidelity.published.lengths import UNPUBLISHED
from dapolab.fidelity.published.row import System, Variant
from dapolab.fidelity.published.verl_async import (
    GEN_TP,
    SOURCE,
    AsyncRow,
    async_step,
    colocated_seconds,
)
from dapolab.scenario import PresetLaw

_LAW, CAP_TOKENS, GENERATION_S, REFERENCE_S = "qwen3-30b-a3b-h100-tp2", 8192, 348.05, 50.05
_BASE = "colocated on 128: generation"
_ROW = AsyncRow("96:32, staleness 0.5", 96, 0.5, 4, 206.63 + REFERENCE_S, 22.06, 282.75)
_NOTES = {
    f"{_ROW.setting}: wait": "the published wait is 21 s or more in every row of verl's, so part "
    "of it may be the making of the batch, which is not modelled"
}


@cache
def _generation(lengths: str) -> float:
    return colocated_seconds(
        lengths=lengths,
        law=PresetLaw(name=_LAW),
        cap_tokens=CAP_TOKENS,
        replicas=128 // GEN_TP,
        kv_capacity_tokens=None,
    )


def _fit(variant: Variant) -> dict[str, float]:
    return {"scale": GENERATION_S / _generation(variant.lengths)}


def _predict(variant: Variant, parameters: Mapping[str, float]) -> dict[str, float]:
    scale, lengths = parameters["scale"], variant.lengths
    wait, step = async_step(
        _ROW,
        lengths=lengths,
        law=PresetLaw(name=_LAW, scale=scale),
        cap_tokens=CAP_TOKENS,
        other_s=0.0,
        sync_s=variant.values["sync_s"],
        kv_capacity_tokens=None,
    )
    return {
        _BASE: scale * _generation(lengths),
        f"{_ROW.setting}: step": step,
        f"{_ROW.setting}: wait": wait,
    }


def system() -> System:
    """Return the comparison: four length laws × two times of a weight sync."""
    return System(
        name="verl fully async, 30B-A3B",
        source=SOURCE,
        published={
            _BASE: (GENERATION_S, "s"),
            f"{_ROW.setting}: step": (_ROW.step_s, "s"),
            f"{_ROW.setting}: wait": (_ROW.wait_s, "s"),
        },
        baseline=[_BASE],
        variants=[
            Variant(f"{name}, sync {seconds:g} s", {"sync_s": seconds}, lengths=name)
            for name in UNPUBLISHED
            for seconds in (4.4, 15.8)
        ],
        fit=_fit,
        predict=_predict,
        notes=_NOTES,
        uncounted=frozenset({f"{_ROW.setting}: wait"}),
    )
