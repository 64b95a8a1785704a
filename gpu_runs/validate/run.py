"""The command: every study's predictions on disk before its measurement starts, then the page."""

import argparse
import hashlib
import importlib
import importlib.util
import io
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from dapolab import __version__
from dapolab.claims import document
from dapolab.errors import ConfigError
from dapolab.store import atomic_write
from gpu_runs.validate.context import Context
from gpu_runs.validate.study import MEASURED, PREDICTED, Study

ORDER = (
    "law",
    "waves",
    "collectors",
    "drift",
    "aggregation",
    "picture",
    "clip_higher",
    "truncated",
    "ladder",
)
"""Studies in the order of the page: time first, then what learning does."""
PAGE = "predicted_vs_measured"
_EPILOG = """\
--KEY VALUE lays a setting over the preset.

examples:
  python -m gpu_runs validate toy_cpu --quick
  python -m gpu_runs validate toy_cpu --studies law,waves -o runs/validation
  python -m gpu_runs validate toy_cpu --draw -o reports   # the page again, from stored tables
"""


def names() -> tuple[str, ...]:
    """Return the studies there are, in order."""
    return tuple(n for n in ORDER if importlib.util.find_spec(f"gpu_runs.validate.{n}") is not None)


def find_study(name: str) -> Study:
    """Return a study by name."""
    study: Study = importlib.import_module(f"gpu_runs.validate.{name}").STUDY
    return study


def main(argv: Sequence[str]) -> int:
    """Run ``validate``; errors are ConfigErrors."""
    from gpu_runs.__main__ import json_text

    options, settings = _options(argv)
    chosen = _chosen(options.studies)
    context = _context(options, settings)
    found: list[dict[str, Any]] = []
    for name in chosen:
        study = find_study(name)
        if not options.draw:
            started = time.monotonic()
            claims = run_study(study, context)
            context.say(f"{name}: {_verdicts(claims)} ({time.monotonic() - started:.0f} s)")
            found += claims
    pages = draw(context.folder)
    if options.draw:
        found = [c for name in chosen for c in stored_claims(context.folder, name)]
    if options.json:
        wrong = sum(1.0 - float(claim["confidence"]) for claim in found)
        body = {"claims": found, "expected_wrong": wrong}
        sys.stdout.write(json_text("validate", seed=context.seed, body=body))
    else:
        lines = [f"{claim['verdict']:<18} {claim['id']}" for claim in found]
        sys.stdout.write("\n".join([*lines, *(f"wrote {page}" for page in pages)]) + "\n")
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see python -m gpu_runs validate --help)")


