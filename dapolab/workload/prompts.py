"""The prompt pool: a finite set, walked epoch by epoch, and random numbers addressed by place.

A prompt keeps its attributes over epochs because they are a function of (seed, prompt_id); a
response's random numbers are a function of (seed, position, place in the group) alone. Nothing
depends on what was drawn before, so all policies see the same candidates.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dapolab import rng
from dapolab.scenario import Prompts
from dapolab.workload.lengths import whole_tokens

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Positions of one block of the stream; a block is drawn as a whole from its own Philox counter.
BLOCK = 256


class BlockDraws:
    """Random numbers of one kind for the whole prompt stream, a block of positions at a time.

    One Philox key per (seed, kind); the block number is a high word of the counter, so blocks can
    never overlap. The array is place-major: the numbers of a group of 8 are the first 8 of what a
    group of 16 gets at the same position.
    """

    def __init__(self, seed: int, kind: str) -> None:
        words = rng.seed_sequence(seed, "responses", kind).generate_state(4)
        self._key = words.astype(np.uint32).view(np.uint64)

    def _generator(self, block: int) -> np.random.Generator:
        counter = np.array([0, 0, block, 0], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))

    def uniform(self, block: int, n: int) -> Floats:
        """Return uniforms in [0, 1), shape (n, BLOCK)."""
        return self._generator(block).random((n, BLOCK))

    def normal(self, block: int, n: int) -> Floats:
        """Return standard normals, shape (n, BLOCK)."""
        return self._generator(block).standard_normal((n, BLOCK))


class PromptPool:
    """The walk through a finite prompt set.

    With ``reshuffle`` every epoch has its own order; without, the order of epoch 0 is repeated.
    """

    def __init__(self, prompts: Prompts, *, count: int, seed: int) -> None:
        self.count = count
        self.n_positions = None if prompts.epochs is None else prompts.epochs * count
        self._seed = seed
        self._reshuffle = prompts.reshuffle
        self._order = lru_cache(maxsize=4)(self._shuffle)
        sigma = prompts.tokens_sigma
        z = self.normal("prompt tokens") if sigma else np.zeros(count)
        self.tokens_N: Ints = whole_tokens(prompts.tokens_median * np.exp(sigma * z))

    def normal(self, name: str) -> Floats:
        """Return one standard normal per prompt id, shape (count,)."""
        return rng.stream(self._seed, "prompts", name).standard_normal(self.count)

    def uniform(self, name: str) -> Floats:
        """Return one uniform in (0, 1) per prompt id, shape (count,)."""
        # random() is a multiple of 2⁻⁵³ that can be 0; half a step keeps inverse cdfs finite.
        return rng.stream(self._seed, "prompts", name).random(self.count) + 2.0**-54

    def _shuffle(self, epoch: int) -> Ints:
        return rng.stream(self._seed, "order", epoch).permutation(self.count).astype(np.int64)

    def walk(self, position: Ints) -> tuple[Ints, Ints]:
        """Return prompt ids and epochs of stream positions."""
        epoch, place = np.divmod(position, self.count)
        prompt_id = np.empty_like(position)
        for number in np.unique(epoch):
            here = epoch == number
            prompt_id[here] = self._order(int(number) if self._reshuffle else 0)[place[here]]
        return prompt_id, epoch
