"""How full the engine was in consecutive windows of time, from when each response came and went."""

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


def resident_s(begin_s: Float, end_s: Float, edges_s: Float) -> Float:
    """Return ∫N(t)dt over each window between ``edges_s``, N the intervals that are open.

    By F(t) = Σ min(end, t) − min(begin, t), whose differences are exact for any overlap.
    """
    return np.asarray(np.diff(_clipped_sum(end_s, edges_s) - _clipped_sum(begin_s, edges_s)))


def _clipped_sum(x: Float, t: Float) -> Float:
    """Return Σ min(x, t) for each ``t``."""
    ordered = np.sort(x)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    below = np.searchsorted(ordered, t, side="right")
    return np.asarray(total[below] + (len(ordered) - below) * t)


def merged(begin_s: Float, end_s: Float) -> tuple[Float, Float]:
    """Return the union of the intervals as disjoint ones, in order."""
    if len(begin_s) == 0:
        return begin_s, end_s
    order = np.argsort(begin_s, kind="stable")
    begins, reach = begin_s[order], np.asarray(np.maximum.accumulate(end_s[order]))
    opens = np.concatenate([[True], begins[1:] > reach[:-1]])
    last = np.concatenate([np.flatnonzero(opens)[1:] - 1, [len(begins) - 1]])
    return begins[opens], reach[last]


def peak_resident(begin_s: Float, end_s: Float, edges_s: Float) -> Float:
    """Return the largest N(t) within each window, that at its start included.

    An end frees its place before a beginning at the same instant takes it.
    """
    times = np.concatenate([end_s, begin_s])
    change = np.concatenate([np.full(len(end_s), -1), np.ones(len(begin_s), dtype=np.int64)])
    order = np.argsort(times, kind="stable")
    times, n_after = times[order], np.cumsum(change[order])
    # a window's first entry is N at its start: one entry is put in before its events
    at = np.searchsorted(times, edges_s[:-1], side="right")
    padded = np.concatenate([[0], n_after])
    entries = np.insert(n_after, at, padded[at])
    starts = at + np.arange(len(at))
    stop = np.searchsorted(times, edges_s[-1], side="left") + len(at)
    return np.asarray(np.maximum.reduceat(entries[: max(stop, starts[-1] + 1)], starts), float)
