"""Credits: each evicted group buys two new ones, at most B in flight; the last ones are waited for.

Who does it: the V1 trainer of verl 0.9 in synchronous mode (trainer/ppo/v1/replay_buffer.py,
``ReplayBuffer.sample``; ``algorithm.filter_groups``). The step opens with B prompts. A degenerate
group is evicted as soon as it is seen and leaves two credits; credits become prompts as far as
``max_inflight_gen_batches``·B groups in flight allow. Once B groups with a spread have returned,
credits lapse, nothing more is sent, and the step waits until nothing is in flight: no group is cut
off, so the slowest of the refills sets the step's time and what is not needed is surplus.

verl picks B of the groups with a spread in the order of a set (v0.9.1: all prompts of a synchronous
step tie on their sort key), so two runs of one seed differ with PYTHONHASHSEED. Here the tie is
broken by submission order: what is trained are the first B groups with a spread in that order,
whatever their lengths. verl looks every two seconds (the scenario's ``poll_s``) and decides on what
it finds together: an evicted group found in the same poll as the B-th good one leaves no credit.
verl has no limit on candidates (``max_num_gen_batches`` is ignored with a warning); the guard
``max_candidates`` is this lab's.
"""

import math
from collections.abc import Sequence

from dapolab.collectors.actions import Action, Collector, Finished, Limit, StopReason, Submit
from dapolab.collectors.tally import Tally
from dapolab.scenario import Rollout, VerlV1

CREDITS_PER_EVICTED = 2  # replay_buffer.py: "Evict k; refill 2k"


class VerlV1Collector(Collector):
    """Refill by credits until B groups with a spread have returned, then drain.

    Limits (verl has none, and reads its prompts in a ring; these are ours): when the data run out,
    the groups in flight may still fill the batch, then what was held is trained. A budget of time
    or tokens aborts what is in flight and trains what was held, or skips the update; a token budget
    no longer matters once the batch is full.
    """

    barrier = False

    def __init__(self, config: VerlV1, *, rollout: Rollout) -> None:
        self._config = config
        self._tally = Tally(rollout, config.budget, max_candidates=config.max_candidates)
        self._max_in_flight = config.max_inflight_gen_batches * rollout.groups_per_step
        self._held: list[Finished] = []
        self._in_flight = 0
        self._credits = 0
        self._data_left = True

    def on_start(self) -> Sequence[Action]:
        """Submit B groups."""
        return [self._submit(self._tally.n_target)]

    def on_group(self, group: Finished) -> Sequence[Action]:
        """Evict the group for two credits, or hold it."""
        self._in_flight -= 1
        if self._is_evicted(group):
            self._credits += CREDITS_PER_EVICTED
            return [self._tally.judge(group)]
        self._tally.hear(group)
        self._held.append(group)
        return []

    def on_poll(self) -> Sequence[Action]:
        """Spend credits while short of B; train once B are held and nothing is in flight."""
        if self._is_full:
            return [] if self._in_flight else self._select("full")
        if limit := self._tally.spent(held_tokens=sum(held.n_tokens for held in self._held)):
            return self._select(limit)
        return self._spend()

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Train what is held; let those in flight return first when the data run out."""
        if limit != "data":
            return self._select(limit)
        if self._data_left:
            self._data_left = False
            if self._in_flight:
                return []
        return self._select("full" if self._is_full else "data")

    @property
    def _is_full(self) -> bool:
        return len(self._held) >= self._tally.n_target

    def _is_evicted(self, group: Finished) -> bool:
        """Apply verl's test, std = 0: a group whose metric holds a NaN stays."""
        if math.isnan(group.spread):
            return False
        return self._tally.is_degenerate(group)

    def _submit(self, n: int) -> Submit:
        self._in_flight += n
        return self._tally.submit(n)

    def _spend(self) -> list[Action]:
        """Turn credits into prompts, as far as the free places allow."""
        n_next = min(self._credits, self._max_in_flight - self._in_flight)
        if n_next <= 0 or not self._data_left:
            return []
        if self._tally.is_at_guard:
            return [*self._settle(), *self._tally.fail_at_guard()]
        self._credits -= n_next
        return [self._submit(n_next)]

    def _select(self, reason: StopReason) -> list[Action]:
        """Train the first B of the held groups; the rest is surplus."""
        return [*self._settle(), *self._tally.stop(reason)]

    def _settle(self) -> list[Action]:
        in_order = sorted(self._held, key=lambda group: group.index)
        self._held = []
        return [self._tally.settle(group) for group in in_order]
