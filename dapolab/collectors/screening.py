"""Screening: a few responses for every prompt, the rest only where they disagree.

Who does it: SPEED-RL (arXiv 2506.09016): prompts are screened with N_init responses, those with a
pass rate strictly between 0 and 1 are continued to the full number; the continuation of one batch
and the screening of the next share one call of the engine. Here both happen within a step, so that
nothing is older than one version: a wave holds the continuations found so far and, while B prompts
have not qualified, the next screening.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Continue, Finished, Limit, Submit
from dapolab.collectors.tally import Tally
from dapolab.scenario import Rollout, Screening

SCREEN_GROUPS_PER_TARGET = 2


class ScreeningCollector(Collector):
    """Screen until B prompts have qualified, continue those, train them.

    A continued group is mixed already, so it is always kept. Limits (ours): when the data run out,
    what is continued is waited for; whatever ends the step, the continued groups that returned are
    trained. Where G is no larger than the screening, nothing is left to continue.
    """

    barrier = True
    samples_apart = True

    def __init__(self, config: Screening, *, rollout: Rollout) -> None:
        self._config = config
        self._tally = Tally(rollout, config.budget)
        self._samples = min(config.screen_samples, rollout.group_size)
        self._screen_groups = config.screen_groups or SCREEN_GROUPS_PER_TARGET * (
            rollout.groups_per_step
        )
        self._continued: set[int] = set()
        self._data_left = True

    def on_start(self) -> Sequence[Action]:
        """Screen the first prompts."""
        return [self._screen()]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Keep what was continued; continue what disagrees; screen on while short of B."""
        tally = self._tally
        actions: list[Action] = []
        for group in sorted(wave, key=lambda group: group.index):
            actions.append(self._judge(group))
        if tally.is_full:
            return [*actions, *tally.stop("full")]
        if limit := tally.spent():
            return [*actions, *self.on_limit(limit)]
        if self._n_qualified < tally.n_target and self._data_left:
            if tally.n_waves >= self._config.max_waves:
                what = f"fewer than {tally.n_target} prompts qualified in {tally.n_waves} waves"
                return [*actions, *tally.fail(what, advice="check difficulty")]
            actions.append(self._screen())
        return actions

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train the continued groups that returned; wait for them when the data run out."""
        if limit == "data" and self._data_left:
            self._data_left = False
            if self._continued:
                return []
        return self._tally.stop(limit)

    @property
    def _n_qualified(self) -> int:
        return self._tally.n_kept + len(self._continued)

    def _screen(self) -> Submit:
        n = self._tally.submit(self._screen_groups).n
        return Submit(n, samples=self._samples)

    def _judge(self, group: Finished) -> Action:
        tally = self._tally
        if group.index in self._continued:
            self._continued.remove(group.index)
            tally.hear(group)
            return tally.settle(group)
        if not tally.is_degenerate(group) and self._n_qualified < tally.n_target:
            n_more = tally.rollout.group_size - group.n_samples
            if n_more:
                self._continued.add(group.index)
                return Continue(group.index, n_more)
        tally.hear(group)
        if tally.is_degenerate(group):
            return tally.drop_degenerate(group)
        return (
            tally.settle(group)
            if self._n_qualified < tally.n_target
            else (tally.drop_surplus(group))
        )
