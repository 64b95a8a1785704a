"""Groups given as counts or pass rates: n of k right becomes k rows."""

import numpy as np
import pandas as pd

from dapolab.scenario import ConfigError

LARGEST_INFERRED_GROUP = 64
_TOLERANCE = 1e-3


def settle_counts(
    frame: pd.DataFrame, *, group_size: int | None, where: str
) -> tuple[pd.DataFrame, list[str]]:
    """Give every group ``n_samples`` and ``n_correct``; groups without a pass rate are dropped.

    Parameters
    ----------
    frame : one row a group, with ``n_correct`` or ``pass_rate`` and perhaps ``n_samples``.
    group_size : samples a group, where the file does not say.

    Raises
    ------
    ConfigError
        The group size is unknown and does not follow from the rates; a rate that is no multiple of
        1/k; more right answers than samples.
    """
    notes: list[str] = []
    value = "n_correct" if "n_correct" in frame else "pass_rate"
    absent = frame[value].isna()
    if absent.any():
        notes.append(f"{int(absent.sum())} groups without a {value} are left out")
        frame = frame[~absent].reset_index(drop=True)
    sizes = frame.get("n_samples")
    if sizes is None or sizes.isna().any():
        size = group_size
        if size is None and value == "pass_rate":
            size = _common_denominator(frame[value].to_numpy(dtype=float))
            if size is not None:
                notes.append(
                    f"pass rates are multiples of 1/{size}: read as {size} samples a group "
                    "(say --group-size N if there were more)"
                )
        if size is None:
            raise ConfigError(f"{where}: how many samples stand behind {value}? say --group-size N")
        filled = pd.Series(size, index=frame.index, dtype="Int64")
        sizes = filled if sizes is None else sizes.fillna(size)
    right = frame[value].to_numpy(dtype=float)
    if value == "pass_rate":
        right = right * sizes.to_numpy(dtype=float)
    counts = np.rint(right)
    wrong = (np.abs(right - counts) > _TOLERANCE) | (counts < 0) | (counts > sizes.to_numpy(float))
    if wrong.any():
        row = int(wrong.argmax())
        raise ConfigError(
            f"{where}: group {frame['group_id'].iloc[row]!r}: {value} {frame[value].iloc[row]} "
            f"does not fit {sizes.iloc[row]} samples"
        )
    return frame.assign(n_samples=sizes, n_correct=counts.astype(np.int64)), notes


def expand_counts(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Turn one row a group into one row a response, right answers first."""
    sizes = frame["n_samples"].to_numpy(dtype=np.int64)
    rows = np.repeat(np.arange(len(frame)), sizes)
    starts = np.cumsum(sizes) - sizes
    sample = np.arange(len(rows)) - starts[rows]
    right = sample < frame["n_correct"].to_numpy(dtype=np.int64)[rows]
    dropped = ["n_samples", "n_correct", "pass_rate"]
    table = frame.drop(columns=dropped, errors="ignore").iloc[rows].reset_index(drop=True)
    table["sample"] = pd.array(sample, dtype="Int64")
    table["correct"] = pd.array(right, dtype="boolean")
    return table, [
        f"{len(frame)} groups are expanded to {len(rows)} rows; which sample of a group was right "
        "is not recorded"
    ]


def _common_denominator(rates: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> int | None:
    """Return the smallest k ≤ 64 of which all rates are multiples of 1/k; 1 alone says nothing."""
    distinct = np.unique(rates)
    for size in range(2, LARGEST_INFERRED_GROUP + 1):
        if np.all(np.abs(distinct * size - np.rint(distinct * size)) < _TOLERANCE):
            return size
    return None
