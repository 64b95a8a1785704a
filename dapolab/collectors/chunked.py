"""Chunks: a whole chunk of O groups whenever fewer than B could still be accepted (slime, APRIL).

Who does it: slime (rollout/sglang_rollout.py:374-470) and miles. ``remaining`` = submitted −
dropped counts the accepted and those in flight; whenever it is below B a chunk of
``over_sampling_batch_size`` O ≥ B groups goes out, so that with O = B one drop puts 2B − 1 groups
in flight (pull 2217 is about that). Groups found together are judged one by one, then the need is
looked at. At B accepted the step stops: what was accepted beyond B is lost without a word, what
runs is aborted. There is no cap; ``max_candidates`` is a guard of this lab.

``fallback`` (keep_when_insufficient, base_types.py:15-24): a reject is kept, and counts towards B,
where ``remaining`` ≤ B at that moment; it never starts a chunk, and with O = B never drops a group.

With ``leftovers = "resume"`` (``partial_rollout``, APRIL, arXiv 2509.18521) the aborted groups go
back to the data buffer, finished responses and all, and are taken first by the next step.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Carried, Collector, Finished, Limit, StopReason
from dapolab.collectors.tally import Tally
from dapolab.scenario import Chunked, Rollout


class ChunkedCollector(Collector):
    """Submit chunks while accepted + in flight is below B; stop at B accepted.

    Limits: when the data run out (slime reads its prompts in a ring; ours), the groups in flight
    may still fill the batch, then what was accepted is trained. A budget of time or tokens cuts
    what is in flight and trains what was accepted, or skips the update.
    """

    barrier = False

    def __init__(self, config: Chunked, *, rollout: Rollout, carried: Carried) -> None:
        del carried  # nothing returned is ever held; what was cut is resumed by ``Submit``
        self._config = config
        self._tally = Tally(rollout, config.budget, max_candidates=config.max_candidates)
        self._chunk = max(config.over_sampling_batch_size or 0, rollout.groups_per_step)
        self._data_left = True
        self.memory = config.leftovers != "abort"

    def on_start(self) -> Sequence[Action]:
        """Submit the first chunk."""
        return [self._tally.submit(self._chunk)]

    def on_group(self, group: Finished) -> Sequence[Action]:
        """Accept or drop the group."""
        tally = self._tally
        tally.hear(group)
        is_needed = self._config.fallback and self._remaining <= tally.n_target
        if tally.is_degenerate(group) and not is_needed:
            return [tally.drop_degenerate(group)]
        return [tally.settle(group)]

    def on_poll(self) -> Sequence[Action]:
        """Stop at B accepted; submit a chunk where fewer than B can still be accepted."""
        tally = self._tally
        if tally.is_full:
            return self._stop("full")
        if limit := tally.spent():
            return self._stop(limit)
        if self._remaining >= tally.n_target or not self._data_left:
            return []
        if tally.is_at_guard:
            return tally.fail_at_guard()
        return [tally.submit(self._chunk)]

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Cut and train what was accepted; let those in flight return when the data run out."""
        if limit == "data" and self._data_left:
            self._data_left = False
            return []
        return self._stop(limit)

    @property
    def _remaining(self) -> int:
        """Groups accepted or in flight."""
        return self._tally.n_submitted - self._tally.n_degenerate

    def _stop(self, reason: StopReason) -> list[Action]:
        later = "never" if self._config.leftovers == "abort" else self._config.leftovers
        return self._tally.stop(reason, later=later)
