"""What one token weighs: the seed article's token mean, verl's means (c9), GSPO (c13)."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from dapolab.claims.claim import Claim, Row
from dapolab.claims.toys import Floats
from dapolab.objective.plain import token_pushes
from dapolab.scenario import (
    Clip,
    GspoClip,
    MeanOnlyAdvantage,
    Objective,
    PpoClip,
    SeqMeanTokenMean,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
)
from dapolab.theory.length_bias import micro_token_weights, token_weights

_SEQ: Final = "seq-mean-token-mean"
_TOKEN: Final = "token-mean"
_SIGNS = (1.0, -1.0, 1.0, -1.0)


def _weight_of(n_tokens: tuple[int, int], objective: Objective) -> Floats:
    """Return the total weight of each of two answers of opposite advantage."""
    pushes = token_pushes(n_tokens, objective, advantages=(1.0, -1.0))
    return np.asarray(np.abs(pushes) * np.array(n_tokens))


_ARTICLE = (4000, 100)
_LONG_WEIGHT = Claim(
    id="seed-long-answers-weigh-more",
    kind="identity",
    statement="Under token mean an answer of 4,000 tokens carries 40 times the weight of one of "
    "100; under sample mean both weigh the same.",
    source="seed article 004, on token mean; theory.md C1",
    instrument="objective",
    rows=(
        Row(
            name="weight of 4000 over 100 tokens, token-mean",
            kind="identity",
            says=40.0,
            rival=1.0,
            unit="ratio",
        ),
        Row(
            name="weight of 4000 over 100 tokens, sample mean",
            kind="identity",
            says=1.0,
            rival=40.0,
            unit="ratio",
        ),
    ),
    predict=lambda: {
        f"weight of 4000 over 100 tokens, {name}": float(weights[0] * 4000 / (weights[1] * 100))
        for name, weights in (
            ("token-mean", token_weights(_ARTICLE, mode=_TOKEN)),
            ("sample mean", token_weights(_ARTICLE, mode=_SEQ)),
        )
    },
    measure=lambda _: {
        f"weight of 4000 over 100 tokens, {name}": float(weights[0] / weights[1])
        for name, weights in (
            ("token-mean", _weight_of(_ARTICLE, Objective(aggregation=TokenMean()))),
            ("sample mean", _weight_of(_ARTICLE, Objective(aggregation=SeqMeanTokenMean()))),
        )
    },
    how_to_read="Sum over an answer's tokens of |∂loss/∂log π|, equal |advantage|. Weight is not "
    "length bias: every token of every answer counts alike.",
)


def _predict_c9() -> Mapping[str, float]:
    doubled = token_weights([10] * 8, mode="token-sum-norm", constant_tokens=100)
    single = token_weights([10] * 4, mode="token-sum-norm", constant_tokens=100)
    packed = micro_token_weights([100, 100, 10, 10], micro_N=[0, 0, 1, 1], mode=_TOKEN, rule="rows")
    return {
        "sum-norm: weight of a token, 4 over 8 answers": float(single[0] / doubled[0]),
        "token-mean: weight by micro-batch, short over long": float(packed[2] / packed[0]),
    }


def _measure_c9(_: object) -> dict[str, float]:
    summed = Objective(aggregation=SeqMeanTokenSumNorm(constant=100.0, rows="sum"))
    few, many = (token_pushes([10] * n, summed, advantages=[1.0, -1.0] * (n // 2)) for n in (4, 8))
    local = Objective(aggregation=TokenMeanMicro(combine="rows"))
    packed = token_pushes(
        [100, 100, 10, 10], local, advantages=[1.0, -1.0, 1.0, -1.0], micro_rows=2
    )
    return {
        "sum-norm: weight of a token, 4 over 8 answers": float(few[0] / many[0]),
        "token-mean: weight by micro-batch, short over long": float(packed[2] / packed[0]),
    }


_C9 = Claim(
    id="c9-verl-means",
    kind="identity",
    statement="In verl 0.4 to 0.7.0 seq-mean-token-sum-norm is a mean over sequences and the "
    "legacy actor's token-mean (dynamic batch size) is a mean over all tokens.",
    correction="sum-norm was a sum (weight 1/C whatever the number of answers; a mean from 0.7.1), "
    "and the legacy token-mean has the denominator of its own micro-batch: token-balanced packing "
    "brings the 1/length weight back.",
    source="verl core_algos.agg_loss and dp_actor.py, read; theory.md circulated 9, C1, C8",
    instrument="objective",
    rows=(
        Row(
            name="sum-norm: weight of a token, 4 over 8 answers",
            kind="identity",
            says=2.0,
            rival=1.0,
            unit="ratio",
        ),
        Row(
            name="token-mean: weight by micro-batch, short over long",
            kind="identity",
            says=1.0,
            rival=10.0,
            unit="ratio",
        ),
    ),
    predict=_predict_c9,
    measure=_measure_c9,
    how_to_read="The objective's modes of that version (rows=sum; token-mean-micro, rows). A mean "
    "over sequences halves a token's weight when their number doubles. agg_loss of the published "
    "0.7.0 and 0.7.1 packages, run once, gave 1 and 2 for the first row; what 0.9.1 does is "
    "verl-0.9.1-means. tests/conformance/test_claims_verl.py lets 0.9.1 itself compute the second "
    "row from its local means and the legacy actor's weights n_m/n.",
)

_GLOBAL = "token-mean: weight of a short over a long answer's token, by micro-batch"
_ROWS_MEAN = "sum-norm: weight of a token, 4 over 8 answers"


def _measure_today(_: object) -> dict[str, float]:
    meaned = Objective(aggregation=SeqMeanTokenSumNorm(constant=100.0))
    few, many = (token_pushes([10] * n, meaned, advantages=[1.0, -1.0] * (n // 2)) for n in (4, 8))
    whole = token_pushes([100, 100, 10, 10], Objective(), advantages=_SIGNS, micro_rows=2)
    return {_ROWS_MEAN: float(few[0] / many[0]), _GLOBAL: float(whole[2] / whole[0])}


_TODAY = Claim(
    id="verl-0.9.1-means",
    kind="identity",
    statement="In verl 0.9.1 seq-mean-token-sum-norm is a mean over sequences, and token-mean is a "
    "mean over all tokens of the mini-batch, however it is cut into micro-batches.",
    source="verl 0.9.1 core_algos.agg_loss and workers/utils/losses.py, run; theory.md C1, C8",
    instrument="objective",
    rows=(
        Row(name=_ROWS_MEAN, kind="identity", says=2.0, rival=1.0, unit="ratio"),
        Row(name=_GLOBAL, kind="identity", says=1.0, rival=10.0, unit="ratio"),
    ),
    predict=lambda: {
        _ROWS_MEAN: float(
            token_weights([10] * 4, mode="seq-mean-token-sum-norm", constant_tokens=100)[0]
            / token_weights([10] * 8, mode="seq-mean-token-sum-norm", constant_tokens=100)[0]
        ),
        _GLOBAL: 1.0,
    },
    measure=_measure_today,
    how_to_read="The judge is the real package: tests/conformance/test_claims_verl.py compares "
    "these published numbers with what verl 0.9.1 computes. c9 is about older versions.",
)


def _gspo_weights(clip: Clip) -> float:
    objective = Objective(clip=clip, aggregation=SeqMeanTokenMean(), advantage=MeanOnlyAdvantage())
    pushes = token_pushes((10, 100), objective, advantages=(1.0, -1.0))
    return float(-pushes[0] / pushes[1])


_C13 = Claim(
    id="c13-gspo-length",
    kind="identity",
    statement="GSPO removes GRPO's length bias: at the old policy a token weighs the same in a "
    "short answer and in a long one (GSPO with its sequence mean; not verl 0.9.1's configured "
    "aggregation).",
    correction="At ratio 1 GSPO's gradient is that of seq-mean-token-mean, 1/L included.",
    source="GSPO, arXiv 2507.18071, as circulated; theory.md circulated 13, D1",
    instrument="objective",
    rows=(
        Row(
            name="token weight, 10 over 100 tokens",
            kind="identity",
            says=1.0,
            rival=10.0,
            unit="ratio",
        ),
        Row(name="the same over GRPO's", kind="identity", says=0.1, rival=1.0, unit="ratio"),
    ),
    predict=lambda: {"token weight, 10 over 100 tokens": 10.0, "the same over GRPO's": 1.0},
    measure=lambda _: {
        "token weight, 10 over 100 tokens": _gspo_weights(GspoClip()),
        "the same over GRPO's": _gspo_weights(GspoClip()) / _gspo_weights(PpoClip()),
    },
    how_to_read="|∂loss/∂log π| of one token; both answers at ratio 1 with equal |advantage|. The "
    "judge is verl 0.9.1's own GSPO (tests/conformance/test_claims_verl.py): the same 10 with "
    "seq-mean-token-mean, 1 with token-mean, which it uses unless told otherwise.",
)

CLAIMS = (_LONG_WEIGHT, _C9, _TODAY, _C13)
