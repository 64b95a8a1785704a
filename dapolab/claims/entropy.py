"""What clips do to the entropy: P10, circulated 2 and 3 (theory.md D4, D5, D7)."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dapolab.bandit import ArmBandit, population_flow, push_without_signal, train
from dapolab.bandit.environments import length_classes, many_arms, rare_token
from dapolab.claims.claim import Claim, Draws, Measured, Row
from dapolab.claims.toys import mode, policy
from dapolab.scenario import GrpoAdvantage, Objective, PpoClip
from dapolab.theory.clipping import rollout_fixed_point
from dapolab.theory.entropy import clip_bias

_CASES = {
    "likely arm right, p=.5, ε_high .28": ("likely_right", 0.5, 0.28),
    "one rare arm right, all others wrong, likely p=.9, ε_high .5": ("likely_wrong", 0.9, 0.5),
    "likely arm alone wrong, p=.9, ε_high .5": ("all_but_likely_right", 0.9, 0.5),
    "random reward, p=.9, ε_high .28": ("random", 0.9, 0.28),
    "random reward, p=.5, ε_high .28": ("random", 0.5, 0.28),
}
"""Case, probability of the likely arm, ε_high (theory.md D7)."""
_SMALL_STEPS = "likely arm right, p=.5, ε_high .28, endless batch and small steps"


def _arms(case: str, p_likely: float) -> ArmBandit:
    if case != "all_but_likely_right":
        return many_arms(case=case, p_likely=p_likely)
    right = many_arms(case="likely_right", p_likely=p_likely)
    return replace(right, success_PA=1.0 - right.success_PA)


def _entropy_effects(draws: Draws) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for name, (case, p, high) in _CASES.items():
        bandit = _arms(case, p)
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


def _entropy(p_likely: float) -> float:
    """Return the entropy of one likely arm beside 29 equal ones, nats."""
    rest = 1.0 - p_likely
    return -float(p_likely * np.log(p_likely) + rest * np.log(rest / 29.0))


def _small_steps_theory() -> float:
    """Return H where both clips bind on the likely arm, ε_high=.28 less .2 (D2's fixed point)."""
    ends = [rollout_fixed_point(0.5, low=0.2, high=high) for high in (0.28, 0.2)]
    return _entropy(ends[0]) - _entropy(ends[1])


def _small_steps() -> float:
    ends = [
        population_flow(
            many_arms(case="likely_right", p_likely=0.5),
            Objective(advantage=GrpoAdvantage(), clip=PpoClip(low=0.2, high=high)),
            n_refreshes=1,
            n_inner=2000,
            learning_rate=1e-3,
        ).entropy[-1]
        for high in (0.28, 0.2)
    ]
    return float(ends[0] - ends[1])


def _hundredth(p_likely: float) -> float:
    """Return 1 % of the entropy at the start, rounded up to a thousandth of a nat."""
    return float(np.ceil(10.0 * _entropy(p_likely)) / 1000.0)


_RAISES = Claim(
    id="c2-clip-higher-entropy",
    kind="universal",
    statement="Clip-higher raises entropy (DAPO §3.1 as circulated; here one rollout of 16 updates "
    "from thirty arms, one of them likely).",
    correction="The sign depends on the state: with a likely right answer below 1/(1+ε) it lowers "
    "entropy, as the right answer is what it lets rise; under random reward, or where the likely "
    "answer is wrong and ε_high is .5, it raises it.",
    source="DAPO, arXiv 2503.14476 v2 §3.1; theory.md circulated 2, D7",
    instrument="bandit",
    repeat="seed",
    n=800,
    quick_n=300,
    rows=tuple(
        Row(
            name=name,
            kind="order",
            says=0.0,
            rival=0.0,
            tolerance=_hundredth(p),
            unit="nats",
            why="1 % of the entropy at the start, in one rollout",
        )
        for name, p in (
            *((name, p) for name, (_, p, _) in _CASES.items()),
            (_SMALL_STEPS, 0.5),
        )
    ),
    predict=lambda: {_SMALL_STEPS: _small_steps_theory()},
    measure=lambda draws: _entropy_effects(draws) | {_SMALL_STEPS: _small_steps()},
    how_to_read="Entropy after one rollout with ε_high less that with .2, paired by seed; groups "
    "of 32, learning rate 1, std. Only the last row has a formula: both clips bind, p ends at .64 "
    "or at .6. At a learning rate of 1 the size is that of the step that overshoots the bound. "
    "theory.md D7 simulated −.169, +.154, +.014 and +.032 nats with code of its own; its +.154, "
    "listed as “likely wrong with rare correct”, comes out only where the likely arm alone is "
    "wrong. With one rare arm right and 29 wrong it is a tenth of that, and at ε_high .28 the "
    "likely arm alone wrong gives 0: the right ones leap over both bounds in one update.",
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


_SIGN = "exact numbers, whose scale is the learning rate: the sign is the statement"
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
            why=_SIGN,
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
        Row(name=name, kind="order", says=0.0, rival=0.0, tolerance=1e-4, unit="nats", why=_SIGN)
        if raises
        else Row(
            name=name,
            kind="bound",
            side="below",
            says=0.0,
            rival=0.01,
            tolerance=1e-4,
            unit="nats",
            why=_SIGN,
        )
        for name, (_, _, raises) in _RISES.items()
    ),
    predict=lambda: _p10("theory"),
    measure=lambda _: _p10("bandit"),
    how_to_read="Change of entropy by the clip at ε_high=.35 less that at .2, exact, per unit of "
    "learning rate, |A|=1. The last row is the counter-example.",
)

CLAIMS = (_P10, _RAISES, _LOW_HIGH)
