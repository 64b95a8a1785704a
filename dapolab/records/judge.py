"""What a table does not say outright: correctness from rewards, truncation and cap from lengths.

Each conclusion comes with a line for the user; where nothing certain follows the cells stay
missing.
"""

import pandas as pd

N_VALUES_SHOWN = 4
MIN_SHARE_AT_CAP = 0.25


def correct_from_reward(
    table: pd.DataFrame, *, threshold: float | None, name: str = "reward"
) -> list[str]:
    """Fill an absent ``correct`` from ``reward``, in place; returns the notes.

    Above the threshold where one is given; else ``reward > 0`` where all rewards lie in {0, 1} or
    in {−1, 1}. Any other set of values may be shaped or partial credit: correct stays missing.
    """
    reward = table["reward"]
    if table["correct"].notna().any() or reward.isna().all():
        return []
    if threshold is not None:
        table["correct"] = (reward > threshold).astype("boolean")
        return [f"correct = {name} > {threshold:g}, as given"]
    values = sorted(float(value) for value in reward.dropna().unique())
    if set(values) <= {0.0, 1.0} or set(values) <= {-1.0, 1.0}:
        table["correct"] = (reward > 0).astype("boolean")
        listed = " and ".join(f"{value:g}" for value in values)
        return [f"correct = {name} > 0 ({name} takes {listed})"]
    shown = ", ".join(f"{value:.4g}" for value in values[:N_VALUES_SHOWN])
    more = ", …" if len(values) > N_VALUES_SHOWN else ""
    return [
        f"correct is missing: {name} takes {len(values)} values ({shown}{more}), shaped or "
        "partial; say --correct-threshold X"
    ]


def truncation_from_lengths(
    table: pd.DataFrame, *, cap_tokens: int | None, estimated: bool
) -> tuple[int | None, list[str]]:
    """Fill an absent ``truncated`` from the cap, or an absent cap from ``truncated``.

    Returns the cap and the notes. ``table`` is changed in place only where no row says whether it
    was truncated and a cap is known.
    """
    lengths = table["n_tokens"]
    if lengths.isna().all():
        return cap_tokens, []
    if table["truncated"].notna().any():
        return _cap_of_truncated(table, cap_tokens)
    if cap_tokens is None:
        return None, _heap_at_the_end(lengths)
    table["truncated"] = (lengths >= cap_tokens).astype("boolean")
    n_cut = int(table["truncated"].sum())
    rough = ", approximate because lengths come from text" if estimated else ""
    return cap_tokens, [
        f"truncated is inferred: n_tokens ≥ {cap_tokens} in {n_cut} of {len(table)} rows{rough}"
    ]


def _cap_of_truncated(table: pd.DataFrame, cap_tokens: int | None) -> tuple[int | None, list[str]]:
    cut = table.loc[table["truncated"].fillna(False), "n_tokens"].dropna()
    if cap_tokens is not None or cut.empty:
        return cap_tokens, []
    low, high = int(cut.min()), int(cut.max())
    n_high = int((cut == high).sum())
    if high == int(table["n_tokens"].max()) and n_high >= MIN_SHARE_AT_CAP * len(cut):
        return high, [f"cap = {high}: the length of {n_high} of {len(cut)} truncated rows, the top"]
    return None, [f"the cap is not clear: truncated rows have {low} to {high} tokens; say --cap N"]


def _heap_at_the_end(lengths: "pd.Series[int]") -> list[str]:
    """Point to a cap that nobody stated: many rows within 1 % of the longest."""
    present = lengths.dropna()
    longest = int(present.max())
    near = int((present >= 0.99 * longest).sum())
    if len(present) >= 50 and near >= max(5, 0.02 * len(present)):
        return [
            f"no truncation flag, and {near} of {len(present)} rows lie within 1 % of the longest "
            f"({longest} tokens), as at a cap; say --cap N"
        ]
    return ["no truncation flag and no cap: truncated is missing; say --cap N where there was one"]
