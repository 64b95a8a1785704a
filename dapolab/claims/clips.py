"""Which tokens a clip stops: circulated 10 and 11, dual clip, CISPO (theory.md D1, D6)."""

import math

from dapolab.claims.claim import Claim, Row
from dapolab.objective.plain import token_pushes
from dapolab.scenario import CispoClip, Clip, Objective, PpoClip, SapoClip, TokenSum
from dapolab.theory.clipping import (
    cispo_multiplier,
    log_symmetric_high,
    ppo_multiplier,
    sapo_multiplier,
)


def _multiplier(ratio: float, advantage: float, clip: Clip) -> float:
    """Return m of D1: the push on one token over its advantage."""
    objective = Objective(clip=clip, aggregation=TokenSum())
    push = token_pushes([1], objective, advantages=[advantage], ratios=[ratio])
    return float(push[0] / advantage)


_SAPO = Claim(
    id="c10-sapo-attenuates",
    kind="bound",
    statement="SAPO only attenuates a token's gradient (relative to REINFORCE, τ=1; arXiv "
    "2511.20347 as circulated).",
    correction="Relative to the ratio-weighted gradient r·A, yes. Relative to REINFORCE it "
    "amplifies for 1 < r < 3.47, up to 1.575 times at r = 2.06.",
    source="SAPO, arXiv 2511.20347, as circulated; theory.md circulated 10, D1",
    instrument="objective",
    rows=(
        Row(
            name="multiplier at r=2.06",
            kind="bound",
            side="below",
            says=1.0,
            rival=1.575,
            tolerance=0.01,
            unit="ratio",
            why="1 % of a gradient",
        ),
        Row(
            name="multiplier over r at r=2.06",
            kind="bound",
            side="below",
            says=1.0,
            rival=1.575,
            tolerance=0.01,
            unit="ratio",
            why="1 % of a gradient",
        ),
    ),
    predict=lambda: {
        "multiplier at r=2.06": float(sapo_multiplier(2.06, advantage=1.0)),
        "multiplier over r at r=2.06": float(sapo_multiplier(2.06, advantage=1.0)) / 2.06,
    },
    measure=lambda _: {
        "multiplier at r=2.06": _multiplier(2.06, 1.0, SapoClip()),
        "multiplier over r at r=2.06": _multiplier(2.06, 1.0, SapoClip()) / 2.06,
    },
    how_to_read="|∂loss/∂log π| over |A| of one token. The second row is the reading under which "
    "the sentence is true.",
)


def _bound(clip: Clip, advantage: float) -> float:
    """Return log r where the token's gradient stops, by bisection from r = 1 outward."""
    inside, outside = 0.0, math.copysign(1.0, advantage)
    for _ in range(60):
        middle = (inside + outside) / 2.0
        alive = _multiplier(math.exp(middle), advantage, clip) != 0.0
        inside, outside = (middle, outside) if alive else (inside, middle)
    return inside


def _asymmetry(low: float, high: float) -> float:
    """Return log upper bound plus log lower bound: 0 where they are as far from r = 1."""
    clip = PpoClip(low=low, high=high)
    return _bound(clip, 1.0) + _bound(clip, -1.0)


_PAIRS = {"ε=.2 and .2": (0.2, 0.2), "ε_low=.2, ε_high=.25": (0.2, 0.25)}
_SYMMETRIC = Claim(
    id="c11-symmetric-epsilon",
    kind="identity",
    statement="A clip of ε=.2 on both sides treats rises and falls of a log-probability alike.",
    correction="log 1.2 = .182 but log .8 = −.223: ε_low=.2 is matched by ε_high=.25; .28 "
    "over-corrects.",
    source="theory.md circulated 11, D6",
    instrument="objective",
    rows=(
        Row(name="ε=.2 and .2", kind="identity", says=0.0, rival=math.log(1.2 * 0.8), unit="nats"),
    ),
    predict=lambda: {"ε=.2 and .2": math.log(1.2) + math.log(0.8)},
    measure=lambda _: {"ε=.2 and .2": _asymmetry(0.2, 0.2)},
    how_to_read="Log ratio at which a token's gradient stops for A > 0, plus that for A < 0, found "
    "by bisection on the loss's own gradient.",
)

