"""Over-provision: launch η·B groups at once, the first B that pass win, abort the rest.

Who does it: the short rounds of RollPacker's tail batching (arXiv 2509.21009; η = 1.25, by prompts)
and, launching more requests than needed and stopping at enough, APRIL (arXiv 2509.18521; it resumes
the aborted ones). One wave's tail is cut off, at the price of a short-length bias and of aborted
work; without enough groups that pass there is no second wave.
"""

import math
from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import OverProvision, Rollout


class OverProvisionCollector(Collector):
    """Take the first B groups that return, with a filter the first B that spread.

    Limits: whatever ends the step (all have returned, a budget of time or tokens, fewer prompts
    than asked for), what was kept is trained, or the update is skipped.
    """

    barrier = False

    def __init__(self, config: OverProvision, *, rollout: Rollout) -> None:
        self._tally = Tally(rollout, config.budget, filters=config.filter)
        # Rounded first: 1.1 · 50 is 55.00000000000001, and must launch 55.
        self._n_launched = math.ceil(round(config.eta * rollout.groups_per_step, 9))

    def on_start(self) -> Sequence[Action]:
        """Launch η·B groups, rounded up."""
        return [self._tally.submit(self._n_launched)]

    def on_group(self, group: Finished) -> Sequence[Action]:
        """Keep it if it passes; stop at the B-th, or when all have returned."""
        tally = self._tally
        judged = tally.judge(group)
        if tally.is_full:
            return [judged, *tally.stop("full")]
        if tally.n_judged == self._n_launched:
            return [judged, *tally.stop("returned")]
        if limit := tally.spent():
            return [judged, *tally.stop(limit)]
        return [judged]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Abort and train what was kept."""
        return self._tally.stop(limit)
