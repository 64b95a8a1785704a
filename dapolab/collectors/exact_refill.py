"""Exact refill: waves of exactly the missing number of groups, up to M·B candidates.

Who does it: agentic-rl-lab 06-dapo (rollout.py:288-359). Every wave is a barrier: nothing is
judged until its last group has returned. As a wave never exceeds the deficit there is no surplus,
and the candidates are those of one-at-a-time sampling; only the number of waves, at most
1 + (M−1)·B, is the price of the barrier.

At the cap, version 4eb1b05 trains a partial batch (none kept: the update is skipped, the step
counts) and the older 6db470a raises RuntimeError. 06-dapo admits 16 groups at a time
(``concurrent_groups``): that queue is the engine's, the policy submits whole waves.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import ExactRefill, Rollout


class ExactRefillCollector(Collector):
    """Refill the deficit until B groups are kept or M·B candidates are used.

    Limits (06-dapo has none; these are ours, after its rule for the cap): whatever ends the step,
    what was kept is trained, and the update is skipped where nothing was. 06-dapo reads its prompts
    in a ring; where a scenario's stream ends, so does the step.
    """

    barrier = True

    def __init__(self, config: ExactRefill, *, rollout: Rollout) -> None:
        self._config = config
        self._tally = Tally(rollout, config.budget)

    def on_start(self) -> Sequence[Action]:
        """Submit B groups."""
        return [self._tally.submit(self._tally.n_target)]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Keep those that spread; submit the deficit, as far as the cap allows."""
        tally = self._tally
        judged = tally.judge_wave(wave)
        if tally.is_full:
            return [*judged, *tally.stop("full")]
        n_next = min(tally.n_missing, self._n_left())
        if n_next == 0:
            return [*judged, *self._at_cap()]
        if limit := tally.spent():
            return [*judged, *self.on_limit(limit)]
        if tally.n_waves >= self._config.max_waves:
            advice = "the filter may never fill: check difficulty, or set max_candidate_multiplier"
            return [*judged, *tally.fail(f"no full batch in {tally.n_waves} waves", advice=advice)]
        return [*judged, tally.submit(n_next)]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train what was kept."""
        return self._tally.stop(limit)

    def _n_left(self) -> int:
        """Candidates that the cap still allows; the deficit itself where there is no cap."""
        multiplier = self._config.max_candidate_multiplier
        if multiplier is None:
            return self._tally.n_missing
        return multiplier * self._tally.n_target - self._tally.n_judged

    def _at_cap(self) -> list[Action]:
        if self._config.at_cap == "partial":
            return self._tally.stop("cap")
        what = f"the cap of {self._tally.n_judged} candidates is used up"
        return self._tally.fail(what, advice="raise max_candidate_multiplier or check difficulty")
