"""One-for-one replacement: B groups in flight, each dropped group is replaced at once.

Who does it: OpenRLHF (trainer/ppo_utils/samples_generator.py:140-197): groups are judged as they
complete, a dropped one dispatches exactly one more prompt. So kept + in flight = B at all times:
nothing is surplus, nothing is aborted, and the step waits for its slowest slot. There is no cap on
candidates; ``max_candidates`` is a guard of this lab.

ROLL at ``generate_opt_level`` 1 (generate_scheduler.py, ``ReplayBuffer._check_send_new_request``)
holds running + completed = B as well; with ``is_use_additional_prompts`` it sends more whenever
fewer than ``max_additional_running_prompts`` = 16 groups run (``min_in_flight``), and aborts what
runs once the batch is full. Older versions ran B + 16 groups throughout: that is ``streaming`` with
that many slots.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import Replenish, Rollout


class ReplenishCollector(Collector):
    """Replace each dropped group by one new group until B are kept.

    Limits: when the data run out before a replacement is found, OpenRLHF 0.11 returns nothing and
    the groups it had accepted are lost (``at_data_end`` drop); since pull 1312, and in ROLL, those
    in flight may still return and what was kept is trained. A budget of time or tokens (ours)
    aborts what is in flight and trains what was kept, or skips the update.
    """

    barrier = False

    def __init__(self, config: Replenish, *, rollout: Rollout) -> None:
        self._tally = Tally(rollout, config.budget, max_candidates=config.max_candidates)
        self._least_running = config.min_in_flight
        self._loses_all = config.at_data_end == "drop"
        self._data_left = True

    def on_start(self) -> Sequence[Action]:
        """Submit B groups, or as many as run at least."""
        return [self._tally.submit(max(self._tally.n_target, self._least_running))]

    def on_group(self, group: Finished) -> Sequence[Action]:
        """Keep the group, or replace it by one."""
        tally = self._tally
        judged = tally.judge(group)
        if tally.is_full:
            return [judged, *tally.stop("full")]
        if limit := tally.spent():
            return [judged, *self.on_limit(limit)]
        n_running = tally.n_submitted - tally.n_judged
        if n_running >= max(tally.n_missing, self._least_running) or not self._data_left:
            return [judged]
        if tally.is_at_guard:
            return [judged, *tally.fail_at_guard()]
        return [judged, tally.submit(1)]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Abort and train what was kept; at the end of the data by ``at_data_end``."""
        if limit != "data":
            return self._tally.stop(limit)
        if self._loses_all:
            return self._tally.stop(limit, train=False)
        if self._data_left:
            self._data_left = False
            return []
        return self._tally.stop(limit)
