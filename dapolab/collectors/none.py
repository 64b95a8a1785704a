"""No filter: one wave of B groups, all of them trained.

Who does it: GRPO as most trainers ship it (TRL 1.16 has no group filter, docs/paper_index.md; verl
with ``algorithm.filter_groups.enable=False``, recipe dapo_ray_trainer.py:235-236). Degenerate
groups stay in the batch with zero advantage.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import NoFilter, Rollout


class NoFilterCollector(Collector):
    """Train every group of one wave.

    Limits: at a time budget the groups that returned are trained, the rest is lost; a token budget
    can only be noticed once the wave is over, so it never changes anything. A wave that finds no
    prompt ends the step without an update, as a data loader that has run out.
    """

    barrier = True

    def __init__(self, config: NoFilter, *, rollout: Rollout) -> None:
        self._tally = Tally(rollout, config.budget, filters=False)

    def on_start(self) -> Sequence[Action]:
        """Submit B groups."""
        return [self._tally.submit(self._tally.n_target)]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Keep all of them."""
        return [*self._tally.judge_wave(wave), *self._tally.stop("one_wave")]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train what has returned."""
        return self._tally.stop(limit)