def _options(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = _Parser(
        prog="python -m gpu_runs validate",
        usage="python -m gpu_runs validate PRESET [options] [--KEY VALUE …]",
        description="predictions first, then the measurement, then the comparison",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("preset", metavar="PRESET", help="a name or a TOML file")
    parser.add_argument("--quick", action="store_true", help="few seeds: shows that all works")
    parser.add_argument("--studies", metavar="A,B", help=f"of {', '.join(names())}")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: all cores)")
    parser.add_argument("--block", type=int, default=0, metavar="N", help="block of fresh seeds")
    parser.add_argument("--runs", type=int, metavar="N", help="runs of each arm (training studies)")
    parser.add_argument("--cache", metavar="DIR", default="runs/validate-cache", help="of runs")
    parser.add_argument("--draw", action="store_true", help="draw stored tables, measure nothing")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder of page and tables")
    options, rest = parser.parse_known_args(list(argv))
    return options, rest


def _chosen(text: str | None) -> list[str]:
    known = names()
    chosen = list(known) if text is None else [word.strip() for word in text.split(",")]
    for word in chosen:
        if word not in known:
            near = get_close_matches(word, known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"--studies: unknown study {word!r}; nearest: {near}")
    return [name for name in known if name in chosen]


def _context(options: argparse.Namespace, settings: Sequence[str]) -> Context:
    from dapolab.scenario import parse_overrides
    from gpu_runs.preset import load
    from gpu_runs.setup import choose_device

    choose_device(options.device)
    preset = load(options.preset, parse_overrides(settings))
    default = f"runs/validate-{preset.name}{'-quick' if options.quick else ''}"
    jobs = options.jobs if options.jobs is not None else (os.cpu_count() or 1)
    if jobs < 1 or options.block < 0 or (options.runs is not None and options.runs < 1):
        raise ConfigError("--jobs and --runs must be at least 1 and --block at least 0")
    return Context(
        preset=preset,
        quick=bool(options.quick),
        seed=int(options.block),
        device=options.device,
        n_jobs=jobs,
        folder=Path(options.output or default),
        cache=Path(options.cache),
        n_runs=options.runs,
        say=lambda line: print(f"gpu_runs: {line}", file=sys.stderr, flush=True),  # noqa: T201
    )


# ---------------------------------------------------------------------- one study


def run_study(study: Study, context: Context) -> list[dict[str, Any]]:
    """Predict, write, measure, write, judge, write; return the claims as in the JSON contract.

    The manifest ``study.json`` is written last: without it the tables are not whole.
    """
    place = table_folder(context.folder, study.name)
    (place / "study.json").unlink(missing_ok=True)
    predicted = _checked(study.predict(context), PREDICTED, study=study.name)
    text = _csv(predicted)
    atomic_write(place / "predictions.csv", text)
    before = {"sha256": _sha(text), "study": study.name, "fingerprint": fingerprint(context)}
    atomic_write(place / "predictions.json", json.dumps(before, indent=1) + "\n")
    tables = dict(study.measure(context))
    tables["measured"] = _checked(tables["measured"], MEASURED, study=study.name)
    texts = {name: _csv(table) for name, table in tables.items()}
    for name, content in texts.items():
        atomic_write(place / f"{name}.csv", content)
    body = document(study.judge(context, predicted, tables))
    claims_text = json.dumps(body["claims"], indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    atomic_write(place / "claims.json", claims_text)
    about = {
        "study": study.name,
        "version": __version__,
        "preset": context.preset.name,
        "fingerprint": fingerprint(context),
        "quick": context.quick,
        "block": context.seed,
        "runs": context.n_runs,
        "predictions_sha256": before["sha256"],
        "n": {claim["id"]: claim["n"] for claim in body["claims"]},
        "tables": sorted(texts),
        "sha256": {name: _sha(content) for name, content in sorted(texts.items())},
    }
    atomic_write(place / "study.json", json.dumps(about, indent=1) + "\n")
    claims: list[dict[str, Any]] = body["claims"]
    return claims


def fingerprint(context: Context) -> str:
    """Return what tells two validations apart: preset, size and block of seeds."""
    words = (context.preset.fingerprint(), context.quick, context.seed, context.n_runs)
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def table_folder(folder: Path, name: str) -> Path:
    """Return where a study's tables lie."""
    return folder / "tables" / PAGE / name


def stored(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, pd.DataFrame]] | None:
    """Read a study's manifest and tables; None where they are not whole.

    Raises
    ------
    ConfigError
        A table was changed after it was measured.
    """
    place = table_folder(folder, name)
    if not (place / "study.json").is_file():
        return None
    about: dict[str, Any] = json.loads((place / "study.json").read_text(encoding="utf-8"))
    digests = about["sha256"] | {"predictions": about["predictions_sha256"]}
    tables = {}
    for table, digest in digests.items():
        text = (place / f"{table}.csv").read_text(encoding="utf-8")
        if _sha(text) != digest:
            raise ConfigError(f"{place / table}.csv: changed after it was measured; measure again")
        tables[table] = pd.read_csv(io.StringIO(text))
    return about, tables


def stored_claims(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return a study's claims, empty where it was not run."""
    path = table_folder(folder, name) / "claims.json"
    if not path.is_file():
        return []
    claims: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return claims


def draw(folder: Path) -> list[Path]:
    """Draw the page from whatever studies have their tables in ``folder``."""
    from dapolab.report import render
    from gpu_runs.validate.page import page

    parts = []
    for name in names():
        found = stored(folder, name)
        if found is not None:
            parts.append((find_study(name), *found, stored_claims(folder, name)))
    return list(render(page(parts), folder, stem=PAGE))


def _checked(table: pd.DataFrame, columns: Sequence[str], *, study: str) -> pd.DataFrame:
    if list(table.columns) != list(columns):
        raise ValueError(f"study {study}: columns {list(table.columns)}, expected {list(columns)}")
    return table


def _csv(table: pd.DataFrame) -> str:
    return table.to_csv(index=False, lineterminator="\n", float_format="%.8g")


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{claim['id']} {claim['verdict']}" for claim in claims) or "no claim"
