"""Steps for rows that carry none: the dict lines of a HF trainer's console."""

from dapolab.logs.console import Unnumbered
from dapolab.logs.rows import RowStore
from dapolab.logs.trl import COUNTED


def number_rows(trainings: list[Unnumbered], *, every: int | None) -> RowStore:
    """Give each row its training step, where that is known; else its place, marked as such.

    The interval is the user's, or the one whole number that fits a finished training: its total of
    steps and its count of rows. An unfinished one says nothing: its last rows may be missing.
    """
    store = RowStore()
    for training in trainings:
        interval = every if every is not None else interval_of(training)
        start = training.first_step if interval else 0
        for place, (line, values) in enumerate(training.rows, start=1):
            if interval:
                step = (start // interval + place) * interval
                store.add(step, values, line=line)
            else:
                store.add(place, values | {COUNTED: 1.0}, line=line)
    return store


def interval_of(training: Unnumbered) -> int | None:
    """Return the only logging interval that gives this many rows, or None."""
    total, n_rows = training.total_steps, len(training.rows)
    if not training.is_finished or not total or not n_rows:
        return None
    longest = (total - training.first_step) // n_rows
    fits = [
        m
        for m in range(max(longest // 2, 1), longest + 2)
        if total // m - training.first_step // m == n_rows
    ]
    return fits[0] if len(fits) == 1 else None
