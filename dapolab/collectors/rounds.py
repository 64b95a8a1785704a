"""Whole rounds: generation batches of fixed size until B groups are kept.

Who does it, and how they differ:

- verl's DAPO recipe (dapo_ray_trainer.py:81-444, same logic in v0.4 to v0.7): the kept groups are
  the first B in data-loader order. The run dies where the ``max_num_gen_batches``-th batch still
  leaves the step short (286-290); a limit of 0 or less means none. A partly filled batch lives on
  across the end of an epoch (133-137) and is dropped silently at the end of the last.
- SkyRL's ``filter`` (trainer_utils.py:392-620): the same with rounds of B and at most 30 of them.
- NeMo RL (grpo.py:1699-1828): one round more than it says is generated before it raises. With its
  default leave-one-out baseline single responses are judged: one whose peers all agree has std 0
  and goes, so 1 right of 8 keeps its 7 wrong ones. B·G responses fill the step.
- ms-swift (grpo_trainer.py:644-694): ``max_resample_times`` rounds beyond the first; the last one
  is generated and never looked at, and then the first batch is trained as it came, the good groups
  of all rounds being thrown away. Under Ray every round is looked at.
- OpenRLHF pull 968: what is kept beyond B stays in the replay buffer and opens the next batch.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Carried, Collector, Finished, Limit
from dapolab.collectors.tally import Tally
from dapolab.scenario import Rollout, Rounds
from dapolab.scenario.rollout import SPREAD_TOLERANCE


def round_size(config: Rounds, *, n_wanted: int) -> int:
    """Return the groups of one generation batch; ``n_wanted`` is B."""
    return config.gen_groups or max(1, int(config.gen_multiplier * n_wanted))


def rounds_allowed(config: Rounds) -> int | None:
    """Return how many rounds may be generated; None: any number."""
    most = config.max_num_gen_batches
    return most + config.rounds_past_max if most > 0 else None


class RoundsCollector(Collector):
    """Generate whole batches until the step is full.

    Limits: a budget of time or tokens (ours; no framework has one) trains what was kept, or skips
    the update. When the data run out, what was kept is dropped without an update, as verl does.
    """

    barrier = True

    def __init__(self, config: Rounds, *, rollout: Rollout, carried: Carried) -> None:
        self._config = config
        self._tally = Tally(rollout, config.budget)
        self._tally.take_over(carried)
        self._carried = carried.held
        self._gen_groups = round_size(config, n_wanted=rollout.groups_per_step)
        self._original: dict[int, Finished] = {}
        self._held: list[Finished] = []
        self._samples_left = rollout.groups_per_step * rollout.group_size
        self.wants_metrics = config.judge == "sample"
        self.memory = config.surplus == "carry"

    def on_start(self) -> Sequence[Action]:
        """Train what was carried over; submit one generation batch where that is not enough."""
        judged = [self._settle(group) for group in self._carried]
        if self._is_full:
            return [*judged, *self._tally.stop("full")]
        return [*judged, self._tally.submit(self._gen_groups)]

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Keep the first that pass, in data order; generate again while short of B."""
        tally = self._tally
        in_order = sorted(wave, key=lambda group: group.index)
        if tally.n_waves > self._n_examined:
            return [*self._drop(in_order), *self._at_max()]
        judged = self._judge(in_order)
        if self._is_full:
            return [*judged, *self._release(), *tally.stop("full")]
        if 0 < self._n_allowed <= tally.n_waves:
            return [*judged, *self._at_max()]
        if limit := tally.spent(held_tokens=sum(group.n_tokens for group in self._held)):
            return [*judged, *self.on_limit(limit)]
        if tally.n_waves >= self._config.max_waves:
            what = f"no full batch in {tally.n_waves} generation batches without a limit"
            advice = "the filter may never fill: check difficulty, or set max_num_gen_batches"
            return [*judged, *self._release(), *tally.fail(what, advice=advice)]
        return [*judged, tally.submit(self._gen_groups)]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train what was kept, but nothing when the data have run out."""
        return [*self._release(), *self._tally.stop(limit, train=limit != "data")]

    # ------------------------------------------------------------------ what fills the step

    @property
    def _n_allowed(self) -> int:
        """Rounds that may be generated; 0 or less: any number."""
        return rounds_allowed(self._config) or 0

    @property
    def _n_examined(self) -> float:
        """Rounds that are looked at."""
        if self._n_allowed <= 0 or self._config.examine_last:
            return float("inf")
        return self._n_allowed - 1

    @property
    def _is_full(self) -> bool:
        if self._config.judge == "sample":
            return self._samples_left <= 0
        return self._tally.n_kept + len(self._held) >= self._tally.n_target

    @property
    def _holds(self) -> bool:
        """Whether nothing may be settled yet, as the first batch may be trained after all."""
        return self._config.at_max == "original"

    def _judge(self, in_order: Sequence[Finished]) -> list[Action]:
        config = self._config
        if config.judge == "group" and config.surplus == "drop" and not self._holds:
            return self._tally.judge_wave(in_order)
        if self._holds and self._tally.n_waves == 1:
            self._original = {group.index: group for group in in_order}
        judged: list[Action] = []
        for group in in_order:
            self._tally.hear(group)
            if self._config.judge == "sample":
                judged.append(self._by_sample(group))
            elif self._tally.is_degenerate(group):
                if group.index not in self._original:
                    judged.append(self._tally.drop_degenerate(group))
            elif self._holds:
                self._held.append(group)
            else:
                judged.append(self._settle(group))
        return judged

    def _settle(self, group: Finished) -> Action:
        """Keep a group that passed; beyond B it is lost or carried over."""
        if self._config.surplus == "carry":
            return self._tally.settle_or_carry(group)
        return self._tally.settle(group)

    def _by_sample(self, group: Finished) -> Action:
        """Keep the responses whose peers differ, as far as B·G responses are wanted."""
        members = [i for i in range(group.n_samples) if _peers_differ(group.metrics, i)]
        if not members:
            return self._tally.drop_degenerate(group)
        members = members[: self._samples_left]
        if not members:
            return self._tally.drop_surplus(group)
        self._samples_left -= len(members)
        return self._tally.keep_members(group, members)

    def _release(self, *, train_original: bool = False) -> list[Action]:
        """Settle what ms-swift's rule held back: the good groups, or the first batch as it came."""
        original, held = self._original, self._held
        self._original, self._held = {}, []
        if train_original:
            kept: list[Action] = [self._tally.settle(group) for group in original.values()]
            others = [group for group in held if group.index not in original]
            return [*kept, *(self._tally.drop_surplus(group) for group in others)]
        good = {group.index for group in held}
        bad = [group for index, group in original.items() if index not in good]
        dropped = [self._tally.drop_degenerate(group) for group in bad]
        return [*dropped, *(self._tally.settle(group) for group in held)]

    def _drop(self, unseen: Sequence[Finished]) -> list[Action]:
        """Throw away the round that is never looked at."""
        for group in unseen:
            self._tally.hear(group)
        return [self._tally.drop_surplus(group) for group in unseen]

    def _at_max(self) -> list[Action]:
        if self._config.at_max == "original":
            return [*self._release(train_original=True), *self._tally.stop("cap")]
        if self._config.at_max == "stop":
            return self._tally.stop("cap")
        most, past = self._config.max_num_gen_batches, self._config.rounds_past_max
        what = f"no full batch in max_num_gen_batches={most}" + (f" + {past}" if past else "")
        return self._tally.fail(what, advice="check difficulty, or raise max_num_gen_batches")


def _peers_differ(metrics: Sequence[float], member: int) -> bool:
    """Say whether the other responses of the group spread: its leave-one-out std is not 0."""
    peers = [value for i, value in enumerate(metrics) if i != member]
    return bool(peers) and max(peers) - min(peers) > SPREAD_TOLERANCE
