"""How far one rollout reaches: circulated 1 and the intent of clip-higher (theory.md D2)."""

import functools

import numpy as np

from dapolab.bandit import population_flow
from dapolab.bandit.environments import rare_token
from dapolab.claims.claim import Claim, Row
from dapolab.claims.toys import Floats
from dapolab.scenario import GrpoAdvantage, Objective, PpoClip
from dapolab.theory.clipping import refreshes_to_reach, rollout_fixed_point, rollouts_to_reach

_INNER, _RATE = 1700, 0.02
"""Inner steps until both clips bind, and their size; what overshoots is within .5 % of p."""


@functools.lru_cache(maxsize=8)
def _flow(high: float, *, n_refreshes: int, positive_only: bool = False) -> Floats:
    """Return p of the rare right answer after each refresh of the old policy, start included."""
    found = population_flow(
        rare_token(p_rare=0.01),
        Objective(advantage=GrpoAdvantage(), clip=PpoClip(low=0.2, high=high)),
        n_refreshes=n_refreshes,
        n_inner=320 if positive_only else _INNER,
        learning_rate=1e-3 if positive_only else _RATE,
        geometry="natural",
        positive_only=positive_only,
    )
    return np.asarray(found.probability[:, 0])


def _refreshes(p: Floats) -> float:
    """Return after how many refreshes p is .5, up to the .1 % that steps may fall short.

    One more than were made where it is not there yet.
    """
    there = p >= 0.5 * 0.999
    return float(there.argmax() if there.any() else p.size)


_REACH = Claim(
    id="c1-upper-bound",
    kind="bound",
    statement="With ε=.2 one rollout can raise an answer of probability .01 to .012 at most (DAPO "
    "v2 §3.1: the upper bound of the increased probability is (1+ε)·p).",
    correction="That is where the answer's own positive gradient stops. Negative advantages of the "
    "others go on lifting it to p + ε_low·(1−p): .208 in the same rollout, and .5 in 4 rollouts. "
    "Above p = 1/(1+ε) the upper clip cannot bind at all.",
    source="DAPO, arXiv 2503.14476 v2 §3.1; theory.md circulated 1, D2",
    instrument="bandit",
    rows=(
        Row(
            name="p after one rollout, from .01",
            kind="bound",
            side="below",
            says=0.012,
            rival=0.208,
            tolerance=0.002,
            unit="share",
            why="once more the rise that the sentence allows",
        ),
        Row(
            name="rollouts from .01 to .5",
            kind="bound",
            says=22.0,
            rival=4.0,
            tolerance=1.0,
            unit="rollouts",
            why="one rollout",
        ),
    ),
    predict=lambda: {
        "p after one rollout, from .01": rollout_fixed_point(0.01, low=0.2, high=0.2),
        "rollouts from .01 to .5": float(rollouts_to_reach(0.01, p_target=0.5, low=0.2, high=0.2)),
    },
    measure=lambda _: {
        "p after one rollout, from .01": float(_flow(0.2, n_refreshes=4)[1]),
        "rollouts from .01 to .5": _refreshes(_flow(0.2, n_refreshes=4)),
    },
    how_to_read="Two arms, endless batch, 1,700 small inner steps a rollout, std-normalised "
    "advantages. 22 is ⌈ln 50/ln 1.2⌉, what the sentence allows.",
)

_POSITIVE = ("positive samples alone, ε_high=.2", "positive samples alone, ε_high=.28")
_CLIP_HIGHER = Claim(
    id="dapo-clip-higher",
    kind="value",
    statement="Clip-higher gives a rare right answer more room: by its own positive samples alone "
    "it gets from .01 to .5 in 16 rollouts at ε_high=.28 instead of 22 at .2 (DAPO §3.1).",
    source="DAPO, arXiv 2503.14476 v2 §3.1; theory.md D2",
    instrument="bandit",
    rows=(
        *(
            Row(
                name=name,
                kind="value",
                says=says,
                rival=rival,
                tolerance=0.5,
                unit="rollouts",
                why="half of one: rollouts are counted",
            )
            for name, says, rival in zip(_POSITIVE, (22.0, 16.0), (16.0, 22.0), strict=True)
        ),
    ),
    predict=lambda: {
        name: float(refreshes_to_reach(0.01, p_target=0.5, high=high))
        for name, high in zip(_POSITIVE, (0.2, 0.28), strict=True)
    },
    measure=lambda _: {
        name: _refreshes(_flow(high, n_refreshes=n, positive_only=True))
        for name, high, n in zip(_POSITIVE, (0.2, 0.28), (22, 16), strict=True)
    },
    how_to_read="With negative samples in the batch 4 rollouts do for either ε_high (c1): the room "
    "matters where a rare answer is right and all others have advantage near 0.",
)

CLAIMS = (_REACH, _CLIP_HIGHER)
