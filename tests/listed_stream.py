"""Draws that are written down, for tests: every group's lengths, right answers, luck."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapolab.sim import service_draws
from dapolab.workload.model import Groups
from tests.judge_pipeline import Luck


class ListedStream:
    """``lengths[k]`` and ``n_correct[k]`` of the k-th prompt, in this order, for some epochs.

    Stands in for dapolab.workload.PromptStream; ``epochs`` None repeats the list for ever.
    """

    def __init__(
        self,
        lengths: Sequence[Sequence[int]] | NDArray[Any],
        n_correct: Sequence[int] | NDArray[Any],
        epochs: int | None = None,
        prompt_tokens: int = 10,
    ) -> None:
        self.n_prompts = len(lengths)
        self.epochs = epochs
        self._lengths_NG = np.asarray(lengths, dtype=np.int64)
        self._n_correct_N = np.asarray(n_correct)
        self._prompt_tokens = prompt_tokens

    def n_available(self, start: int, n: int) -> int:
        if self.epochs is None:
            return n
        return max(0, min(n, self.epochs * self.n_prompts - start))

    def draw(self, start: int, n: int, *, trained_steps: int = 0) -> Groups:
        if n > self.n_available(start, n):
            raise IndexError("the stream ends before")
        position = np.arange(start, start + n)
        epoch, prompt = np.divmod(position, self.n_prompts)
        tokens, right = self._lengths_NG[prompt], self._n_correct_N[prompt]
        size = tokens.shape[1]
        return Groups(
            position_P=position,
            prompt_id_P=prompt,
            epoch_P=epoch,
            pass_rate_P=right / size,
            prompt_tokens_P=np.full(n, self._prompt_tokens),
            n_tokens_PG=tokens,
            correct_PG=np.arange(size) < right[:, None],
            truncated_PG=np.zeros_like(tokens, dtype=np.bool_),
        )


class ListedDraws:
    """Stand in for ``service_draws.Draws`` with what is written down."""

    def __init__(self, luck: list[Luck]) -> None:
        self._luck = luck

    def luck(self, position: int, n_responses: int, *, visit: int = 0) -> service_draws.Luck:
        one = self._luck[position]
        return service_draws.Luck(
            np.array(one.score_s),
            np.array(one.call_s),
            np.array(one.fails_at, dtype=np.float64),
        )
