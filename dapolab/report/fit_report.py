"""The report of a fitted workload: observed beside model, and what the data cannot say."""

from collections.abc import Mapping, Sequence

import pandas as pd

from dapolab.report.document import Block, Document, FigureSpec, Section, Table
from dapolab.report.fit_figures import curves, histogram
from dapolab.report.style import MODEL, OBSERVED
from dapolab.stats import Estimate


def fit_document(
    *,
    title: str,
    lead: str,
    cdf: pd.DataFrame,
    histogram_k: pd.DataFrame | None = None,
    spread: pd.DataFrame | None = None,
    parameters: Mapping[str, Estimate] | None = None,
    not_identified: Sequence[str] = (),
    goodness: pd.DataFrame | None = None,
    notes: Sequence[str] = (),
    provenance: Mapping[str, str] | None = None,
) -> Document:
    """Return the report of a fit.

    Parameters
    ----------
    lead : the verdict in a few sentences, Markdown.
    cdf : n_tokens, observed, model (shares of responses no longer than n_tokens).
    histogram_k : k, observed_share, model_share, low, high: groups by right answers.
    spread : value, observed, model: cdf of a within-group spread, tokens.
    parameters : name -> Estimate.
    not_identified : what the data cannot determine, one line of plain text each.
    goodness : any table of checks and verdicts.
    """
    sections = [Section("Response lengths", (_cdf_figure(cdf),))]
    if histogram_k is not None:
        sections.append(Section("Difficulty", (_histogram_figure(histogram_k),)))
    if spread is not None:
        sections.append(Section("Spread within a group", (_spread_figure(spread),)))
    if goodness is not None:
        caption = "Checks on prompts that the fit did not see."
        sections.append(Section("Does it fit", (Table(goodness, caption),)))
    blocks = _parameter_blocks(parameters or {}, not_identified)
    if blocks:
        sections.append(Section("Parameters", blocks))
    return Document(
        title=title,
        lead=lead,
        sections=tuple(sections),
        notes=tuple(notes),
        provenance=provenance or {},
    )


def _largest_gap(table: pd.DataFrame, x: str) -> str:
    gap = (table["model"] - table["observed"]).abs().to_numpy(float)
    at = int(gap.argmax())
    return f"largest gap {gap[at]:.3f} at {table[x].to_numpy(float)[at]:,.0f} tokens"


def _cdf_figure(cdf: pd.DataFrame) -> FigureSpec:
    figure = curves(
        cdf["n_tokens"].to_numpy(float),
        {
            "observed": (cdf["observed"].to_numpy(float), OBSERVED, "-"),
            "model": (cdf["model"].to_numpy(float), MODEL, "--"),
        },
        x_label="tokens in a response",
        y_label="share of responses no longer",
        x_log=bool(cdf["n_tokens"].min() > 0),
    )
    return FigureSpec(
        name="lengths",
        figure=figure,
        title="Response lengths, observed and model",
        alt=f"Cumulative shares of response length; {_largest_gap(cdf, 'n_tokens')}.",
        how_to_read=(
            "The two curves should lie on each other, above all at the top: the longest answers "
            "decide how long a wave lasts. A jump at the right end is the cap, where truncated "
            "responses pile up."
        ),
    )


def _histogram_figure(table: pd.DataFrame) -> FigureSpec:
    has_interval = {"low", "high"} <= set(table.columns)
    figure = histogram(
        table["k"].tolist(),
        observed=table["observed_share"].to_numpy(float),
        model=table["model_share"].to_numpy(float),
        low=table["low"].to_numpy(float) if has_interval else None,
        high=table["high"].to_numpy(float) if has_interval else None,
        x_label="right answers in a group",
        y_label="share of groups",
    )
    ends = table.iloc[[0, -1]]
    degenerate = float(ends["observed_share"].sum()), float(ends["model_share"].sum())
    return FigureSpec(
        name="difficulty",
        figure=figure,
        title="Right answers per group, observed and model",
        alt=(
            f"Share of groups by right answers. All wrong or all right: "
            f"observed {degenerate[0]:.1%}, model {degenerate[1]:.1%}."
        ),
        how_to_read=(
            "The two end bars are groups that a mixed-group filter drops: their sum sets how many "
            "candidates a step needs. The model's dot should lie in the interval of each bar."
        ),
    )


def _spread_figure(spread: pd.DataFrame) -> FigureSpec:
    figure = curves(
        spread["value"].to_numpy(float),
        {
            "observed": (spread["observed"].to_numpy(float), OBSERVED, "-"),
            "model": (spread["model"].to_numpy(float), MODEL, "--"),
        },
        x_label="longest minus shortest response of a group, tokens",
        y_label="share of groups no wider",
    )
    return FigureSpec(
        name="spread",
        figure=figure,
        title="Spread of lengths within a group",
        alt=f"Cumulative shares of the within-group spread; {_largest_gap(spread, 'value')}.",
        how_to_read=(
            "A model of independent lengths puts its curve far right of the observed one: answers "
            "to one prompt are alike. The curves should lie on each other."
        ),
    )


def _parameter_blocks(
    parameters: Mapping[str, Estimate], not_identified: Sequence[str]
) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if parameters:
        rows = [
            {"parameter": name, "value": found, "unit": found.unit}
            for name, found in parameters.items()
        ]
        frame = pd.DataFrame(rows, columns=["parameter", "value", "unit"], dtype=object)
        blocks.append(Table(frame, "Fitted values with 99 % intervals (bootstrap over prompts)."))
    if not_identified:
        frame = pd.DataFrame({"not identified": list(not_identified)}, dtype=object)
        blocks.append(Table(frame, "What these data cannot determine, whatever the method."))
    return tuple(blocks)
