"""A task and a model so small that real engine and trainer run in milliseconds.

An untrained model stops at random; whether an answer is right depends on its tokens and on the
prompt's level: 0 never, 4 always (if it stopped), 1 to 3 now and then.
"""

from collections.abc import Sequence

import torch

from gpu_runs.generate import Generator
from gpu_runs.model import Decoder, ModelConfig
from gpu_runs.task import Problem, Split

PAD, BOS, STOP = 0, 1, 2
VOCAB = 10
CAP = 48


class LevelTask:
    vocab_size = VOCAB
    stop_token = STOP
    pad_token = PAD

    def problems(self, split: Split, n: int, *, seed: int) -> list[Problem]:
        first = 10_000 if split == "heldout" else 0
        return [
            Problem(first + i, (BOS, 3 + i % 7, 3 + i // 7 % 7), i % 5, i % 5, f"level {i % 5}")
            for i in range(n)
        ]

    def is_right(self, problem: Problem, response: Sequence[int], *, finished: bool) -> bool:
        return finished and sum(response) % 4 < problem.difficulty

    def answer_of(self, response: Sequence[int]) -> int | None:
        return sum(response) % 4 if response[-1] == STOP else None

    def filler_count(self, response: Sequence[int]) -> int:
        return response.count(9) if isinstance(response, tuple) else 0


def tiny_model(seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(
        ModelConfig(
            vocab_size=VOCAB, d_model=16, n_layers=1, n_heads=2, n_kv_heads=2, d_mlp=32,
            max_positions=64,
        )
    )  # fmt: skip


def tiny_generator(
    model: Decoder, *, slots: int = 512, seed: int = 3, cap_tokens: int = CAP
) -> Generator:
    return Generator(model, LevelTask(), slots=slots, cap_tokens=cap_tokens, seed=seed)
