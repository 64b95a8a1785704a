"""How full the engine was, stretch by stretch: a stretch is a barrier wave or a step without one.

Stretches follow each other in time and never overlap, so one sort of all starts and one of all ends
serve every stretch of a batch at once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]

PERCENTS = (50, 90, 95, 99)


@dataclass(frozen=True)
class Occupancy:
    """Concurrency of W stretches of engine time.

    ``slot_s_W`` is ∫N(t)dt, N the responses that were admitted and not yet over; ``peak_W`` the
    largest N; ``idle_share_W`` = 1 − mean/peak, the share of used slots that wait for the longest;
    ``done_s`` the instant at which a percentage of a stretch's responses was over, by percent.
    """

    start_s_W: Float
    seconds_W: Float
    slot_s_W: Float
    peak_W: Int
    idle_share_W: Float
    done_s: dict[int, Float]
    n_responses_W: Int

    def done_after_s(self, percent: int) -> Float:
        """Return the seconds until ``percent`` % of a stretch's responses were over, (W,)."""
        return self.done_s[percent] - self.start_s_W


def occupancy(
    admit_s: Float, end_s: Float, *, n_responses_W: Int, start_s_W: Float, stop_s_W: Float
) -> Occupancy:
    """Return the concurrency of consecutive stretches.

    ∫N(t)dt is the sum of sojourns (theory F7), so the mean needs no sweep; the peak does.

    Parameters
    ----------
    admit_s, end_s : shape (n,), responses stretch by stretch; NaN where never admitted.
    n_responses_W : responses of each stretch, summing to n; an empty stretch is all idle time.
    start_s_W, stop_s_W : stretches in order of time, not overlapping.
    """
    if not n_responses_W.all():
        return _with_empty(
            admit_s, end_s, n_responses_W=n_responses_W, start_s_W=start_s_W, stop_s_W=stop_s_W
        )
    first_W = np.cumsum(n_responses_W) - n_responses_W
    admitted = np.isfinite(admit_s)
    sojourn_s = np.where(admitted, np.maximum(end_s - admit_s, 0.0), 0.0)
    slot_s_W = np.add.reduceat(sojourn_s, first_W)
    sorted_ends = np.sort(end_s)
    done_s = {
        percent: sorted_ends[first_W + (n_responses_W * percent + 99) // 100 - 1]
        for percent in PERCENTS
    }
    n_admitted_W = np.add.reduceat(admitted.astype(np.int64), first_W)
    if admitted.all():
        begins, ends = np.sort(admit_s), sorted_ends
    else:
        begins, ends = np.sort(admit_s[admitted]), np.sort(end_s[admitted])
    peak_W = _peaks(begins, ends, n_admitted_W)
    seconds_W = np.maximum(stop_s_W - start_s_W, 0.0)
    full_s_W = peak_W * seconds_W
    used_W = np.divide(slot_s_W, full_s_W, out=np.ones_like(slot_s_W), where=full_s_W > 0)
    share_W = np.clip(1.0 - used_W, 0.0, 1.0)
    return Occupancy(start_s_W, seconds_W, slot_s_W, peak_W, share_W, done_s, n_responses_W)


def _with_empty(
    admit_s: Float, end_s: Float, *, n_responses_W: Int, start_s_W: Float, stop_s_W: Float
) -> Occupancy:
    """Leave stretches without a response out, then put them back as stretches of no length."""
    some = n_responses_W > 0
    n = len(some)
    rest = None
    if some.any():
        rest = occupancy(
            admit_s,
            end_s,
            n_responses_W=n_responses_W[some],
            start_s_W=start_s_W[some],
            stop_s_W=stop_s_W[some],
        )

    def back(x_W: Float | Int | None) -> Float:
        out = np.zeros(n)
        if x_W is not None:
            out[some] = x_W
        return out

    return Occupancy(
        start_s_W,
        back(rest.seconds_W if rest else None),
        back(rest.slot_s_W if rest else None),
        back(rest.peak_W if rest else None).astype(np.int64),
        back(rest.idle_share_W if rest else None),
        {p: np.where(some, back(rest.done_s[p] if rest else None), start_s_W) for p in PERCENTS},
        n_responses_W,
    )


def _peaks(begins: Float, ends: Float, n_admitted_W: Int) -> Int:
    """Return the largest number of responses between begin and end in each stretch."""
    peak_W = np.zeros(len(n_admitted_W), dtype=np.int64)
    if len(begins) == 0:
        return peak_W
    # an end frees its slot before a start at the same instant takes it
    running = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    some = n_admitted_W > 0
    first = (np.cumsum(n_admitted_W) - n_admitted_W)[some]
    peak_W[some] = np.maximum(np.maximum.reduceat(running, first), 1)
    return peak_W
