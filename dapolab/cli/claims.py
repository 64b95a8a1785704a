"""Every published claim with its verdict: holds, fails, undecided, not yet measured; needs torch.

No ID: all of them, in minutes. An ID may be a family: p, seed, dapo, dr-grpo, c, null, or one such
as p3. Seeds below the default's block were seen while tolerances were chosen.
"""

import argparse
from typing import TYPE_CHECKING

from dapolab import __version__
from dapolab.cli.output import (
    command_line,
    console,
    emit_json,
    json_text,
    output_folder,
    print_files,
    print_notes,
    progress,
    torch_needed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dapolab.claims import Outcome

TAKES_SETTINGS = False
DEFAULT_SEED = 2  # dapolab.claims.PUBLISHED_SEED; the parser is made before torch is loaded
USAGE = "[ID] [options]"
EXAMPLE = """\
examples:
  dapolab claims --quick
  dapolab claims c1
  dapolab claims -o reports
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("id", nargs="?", metavar="ID", help="a claim or a family of them")
    parser.add_argument(
        "--quick", action="store_true", help="fewer repetitions on other seeds: more undecided"
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="write claims.md, .html and .json there"
    )


def run(options: argparse.Namespace) -> None:
    """Measure the claims and print their verdicts."""
    with torch_needed("claims"):
        from dapolab.claims import CLAIMS, document, find_claims, run_claims
    folder = output_folder(options.output) if options.output else None
    chosen = CLAIMS if options.id is None else find_claims(CLAIMS, options.id)
    with progress("claims", len(chosen)) as tick:
        outcomes = run_claims(chosen, seed=options.seed, quick=options.quick, on_done=tick)
    body = document(outcomes)
    paths = []
    if folder is not None:
        from dapolab.claims.report import claims_document
        from dapolab.report import render
        from dapolab.store import atomic_write

        page = claims_document(outcomes, provenance=_provenance(options))
        paths = render(page, folder, stem="claims")
        whole = json_text("claims", seed=options.seed, body=body)
        paths.append(atomic_write(folder / "claims.json", whole))
    if options.json:
        emit_json("claims", seed=options.seed, body=body)
        return
    _print(outcomes)
    print_files(console(), "wrote", paths)


def _provenance(options: argparse.Namespace) -> dict[str, str]:
    return {
        "command": command_line(options),
        "version": __version__,
        "seed": str(options.seed),
        "run": "quick" if options.quick else "full",
    }


def _print(outcomes: "Sequence[Outcome]") -> None:
    from rich.table import Table
    from rich.text import Text

    from dapolab.claims import expected_wrong
    from dapolab.claims.report import count_verdicts, demand, measured_text, number

    out = console()
    many = len(outcomes) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    # of all claims together theory is left out: ids are whole, and the width of 80 suffices
    table.add_column("claim" if many else "number", overflow="fold", no_wrap=many)
    table.add_column("verdict", overflow="fold")
    table.add_column("sentence", overflow="fold")
    if not many:
        table.add_column("theory", overflow="fold")
    table.add_column("measured", overflow="fold")
    for outcome in outcomes:
        for found in (outcome.deciding,) if many else outcome.rows:
            cells = [
                outcome.claim.id if many else found.row.name,
                outcome.verdict if many else found.verdict,
                demand(found.row, found.says),
                *([] if many else [number(found.predicted)]),
                measured_text(found),
            ]
            table.add_row(*map(Text, cells))
    if not many:
        claim = outcomes[0].claim
        out.print(Text(f"{claim.id} ({claim.kind}): {outcomes[0].verdict}", style="bold"))
        out.print(Text(f"“{claim.statement}”\n"))
    out.print(table)
    if many:
        out.print(Text(f"\n{count_verdicts(outcomes)}"))
        chance = expected_wrong(outcomes)
        out.print(Text(f"wrong by chance: {chance:.2f} verdicts on average", style="dim"))
        out.print(Text("numbers: the row that decides; dapolab claims ID shows all", style="dim"))
        return
    print_notes(out, "instead", [claim.correction] if claim.correction else [])
    print_notes(out, "how to read this", [claim.how_to_read, f"source: {claim.source}"])
