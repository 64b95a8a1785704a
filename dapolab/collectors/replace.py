"""Replace: degenerate groups are overwritten by copies of good ones, without new sampling.

Who does it: SkyRL with ``dynamic_sampling.type = replace`` (train/utils/trainer_utils.py:392-620),
after POLARIS and WebSailor. One batch of B groups; where more than ``min_replace_ratio`` of them
are good, good ones drawn at random (with replacement) take the places of the bad. Otherwise the
whole batch is thrown away, its good groups too, and drawn again; the run dies where the
``max_sample_batches``-th batch is not good enough.
"""

import random
from collections.abc import Sequence

from dapolab.collectors.actions import Action, Carried, Collector, Finished, Limit, Repeat
from dapolab.collectors.tally import Tally
from dapolab.scenario import Replace, Rollout


class ReplaceCollector(Collector):
    """Fill the batch with copies of its good groups, or draw all of it again.

    Limits (SkyRL has none; ours): a time budget trains the good groups that returned, without
    copies; a token budget ends the step after a batch that was thrown away, without an update, and
    so do data that have run out.
    """

    barrier = True
    repeats = True

    def __init__(self, config: Replace, *, rollout: Rollout, carried: Carried) -> None:
        self._config = config
        self._tally = Tally(rollout, config.budget)
        self._draw = random.Random(carried.step)

    def on_start(self) -> Sequence[Action]:
        """Submit B groups."""
        return [self._tally.submit(self._tally.n_target)]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Copy the good over the bad where there are enough, else draw again."""
        tally = self._tally
        in_order = sorted(wave, key=lambda group: group.index)
        good = [group for group in in_order if not tally.is_degenerate(group)]
        is_whole = len(wave) == tally.n_submitted - tally.n_judged
        if not is_whole or len(good) > self._config.min_replace_ratio * len(wave):
            judged = tally.judge_wave(wave)
            n_bad = len(wave) - len(good)
            copies: list[Action] = [
                Repeat(self._draw.choice(good).index) for _ in range(n_bad) if good
            ]
            return [*judged, *copies, *tally.stop("full" if tally.is_full else "one_wave")]
        return [*self._throw_away(in_order), *self._again()]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train what was kept."""
        return self._tally.stop(limit)

    def _throw_away(self, in_order: Sequence[Finished]) -> list[Action]:
        dropped: list[Action] = []
        for group in in_order:
            self._tally.hear(group)
            bad = self._tally.is_degenerate(group)
            drop = self._tally.drop_degenerate if bad else self._tally.drop_surplus
            dropped.append(drop(group))
        return dropped

    def _again(self) -> list[Action]:
        tally, most = self._tally, self._config.max_sample_batches
        if 0 < most <= tally.n_waves:
            what = f"never more than {self._config.min_replace_ratio:.0%} good groups"
            advice = "check difficulty, or raise max_sample_batches"
            return tally.fail(f"{what} in max_sample_batches={most}", advice=advice)
        if limit := tally.spent():
            return [*self.on_limit(limit)]
        if tally.n_waves >= self._config.max_waves:
            what = f"no batch with enough good groups in {tally.n_waves} without a limit"
            return tally.fail(what, advice="check difficulty, or set max_sample_batches")
        return [tally.submit(tally.n_target)]
