"""The length of wrong answers at fixed weights over difficulty.

The plain mean moves with what is wrong: a policy that learns the short problems first has longer
wrong answers without writing any differently. Here every class of problems keeps its weight.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

WEIGHTS: Final[Mapping[str, float]] = {
    "2 to 5 digits": 0.2,
    "6 to 9 digits": 0.35,
    "10 to 12 digits": 0.35,
    "masked": 0.1,
}
"""About the shares of wrong answers of the shipped toy before training; fixed for good."""
_LAST = (5, 9)
QUANTITY = "wrong answer, standardised"


def class_of(difficulty: int, stratum: str) -> str:
    """Return the class of a problem of the digit sum."""
    names = list(WEIGHTS)
    return "masked" if stratum == "masked" else names[sum(difficulty > last for last in _LAST)]


def standard_length(
    answers: pd.DataFrame, *, weights: Mapping[str, float] = WEIGHTS, right: bool = False
) -> float:
    """Return Σ weight·(mean length in the class) over classes with such answers, over Σ weight.

    Parameters
    ----------
    answers : columns n_tokens, correct, extra/difficulty, extra/stratum.
    right : of right answers instead of wrong ones.

    Returns
    -------
    float : tokens; NaN where no class has any.
    """
    chosen = answers[answers["correct"].astype(bool) == right]
    pairs = zip(chosen["extra/difficulty"], chosen["extra/stratum"], strict=True)
    classes = [class_of(int(n), str(stratum)) for n, stratum in pairs]
    means = chosen["n_tokens"].astype(float).groupby(np.array(classes, dtype=object)).mean()
    present = {name: weight for name, weight in weights.items() if name in means.index}
    total = sum(present.values())
    return sum(w * float(means[name]) for name, w in present.items()) / total if total else np.nan
