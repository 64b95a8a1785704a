"""Estimates with their intervals, and what follows from them at the native cap."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from dapolab.scenario import JointWorkload
from dapolab.workload.difficulty import mixed_share_of_counts
from dapolab.workload.fit.kept import KeptDifficulty
from dapolab.workload.fit.problem import Problem
from dapolab.workload.fit.result import Estimate, with_draw
from dapolab.workload.fit.rows import Rows
from dapolab.workload.marginals import marginals

_UNITS = {"median_tokens": "tokens", "mean_tokens": "tokens"}
_DERIVED_DRAWS = 200


def own_parameters(
    workload: JointWorkload, draws: pd.DataFrame, missing: list[tuple[str, str]]
) -> dict[str, Estimate]:
    """Return the workload's parameters; no interval where not identified or without draws."""
    unknown = {name.strip() for names, _ in missing for name in names.split(",")}
    out = {}
    for name in map(str, draws.columns):
        low, high = (float(x) for x in draws[name].quantile([0.005, 0.995]))
        known = name not in unknown and (high > low or name == "p_correct_if_truncated")
        known = known and len(draws) > 1
        value, unit = float(getattr(workload, name)), _UNITS.get(name, "")
        out[name] = Estimate(value, low if known else None, high if known else None, unit)
    return out


def derived(
    workload: JointWorkload,
    draws: pd.DataFrame,
    problem: Problem,
    group_size: int,
    cap: int | None,
    kept: KeptDifficulty | None,
) -> dict[str, Estimate]:
    """Mixed share, truncated share and mean length at the native cap, with intervals."""
    reach = cap or 1 << 20
    names = (["mixed_share"] if problem.difficulty else []) + (
        ["truncated_share", "mean_tokens"] if problem.lengths else []
    )
    n = min(_DERIVED_DRAWS, len(draws))
    laws = [workload, *(with_draw(workload, draws, number=i) for i in range(n))]
    if not problem.lengths:
        flat = {"median_tokens": 1.0, "sigma": 0.0, "loop_share": 0.0}
        laws = [law.model_copy(update=flat) for law in laws]
    found = [marginals(law, group_size=group_size, cap_tokens=reach) for law in laws]
    take: dict[str, Callable[[int], float]] = {
        "mixed_share": lambda i: found[i].mixed_probability,
        "truncated_share": lambda i: found[i].truncated_share,
        "mean_tokens": lambda i: found[i].mean_tokens,
    }
    out = {}
    for name in names:
        values = [take[name](i) for i in range(len(found))]
        low = high = None
        if n > 1:
            low, high = (float(x) for x in np.quantile(values[1:], [0.005, 0.995]))
        if name == "mixed_share" and kept is not None:
            low, high = kept.mixed_interval()
        out[name] = Estimate(values[0], low, high, _UNITS.get(name, ""))
    return out


def observed_mixed_share(
    rows: Rows, *, group_size: int, rng: np.random.Generator
) -> dict[str, Estimate]:
    """Return the unbiased mixed share of the recorded groups, bootstrap over prompts; {} if G > n.

    Verdicts count as recorded; a missing verdict of a truncated row counts as wrong.
    """
    n = rows.count()
    share = mixed_share_of_counts(rows.count(np.nan_to_num(rows.correct)), n, group_size=group_size)
    share = share[np.isfinite(share)]
    if not rows.has_correct or len(share) < len(n):
        return {}
    weight = rng.exponential(size=(1000, len(share)))
    low, high = np.quantile(weight @ share / weight.sum(axis=1), [0.005, 0.995])
    return {"mixed_share_observed": Estimate(float(share.mean()), float(low), float(high), "")}


def native_cap(rows: Rows) -> int | None:
    """Return the longest truncated row, the cap that the data show; None where nothing is cut."""
    cut = rows.tokens[rows.truncated]
    cut = cut[np.isfinite(cut)]
    return int(cut.max()) if len(cut) else None


def longest(rows: Rows) -> int:
    """Return the longest row, tokens; a round large number where no lengths are known."""
    known = rows.tokens[np.isfinite(rows.tokens)]
    return int(known.max()) if len(known) else 1 << 20
