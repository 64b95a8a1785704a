"""Every prediction that can be checked against a real system, with its error: reports/fidelity.

Needs the real data (traces, logs, records) beside the checkout; parts whose data are absent are
left out and named.
"""

import argparse
from pathlib import Path

from dapolab import __version__
from dapolab.cli.output import command_line, console, emit_json, output_folder, print_files
from dapolab.cli.output import progress as progress_bar
from dapolab.errors import ConfigError

TAKES_SETTINGS = False
USAGE = "--data DIR [options]"
_DRAWN = ("replay_points", "wave_curves")
EXAMPLE = """\
example:
  dapolab fidelity --data ../shared/data -o reports
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--data", metavar="DIR", help="folder of the real data")
    parser.add_argument("-o", "--output", metavar="DIR", help="write fidelity.md, .html, .json")
    parser.add_argument(
        "--fit-baselines",
        action="store_true",
        help="fit the free parameters of published results to their baseline rows, write them "
        "into the package, and stop",
    )


def run(options: argparse.Namespace) -> None:
    """Run the study, or fit the baselines."""
    if options.fit_baselines:
        from dapolab.fidelity.published import BASELINES, baselines_text, systems
        from dapolab.store import atomic_write

        print_files(console(), "wrote", [atomic_write(BASELINES, baselines_text(systems()))])
        return
    if options.data is None or not Path(options.data).is_dir():
        raise ConfigError("--data DIR: the folder of the real data is needed")
    folder = output_folder(options.output) if options.output else None
    from dapolab.fidelity.study import PARTS, run_study
    from dapolab.report.fidelity_report import fidelity_document

    with progress_bar("real systems", len(PARTS)) as tick:
        study = run_study(Path(options.data), seed=options.seed, on_done=tick)
    document = fidelity_document(
        study.tables,
        missing=study.missing,
        provenance={
            "command": command_line(options),
            "version": __version__,
            "seed": str(options.seed),
        },
    )
    body: dict[str, object] = {
        # what is only drawn, a row a request, stays in the figures
        "tables": {n: _rows(t) for n, t in study.tables.items() if n not in _DRAWN},
        "missing": study.missing,
    }
    paths = _write(document, body, folder, options) if folder else []
    if options.json:
        emit_json("fidelity", seed=options.seed, body=body)
        return
    out = console()
    out.print(document.lead.replace("**", ""), markup=False)
    print_files(out, "wrote", paths)


def _write(
    document: object, body: dict[str, object], folder: Path, options: argparse.Namespace
) -> list[Path]:
    from dapolab.cli.output import json_text
    from dapolab.report import Document, render
    from dapolab.store import atomic_write

    assert isinstance(document, Document)
    pages = render(document, folder, stem="fidelity")[:2]
    text = json_text("fidelity", seed=options.seed, body=body)
    return [*pages, atomic_write(folder / "fidelity.json", text)]


def _rows(table: object) -> list[dict[str, object]]:
    """Return a table's rows for JSON; a missing cell is null, floats keep six digits."""
    import json

    import pandas as pd

    assert isinstance(table, pd.DataFrame)
    text = table.to_json(orient="records", double_precision=10)
    rows: list[dict[str, object]] = json.loads(text)
    for row in rows:
        for key, value in row.items():
            if isinstance(value, float):
                row[key] = float(f"{value:.6g}")
    return rows
