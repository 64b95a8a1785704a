"""What a loss, a clip or a filter does to a toy policy, over many seeds; needs torch.

No name: the environments. A mode is words joined by +, each a kind of aggregation, clip or
advantage, a geometry (plain, natural, adam), a rule (overlong, mask-truncated, exclude-truncated,
filter-raw, filter-shaped, tis, icepop, bypass) or key=value, such as clip.high=0.5 or n_epochs=4.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from dapolab.cli.parsing import whole_number
from dapolab.errors import ConfigError

if TYPE_CHECKING:
    from dapolab.bandit import Mode, Study
    from dapolab.report.document import Document
    from dapolab.stats import Estimate

TAKES_SETTINGS = False
USAGE = "[NAME] [options]"
EXAMPLE = """\
examples:
  dapolab bandit length_classes -o reports
  dapolab bandit many_arms --set case=random \\
      --modes clip.high=0.2,clip.high=0.28
  dapolab bandit three_paths --seeds 500
"""
THREE_PATHS = "three_paths"
_THREE_PATHS_SUMMARY = (
    "reward shaping × std × aggregation: main effects and interactions on lengths"
)
_THREE_PATHS_STEPS = 100  # later all answers are right in most corners, and effects fade
_THREE_PATHS_READ = (
    "shaping: an overlong penalty on the long answers; std: advantages over the group's std; "
    "aggregation: seq-mean-token-mean in place of token-mean. Each effect is the change of a "
    "length with the path less that without it.",
    "std changes the size of steps more than their direction: what it adds to a length is mostly "
    "that training goes further.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="an environment, or three_paths")
    parser.add_argument(
        "--modes",
        metavar="A,B",
        help="modes, or aggregations, clips, advantages for all of a kind",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the environment; a list as 0.1/0.5/0.9",
    )
    parser.add_argument(
        "--seeds", type=whole_number(least=2), default=200, metavar="N", help="default 200"
    )
    parser.add_argument("--steps", type=whole_number(least=1), metavar="N", help="rollouts a seed")
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="write NAME.md, .html, .json, .csv and figures there"
    )


def run(options: argparse.Namespace) -> None:
    """Train the modes and print what became of them."""
    with torch_needed("bandit"):
        import dapolab.bandit  # noqa: F401
    folder = output_folder(options.output) if options.output else None
    if options.name is None:
        _list(options)
    elif options.name == THREE_PATHS:
        _run_three_paths(options, folder)
    else:
        _run_study(options, folder)


def _list(options: argparse.Namespace) -> None:
    from dapolab.bandit import STUDIES

    if options.json:
        raise ConfigError("--json needs a NAME: " + ", ".join([*STUDIES, THREE_PATHS]))
    out = console()
    for study in STUDIES.values():
        out.print(f"{study.name:<18} {study.summary}", markup=False)
        settings = ", ".join(f"{name}={_shown(value)}" for name, value in study.parameters.items())
        out.print(f"{'':<18} --set {settings}", markup=False, style="dim")
    out.print(f"{THREE_PATHS:<18} {_THREE_PATHS_SUMMARY}", markup=False)


def _run_study(options: argparse.Namespace, folder: Path | None) -> None:
    from dapolab.bandit import curve_table, find_study, train_together

    study = find_study(options.name)
    bandit = study.bandit(**dict(_settings(options.set, study)))
    modes = _modes(options, study)
    total = sum(mode.training.n_steps for mode in modes)
    with progress(f"bandit {study.name}", total) as tick:
        runs, found = train_together(
            bandit, modes, seeds=range(options.seeds), seed=options.seed, on_step=tick
        )
    body = {"environment": study.name, "arms": _documents(found)}
    table = curve_table(runs)
    paths: list[Path] = []
    if folder is not None:
        from dapolab.report.bandit_report import bandit_document
        from dapolab.store import atomic_write

        page = bandit_document(
            title=f"Bandit: {study.name}",
            lead=f"{study.summary[0].upper()}{study.summary[1:]}.",
            curves=table,
            estimates=found,
            how_to_read=study.how_to_read,
            provenance=_provenance(options, modes[0].training.n_steps),
        )
        paths = _write(page, body, folder, options)
        paths.append(atomic_write(folder / f"{study.name}.csv", table.to_csv(index=False)))
    if options.json:
        emit_json("bandit", seed=options.seed, body=body)
        return
    from dapolab.report.bandit_report import FIRST, FIRST_READ, shown_metrics

    out = console()
    out.print(f"{study.name}: {study.summary}", markup=False)
    start = {name: float(values[0, 0]) for name, values in runs[0].values.items()}
    shown = shown_metrics(found, table)
    read = (*study.how_to_read, *([FIRST_READ] if any(FIRST in name for name in shown) else []))
    _print(found, shown, read, options, paths, start=start)


def _run_three_paths(options: argparse.Namespace, folder: Path | None) -> None:
    from dapolab.bandit import find_study, three_paths
    from dapolab.scenario import OverlongPenalty

    study = find_study("length_classes")
    if options.modes:
        raise ConfigError("three_paths has its own eight modes: leave --modes out")
    bandit = study.bandit(**dict(_settings(options.set, study)))
    base = _with_steps(study.base, options.steps or _THREE_PATHS_STEPS)
    with progress(THREE_PATHS, 8 * base.training.n_steps) as tick:
        found = three_paths(
            bandit,
            base,
            OverlongPenalty(**study.penalty),
            seeds=range(options.seeds),
            seed=options.seed,
            on_step=tick,
        )
    body = {"environment": THREE_PATHS, "arms": _documents(found.effects)}
    paths: list[Path] = []
    if folder is not None:
        from dapolab.report.bandit_report import effects_document

        page = effects_document(
            title="Three entrances of length bias",
            lead=f"Effects of {_THREE_PATHS_SUMMARY.replace(': ', ', ')}, in tokens.",
            effects=found.effects,
            how_to_read=_THREE_PATHS_READ,
            provenance=_provenance(options, base.training.n_steps),
        )
        paths = _write(page, body, folder, options)
    if options.json:
        emit_json("bandit", seed=options.seed, body=body)
        return
    console().print(f"{THREE_PATHS}: {_THREE_PATHS_SUMMARY}", markup=False)
    metrics = list(next(iter(found.effects.values())))
    _print(found.effects, metrics, _THREE_PATHS_READ, options, paths, rows="effect")


# ---------------------------------------------------------------------------- words


def _modes(options: argparse.Namespace, study: "Study") -> "list[Mode]":
    from dapolab.bandit.modes import ADVANTAGES, AGGREGATIONS, CLIPS, parse_mode

    families = {"aggregations": AGGREGATIONS, "clips": CLIPS, "advantages": ADVANTAGES}
    families["clips"] = tuple("no-clip" if kind == "none" else kind for kind in CLIPS)
    words = [word.strip() for word in (options.modes or ",".join(study.modes)).split(",")]
    texts = [text for word in words for text in families.get(word, (word,))]
    if len(set(texts)) < len(texts):
        raise ConfigError("--modes names one mode twice; leave one out")
    modes = [parse_mode(text, base=study.base, penalty=study.penalty) for text in texts]
    return [_with_steps(mode, options.steps) for mode in modes]


def _with_steps(mode: "Mode", n_steps: int | None) -> "Mode":
    if n_steps is None:
        return mode
    training = mode.training.model_copy(update={"n_steps": n_steps})
    return mode.model_copy(update={"training": training})


def _settings(words: Sequence[str], study: "Study") -> Iterator[tuple[str, Any]]:
    """Read KEY=VALUE as the type of the setting's default."""
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word}: write KEY=VALUE")
        default = study.parameters.get(name, "")
        try:
            yield name, _as_type(text, default)
        except ValueError:
            raise ConfigError(
                f"--set {word}: expected something like {name}={_shown(default)}"
            ) from None


