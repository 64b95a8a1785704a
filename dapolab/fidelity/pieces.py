"""Timed pieces of engine work as the columns of a regression: which b(n), which prefill onset.

A piece is one iteration, or several summed up (a wave in a step log).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.errors import ConfigError
from dapolab.fidelity.regression import Solution, clusters_of, solve

Floats = NDArray[np.float64]

COLUMNS: dict[str, str] = {
    "seconds": "what the piece took; with ``seconds_low``: truth in (seconds_low, seconds]",
    "iterations": "iterations in the piece (absent: 1)",
    "n": "Σ over iterations of decoding responses, i.e. tokens decoded",
    "sum_context_tokens": "Σ over iterations and decoding responses of context tokens",
    "prefill_tokens": "Σ of prefilled tokens",
    "prefill_context_tokens": "Σ of prefilled tokens × context at the chunk's end",
    "calls": "engine calls in the piece, each with its overhead (absent: 0)",
    "run": "which run it belongs to; rows of a run depend on each other",
}
"""Columns of a table of pieces; ``seconds`` and ``n`` must be there."""

TERMS = {
    "call_overhead_s": "calls",
    "a_s": "iterations",
    "b_s": "n",
    "c_s": "sum_context_tokens",
    "prefill_s": "prefill_tokens",
    "prefill_context_s": "prefill_context_tokens",
}
_ASIDE_RATIO = 5.0
_CONCAVE_GAIN = 0.8
_FOLDS = 5
_MOST_KNOTS = 7


@dataclass(frozen=True, eq=False)
class Pieces:
    """Design columns by name, the interval of each piece's seconds, its cluster."""

    x: Mapping[str, Floats]
    low: Floats
    high: Floats
    cluster: NDArray[np.int64]

    def rows(self, keep: NDArray[np.bool_]) -> "Pieces":
        """Return the pieces where ``keep`` is true."""
        columns = {name: values[keep] for name, values in self.x.items()}
        return Pieces(columns, self.low[keep], self.high[keep], self.cluster[keep])

    def solve(self, free: Sequence[str], held: Mapping[str, float]) -> Solution:
        """Regress what the held terms leave; a piece they explain away counts as tiny."""
        base = sum((held[k] * self.x[k] for k in held if k in self.x), np.zeros(len(self.high)))
        low, high = (np.maximum(t - base, 1e-3 * t) for t in (self.low, self.high))
        design = np.stack([self.x[name] for name in free], axis=1)
        found = solve(design, low, high, cluster_I=self.cluster)
        return replace(found, fitted_I=found.fitted_I + base)


@dataclass(frozen=True, eq=False)
class Prepared:
    """Pieces ready to fit: knots of b(n) (none: straight), tokens of prefill that cost nothing."""

    pieces: Pieces
    knots: tuple[float, ...]
    onset: float
    n_aside: int


def prepare(table: pd.DataFrame, *, held: Mapping[str, float], concave: bool | None) -> Prepared:
    """Check a table, choose b's shape and the prefill's onset, set outliers aside.

    Raises
    ------
    ConfigError
        As ``fit_law``.
    """
    _check(table, held)
    single = bool((_column(table, "iterations", 1.0) == 1).all())
    cluster = clusters_of(pd.factorize(_column_text(table, "run"))[0].astype(np.int64))
    x, low, high = _design(table, ()), _low(table), table["seconds"].to_numpy(float)
    onset = _onset_of(table, x, low, high, held) if single else 0.0
    knots = _knots_of(table, x, low, high, held, onset, concave) if single else ()
    pieces = Pieces(_design(table, knots, onset), low, high, cluster)
    pieces, n_aside = _without_outliers(pieces, held)
    return Prepared(pieces, knots, onset, n_aside)


def _check(pieces: pd.DataFrame, held: Mapping[str, float]) -> None:
    for name in ("seconds", "n"):
        if name not in pieces:
            raise ConfigError(
                f"no column {name!r} in the trace; it needs seconds and n, and may have "
                + ", ".join(c for c in COLUMNS if c not in ("seconds", "n"))
            )
    known = list(TERMS)
    wrong = [name for name in held if name not in known]
    if wrong:
        raise ConfigError(f"--fix {wrong[0]}: no parameter; they are {', '.join(known)}")
    numbers = pieces[[c for c in COLUMNS if c in pieces and c != "run"]]
    if len(pieces) < 4 or not np.isfinite(numbers.to_numpy(float)).all():
        raise ConfigError("a law needs at least 4 timed pieces, every number finite")
    if (pieces["seconds"] <= 0).any() or (pieces["n"] < 0).any():
        raise ConfigError("seconds must be above 0 and n at least 0 in every row")


def _column(pieces: pd.DataFrame, name: str, absent: float) -> Floats:
    if name not in pieces:
        return np.full(len(pieces), absent)
    return pieces[name].to_numpy(float)


def _column_text(pieces: pd.DataFrame, name: str) -> NDArray[np.object_]:
    values = pieces[name].astype(str) if name in pieces else pd.Series([""] * len(pieces))
    return values.to_numpy(object)


