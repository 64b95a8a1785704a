"""What the training studies vary: one plain preset, and the answers of its runs in numbers."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from gpu_runs.preset import Preset
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.paired import RUNS
from gpu_runs.validate.standard_length import QUANTITY, standard_length

N_UPDATES = 8
"""Optimizer steps of a rollout: the policy moves between them, so that a clip can act."""
UNITS: Mapping[str, str] = {
    QUANTITY: "tokens",
    "wrong answer": "tokens",
    "right answer": "tokens",
    "accuracy": "share",
    "truncated": "share",
    "filler": "tokens",
}


def plain(
    context: Context, *, steps: int, every: int, groups: int, n_prompts: int, **changes: Any
) -> Preset:
    """Return the context's preset without a filter, so that arms see the same prompts at each step.

    Parameters
    ----------
    steps, every : rollouts, and those between two evaluations on the held-out set.
    groups, n_prompts : of a rollout, and of the held-out set.
    changes : further settings, ``__`` for a dot.
    """
    size = context.preset.rollout.group_size
    settings: dict[str, Any] = {
        "collector": {"kind": "none"},
        "rollout.groups_per_step": groups,
        "train.responses_per_update": max(1, groups * size // N_UPDATES),
        "evaluation.every": every,
        "evaluation.n_prompts": n_prompts,
        "run.steps": steps,
        "run.checkpoint_every": 5,
        "run.dump": True,
    }
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    return vary(context.preset, settings)


def answers_in(heldout: pd.DataFrame, *, first: int, last: int) -> pd.DataFrame:
    """Return each run's held-out answers before steps first … last, together, as rows of ``runs``.

    What does not exist in a run (the length of wrong answers where all are right) is no row.
    """
    inside = heldout[heldout["step"].between(first, last)]
    rows = []
    for (arm, seed), answers in inside.groupby(["arm", "seed"], sort=False):
        right = answers["correct"].astype(bool)
        tokens = answers["n_tokens"].astype(float)
        found = {
            QUANTITY: standard_length(answers),
            "wrong answer": tokens[~right].mean(),
            "right answer": tokens[right].mean(),
            "accuracy": right.mean(),
            "truncated": answers["truncated"].astype(float).mean(),
            "filler": answers["extra/filler"].astype(float).mean(),
        }
        rows += [(arm, seed, name, float(v)) for name, v in found.items() if not pd.isna(v)]
    return pd.DataFrame(rows, columns=list(RUNS))
