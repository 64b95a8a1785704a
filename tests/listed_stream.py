"""A prompt stream that is written down, for tests: lengths and right answers of every group."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dapolab.workload.model import Groups


@dataclass
class ListedStream:
    """``lengths[k]`` and ``n_correct[k]`` of the k-th prompt; the list is repeated ``epochs`` times
    (None: for ever), in its order."""

    lengths: Sequence[Sequence[int]]
    n_correct: Sequence[int]
    epochs: int | None = None
    prompt_tokens: int = 10

    @property
    def n_prompts(self) -> int:
        return len(self.lengths)

    def n_available(self, start: int, n: int) -> int:
        if self.epochs is None:
            return n
        return max(0, min(n, self.epochs * self.n_prompts - start))

    def draw(self, start: int, n: int, *, trained_steps: int = 0) -> Groups:
        if n > self.n_available(start, n):
            raise IndexError("the stream ends before")
        position = np.arange(start, start + n)
        epoch, prompt = np.divmod(position, self.n_prompts)
        tokens = np.array([self.lengths[k] for k in prompt], dtype=np.int64)
        right = np.array([self.n_correct[k] for k in prompt])
        size = tokens.shape[1]
        return Groups(
            position_P=position,
            prompt_id_P=prompt,
            epoch_P=epoch,
            pass_rate_P=right / size,
            prompt_tokens_P=np.full(n, self.prompt_tokens),
            n_tokens_PG=tokens,
            correct_PG=np.arange(size) < right[:, None],
            truncated_PG=np.zeros_like(tokens, dtype=np.bool_),
        )
