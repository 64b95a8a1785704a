"""What a framework's loss really is, by version, and where two of them differ.

No name: all recipes. One: its formula, defaults, sources and how much each token counts. Two: where
they differ, setting by setting and in numbers.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dapolab.cli.output import console, emit_json, number, print_lines, print_notes
from dapolab.errors import ConfigError
from dapolab.recipes import ALL, Differences, Recipe, differences, find, formula, weights
from dapolab.recipes.example import GROUPS, LENGTHS

TAKES_SETTINGS = False
USAGE = "[NAME [NAME]] [options]"
EXAMPLE = """\
examples:
  dapolab recipe
  dapolab recipe verl-0.9.1 --lengths 10,100,1000
  dapolab recipe paper dapo-32b-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="a recipe, or two to compare")
    parser.add_argument(
        "--lengths",
        type=_whole_numbers,
        metavar="N,N,…",
        help="tokens of each answer of an update, default 10,100,1000",
    )
    parser.add_argument(
        "--groups",
        type=_whole_numbers,
        metavar="N,N,…",
        help="prompt of each answer; default: 0,0,1 for three answers, else all of one prompt",
    )


def run(options: argparse.Namespace) -> None:
    """Print the list, one recipe or the differences of two."""
    if len(options.names) > 2:
        raise ConfigError("name one recipe, or two to compare")
    lengths = options.lengths or LENGTHS
    groups = options.groups or (GROUPS if len(lengths) == len(GROUPS) else (0,) * len(lengths))
    recipes = [find(name) for name in options.names]
    found = differences(*recipes, lengths=lengths, groups=groups) if len(recipes) == 2 else None
    if options.json:
        shown = recipes or ALL.values()
        body = {
            "recipes": [_document(recipe, lengths, groups) for recipe in shown],
            "differences": [] if found is None else list(_difference_rows(found)),
        }
        emit_json("recipe", seed=None, body=body)
    elif found is not None:
        _print_differences(recipes[0], recipes[1], found, lengths=lengths)
    elif recipes:
        _print_recipe(recipes[0], _weight_rows(recipes[0], lengths, groups))
    else:
        _print_list(ALL.values())


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers of at least 0, separated by commas (an argparse type)."""
    words = [word.strip().replace("_", "") for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise argparse.ArgumentTypeError(
            f"expected whole numbers of at least 0, like 10,100,1000, got {text!r}"
        )
    return tuple(int(word) for word in words)


# ---------------------------------------------------------------------------- JSON


def _document(recipe: Recipe, lengths: Sequence[int], groups: Sequence[int]) -> dict[str, Any]:
    collector = recipe.collector
    return {
        "id": recipe.id,
        "framework": recipe.framework,
        "version": recipe.version,
        "summary": recipe.summary,
        "evidence": asdict(recipe.evidence),
        "formula": formula(recipe.objective),
        "defaults": {
            "objective": recipe.objective.model_dump(mode="json"),
            "collector": None if collector is None else collector.model_dump(mode="json"),
            "batch": asdict(recipe.batch)
            | {"updates_per_rollout": recipe.batch.updates_per_rollout},
            "when_no_signal": recipe.when_no_signal,
        },
        "weights": [
            {"n_tokens": n, "group": group, "per_token": w, "per_token_micro_1": alone}
            for n, group, w, alone in _weight_rows(recipe, lengths, groups)
        ],
        "source": list(recipe.source),
        "notes": list(recipe.notes),
    }


def _weight_rows(
    recipe: Recipe, lengths: Sequence[int], groups: Sequence[int]
) -> list[tuple[int, int, float, float]]:
    """Return length, prompt, weight of a token, and the same with one answer a micro-batch."""
    whole = weights(recipe.objective, lengths, groups=groups)
    alone = weights(recipe.objective, lengths, groups=groups, micro_rows=1)
    return list(zip(lengths, groups, whole, alone, strict=True))


def _difference_rows(found: Differences) -> Iterator[dict[str, Any]]:
    for setting in found.settings:
        yield {"kind": "setting"} | asdict(setting)
    for figure in found.numbers:
        yield {"kind": "number"} | asdict(figure) | {"ratio": figure.ratio}


# ---------------------------------------------------------------------------- text


def _print_list(recipes: Iterable[Recipe]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    recipes = list(recipes)
    for framework in dict.fromkeys(recipe.framework for recipe in recipes):
        table.add_row(Text(framework, style="bold"))
        for recipe in recipes:
            if recipe.framework == framework:
                told = recipe.version in recipe.id
                line = recipe.summary if told else f"{recipe.summary} [{recipe.version}]"
                table.add_row(Text(f"  {recipe.id}"), recipe.evidence.how, Text(line))
    out.print(table)
    print_lines(
        out,
        (
            "",
            "judged: loss and gradient are compared with the framework itself; read: its source "
            "or paper was read.",
            "dapolab recipe NAME tells more; dapolab recipe NAME NAME compares two.",
        ),
    )


def _print_recipe(recipe: Recipe, rows: Sequence[tuple[int, int, float, float]]) -> None:
    from rich.text import Text

    from dapolab.recipes.differences import settings

    out = console()
    _print_head(recipe)
    out.print(Text("\nformula (r: ratio, A: advantage, L: minimised)", style="bold"))
    for line in formula(recipe.objective).splitlines():
        _print_indented(line)
    out.print(Text("\none rollout step", style="bold"))
    for line in _batch_lines(recipe):
        _print_indented(line)
    out.print(Text("\nweight of one token, at ratio 1 and advantage 1", style="bold"))
    out.print(_weight_table(rows))
    out.print(Text("\ndefaults", style="bold"))
    out.print(_pairs(settings(recipe).items()))
    print_notes(out, "sources", recipe.source)
    print_notes(out, "notes", recipe.notes)


def _print_head(recipe: Recipe) -> None:
    from rich.text import Text

    out = console()
    out.print(Text(recipe.id, style="bold"))
    _print_indented(f"{recipe.framework} {recipe.version}: {recipe.summary}")
    _print_indented(f"evidence: {recipe.evidence}")


def _print_indented(line: str, *, by: int = 2) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console().print(Padding(Text(line), (0, 0, 0, by)))


def _batch_lines(recipe: Recipe) -> Iterator[str]:
    batch = recipe.batch
    if batch.prompts is not None and batch.group_size is not None:
        yield f"{batch.prompts} prompts × {batch.group_size} answers"
    n_updates = batch.updates_per_rollout
    if n_updates is not None:
        free = n_updates - 1 if batch.denominator == "old" else n_updates
        yield f"{n_updates} update{'s' * (n_updates > 1)}; the clip can act in {free}"
    if batch.denominator == "sampler":
        yield "the ratio is taken against the sampler: a clip also sees its mismatch"
    if batch.note:
        yield batch.note
    consequence = {
        "train": "an update with gradient 0",
        "skip": "no update",
        "error": "an error",
        "resample": "sampled again, without limit",
    }
    yield f"no group with a signal: {consequence[recipe.when_no_signal]}"


def _weight_table(rows: Sequence[tuple[int, int, float, float]]) -> Any:
    from rich.table import Table

    split = any(abs(whole - alone) > 1e-12 * whole for _, _, whole, alone in rows)
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    heads = ["  tokens", "prompt", "a token", "the answer", "share"]
    for head in [*heads, "a token, micro-batches of 1"] if split else heads:
        table.add_column(head, justify="right", overflow="fold")
    total = sum(n * whole for n, _, whole, _ in rows)
    for n, group, whole, alone in rows:
        share = f"{n * whole / total:.1%}" if total else "–"
        cells = [f"{n:,}", str(group), number(whole), number(n * whole), share]
        table.add_row(*cells, *([number(alone)] if split else []))
    return table


def _print_differences(a: Recipe, b: Recipe, found: Differences, *, lengths: Sequence[int]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    for recipe in (a, b):
        _print_head(recipe)
        for line in formula(recipe.objective).splitlines():
            _print_indented(line, by=4)
    if not found.settings and not found.numbers:
        print_lines(out, ("", "They compute the same."))
        return
    out.print(Text("\nsettings", style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in ("", a.id, b.id):
        table.add_column(head, overflow="fold")
    for setting in found.settings:
        table.add_row(*map(Text, (f"  {setting.name}", setting.a, setting.b)))
    out.print(table)
    if not found.numbers:
        print_lines(out, ("", "In numbers on the example they do not differ."))
        return
    shown = ", ".join(f"{n:,}" for n in lengths)
    out.print(Text(f"\nin numbers: an update of answers of {shown} tokens", style="bold"))
    figures = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    figures.add_column("")
    for head in (a.id, b.id, "ratio"):
        figures.add_column(head, justify="right", overflow="fold")
    for figure in found.numbers:
        cells = map(_figure, (figure.a, figure.b, figure.ratio))
        figures.add_row(Text(f"  {figure.name}"), *cells)
    out.print(figures)
    print_lines(out, ("", *_explained(figure.name for figure in found.numbers)))


_MEANINGS = {
    ", alone": "alone: each answer is a micro-batch of its own",
    "one masked": "one masked: one more answer, fully masked",
    "2 of 8 steps": "2 of 8 steps: an update takes 2 of the generation batch's 8 micro-steps",
    "gradient factor": "gradient factor: of one token's policy gradient; 1 is plain, 0 is clipped "
    "(old probability 0.5)",
    "1 right of 8": "1 right of 8: rewards +1 and −1",
}


def _explained(names: Iterable[str]) -> list[str]:
    """Return what the words in these names of numbers mean."""
    shown = list(names)
    return [text for word, text in _MEANINGS.items() if any(word in name for name in shown)]


def _figure(value: float | None) -> str:
    return "–" if value is None else number(value)


def _pairs(rows: Iterable[tuple[str, str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(f"  {name}"), Text(value))
    return table
