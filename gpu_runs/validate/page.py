"""The page: theory, simulator, bandit and real training side by side, from stored tables alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dapolab.claims.report import number
from dapolab.report import Document, FigureSpec, Section, Table
from dapolab.report.document import Block, Mark
from dapolab.stats import Estimate
from gpu_runs.validate.study import Study

Part = tuple[Study, Mapping[str, Any], Mapping[str, pd.DataFrame], Sequence[Mapping[str, Any]]]
"""A study, its manifest, its tables, its claims."""

_MARKS: Mapping[str, Mark] = {
    "holds": "good",
    "fails": "bad",
    "undecided": "open",
    "not yet measured": "open",
}
_KEY = ["quantity", "setting", "unit"]
_RULE = (
    "An identity holds to 1e-9. A value or a null holds if its 99 % interval lies inside the "
    "tolerance and fails if it lies outside; an order or a bound is one-sided. A claim of several "
    "rows holds if all do and fails if one fails at the Bonferroni level. Everything else is "
    "undecided. The unit is the independent run or seed, never a step of one run."
)


def page(parts: Sequence[Part]) -> Document:
    """Return the page of the studies, in their order."""
    claims = [claim for *_, found in parts for claim in found]
    sections = [Section("Verdicts", (_RULE, *_overview(parts)))]
    for study, about, tables, found in parts:
        sections.append(Section(study.title, _blocks(study, about, tables)))
        sections += [_claim(claim) for claim in found]
    return Document(
        title="Predicted against measured",
        lead="Small-model training that really ran, beside what theory, simulator and bandit said "
        f"before it started. {_count(claims)}.{_failing(claims)} A miss is as good a "
        "result as a hit, and stays.",
        sections=tuple(sections),
        notes=(
            "a 0.1 M-parameter transformer on a toy task on CPU cores: directions, identities and "
            "the arithmetic of sampling carry over to large models, seconds and effect sizes do "
            "not",
            "predictions were on disk, with their hash, before the measurement started; tolerances "
            "and sizes stand in each study's file",
        ),
        provenance=_provenance(parts),
    )


def _provenance(parts: Sequence[Part]) -> dict[str, str]:
    if not parts:
        return {"command": "python -m gpu_runs validate"}
    runs = {
        f"{about['preset']}{' --quick' if about['quick'] else ''}"
        + (f" --block {about['block']}" if about["block"] else "")
        + (f" --runs {about['runs']}" if about.get("runs") else "")
        for _, about, *_ in parts
    }
    return {
        "command": "; ".join(f"python -m gpu_runs validate {run}" for run in sorted(runs)),
        "version": ", ".join(sorted({str(about["version"]) for _, about, *_ in parts})),
        "predictions sha256": ", ".join(
            f"{study.name} {about['predictions_sha256']}" for study, about, *_ in parts
        ),
    }


def _count(claims: Sequence[Mapping[str, Any]]) -> str:
    words = {"holds": "hold", "fails": "fail", "undecided": "are undecided"}
    counts = {word: sum(c["verdict"] == v for c in claims) for v, word in words.items()}
    said = ", ".join(f"{n} {word}" for word, n in counts.items())
    wrong = sum(1.0 - float(claim["confidence"]) for claim in claims)
    return f"Of {len(claims)} claims {said}; {wrong:.2f} verdicts are wrong by chance on average"


def _failing(claims: Sequence[Mapping[str, Any]]) -> str:
    found = [f"“{c['statement']}”" for c in claims if c["verdict"] == "fails"]
    return f" What fails: {'; '.join(found)}" if found else ""


def _overview(parts: Sequence[Part]) -> list[Block]:
    tables: list[Block] = []
    for study, about, _, claims in parts:
        rows = [
            {
                "claim": claim["id"],
                "verdict": claim["verdict"],
                "sentence": claim["statement"],
                "it says": _demand(claim["rows"], claim["row"]),
                "measured": _estimate(claim),
            }
            for claim in claims
        ]
        if rows:
            size = "quick run" if about["quick"] else "full run"
            tables.append(
                Table(
                    pd.DataFrame(rows),
                    f"**{study.title}** ({size}). {study.question}",
                    marks=_MARKS,
                    links={claim["id"]: _heading(claim) for claim in claims},
                )
            )
    return tables


def _blocks(
    study: Study, about: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]
) -> tuple[Block, ...]:
    beside = side_by_side(tables["predictions"], tables["measured"])
    caption = "Each number with its 99 % interval where it has one; a dash: nobody says it."
    figures: Sequence[FigureSpec] = study.figures(tables)
    words = (study.how_to_read,) if study.how_to_read else ()
    return (f"**{study.question}**", *figures, Table(beside, caption), *words)


def side_by_side(predicted: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return one row a quantity and setting: each instrument's prediction, then real training."""
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    instruments = list(dict.fromkeys(predicted["instrument"].astype(str)))
    for row in measured.to_dict("records"):
        cells.setdefault(_key(row), {})["real training"] = _number(row, n=int(row["n"]))
    for row in predicted.to_dict("records"):
        cells.setdefault(_key(row), {})[str(row["instrument"])] = _number(row, n=1)
    rows = []
    for key, found in cells.items():
        names = dict(zip(_KEY, key, strict=True))
        unit = names.pop("unit")
        values = {name: found.get(name) for name in (*instruments, "real training")}
        rows.append({**names, **values, "unit": unit})
    return pd.DataFrame(rows)


