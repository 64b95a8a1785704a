"""The report of a fitted workload: observed beside model, and what the data cannot say."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from dapolab.report import formats
from dapolab.report.document import Block, Document, FigureSpec, Section, Table
from dapolab.report.fit_figures import curves, differences, histogram
from dapolab.report.style import MODEL, OBSERVED
from dapolab.stats import Estimate


def fit_document(
    *,
    title: str,
    lead: str,
    figures: Mapping[str, pd.DataFrame],
    parameters: Mapping[str, Estimate] | None = None,
    goodness: pd.DataFrame | None = None,
    not_identified: Sequence[tuple[str, str]] = (),
    loop_bounds: Mapping[str, Mapping[str, float]] | None = None,
    notes: Sequence[str] = (),
    provenance: Mapping[str, str] | None = None,
) -> Document:
    """Return the report of a fit.

    Parameters
    ----------
    lead : the verdict in a few sentences, Markdown.
    figures : tables of observed and model, those that there are:
        ``length_cdf`` (tokens, observed, model), ``composition`` (n_correct, observed, model, and
        low, high where known), ``within_sd`` (sd, observed, model).
    parameters : name -> Estimate.
    goodness : one row a held-out check: quantity, unit, observed, predicted, low, high (interval of
        observed - predicted), tolerance, verdict.
    not_identified : (name, reason) of what the data cannot determine.
    loop_bounds : "none" and "all" -> parameter -> value: the fit if no truncated answer is a loop,
        and if all are.
    """
    sections = [
        Section("Does it fit", _goodness_blocks(goodness)),
        Section("Response lengths", _drawn(figures, "length_cdf", _cdf_figure)),
        Section("Difficulty", _drawn(figures, "composition", _composition_figure)),
        Section("Alike within a prompt", _drawn(figures, "within_sd", _spread_figure)),
        Section("Parameters", _parameter_blocks(parameters or {}, loop_bounds or {})),
        Section("What these data cannot say", _unknown_blocks(not_identified)),
    ]
    return Document(
        title=title,
        lead=lead,
        sections=tuple(section for section in sections if section.blocks),
        notes=tuple(notes),
        provenance=provenance or {},
    )


def _drawn(
    figures: Mapping[str, pd.DataFrame], name: str, draw: Callable[[pd.DataFrame], FigureSpec]
) -> tuple[Block, ...]:
    table = figures.get(name)
    return () if table is None or len(table) == 0 else (draw(table),)


def _largest_gap(table: pd.DataFrame) -> str:
    x, observed, model = (table[column].to_numpy(float) for column in table.columns[:3])
    gap = abs(model - observed)
    at = int(gap.argmax())
    return f"largest gap {gap[at]:.3f} at {formats.number(float(x[at]))}"


def _cdf_figure(table: pd.DataFrame) -> FigureSpec:
    tokens = table["tokens"].to_numpy(float)
    figure = curves(
        tokens,
        {
            "observed": (table["observed"].to_numpy(float), OBSERVED, "-"),
            "model": (table["model"].to_numpy(float), MODEL, "--"),
        },
        x_label="tokens in a response",
        y_label="share of responses no longer",
        x_log=bool(tokens.min() > 0 and tokens.max() > 4 * tokens.min()),
    )
    return FigureSpec(
        name="lengths",
        figure=figure,
        title="Response lengths, observed and model",
        alt=f"Cumulative shares of response length in tokens: {_largest_gap(table)}.",
        how_to_read=(
            "The two curves should lie on each other, above all at the top: the longest answers "
            "decide how long a wave lasts. A jump at the right end is the cap, where truncated "
            "responses pile up."
        ),
    )


def _composition_figure(table: pd.DataFrame) -> FigureSpec:
    observed, model = (table[name].to_numpy(float) for name in ("observed", "model"))
    has_interval = {"low", "high"} <= set(table.columns)
    figure = histogram(
        table["n_correct"].tolist(),
        observed=observed,
        model=model,
        low=table["low"].to_numpy(float) if has_interval else None,
        high=table["high"].to_numpy(float) if has_interval else None,
        x_label="right answers in a group",
        y_label="share of groups",
    )
    seen, fitted = (float(shares[0] + shares[-1]) for shares in (observed, model))
    kept = seen == 0.0 and fitted == 0.0
    ends = (
        "The dump holds kept groups alone, so both end bars are missing; how many there were is "
        "not in these data. "
        if kept
        else "The two end bars are groups that a mixed-group filter drops: their sum sets how many "
        "candidates a step needs. A bar at 0 far above its neighbours is prompts that are never "
        "solved. The bars between are what the filter trains on. "
    )
    said = "kept groups only" if kept else f"observed {seen:.1%}, model {fitted:.1%}"
    right, predicted = (_accuracy_of_mixed(shares) for shares in (observed, model))
    between = f" Right in mixed groups: observed {right:.3f}, model {predicted:.3f}."
    between = between if np.isfinite([right, predicted]).all() else ""
    return FigureSpec(
        name="difficulty",
        figure=figure,
        title="Right answers per group, observed and model",
        alt=f"Share of groups by right answers. All wrong or all right: {said}.{between}",
        how_to_read=f"{ends}The model's marks should follow the tops of the bars.{between}",
    )


def _accuracy_of_mixed(share_K: npt.NDArray[np.float64]) -> float:
    """E[K/G | 0 < K < G] of shares of groups by right answers; nan where no group is mixed."""
    mixed, n = share_K[1:-1], len(share_K) - 1
    return float(mixed @ np.arange(1, n) / (mixed.sum() * n)) if mixed.sum() > 0 else float("nan")


def _spread_figure(table: pd.DataFrame) -> FigureSpec:
    sd = table["sd"].to_numpy(float)
    figure = curves(
        sd,
        {
            "observed": (table["observed"].to_numpy(float), OBSERVED, "-"),
            "model": (table["model"].to_numpy(float), MODEL, "--"),
        },
        x_label="standard deviation of log length within a group",
        y_label="share of groups no wider",
        x_decimals=1 if sd.max() > 1 else 2,
    )
    return FigureSpec(
        name="spread",
        figure=figure,
        title="Spread of lengths within a group",
        alt=f"Cumulative shares of the within-group spread of log length: {_largest_gap(table)}.",
        how_to_read=(
            "Answers to one prompt are alike: the curves rise early. A model of independent "
            "lengths would lie far to the right of what was observed; this one should lie on it."
        ),
    )


def _goodness_blocks(goodness: pd.DataFrame | None) -> tuple[Block, ...]:
    if goodness is None or len(goodness) == 0:
        return ()
    caption = (
        "Checks on prompts that the fit did not see. Low and high: 99 % interval of observed minus "
        "predicted; within the tolerance it holds, disjoint from it it fails."
    )
    table = Table(goodness, caption)
    drawable = {"quantity", "observed", "predicted", "low", "high", "tolerance"} <= set(goodness)
    if not drawable or not (goodness["tolerance"] > 0).all():
        return (table,)
    verdicts = goodness["verdict"].tolist() if "verdict" in goodness else [""] * len(goodness)
    said = [f"{q} {v}" for q, v in zip(goodness["quantity"], verdicts, strict=True)]
    figure = FigureSpec(
        name="goodness",
        figure=differences(goodness, verdicts=verdicts),
        title="Held-out checks, in units of the difference that would matter",
        alt=f"Observed minus predicted with intervals: {', '.join(said)}.",
        how_to_read=(
            "The shaded band is the tolerance. An interval inside it: the model is good enough for "
            "this quantity. Outside: it is not. Across an edge: these data cannot decide."
        ),
    )
    return (figure, table)


def _parameter_blocks(
    parameters: Mapping[str, Estimate], loop_bounds: Mapping[str, Mapping[str, float]]
) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if parameters:
        rows = [
            {"parameter": name, "value": found, "unit": found.unit}
            for name, found in parameters.items()
        ]
        frame = pd.DataFrame(rows, columns=["parameter", "value", "unit"], dtype=object)
        blocks.append(Table(frame, "Fitted values with 99 % intervals (bootstrap over prompts)."))
    if loop_bounds:
        names = dict.fromkeys(name for bound in loop_bounds.values() for name in bound)
        rows_of = [
            {"parameter": n} | {f"{k} are loops": b.get(n) for k, b in loop_bounds.items()}
            for n in names
        ]
        caption = (
            "Beyond the cap a long answer and one that never stops look the same. The truth lies "
            "between the two columns."
        )
        blocks.append(Table(pd.DataFrame(rows_of), caption))
    return tuple(blocks)


def _unknown_blocks(not_identified: Sequence[tuple[str, str]]) -> tuple[Block, ...]:
    if not not_identified:
        return ()
    frame = pd.DataFrame(list(not_identified), columns=["parameter", "why"], dtype=object)
    return (Table(frame, "Not identified, whatever the method; each is an assumption if used."),)
