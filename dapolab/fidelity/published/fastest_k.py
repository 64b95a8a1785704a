"""Over-sampling responses and keeping the first that return: 464.6 / 412.3 / 364.7 s a step.

Published (linmumu009/qwen3.6-27b-GRPO-veRL @5c9dfc4b): a 27B agent on Ascend, 4 responses kept of
4, 5 or 6 a prompt; of the 464.6 s the queue wait is 383.8. In 20 synchronous steps of the same work
the mean trajectory took half as long as the slowest. Trajectory seconds are lognormal; sigma
follows from that half once it is known how many trajectories a step has (not published: 2 to 8
prompts), the scale is fitted to the baseline's wait. The instrument is order statistics, no engine.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from dapolab.fidelity.published.row import System, Variant
from dapolab.rng import stream

SOURCE = "linmumu009/qwen3.6-27b-GRPO-veRL @5c9dfc4b, docs/*.artifact.json"
KEPT, MEAN_OVER_MAX, BASE_STEP_S, BASE_WAIT_S = 4, 0.50, 464.6, 383.81
_DRAWS = 20_000


def _normals(n_prompts: int, n_candidates: int, prompt_share: float) -> NDArray[np.float64]:
    """Return standard normal log seconds (draws, prompts, candidates), alike within a prompt."""
    rng = stream(0, "fastest-k")
    between = rng.standard_normal((_DRAWS, n_prompts, 1))
    within = rng.standard_normal((_DRAWS, n_prompts, 8))[:, :, :n_candidates]
    return np.asarray(np.sqrt(prompt_share) * between + np.sqrt(1 - prompt_share) * within)


def _wait(variant: Variant, sigma: float, n_candidates: int) -> float:
    """Return E[slowest prompt's KEPT-th fastest of its candidates] at median 1."""
    v = variant.values
    z = _normals(int(v["prompts"]), n_candidates, v["prompt_share"])
    ordered = np.sort(np.exp(sigma * z), axis=2)[:, :, KEPT - 1]
    return float(ordered.max(axis=1).mean())


def _fit(variant: Variant) -> dict[str, float]:
    z = _normals(int(variant.values["prompts"]), KEPT, variant.values["prompt_share"])

    def gap(sigma: float) -> float:
        x = np.exp(sigma * z).reshape(_DRAWS, -1)
        return float((x.mean(axis=1) / x.max(axis=1)).mean()) - MEAN_OVER_MAX

    sigma = float(optimize.brentq(gap, 0.05, 3.0))
    return {"sigma": sigma, "median_s": BASE_WAIT_S / _wait(variant, sigma, KEPT)}


def _predict(variant: Variant, parameters: Mapping[str, float]) -> dict[str, float]:
    return {
        f"keep 4 of {n}": BASE_STEP_S
        - BASE_WAIT_S
        + parameters["median_s"] * _wait(variant, parameters["sigma"], n)
        for n in (4, 5, 6)
    }


def system() -> System:
    """Return the comparison: numbers of prompts × how alike a prompt's trajectories are."""
    return System(
        name="fastest k of n",
        source=SOURCE,
        published={
            "keep 4 of 4": (464.6, "s"),
            "keep 4 of 5": (412.34, "s"),
            "keep 4 of 6": (364.69, "s"),
        },
        baseline=["keep 4 of 4"],
        variants=[
            Variant(
                f"{n} prompts, {share:.0%} of the spread between prompts",
                {"prompts": float(n), "prompt_share": share},
            )
            for n in (2, 4, 8)
            for share in (0.0, 0.4, 0.75)
        ],
        fit=_fit,
        predict=_predict,
        notes={},
    )
