"""Draw the pages of the lab from their stored tables, or measure them again.

Without --measure nothing is computed: the tables under DIR/tables are drawn, and equal tables give
equal bytes. STUDY may be all, index, or readme: the claims and numbers in README.md and
README.zh.md of this folder, between their markers.
"""

import argparse
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from dapolab.cli.output import (
    console,
    emit_json,
    output_folder,
    print_files,
    progress,
    torch_needed,
)
from dapolab.errors import ConfigError

if TYPE_CHECKING:
    from dapolab.studies import Study

TAKES_SETTINGS = False
USAGE = "[STUDY] [options]"
EXAMPLE = """\
examples:
  dapolab report                 # which there are
  dapolab report all             # draw them again
  dapolab report clip --measure  # some minutes
  dapolab report readme          # numbers of the README
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("study", nargs="?", metavar="STUDY", help="a page, all, index, readme")
    parser.add_argument("-o", "--output", default="reports", metavar="DIR", help="default: reports")
    parser.add_argument("--measure", action="store_true", help="measure the tables first")
    parser.add_argument("--quick", action="store_true", help="with --measure: fewer seeds")


def run(options: argparse.Namespace) -> None:
    """Draw, and measure before where it was asked for."""
    from dapolab.studies import STUDIES

    if options.study is None:
        _list(options)
        return
    folder = output_folder(options.output)
    if options.study == "readme":
        _fill_readme(folder, options)
        return
    if options.study in ("all", "index"):
        names = list(STUDIES) if options.study == "all" else []
    elif options.study in STUDIES:
        names = [options.study]
    else:
        known = [*STUDIES, "all", "index", "readme"]
        near = get_close_matches(options.study, known, n=1, cutoff=0.0)[0]
        raise ConfigError(f"unknown study {options.study!r}; nearest: {near}")
    paths = list(_draw([STUDIES[name] for name in names], folder, options))
    paths.append(_draw_index(folder))
    if options.json:
        emit_json("report", seed=options.seed, body={"pages": [path.name for path in paths]})
        return
    print_files(console(), "wrote", paths)


def _fill_readme(reports: Path, options: argparse.Namespace) -> None:
    from dapolab.studies.readme import update

    paths = update(Path(), reports=reports)
    if options.json:
        emit_json("report", seed=options.seed, body={"pages": [path.name for path in paths]})
        return
    print_files(console(), "wrote", paths)


def _list(options: argparse.Namespace) -> None:
    from dapolab.studies import STUDIES

    if options.json:
        studies = {name: study.question for name, study in STUDIES.items()}
        emit_json("report", seed=options.seed, body={"studies": studies})
        return
    out = console()
    for study in STUDIES.values():
        out.print(f"{study.name:<17} {study.question}", markup=False)


def _draw(
    studies: "Iterable[Study]", folder: Path, options: argparse.Namespace
) -> "Iterable[Path]":
    from dapolab.report import render
    from dapolab.studies import read, save

    for study in studies:
        if options.measure:
            if study.needs_torch:
                with torch_needed(f"measuring {study.name}"):
                    import dapolab.bandit  # noqa: F401
            with progress(f"measuring {study.name}", study.n_parts) as tick:
                tables = study.measure(options.seed, options.quick, tick)
            stored = save(study, folder, tables, seed=options.seed, quick=options.quick)
        else:
            stored = read(study, folder)
        page = study.document(stored.tables, stored.provenance(study))
        yield render(page, folder, stem=study.name)[0]


def _draw_index(folder: Path) -> Path:
    from dapolab.report import render
    from dapolab.studies import index_document

    return render(index_document(folder), folder, stem="index")[0]
