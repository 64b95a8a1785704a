"""What a collection policy hears and what it may answer: the contract with whoever drives it.

One policy object serves one training step. It has no clock and moves no tokens; the simulator and a
real rollout engine drive the same object in the same way:

- ``on_start`` once, before anything is in flight.
- A *barrier* policy then gets ``on_wave_end`` with the groups of a wave once all of them have
  returned; any other policy gets ``on_group`` for each group that returns. Groups that return at
  one instant (or are found by one poll) come in submission order, and ``on_poll`` follows the last.
- ``on_limit`` when something outside the policy's own rule ends the step (see ``Limit``).

The driver carries actions out in order. After ``Stop`` or ``Fail`` the object is not called again:
groups that returned at that same instant are surplus, those still running are aborted.

Most policies forget a step when it ends. Those with a memory (``memory`` is true) are given what
earlier steps left as ``Carried`` and leave something themselves: returned groups by ``Carry``, cut
ones by ``Abort`` with ``later``, and a ``note`` of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Limit = Literal["seconds", "candidate_tokens", "train_tokens", "data"]
"""What may end a step from outside the policy's own rule.

seconds
    The time budget is spent: a decision point. A barrier policy is first given, by ``on_wave_end``,
    the groups of the running wave that have returned; of its answer only ``Keep`` and ``Drop`` are
    carried out. Everything in flight is lost.
candidate_tokens, train_tokens
    Policies count the tokens of the groups they judged and stop by themselves; a driver that counts
    tokens in flight too may call earlier.
data
    A ``Submit`` found no prompt left, or the policy waits while nothing is in flight (a ``Submit``
    was served with fewer prompts than it asked for). May be called twice.
"""

DropReason = Literal["degenerate", "surplus", "stale"]
Later = Literal["never", "resume", "resume_with_kv", "restart"]
StopReason = Literal[
    "full", "one_wave", "cap", "returned", "seconds", "candidate_tokens", "train_tokens", "data"
]


@dataclass(slots=True)
class Finished:
    """One returned group, as the policy sees it; nobody changes it.

    Not frozen, because one is made for every candidate and frozen ones take five times as long.
    """

    index: int
    """Submission order within the step, from 0."""
    n_samples: int
    """Responses in the group."""
    n_correct: int
    """Right answers among them."""
    spread: float
    """Largest minus smallest filter metric of the group; NaN where a metric is missing."""
    n_tokens: int
    """Response tokens of the group."""
    metrics: tuple[float, ...] = ()
    """Filter metric of each response; told to policies with ``wants_metrics`` alone."""
    age: int = 0
    """Weight versions since the group was first submitted."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What earlier steps left for this one.

    Groups that returned and wait have the indices 0 … len(held) − 1, oldest first; groups that were
    cut come next, and ``Submit`` resumes them, oldest first, before it takes new prompts.
    """

    held: tuple[Finished, ...] = ()
    n_cut: int = 0
    n_waiting: int = 0
    """Prompts that wait to be sampled afresh (``Submit`` with ``waiting``)."""
    note: object = None
    """What the policy of the step before left in its ``note``."""
    step: int = 0
    """Steps before this one."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Sample the next ``n`` prompts of the stream, or as many of them as there are.

    Cut groups are resumed first and count. ``samples``: responses a prompt, G where absent;
    ``enough``: the group returns with its first so many responses, the others are cut off;
    ``segment_tokens``: a response stops after so many tokens of this step, and a group with such a
    response is not told of but cut; ``waiting``: take prompts that wait to be sampled afresh.
    """

    n: int
    samples: int | None = None
    enough: int | None = None
    segment_tokens: int | None = None
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class Continue:
    """Sample ``samples`` more responses for a group that returned with fewer; it returns again."""

    index: int
    samples: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Train this group. Groups are trained in the order of their ``Keep``.

    ``members``: train these of its responses only; the others are dropped as degenerate.
    """

    index: int
    members: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """Train a kept group once more, in place of one that was dropped."""

    index: int


@dataclass(frozen=True, slots=True)
class Carry:
    """Hold a group that returned for the next step."""

    index: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Throw this group away."""

    index: int
    reason: DropReason


@dataclass(frozen=True, slots=True)
class Abort:
    """Cut off everything in flight at the next iteration boundary.

    ``later``: lost for ever; set aside with its tokens, to go on in a later step (with its KV, or
    after a new prefill); or its tokens are lost and the prompt waits to be sampled afresh.
    """

    later: Later = "never"


@dataclass(frozen=True, slots=True)
class Stop:
    """The collection is over: train what was kept, or skip the update."""

    reason: StopReason
    train: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """The framework would raise here and the run would die."""

    message: str


Action = Submit | Continue | Keep | Repeat | Drop | Carry | Abort | Stop | Fail


class Collector(Protocol):
    """One collection policy during one training step. A policy class derives from this."""

    barrier: bool
    """Whether groups are judged by whole waves (``on_wave_end``) or one by one (``on_group``)."""
    memory: bool = False
    """Whether one step leaves something to the next."""
    wants_metrics: bool = False
    """Whether it asks for the filter metric of every response (``Finished.metrics``)."""
    samples_apart: bool = False
    """Whether the responses of a group may be asked for, or return, at different times."""
    repeats: bool = False
    """Whether a group may be trained more than once (``Repeat``)."""
    note: object = None
    """What it wants to be told in the next step (``Carried.note``)."""

    @property
    def is_plain(self) -> bool:
        """Whether a driver that knows whole groups of G and no earlier step can play it."""
        return not (self.memory or self.wants_metrics or self.samples_apart or self.repeats)

    def on_start(self) -> Sequence[Action]:
        """Open the step."""
        ...

    def on_wave_end(self, wave: Sequence[Finished]) -> Sequence[Action]:
        """Judge a wave."""
        raise TypeError("a policy without a barrier judges group by group")

    def on_group(self, group: Finished) -> Sequence[Action]:
        """Judge one group."""
        raise TypeError("a policy with a barrier judges whole waves")

    def on_poll(self) -> Sequence[Action]:
        """Decide on the groups of one instant together; most policies have decided one by one."""
        return ()

    def on_limit(self, limit: Limit) -> Sequence[Action]:
        """Answer a limit; only ``data`` may be answered by going on with what is in flight."""
        ...
