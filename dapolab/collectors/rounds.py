"""Whole rounds: generation batches of fixed size until B groups are kept; the surplus is lost.

Who does it: verl's DAPO recipe (dapo_ray_trainer.py:81-444, same logic in v0.4 to v0.7). The kept
groups are the first B in data-loader order, so the policy prefers no length. The run dies where the
``max_num_gen_batches``-th batch still leaves the step short (286-290); a limit of 0 or less means
none. A partly filled batch lives on across the end of an epoch (133-137) and is dropped silently at
the end of the last. SkyRL's ``filter`` (30 batches) works alike; NeMo RL allows one round more than
it says and judges single samples.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import Rollout, Rounds

DEFAULT_GEN_GROUPS_PER_TARGET = 3  # DAPO paper and recipe: 1536 prompts generated for 512


class RoundsCollector(Collector):
    """Generate whole batches until the step is full.

    Limits: a budget of time or tokens (verl has none; ours) trains what was kept, or skips the
    update. When the data run out, what was kept is dropped without an update, as verl does.
    """

    barrier = True

    def __init__(self, config: Rounds, *, rollout: Rollout) -> None:
        self._config = config
        self._tally = Tally(rollout, config.budget)
        default = DEFAULT_GEN_GROUPS_PER_TARGET * rollout.groups_per_step
        self._gen_groups = config.gen_groups or default

    def on_start(self) -> Sequence[Action]:
        """Submit one generation batch."""
        return [self._tally.submit(self._gen_groups)]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Keep the first that spread, in data-loader order; generate again while short of B."""
        tally = self._tally
        judged = tally.judge_wave(wave)
        if tally.is_full:
            return [*judged, *tally.stop("full")]
        if 0 < self._config.max_num_gen_batches <= tally.n_waves:
            return [*judged, *self._at_max()]
        if limit := tally.spent():
            return [*judged, *self.on_limit(limit)]
        if tally.n_waves >= self._config.max_waves:
            what = f"no full batch in {tally.n_waves} generation batches without a limit"
            advice = "the filter may never fill: check difficulty, or set max_num_gen_batches"
            return [*judged, *tally.fail(what, advice=advice)]
        return [*judged, tally.submit(self._gen_groups)]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train what was kept, but nothing when the data have run out."""
        return self._tally.stop(limit, train=limit != "data")

    def _at_max(self) -> list[Action]:
        if self._config.at_max == "stop":
            return self._tally.stop("cap")
        what = f"no full batch in max_num_gen_batches={self._config.max_num_gen_batches}"
        return self._tally.fail(what, advice="check difficulty, or raise max_num_gen_batches")
