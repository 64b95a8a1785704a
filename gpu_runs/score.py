"""What a response earns: right or wrong, the reward after the length rules, the filter's metric."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dapolab.objective import shape_rewards
from dapolab.scenario import Length
from gpu_runs.generate import Completion
from gpu_runs.task import Problem, Task

RIGHT, WRONG = 1.0, -1.0
"""Rewards before shaping (DAPO Eq. 7)."""


@dataclass(frozen=True, slots=True)
class Score:
    """One judged response."""

    right: bool
    reward: float
    """After the length rules."""
    answer: object | None
    filler: int

    @property
    def raw(self) -> float:
        """Reward of the verifier."""
        return RIGHT if self.right else WRONG


class Scores:
    """The verifier and the length rules of one run.

    Parameters
    ----------
    task : judges.
    length : the objective's length rules; shaping only, filtering belongs to the loss.
    filter_metric : what ``spread`` compares.
    """

    def __init__(self, task: Task, length: Length, *, filter_metric: str = "correct") -> None:
        self.task = task
        self._length = length
        self._shapes = length != Length(mask_truncated=length.mask_truncated)
        self._metric = filter_metric

    def judge(self, problem: Problem, completion: Completion) -> Score:
        """Judge a response that stopped or was cut at the cap."""
        finished = completion.finish == "stop"
        right = self.task.is_right(problem, completion.tokens, finished=finished)
        raw = RIGHT if right else WRONG
        return Score(
            right=right,
            reward=self._shape(raw, completion) if self._shapes else raw,
            answer=self.task.answer_of(completion.tokens),
            filler=self.task.filler_count(completion.tokens),
        )

    def _shape(self, raw: float, completion: Completion) -> float:
        shaped = shape_rewards(
            torch.tensor([raw]),
            lengths=torch.tensor([float(len(completion.tokens))]),
            truncated=torch.tensor([completion.finish == "length"]),
            config=self._length,
        )
        return float(shaped[0])

    def spread(self, scores: Sequence[Score]) -> float:
        """Return max − min of the filter's metric within a group (0 or 2 where it is raw)."""
        raw = self._metric == "correct"
        values = [score.raw if raw else score.reward for score in scores]
        return max(values) - min(values)
