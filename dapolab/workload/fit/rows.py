"""From a table of records to what the likelihood needs: sufficient statistics per prompt."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from dapolab.scenario import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SELECTIONS = ("all", "kept_mixed", "kept_first_finished")
# A step trend with a smaller p-value is drift: such steps are not pooled.
_TREND_P = 0.01


@dataclass(frozen=True, eq=False)
class Rows:
    """Responses of one fit, one entry per row, sorted by unit (prompt, or group if kept only).

    ``log_length`` is log(n − ½): n whole tokens mean a latent length in (n − 1, n].
    """

    unit: Ints
    unit_id: NDArray[np.object_]
    tokens: Floats
    log_length: Floats
    correct: Floats
    truncated: NDArray[np.bool_]
    loop: Floats

    @property
    def n_units(self) -> int:
        """Prompts (or groups) in the fit."""
        return len(self.unit_id)

    @property
    def has_tokens(self) -> bool:
        """Whether token counts are known."""
        return bool(np.isfinite(self.tokens).any())

    @property
    def has_correct(self) -> bool:
        """Whether correctness is known."""
        return bool(np.isfinite(self.correct).any())

    @property
    def has_loop_flags(self) -> bool:
        """Whether truncated rows say if they loop."""
        return bool(self.truncated.any() and np.isfinite(self.loop[self.truncated]).all())

    def count(self, values: NDArray[np.generic] | None = None) -> Floats:
        """Sum ``values`` (default: 1) over the rows of each unit."""
        weights = None if values is None else values.astype(np.float64)
        return np.bincount(self.unit, weights=weights, minlength=self.n_units).astype(np.float64)

    def take(self, units: Ints) -> "Rows":
        """Return the rows of some units, renumbered."""
        number = np.full(self.n_units, -1, dtype=np.int64)
        number[units] = np.arange(len(units))
        keep = number[self.unit] >= 0
        order = np.argsort(number[self.unit[keep]], kind="stable")
        pick = np.flatnonzero(keep)[order]
        return Rows(
            number[self.unit[pick]],
            self.unit_id[units],
            self.tokens[pick],
            self.log_length[pick],
            self.correct[pick],
            self.truncated[pick],
            self.loop[pick],
        )


FEW_PROMPTS = 20


def prepare(
    table: pd.DataFrame,
    *,
    selection: str,
    cap_tokens: int | None,
    steps: tuple[int, int] | None,
) -> tuple[Rows, tuple[str, ...]]:
    """Select, clean and sort the rows of a fit; return them with the warnings for the user.

    Raises
    ------
    ConfigError
        Selection unknown; no usable rows; several training steps with a trend and no window.
    """
    if selection not in SELECTIONS:
        raise ConfigError(
            "which groups the file holds is unknown: say --selection all (every sampled group), "
            "kept_mixed (only groups with right and wrong answers) or kept_first_finished"
        )
    warnings: list[str] = []
    table = _window(table, steps, warnings)
    unit_name = "group_id" if selection == "kept_mixed" and _known(table, "group_id") else None
    unit_name = unit_name or ("prompt_id" if _known(table, "prompt_id") else "group_id")
    if not _known(table, unit_name):
        raise ConfigError("the records name neither prompt nor group; a fit needs one of them")
    code, unit_id = pd.factorize(table[unit_name], sort=False)
    tokens, correct = _numbers(table, "n_tokens"), _numbers(table, "correct")
    cut = _numbers(table, "truncated")
    if cap_tokens is not None and np.isnan(cut).any():
        inferred = np.where(tokens >= cap_tokens, 1.0, 0.0)
        cut = np.where(np.isnan(cut) & np.isfinite(tokens), inferred, cut)
        warnings.append(f"truncation inferred: rows of {cap_tokens} tokens or more count as cut")
    truncated = cut == 1.0
    usable = _usable(tokens, correct, truncated, code, warnings)
    order = np.flatnonzero(usable)[np.argsort(code[usable], kind="stable")]
    present, unit = np.unique(code[order], return_inverse=True)
    if len(present) == 1:
        raise ConfigError("one prompt cannot show how prompts differ: fit at least a few dozen")
    if 1 < len(present) < FEW_PROMPTS:
        warnings.append(f"only {len(present)} prompts: take the fit as a sketch, not as a forecast")
    tokens = tokens[order]
    half_token = np.log(np.maximum(tokens, 1.0) - np.where(truncated[order], 0.0, 0.5))
    rows = Rows(
        unit.astype(np.int64),
        np.asarray(unit_id, dtype=object)[present],
        tokens,
        half_token,
        correct[order],
        truncated[order],
        _numbers(table, "loop" if "loop" in table else "extra/loop")[order],
    )
    if selection == "kept_first_finished":
        warnings.append(
            "only the groups that finished first are in the file: lengths are biased short, "
            "and so is every time computed from them"
        )
    return rows, tuple(warnings)


def _usable(
    tokens: Floats,
    correct: Floats,
    truncated: NDArray[np.bool_],
    code: NDArray[np.intp],
    warnings: list[str],
) -> NDArray[np.bool_]:
    usable = code >= 0
    for values, name in ((tokens, "token count"), (np.where(truncated, 0.0, correct), "verdict")):
        known = np.isfinite(values)
        if name == "verdict":
            any_known = bool(np.isfinite(correct).any())
        else:
            any_known = bool(known.any())
            known &= ~(values < 1)
        lost = int((usable & ~known).sum())
        if any_known and lost:
            warnings.append(f"{lost} rows without a {name} left out")
            usable &= known
    if not (np.isfinite(tokens[usable]).any() or np.isfinite(correct[usable]).any()):
        raise ConfigError("no row has a token count or a verdict; nothing to fit")
    return usable


def _window(
    table: pd.DataFrame, steps: tuple[int, int] | None, warnings: list[str]
) -> pd.DataFrame:
    if steps is not None:
        if not _known(table, "step"):
            raise ConfigError("--steps given, but the records have no step")
        low, high = steps
        table = table[table["step"].between(low, high).fillna(False).astype(bool)]
        if table.empty:
            raise ConfigError(f"no rows in steps {low} to {high}")
    if not _known(table, "step") or table["step"].nunique() < 2:
        return table
    trend = step_trend(table)
    low, high = int(table["step"].min()), int(table["step"].max())
    if trend is None:
        return table
    if steps is None:
        raise ConfigError(
            f"steps {low} to {high} drift ({trend}), and one law cannot describe them: fit a "
            f"window, e.g. --steps {low}:{low + max(1, (high - low) // 10)}"
        )
    warnings.append(f"drift inside the window of steps {low} to {high}: {trend}")
    return table


def step_trend(table: pd.DataFrame) -> str | None:
    """Return what moves with ``step`` (p < .01 in a regression of step means), or None.

    The unit is the step mean, as rows of one step are not independent. Needs three steps or more.
    """
    found = []
    log_tokens = np.log(_numbers(table, "n_tokens").clip(1.0))
    for name, values in (("accuracy", _numbers(table, "correct")), ("log length", log_tokens)):
        frame = pd.DataFrame({"step": _numbers(table, "step"), "value": values}).dropna()
        means = frame.groupby("step")["value"].mean()
        if len(means) < 3 or means.std() == 0.0:
            continue
        line = stats.linregress(means.index.to_numpy(float), means.to_numpy())
        if line.pvalue < _TREND_P:
            found.append(f"{name} moves by {line.slope:+.3g} a step, p = {line.pvalue:.1g}")
    return "; ".join(found) or None


def _known(table: pd.DataFrame, name: str) -> bool:
    return name in table and bool(table[name].notna().any())


def _numbers(table: pd.DataFrame, name: str) -> Floats:
    if name not in table:
        return np.full(len(table), np.nan)
    values = pd.to_numeric(table[name], errors="coerce").astype("Float64")
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
