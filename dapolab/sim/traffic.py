"""The pipeline's way to the engine: groups go in, come back, are interrupted and cancelled.

``Traffic`` is the engine alone; ``ServicedTraffic`` puts a service in between, where a group also
needs scores, calls tools or fails. Engine groups are the pipeline's groups, number by number.

What the frameworks leave open of weight updates with a service:

- While the weights are copied calls run and scores are given out. A response whose call returns
  then queues with those that were interrupted, in submission order.
- Drained updates wait for last tokens, calls included, and for no score.
- A group that failed is told of when it is seen, and needs no reward.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dapolab.collectors import Finished
from dapolab.scenario import Scenario
from dapolab.sim import decode
from dapolab.sim.collection import Serviced
from dapolab.sim.outset import Outset
from dapolab.sim.replica import Engine, Facts, FinishedGroups
from dapolab.sim.score import Scores
from dapolab.sim.service_check import needs_service
from dapolab.sim.service_draws import Draws
from dapolab.sim.service_pauses import PausingService
from dapolab.sim.service_state import as_it_came_out
from dapolab.workload.model import Groups

Int = NDArray[np.int64]


def new_traffic(scenario: Scenario, outset: Outset) -> "Traffic":
    """Return the traffic of a run."""
    if needs_service(scenario.rollout):
        return ServicedTraffic(scenario, outset)
    return Traffic(outset.engine)


class Traffic:
    """The engine alone.

    ``books`` tell, once closed, what befell responses beside their tokens; None: nothing can.
    """

    books: Serviced | None = None

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._stands = self._has_stopped = False

    @property
    def failure(self) -> str | None:
        """Message of a failure that ends the run."""
        return None

    @property
    def waited_s(self) -> tuple[float, float]:
        """Seconds so far in which the engine was empty and a score, a call was waited for."""
        return 0.0, 0.0

    def submit(self, groups: Groups) -> None:
        """Start groups now."""
        self.engine.submit(
            at_s=self.engine.now_s,
            group_P=groups.prompt_id_P,
            prompt_tokens_P=groups.prompt_tokens_P,
            n_tokens_PG=groups.n_tokens_PG,
        )

    def advance(self, until_s: float, *, until_quiet: bool) -> FinishedGroups | None:
        """Move to the next instant at which groups come back; as ``Service.advance``."""
        return self.engine.advance(until_s)

    @property
    def is_generating(self) -> bool:
        """Whether a response has not come to its last token."""
        return self.engine.n_groups_in_flight > 0

    @property
    def is_live(self) -> bool:
        """Whether something will happen by itself."""
        return self.engine.n_groups_in_flight > 0

    def outcome(self, group: int, told: Finished) -> Finished | None:
        """Return what is heard of a group that has come back, None where it failed."""
        return told

    def interrupt(self, *, keep_kv: bool) -> list[int]:
        """Stop every replica at its next boundary; return the groups that came back by then."""
        self._stands = self._has_stopped = True
        return self._stop(keep_kv=keep_kv)

    def _stop(self, *, keep_kv: bool) -> list[int]:
        self.engine.abort(at_s=self.engine.now_s, keep_kv=keep_kv)
        groups: list[int] = self.engine.drain().groups.tolist()
        return groups

    def go_on(self) -> None:
        """Let what was interrupted go on once ``release`` is called."""
        self._stands = False

    def release(self, is_wanted: Callable[[int], bool], *, front: bool) -> None:
        """Queue what was interrupted of the wanted groups, if it has not been done.

        Apart from ``go_on``, because the engine cannot interrupt what queues at this very instant.
        """
        if self._stands or not self._has_stopped:
            return
        self._has_stopped = False
        stopped = self.engine.resumable().tolist()
        going_on = [group for group in stopped if is_wanted(group)]
        if going_on:
            self.engine.resume(at_s=self.engine.now_s, groups=going_on, front=front)

    def cancel(self, groups: list[int]) -> None:
        """Abort groups that nobody wants any more."""
        if groups:
            self.engine.abort(at_s=self.engine.now_s, groups=groups)

    def under_way(self, first_group: int) -> tuple[int, Int]:
        """Return the first response of ``first_group``, and what each from there on generated.

        Those that have come to their last token count 0.
        """
        first, generated, status = self.engine.progress(first_group)
        return first, np.where(status == decode.FINISHED, 0, generated)

    def close(self) -> None:
        """Abort what still runs."""
        if self.engine.n_groups_in_flight:
            self.engine.abort(at_s=self.engine.now_s)
            self.engine.drain()

    def facts(self, is_wanted: Callable[[int], bool]) -> Facts:
        """Return the engine's facts at the end of the run.

        Wanted groups that the last weights interrupted held their slots until now.
        """
        facts = self.engine.facts()
        if self._has_stopped:
            held = np.array([is_wanted(g) for g in range(len(facts.group_end_s))], dtype=np.bool_)
            waits = held[facts.group] & (facts.status == decode.ABORTED)
            facts.end_s[waits & np.isfinite(facts.admit_s)] = self.engine.now_s
        return facts


class ServicedTraffic(Traffic):
    """The engine with a service in between."""

    def __init__(self, scenario: Scenario, outset: Outset) -> None:
        super().__init__(outset.engine)
        draws = Draws(scenario.rollout, seed=outset.seed)
        self._service = PausingService(outset.engine, scenario.rollout, draws=draws)
        self._scores: Scores = outset.scores
        self._rows: dict[int, Groups] = {}
        self._n_submitted = 0
        self.books: Serviced = Serviced()

    @property
    def failure(self) -> str | None:
        """Message of a failure that ends the run."""
        return self._service.failure

    @property
    def waited_s(self) -> tuple[float, float]:
        """Seconds so far in which the engine was empty and a score, a call was waited for."""
        return self._service.score_wait_s, self._service.call_wait_s

    def submit(self, groups: Groups) -> None:
        """Start groups now."""
        self._service.submit(
            at_s=self.engine.now_s,
            group_P=groups.prompt_id_P,
            position_P=groups.position_P,
            prompt_tokens_P=groups.prompt_tokens_P,
            n_tokens_PG=groups.n_tokens_PG,
        )
        for row in range(len(groups)):
            self._rows[self._n_submitted + row] = groups.slice(row, row + 1)
        self._n_submitted += len(groups)

    def advance(self, until_s: float, *, until_quiet: bool) -> FinishedGroups | None:
        """Move to the next instant at which groups come back; as ``Service.advance``."""
        return self._service.advance(until_s, until_quiet=until_quiet)

    @property
    def is_generating(self) -> bool:
        """Whether a response has not come to its last token."""
        return self._service.is_generating

    @property
    def is_live(self) -> bool:
        """Whether something will happen by itself."""
        return self._service.n_live > 0 or self.engine.n_groups_in_flight > 0

    def outcome(self, group: int, told: Finished) -> Finished | None:
        """Return what is heard of a group that has come back, None where it failed."""
        row = self._rows.pop(group)
        if changed := self._service.ends(group):
            row = self.books.changed[group] = as_it_came_out(row, changed)
        if self._service.has_failed(group):
            self.books.failed.add(group)
            self.books.failed_members.append((group, self._service.failed_place(group)))
            return None
        if not changed:
            return told
        return self._scores.note(row.n_tokens_PG[0], row.correct_PG[0], index=group)

    def _stop(self, *, keep_kv: bool) -> list[int]:
        return self._service.halt(keep_kv=keep_kv)

    def go_on(self) -> None:
        """Let what was interrupted go on once ``release`` is called."""
        super().go_on()
        self._service.end_halt()

    def cancel(self, groups: list[int]) -> None:
        """Abort groups that nobody wants any more."""
        self._service.cut(groups)
        super().cancel(groups)

    def under_way(self, first_group: int) -> tuple[int, Int]:
        """Return the first response of ``first_group``, and what each from there on generated.

        Those that have come to their last token count 0, and results of tools are not generated.
        """
        first, generated, _ = self.engine.progress(first_group)
        groups = range(first_group, self._n_submitted)
        return first, self._service.own_tokens(groups, generated)

    def close(self) -> None:
        """Abort what still runs, and close the books."""
        service, books, groups = self._service, self.books, range(self._n_submitted)
        service.abort(at_s=self.engine.now_s)
        self.engine.drain()
        books.stays, books.last = service.stays, [(g, service.stays_from(g)) for g in groups]
        books.n_failures, books.n_timeouts = service.failed, service.timed_out
        books.added_tokens = service.all_added_tokens(groups)
