"""Collection policies as pure decision objects, one a file: no clock, no simulator, no numpy.

Each file is named after what the policy does and cites who does it. ``new_collector`` makes the
object that decides one training step; ``actions.py`` is the contract with whoever drives it.
"""

from dapolab.collectors.actions import (
    Abort,
    Action,
    Collector,
    Drop,
    DropReason,
    Fail,
    Finished,
    Keep,
    Limit,
    Stop,
    StopReason,
    Submit,
)
from dapolab.collectors.exact_refill import ExactRefillCollector
from dapolab.collectors.filter_no_refill import FilterNoRefillCollector
from dapolab.collectors.none import NoFilterCollector
from dapolab.collectors.over_provision import OverProvisionCollector
from dapolab.collectors.replenish import ReplenishCollector
from dapolab.collectors.rounds import RoundsCollector
from dapolab.collectors.streaming import StreamingCollector
from dapolab.collectors.tally import is_degenerate
from dapolab.collectors.verl_v1 import VerlV1Collector
from dapolab.scenario import (
    Collector as CollectorConfig,
)
from dapolab.scenario import (
    ExactRefill,
    FilterNoRefill,
    NoFilter,
    OverProvision,
    Replenish,
    Rollout,
    Rounds,
    Streaming,
    VerlV1,
)

__all__ = [
    "Abort",
    "Action",
    "Collector",
    "Drop",
    "DropReason",
    "Fail",
    "Finished",
    "Keep",
    "Limit",
    "Stop",
    "StopReason",
    "Submit",
    "is_degenerate",
    "new_collector",
]


def new_collector(config: CollectorConfig, rollout: Rollout) -> Collector:
    """Return the policy object of one training step.

    Parameters
    ----------
    config
        Which policy, and its settings.
    rollout
        The batch that the step wants.
    """
    match config:
        case NoFilter():
            return NoFilterCollector(config, rollout=rollout)
        case FilterNoRefill():
            return FilterNoRefillCollector(config, rollout=rollout)
        case ExactRefill():
            return ExactRefillCollector(config, rollout=rollout)
        case Rounds():
            return RoundsCollector(config, rollout=rollout)
        case Replenish():
            return ReplenishCollector(config, rollout=rollout)
        case Streaming():
            return StreamingCollector(config, rollout=rollout)
        case OverProvision():
            return OverProvisionCollector(config, rollout=rollout)
        case VerlV1():
            return VerlV1Collector(config, rollout=rollout)
