"""What the README says in numbers: blocks between markers, drawn from the stored reports alone.

``<!-- claims:begin -->`` … ``<!-- claims:end -->`` and ``<!-- numbers:begin -->`` … in README.md
and README.zh.md; everything else in these files is written by hand and never touched.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapolab.claims.report import number
from dapolab.errors import ConfigError

Claims = Sequence[Mapping[str, Any]]
FILES: Mapping[str, str] = {"README.md": "en", "README.zh.md": "zh"}
_SENTENCE = 110
"""Characters of a sentence; the whole of it stands in reports/claims.md."""
_WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "holds": "hold",
        "fails": "fail",
        "undecided": "undecided",
        "not yet measured": "not yet measured",
        "claims": "{n} claims: {counts} ([all of them](reports/claims.md)). Those that fail:",
        "claim head": "| claim | the sentence | it says | measured |",
        "number head": "| number | predicted [90 %] | measured [99 %] |",
        "seed": "waves of a step, seed configuration (B=4, M=2, q=.5): theory, simulator",
        "backtest": "{pair}: {quantity}",
        "covered": "backtest intervals that hold the measured value",
        "published": "published rows inside the predicted range",
        "v-law-waves": "engine seconds of real training, over those of a calibrated law",
        "v-mixed-share": "share of mixed groups in real training, less the predicted (first stage)",
        "v-collectors-accuracy": "accuracy of a trained batch, from another run's rollouts",
        "training": "claims on real training that hold / fail / are undecided",
    },
    "zh": {
        "holds": "条成立",
        "fails": "条不成立",
        "undecided": "条未定",
        "not yet measured": "条尚未测量",
        "claims": "共 {n} 条论断：{counts}（[全部论断](reports/claims.md)）。不成立的有：",
        "claim head": "| 论断 | 原句 | 声称 | 实测 |",
        "number head": "| 数字 | 预测 [90 %] | 实测 [99 %] |",
        "seed": "种子配置（B=4, M=2, q=.5）每步的波数：理论与模拟器",
        "backtest": "{pair}：{quantity}",
        "covered": "包含实测值的回测区间",
        "published": "落在预测范围内的公开结果",
        "v-law-waves": "真实训练中引擎的秒数与标定硬件律之比",
        "v-mixed-share": "真实训练中混合组的占比减去预测值（第一阶段）",
        "v-collectors-accuracy": "由另一次运行的 rollout 预测的训练批次准确率",
        "training": "关于真实训练的论断：成立 / 不成立 / 未定",
    },
}


def update(folder: Path, *, reports: Path) -> list[Path]:
    """Write the blocks of the READMEs in ``folder`` again; return the files that have any.

    Raises
    ------
    ConfigError
        A report is missing or unreadable, a marker has no partner, or no file has markers.
    """
    from dapolab.store import atomic_write

    written = []
    for name, language in FILES.items():
        path = folder / name
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        new = filled(text, reports=reports, language=language, name=name)
        if "<!-- claims:begin -->" in new or "<!-- numbers:begin -->" in new:
            written.append(path if new == text else atomic_write(path, new))
    if not written:
        raise ConfigError(f"{folder}: no README.md with <!-- claims:begin --> or numbers:begin")
    return written


def filled(text: str, *, reports: Path, language: str, name: str = "text") -> str:
    """Return ``text`` with what stands between its markers drawn again."""
    blocks = {"claims": claims_block, "numbers": numbers_block}
    for kind, draw in blocks.items():
        begin, end = f"<!-- {kind}:begin -->", f"<!-- {kind}:end -->"
        if (text.count(begin), text.count(end)) == (0, 0):
            continue
        pattern = re.compile(f"{begin}.*?{end}", re.DOTALL)
        if (text.count(begin), text.count(end)) != (1, 1) or not pattern.search(text):
            raise ConfigError(f"{name}: one {begin} and one {end} after it are needed")
        block = f"{begin}\n{draw(reports, language)}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)  # type: ignore[misc]
    return text


def claims_block(reports: Path, language: str) -> str:
    """Return how many claims hold, and those that fail with their numbers."""
    claims: Claims = _read(reports / "claims.json")["claims"]
    words = _WORDS[language]
    counts = {v: sum(c["verdict"] == v for c in claims) for v in list(words)[:4]}
    said = (", " if language == "en" else "，").join(
        f"{n} {words[verdict]}" for verdict, n in counts.items() if n
    )
    lines = [words["claims"].format(n=len(claims), counts=said), "", words["claim head"]]
    lines.append("|---|---|---|---|")
    for claim in claims:
        if claim["verdict"] == "fails":
            cells = (
                f"`{claim['id']}`",
                _cut(claim["statement"]),
                _demand(claim),
                _interval(claim),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def numbers_block(reports: Path, language: str) -> str:
    """Return predictions beside what was measured: the seed configuration and the backtests."""
    words = _WORDS[language]
    claims: Claims = _read(reports / "claims.json")["claims"]
    rows = [
        (words["seed"], number(claim["predicted"]), _interval(claim))
        for claim in claims
        if claim["id"] == "p1-seed-configuration"
    ]
    tables = _read(reports / "fidelity.json")["tables"]
    backtests = tables["backtests"]
    for row in backtests:
        if row["quantity"] in ("waves", "step seconds"):
            text = words["backtest"].format(**row)
            predicted = f"{number(row['predicted'])} [{number(row['low'])}, {number(row['high'])}]"
            rows.append((text, predicted, number(row["measured"])))
    held = sum(bool(row["covered"]) for row in backtests)
    rows.append((words["covered"], "", f"{held} / {len(backtests)}"))
    judged = [row for row in tables["published"] if row["counted"]]
    inside = sum(bool(row["inside"]) for row in judged)
    rows.append((words["published"], "", f"{inside} / {len(judged)}"))
    rows += _training(reports / "tables" / "predicted_vs_measured", words)
    body = [f"| {' | '.join(_cell(part) for part in row)} |" for row in rows]
    return "\n".join([words["number head"], "|---|---|---|", *body])


def _training(folder: Path, words: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return three predictions of real training and how all its claims came out; none unstored."""
    claims = [claim for path in sorted(folder.glob("*/claims.json")) for claim in _read(path)]
    if not claims:
        return []
    rows = []
    for claim in claims:
        if claim["id"] in words:
            # every row of a claim has its own number: the first is shown, not the worst
            first = claim["rows"][0]
            rows.append((words[claim["id"]], number(first["says"]), _interval(first)))
    counts = [sum(c["verdict"] == v for c in claims) for v in ("holds", "fails", "undecided")]
    rows.append((words["training"], "", " / ".join(map(str, counts))))
    return rows


def _demand(claim: Mapping[str, Any]) -> str:
    """Return what the sentence says of the deciding number, as the claims page words it."""
    row = next(row for row in claim["rows"] if row["name"] == claim["row"])
    says, tolerance = float(row["says"]), float(row["tolerance"])
    if row["kind"] not in ("order", "bound"):
        return number(says)
    inward = tolerance if row["kind"] == "order" else -tolerance
    above = row["side"] == "above"
    return f"{'≥' if above else '≤'} {number(says + inward if above else says - inward)}"


def _interval(claim: Mapping[str, Any]) -> str:
    if claim["low"] is None:
        return number(claim["measured"])
    return f"{number(claim['measured'])} [{number(claim['low'])}, {number(claim['high'])}]"


def _cut(sentence: str) -> str:
    text = sentence if len(sentence) <= _SENTENCE else sentence[: _SENTENCE - 2].rstrip() + " …"
    return _cell(text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: not there; it comes from dapolab {path.stem}") from None
    except ValueError:
        raise ConfigError(f"{path}: not a JSON document; write it again") from None
