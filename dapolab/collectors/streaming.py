"""Streaming: K groups always in flight, stop at the B-th kept; abort the rest, or go on with it.

Who does it: AReaL in its synchronous limit (infra/workflow_executor.py:634-731) keeps a pool busy
and takes what returns first. No slot ever waits, but the groups in flight at the stop are the long
ones: what is trained is short-biased, and what is aborted was paid for.

With ``leftovers = "resume"`` the groups in flight are set aside and go on first in the next step,
and with ``surplus = "carry"`` those that returned beyond B open its batch:

- the verl recipe partial_rollout (prompt_manager.py, agent_loop.py): B prompts in flight, each
  return pulls one more, stop at B done; the cut go to the front of the queue, the done ones beyond
  B stay in it; a prompt whose versions span 10 or more is dropped when it returns. No filter.
- open-instruct with ``active_sampling`` (data_loader.py:1006-1184): each result replenishes one
  prompt, ``async_steps``·B in flight, constant groups are dropped and so are results older than
  ``async_steps``.
"""

from collections.abc import Sequence

from dapolab.collectors.actions import Action, Carried, Collector, Finished, Limit, StopReason
from dapolab.collectors.tally import Tally
from dapolab.scenario import Rollout, Streaming


class StreamingCollector(Collector):
    """Refill every slot that falls free until B groups are kept.

    What returns at one instant is judged together, so that groups beyond B can be carried over.
    Limits: when the data run out, the groups in flight may still fill the batch; once they have
    returned, what was kept is trained. A budget of time or tokens cuts what is in flight (it is
    lost or goes on, by ``leftovers``) and trains what was kept, or skips the update.
    ``max_candidates`` is a guard of this lab.
    """

    barrier = False

    def __init__(self, config: Streaming, *, rollout: Rollout, carried: Carried) -> None:
        self._config = config
        self._tally = Tally(
            rollout, config.budget, filters=config.filter, max_candidates=config.max_candidates
        )
        self._tally.take_over(carried)
        self._carried = carried.held
        self._n_slots = config.slots or config.slots_per_target * rollout.groups_per_step
        self._data_left = True
        self._n_returned = 0
        self.memory = config.leftovers != "abort" or config.surplus == "carry"

    def on_start(self) -> Sequence[Action]:
        """Train what was carried over; fill the K slots where that is not enough."""
        judged = [self._judge(group) for group in self._carried]
        if self._tally.is_full:
            return [*judged, *self._stop("full")]
        return [*judged, self._tally.submit(self._n_slots)]

    def on_group(self, group: Finished) -> Sequence[Action]:
        """Keep or drop the group."""
        self._n_returned += 1
        self._tally.hear(group)
        return [self._judge(group)]

    def on_poll(self) -> Sequence[Action]:
        """Stop at B kept, else refill the slots that fell free."""
        tally = self._tally
        if tally.is_full:
            return self._stop("full")
        if limit := tally.spent():
            return self._stop(limit)
        n_free, self._n_returned = self._n_returned, 0
        actions: list[Action] = []
        while n_free and self._data_left:
            if tally.is_at_guard:
                return [*actions, *tally.fail_at_guard()]
            actions.append(tally.submit(1))
            n_free -= 1
        return actions

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Cut and train what was kept; let those in flight return when the data run out."""
        if limit == "data" and self._data_left:
            self._data_left = False
            return []
        return self._stop(limit)

    def _judge(self, group: Finished) -> Action:
        tally, config = self._tally, self._config
        if config.max_age is not None and group.age > config.max_age:
            return tally.drop_stale(group)
        if config.filter and tally.is_degenerate(group):
            return tally.drop_degenerate(group)
        return tally.settle_or_carry(group) if config.surplus == "carry" else tally.settle(group)

    def _stop(self, reason: StopReason) -> list[Action]:
        later = "never" if self._config.leftovers == "abort" else self._config.leftovers
        return self._tally.stop(reason, later=later)
