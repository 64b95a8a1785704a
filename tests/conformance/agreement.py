"""What agreeing means: value, gradient and metrics within a stated error, and nothing less."""

import torch
from torch import Tensor

EXACT = 1e-12
"""float64 on both sides, the same operations up to their order."""
COUNT_EPS = 1.2e-8
"""verl adds 1e-8 to a count of tokens before it divides; dapolab divides by the count."""
IN_EXPONENT = 3e-7
"""The same 1e-8 in the mean of log-ratios of up to 25 that is then exponentiated (geo_mean)."""
FACTOR_IN_SINGLE = 1.2e-7
"""The judge multiplies by one float32 constant (TRL: n/(n − 1) of the std, τ of SAPO)."""
SINGLE = 2e-6
"""The judge computes in float32 whatever it is given: 16 units in the last place."""


def disagreement(ours: Tensor, judge: Tensor) -> float:
    """Return the largest error, relative to the larger of the element and the typical size.

    The typical size is the mean magnitude of the judge's tensor, at most 1: an element that is 0 by
    cancellation or far smaller than its neighbours is not asked for more digits than they have.
    """
    if ours.shape != judge.shape:
        return float("inf")
    if not bool((ours.isfinite() & judge.isfinite()).all()):
        return float("inf")
    ours, judge = ours.double(), judge.double()
    typical = judge.abs().mean().clamp(max=1.0)
    scale = torch.maximum(judge.abs(), typical).clamp(min=1e-300)
    return float(((ours - judge).abs() / scale).max())


def sum_disagreement(ours: Tensor, judge: Tensor, *, terms: Tensor) -> float:
    """Return the error of a sum, relative to the sum of the magnitudes of its terms."""
    size = terms.abs().sum().clamp(min=1e-300)
    found = float((ours.double() - judge.double()).abs() / size)
    return found if found == found else float("inf")
