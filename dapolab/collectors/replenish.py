"""One-for-one replacement: B groups in flight, each dropped group is replaced at once.

Who does it: OpenRLHF (trainer/ppo_utils/samples_generator.py:140-197): groups are judged as they
complete, a dropped one dispatches exactly one more prompt. So kept + in flight = B at all times:
nothing is surplus, nothing is aborted, and the step waits for its slowest slot. open-instruct with
``active_sampling`` replaces one for one too, with many more in flight. There is no cap on
candidates; ``max_candidates`` is a guard of this lab.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import Replenish, Rollout


class ReplenishCollector(Collector):
    """Replace each dropped group by one new group until B are kept.

    Limits: when the data run out before a replacement is found, OpenRLHF returns nothing and the
    groups it had accepted are lost; so here. A budget of time or tokens (ours) aborts what is in
    flight and trains what was kept, or skips the update.
    """

    barrier = False

    def __init__(self, config: Replenish, *, rollout: Rollout) -> None:
        self._tally = Tally(rollout, config.budget, max_candidates=config.max_candidates)

    def on_start(self) -> Sequence[Action]:
        """Submit B groups."""
        return [self._tally.submit(self._tally.n_target)]

    def on_group(self, group: Finished) -> Sequence[Action]:
        """Keep the group, or replace it by one."""
        tally = self._tally
        judged = tally.judge(group)
        if tally.is_full:
            return [judged, *tally.stop("full")]
        if limit := tally.spent():
            return [judged, *self.on_limit(limit)]
        if tally.n_submitted - tally.n_judged >= tally.n_missing:
            return [judged]
        if tally.is_at_guard:
            return [judged, *tally.fail_at_guard()]
        return [judged, tally.submit(1)]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Abort and train what was kept, but nothing when the data have run out."""
        return self._tally.stop(limit, train=limit != "data")
