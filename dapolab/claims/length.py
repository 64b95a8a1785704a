"""Length bias of the aggregation: P7, P8, circulated 4 and 5, Dr. GRPO, token level."""

from typing import Final

import numpy as np

from dapolab.bandit import expected_hazard_gradient
from dapolab.bandit.environments import eos_hazard, length_classes, shared_length
from dapolab.claims.claim import Claim, Row
from dapolab.claims.toys import (
    LONG,
    SHORT,
    Floats,
    conditional_drift,
    gradient,
    length_drift,
    mode,
    natural_step,
    policy,
)
from dapolab.objective.plain import token_pushes
from dapolab.scenario import Objective, PpoClip, SeqMeanTokenMean, TokenMean, TokenMeanMicro
from dapolab.theory.hazard_bandit import HazardGradient, hazard_gradient
from dapolab.theory.length_bandit import (
    class_bandit,
    expected_gradient,
    length_drift_tokens,
    plain_drift_equal_classes_tokens,
)
from dapolab.theory.length_bias import micro_token_weights, token_weights, unbiasedness_factor

GROUP_SIZE = 8
_SHRINK = 1.0 - 1.0 / GROUP_SIZE
_P, _HAZARD = 0.3, 0.02
_SEQ: Final = "seq-mean-token-mean"
_TOKEN: Final = "token-mean"
_BOTH = ("wrong answers, E[grad of the stop logit]", "right answers, E[grad of the stop logit]")


def _hazard_theory(aggregation: str) -> HazardGradient:
    return hazard_gradient(
        _P,
        hazard_right=_HAZARD,
        hazard_wrong=_HAZARD,
        mode=aggregation,  # type: ignore[arg-type]
        group_size=GROUP_SIZE,
    )


def _hazard_bandit(aggregation: str) -> Floats:
    """Return E[gradient] by (decision, stop if right, stop if wrong)."""
    bandit = eos_hazard(p_right=_P, hazard_right=_HAZARD, hazard_wrong=_HAZARD)
    found = expected_hazard_gradient(bandit, mode(aggregation, group_size=GROUP_SIZE))
    return np.asarray(found.numpy(), dtype=np.float64)


# ---------------------------------------------------------------------------- P7

_RATES = (0.3, 0.5, 0.7)


def _predict_p7() -> dict[str, float]:
    law = _hazard_theory(_SEQ)
    found = {_BOTH[0]: law.hazard_wrong, _BOTH[1]: law.hazard_right}
    found["mean length, natural gradient, p=.3"] = 0.0
    for p in _RATES:
        found[f"mean length, plain gradient, p={p:g}"] = _SHRINK * plain_drift_equal_classes_tokens(
            p, short_tokens=SHORT, long_tokens=LONG
        )
    return found | {"shared length parameter": 0.0}


def _measure_p7(_: object) -> dict[str, float]:
    _, right, wrong = _hazard_bandit(_SEQ)
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


# ---------------------------------------------------------------------------- P8, circulated 5

_UNEQUAL = (10, 20, 30, 100)
_SIGNS = (1.0, -1.0, 1.0, -1.0)


def _pushes(
    aggregation: TokenMean | TokenMeanMicro | SeqMeanTokenMean, micro: int | None
) -> Floats:
    objective = Objective(aggregation=aggregation, clip=PpoClip())
    return token_pushes(_UNEQUAL, objective, advantages=_SIGNS, micro_rows=micro)


def _largest_gap() -> float:
    """Return how far micro-batches of one answer are from seq-mean-token-mean, per token."""
    alone = _pushes(TokenMeanMicro(), 1)
    return float(np.abs(alone - _pushes(SeqMeanTokenMean(), None)).max())


def _residue_theory() -> float:
    return _hazard_theory(_TOKEN).hazard_wrong / _hazard_theory(_SEQ).hazard_wrong


def _residue_measured() -> float:
    return float(_hazard_bandit(_TOKEN)[2] / _hazard_bandit(_SEQ)[2])


_P8 = Claim(
    id="p8-token-mean-residue",
    kind="identity",
    statement="token-mean over a finite batch keeps a residue of the length bias, of the same sign "
    "(one group of 8, hazards .02); micro-batches of one answer turn it into "
    "seq-mean-token-mean exactly, while a global denominator is indifferent to the split.",
    source="theory.md P8, C5, C8",
    instrument="bandit",
    rows=(
        Row(name="residue over seq-mean's bias", kind="identity", rival=0.0, unit="ratio"),
        Row(
            name="token weights, micro-batch of 1 less seq-mean",
            kind="identity",
            says=0.0,
            rival=0.01,
        ),
        Row(
            name="token weights, global token-mean in micro-batches of 2 less whole",
            kind="identity",
            says=0.0,
            rival=0.01,
        ),
    ),
    predict=lambda: {
        "residue over seq-mean's bias": _residue_theory(),
        "token weights, global token-mean in micro-batches of 2 less whole": 0.0,
        "token weights, micro-batch of 1 less seq-mean": float(
            np.abs(
                micro_token_weights(_UNEQUAL, micro_N=range(4), mode=_TOKEN, rule="mean")
                - token_weights(_UNEQUAL, mode=_SEQ)
            ).max()
        ),
    },
    measure=lambda _: {
        "residue over seq-mean's bias": _residue_measured(),
        "token weights, micro-batch of 1 less seq-mean": _largest_gap(),
        "token weights, global token-mean in micro-batches of 2 less whole": float(
            np.abs(_pushes(TokenMean(), 2) - _pushes(TokenMean(), None)).max()
        ),
    },
    how_to_read="The residue is a few per cent of the bias per step and shrinks with the answers "
    "that one mean holds.",
)

