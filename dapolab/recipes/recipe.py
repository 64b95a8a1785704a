"""What a recipe is: one framework's objective at one version, with where it was found."""

from dataclasses import dataclass
from typing import Literal

from dapolab.scenario.collector import Collector
from dapolab.scenario.objective import Objective

UNKNOWN_DATE = "date unknown"
"""Of sources whose commit was noted and whose date was not to be found."""


@dataclass(frozen=True)
class Evidence:
    """How far the settings of a recipe can be trusted."""

    how: Literal["judged", "read"]
    """judged: the conformance tests compare loss and gradient with the framework itself; read: the
    source or the paper was read, nothing was run."""
    reference: str
    """The judge's package and version, or the commit or paper that was read."""
    date: str = UNKNOWN_DATE
    """Date of that commit, release or paper, ISO; its month where no day is known.

    "by" a day where the source was seen then, or a later release no longer holds it; "after" a day
    where it holds what was added then. The recipe's notes or comments name that change."""

    def __str__(self) -> str:
        """Return how, at what and when, in one line."""
        return f"{self.how}: {self.reference} ({self.date})"


@dataclass(frozen=True)
class Batch:
    """How the responses of one rollout step become optimizer updates."""

    prompts: int | None = None
    """Prompts trained in one rollout step; absent: the framework gives no number."""
    group_size: int | None = None
    """Responses a prompt."""
    responses_per_update: int | None = None
    """Responses of one optimizer update, over all ranks; absent: all of the step."""
    epochs: int = 1
    """Passes over the responses of one rollout step."""
    denominator: Literal["old", "sampler"] = "old"
    """Whose log-probs the ratio is taken against: recomputed by the trainer, or the sampler's."""
    note: str = ""

    @property
    def updates_per_rollout(self) -> int | None:
        """Optimizer updates a rollout step; only those after the first can clip against ``old``."""
        if self.prompts is None or self.group_size is None:
            return None
        n_responses = self.prompts * self.group_size
        return self.epochs * -(-n_responses // (self.responses_per_update or n_responses))


@dataclass(frozen=True)
class Recipe:
    """One named objective as plain data; see ``dapolab.recipes`` for all of them."""

    id: str
    framework: str
    version: str
    summary: str
    """One line: what this recipe is, or what changed with it."""
    objective: Objective
    """The loss as the framework computes it with these defaults."""
    evidence: Evidence
    source: tuple[str, ...]
    """File and lines, or paper and equations."""
    collector: Collector | None = None
    """Its way to fill a batch; absent: the framework's own is not among the collectors."""
    batch: Batch = Batch()
    when_no_signal: Literal["train", "skip", "error", "resample"] = "train"
    """A batch without any group with spread: trained with a gradient of 0, no update, an error, or
    sampled again without limit."""
    notes: tuple[str, ...] = ()
