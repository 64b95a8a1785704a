"""Adaptive waves: each next wave is as large as the degenerate share seen so far makes it.

Who does it: GRESO (arXiv 2506.02177 and its code): the first wave has the default size, each next
one missing ÷ (1 − z) · 1.25 groups, clipped to [64, default], where z is the share of degenerate
groups. The reference leaves open over what z is taken; here over all groups of the step so far.
The first B in data order are trained. GRESO's other half, skipping prompts that were degenerate in
earlier epochs, is a prompt selection and no collection policy.
"""

import math
from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import AdaptiveWave, Rollout

DEFAULT_GEN_GROUPS_PER_TARGET = 3


class AdaptiveWaveCollector(Collector):
    """Refill what is missing with a margin for what will be degenerate.

    Limits: as for whole rounds; when the data run out, what was kept is dropped.
    """

    barrier = True

    def __init__(self, config: AdaptiveWave, *, rollout: Rollout) -> None:
        self._config = config
        self._tally = Tally(rollout, config.budget)
        default = DEFAULT_GEN_GROUPS_PER_TARGET * rollout.groups_per_step
        self._default = config.gen_groups or default

    def on_start(self) -> Sequence[Action]:
        """Submit a wave of the default size."""
        return [self._tally.submit(self._default)]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Keep the first that spread; submit the expected need and a quarter."""
        tally = self._tally
        judged = tally.judge_wave(wave)
        if tally.is_full:
            return [*judged, *tally.stop("full")]
        if 0 < self._config.max_num_gen_batches <= tally.n_waves:
            what = f"no full batch in max_num_gen_batches={self._config.max_num_gen_batches}"
            advice = "check difficulty, or raise max_num_gen_batches"
            return [*judged, *tally.fail(what, advice=advice)]
        if limit := tally.spent():
            return [*judged, *self.on_limit(limit)]
        if tally.n_waves >= self._config.max_waves:
            what = f"no full batch in {tally.n_waves} waves without a limit"
            advice = "the filter may never fill: check difficulty, or set max_num_gen_batches"
            return [*judged, *tally.fail(what, advice=advice)]
        return [*judged, tally.submit(self._next_size())]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train what was kept, but nothing when the data have run out."""
        return self._tally.stop(limit, train=limit != "data")

    def _next_size(self) -> int:
        tally = self._tally
        n_good = tally.n_judged - tally.n_degenerate
        if n_good == 0:
            return self._default
        need = tally.n_missing * tally.n_judged / n_good * self._config.safety
        # Rounded first: 4 · 1.25 must stay 5, whatever the quotient left in the last bit.
        wanted = math.ceil(round(need, 9))
        return max(min(self._config.min_groups, self._default), min(wanted, self._default))
