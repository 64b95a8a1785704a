"""Ratios and clips: P10, circulated 1, 2, 3, 10, 11, clip-higher's intent, CISPO, dual clip."""

import functools
import math
from collections.abc import Mapping

import numpy as np

from dapolab.bandit import ArmBandit, population_flow, push_without_signal, train
from dapolab.bandit.environments import length_classes, many_arms, rare_token
from dapolab.claims.claim import Claim, Draws, Measured, Row
from dapolab.claims.toys import Floats, mode, policy
from dapolab.objective.plain import token_pushes
from dapolab.scenario import (
    CispoClip,
    Clip,
    GrpoAdvantage,
    Objective,
    PpoClip,
    SapoClip,
    TokenSum,
)
from dapolab.theory.clipping import (
    cispo_multiplier,
    log_symmetric_high,
    ppo_multiplier,
    refreshes_to_reach,
    rollout_fixed_point,
    rollouts_to_reach,
    sapo_multiplier,
)
from dapolab.theory.entropy import clip_bias

# ---------------------------------------------------------------------------- reach (D2)

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
    kind="value",
    statement="With ε=.2 one rollout can raise an answer of probability .01 to .012 at most (DAPO "
    "v2 §3.1: the upper bound of the increased probability is (1+ε)·p).",
    correction="That is where the answer's own positive gradient stops. Negative advantages of the "
    "others go on lifting it to p + ε_low·(1−p): .208 in the same rollout, and .5 in 4 rollouts.",
    source="DAPO, arXiv 2503.14476 v2 §3.1; theory.md circulated 1, D2",
    instrument="bandit",
    rows=(
        Row(
            name="p after one rollout, from .01",
            kind="value",
            says=0.012,
            rival=0.208,
            tolerance=0.004,
        ),
        Row(
            name="rollouts from .01 to .5",
            kind="value",
            says=22.0,
            rival=4.0,
            tolerance=1.0,
            unit="rollouts",
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
        Row(name=_POSITIVE[0], kind="value", says=22.0, rival=16.0, tolerance=0.5, unit="rollouts"),
        Row(name=_POSITIVE[1], kind="value", says=16.0, rival=22.0, tolerance=0.5, unit="rollouts"),
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

# ---------------------------------------------------------------------------- entropy (D5, D7)

_CASES = {
    "likely arm right, p=.5, ε_high .28": ("likely_right", 0.5, 0.28),
    "likely arm wrong, p=.9, ε_high .5": ("likely_wrong", 0.9, 0.5),
    "random reward, p=.9, ε_high .28": ("random", 0.9, 0.28),
    "random reward, p=.5, ε_high .28": ("random", 0.5, 0.28),
}
"""Case, probability of the likely arm, ε_high (theory.md D7)."""


def _entropy_effects(draws: Draws) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for name, (case, p, high) in _CASES.items():
        bandit = many_arms(case=case, p_likely=p)
        ends = [
            train(
                bandit,
                mode(f"grpo+clip.high={h}", group_size=32, n_epochs=16, n_steps=1),
                seeds=range(draws.n),
                seed=draws.seed,
                n_records=2,
            ).change("entropy/answer")
            for h in (high, 0.2)
        ]
        found[name] = ends[0] - ends[1]
    return found


_RAISES = Claim(
    id="c2-clip-higher-entropy",
    kind="universal",
    statement="Clip-higher raises entropy (DAPO §3.1 as circulated; here one rollout of 16 updates "
    "from thirty arms, one of them likely).",
    correction="The sign depends on the state: with a likely right answer below 1/(1+ε) it lowers "
    "entropy, as the right answer is what it lets rise; under random reward or with a likely wrong "
    "answer it raises it.",
    source="DAPO, arXiv 2503.14476 v2 §3.1; theory.md circulated 2, D7",
    instrument="bandit",
    repeat="seed",
    n=800,
    quick_n=300,
    rows=tuple(
        Row(name=name, kind="order", says=0.0, rival=0.0, tolerance=0.001, unit="nats")
        for name in _CASES
    ),
    predict=lambda: {},
    measure=_entropy_effects,
    how_to_read="Entropy after one rollout with ε_high less that with .2, paired by seed. No "
    "formula exists; theory.md D7 simulated the same signs (−.169, +.154, +.014, +.032 nats) with "
    "code of its own, the first two in a setting that is not quite this one.",
)


def _entropy_push(old: ArmBandit, now: ArmBandit, clip: PpoClip) -> float:
    """Return dH per unit of learning rate of the clip alone, rewards saying nothing."""
    push = push_without_signal(old, Objective(clip=clip), theta=now.start, old_theta=old.start)
    pi, step = policy(now), np.asarray(push.numpy())
    return float(-(pi * (np.log(pi) - pi @ np.log(pi))) @ step)


def _entropy_push_theory(old: ArmBandit, now: ArmBandit, *, low: float, high: float) -> float:
    return clip_bias(
        policy(now), old_policy_A=policy(old), low=low, high=high, mean_abs_advantage=1.0
    ).entropy_change


_OPEN_LOW, _OPEN_HIGH = 1.0, 1e6
"""Bounds that never bind."""
_STATES: dict[str, tuple[ArmBandit, ArmBandit, float, float, float]] = {
    "clip-high, rare arms rose from .033 to .043": (
        rare_token(p_rare=0.9, n_arms=4), rare_token(p_rare=0.87, n_arms=4),
        _OPEN_LOW, 0.2, -1.0,
    ),
    "clip-high, one of four equal arms rose to .31": (
        rare_token(p_rare=0.25, n_arms=4), rare_token(p_rare=0.31, n_arms=4),
        _OPEN_LOW, 0.2, -1.0,
    ),
    "clip-high, (.6, .4) became (.75, .25)": (
        rare_token(p_rare=0.6), rare_token(p_rare=0.75), _OPEN_LOW, 0.2, -1.0,
    ),
    "clip-low, one of four equal arms fell to .19": (
        rare_token(p_rare=0.25, n_arms=4), rare_token(p_rare=0.19, n_arms=4),
        0.2, _OPEN_HIGH, 1.0,
    ),
    "clip-low, likely arm fell from .4 to .31": (
        rare_token(p_rare=0.4, n_arms=4), rare_token(p_rare=0.31, n_arms=4),
        0.2, _OPEN_HIGH, 1.0,
    ),
}  # fmt: skip
"""Old and current policy, ε_low, ε_high, and the sign that the sentence gives to dH."""


def _state_theory() -> Mapping[str, float]:
    return {
        name: _entropy_push_theory(old, now, low=low, high=high)
        for name, (old, now, low, high, _) in _STATES.items()
    }


_LOW_HIGH = Claim(
    id="c3-clip-low-raises",
    kind="universal",
    statement="Under rewards that say nothing, clip-low raises entropy and clip-high lowers it.",
    correction="True where the clipped tokens have π < e^{−H} (one over the perplexity), as in "
    "peaked policies; near-uniform ones, and clipped likely tokens, give the opposite sign.",
    source="arXiv 2509.26114 as circulated; theory.md circulated 3, D5",
    instrument="bandit",
    rows=tuple(
        Row(
            name=name,
            kind="order",
            side="above" if sign > 0 else "below",
            says=0.0,
            rival=0.0,
            tolerance=1e-4,
            unit="nats",
        )
        for name, (*_, sign) in _STATES.items()
    ),
    predict=_state_theory,
    measure=lambda _: {
        name: _entropy_push(old, now, PpoClip(low=low, high=high))
        for name, (old, now, low, high, _) in _STATES.items()
    },
    how_to_read="Exact change of entropy per unit of learning rate by the clip alone, |A|=1.",
)

_BAND = (
    "second of two likely arms rose to .480, e^{−H}=.453",
    length_classes(p_right=0.97, p_long=0.4),
    length_classes(p_right=0.98, p_long=0.49),
)
_RISES: dict[str, tuple[ArmBandit, ArmBandit, bool]] = {
    "rare arms rose to .043, π < e^{−H}": (
        rare_token(p_rare=0.9, n_arms=4), rare_token(p_rare=0.87, n_arms=4), True,
    ),
    "likely arm rose to .74, π > e^{−H}": (
        rare_token(p_rare=0.6, n_arms=4), rare_token(p_rare=0.74, n_arms=4), False,
    ),
    "one of four equal arms rose to .31, π > e^{−H}": (
        rare_token(p_rare=0.25, n_arms=4), rare_token(p_rare=0.31, n_arms=4), False,
    ),
    _BAND[0]: (_BAND[1], _BAND[2], False),
}  # fmt: skip
"""Old and current policy, and whether the sentence says that clip-higher raises entropy."""


def _p10(kind: str) -> dict[str, float]:
    found = {}
    for name, (old, now, _) in _RISES.items():
        if kind == "theory":
            wide, narrow = (
                _entropy_push_theory(old, now, low=_OPEN_LOW, high=h) for h in (0.35, 0.2)
            )
        else:
            wide, narrow = (
                _entropy_push(old, now, PpoClip(low=_OPEN_LOW, high=h)) for h in (0.35, 0.2)
            )
        found[name] = wide - narrow
    return found


_P10 = Claim(
    id="p10-entropy-threshold",
    kind="universal",
    statement="A larger ε_high raises entropy only where the tokens that it frees have π < e^{−H} "
    "(rewards that say nothing, one inner step).",
    correction="The exact threshold is φ < φ̄ with φ_a = π_a(log π_a + H) and φ̄ = Cov(π, log π) ≥ "
    "0. π < e^{−H} (φ < 0) is sufficient; a token a little above it still raises entropy.",
    source="theory.md P10, D5",
    instrument="bandit",
    rows=tuple(
        Row(name=name, kind="order", says=0.0, rival=0.0, tolerance=1e-4, unit="nats")
        if raises
        else Row(
            name=name, kind="bound", side="below", says=0.0, rival=0.01, tolerance=1e-6, unit="nats"
        )
        for name, (_, _, raises) in _RISES.items()
    ),
    predict=lambda: _p10("theory"),
    measure=lambda _: _p10("bandit"),
    how_to_read="Change of entropy by the clip at ε_high=.35 less that at .2, exact, per unit of "
    "learning rate, |A|=1. The last row is the counter-example.",
)

# ---------------------------------------------------------------------------- multipliers (D1)


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
        ),
        Row(
            name="multiplier over r at r=2.06",
            kind="bound",
            side="below",
            says=1.0,
            rival=1.575,
            tolerance=0.01,
            unit="ratio",
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

CLAIMS = (
    _P10,
    _REACH,
    _RAISES,
    _LOW_HIGH,
    _SAPO,
    _SYMMETRIC,
    _MATCHED,
    _WHAT_CLIPS_DO,
    _CLIP_HIGHER,
)
