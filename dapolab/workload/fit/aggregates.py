"""Workloads from figures that are not per response: a step log, a histogram of lengths.

They identify less. What they leave open is taken from stated priors and said in ``source``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from dapolab.scenario import ConfigError, EmpiricalLengths, IndependentWorkload, JointWorkload
from dapolab.workload.fit.plan import PRIOR_PROMPT_SHARE
from dapolab.workload.fit.result import toml_value
from dapolab.workload.marginals import marginals

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepFigures:
    """Averages over the steps of a log that holds whole steps only.

    Shares are of groups; ``mean_tokens`` of responses; ``max_tokens`` is the mean over steps of
    the longest response of a step of ``groups_per_step`` groups.
    """

    group_size: int
    groups_per_step: int
    all_right_share: float
    all_wrong_share: float
    mean_tokens: float
    max_tokens: float
    cap_tokens: int


def from_step_figures(
    figures: StepFigures,
    *,
    prompt_share: float = PRIOR_PROMPT_SHARE,
    source: str = "",
    near: JointWorkload | None = None,
) -> JointWorkload:
    """Solve the joint law for four figures of a step log, two for pass rates, two for lengths.

    The mean and the longest length give median and sigma; how much lies between prompts, the
    effect of correctness, correlations and loops are not in such a log: ``prompt_share`` is a
    prior, the rest is zero. The cap is applied to the model as it was to the data. ``near`` is a
    solution for similar figures to start from.

    Raises
    ------
    ConfigError
        Shares outside (0, 1), or figures that no such law reproduces within 2 %.
    """
    right, wrong = figures.all_right_share, figures.all_wrong_share
    if not (0 < right < 1 and 0 < wrong < 1 and right + wrong < 1):
        raise ConfigError("all-right and all-wrong shares must lie in (0, 1) and sum to less")
    law = JointWorkload(
        prompt_share=prompt_share, native_cap_tokens=figures.cap_tokens, source=source
    )

    def at(x: Floats) -> JointWorkload:
        median, sigma, mean, sd = x
        update = {
            "median_tokens": float(np.exp(median)),
            "sigma": float(np.exp(sigma)),
            "mean_logit": float(mean),
            "sd_logit": float(np.exp(sd)),
        }
        return law.model_copy(update=update)

    def gap(x: Floats) -> Floats:
        found = expected_figures(at(x), like=figures)
        return np.array(
            [
                np.log(found.mean_tokens / figures.mean_tokens),
                np.log(found.max_tokens / figures.max_tokens),
                # Truncated answers are judged wrong in the model, as in the log.
                10 * (found.all_right_share - right),
                10 * (found.all_wrong_share - wrong),
            ]
        )

    begin = np.array([np.log(0.8 * figures.mean_tokens), -0.5, 0.0, 0.7])
    if near is not None:
        begin = np.array(
            [np.log(near.median_tokens), np.log(near.sigma), near.mean_logit, np.log(near.sd_logit)]
        )
    solved = optimize.least_squares(gap, begin, xtol=1e-8, diff_step=np.full(4, 1e-4))
    if np.abs(solved.fun).max() > 0.02:
        raise ConfigError(
            "no lognormal workload reproduces these step figures (largest miss "
            f"{np.abs(solved.fun).max():.3g} on a log scale); is the cap right?"
        )
    return at(solved.x)


def expected_figures(workload: JointWorkload, *, like: StepFigures) -> StepFigures:
    """Return the figures that a log of such steps has on average; sizes and cap as in ``like``."""
    found = marginals(workload, group_size=like.group_size, cap_tokens=like.cap_tokens)
    return replace(
        like,
        all_right_share=float(found.all_right_probability),
        all_wrong_share=float(found.all_wrong_probability),
        mean_tokens=float(found.mean_tokens),
        max_tokens=_step_maximum(found.group_survival, like),
    )


def _step_maximum(group_survival: Callable[[Floats], Floats], figures: StepFigures) -> float:
    """E[longest response of a step] = Σ 1 − (1 − S_G(x))^groups, on a grid of whole tokens."""
    edges = np.unique(np.linspace(0, figures.cap_tokens, 161).round())
    below = (1.0 - group_survival(edges)) ** figures.groups_per_step
    middle = (below[1:] + below[:-1]) / 2
    # At the cap the survival jumps to 0; the last cell is open on that side.
    middle[-1] = below[-2]
    return float(((1.0 - middle) * np.diff(edges)).sum())


def from_length_histogram(
    tokens: ArrayLike,
    weights: ArrayLike,
    *,
    n_points: int = 400,
    source: str = "",
) -> IndependentWorkload:
    """Return an empirical length law of at most ``n_points`` points from a histogram.

    Points are the means of slices of equal probability, except that the upper tenth gets half of
    the points, so that maxima keep their law; every slice mean is exact, hence so is the mean.
    """
    x, weight = np.asarray(tokens, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    order = np.argsort(x)
    x, weight = x[order], weight[order] / weight.sum()
    body, tail = np.linspace(0.0, 0.9, n_points // 2 + 1), np.geomspace(0.1, 1e-4, n_points // 2)
    edges = np.concatenate([body, 1.0 - tail[1:], [1.0]])
    cumulative = np.concatenate([[0.0], np.cumsum(weight)])
    first_moment = np.interp(edges, cumulative, np.concatenate([[0.0], np.cumsum(weight * x)]))
    mass = np.diff(edges)
    points = np.maximum(np.rint(np.diff(first_moment) / mass), 1).astype(np.int64)
    values, inverse = np.unique(points, return_inverse=True)
    total = np.bincount(inverse, weights=mass)
    law = EmpiricalLengths(
        tokens=tuple(int(v) for v in values),
        weights=tuple(float(f"{w:.6g}") for w in total),
    )
    return IndependentWorkload(lengths=law, native_cap_tokens=int(x.max()), source=source)


def law_toml(workload: JointWorkload | IndependentWorkload, *, comments: Sequence[str] = ()) -> str:
    """Return a ``[workload]`` file of a workload's non-default settings, comments first."""
    lines = [f"# {text}" for text in comments]
    values = workload.model_dump(exclude_defaults=True, exclude_none=True)
    lines += _table("workload", {"kind": workload.kind, **values})
    return "\n".join(lines) + "\n"


def _table(name: str, values: dict[str, object]) -> list[str]:
    lines = ["", f"[{name}]"]
    below = []
    for key, value in values.items():
        if isinstance(value, dict):
            inner = {"kind": "empirical", **value} if key == "lengths" else value
            below += _table(f"{name}.{key}", inner)
        else:
            lines.append(f"{key} = {toml_value(value)}")
    return lines + below
