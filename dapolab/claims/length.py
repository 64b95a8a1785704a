"""Length bias of the sequence mean: P7, circulated 4."""

from typing import Final

import numpy as np

from dapolab.bandit import train
from dapolab.bandit.environments import length_classes, shared_length
from dapolab.claims.claim import Claim, Draws, Measured, Row
from dapolab.claims.toys import (
    DRIFT,
    GROUP_SIZE,
    LONG,
    SHORT,
    START,
    THEORY_BANDIT,
    WHY_DRIFT,
    gradient,
    hazard_gradient_exact,
    hazard_theory,
    length_drift,
    mode,
    natural_step,
)
from dapolab.theory.length_bandit import length_drift_tokens, plain_drift_equal_classes_tokens

_SHRINK = 1.0 - 1.0 / GROUP_SIZE
_SEQ: Final = "seq-mean-token-mean"
_BOTH = ("wrong answers, E[grad of the stop logit]", "right answers, E[grad of the stop logit]")


# ---------------------------------------------------------------------------- P7

_RATES = (0.3, 0.5, 0.7)


def _predict_p7() -> dict[str, float]:
    law = hazard_theory(_SEQ)
    found = {_BOTH[0]: law.hazard_wrong, _BOTH[1]: law.hazard_right}
    found["mean length, natural gradient, p=.3"] = 0.0
    for p in _RATES:
        found[f"mean length, plain gradient, p={p:g}"] = _SHRINK * plain_drift_equal_classes_tokens(
            p, short_tokens=SHORT, long_tokens=LONG
        )
    return found | {"shared length parameter": 0.0}


def _measure_p7(_: object) -> dict[str, float]:
    _, right, wrong = hazard_gradient_exact(_SEQ)
    found = {_BOTH[0]: float(wrong), _BOTH[1]: float(right)}
    bandit = length_classes(p_right=0.3)
    step = natural_step(bandit, gradient(bandit, _SEQ, group_size=GROUP_SIZE))
    found["mean length, natural gradient, p=.3"] = length_drift(bandit, step)
    for p in _RATES:
        bandit = length_classes(p_right=p)
        found[f"mean length, plain gradient, p={p:g}"] = length_drift(
            bandit, gradient(bandit, _SEQ, group_size=GROUP_SIZE)
        )
    shared = gradient(shared_length(), _SEQ, group_size=GROUP_SIZE)
    return found | {"shared length parameter": float(shared[1])}


_P7 = Claim(
    id="p7-length-bias",
    kind="identity",
    statement="seq-mean-token-mean lengthens wrong answers and shortens right ones; what mean "
    "length does depends on the geometry: 0 under natural gradient, the sign of 1 − 2p under the "
    "plain one, 0 with a shared length parameter (first on-policy update, no std).",
    source="theory.md P7, C3, C4, C5",
    instrument="bandit",
    rows=(
        Row(name=_BOTH[0], kind="identity", rival=0.0),
        Row(name=_BOTH[1], kind="identity", rival=0.0),
        Row(
            name="mean length, natural gradient, p=.3",
            kind="identity",
            says=0.0,
            rival=0.5,
            unit="tokens",
        ),
        *(
            Row(
                name=f"mean length, plain gradient, p={p:g}",
                kind="identity",
                rival=0.0 if p != 0.5 else 0.5,
                unit="tokens",
            )
            for p in _RATES
        ),
        Row(name="shared length parameter", kind="identity", says=0.0, rival=0.01),
    ),
    predict=_predict_p7,
    measure=_measure_p7,
    how_to_read="A negative gradient of the stop logit means longer answers. Lengths: tokens per "
    "unit of learning rate. 10 or 100 tokens, G=8; hazards .02.",
)


# ---------------------------------------------------------------------------- circulated 4

_FIRST = (
    "plain gradient, p=.3",
    "plain gradient, p=.7",
    "natural gradient, p=.3",
    "Adam's first step on an endless batch, p=.3",
)
_TRAINED = "100 updates of plain gradient from p=.3"


def _predict_c4() -> dict[str, float]:
    plain = {
        p: _SHRINK * plain_drift_equal_classes_tokens(p, short_tokens=SHORT, long_tokens=LONG)
        for p in (0.3, 0.7)
    }
    natural = length_drift_tokens(START, bandit=THEORY_BANDIT, mode=_SEQ, geometry="natural")
    # Adam's first step is the sign of the gradient: right answers up, wrong ones down, each alike
    return dict(zip(_FIRST, (plain[0.3], plain[0.7], _SHRINK * natural, 0.0), strict=True))


def _measure_c4(draws: Draws) -> dict[str, Measured]:
    drifts = _measure_p7(None)
    bandit = length_classes(p_right=0.3)
    signs = np.sign(gradient(bandit, _SEQ, group_size=GROUP_SIZE))
    found: dict[str, Measured] = {
        _FIRST[0]: drifts["mean length, plain gradient, p=0.3"],
        _FIRST[1]: drifts["mean length, plain gradient, p=0.7"],
        _FIRST[2]: drifts["mean length, natural gradient, p=.3"],
        _FIRST[3]: length_drift(bandit, signs),
    }
    run = train(
        bandit,
        mode(_SEQ, group_size=GROUP_SIZE, learning_rate=4.0, n_steps=100),
        seeds=range(draws.n),
        seed=draws.seed,
        n_records=2,
    )
    return found | {_TRAINED: run.change("length/mean")}


_C4 = Claim(
    id="c4-grpo-lengthens",
    kind="universal",
    statement="GRPO's length bias makes responses longer: the mean length of all answers rises "
    "(seq-mean-token-mean, on-policy, no std; the first update, and a hundred).",
    correction="It lengthens wrong answers and shortens right ones. Mean length rises under a "
    "plain gradient while accuracy is below one half, falls above, and does not move under "
    "natural gradient or Adam's first step; over a hundred updates it falls, as right answers "
    "become likely.",
    source="Dr. GRPO, arXiv 2503.20783, as circulated; theory.md circulated 4, C3, C4",
    instrument="bandit",
    repeat="seed",
    n=200,
    quick_n=50,
    rows=(
        *(
            Row(
                name=name,
                kind="order",
                says=0.0,
                rival=0.0,
                tolerance=DRIFT,
                unit="tokens",
                why=WHY_DRIFT,
            )
            for name in _FIRST
        ),
        Row(
            name=_TRAINED,
            kind="order",
            says=0.0,
            rival=0.0,
            tolerance=2.75,
            unit="tokens",
            why="5 % of the mean length at the start",
        ),
    ),
    predict=_predict_c4,
    measure=_measure_c4,
    how_to_read="First updates: exact drift per unit of learning rate; one setting that falls or "
    "stands still refutes the general sentence. Its sign is the same at any step size, so equal "
    "steps and equal ‖Δθ‖ say the same; the sentence compares with the start, not with another "
    "mode.",
)


CLAIMS = (_P7, _C4)
