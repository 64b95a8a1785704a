"""Maximum likelihood, and the bootstrap over prompts in one weighted Newton step.

Resampling prompts only changes their weights. With each prompt's score s and the curvature H at
the estimate, the refit under weights w is, to first order, θ̂ − H⁻¹ Σ wᵢsᵢ (score bootstrap, Kline
and Santos 2012, with Rubin's exponential weights). It costs one Hessian instead of hundreds of
fits. Spread is widened by √(P/(P − k)) for k estimated parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from dapolab.workload.difficulty import normal_nodes
from dapolab.workload.fit.likelihood import Likelihood
from dapolab.workload.fit.problem import ALL_SOLVABLE, NO_GUESS, NO_LOOPS, location

Floats = NDArray[np.float64]
_STEP = 1e-2
# Flat directions would otherwise be walked for ever; they are reported as not identified.
_MOST_STEPS = 80
# A curvature below this means a standard error above 2 on a log, logit or atanh scale: no
# information worth a number.
_FLAT_SE = 2.0


@dataclass(frozen=True, eq=False)
class Optimum:
    """A maximum of the likelihood with what the bootstrap needs.

    ``score_UK`` and ``curvature_UKK`` are per unit; ``settled_K`` is false for parameters at a
    bound or in a flat direction.
    """

    theta_K: Floats
    log_likelihood: float
    score_UK: Floats
    curvature_UKK: Floats
    standard_error_K: Floats
    settled_K: NDArray[np.bool_]


def maximise(likelihood: Likelihood, start_K: Floats, *, tolerance: float = 1e-8) -> Floats:
    """Return the free parameters at the maximum (L-BFGS-B inside the bounds)."""
    bounds = likelihood.problem.bounds
    if not bounds:
        return np.empty(0)

    def loss(theta: Floats) -> float:
        return -float(likelihood.contributions(theta).sum())

    start = np.clip(start_K, [low + 1e-3 for low, _ in bounds], [high - 1e-3 for _, high in bounds])
    found = optimize.minimize(
        loss,
        start,
        method="L-BFGS-B",
        bounds=bounds,
        options={"ftol": tolerance, "gtol": 1e-4, "maxiter": _MOST_STEPS},
    )
    return np.asarray(found.x, dtype=np.float64)


def describe(likelihood: Likelihood, theta_K: Floats) -> Optimum:
    """Return scores, curvatures and what is settled at ``theta_K``."""
    score, curvature = _derivatives(likelihood.contributions, theta_K)
    bounds = np.array(likelihood.problem.bounds).reshape(-1, 2)
    inside = (theta_K > bounds[:, 0] + 0.02) & (theta_K < bounds[:, 1] - 0.02)
    information = -curvature.sum(axis=0)
    error = np.full(len(theta_K), np.inf)
    pick = np.flatnonzero(inside)
    if len(pick):
        # A weak prior of sd 5 on the log/logit scale keeps flat directions finite, not tight.
        value, vector = np.linalg.eigh(information[np.ix_(pick, pick)])
        covariance = (vector / np.maximum(value, 1.0 / 25.0)) @ vector.T
        error[pick] = np.sqrt(np.diag(covariance))
    return Optimum(
        theta_K=theta_K,
        log_likelihood=float(likelihood.contributions(theta_K).sum()),
        score_UK=score,
        curvature_UKK=curvature,
        standard_error_K=error,
        settled_K=inside & (error < _FLAT_SE),
    )


def _derivatives(f: Callable[[Floats], Floats], x: Floats) -> tuple[Floats, Floats]:
    """Central first and second differences of a vector of functions, (U, K) and (U, K, K)."""
    middle, k, h = f(x), len(x), _STEP
    eye = np.eye(k) * h
    plus = [f(x + step) for step in eye]
    minus = [f(x - step) for step in eye]
    score = np.stack([(p - m) / (2 * h) for p, m in zip(plus, minus, strict=True)], axis=1)
    second = np.zeros((len(middle), k, k))
    for i in range(k):
        second[:, i, i] = (plus[i] - 2 * middle + minus[i]) / h**2
        for j in range(i):
            cross = f(x + eye[i] + eye[j]) + f(x - eye[i] - eye[j])
            mixed = (cross - plus[i] - minus[i] - plus[j] - minus[j] + 2 * middle) / (2 * h**2)
            second[:, i, j] = second[:, j, i] = mixed
    return score, second


def bootstrap(
    optimum: Optimum,
    *,
    bounds: list[tuple[float, float]],
    n_draws: int,
    rng: np.random.Generator,
    centre_K: Floats | None = None,
    units: NDArray[np.int64] | None = None,
) -> Floats:
    """Return parameter draws of a bootstrap over units, shape (n_draws, K).

    ``centre_K`` and ``units`` place the draws around another fit of a subset (a fold). Parameters
    that are not settled stay at the estimate; their lack of information is reported, not drawn.
    """
    centre = optimum.theta_K if centre_K is None else centre_K
    score, curvature = optimum.score_UK, optimum.curvature_UKK
    if units is not None:
        score, curvature = score[units], curvature[units]
    pick = np.flatnonzero(optimum.settled_K)
    draws = np.tile(centre, (n_draws, 1))
    if not len(pick) or len(score) <= len(pick) + 1:
        return draws
    score = score[:, pick] - score[:, pick].mean(axis=0)
    curvature = curvature[np.ix_(np.arange(len(score)), pick, pick)]
    weight = rng.exponential(size=(n_draws, len(score)))
    weight *= len(score) / weight.sum(axis=1, keepdims=True)
    value, vector = np.linalg.eigh(-curvature.sum(axis=0))
    step = (weight @ score) @ (vector / np.maximum(value, 1.0 / 25.0)) @ vector.T
    widen = np.sqrt(len(score) / (len(score) - len(pick)))
    low, high = np.array(bounds)[pick].T
    draws[:, pick] = np.clip(centre[pick] + widen * step, low, high)
    return draws


def natural(likelihood: Likelihood, theta_K: Floats) -> dict[str, float]:
    """Return the workload's own parameters (see ``JointWorkload``) for free parameters."""
    named = likelihood.full(theta_K)
    between, within = likelihood.spreads(named)
    total = between**2 + within**2
    out: dict[str, float] = {}
    if likelihood.problem.lengths:
        out["median_tokens"] = float(np.exp(named["log_median"]))
        out["sigma"] = float(np.sqrt(total))
        out["prompt_share"] = between**2 / total
        out["loop_share"] = loop_share(named)
        out["loop_sd_logit"] = float(np.exp(named["log_loop_sd"])) if out["loop_share"] else 0.0
    if likelihood.problem.difficulty:
        sd = float(np.exp(named["log_sd_logit"]))
        out["mean_logit"], out["sd_logit"] = location(named["accuracy_logit"], sd), sd
        if named["unsolvable_logit"] != ALL_SOLVABLE:
            out["unsolvable_share"] = float(special.expit(named["unsolvable_logit"]))
        if named["guess_logit"] != NO_GUESS:
            out["guess_rate"] = float(special.expit(named["guess_logit"]))
    if likelihood.problem.lengths and likelihood.problem.difficulty:
        out["correct_effect"] = named["correct_effect"]
        out["correlation"] = float(np.tanh(named["atanh_correlation"]))
        loops = float(np.tanh(named["atanh_loop_correlation"]))
        out["loop_correlation"] = loops if out["loop_share"] else 0.0
    return out


def loop_share(named: dict[str, float]) -> float:
    """Return the mean loop probability over prompts; 0 where loops are switched off."""
    if named["loop_logit"] == NO_LOOPS:
        return 0.0
    z, weight = normal_nodes(65)
    sd = float(np.exp(named["log_loop_sd"]))
    return float(weight @ special.expit(location(named["loop_logit"], sd) + sd * z))
