"""Segments: a response gains at most so many tokens a step and goes on in the next (Kimi).

Who does it: Kimi k1.5 (arXiv 2501.12599), partial rollouts: a fixed budget of output tokens for
each trajectory of an iteration; what is unfinished is stored and continued in the next one, so no
step waits for the longest answer. How many prompts are added is not published; here every step
brings the groups in play to η·B, unfinished ones first.
"""

import math
from collections.abc import Sequence

from dapolab.collectors.actions import (
    Action,
    Carried,
    Collector,
    Finished,
    Later,
    Limit,
    StopReason,
    Submit,
)
from dapolab.collectors.tally import Tally
from dapolab.scenario import Rollout, Segments


class SegmentsCollector(Collector):
    """Train the groups whose responses have all ended, at most B; the others go on next step.

    Groups that passed beyond B open the next step's batch. Limits: a time budget sets everything in
    flight aside and trains what returned; a token budget cannot cut the one wave of a step. When
    the data run out, the unfinished groups go on until none is left.
    """

    barrier = True
    memory = True

    def __init__(self, config: Segments, *, rollout: Rollout, carried: Carried) -> None:
        self._config = config
        self._tally = Tally(rollout, config.budget, filters=config.filter)
        self._tally.take_over(carried)
        self._carried = carried
        self._tokens = config.segment_tokens or -(-rollout.cap_tokens // 2)
        self._later: Later = "resume_with_kv" if config.keep_kv else "resume"

    def on_start(self) -> Sequence[Action]:
        """Train what was carried over; resume the unfinished and fill up with new groups."""
        tally = self._tally
        judged: list[Action] = [tally.settle_or_carry(group) for group in self._carried.held]
        n_in_play = math.ceil(round(self._config.eta * tally.n_target, 9))
        n_more = max(n_in_play - len(self._carried.held), self._carried.n_cut)
        if n_more == 0:
            return [*judged, *tally.stop("full")]
        tally.submit(n_more)
        return [*judged, Submit(n_more, segment_tokens=self._tokens)]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Judge the groups that ended; set the others aside."""
        tally = self._tally
        judged: list[Action] = []
        for group in sorted(wave, key=lambda group: group.index):
            tally.hear(group)
            if self._config.filter and tally.is_degenerate(group):
                judged.append(tally.drop_degenerate(group))
            else:
                judged.append(tally.settle_or_carry(group))
        reason: StopReason = "full" if tally.is_full else "one_wave"
        return [*judged, *tally.stop(reason, later=self._later)]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Set aside what runs and train what has returned."""
        return self._tally.stop(limit, later=self._later)
