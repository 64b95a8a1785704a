"""Batch means: the interval of one long, dependent series."""

import math
from dataclasses import dataclass

import numpy.typing as npt

from dapolab.stats.estimate import LEVEL, Estimate, mean_estimate, sample

MIN_BATCHES = 20


@dataclass(frozen=True)
class BatchMeans:
    """The mean of a dependent series and whether its batches look independent.

    Attributes
    ----------
    estimate : mean over batches with Student's t on the batch means; n is the number of batches.
    batch_size : consecutive values in a batch.
    lag1 : correlation of neighbouring batch means.
    correlated : True where lag1 is too large for independent batches (5 % one-sided). The
        interval is then too narrow: use longer batches, a longer run, or replications.
    """

    estimate: Estimate
    batch_size: int
    lag1: float
    correlated: bool

    @property
    def warning(self) -> str | None:
        """One line for the user where the interval cannot be trusted, else None."""
        if not self.correlated:
            return None
        return (
            f"batch means are still correlated (lag 1: {self.lag1:.2f}, batches of "
            f"{self.batch_size}): the interval is too narrow, run longer or use replications"
        )


def batch_means(
    x: npt.ArrayLike, *, n_batches: int = MIN_BATCHES, unit: str = "", level: float = LEVEL
) -> BatchMeans:
    """Return the mean of a stationary, dependent series by non-overlapping batch means.

    Parameters
    ----------
    x : array (T,), consecutive values, for instance one a training step. The remainder that fills
        no batch is taken off the start, where a run is still warming up.
    n_batches : at least 20.

    Raises
    ------
    ValueError : fewer than 20 batches, fewer values than batches, or NaN.
    """
    values = sample(x)
    if n_batches < MIN_BATCHES:
        raise ValueError(f"batch means need at least {MIN_BATCHES} batches, not {n_batches}")
    if values.size < n_batches:
        raise ValueError(f"{values.size} values are too few for {n_batches} batches")
    batch_size = values.size // n_batches
    means = values[values.size - n_batches * batch_size :].reshape(n_batches, batch_size).mean(1)
    estimate = mean_estimate(means, unit=unit, level=level)
    centred = means - means.mean()
    spread = float(centred @ centred)
    flat = spread <= (1e-12 * max(1.0, abs(estimate.mean))) ** 2 * n_batches
    lag1 = 0.0 if flat else float(centred[1:] @ centred[:-1]) / spread
    # independent batches: lag1 has mean about -1/n and variance about 1/n
    correlated: bool = (lag1 + 1.0 / n_batches) * math.sqrt(n_batches) > 1.645
    return BatchMeans(estimate, batch_size, lag1, correlated)
