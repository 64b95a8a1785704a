"""Which policies may be the best: a set, never one name inside the noise.

Multiple comparisons with the best (J. C. Hsu, Multiple Comparisons, 1996, chapter 4), with
Bonferroni in place of Dunnett's constants because pairing by replication leaves unequal
correlations. A policy leaves the set when some other policy is better by a paired two-sided t
interval at 1 - (1 - level)/(k - 1). The best one is then lost with probability at most
(1 - level)/2. Hsu's one-sided constant would spend the whole 1 - level on that, but between two
policies that are the same it would name a winner in 2 of 100 rankings at 99 %; the two-sided one
does so in at most 1 - level of them, for any number of policies.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dapolab.stats.estimate import LEVEL, Floats, check_level, sample, simultaneous
from dapolab.stats.ratios import log_ratio_jackknife


@dataclass(frozen=True)
class BestSet:
    """The policies that simultaneous intervals cannot separate from the best.

    Attributes
    ----------
    names : the set, best point estimate first; the order inside the set is not established.
    beaten_by : for each policy outside the set, one policy of lower or higher value that beats it.
    n : replications that the comparison rests on.
    level : confidence with which the set holds the best policy.
    """

    names: tuple[str, ...]
    beaten_by: Mapping[str, str]
    n: int
    level: float

    @property
    def is_tie(self) -> bool:
        """Whether more than one policy may be the best."""
        return len(self.names) > 1


def best_set(
    values_per_policy: Mapping[str, npt.ArrayLike], *, minimise: bool = True, level: float = LEVEL
) -> BestSet:
    """Return the policies that may have the best mean.

    Parameters
    ----------
    values_per_policy : name -> array (n,); replication i is paired across policies.
    minimise : True where less is better.
    level : confidence.

    Returns
    -------
    BestSet : with n < 2 every policy is in the set.

    Raises
    ------
    ValueError : no policy, unequal lengths, or NaN.
    """
    names = tuple(values_per_policy)
    rows = [sample(values_per_policy[name], name=name) for name in names]
    _check_paired(rows)
    values_KN = np.vstack(rows)
    return _rank(names, values_KN.mean(axis=1), values_KN, minimise=minimise, level=level)


def best_set_of_ratios(
    totals_per_policy: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    minimise: bool = True,
    level: float = LEVEL,
) -> BestSet:
    """Return the policies that may have the best ratio of totals.

    Parameters
    ----------
    totals_per_policy : name -> (numerator (n,), denominator (n,)), totals of each replication;
        replication i is paired across policies. Compared on the log scale by the jackknife.

    Raises
    ------
    ValueError : no policy, unequal lengths, NaN, or a total that is 0 once a replication is left
        out (a policy that never trained has no cost per trained group: leave it out and say so).
    """
    names = tuple(totals_per_policy)
    points: list[float] = []
    pseudo: list[Floats] = []
    for name in names:
        num, den = (sample(part, name=name) for part in totals_per_policy[name])
        if num.shape != den.shape:
            raise ValueError(f"{name} needs one numerator and one denominator per replication")
        n = num.size
        point, left_out = log_ratio_jackknife(num, den)
        if n < 2:
            left_out = np.full(n, point)
        if not (math.isfinite(point) and np.isfinite(left_out).all()):
            raise ValueError(f"{name} has a total of 0: it cannot be ranked by a ratio")
        points.append(point)
        pseudo.append(n * point - (n - 1) * left_out)
    _check_paired(pseudo)
    return _rank(names, np.asarray(points), np.vstack(pseudo), minimise=minimise, level=level)


def screen(
    means: npt.ArrayLike,
    standard_errors: npt.ArrayLike,
    n: npt.ArrayLike,
    *,
    minimise: bool = True,
    level: float = LEVEL,
) -> npt.NDArray[np.bool_]:
    """Return which of many independent means may be the best: stage 1 of a selection.

    A mean leaves when some other is better by Welch's two-sided t interval at
    1 - (1 - level)/(k - 1), as in ``best_set``, without pairing. Only the means that could reject
    it are tried, so that 100,000 of them take no matrix.

    Parameters
    ----------
    means, standard_errors : arrays (k,).
    n : repetitions behind each mean, (k,); a mean of one repetition neither leaves nor rejects.

    Raises
    ------
    ValueError : nothing to rank, shapes differ, or NaN.
    """
    mean_K, se_K = sample(means, name="means"), sample(standard_errors, name="standard_errors")
    n_K = sample(n, name="n")
    check_level(level)
    if not mean_K.shape == se_K.shape == n_K.shape:
        raise ValueError("means, standard errors and n need one entry each")
    cost_K = mean_K if minimise else -mean_K
    kept_K = np.ones(cost_K.size, dtype=np.bool_)
    if cost_K.size < 2:
        return kept_K
    tail = (1.0 - simultaneous(level, n_comparisons=cost_K.size - 1)) / 2
    known_K = n_K > 1
    df_K = np.where(known_K, n_K - 1, 1.0)
    for j in _rivals(cost_K, se_K, df_K, known_K, tail):
        rest = np.flatnonzero(kept_K & known_K & (cost_K > cost_K[j]))
        se, df = se_K[rest], df_K[rest]
        variance = se**2 + se_K[j] ** 2
        # rounding of a tie is not a difference
        spread = np.maximum(np.sqrt(variance), 1e-13 * (np.abs(cost_K[rest]) + abs(cost_K[j])))
        with np.errstate(divide="ignore", invalid="ignore"):
            welch = variance**2 / (se**4 / df + se_K[j] ** 4 / df_K[j])
        welch = np.where(np.isfinite(welch), welch, np.minimum(df, df_K[j]))
        beaten = cost_K[rest] - cost_K[j] > -special.stdtrit(welch, tail) * spread
        kept_K[rest[beaten]] = False
    return kept_K


def _rivals(
    cost_K: Floats, se_K: Floats, df_K: Floats, known_K: npt.NDArray[np.bool_], tail: float
) -> Sequence[int]:
    """Return the means that can reject another: the lowest, and the lowest upper ends."""
    upper_K = cost_K - special.stdtrit(df_K, tail) * se_K
    order = [*np.argsort(upper_K, kind="stable")[:10], *np.argsort(cost_K, kind="stable")[:10]]
    return [int(j) for j in dict.fromkeys(order) if known_K[j]]


def _check_paired(rows: Sequence[Floats]) -> None:
    if not rows:
        raise ValueError("a ranking needs at least one policy")
    if len({row.size for row in rows}) > 1:
        raise ValueError("paired policies need the same replications in the same order")


def _rank(
    names: tuple[str, ...], points_K: Floats, pseudo_KN: Floats, *, minimise: bool, level: float
) -> BestSet:
    check_level(level)
    cost_K = points_K if minimise else -points_K
    n_policies, n = pseudo_KN.shape
    order = np.argsort(cost_K, kind="stable")
    if n < 2 or n_policies < 2:
        return BestSet(tuple(names[i] for i in order), {}, n, level)
    each = simultaneous(level, n_comparisons=n_policies - 1)
    # upper tail of the two-sided interval, written so that a tiny tail keeps its digits
    factor = -float(special.stdtrit(n - 1, (1.0 - each) / 2))
    inside: list[str] = []
    beaten_by: dict[str, str] = {}
    for i in order:
        difference_KN = pseudo_KN[i] - pseudo_KN
        se_K = difference_KN.std(axis=1, ddof=1) / math.sqrt(n)
        scale_K = np.abs(pseudo_KN).max(axis=1) + np.abs(pseudo_KN[i]).max()
        se_K = np.maximum(se_K, 1e-13 * scale_K)  # rounding of a tie is not a difference
        loss_K = (cost_K[i] - cost_K) / np.where(se_K > 0, se_K, 1.0)
        winner = int(np.argmax(loss_K))
        if loss_K[winner] > factor:
            beaten_by[names[i]] = names[winner]
        else:
            inside.append(names[i])
    return BestSet(tuple(inside), beaten_by, n, level)
