"""Collection policies as pure decision objects, one a file: no clock, no simulator, no numpy.

Each file is named after what the policy does and cites who does it. ``new_collector`` makes the
object that decides one training step; ``actions.py`` is the contract with whoever drives it.
"""

from dapolab.collectors.actions import (
    Abort,
    Action,
    Carried,
    Carry,
    Collector,
    Continue,
    Drop,
    DropReason,
    Fail,
    Finished,
    Keep,
    Later,
    Limit,
    Repeat,
    Stop,
    StopReason,
    Submit,
)
from dapolab.collectors.adaptive_wave import AdaptiveWaveCollector
from dapolab.collectors.chunked import ChunkedCollector
from dapolab.collectors.exact_refill import ExactRefillCollector
from dapolab.collectors.filter_no_refill import FilterNoRefillCollector
from dapolab.collectors.none import NoFilterCollector
from dapolab.collectors.over_provision import OverProvisionCollector, times_eta
from dapolab.collectors.replace import ReplaceCollector
from dapolab.collectors.replenish import ReplenishCollector
from dapolab.collectors.rounds import RoundsCollector, round_size, rounds_allowed
from dapolab.collectors.screening import ScreeningCollector
from dapolab.collectors.segments import SegmentsCollector
from dapolab.collectors.streaming import StreamingCollector
from dapolab.collectors.tail_batching import TailBatchingCollector
from dapolab.collectors.tally import is_degenerate
from dapolab.collectors.verl_v1 import VerlV1Collector
from dapolab.scenario import (
    AdaptiveWave,
    Chunked,
    ExactRefill,
    FilterNoRefill,
    NoFilter,
    OverProvision,
    Replace,
    Replenish,
    Rollout,
    Rounds,
    Screening,
    Segments,
    Streaming,
    TailBatching,
    VerlV1,
)
from dapolab.scenario import (
    Collector as CollectorConfig,
)

__all__ = [
    "Abort",
    "Action",
    "Carried",
    "Carry",
    "Collector",
    "Continue",
    "Drop",
    "DropReason",
    "Fail",
    "Finished",
    "Keep",
    "Later",
    "Limit",
    "Repeat",
    "Stop",
    "StopReason",
    "Submit",
    "draws_per_prompt",
    "is_degenerate",
    "new_collector",
    "round_size",
    "rounds_allowed",
]

NOTHING = Carried()


def draws_per_prompt(config: CollectorConfig, *, group_size: int) -> int:
    """Return the responses that a policy may ask for of one prompt, all attempts together.

    Parameters
    ----------
    group_size
        G.
    """
    match config:
        case OverProvision():
            return times_eta(config.response_eta, group_size)
        case TailBatching():
            return times_eta(config.response_eta, group_size) + group_size
        case _:
            return group_size


def new_collector(
    config: CollectorConfig, rollout: Rollout, *, carried: Carried = NOTHING
) -> Collector:
    """Return the policy object of one training step.

    Parameters
    ----------
    config
        Which policy, and its settings.
    rollout
        The batch that the step wants.
    carried
        What earlier steps left; nothing for a policy without ``memory``.
    """
    match config:
        case NoFilter():
            return NoFilterCollector(config, rollout=rollout)
        case FilterNoRefill():
            return FilterNoRefillCollector(config, rollout=rollout)
        case ExactRefill():
            return ExactRefillCollector(config, rollout=rollout)
        case AdaptiveWave():
            return AdaptiveWaveCollector(config, rollout=rollout)
        case Screening():
            return ScreeningCollector(config, rollout=rollout)
        case Replenish():
            return ReplenishCollector(config, rollout=rollout)
        case OverProvision():
            return OverProvisionCollector(config, rollout=rollout)
        case VerlV1():
            return VerlV1Collector(config, rollout=rollout)
        case _:
            return _with_memory(config, rollout, carried)


def _with_memory(
    config: Rounds | Replace | Segments | Streaming | Chunked | TailBatching,
    rollout: Rollout,
    carried: Carried,
) -> Collector:
    match config:
        case Rounds():
            return RoundsCollector(config, rollout=rollout, carried=carried)
        case Replace():
            return ReplaceCollector(config, rollout=rollout, carried=carried)
        case Segments():
            return SegmentsCollector(config, rollout=rollout, carried=carried)
        case Streaming():
            return StreamingCollector(config, rollout=rollout, carried=carried)
        case Chunked():
            return ChunkedCollector(config, rollout=rollout, carried=carried)
        case TailBatching():
            return TailBatchingCollector(config, rollout=rollout, carried=carried)
