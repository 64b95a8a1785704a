"""Filter, no refill: one wave of B groups, the degenerate ones leave, nothing replaces them.

Who does it: agentic-rl-lab 06-dapo with its ``grpo`` preset (rollout.py:329-331), open-instruct
with ``active_sampling`` off (data_loader.py:1006-1184), prime-rl by default (train_sink.py:36,361,
after the batch is cut) and tinker-cookbook (rl/data_processing.py:235; it keeps one group where all
are degenerate, this policy skips the update as 06-dapo does).
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

    def on_start(self) -> Sequence[Action]:
        """Submit B groups."""
        return [self._tally.submit(self._tally.n_target)]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Keep those that spread and train them, however few."""
        judged = self._tally.judge_wave(wave)
        return [*judged, *self._tally.stop("full" if self._tally.is_full else "one_wave")]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train what has returned."""
        return self._tally.stop(limit)
