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
    # each window: N at its start, then N after every event strictly inside it
    at_start = np.concatenate([[0], n_after])[np.searchsorted(times, edges_s[:-1], side="right")]
    inside = (times > edges_s[0]) & (times < edges_s[-1]) & ~np.isin(times, edges_s)
    place = np.searchsorted(times[inside], edges_s[:-1])
    entries = np.insert(n_after[inside], place, at_start)
    starts = place + np.arange(len(place))
    return np.asarray(np.maximum.reduceat(entries, starts), dtype=np.float64)


def over(x: Float, y: Float) -> Float:
    """Return x/y, NaN where there is nothing to divide by."""
    return np.asarray(np.divide(x, y, out=np.full(len(x), np.nan), where=y > 0))


def share(x: Float, y: Float) -> Float:
    """Return x/y cut to 1: sums of differences of large times round."""
    return np.minimum(over(x, y), 1.0)