_MATCHED = Claim(
    id="clip-log-symmetric",
    kind="identity",
    statement="ε_low=.2 with ε_high=.25 is the pair that is symmetric in log-probability; with .28 "
    "the upper side has .024 nats more room.",
    source="theory.md D6",
    instrument="objective",
    rows=(
        Row(name="ε_low=.2, ε_high=.25", kind="identity", says=0.0, rival=-0.04, unit="nats"),
        Row(name="ε_low=.2, ε_high=.28", kind="identity", rival=0.0, unit="nats"),
    ),
    predict=lambda: {
        "ε_low=.2, ε_high=.25": math.log1p(log_symmetric_high(0.2)) + math.log(0.8),
        "ε_low=.2, ε_high=.28": math.log(1.28 * 0.8),
    },
    measure=lambda _: {
        "ε_low=.2, ε_high=.25": _asymmetry(*_PAIRS["ε_low=.2, ε_high=.25"]),
        "ε_low=.2, ε_high=.28": _asymmetry(0.2, 0.28),
    },
    how_to_read="As in c11; bounds found on the loss's own gradient.",
)

_GATES: dict[str, tuple[float, float, Clip, float]] = {
    "A > 0, r=1.25, ε_high=.28": (1.25, 1.0, PpoClip(low=0.2, high=0.28), 0.0),
    "A > 0, r=1.3, ε_high=.28": (1.3, 1.0, PpoClip(low=0.2, high=0.28), 1.3),
    "A < 0, r=.75, ε_low=.2": (0.75, -1.0, PpoClip(low=0.2, high=0.28), 0.75),
    "A > 0, r=.5: below the band": (0.5, 1.0, PpoClip(low=0.2, high=0.28), 0.0),
    "A < 0, r=4, dual clip 3": (4.0, -1.0, PpoClip(low=0.2, high=0.28, dual_c=3.0), 4.0),
    "A > 0, r=3.5, dual clip 3, ε_high=4": (3.5, 1.0, PpoClip(high=4.0, dual_c=3.0), 0.0),
    "CISPO, A > 0, r=1.1, cap 1.28": (1.1, 1.0, CispoClip(high=0.28), 0.0),
    "CISPO, A > 0, r=1.5, cap 1.28": (1.5, 1.0, CispoClip(high=0.28), 0.0),
}
"""Ratio, advantage, clip, and the multiplier that would be wrong."""


def _gates_theory() -> dict[str, float]:
    found = {}
    for name, (ratio, advantage, clip, _) in _GATES.items():
        if isinstance(clip, CispoClip):
            found[name] = float(cispo_multiplier(ratio, low=None, high=clip.high))
        elif isinstance(clip, PpoClip):
            found[name] = float(
                ppo_multiplier(
                    ratio, advantage=advantage, low=clip.low, high=clip.high, dual_c=clip.dual_c
                )
            )
    return found


_WHAT_CLIPS_DO = Claim(
    id="clip-gates",
    kind="universal",
    statement="The clip stops a token only when it has already moved the way its advantage pushes: "
    "r > 1+ε_high for A > 0, r < 1−ε_low for A < 0; dual clip adds r > c for A < 0 alone; CISPO "
    "never stops a token, it bounds its weight.",
    source="DAPO Eq. 8; Ye et al. 2019; MiniMax-M1, arXiv 2506.13585; theory.md D1",
    instrument="objective",
    rows=tuple(
        Row(name=name, kind="identity", rival=rival, unit="ratio")
        for name, (_, _, _, rival) in _GATES.items()
    ),
    predict=_gates_theory,
    measure=lambda _: {
        name: _multiplier(ratio, advantage, clip)
        for name, (ratio, advantage, clip, _) in _GATES.items()
    },
    how_to_read="∂(−loss)/∂log π over A of one token, by automatic differentiation.",
)

CLAIMS = (_SAPO, _SYMMETRIC, _MATCHED, _WHAT_CLIPS_DO)
