"""Tail batching: short rounds cut the long prompts off, long rounds run them among themselves.

Who does it: RollPacker (NSDI'26, arXiv 2509.21009). A short round launches η·B prompts with η·G
responses each; the first G responses of a prompt and the first B prompts win, what else runs is
aborted (its tokens are lost) and its prompts join the long-prompt queue. Once the queue holds B
prompts, the next step is a long round: those B prompts with G responses each, and all are waited
for. RollPacker does not filter groups; with ``filter`` only those with spread may win a short
round, and a long round trains what passes.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Carried, Collector, Finished, Limit, Submit
from dapolab.collectors.over_provision import launch, times_eta
from dapolab.collectors.tally import Tally
from dapolab.scenario import Rollout, TailBatching


class TailBatchingCollector(Collector):
    """One round, short or long by what waits.

    Limits (ours): whatever ends the step, what was kept is trained or the update is skipped, and
    prompts that were cut join the queue. When the data run out, what waits is run in long rounds.
    """

    barrier = False
    samples_apart = True
    memory = True

    def __init__(self, config: TailBatching, *, rollout: Rollout, carried: Carried) -> None:
        self._tally = Tally(rollout, config.budget, filters=config.filter)
        self._n_waiting = carried.n_waiting
        self._is_long = carried.n_waiting >= rollout.groups_per_step
        self._n_launched = times_eta(config.eta, rollout.groups_per_step)
        self._samples = times_eta(config.response_eta, rollout.group_size)

    def on_start(self) -> Sequence[Action]:
        """Launch the round."""
        return [self._long(self._tally.n_target)] if self._is_long else [self._short()]

    def on_group(self, group: Finished) -> Sequence[Action]:
        """Keep it if it passes; a short round stops at the B-th, a long one when all are back."""
        tally = self._tally
        judged = tally.judge(group)
        if tally.is_full:
            return [judged, *tally.stop("full", later="restart")]
        if tally.n_judged >= self._n_launched:
            return [judged, *tally.stop("returned")]
        if limit := tally.spent():
            return [judged, *tally.stop(limit, later="restart")]
        return [judged]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Cut and train what was kept; a round that finds no new prompt runs what waits."""
        if limit != "data":
            return self._tally.stop(limit, later="restart")
        if self._tally.n_judged:
            return self._tally.stop("returned")
        if self._n_waiting and not self._is_long:
            self._is_long, n = True, min(self._n_waiting, self._tally.n_target)
            self._tally.n_submitted = 0
            return [self._long(n)]
        return self._tally.stop(limit)

    def _short(self) -> Submit:
        return launch(self._tally, self._n_launched, samples=self._samples)

    def _long(self, n: int) -> Submit:
        self._tally.submit(n)
        self._n_launched = n
        return Submit(n, waiting=True)