def _low(pieces: pd.DataFrame) -> Floats:
    seconds = pieces["seconds"].to_numpy(float)
    low = _column(pieces, "seconds_low", np.nan)
    return np.where(np.isnan(low), seconds, np.maximum(low, 0.0))


def _design(pieces: pd.DataFrame, knots: Sequence[float], onset: float = 0.0) -> dict[str, Floats]:
    """Return the columns that are not all zero; b as one column a knot where there are knots."""
    found: dict[str, Floats] = {}
    for name, column in TERMS.items():
        values = _column(pieces, column, 1.0 if name == "a_s" else 0.0)
        if name == "prefill_s":
            values = np.maximum(values - onset, 0.0)
        if name == "b_s" and knots:
            found |= {f"w({k:g})": np.minimum(values, k) for k in knots}
        elif values.any():
            found[name] = values
    return found


def _onset_of(
    pieces: pd.DataFrame,
    x: Mapping[str, Floats],
    low: Floats,
    high: Floats,
    held: Mapping[str, float],
) -> float:
    """Return how many prefill tokens hide behind the weights: the best of a grid, else 0."""
    tokens = _column(pieces, "prefill_tokens", 0.0)
    some = tokens[tokens > 0]
    if not len(some) or "prefill_s" in held or len(np.unique(some)) < 4:
        return 0.0
    grid = np.unique(np.quantile(some, np.linspace(0.0, 0.8, 17)))
    free = [name for name in x if name not in held]

    def miss(onset: float) -> float:
        columns = dict(x) | {"prefill_s": np.maximum(tokens - onset, 0.0)}
        if not columns["prefill_s"].any():
            return np.inf
        data = Pieces(columns, low, high, np.arange(len(high)))
        found = data.solve(free, held)
        return float((((low + high) / 2 / found.fitted_I - 1) ** 2).sum())

    misses = [miss(0.0), *(miss(float(g)) for g in grid)]
    best = int(np.argmin(misses))
    # one more parameter is worth its likelihood ratio at 99 %
    gain = len(high) * np.log(misses[0] / max(misses[best], 1e-300))
    return float([0.0, *grid][best]) if gain > 6.63 else 0.0


def _knots_of(
    pieces: pd.DataFrame,
    x: Mapping[str, Floats],
    low: Floats,
    high: Floats,
    held: Mapping[str, float],
    onset: float,
    concave: bool | None,
) -> tuple[float, ...]:
    """Return the knots of a concave b(n), or none where a straight one does as well."""
    n = pieces["n"].to_numpy(float)
    positive = n[n > 0]
    if concave is False or "b_s" in held or "b_s" not in x or len(np.unique(positive)) < 5:
        return ()
    candidates = np.unique(np.quantile(positive, np.linspace(0, 1, _MOST_KNOTS), method="nearest"))
    geometric = np.geomspace(candidates[0], candidates[-1], _MOST_KNOTS)
    values = np.unique(positive)
    near = values[np.abs(values[None, :] - geometric[:, None]).argmin(axis=1)]
    knots = tuple(float(k) for k in np.unique(near))
    if concave:
        return knots
    straight = _left_out(Pieces(_design(pieces, (), onset), low, high, np.arange(len(n))), held)
    bent = _left_out(Pieces(_design(pieces, knots, onset), low, high, np.arange(len(n))), held)
    return knots if bent < _CONCAVE_GAIN * straight else ()


def _left_out(data: Pieces, held: Mapping[str, float]) -> float:
    """Return the rms relative error on pieces that the fit has not seen, five folds in turn."""
    fold = np.arange(len(data.high)) % _FOLDS
    free = [name for name in data.x if name not in held]
    errors = []
    for i in range(_FOLDS):
        found = data.rows(fold != i).solve(free, held)
        test = data.rows(fold == i)
        fitted = sum(test.x[k] * t for k, t in zip(free, found.theta_K, strict=True))
        fitted = fitted + sum(held[k] * test.x[k] for k in held if k in test.x)
        errors.append((test.low + test.high) / 2 / np.maximum(fitted, 1e-12) - 1)
    return float(np.sqrt((np.concatenate(errors) ** 2).mean()))


def _without_outliers(data: Pieces, held: Mapping[str, float]) -> tuple[Pieces, int]:
    """Set aside pieces that took several times what the fit says (compilation, a pause)."""
    free = [name for name in data.x if name not in held]
    middle = (data.low + data.high) / 2
    centred = replace(data, low=middle, high=middle)
    # medians of the relative error decide, which a few huge rows cannot bend
    keep = np.ones(len(middle), dtype=np.bool_)
    for _ in range(3):
        fitted = centred.rows(keep).solve(free, held)
        design = np.stack([data.x[name] for name in free], axis=1)
        base = sum((held[k] * data.x[k] for k in held if k in data.x), np.zeros(len(middle)))
        ratio = middle / np.maximum(design @ fitted.theta_K + base, 1e-12)
        again = ratio < _ASIDE_RATIO * float(np.median(ratio[keep]))
        if (again == keep).all():
            break
        keep = again
    return data.rows(keep), int((~keep).sum())
