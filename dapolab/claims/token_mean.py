"""What token mean keeps of the length bias: P8, circulated 5, DAPO's token-level loss."""

from typing import Final

import numpy as np

from dapolab.claims.claim import Claim, Row
from dapolab.claims.toys import Floats, hazard_gradient_exact, hazard_theory
from dapolab.objective.plain import token_pushes
from dapolab.scenario import Objective, PpoClip, SeqMeanTokenMean, TokenMean, TokenMeanMicro
from dapolab.theory.length_bias import micro_token_weights, token_weights

_SEQ: Final = "seq-mean-token-mean"
_TOKEN: Final = "token-mean"

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
    return hazard_theory(_TOKEN).hazard_wrong / hazard_theory(_SEQ).hazard_wrong


def _residue_measured() -> float:
    return float(hazard_gradient_exact(_TOKEN)[2] / hazard_gradient_exact(_SEQ)[2])


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

# ---------------------------------------------------------------------------- DAPO's intent


def _bias_per_step(gradient_3: Floats) -> float:
    """Return the growth of wrong answers by an update of unit length, ‖Δθ‖ = 1."""
    return float(gradient_3[2] / np.linalg.norm(gradient_3))


def _hazard_theory_array(aggregation: str) -> Floats:
    law = hazard_theory(aggregation)
    return np.array([law.decision, law.hazard_right, law.hazard_wrong])


_EQUAL_RATE = "growth under token mean over sample mean, equal learning rate"
_EQUAL_STEP = "growth under token mean over sample mean, equal ‖Δθ‖"
_TOKEN_LEVEL = Claim(
    id="dapo-token-level",
    kind="bound",
    statement="Token-level loss all but stops wrong answers from growing: their growth is at most "
    "a quarter of that under sample mean, at equal learning rate and at equal size of the update "
    "(first update, one group of 8, hazards .02; DAPO §3.3).",
    source="DAPO, arXiv 2503.14476 v2 §3.3; theory.md C5",
    instrument="bandit",
    rows=tuple(
        Row(
            name=name,
            kind="bound",
            side="below",
            says=0.25,
            rival=1.0,
            unit="ratio",
            why="DESIGN's own measure of “no effect”: a quarter of the rival's",
        )
        for name in (_EQUAL_RATE, _EQUAL_STEP)
    ),
    predict=lambda: {
        _EQUAL_RATE: _residue_theory(),
        _EQUAL_STEP: _bias_per_step(_hazard_theory_array(_TOKEN))
        / _bias_per_step(_hazard_theory_array(_SEQ)),
    },
    measure=lambda _: {
        _EQUAL_RATE: _residue_measured(),
        _EQUAL_STEP: _bias_per_step(hazard_gradient_exact(_TOKEN))
        / _bias_per_step(hazard_gradient_exact(_SEQ)),
    },
    how_to_read="DAPO gives no number; “stops” in the strict sense is c5, and fails. At an equal "
    "learning rate token mean also learns more slowly, which flatters it: the second row takes "
    "that away.",
)

CLAIMS = (_P8, _C5, _TOKEN_LEVEL)
