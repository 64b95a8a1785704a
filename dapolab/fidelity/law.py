"""Fit a decode law to timed pieces of engine work: the one function that does it.

A piece is one iteration, or several summed up (a wave in a step log): its seconds, how many
iterations it had, and the sums over them of responses n, context tokens K, prefilled tokens x and
prefill·context. All that the law is linear in, so one regression fits a, b, c, s and q at once.

What the pieces do not tell apart is taken from physics (another law) or left out, never quoted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.fidelity.pieces import TERMS, Pieces, Prepared, prepare
from dapolab.fidelity.regression import Solution
from dapolab.sim.hardware import Law
from dapolab.stats import Estimate

Floats = NDArray[np.float64]

# What is given up first where the data cannot tell all terms apart: the finest effects.
_GIVE_UP = ("prefill_context_s", "call_overhead_s", "c_s", "prefill_s", "b_s", "a_s")


@dataclass(frozen=True, eq=False)
class LawFit:
    """A fitted law with what is known of it.

    Attributes
    ----------
    law : the law; terms that were neither identified nor given are 0.
    call_overhead_s : seconds of an engine call; 0 where not identified.
    estimates : identified parameters with 99 % intervals; ``b_s`` is the slope, or ``b(n)_s`` at
        each knot where b is piecewise.
    names, covariance_KK : of the free coefficients (``b_s`` or ``w(knot)``), in seconds².
    fixed : parameters taken from physics or by hand -> value.
    not_identified : (parameter, reason).
    residuals : shares of the fitted seconds and counts, by name.
    """

    law: Law
    call_overhead_s: float
    estimates: Mapping[str, Estimate]
    names: tuple[str, ...]
    theta_K: Floats
    covariance_KK: Floats
    knots: tuple[float, ...]
    fixed: Mapping[str, float]
    not_identified: tuple[tuple[str, str], ...]
    residuals: Mapping[str, float]

    def draw(self, rng: np.random.Generator) -> tuple[Law, float]:
        """Return a law and a call overhead drawn from the covariance, nothing below 0."""
        theta = np.maximum(rng.multivariate_normal(self.theta_K, self.covariance_KK), 0.0)
        values = dict(self.fixed) | dict(zip(self.names, theta.tolist(), strict=True))
        return _law(values, self.knots, self.law.prefill_slack_s, self.law.source)


def fit_law(
    pieces: pd.DataFrame,
    *,
    fixed: Mapping[str, float] | None = None,
    physics: Law | None = None,
    concave: bool | None = None,
    source: str = "",
) -> LawFit:
    """Fit a law to a table of pieces (``dapolab.fidelity.pieces.COLUMNS``).

    Parameters
    ----------
    fixed : parameters (``a_s, b_s, c_s, prefill_s, prefill_context_s, call_overhead_s``) held at a
        value.
    physics : where a parameter is not identified, its value comes from this law.
    concave : b(n) piecewise linear and concave; absent: where it predicts left-out pieces better
        by a fifth. Needs single iterations.

    Raises
    ------
    ConfigError
        A missing column, fewer than 4 rows, times that are not positive, an unknown fixed name.
    """
    held = dict(fixed or {})
    ready = prepare(pieces, held=held, concave=concave)
    fit = _identify(ready.pieces, held, physics)
    return _result(fit, ready, source=source)


@dataclass(frozen=True, eq=False)
class _Fit:
    free: tuple[str, ...]
    solution: Solution
    held: dict[str, float]
    missing: list[tuple[str, str]]


def _identify(data: Pieces, held: dict[str, float], physics: Law | None) -> _Fit:
    """Fit; give up what an interval does not tell from 0, one at a time, and fit again."""
    fixed = {name: value for name, value in held.items() if name in data.x or value}
    missing = [
        (name, f"no {TERMS[name]} in the data") for name in TERMS if _absent(name, data, held)
    ]
    fixed |= {name: _physics(name, physics) for name, _ in missing if _physics(name, physics)}
    free = [name for name in data.x if name not in fixed]
    while True:
        found = data.solve(free, fixed)
        lost = _weakest(free, found)
        if lost is None:
            return _Fit(tuple(free), found, fixed, missing)
        missing.append((lost, _reason(lost, free, found)))
        value = _physics(lost, physics)
        if value:
            fixed[lost] = value
        free.remove(lost)


def _absent(name: str, data: Pieces, held: Mapping[str, float]) -> bool:
    there = name in data.x or (name == "b_s" and any(k.startswith("w(") for k in data.x))
    return not there and name not in held and name != "call_overhead_s"


def _physics(name: str, physics: Law | None) -> float:
    if physics is None or name == "call_overhead_s":
        return 0.0
    if name == "b_s":
        slope = np.diff(physics.b_knots_s) / np.diff(physics.n_knots)
        return float(slope[-1])
    return float(getattr(physics, name))


def _weakest(free: Sequence[str], found: Solution) -> str | None:
    """Return the first name, finest effects first, whose 99 % interval reaches 0; None if none."""
    if len(free) == 1:
        return None
    half = dict(zip(free, found.half_widths(), strict=True))
    value = dict(zip(free, found.theta_K, strict=True))
    for name in _GIVE_UP:
        if name in value and value[name] - half[name] <= 0.0:
            return name
    return None


def _reason(name: str, free: Sequence[str], found: Solution) -> str:
    place = list(free).index(name)
    value, half = float(found.theta_K[place]), float(found.half_widths()[place])
    if value <= 0:
        return "the best fit has none of it"
    return f"{value:.3g} ± {half:.2g} s does not differ from 0 (99 %)"


def _result(fit: _Fit, ready: Prepared, *, source: str) -> LawFit:
    found = fit.solution
    values = dict(fit.held) | dict(zip(fit.free, found.theta_K.tolist(), strict=True))
    data, knots = ready.pieces, ready.knots
    slack = values.get("prefill_s", 0.0) * ready.onset
    law, overhead = _law(values, knots, slack, source)
    relative = (data.low + data.high) / 2 / found.fitted_I - 1
    return LawFit(
        law=law,
        call_overhead_s=overhead,
        estimates=_estimates(fit, knots, ready.onset, len(relative)),
        names=fit.free,
        theta_K=found.theta_K,
        covariance_KK=found.covariance_KK,
        knots=knots,
        fixed=fit.held,
        not_identified=tuple(fit.missing),
        residuals={
            "mean_abs_share": float(np.abs(relative).mean()),
            "p90_abs_share": float(np.quantile(np.abs(relative), 0.9)),
            "max_abs_share": float(np.abs(relative).max()),
            "mean_share": float(relative.mean()),
            "sigma_share": found.sigma,
            "n": float(len(relative)),
            "n_set_aside": float(ready.n_aside),
        },
    )


def _law(
    values: Mapping[str, float], knots: tuple[float, ...], slack: float, source: str
) -> tuple[Law, float]:
    if knots:
        grid = (0.0, *knots)
        bend = [sum(values.get(f"w({k:g})", 0.0) * min(n, k) for k in knots) for n in grid]
    else:
        grid, bend = (0.0, 1.0), [0.0, values.get("b_s", 0.0)]
    law = Law(
        a_s=values.get("a_s", 0.0),
        n_knots=grid,
        b_knots_s=tuple(bend),
        c_s=values.get("c_s", 0.0),
        prefill_s=values.get("prefill_s", 0.0),
        prefill_slack_s=slack,
        prefill_context_s=values.get("prefill_context_s", 0.0),
        source=source,
    )
    return law, values.get("call_overhead_s", 0.0)


def _knot(name: str) -> float:
    """Return the knot of ``w(knot)``, 0 for any other coefficient."""
    return float(name[2:-1]) if name.startswith("w(") else 0.0


def _estimates(fit: _Fit, knots: tuple[float, ...], onset: float, n: int) -> dict[str, Estimate]:
    found = fit.solution
    half = found.half_widths()
    out: dict[str, Estimate] = {}
    for k, name in enumerate(fit.free):
        if not name.startswith("w("):
            value = float(found.theta_K[k])
            unit = "s" if name in ("a_s", "call_overhead_s") else "s/token"
            out[name] = Estimate(value, max(value - half[k], 0.0), value + half[k], n, unit)
    factor = half[0] / max(np.sqrt(found.covariance_KK[0, 0]), 1e-300) if half[0] else 2.6
    for knot in knots:
        row = np.array([min(knot, _knot(name)) for name in fit.free])
        value = float(row @ found.theta_K)
        width = factor * float(np.sqrt(row @ found.covariance_KK @ row))
        if value - width > 0:
            out[f"b({knot:g})_s"] = Estimate(value, value - width, value + width, n, "s")
    if onset and "prefill_s" in out:
        out["prefill_slack_s"] = Estimate.exact(out["prefill_s"].mean * onset, unit="s", n=n)
    return out
