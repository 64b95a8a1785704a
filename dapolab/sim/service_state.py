"""Where the responses of a step stand, where more befalls them than their tokens."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dapolab.sim.service_draws import Luck
from dapolab.workload.model import Groups

DECODING, CALLING, SCORING, SCORED, CUT_OFF = range(5)
GENERATING = (DECODING, CALLING)
"""States out of which a response decodes again, or decodes now."""


class End(NamedTuple):
    """How one response came out otherwise than it was drawn."""

    n_tokens: int
    correct: bool
    truncated: bool


@dataclass
class Response:
    """One response: where it stands in its present sampling."""

    n_tokens: int
    state: int = DECODING
    attempt: int = 0
    n_calls: int = 0
    reached: int = 0
    stop: int = 0
    added: int = 0
    stay_from: int = 0
    since_s: float = 0.0
    end: End | None = None


@dataclass
class Group:
    """One group of the engine and what is still to come of it."""

    luck: Luck
    first: int
    enough: int
    responses: list[Response]
    chosen: list[int] = field(default_factory=list)
    n_scored: int = 0
    failed_member: int | None = None

    @property
    def has_failed(self) -> bool:
        """Whether a response failed for good."""
        return self.failed_member is not None


def as_it_came_out(group: Groups, ends: dict[int, End]) -> Groups:
    """Return one group as its responses came out; ``ends`` by place in the group."""
    n_tokens, correct = group.n_tokens_PG.copy(), group.correct_PG.copy()
    truncated = group.truncated_PG.copy()
    for member, end in ends.items():
        n_tokens[0, member], correct[0, member] = end.n_tokens, end.correct
        truncated[0, member] = end.truncated or truncated[0, member]
    return replace(group, n_tokens_PG=n_tokens, correct_PG=correct, truncated_PG=truncated)
