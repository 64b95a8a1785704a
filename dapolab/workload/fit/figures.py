"""Observed against model, as tables that a report can draw."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.scenario import JointWorkload, Prompts
from dapolab.workload.fit.goodness import padded
from dapolab.workload.fit.problem import Problem
from dapolab.workload.fit.rows import Rows
from dapolab.workload.marginals import marginals
from dapolab.workload.model import PromptStream

Floats = NDArray[np.float64]
_POINTS = 160
_SIMULATED_PROMPTS = 4000


def compare(
    rows: Rows, workload: JointWorkload, *, cap_tokens: int, problem: Problem
) -> dict[str, pd.DataFrame]:
    """Return ``length_cdf``, ``composition`` and ``within_sd`` as far as the data allow."""
    out: dict[str, pd.DataFrame] = {}
    if problem.lengths:
        known = np.sort(rows.tokens[np.isfinite(rows.tokens)])
        tokens = np.unique(np.quantile(known, np.linspace(0, 1, _POINTS)).round())
        tokens = np.minimum(tokens, cap_tokens)
        law = marginals(workload, group_size=1, cap_tokens=cap_tokens)
        seen = np.searchsorted(known, tokens, side="right") / len(known)
        out["length_cdf"] = pd.DataFrame(
            {"tokens": tokens, "observed": seen, "model": 1.0 - law.survival(tokens)}
        )
    size = int(np.bincount(rows.count().astype(np.int64)).argmax())
    if size < 2:
        return out
    full = np.flatnonzero(rows.count() == size)
    tokens_UG, correct_UG, truncated_UG, _ = padded(rows.take(full))
    pool = workload.model_copy(update={"prompts": Prompts(count=_SIMULATED_PROMPTS)})
    stream = PromptStream(pool, group_size=size, cap_tokens=cap_tokens, seed=0)
    groups = stream.draw(0, _SIMULATED_PROMPTS)
    if problem.difficulty:
        out["composition"] = _composition(correct_UG, groups.correct_PG, size, kept=problem.kept)
    if problem.lengths:
        seen = _within_sd(tokens_UG, truncated_UG == 0.0)
        model = _within_sd(groups.n_tokens_PG.astype(np.float64), ~groups.truncated_PG)
        out["within_sd"] = _cdfs(seen, model)
    return out


def _composition(
    seen_UG: Floats, model_UG: NDArray[np.bool_], size: int, *, kept: bool
) -> pd.DataFrame:
    k = np.arange(size + 1)
    columns = {}
    for name, values in (("observed", np.nan_to_num(seen_UG)), ("model", model_UG)):
        count = np.bincount(values.sum(axis=1).astype(np.int64), minlength=size + 1).astype(float)
        if kept:
            count[[0, -1]] = 0.0
        columns[name] = count / max(count.sum(), 1.0)
    return pd.DataFrame({"n_correct": k, **columns})


def _within_sd(tokens_UG: Floats, stopped_UG: NDArray[np.bool_]) -> Floats:
    count = stopped_UG.sum(axis=1)
    y = np.where(stopped_UG, np.log(np.maximum(np.nan_to_num(tokens_UG), 1.0)), 0.0)
    centre = y.sum(axis=1) / np.maximum(count, 1)
    squares = np.where(stopped_UG, (y - centre[:, None]) ** 2, 0.0).sum(axis=1)
    enough = count >= 3
    return np.asarray(np.sort(np.sqrt(squares[enough] / (count[enough] - 1))))


def _cdfs(seen: Floats, model: Floats) -> pd.DataFrame:
    if not len(seen) or not len(model):
        return pd.DataFrame({"sd": [], "observed": [], "model": []})
    grid = np.linspace(0.0, max(seen[-1], model[-1]), 61)
    return pd.DataFrame(
        {
            "sd": grid,
            "observed": np.searchsorted(seen, grid, side="right") / len(seen),
            "model": np.searchsorted(model, grid, side="right") / len(model),
        }
    )
