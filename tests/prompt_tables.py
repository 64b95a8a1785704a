"""Tables of prompts with several answers, for tests of fits."""

import numpy as np
import pandas as pd
from scipy import special

from dapolab.scenario import Prompts
from dapolab.workload import PromptStream


def table_of(workload, *, n_prompts, n=8, seed=1, cap=10**6):
    pool = workload.model_copy(update={"prompts": Prompts(count=n_prompts)})
    groups = PromptStream(pool, group_size=n, cap_tokens=cap, seed=seed).draw(0, n_prompts)
    return pd.DataFrame(
        {
            "prompt_id": np.repeat(np.arange(n_prompts), n),
            "n_tokens": groups.n_tokens_PG.ravel(),
            "correct": groups.correct_PG.ravel(),
            "truncated": groups.truncated_PG.ravel(),
        }
    )


def counts(mean, sd, share, *, n_prompts, n=8, seed=0, guess=0.0):
    """Right answers of each prompt, drawn without the code under test."""
    rng = np.random.default_rng(seed)
    p = special.expit(rng.normal(mean, sd, n_prompts))
    p[rng.random(n_prompts) < share] = guess
    return rng.binomial(n, p).astype(float), np.full(n_prompts, float(n))


def verdicts_of(right, n=8):
    correct = np.arange(n) < right[:, None]
    return pd.DataFrame(
        {"prompt_id": np.repeat(np.arange(len(right)), n), "correct": correct.ravel()}
    )


def reasons(fit):
    return {name: why for names, why in fit.not_identified for name in names.split(", ")}
