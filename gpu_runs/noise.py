"""Sampling noise that is a function of what is sampled, not of when or beside what; no torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_GAMMA = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def mix(value: int) -> int:
    """Scramble 64 bits: one step of splitmix64 (Steele, Lea, Flood 2014, Fig. 17)."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_all(values: Array) -> Array:
    """:func:`mix` of an array; unsigned arithmetic wraps by itself."""
    values = values + np.uint64(_GAMMA)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = values ^ (values >> np.uint64(31))
    return mixed


def uniforms(seed: int, keys: Sequence[tuple[int, ...]], n: int) -> Array:
    """Return the uniforms in (0, 1) of positions 0 … n−1 of responses.

    Parameters
    ----------
    seed : of the run.
    keys : (step, group, sample) of each response.

    Returns
    -------
    float64 [len(keys), n]; each depends on (seed, key, position) alone.
    """
    states = []
    for key in keys:
        state = 0
        for word in (seed, *key):
            state = mix(state ^ (word & _MASK))
        states.append(state)
    positions = np.arange(n, dtype=np.uint64)
    bits = _mix_all(_mix_all(positions ^ np.array(states, dtype=np.uint64)[:, None]))
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
