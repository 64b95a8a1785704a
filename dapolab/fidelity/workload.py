"""A workload from a step log alone: four figures fix four parameters, one stays a prior.

Mean and longest response of a step fix median and sigma once it is known how much of the spread
lies between prompts; they do not tell that share, so it is a prior (per-response sets with n ≥ 8
show .7 to .8) and its effect is shown. All-right and all-wrong shares fix the pass rates.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.errors import ConfigError
from dapolab.fidelity.steps import (
    MAX_TOKENS,
    MEAN_TOKENS,
    column,
    n_responses,
    prompt_tokens,
    single_wave,
)
from dapolab.scenario import JointWorkload, Prompts, Rollout
from dapolab.workload.fit import StepFigures, expected_figures, from_step_figures
from dapolab.workload.marginals import marginals
from dapolab.workload.model import PromptStream

Floats = NDArray[np.float64]

PRIOR_SHARES = (0.7, 0.75, 0.8)
_FIGURES = ("all_right_share", "all_wrong_share", "mean_tokens", "max_tokens")
_FITTED = ("median_tokens", "sigma", "mean_logit", "sd_logit")
_LOGS = ("median_tokens", "sigma", "sd_logit")
_NUDGE = 0.03


@dataclass(frozen=True, eq=False)
class StepWorkload:
    """A workload fitted to a step log.

    Attributes
    ----------
    workload : at the middle of the prior.
    figures : what was fitted; ``figures_se`` their standard errors over steps.
    sensitivity : one row a prior share: the fitted parameters and what follows (mixed share,
        truncated share, longest response of one step).
    truncated_share : in the log, NaN where it does not tell; a check, not fitted.
    """

    workload: JointWorkload
    figures: StepFigures
    figures_se: Mapping[str, float]
    sensitivity: pd.DataFrame
    truncated_share: float
    _slopes: Mapping[str, Mapping[str, float]]

    def draw(self, rng: np.random.Generator) -> JointWorkload:
        """Return a workload with figures drawn over steps and a prompt share from the prior.

        Parameters move along their slopes in the figures, on a log scale where they are positive.
        """
        share = float(rng.uniform(PRIOR_SHARES[0], PRIOR_SHARES[-1]))
        update: dict[str, float] = {"prompt_share": share}
        shares = self.sensitivity["prompt_share"].to_numpy(float)
        steps = {name: se * rng.standard_normal() for name, se in self.figures_se.items()}
        for name in _FITTED:
            value = self.sensitivity[name].to_numpy(float)
            value = np.log(value) if name in _LOGS else value
            at = float(np.interp(share, shares, value))
            at += sum(self._slopes[figure][name] * step for figure, step in steps.items())
            update[name] = float(np.exp(at)) if name in _LOGS else at
        return self.workload.model_copy(update=update)


def step_figures(frame: pd.DataFrame, *, rollout: Rollout) -> tuple[StepFigures, dict[str, float]]:
    """Return the figures of the one-wave steps, and their standard errors over steps.

    Raises
    ------
    ConfigError
        The log has no group composition, or no mean and longest response.
    """
    rows = frame[single_wave(frame)]
    found = {
        "all_right_share": column(rows, "rollout/all_right_share"),
        "all_wrong_share": column(rows, "rollout/all_wrong_share"),
        "mean_tokens": column(rows, MEAN_TOKENS),
        "max_tokens": column(rows, MAX_TOKENS),
    }
    for name, values in found.items():
        if not np.isfinite(values).any():
            raise ConfigError(f"a workload from a step log needs {name}; this log does not have it")
    means = {name: float(np.nanmean(values)) for name, values in found.items()}
    n = float(np.nanmedian(n_responses(rows, rollout)))
    n_groups = len(rows) * max(n / rollout.group_size, 1.0)
    errors = {
        name: float(np.nanstd(values, ddof=1) / np.sqrt(np.isfinite(values).sum()))
        for name, values in found.items()
    }
    for name in ("all_right_share", "all_wrong_share"):
        # stated once for all steps, it still comes from so many groups
        binomial = float(np.sqrt(means[name] * (1 - means[name]) / n_groups))
        errors[name] = errors[name] or binomial
    figures = StepFigures(
        group_size=rollout.group_size,
        groups_per_step=max(round(n / rollout.group_size), 1),
        cap_tokens=rollout.cap_tokens,
        **means,
    )
    return figures, errors


def workload_of_steps(
    frame: pd.DataFrame, *, rollout: Rollout, source: str = "", draws: bool = True
) -> StepWorkload:
    """Fit the workload; ``draws`` false skips the slopes that ``draw`` needs.

    Raises
    ------
    ConfigError
        As ``step_figures``; figures that no such workload reproduces.
    """
    figures, errors = step_figures(frame, rollout=rollout)
    prompts = Prompts(tokens_median=max(prompt_tokens(frame, rollout), 1.0))

    def at(figures: StepFigures, share: float, near: JointWorkload | None) -> JointWorkload:
        found = from_step_figures(figures, prompt_share=share, source=source, near=near)
        return found.model_copy(update={"prompts": prompts})

    middle = at(figures, PRIOR_SHARES[1], None)
    fits = {
        share: middle if share == middle.prompt_share else at(figures, share, middle)
        for share in PRIOR_SHARES
    }
    slopes = _slopes_of(middle, figures) if draws else {}
    rows = [_row(law, figures) for law in fits.values()]
    truncated = column(frame[single_wave(frame)], _TRUNCATED)
    return StepWorkload(
        workload=middle,
        figures=figures,
        figures_se=errors if draws else {},
        sensitivity=pd.DataFrame(rows),
        truncated_share=float(np.nanmean(truncated)) if np.isfinite(truncated).any() else np.nan,
        _slopes=slopes,
    )


_TRUNCATED = ("rollout/truncated_share", "trained/truncated_share")


def _slopes_of(law: JointWorkload, figures: StepFigures) -> dict[str, dict[str, float]]:
    """Return figure -> parameter -> slope: the inverse of how figures follow parameters."""
    forward = np.zeros((len(_FIGURES), len(_FITTED)))
    for place, name in enumerate(_FITTED):
        value = float(getattr(law, name))
        ends = []
        for sign in (1, -1):
            step = sign * _NUDGE
            moved = value * np.exp(step) if name in _LOGS else value + step
            found = expected_figures(law.model_copy(update={name: float(moved)}), like=figures)
            ends.append(np.array([getattr(found, figure) for figure in _FIGURES]))
        forward[:, place] = (ends[0] - ends[1]) / (2 * _NUDGE)
    inverse = np.linalg.inv(forward)
    return {
        figure: {name: float(inverse[row, place]) for row, name in enumerate(_FITTED)}
        for place, figure in enumerate(_FIGURES)
    }


def _row(law: JointWorkload, figures: StepFigures) -> dict[str, float]:
    """Return a row of the sensitivity table: parameters, and what they imply."""
    implied = marginals(law, group_size=figures.group_size, cap_tokens=figures.cap_tokens)
    mixed = 1 - implied.all_right_probability - implied.all_wrong_probability
    return {
        "prompt_share": law.prompt_share,
        **{name: float(getattr(law, name)) for name in _FITTED},
        "mixed_share": float(mixed),
        "truncated_share": float(implied.weight_N @ implied.truncated_N),
        "square_ratio": square_ratio(law, cap_tokens=figures.cap_tokens),
    }


def square_ratio(law: JointWorkload, *, cap_tokens: int, n_prompts: int = 4000) -> float:
    """Return E[L²]/E[L]² of the capped lengths, from fixed draws: what the context sum needs."""
    drawn = PromptStream(law, group_size=4, cap_tokens=cap_tokens, seed=0).draw(0, n_prompts)
    lengths = drawn.n_tokens_PG.astype(np.float64)
    return float((lengths**2).mean() / lengths.mean() ** 2)
