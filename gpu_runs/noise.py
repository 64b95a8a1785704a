"""Sampling noise that is a function of what is sampled, not of when or beside what."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

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


def uniforms(seed: int, key: tuple[int, ...], n: int) -> Array:
    """Return the uniforms in (0, 1) of positions 0 … n−1 of one response.

    Parameters
    ----------
    seed : of the run.
    key : (step, group, sample).

    Returns
    -------
    float64 [n]; each depends on (seed, key, position) alone.
    """
    state = 0
    for word in (seed, *key):
        state = mix(state ^ (word & _MASK))
    bits = _mix_all(_mix_all(np.arange(n, dtype=np.uint64) ^ np.uint64(state)))
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def draw(logits_NV: Tensor, noise_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the token at each uniform by inverse CDF, and its log-probability.

    The softmax is fp32, its running sum fp64: token v is drawn where
    cdf(v − 1) ≤ u·cdf(V − 1) < cdf(v), so one of probability 0 never is.

    Parameters
    ----------
    logits_NV : fp32. noise_N : fp64, in (0, 1).
    """
    p_NV = torch.softmax(logits_NV / temperature, dim=-1)
    cdf_NV = p_NV.cumsum(-1, dtype=torch.float64)
    total_N1 = cdf_NV[:, -1:]
    below_N1 = torch.minimum(noise_N[:, None] * total_N1, total_N1.nextafter(-total_N1))
    tokens_N1 = torch.searchsorted(cdf_NV, below_N1, right=True)
    tokens_N1 = tokens_N1.clamp(max=logits_NV.shape[-1] - 1)  # NaN logits stay inside, too
    return tokens_N1[:, 0], p_NV.gather(-1, tokens_N1)[:, 0].log()
