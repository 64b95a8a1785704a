"""Which finished groups the learner takes, if it can: the queue's order and the control's demands.

NeMo RL's samplers (nemo_rl/algorithms/async_utils/staleness_sampler.py) are ``ready_first``
(ReadyFirst, and Windowed under age-drop), ``weight_fifo`` and ``in_order``; where NeMo releases
whole batches a version, groups are released one by one here, so a batch of ``weight_fifo`` may
span versions.
"""

from dapolab.scenario import FullyAsync
from dapolab.sim.control import must_train_up_to
from dapolab.sim.pipe import Pipe


def pick(schedule: FullyAsync, pipe: Pipe, *, n: int, n_left: int) -> list[int] | None:
    """Return the ``n`` ready groups to train next, None where the learner must wait.

    Parameters
    ----------
    n_left : groups that the step still takes, these ``n`` included.
    """
    if pipe.n_ready < n:
        return None
    in_order = ordered(schedule.queue, pipe)
    must_version = must_train_up_to(schedule.control, pipe.version)
    if must_version >= 0:
        must = [g for g in in_order if pipe.version_of[g] <= must_version]
        others = [g for g in in_order if pipe.version_of[g] > must_version]
        # what must train and still runs keeps its place in the step
        n_free = n_left - len(must) - pipe.n_running_up_to(must_version)
        in_order = must + others[: max(n_free, 0)]
    return in_order[:n] if len(in_order) >= n else None


def ordered(queue: str, pipe: Pipe) -> list[int]:
    """Return the ready groups that may be trained, first the next one."""
    match queue:
        case "fifo":
            return list(pipe.ready)
        case "freshest_first":
            return sorted(pipe.ready, key=lambda g: (-pipe.version_of[g], g))
        case "ready_first":
            return sorted(pipe.ready)
    oldest = pipe.first_running
    if queue == "in_order":
        return [g for g in sorted(pipe.ready) if g < oldest]
    # weight_fifo: versions never decrease with the number of a group
    version = pipe.version_of[oldest] if oldest < pipe.n_submitted else pipe.version
    return [g for g in sorted(pipe.ready) if pipe.version_of[g] <= version]
