"""Streaming: K groups always in flight, stop at the B-th kept, abort the rest.

Who does it: AReaL (infra/workflow_executor.py:634-731), ROLL at ``generate_opt_level`` 1
(generate_scheduler.py, abort in synchronous mode) and, refilling in chunks, slime
(rollout/sglang_rollout.py:374-470) keep a pool busy and take what returns first. No slot ever
waits, but the groups in flight at the stop are the long ones: what is trained is short-biased, and
what is aborted was paid for. Recycling aborted groups (APRIL) is a policy of its own.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import Rollout, Streaming

DEFAULT_SLOTS_PER_TARGET = 2


class StreamingCollector(Collector):
    """Refill every slot that falls free until B groups are kept.

    Limits: when the data run out, the groups in flight may still fill the batch; once they have
    returned, what was kept is trained. A budget of time or tokens aborts what is in flight and
    trains what was kept, or skips the update. ``max_candidates`` is a guard of this lab.
    """

    barrier = False

    def __init__(self, config: Streaming, *, rollout: Rollout) -> None:
        self._tally = Tally(rollout, config.budget, max_candidates=config.max_candidates)
        default = DEFAULT_SLOTS_PER_TARGET * rollout.groups_per_step
        self._n_slots = config.slots or default
        self._data_left = True

    def on_start(self) -> Sequence[Action]:
        """Fill the K slots."""
        return [self._tally.submit(self._n_slots)]

    def on_group(self, group: Finished) -> Sequence[Action]:
        """Keep or drop the group and refill its slot."""
        tally = self._tally
        judged = tally.judge(group)
        if tally.is_full:
            return [judged, *tally.stop("full")]
        if limit := tally.spent():
            return [judged, *tally.stop(limit)]
        if not self._data_left:
            return [judged]
        if tally.is_at_guard:
            return [judged, *tally.fail_at_guard()]
        return [judged, tally.submit(1)]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Abort and train what was kept; let those in flight return when the data run out."""
        if limit == "data" and self._data_left:
            self._data_left = False
            return []
        return self._tally.stop(limit)
