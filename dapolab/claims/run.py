"""Measure claims, one after another, and say it in JSON."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from dapolab.claims.claim import Claim
from dapolab.claims.verdict import Outcome, RowOutcome, conclude
from dapolab.errors import ConfigError


def run_claim(claim: Claim, *, seed: int, quick: bool) -> Outcome:
    """Measure one claim; the same seed gives the same verdict."""
    draws = claim.draws(seed=seed, quick=quick)
    measured = None if claim.measure is None else claim.measure(draws)
    return conclude(claim, measured, predicted=claim.predict())


def run_claims(
    claims: Sequence[Claim],
    *,
    seed: int,
    quick: bool = False,
    on_done: Callable[[], object] = lambda: None,
) -> tuple[Outcome, ...]:
    """Measure all ``claims`` in order."""
    outcomes = []
    for claim in claims:
        outcomes.append(run_claim(claim, seed=seed, quick=quick))
        on_done()
    return tuple(outcomes)


def find_claims(claims: Sequence[Claim], text: str) -> tuple[Claim, ...]:
    """Return the claim of this id or number (``p1``), or a family: ``p``, ``seed``, ``c``.

    Raises
    ------
    ConfigError
        Naming the nearest id.
    """
    word = text.lower()
    found = tuple(
        claim
        for claim in claims
        if claim.id == word
        or claim.id.startswith(f"{word}-")
        or claim.id.partition("-")[0].rstrip("0123456789") == word
    )
    if not found:
        near = get_close_matches(word, [c.id for c in claims], n=1, cutoff=0.0)[0]
        raise ConfigError(f"unknown claim {text!r}; nearest: {near}; dapolab claims lists all")
    return found


def expected_wrong(outcomes: Iterable[Outcome]) -> float:
    """Return Σ(1 − confidence), how many of these verdicts are wrong by chance on average."""
    return sum(1.0 - outcome.confidence for outcome in outcomes)


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return DESIGN.md §8's JSON body of ``claims``; numbers of a claim are its deciding row's."""
    return {
        "claims": [_claim(outcome) for outcome in outcomes],
        "expected_wrong": expected_wrong(outcomes),
    }


def _claim(outcome: Outcome) -> dict[str, Any]:
    claim = outcome.claim
    deciding = _row(outcome.deciding)
    numbers = {
        key: deciding[key]
        for key in ("rival", "tolerance", "predicted", "says", "measured", "low", "high", "n")
    }
    return {
        "id": claim.id,
        "kind": claim.kind,
        "statement": claim.statement,
        "correction": claim.correction,
        "source": claim.source,
        "confidence": outcome.confidence,
        "verdict": outcome.verdict,
        **numbers,
        "unit": deciding["unit"],
        "row": deciding["name"],
        "repeat": claim.repeat,
        "instrument": claim.instrument,
        "how_to_read": claim.how_to_read,
        "fingerprint": claim.fingerprint,
        "rows": [_row(row) for row in outcome.rows],
    }


def _row(found: RowOutcome) -> dict[str, Any]:
    row, measured = found.row, found.measured
    return {
        "name": row.name,
        "kind": row.kind,
        "side": row.side if row.kind in ("order", "bound") else None,
        "says": found.says,
        "rival": row.rival,
        "tolerance": row.tolerance,
        "why": row.why,
        "predicted": found.predicted,
        "measured": None if measured is None else measured.mean,
        "low": None if measured is None else measured.low,
        "high": None if measured is None else measured.high,
        "n": 0 if measured is None else measured.n,
        "unit": row.unit,
        "verdict": found.verdict,
    }
