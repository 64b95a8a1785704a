"""What kept groups alone can say about difficulty: the likelihood of K given 0 < K < G.

Kept groups are a biased sample of prompts (q-weighted), so their accuracy and their mixed share
say nothing about all candidates; conditioning corrects this, at the price that very different
difficulty laws look alike. The whole (mean, sd) plane is therefore scanned: the interval of q is
the range over all laws that the data do not reject, and draws follow the likelihood.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dapolab.scenario import ConfigError
from dapolab.workload.difficulty import normal_nodes

Floats = NDArray[np.float64]
_SMALLEST_GROUP = 4
_WORTH_A_LOOK = 12.0


@dataclass(frozen=True, eq=False)
class KeptDifficulty:
    """Difficulty laws by their likelihood given kept groups.

    ``mean_logit_L``, ``sd_logit_L``: the scanned laws; ``mixed_L``: their q at the group size;
    ``log_likelihood_L``. ``best`` indexes the most likely law.
    """

    mean_logit_L: Floats
    sd_logit_L: Floats
    mixed_L: Floats
    log_likelihood_L: Floats

    @property
    def best(self) -> int:
        """Index of the most likely law."""
        return int(np.argmax(self.log_likelihood_L))

    def mixed_interval(self, level: float = 0.99) -> tuple[float, float]:
        """Return the range of q over the laws that a likelihood-ratio test does not reject."""
        allowed = float(stats.chi2.ppf(level, 1)) / 2
        inside = self.log_likelihood_L >= self.log_likelihood_L.max() - allowed
        return float(self.mixed_L[inside].min()), float(self.mixed_L[inside].max())

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Draw laws in proportion to their likelihood (flat over the scanned plane)."""
        weight = np.exp(self.log_likelihood_L - self.log_likelihood_L.max())
        return rng.choice(len(weight), size=n, p=weight / weight.sum())


def scan(
    n_correct_U: NDArray[np.int64],
    *,
    group_size: int,
    n_all_wrong: int | None = None,
    n_all_right: int | None = None,
    n_degenerate: int | None = None,
) -> KeptDifficulty:
    """Scan logit-normal difficulty laws against kept groups of one size.

    Parameters
    ----------
    n_correct_U : right answers of each kept group, all in 1 … G − 1.
    n_all_wrong, n_all_right : dropped groups of each kind, where known (both or neither).
    n_degenerate : their sum, where only that is known (candidates − kept).

    Raises
    ------
    ConfigError
        Groups of 3 or fewer without counts: K has at most two values, and no difficulty law is
        identified. A kept group that is not mixed.
    """
    pinned = n_degenerate is not None or n_all_wrong is not None
    if group_size < _SMALLEST_GROUP and not pinned:
        raise ConfigError(
            f"kept groups of {group_size} cannot identify the difficulty law (theory: K given "
            "mixed has at most two values); dump all groups, or give the numbers of all-wrong and "
            "all-right candidates"
        )
    if ((n_correct_U <= 0) | (n_correct_U >= group_size)).any():
        raise ConfigError(
            "the file is said to hold mixed groups only, but some group is all right or all "
            "wrong; use --selection all if every sampled group is in it"
        )
    counts = np.bincount(n_correct_U, minlength=group_size + 1).astype(np.float64)
    dropped = (n_all_wrong, n_all_right, n_degenerate)
    means, sds = np.linspace(-9, 9, 73), np.geomspace(0.05, 9, 41)
    coarse = _scan(means, sds, counts, dropped)
    # Look again, closely, at the part of the plane that is not ruled out.
    inside = coarse.log_likelihood_L >= coarse.log_likelihood_L.max() - _WORTH_A_LOOK
    low, high = _around(means, coarse.mean_logit_L[inside])
    fine_means = np.linspace(low, high, 61)
    low, high = _around(sds, coarse.sd_logit_L[inside])
    return _scan(fine_means, np.geomspace(low, high, 51), counts, dropped)


def _around(grid: Floats, values: Floats) -> tuple[float, float]:
    """Return the grid points next to the range of ``values`` on either side."""
    first = int(np.searchsorted(grid, values.min())) - 1
    last = int(np.searchsorted(grid, values.max())) + 1
    return float(grid[max(first, 0)]), float(grid[min(last, len(grid) - 1)])


def _scan(
    means: Floats,
    sds: Floats,
    counts: Floats,
    dropped: tuple[int | None, int | None, int | None],
) -> KeptDifficulty:
    mean, sd = (a.ravel() for a in np.meshgrid(means, sds))
    log_p = _log_masses(mean, sd, len(counts) - 1)
    mixed = np.clip(1 - np.exp(log_p[:, 0]) - np.exp(log_p[:, -1]), 1e-300, 1.0)
    log_f = log_p[:, 1:-1] @ counts[1:-1]
    n_all_wrong, n_all_right, n_degenerate = dropped
    if n_all_wrong is not None and n_all_right is not None:
        log_f = log_f + n_all_wrong * log_p[:, 0] + n_all_right * log_p[:, -1]
    elif n_degenerate is not None:
        log_f = log_f + n_degenerate * np.log(np.maximum(1 - mixed, 1e-300))
    else:
        log_f = log_f - counts.sum() * np.log(mixed)
    return KeptDifficulty(mean, sd, mixed, log_f)


def _log_masses(mean_L: Floats, sd_L: Floats, group_size: int) -> Floats:
    """Log P(K = k) under each law, shape (L, G + 1)."""
    z, weight = normal_nodes(161)
    k = np.arange(group_size + 1)
    choose = special.gammaln(group_size + 1) - special.gammaln(k + 1)
    choose = choose - special.gammaln(group_size - k + 1)
    logit = mean_L[:, None] + sd_L[:, None] * z
    right, wrong = special.log_expit(logit), special.log_expit(-logit)
    columns = [
        special.logsumexp(np.log(weight) + i * right + (group_size - i) * wrong, axis=1) for i in k
    ]
    return np.asarray(np.stack(columns, axis=1) + choose)