def _as_type(text: str, default: Any) -> Any:
    if isinstance(default, tuple):
        return tuple(float(part) for part in text.split("/"))
    if isinstance(default, (int, float)):
        return type(default)(text)
    return text


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(f"{part:g}" for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------------- results


def _documents(found: "Mapping[str, Mapping[str, Estimate]]") -> dict[str, Any]:
    return {
        mode: {metric: estimate.to_json() for metric, estimate in metrics.items()}
        for mode, metrics in found.items()
    }


def _provenance(options: argparse.Namespace, n_steps: int) -> dict[str, str]:
    return {
        "command": command_line(options),
        "version": __version__,
        "seed": str(options.seed),
        "seeds × steps": f"{options.seeds} × {n_steps}",
    }


def _write(
    page: "Document", body: dict[str, Any], folder: Path, options: argparse.Namespace
) -> list[Path]:
    from dapolab.report import render
    from dapolab.store import atomic_write

    files = render(page, folder, stem=options.name)
    whole = json_text("bandit", seed=options.seed, body=body)
    return [*files[:2], atomic_write(folder / f"{options.name}.json", whole)]


def _print(
    found: "Mapping[str, Mapping[str, Estimate]]",
    metrics: Sequence[str],
    how_to_read: Sequence[str],
    options: argparse.Namespace,
    paths: Sequence[Path],
    *,
    start: Mapping[str, float] | None = None,
    rows: str = "mode",
) -> None:
    from dapolab.report.bandit_report import estimate_tables, head
    from dapolab.report.formats import number

    out = console()
    began = [f"{head(name)} {number((start or {}).get(name, math.nan))}" for name in metrics]
    began = [text for text in began if "nan" not in text]
    if began:
        out.print(f"at the start: {'; '.join(began)}", markup=False, style="dim")
    for table in estimate_tables(found, metrics, width=out.width, rows=rows):
        out.print(table)
    out.print(f"means over {options.seeds} seeds, 99 % intervals", style="dim")
    print_notes(out, "how to read this", how_to_read)
    if not paths:
        out.print("\n-o DIR writes curves and report", style="dim")
    print_files(out, "wrote", paths)
