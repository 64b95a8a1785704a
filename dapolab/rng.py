"""Named random streams: one seed, one name, one stream, whoever asks and in whatever order.

Common random numbers across policies rest on this: a stream is a function of (seed, names) and, for
draws addressed by position, of a counter, never of how many numbers were drawn before.
"""

import hashlib

import numpy as np


def _words(name: str | int) -> list[int]:
    if isinstance(name, int):
        return [0, name & 0xFFFFFFFF, (name >> 32) & 0xFFFFFFFF]
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return [1, *np.frombuffer(digest, dtype="<u4").tolist()]


def seed_sequence(seed: int, *names: str | int) -> np.random.SeedSequence:
    """Return the seed sequence that belongs to ``names`` under ``seed``."""
    words = [word for name in names for word in _words(name)]
    return np.random.SeedSequence([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, *words])


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return an independent generator for ``names`` under ``seed``.

    Parameters
    ----------
    seed : int, the run's seed (non-negative).
    names : what the stream is for, e.g. ``"lengths", 17``. Equal names give equal streams.
    """
    return np.random.Generator(np.random.Philox(seed_sequence(seed, *names)))
