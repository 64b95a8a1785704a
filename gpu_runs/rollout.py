"""What one step collected: all candidates, whatever became of them, and the waves they came in."""

import math
from dataclasses import dataclass, field

from dapolab.collectors import Finished, Stop
from gpu_runs.generate import Iteration
from gpu_runs.score import Score
from gpu_runs.slots import Completion
from gpu_runs.task import Problem


@dataclass
class Candidate:
    """One group of a step; ``completions`` and ``scores`` are in the order of the samples.

    Attributes
    ----------
    index : submission order within the step, from 0; part of the key of its noise.
    position : place in the prompt stream.
    wave : barrier round within the step; None without a barrier.
    status : in_flight, then trained | degenerate | surplus | aborted.
    scores : of the samples that finished; None where a sample was aborted.
    """

    index: int
    position: int
    problem: Problem
    wave: int | None
    completions: list[Completion | None]
    scores: list[Score | None]
    status: str = "in_flight"
    finished: Finished | None = None

    @property
    def n_left(self) -> int:
        """Samples that have not returned."""
        return self.completions.count(None)


@dataclass
class Wave:
    """One barrier round: groups [first, last) of the step, its times and its iterations."""

    first: int
    last: int
    start_s: float
    first_iteration: int
    end_s: float = math.nan
    last_iteration: int = 0


@dataclass
class Rollout:
    """What one step collected: all candidates, whatever became of them.

    ``kept`` are indices in the order in which the policy kept them; empty where nothing is trained.
    """

    step: int
    start_s: float
    candidates: list[Candidate] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    waves: list[Wave] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)
    end_s: float = math.nan
    reward_s: float = 0.0
    stop: Stop | None = None
    failure: str | None = None

    @property
    def trained(self) -> list[Candidate]:
        """The groups of the batch, in order."""
        return [self.candidates[index] for index in self.kept]
