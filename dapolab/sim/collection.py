"""What one step collected: its groups, what became of each, and where the engine ran them."""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dapolab.collectors import Finished, Stop
from dapolab.sim.backlog import Left
from dapolab.sim.replica import Stay
from dapolab.workload.model import Groups

IN_FLIGHT, TRAINED, DEGENERATE, SURPLUS, ABORTED, STALE, CARRIED, FAILED = range(8)
_OUTCOMES = ("n_tokens_PG", "correct_PG", "truncated_PG")
_UNRETURNED = (ABORTED, CARRIED, FAILED)


class Part(NamedTuple):
    """One group of the engine: responses [first, first + n) of ``group``, from ``at_s``."""

    engine_group: int
    group: int
    first: int
    n: int
    at_s: float


@dataclass
class Wave:
    """One barrier round: parts [first, last) of the step and its times in seconds."""

    first: int
    last: int
    start_s: float
    decode_start_s: float
    end_s: float = math.nan
    seen_s: float = math.nan


@dataclass
class Serviced:
    """What befell a step's responses beside their tokens; by group of the step.

    ``changed`` are groups whose responses came out otherwise than drawn, as one row each;
    ``failed`` groups were thrown away; ``stays`` precede the engine's own rows, which ``last``
    describes (``service_stays.with_stays``); ``n_failures`` and ``n_timeouts`` count by group;
    ``failed_members`` (group, response) failed for good. In a pipeline the groups are all of the
    run's, and ``added_tokens`` the results of tools in each response's last context.
    """

    changed: dict[int, Groups] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    stays: list[Stay] = field(default_factory=list)
    last: list[tuple[int, list[tuple[float, int]]]] = field(default_factory=list)
    n_failures: dict[int, int] = field(default_factory=dict)
    n_timeouts: dict[int, int] = field(default_factory=dict)
    failed_members: list[tuple[int, int]] = field(default_factory=list)
    score_wait_s: float = 0.0
    call_wait_s: float = 0.0
    added_tokens: NDArray[np.int64] | None = None

    def as_ended(self, groups: Groups) -> Groups:
        """Return the step's groups as their responses came out."""
        if not self.changed:
            return groups
        columns = {name: getattr(groups, name).copy() for name in _OUTCOMES}
        for index, changed in self.changed.items():
            for name, column in columns.items():
                column[index] = getattr(changed, name)[0]
        return replace(groups, **columns)


@dataclass
class Collection:
    """What one step collected; lists over the step's groups, carried ones first, by submission.

    ``finished[i]`` is what the policy is told of group i once it has returned. The groups are those
    of ``left`` (taken over from earlier steps), then ``runs``, places in the prompt stream as
    (start, number of positions), then ``again``, prompts sampled afresh. ``parts`` are the engine's
    groups in the order in which they entered this step; where ``is_plain`` part i is all of group
    i. ``members`` names the responses that make up a group, where those are not all of it, and
    ``trained_members`` those of them that are trained; ``holds`` are the carried groups that have
    returned, ``keep`` the engine's ids of those that were cut and go on; ``lost`` were in flight
    at the end; ``n_skipped`` places of the stream were passed over by selection.
    """

    start_s: float
    trained_steps: int = 0
    left: list[Left] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)
    again: list[Groups] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    trained_members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    holds: set[int] = field(default_factory=set)
    keep: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    limits: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    waves: list[Wave] = field(default_factory=list)
    is_plain: bool = True
    n_skipped: int | None = None
    has_memory: bool = False
    end_s: float = math.nan
    stop: Stop | None = None
    failure: str | None = None
    service: Serviced | None = None

    @property
    def n_returned(self) -> int:
        """Groups that came to an end with all their responses, trained or not."""
        return sum(status not in _UNRETURNED for status in self.status)

    def returned(self) -> list[tuple[int, Finished]]:
        """Return the groups counted by ``n_returned`` with what was told of them."""
        return [
            (index, self.finished[index])
            for index, status in enumerate(self.status)
            if status not in _UNRETURNED
        ]

    @property
    def is_empty(self) -> bool:
        """Whether the step had no group at all."""
        return not self.status

    def enter(self, start: int, n: int) -> None:
        """Note that ``n`` new groups were taken from the stream at ``start``."""
        if self.runs and sum(self.runs[-1]) == start:
            self.runs[-1] = (self.runs[-1][0], self.runs[-1][1] + n)
        else:
            self.runs.append((start, n))
