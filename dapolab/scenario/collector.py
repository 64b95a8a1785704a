"""All collection policies: one discriminated table, and the presets named after frameworks."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from dapolab.scenario.collector_presets import PRESETS
from dapolab.scenario.collector_streams import (
    Chunked,
    OverProvision,
    Replenish,
    Streaming,
    TailBatching,
    VerlV1,
)
from dapolab.scenario.collector_waves import (
    AdaptiveWave,
    ExactRefill,
    FilterNoRefill,
    NoFilter,
    Replace,
    Rounds,
    Screening,
    Segments,
)
from dapolab.scenario.rollout import SPREAD_TOLERANCE, Budget, Overlong, Rollout

__all__ = [
    "COLLECTOR_KINDS",
    "COLLECTOR_PRESETS",
    "SPREAD_TOLERANCE",
    "AdaptiveWave",
    "Budget",
    "Chunked",
    "Collector",
    "ExactRefill",
    "FilterNoRefill",
    "NoFilter",
    "OverProvision",
    "Overlong",
    "Replace",
    "Replenish",
    "Rollout",
    "Rounds",
    "Screening",
    "Segments",
    "Streaming",
    "TailBatching",
    "VerlV1",
]


def _expand(table: Any) -> Any:
    """Turn ``kind = "ms_swift"`` into the policy it stands for; what else is said lies over it."""
    if isinstance(table, dict) and (preset := PRESETS.get(str(table.get("kind")))):
        said = {key: value for key, value in table.items() if key != "kind"}
        return preset.config.model_dump() | said
    return table


AnyCollector = (
    NoFilter
    | FilterNoRefill
    | ExactRefill
    | Rounds
    | Replace
    | AdaptiveWave
    | Screening
    | Segments
    | Replenish
    | Streaming
    | Chunked
    | OverProvision
    | TailBatching
    | VerlV1
)
Collector = Annotated[AnyCollector, Field(discriminator="kind"), BeforeValidator(_expand)]
COLLECTOR_KINDS: tuple[str, ...] = (
    "none",
    "filter_no_refill",
    "exact_refill",
    "rounds",
    "replace",
    "adaptive_wave",
    "screening",
    "segments",
    "replenish",
    "streaming",
    "chunked",
    "over_provision",
    "tail_batching",
    "verl_v1",
)
COLLECTOR_PRESETS = PRESETS
"""Policies under the names of the frameworks that run them; usable as a ``kind``."""
