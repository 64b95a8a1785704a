"""Over-provision: launch η·B groups at once, the first B that pass win, abort the rest.

Who does it: the short rounds of RollPacker's tail batching (arXiv 2509.21009; η = 1.25, of prompts
and of responses) without its queue. One wave's tail is cut off, at the price of a short-length bias
and of aborted work; without enough groups that pass there is no second wave. With ``response_eta``
a prompt is done with its first G responses, and the others are cut off then and there.
"""

import math
from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit, Submit
from dapolab.collectors.tally import Tally
from dapolab.scenario import OverProvision, Rollout


def times_eta(eta: float, n: int) -> int:
    """Return η·n rounded up; rounded first, as 1.1 · 50 is 55.00000000000001 and must give 55."""
    return math.ceil(round(eta * n, 9))


def launch(tally: Tally, n: int, *, samples: int) -> Submit:
    """Return the submission of ``n`` groups that are done with the first G of their responses."""
    tally.submit(n)
    wanted = tally.rollout.group_size
    return Submit(n) if samples == wanted else Submit(n, samples=samples, enough=wanted)


class OverProvisionCollector(Collector):
    """Take the first B groups that return, with a filter the first B that spread.

    Limits: whatever ends the step (all have returned, a budget of time or tokens, fewer prompts
    than asked for), what was kept is trained, or the update is skipped.
    """

    barrier = False

    def __init__(self, config: OverProvision, *, rollout: Rollout) -> None:
        self._tally = Tally(rollout, config.budget, filters=config.filter)
        self._n_launched = times_eta(config.eta, rollout.groups_per_step)
        self._samples = times_eta(config.response_eta, rollout.group_size)
        self.samples_apart = self._samples > rollout.group_size

    def on_start(self) -> Sequence[Action]:
        """Launch η·B groups, rounded up."""
        return [launch(self._tally, self._n_launched, samples=self._samples)]

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
