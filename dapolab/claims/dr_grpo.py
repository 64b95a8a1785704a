"""Lengths given right and wrong: Dr. GRPO's first bias, and where training ends (C4)."""

from typing import Final

import numpy as np

from dapolab.bandit import train
from dapolab.bandit.environments import length_classes
from dapolab.claims.claim import Claim, Draws, Measured, Row
from dapolab.claims.toys import (
    DRIFT,
    GROUP_SIZE,
    LONG,
    START,
    THEORY_BANDIT,
    WHY_DRIFT,
    conditional_drift,
    gradient,
    mode,
    policy,
)
from dapolab.theory.length_bandit import expected_gradient, length_path
from dapolab.theory.length_bias import unbiasedness_factor

_SEQ: Final = "seq-mean-token-mean"


# ---------------------------------------------------------------------------- Dr. GRPO


def _predict_drift(aggregation: str, p: float = 0.3) -> tuple[float, float]:
    """Return theory's drifts of the length of wrong and right answers, plain gradient."""
    bandit = length_classes(p_right=p)
    step = expected_gradient(
        policy(bandit),
        bandit=THEORY_BANDIT,
        mode=aggregation,  # type: ignore[arg-type]
        group_size=GROUP_SIZE,
        constant_tokens=LONG,
    )
    wrong, right = (conditional_drift(bandit, step, right=is_right) for is_right in (False, True))
    return wrong, right


def _measure_drift(aggregation: str, p: float = 0.3) -> tuple[float, float]:
    bandit = length_classes(p_right=p)
    step = gradient(bandit, aggregation, group_size=GROUP_SIZE)
    wrong, right = (conditional_drift(bandit, step, right=is_right) for is_right in (False, True))
    return wrong, right


_NORM = "seq-mean-token-sum-norm"
_DR_LENGTH = Claim(
    id="dr-grpo-length-bias",
    kind="universal",
    statement="GRPO's 1/|o| makes wrong answers longer and right ones shorter; Dr. GRPO's constant "
    "denominator does neither, and its expected gradient is proportional to that of the return.",
    source="Dr. GRPO, arXiv 2503.20783; theory.md C2, C4",
    instrument="bandit",
    rows=(
        Row(
            name="1/|o|: wrong answers",
            kind="order",
            says=0.0,
            rival=0.0,
            tolerance=DRIFT,
            unit="tokens",
            why=WHY_DRIFT,
        ),
        Row(
            name="1/|o|: right answers",
            kind="order",
            side="below",
            says=0.0,
            rival=0.0,
            tolerance=DRIFT,
            unit="tokens",
            why=WHY_DRIFT,
        ),
        Row(name="constant: wrong answers", kind="identity", says=0.0, rival=0.05, unit="tokens"),
        Row(name="constant: right answers", kind="identity", says=0.0, rival=-0.05, unit="tokens"),
        Row(name="constant: gradient over ∇J/C", kind="identity", rival=1.0, unit="ratio"),
    ),
    predict=lambda: {
        "1/|o|: wrong answers": _predict_drift(_SEQ)[0],
        "1/|o|: right answers": _predict_drift(_SEQ)[1],
        "constant: wrong answers": _predict_drift(_NORM)[0],
        "constant: right answers": _predict_drift(_NORM)[1],
        "constant: gradient over ∇J/C": unbiasedness_factor("group-mean", n_responses=GROUP_SIZE),
    },
    measure=lambda _: {
        "1/|o|: wrong answers": _measure_drift(_SEQ)[0],
        "1/|o|: right answers": _measure_drift(_SEQ)[1],
        "constant: wrong answers": _measure_drift(_NORM)[0],
        "constant: right answers": _measure_drift(_NORM)[1],
        "constant: gradient over ∇J/C": _over_return(),
    },
    how_to_read="Drift of the length given the outcome, tokens per unit of learning rate of the "
    "first update; 10 or 100 tokens, p=.3, G=8. Equal steps are enough: what is exactly 0 for the "
    "constant is 0 at any step size.",
)


def _over_return() -> float:
    """Return the expected Dr. GRPO gradient over that of the expected reward, over C = 100."""
    bandit = length_classes(p_right=0.3)
    found = gradient(bandit, f"{_NORM}+aggregation.constant={LONG:g}", group_size=GROUP_SIZE)
    of_return = policy(bandit) * (np.array([1.0, 1.0, 0.0, 0.0]) - 0.3) / LONG
    return float(found[0] / of_return[0])


# ---------------------------------------------------------------------------- C4's path

_ENDS = {
    "wrong answers": ("length/wrong", 93.7, "tokens"),
    "right answers": ("length/right", 23.5, "tokens"),
    "all answers": ("length/mean", 36.7, "tokens"),
    "accuracy": ("reward/accuracy", 0.812, "share"),
}
_UNTIL, _STEP, _ANSWERS = 48.0, 0.25, 512


def _predict_path() -> dict[str, float]:
    path = length_path(
        START, bandit=THEORY_BANDIT, mode=_SEQ, geometry="natural", until=_UNTIL, step=0.05
    )
    ends = (path.length_wrong_T, path.length_right_T, path.length_T, path.accuracy_T)
    return {name: float(end[-1]) for name, end in zip(_ENDS, ends, strict=True)}


def _measure_path(draws: Draws) -> dict[str, Measured]:
    run = train(
        length_classes(p_right=0.3),
        mode(
            f"{_SEQ}+natural",
            group_size=_ANSWERS,
            n_steps=round(_UNTIL / _STEP),
            learning_rate=_STEP / (1.0 - 1.0 / _ANSWERS),
        ),
        seeds=range(draws.n),
        seed=draws.seed,
        n_records=2,
    )
    return {name: run.values[metric][-1] for name, (metric, *_) in _ENDS.items()}


_PATH = Claim(
    id="length-path",
    kind="value",
    statement="Trained to time 48 with seq-mean-token-mean (natural gradient, no std, 10 or 100 "
    "tokens, pass rate .3), wrong answers grow from 55 to 93.7 tokens and right ones shrink to "
    "23.5; all answers fall to 36.7 at an accuracy of .812.",
    source="theory.md C4, the path of its differential equation",
    instrument="bandit",
    repeat="seed",
    n=32,
    quick_n=8,
    rows=tuple(
        Row(
            name=name,
            kind="value",
            says=says,
            rival=0.3 if unit == "share" else 55.0,
            tolerance=0.01 if unit == "share" else 1.0,
            unit=unit,
            why="one point" if unit == "share" else "one token, a hundredth of a long answer",
        )
        for name, (_, says, unit) in _ENDS.items()
    ),
    predict=_predict_path,
    measure=_measure_path,
    how_to_read="Rivals: nothing moves, as with token sums, whose conditional lengths stand still. "
    "Groups of 512 answers, 192 steps of .25, learning rate over 1 − 1/G.",
)

CLAIMS = (_DR_LENGTH, _PATH)