def _key(row: Mapping[Any, Any]) -> tuple[str, ...]:
    return tuple("" if pd.isna(row[name]) else str(row[name]) for name in _KEY)


def _number(row: Mapping[Any, Any], *, n: int) -> Estimate | None:
    if pd.isna(row["value"]):
        return None
    ends = [None if pd.isna(row[end]) else float(row[end]) for end in ("low", "high")]
    return Estimate(float(row["value"]), ends[0], ends[1], n, "")


def _claim(claim: Mapping[str, Any]) -> Section:
    table = Table(
        pd.DataFrame(
            {
                "number": row["name"],
                "the sentence": _demand([row], row["name"]),
                "denies": number(row["rival"]),
                "predicted": number(row["predicted"]),
                "measured": _estimate(row),
                "n": row["n"],
                "unit": row["unit"],
                "verdict": row["verdict"],
            }
            for row in claim["rows"]
        ),
        f"{claim['kind']}; unit: {claim['repeat']}; study file {claim['fingerprint']}.",
        marks=_MARKS,
    )
    reasons = dict.fromkeys(row["why"] for row in claim["rows"] if row["why"])
    words = [f"**Instead:** {claim['correction']}"] if claim["correction"] else []
    words += [f"**How to read this:** {claim['how_to_read']}"]
    words += [f"**Tolerance:** {'; '.join(reasons)}."] if reasons else []
    words += [f"**Source:** {claim['source']}."]
    return Section(_heading(claim), (f"“{claim['statement']}”", table, *words), level=3)


def _heading(claim: Mapping[str, Any]) -> str:
    return f"{claim['id']}: {claim['verdict']}"


def _demand(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    row = next(row for row in rows if row["name"] == name)
    says, tolerance = float(row["says"]), float(row["tolerance"])
    if row["kind"] in ("order", "bound"):
        above = row["side"] == "above"
        inward = tolerance if row["kind"] == "order" else -tolerance
        return f"{'≥' if above else '≤'} {number(says + inward if above else says - inward)}"
    return number(says) if row["kind"] == "identity" else f"{number(says)} ± {number(tolerance)}"


def _estimate(row: Mapping[str, Any]) -> Estimate | str:
    if row["measured"] is None:
        return "–"
    return Estimate(row["measured"], row["low"], row["high"], max(int(row["n"]), 1), "")
