"""How a page on toy policies is measured and drawn: a part is an environment of a bandit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from dapolab.report import Document, FigureSpec, Section
from dapolab.report.bandit_report import FIRST, bandit_document, effects_document
from dapolab.report.document import Block
from dapolab.stats import Estimate
from dapolab.studies.lead import estimate_of, filled
from dapolab.studies.progress import equal_progress
from dapolab.studies.study import Study, Tables, Tick

if TYPE_CHECKING:
    from dapolab.bandit import Mode

_ESTIMATE = ("mean", "low", "high", "n", "unit")
_THREE_PATHS = "three_paths"
_THREE_PATHS_READ = (
    "std changes the size of steps more than their direction: what it adds to a length is mostly "
    "that training goes further"
)


@dataclass(frozen=True)
class Part:
    """One environment of a page.

    Attributes
    ----------
    environment : a name of ``dapolab bandit``.
    title : heading of its section.
    asks : one or two sentences of Markdown.
    modes : its modes; empty means the environment's own.
    settings : of the environment.
    """

    environment: str
    title: str
    asks: str
    modes: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """Name of its tables: the environment, and the value of the setting that is varied."""
        values = (str(value) for value in (self.settings or {}).values())
        return "-".join([self.environment, *values]).replace("_", "-")


def bandit_study(
    name: str, *, title: str, question: str, lead: str, parts: Sequence[Part], n_seeds: int
) -> Study:
    """Return the study that trains each part's modes over ``n_seeds`` seeds (quick: a tenth).

    ``lead`` takes its numbers from the tables (``dapolab.studies.lead``).
    """

    def measure(seed: int, quick: bool, tick: Tick) -> Tables:
        seeds = range(max(n_seeds // 10, 20) if quick else n_seeds)
        tables: dict[str, pd.DataFrame] = {}
        for part in parts:
            tables |= _measure(part, seed=seed, seeds=seeds)
            tick()
        return tables

    def document(tables: Tables, provenance: Mapping[str, str]) -> Document:
        sections: list[Section] = []
        for part in parts:
            sections += _sections(part, tables)
        return Document(
            title=title,
            lead=filled(lead, tables),
            sections=tuple(sections),
            notes=(
                "a bandit tells direction and size of a push on a tiny policy: no wall-clock, no "
                "big model; what of it a small transformer shows is in predicted_vs_measured",
            ),
            provenance=dict(provenance) | _seeds(tables),
        )

    return Study(name, question, len(parts), measure, document, needs_torch=True)


def _measure(part: Part, *, seed: int, seeds: range) -> dict[str, pd.DataFrame]:
    if part.environment == _THREE_PATHS:
        return {
            f"{part.name}.effects": _effects(seed=seed, seeds=seeds),
            f"{part.name}.reads": pd.DataFrame({"text": [_THREE_PATHS_READ]}),
        }
    from dapolab.bandit import curve_table, find_study, parse_mode, train_together

    study = find_study(part.environment)
    bandit = study.bandit(**dict(part.settings or {}))
    modes = [
        parse_mode(word, base=study.base, penalty=study.penalty)
        for word in part.modes or study.modes
    ]
    runs, found = train_together(bandit, modes, seeds=seeds, seed=seed)
    return {
        f"{part.name}.curves": _thinned(curve_table(runs)),
        f"{part.name}.estimates": estimate_table(found),
        f"{part.name}.reads": pd.DataFrame({"text": list(study.how_to_read)}),
    }


def _effects(*, seed: int, seeds: range) -> pd.DataFrame:
    from dapolab.bandit import find_study, three_paths
    from dapolab.scenario import OverlongPenalty

    study = find_study("length_classes")
    base: Mode = study.base
    training = base.training.model_copy(update={"n_steps": 200})
    found = three_paths(
        study.bandit(),
        base.model_copy(update={"training": training}),
        OverlongPenalty(**study.penalty),
        seeds=seeds,
        seed=seed,
    )
    return estimate_table(found.effects)


def _thinned(curves: pd.DataFrame, *, n_points: int = 60) -> pd.DataFrame:
    """Return at most ``n_points`` points a curve, its ends kept: as many as a figure shows."""
    steps = sorted(curves["step"].unique())
    stride = max(1, len(steps) // n_points)
    kept = {*steps[::stride], steps[-1]}
    return curves[curves["step"].isin(kept)].reset_index(drop=True)


def estimate_table(found: Mapping[str, Mapping[str, Estimate]]) -> pd.DataFrame:
    """Return one row an estimate: row, metric, mean, low, high, n, unit."""
    rows = [
        {"row": row, "metric": metric} | {name: getattr(e, name) for name in _ESTIMATE}
        for row, metrics in found.items()
        for metric, e in metrics.items()
    ]
    return pd.DataFrame(rows, columns=["row", "metric", *_ESTIMATE])


def estimates_from(table: pd.DataFrame) -> dict[str, dict[str, Estimate]]:
    """Return row -> metric -> Estimate of a stored table."""
    found: dict[str, dict[str, Estimate]] = {}
    for cell in table.to_dict("records"):
        found.setdefault(str(cell["row"]), {})[str(cell["metric"])] = estimate_of(cell)
    return found


def _seeds(tables: Tables) -> dict[str, str]:
    """Return of how many seeds the trainings are, and the first updates where those are sampled."""
    rows = pd.concat([table for table in tables.values() if {"metric", "n"} <= set(table.columns)])
    first = rows["metric"].str.startswith((FIRST, "gradient/"))
    sampled = int(rows.loc[first, "n"].max()) if first.any() else 1
    own = {"seeds": str(int(rows.loc[~first, "n"].max()))}
    return own | ({"batches of a first update": f"{sampled:,}"} if sampled > 1 else {})


def _sections(part: Part, tables: Tables) -> list[Section]:
    """Return the part's section and those below it; figures carry the part's name."""
    if part.environment == _THREE_PATHS:
        page = effects_document(
            title="-",
            lead="-",
            effects=estimates_from(tables[f"{part.name}.effects"]),
            how_to_read=(),
        )
    else:
        curves = tables[f"{part.name}.curves"]
        page = bandit_document(
            title="-",
            lead="-",
            curves=curves,
            estimates=estimates_from(tables[f"{part.name}.estimates"]),
            how_to_read=(),
        )
        if compared := equal_progress(curves):
            page = replace(page, sections=(*page.sections, compared))
    reads = "\n".join(f"- {text}" for text in tables[f"{part.name}.reads"]["text"])
    below = [replace(section, level=3, blocks=_renamed(section, part)) for section in page.sections]
    return [Section(part.title, (part.asks, reads)), *(s for s in below if s.blocks)]


def _renamed(section: Section, part: Part) -> tuple[Block, ...]:
    return tuple(
        replace(block, name=f"{part.name}-{block.name}") if isinstance(block, FigureSpec) else block
        for block in section.blocks
    )
