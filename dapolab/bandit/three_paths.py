"""The three entrances of length bias, crossed: reward shaping, std normalisation, aggregation.

A two-level factorial on paired seeds. The effect of a path is the mean change of a length with it
less the mean without it, over all settings of the other two; an interaction is half the difference
between an effect with and without the other path (the usual contrasts of a 2³ design).
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dapolab.bandit.answers import Bandit
from dapolab.bandit.curves import UNITS, Curves
from dapolab.bandit.run import train
from dapolab.bandit.settings import Mode
from dapolab.scenario import (
    Aggregation,
    GrpoAdvantage,
    Length,
    MeanOnlyAdvantage,
    OverlongPenalty,
    SeqMeanTokenMean,
    TokenMean,
)
from dapolab.stats import LEVEL, Estimate, mean_estimate, simultaneous

PATHS = ("shaping", "std", "aggregation")
OUTCOMES = ("length/right", "length/wrong", "length/mean")


@dataclass(frozen=True)
class Effects:
    """What each path, each pair and all three together do to a length."""

    effects: dict[str, dict[str, Estimate]]
    """``shaping``, ``shaping×std``, … -> metric -> Estimate in tokens; the 21 hold together."""
    runs: dict[str, Curves]
    """The eight corners by name, such as ``shaping+aggregation``; ``none`` is the plain one."""


def three_paths(
    bandit: Bandit,
    base: Mode,
    penalty: OverlongPenalty,
    *,
    seeds: Sequence[int],
    seed: int = 0,
    aggregation: Aggregation | None = None,
    neutral: Aggregation | None = None,
    on_step: Callable[[], object] | None = None,
) -> Effects:
    """Train the eight corners on the same draws and split the change of lengths into effects.

    Parameters
    ----------
    base
        Training loop and clip; its advantage, aggregation and length rules are replaced.
    penalty
        The shaping.
    aggregation, neutral
        The two levels of the third path: ``seq-mean-token-mean`` and ``token-mean`` where absent.

    Raises
    ------
    ValueError
        For a single seed: effects without an interval say nothing.
    """
    if len(seeds) < 2:
        raise ValueError("three_paths needs at least two seeds")
    levels = (
        (Length(), Length(penalty=penalty)),
        (MeanOnlyAdvantage(), GrpoAdvantage()),
        (neutral or TokenMean(), aggregation or SeqMeanTokenMean()),
    )
    runs: dict[str, Curves] = {}
    changes: dict[tuple[int, ...], dict[str, np.ndarray]] = {}
    for corner in itertools.product((0, 1), repeat=3):
        length, advantage, chosen = (levels[i][on] for i, on in enumerate(corner))
        objective = base.objective.model_copy(
            update={"length": length, "advantage": advantage, "aggregation": chosen}
        )
        name = "+".join(p for p, on in zip(PATHS, corner, strict=True) if on) or "none"
        mode = base.model_copy(update={"name": name, "objective": objective})
        runs[name] = train(bandit, mode, seeds=seeds, seed=seed, n_records=2, on_step=on_step)
        changes[corner] = {metric: runs[name].change(metric) for metric in OUTCOMES}
    level = simultaneous(LEVEL, n_comparisons=7 * len(OUTCOMES))
    effects = {
        "×".join(PATHS[i] for i in which): {
            metric: mean_estimate(
                _contrast(changes, which, metric), unit=UNITS[metric], level=level
            )
            for metric in OUTCOMES
        }
        for size in (1, 2, 3)
        for which in itertools.combinations(range(3), size)
    }
    return Effects(effects, runs)


def _contrast(
    changes: dict[tuple[int, ...], dict[str, np.ndarray]], which: tuple[int, ...], metric: str
) -> np.ndarray:
    """Return the factorial effect of each seed, (R,)."""
    total = sum(
        np.prod([1 if corner[i] else -1 for i in which]) * found[metric]
        for corner, found in changes.items()
    )
    return np.asarray(total / 4.0)
