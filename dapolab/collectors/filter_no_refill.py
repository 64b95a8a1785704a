"""Filter, no refill: one wave of B groups, the degenerate ones leave, nothing replaces them.

Who does it: agentic-rl-lab 06-dapo with its ``grpo`` preset (rollout.py:329-331), open-instruct
with ``active_sampling`` off (data_loader.py:1006-1184), prime-rl by default (train_sink.py:36,361,
after the batch is cut) and tinker-cookbook (rl/data_processing.py:235), which keeps one group where
all are degenerate (``keep_one``); the others skip the update.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import FilterNoRefill, Rollout


class FilterNoRefillCollector(Collector):
    """Train what one wave leaves, be it less than B; skip the update where it leaves nothing.

    Limits: as for no filter; what has returned with a spread is trained.
    """

    barrier = True

    def __init__(self, config: FilterNoRefill, *, rollout: Rollout) -> None:
        self._tally = Tally(rollout, config.budget)
        self._keep_one = config.keep_one

    def on_start(self) -> Sequence[Action]:
        """Submit B groups."""
        return [self._tally.submit(self._tally.n_target)]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Keep those that spread and train them, however few."""
        tally = self._tally
        rescued: list[Action] = []
        if self._keep_one and wave and all(tally.is_degenerate(group) for group in wave):
            first, *wave = sorted(wave, key=lambda group: group.index)
            tally.hear(first)
            rescued.append(tally.settle(first))
        judged = tally.judge_wave(wave)
        return [*rescued, *judged, *tally.stop("full" if tally.is_full else "one_wave")]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train what has returned."""
        return self._tally.stop(limit)
