"""How pass rates move with trained steps, fitted to the groups of a real run.

Model: a prompt's logit pass rate is m + sd·z + slope·t, z ~ N(0, 1) over prompts, t trained steps
since the first of the data, and its right answers are binomial: the workload's own law, the same
slope for every prompt. A prompt that comes back (named in the data) keeps its z; without names
every group is a prompt of its own.

Unsolvable prompts are no part of it: they do not move, and where there are some they flatten the
slope and widen sd. ``fit_workload`` on a window of steps says whether there are.
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, sparse, special, stats

from dapolab.scenario import ConfigError
from dapolab.workload.fit.drift_lengths import FEWEST_STEPS, estimate_of
from dapolab.workload.fit.result import Estimate

Floats = NDArray[np.float64]


def _grid(n: int) -> tuple[Floats, Floats]:
    """Return n even nodes of z and their log weights.

    Even, because prompts seen hundreds of times have a posterior too narrow for Gauss–Hermite: the
    trapezoid errs by exp(−2π²·(posterior sd / spacing)²).
    """
    z = np.linspace(-5.0, 5.0, n)
    log_weight = stats.norm.logpdf(z)
    return z, log_weight - special.logsumexp(log_weight)


_Z, _LOG_WEIGHT = _grid(141)
_COLUMNS = ("step", "prompt", "n_samples", "n_correct")
_Z99 = float(stats.norm.ppf(0.995))


@dataclass(frozen=True, eq=False)
class PassRateDrift:
    """Fitted drift of pass rates; intervals are 99 %, from a covariance clustered by prompt.

    ``mean_logit`` holds at ``first_step``. ``dispersion`` is the mean squared standardised residual
    of the steps' accuracies (1: binomial and prompt noise explain them); intervals are widened by
    its root where it is larger than 1. ``covariance`` is of (mean_logit, slope, log sd).
    """

    first_step: int
    mean_logit: Estimate
    logit_per_step: Estimate
    sd_logit: Estimate
    dispersion: float
    n_steps: int
    n_groups: int
    covariance: Floats = field(repr=False)

    def predict(
        self, step: ArrayLike, *, n_groups: int, n_samples: int, level: float = 0.9
    ) -> pd.DataFrame:
        """Return accuracy with its interval for steps of ``n_groups`` other prompts.

        Columns ``step, accuracy, low, high``. The interval holds the noise of the parameters, of
        the draw of prompts and of the answers.
        """
        steps = np.asarray(step, dtype=np.float64)
        theta = np.array(
            [self.mean_logit.value, self.logit_per_step.value, np.log(self.sd_logit.value)]
        )
        t = steps - self.first_step
        mean, var = _step_moments(theta, t, n_samples)
        gradient = np.empty((len(t), 3))
        for k, h in enumerate((1e-4, 1e-6, 1e-4)):
            up, down = theta.copy(), theta.copy()
            up[k] += h
            down[k] -= h
            difference = _step_moments(up, t, n_samples)[0] - _step_moments(down, t, n_samples)[0]
            gradient[:, k] = difference / (2 * h)
        own = np.einsum("ti,ij,tj->t", gradient, self.covariance, gradient)
        sd = np.sqrt(own + max(1.0, self.dispersion) * var / n_groups)
        z = float(stats.norm.ppf(0.5 + level / 2))
        return pd.DataFrame(
            {"step": steps, "accuracy": mean, "low": mean - z * sd, "high": mean + z * sd}
        )


def fit_pass_rate_drift(counts: pd.DataFrame) -> PassRateDrift:
    """Fit pass rates that move with trained steps, by maximum likelihood.

    Parameters
    ----------
    counts : one row a group: ``step``, ``n_samples``, ``n_correct`` and, where prompts come back,
        ``prompt``. All candidate groups, degenerate ones included.

    Raises
    ------
    ConfigError
        Fewer than 4 steps, counts that are none, groups of one answer alone, no mixed outcome.
    """
    rows = _checked(counts)
    first = int(rows["step"].min())
    data = _Data.of(rows, first)
    accuracy = rows["n_correct"].sum() / rows["n_samples"].sum()
    begin = np.array([special.logit(accuracy), 0.0, 0.3])
    # a step far from the first moves a logit by slope·t: put the parameters on one scale
    scale = np.array([1.0, 1.0 / max(float(data.t_U.max()), 1.0), 1.0])

    def minus(x: Floats) -> tuple[float, Floats]:
        value, score_I3 = data.likelihood(x * scale)
        return -value, -(data.weight_I @ score_I3) * scale

    found = optimize.minimize(
        minus,
        begin / scale,
        jac=True,
        method="L-BFGS-B",
        bounds=[(-15, 15), (-30, 30), (-5, 3)],
        options={"gtol": 1e-7 * data.n_groups, "ftol": 1e-13},
    )
    theta = found.x * scale
    dispersion = _dispersion(theta, rows, first)
    covariance = _covariance(data, theta, scale) * max(1.0, dispersion)
    half = _Z99 * np.sqrt(np.diag(covariance))
    sd = float(np.exp(theta[2]))
    return PassRateDrift(
        first_step=first,
        mean_logit=estimate_of(theta[0], half[0], "logit"),
        logit_per_step=estimate_of(theta[1], half[1], "logit/step"),
        sd_logit=Estimate(sd, sd * float(np.exp(-half[2])), sd * float(np.exp(half[2])), "logit"),
        dispersion=dispersion,
        n_steps=len(data.t_U),
        n_groups=data.n_groups,
        covariance=covariance,
    )


@dataclass(frozen=True, eq=False)
class _Data:
    """Sufficient counts: prompts I × distinct steps U; nameless equal groups share a row."""

    t_U: Floats
    weight_I: Floats
    z_Q: Floats
    log_weight_Q: Floats
    samples_IU: "sparse.csr_array"
    correct_I: Floats
    correct_t_I: Floats
    n_groups: int

    @classmethod
    def of(cls, rows: pd.DataFrame, first: int) -> "_Data":
        n_groups = len(rows)
        if "prompt" in rows:
            prompt = pd.factorize(rows["prompt"])[0]
            weight = np.ones(int(prompt.max()) + 1)
        else:
            names = ["step", "n_samples", "n_correct"]
            rows = rows.groupby(names, as_index=False).size()
            prompt, weight = np.arange(len(rows)), rows["size"].to_numpy(dtype=np.float64)
        t = (rows["step"] - first).to_numpy(dtype=np.float64)
        n, k = rows["n_samples"].to_numpy(float), rows["n_correct"].to_numpy(float)
        t_U, at = np.unique(t, return_inverse=True)
        shape = (int(prompt.max()) + 1, len(t_U))
        samples = sparse.coo_array((n, (prompt, at)), shape=shape).tocsr()
        most = float(np.bincount(prompt, weights=n).max())
        # N answers leave a logit sd of 2/√N or more, of which this many nodes see enough
        z_Q, log_weight_Q = _grid(int(np.clip(10 * np.sqrt(most), 61, 401)))
        return cls(
            t_U,
            weight,
            z_Q,
            log_weight_Q,
            samples,
            np.bincount(prompt, weights=k).astype(np.float64),
            np.bincount(prompt, weights=k * t).astype(np.float64),
            n_groups,
        )

    def likelihood(self, theta: Floats) -> tuple[float, Floats]:
        """Return log likelihood less a constant, and its gradient in (m, slope, log sd), (I, 3)."""
        m, slope, log_sd = theta
        sd = np.exp(log_sd)
        logit_UQ = m + slope * self.t_U[:, None] + sd * self.z_Q
        p_UQ = special.expit(logit_UQ)
        spent_IQ = self.samples_IU @ np.logaddexp(0.0, logit_UQ)
        value_IQ = self.correct_I[:, None] * (m + sd * self.z_Q) + slope * self.correct_t_I[:, None]
        value_IQ = value_IQ - spent_IQ + self.log_weight_Q
        value_I = special.logsumexp(value_IQ, axis=1)
        weight_IQ = np.exp(value_IQ - value_I[:, None])
        rest_IQ = self.correct_I[:, None] - self.samples_IU @ p_UQ
        rest_t_IQ = self.correct_t_I[:, None] - self.samples_IU @ (self.t_U[:, None] * p_UQ)
        score_I3 = np.stack(
            [
                (weight_IQ * rest_IQ).sum(axis=1),
                (weight_IQ * rest_t_IQ).sum(axis=1),
                (weight_IQ * rest_IQ * sd * self.z_Q).sum(axis=1),
            ],
            axis=1,
        )
        return float(self.weight_I @ value_I), score_I3


def _covariance(data: _Data, theta: Floats, scale: Floats) -> Floats:
    """Sandwich H⁻¹ (Σ score·scoreᵀ) H⁻¹: right where prompts do not all move alike."""
    score_I3 = data.likelihood(theta)[1]
    hessian = np.empty((3, 3))
    for k in range(3):
        h = 1e-4 * scale[k]
        up, down = theta.copy(), theta.copy()
        up[k] += h
        down[k] -= h
        ends = data.likelihood(up)[1] - data.likelihood(down)[1]
        hessian[:, k] = data.weight_I @ ends / (2 * h)
    # a pseudo-inverse: a sd at its lower bound leaves one direction flat
    inverse = np.linalg.pinv((hessian + hessian.T) / 2, hermitian=True)
    meat = score_I3.T @ (data.weight_I[:, None] * score_I3)
    return np.asarray(inverse @ meat @ inverse)


def _step_moments(theta: Floats, t: Floats, n_samples: int) -> tuple[Floats, Floats]:
    """Return mean and variance of the share of right answers of one group at each t."""
    p_TQ = special.expit(theta[0] + theta[1] * t[:, None] + np.exp(theta[2]) * _Z)
    weight = np.exp(_LOG_WEIGHT)
    mean = p_TQ @ weight
    between = (p_TQ**2) @ weight - mean**2
    within = (p_TQ * (1 - p_TQ)) @ weight / n_samples
    return np.asarray(mean), np.asarray(between + within)


def _dispersion(theta: Floats, rows: pd.DataFrame, first: int) -> float:
    """Mean squared standardised residual of the steps' accuracies, three parameters fitted."""
    by_step = rows.assign(share=rows["n_correct"] / rows["n_samples"]).groupby("step")
    share, n_groups = by_step["share"].mean(), by_step.size().to_numpy()
    n_samples = round(float(rows["n_samples"].mean()))
    t = share.index.to_numpy(dtype=np.float64) - first
    mean, var = _step_moments(theta, t, max(n_samples, 1))
    squares = (share.to_numpy() - mean) ** 2 / (var / n_groups)
    return float(squares.sum() / max(len(t) - 3, 1))


def _checked(counts: pd.DataFrame) -> pd.DataFrame:
    missing = [name for name in _COLUMNS if name != "prompt" and name not in counts]
    if missing:
        raise ConfigError(f"counts lack the column {missing[0]!r}")
    rows = counts[[name for name in _COLUMNS if name in counts]].dropna()
    wrong = (rows["n_correct"] < 0) | (rows["n_correct"] > rows["n_samples"])
    if rows.empty or wrong.any() or (rows["n_samples"] < 1).any():
        raise ConfigError("counts must hold 0 ≤ n_correct ≤ n_samples, n_samples ≥ 1")
    if rows["step"].nunique() < FEWEST_STEPS:
        raise ConfigError(
            f"a drift needs at least {FEWEST_STEPS} steps, the data hold {rows['step'].nunique()}"
        )
    if "prompt" not in rows and (rows["n_samples"] < 2).all():
        raise ConfigError("groups of one answer do not tell how much prompts differ: no drift fit")
    n_right, n = rows["n_correct"].sum(), rows["n_samples"].sum()
    if n_right in (0, n):
        raise ConfigError("every answer is right, or every one wrong: no drift to see")
    return rows
