"""The claims as a page: all verdicts at a glance, then each claim with its numbers and sources."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import shorten

import pandas as pd

from dapolab.claims.claim import LEAST_SAMPLES, PUBLISHED_SEED, Claim, Row
from dapolab.claims.figure import verdict_figure
from dapolab.claims.run import expected_wrong
from dapolab.claims.verdict import Outcome, RowOutcome
from dapolab.report import Document, Section, Table, formats
from dapolab.report.document import Mark

VERDICTS = ("holds", "fails", "undecided", "not yet measured")
_FAMILIES = {
    "p": "Predictions of the theory, stated as true",
    "seed": "What the seed article says",
    "dapo": "What DAPO's four components are meant to do",
    "dr": "The two biases that Dr. GRPO names",
    "c": "Claims in circulation, stated as circulated",
    "null": "Where the literature says “no effect”",
}
_MARKS: Mapping[str, Mark] = {
    "holds": "good",
    "fails": "bad",
    "undecided": "open",
    "not yet measured": "open",
}
_WORDS = 120
"""Characters of a sentence in the table of all."""
_OTHER = "Rules, and claims that wait for their instrument"


def claims_document(outcomes: Sequence[Outcome], *, provenance: Mapping[str, str]) -> Document:
    """Return the report of ``outcomes``, in their order."""
    measured = any(outcome.deciding.measured is not None for outcome in outcomes)
    figures = (verdict_figure(outcomes),) if measured and len(outcomes) > 1 else ()
    sections = [Section("Verdicts", (_rule(), *figures, *_overview(outcomes)))]
    for title, members in groupby(outcomes, key=lambda outcome: family(outcome.claim.id)):
        sections.append(Section(title, ()))
        sections += [_section(outcome) for outcome in members]
    return Document(
        title="Claims",
        lead=f"{count_verdicts(outcomes)}. Of these verdicts {expected_wrong(outcomes):.2f} are "
        "wrong by chance on average. A claim that fails is as good a result as one that holds.",
        sections=tuple(sections),
        notes=(
            "the verdict is about the sentence as circulated; what is true instead stands below it",
            "statement, numbers, tolerances and n stand in the claim's file before the run, whose "
            "hash is beside each table; a tolerance is what nobody would act on, not what a run "
            f"showed. Seed block {PUBLISHED_SEED} is published; blocks 0 and 1 were seen before "
            "today's tolerances were written and give no verdict",
        ),
        provenance=provenance,
    )


def family(name: str) -> str:
    """Return the heading under which the claim of this id stands."""
    return _FAMILIES.get(name.split("-")[0].rstrip("0123456789"), _OTHER)


def count_verdicts(outcomes: Sequence[Outcome]) -> str:
    """Return "46 claims: 25 hold, …" ."""
    words = dict(zip(VERDICTS, ("hold", "fail", "undecided", "not yet measured"), strict=True))
    counts = {v: sum(outcome.verdict == v for outcome in outcomes) for v in VERDICTS}
    parts = ", ".join(f"{n} {words[verdict]}" for verdict, n in counts.items() if n)
    return f"{len(outcomes)} claim{'s' if len(outcomes) != 1 else ''}: {parts}"


def number(value: float | None) -> str:
    """Return a number for people: rounding errors of an exact zero are zero."""
    if value is None:
        return "–"
    return "0" if abs(value) < 1e-12 else f"{value:.4g}".replace("-", "−")


def demand(row: Row, says: float) -> str:
    """Return what the sentence says of the number, with the tolerance."""
    if row.kind in ("order", "bound"):
        return f"{'≥' if row.side == 'above' else '≤'} {number(row.limit(says))}"
    return number(says) if row.kind == "identity" else f"{number(says)} ± {row.tolerance:.2g}"


def measured_text(found: RowOutcome) -> str:
    """Return the measured number with its interval."""
    if found.measured is None:
        return "–"
    if found.measured.low is None or found.measured.n < LEAST_SAMPLES:
        return number(found.measured.mean)
    # without the unit: a share stands beside what the sentence says of it, not in per cent
    return formats.estimate(replace(found.measured, unit=""))


def _overview(outcomes: Sequence[Outcome]) -> list[Table]:
    """Return one table a family, each claim with a link to its section."""
    tables = []
    for title, members in groupby(outcomes, key=lambda outcome: family(outcome.claim.id)):
        chosen = list(members)
        rows = [
            {
                "claim": outcome.claim.id,
                "verdict": outcome.verdict,
                "sentence": shorten(outcome.claim.statement, _WORDS, placeholder=" …"),
                "it says": demand(outcome.deciding.row, outcome.deciding.says),
                "theory": number(outcome.deciding.predicted),
                "measured": measured_text(outcome.deciding),
                "instrument": outcome.claim.instrument,
            }
            for outcome in chosen
        ]
        tables.append(
            Table(
                pd.DataFrame(rows),
                f"**{title}.** Numbers are those of the row that decides.",
                marks=_MARKS,
                links={outcome.claim.id: _heading(outcome) for outcome in chosen},
            )
        )
    return tables


def _heading(outcome: Outcome) -> str:
    return f"{outcome.claim.id}: {outcome.verdict}"


def _rule() -> str:
    return (
        "An identity holds to 1e-9. A value holds if its 99 % interval lies inside the tolerance "
        "and fails if it lies outside; an order or a bound is one-sided. A claim of several rows "
        "holds if all do and fails if one fails at the Bonferroni level. Everything else is "
        "undecided. Numbers without an interval are exact."
    )


def _section(outcome: Outcome) -> Section:
    claim = outcome.claim
    table = Table(
        pd.DataFrame(
            {
                "number": found.row.name,
                "the sentence": demand(found.row, found.says),
                "denies": number(found.row.rival),
                "theory": number(found.predicted),
                "measured": measured_text(found),
                "unit": found.row.unit,
                "verdict": found.verdict,
            }
            for found in outcome.rows
        ),
        f"{claim.kind}, {_repeated(outcome)}; claim file {claim.fingerprint}.",
        marks=_MARKS,
    )
    words = [f"“{claim.statement}”"]
    if claim.correction:
        words.append(f"**Instead:** {claim.correction}")
    words += [f"**How to read this:** {claim.how_to_read}"]
    words += [f"**Tolerance:** {text}." for text in (tolerances(claim),) if text]
    words += [f"**Source:** {claim.source}."]
    return Section(_heading(outcome), (words[0], table, *words[1:]), level=3)


def tolerances(claim: Claim) -> str:
    """Return what sets the tolerances, rows with one reason together; empty for identities."""
    rows_by_why: dict[str, list[str]] = {}
    for row in claim.rows:
        if row.why:
            rows_by_why.setdefault(row.why, []).append(row.name)
    if len(rows_by_why) == 1:
        return next(iter(rows_by_why))
    return "; ".join(f"{why} ({', '.join(names)})" for why, names in rows_by_why.items())


def _repeated(outcome: Outcome) -> str:
    n = max((found.measured.n for found in outcome.rows if found.measured is not None), default=0)
    if outcome.claim.repeat == "exact" or n == 0:
        return f"instrument: {outcome.claim.instrument}"
    return f"instrument: {outcome.claim.instrument}, n = {n}, unit: {outcome.claim.repeat}"
