"""Every published statement as a claim: the sentence, its rival, its prediction, its verdict.

One file a family that shares a set-up. The rule is DESIGN.md section 1's; a claim that fails is as
good a result as one that holds.
"""

from dapolab.claims import (
    barrier,
    clips,
    dr_grpo,
    dynamic_sampling,
    entropy,
    kept_batch,
    length,
    nulls,
    overlong,
    pending,
    pipeline,
    policy_time,
    reach,
    std_weight,
    token_mean,
    waves,
    weights,
)
from dapolab.claims.claim import PUBLISHED_SEED, Claim, Draws, Measured, Row, Totals
from dapolab.claims.run import document, expected_wrong, find_claims, run_claim, run_claims
from dapolab.claims.verdict import Outcome, RowOutcome, Verdict, conclude, judge

_GROUPS = ("p", "seed", "dapo", "dr", "c", "null")


def _place(claim: Claim) -> tuple[int, int, str]:
    """Predictions, seed article, DAPO, Dr. GRPO, claims in circulation, nulls, then the rest."""
    head = claim.id.split("-")[0]
    word, number = head.rstrip("0123456789"), head.lstrip("abcdefghijklmnopqrstuvwxyz")
    first = _GROUPS.index(word) if word in _GROUPS else len(_GROUPS)
    return first, int(number or 0), claim.id


CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (
            *waves.CLAIMS,
            *kept_batch.CLAIMS,
            *barrier.CLAIMS,
            *policy_time.CLAIMS,
            *length.CLAIMS,
            *dr_grpo.CLAIMS,
            *token_mean.CLAIMS,
            *dynamic_sampling.CLAIMS,
            *std_weight.CLAIMS,
            *clips.CLAIMS,
            *reach.CLAIMS,
            *entropy.CLAIMS,
            *weights.CLAIMS,
            *overlong.CLAIMS,
            *nulls.CLAIMS,
            *pipeline.CLAIMS,
            *pending.CLAIMS,
        ),
        key=_place,
    )
)

__all__ = [
    "CLAIMS",
    "PUBLISHED_SEED",
    "Claim",
    "Draws",
    "Measured",
    "Outcome",
    "Row",
    "RowOutcome",
    "Totals",
    "Verdict",
    "conclude",
    "document",
    "expected_wrong",
    "find_claims",
    "judge",
    "run_claim",
    "run_claims",
]
