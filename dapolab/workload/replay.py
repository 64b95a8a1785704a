"""Recorded groups from a table of records, made ready to be drawn without replacement."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.records import ReadOptions, read_records
from dapolab.scenario import ConfigError, ReplayWorkload


@dataclass(frozen=True, eq=False)
class RecordedGroups:
    """Rows sorted by prompt: row ``first_row_N[i] + j`` is response j of prompt i.

    Prompt ids of the stream are 0 … N − 1 in the order of first appearance in the file.
    """

    first_row_N: NDArray[np.int64]
    n_rows_N: NDArray[np.int64]
    pass_rate_N: NDArray[np.float64]
    n_tokens: NDArray[np.int64]
    correct: NDArray[np.bool_]
    correct_missing: NDArray[np.bool_]
    truncated: NDArray[np.bool_]

    @property
    def n_most(self) -> int:
        """Responses of the largest group."""
        return int(self.n_rows_N.max())


def load_groups(workload: ReplayWorkload, *, group_size: int, cap_tokens: int) -> RecordedGroups:
    """Read and check the records of a replay workload, in any format that ``dapolab fit`` reads.

    The records need ``prompt_id, n_tokens, correct``; ``truncated`` is taken as false where absent.
    Correctness may be missing on truncated rows only, where ``p_correct_if_truncated`` decides.

    Raises
    ------
    ConfigError
        File missing or of unknown type; a needed column or cell missing; fewer than ``group_size``
        responses of some prompt; responses cut below ``cap_tokens``, whose rest is unknown.
    """
    path = Path(workload.file)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file (workload.file)")
    facts = path.stat()
    return _loaded(
        path,
        (facts.st_mtime_ns, facts.st_size),
        group_size,
        cap_tokens,
        workload.p_correct_if_truncated,
    )


@lru_cache(maxsize=4)
def _loaded(
    path: Path, _version: tuple[int, int], group_size: int, cap_tokens: int, p_truncated: float
) -> RecordedGroups:
    """Read a version of the file once, however many policies and replications draw from it."""
    # Which candidates the file holds does not matter to a replay: it draws what is there.
    table = read_records(path, options=ReadOptions(selection="all")).table
    return group_table(
        table,
        where=str(path),
        group_size=group_size,
        cap_tokens=cap_tokens,
        p_correct_if_truncated=p_truncated,
    )


def group_table(
    table: pd.DataFrame,
    *,
    where: str,
    group_size: int,
    cap_tokens: int,
    p_correct_if_truncated: float = 0.0,
) -> RecordedGroups:
    """Turn a table of records into recorded groups; errors as in :func:`load_groups`."""
    lacking = [name for name in ("prompt_id", "n_tokens", "correct") if name not in table]
    if lacking:
        raise ConfigError(
            f"{where}: a replay needs the columns prompt_id, n_tokens, correct; "
            f"missing: {', '.join(lacking)}"
        )
    code, _ = pd.factorize(table["prompt_id"], sort=False)
    order = np.argsort(code, kind="stable")
    table = table.iloc[order]
    n_rows = np.bincount(code)
    if n_rows.min() < group_size:
        raise ConfigError(
            f"{where}: a prompt has {n_rows.min()} recorded responses, fewer than group_size "
            f"{group_size}; run 'dapolab fit {where}' and use the fitted workload"
        )
    tokens = pd.to_numeric(table["n_tokens"], errors="coerce").to_numpy(float, na_value=np.nan)
    if np.isnan(tokens).any() or (tokens < 1).any():
        raise ConfigError(f"{where}: a replay needs n_tokens >= 1 in every row")
    truncated = _flags(table, "truncated", missing=False)
    correct = _flags(table, "correct", missing=False)
    missing = table["correct"].isna().to_numpy()
    if (missing & ~truncated).any():
        raise ConfigError(f"{where}: correct is missing in a row that is not truncated")
    if truncated.any() and tokens[truncated].max() < cap_tokens:
        cut = int(tokens[truncated].max())
        raise ConfigError(
            f"{where}: responses were cut at {cut} tokens and rollout.cap_tokens is {cap_tokens}; "
            f"what comes after is unknown: set cap_tokens <= {cut}, or fit ('dapolab fit')"
        )
    rate = np.where(missing, p_correct_if_truncated, correct)
    return RecordedGroups(
        first_row_N=np.concatenate([[0], np.cumsum(n_rows)[:-1]]).astype(np.int64),
        n_rows_N=n_rows.astype(np.int64),
        pass_rate_N=np.bincount(np.sort(code), weights=rate) / n_rows,
        n_tokens=tokens.astype(np.int64),
        correct=correct,
        correct_missing=missing,
        truncated=truncated,
    )


def _flags(table: pd.DataFrame, name: str, *, missing: bool) -> NDArray[np.bool_]:
    if name not in table:
        return np.full(len(table), missing)
    values = table[name].astype("boolean").fillna(missing)
    return values.to_numpy(dtype=bool)