_C5 = Claim(
    id="c5-token-mean-unbiased",
    kind="identity",
    statement="Token-level (token-mean) loss is free of length bias (DAPO §3.3 as circulated; "
    "first update, one group of 8).",
    correction="Only as the batch grows and with one denominator for all of it: one group of 8 "
    "keeps some per cent of the bias, and local denominators of a micro-batch of one answer bring "
    "all of it back. DAPO's Eq. 12 normalises by prompt.",
    source="theory.md circulated 5, C5, C8",
    instrument="bandit",
    rows=(
        Row(name="residue over seq-mean's bias", kind="identity", says=0.0, rival=0.05),
        Row(
            name="token weight 10 over 100 tokens, micro-batch of 1",
            kind="identity",
            says=1.0,
            rival=10.0,
            unit="ratio",
        ),
    ),
    predict=lambda: {
        "residue over seq-mean's bias": _residue_theory(),
        "token weight 10 over 100 tokens, micro-batch of 1": 10.0,
    },
    measure=lambda _: {
        "residue over seq-mean's bias": _residue_measured(),
        "token weight 10 over 100 tokens, micro-batch of 1": float(
            -_pushes(TokenMeanMicro(), 1)[0] / _pushes(TokenMeanMicro(), 1)[3]
        ),
    },
    how_to_read="“Free of” is an identity: any residue refutes it, however small.",
)

_C4 = Claim(
    id="c4-grpo-lengthens",
    kind="universal",
    statement="GRPO's length bias makes responses longer (the mean length of all answers rises; "
    "seq-mean-token-mean, first on-policy update).",
    correction="It lengthens wrong answers and shortens right ones. Mean length rises under a "
    "plain gradient while accuracy is below one half, falls above, and does not move under "
    "natural gradient.",
    source="Dr. GRPO, arXiv 2503.20783, as circulated; theory.md circulated 4, C3, C4",
    instrument="bandit",
    rows=tuple(
        Row(name=name, kind="order", says=0.0, rival=0.0, tolerance=0.001, unit="tokens")
        for name in ("plain gradient, p=.3", "plain gradient, p=.7", "natural gradient, p=.3")
    ),
    predict=lambda: {
        "plain gradient, p=.3": _SHRINK
        * plain_drift_equal_classes_tokens(0.3, short_tokens=SHORT, long_tokens=LONG),
        "plain gradient, p=.7": _SHRINK
        * plain_drift_equal_classes_tokens(0.7, short_tokens=SHORT, long_tokens=LONG),
        "natural gradient, p=.3": length_drift_tokens(
            [0.15, 0.15, 0.35, 0.35],
            bandit=class_bandit([1, 1, 0, 0], n_tokens_A=[SHORT, LONG, SHORT, LONG]),
            mode="seq-mean-token-mean",
            geometry="natural",
        ),
    },
    measure=lambda _: {
        "plain gradient, p=.3": _measure_p7(None)["mean length, plain gradient, p=0.3"],
        "plain gradient, p=.7": _measure_p7(None)["mean length, plain gradient, p=0.7"],
        "natural gradient, p=.3": _measure_p7(None)["mean length, natural gradient, p=.3"],
    },
    how_to_read="Exact drift per unit of learning rate; one setting that falls or stands still "
    "refutes the general sentence.",
)


# ---------------------------------------------------------------------------- Dr. GRPO


def _predict_drift(aggregation: str, p: float = 0.3) -> tuple[float, float]:
    """Return theory's drifts of the length of wrong and right answers, plain gradient."""
    bandit = length_classes(p_right=p)
    step = expected_gradient(
        policy(bandit),
        bandit=class_bandit([1, 1, 0, 0], n_tokens_A=[SHORT, LONG, SHORT, LONG]),
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
            tolerance=0.01,
            unit="tokens",
        ),
        Row(
            name="1/|o|: right answers",
            kind="order",
            side="below",
            says=0.0,
            rival=0.0,
            tolerance=0.01,
            unit="tokens",
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
    "first update; 10 or 100 tokens, p=.3, G=8.",
)


def _over_return() -> float:
    """Return the expected Dr. GRPO gradient over that of the expected reward, over C = 100."""
    bandit = length_classes(p_right=0.3)
    found = gradient(bandit, f"{_NORM}+aggregation.constant={LONG:g}", group_size=GROUP_SIZE)
    of_return = policy(bandit) * (np.array([1.0, 1.0, 0.0, 0.0]) - 0.3) / LONG
    return float(found[0] / of_return[0])


# ---------------------------------------------------------------------------- DAPO's intent

_TOKEN_LEVEL = Claim(
    id="dapo-token-level",
    kind="order",
    statement="Token-level loss stops wrong answers from growing: their growth is less than a "
    "tenth of that under sample mean (first update, one group of 8, hazards .02; DAPO §3.3).",
    source="DAPO, arXiv 2503.14476 v2 §3.3; theory.md C5",
    instrument="bandit",
    rows=(
        Row(
            name="growth under token mean over sample mean",
            kind="bound",
            side="below",
            says=0.1,
            rival=1.0,
            unit="ratio",
        ),
    ),
    predict=lambda: {"growth under token mean over sample mean": _residue_theory()},
    measure=lambda _: {"growth under token mean over sample mean": _residue_measured()},
    how_to_read="Per unit of learning rate; learning rates that give equal progress differ, see "
    "dapolab bandit eos_hazard.",
)

CLAIMS = (_P7, _P8, _C4, _C5, _DR_LENGTH, _TOKEN_LEVEL)
