"""Reward, sign of the advantage and length in one picture, for each way of aggregating.

The runs are those of ``aggregation``: what is looked at is what their updates really pushed with.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from dapolab.claims.verdict import Outcome
from dapolab.objective import row_scales
from dapolab.report import FigureSpec
from dapolab.report.style import MUTED, drawing, new_figure, plain
from gpu_runs.preset import Preset
from gpu_runs.validate import aggregation, paired
from gpu_runs.validate.aggregation import NORM, SEQ, TOKEN
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.dumped import COLUMNS, signal_of
from gpu_runs.validate.paired import Contrast
from gpu_runs.validate.study import Study, Tables, predicted_row
from gpu_runs.validate.training_figures import COLOURS

BIN_TOKENS = 8
FIRST, LAST = "first steps", "last steps"
PARTS = {
    "right, A > 0": (True, 1),
    "wrong, A > 0": (False, 1),
    "right, A < 0": (True, -1),
    "wrong, A < 0": (False, -1),
}
"""Outcome and sign of the advantage. With rewards ±1 the second and third are empty: only a length
penalty puts anything there."""
LONG_SHARE, LONG_DOWN = "push on the longest tenth", "of it downwards"


def _contrasts() -> list[Contrast]:
    contrast = partial(
        Contrast,
        source="theory.md C1, C5; the seeds' request for reward, sign and length together",
        how_to_read="Σ|A|·weight·length over the longest tenth of a step's answers, over that of "
        "all, mean over the first steps, paired by seed.",
        predict=lambda: {},
    )
    return [
        contrast(
            id="picture-longest-tenth",
            statement="Under token-mean the longest tenth of the answers gets at least .05 more of "
            "the push than under seq-mean-token-mean (start of training, same answers).",
            quantity=LONG_SHARE,
            arm=TOKEN,
            base=SEQ,
            delta=0.05,
            why="half of the tenth that a mean by answer gives them",
            unit="share",
        ),
    ]


CONTRASTS = _contrasts()


def _n_steps(context: Context) -> int:
    return 2 if context.quick else 3


def predict(context: Context) -> pd.DataFrame:
    """Return the contrast's limit and what a mean by answer must give."""
    rows = paired.predicted(CONTRASTS)
    rows.append(predicted_row(f"{LONG_SHARE}, mean |A| alike", SEQ, "theory", 0.1, unit="share"))
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------------- what is measured


def measure(context: Context) -> Tables:
    """Take the pushes of the first and the last steps of every run apart."""
    size, presets = aggregation.size_of(context), aggregation.arms(context)
    n = _n_steps(context)
    runs = {
        (arm, seed): vary(preset, {"run.seed": seed})
        for seed in context.seeds(size.n_seeds, purpose=aggregation.RUNS)
        for arm, preset in presets.items()
    }
    folders = context.train_all(list(runs.values()))
    parts = []
    for ((arm, seed), preset), folder in zip(runs.items(), folders, strict=True):
        for stage, at in ((FIRST, range(n)), (LAST, range(size.steps - n, size.steps))):
            answers = pushes(preset, folder, steps=list(at))
            parts.append(answers.assign(arm=arm, seed=seed, stage=stage))
    table = pd.concat(parts, ignore_index=True)
    found = _long(table[table["stage"] == FIRST])
    units = {LONG_SHARE: "share", LONG_DOWN: "share"}
    return {
        "measured": pd.DataFrame(paired.measured(found, CONTRASTS, units=units)),
        "runs": found,
        "picture": _picture(table),
    }


def pushes(preset: Preset, folder: Path, *, steps: Sequence[int]) -> pd.DataFrame:
    """Return one row a trained answer: step, tokens, part, push.

    A push is −Σ∂loss/∂log π over the answer's tokens at the start of the update, over Σ|…| of the
    step: what the clip later silences is not in it.
    """
    rows = pd.read_parquet(folder / "rollouts.parquet", columns=list(COLUMNS))
    parts = []
    for step in steps:
        part = rows[(rows["step"] == step) & rows["kept"].astype(bool)]
        if len(part):
            parts.append(_of_step(preset, part).assign(step=step))
    return pd.concat(parts, ignore_index=True)


def _of_step(preset: Preset, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the pushes of one step, by the objective itself, update by update."""
    found = signal_of(preset, rows)
    signal, right = found.signal, rows["correct"].to_numpy(bool)
    push = torch.zeros(len(rows), dtype=torch.float64)
    size = preset.train.responses_per_update or len(rows)
    for at in torch.split(torch.arange(len(rows)), size):
        scales = row_scales(signal.mask[at], preset.objective.aggregation, group=found.group_N[at])
        weight = signal.mask[at].sum(dim=-1) * scales
        push[at] = signal.advantages[at].squeeze(-1) * weight
    values = (push / push.abs().sum()).numpy()
    names = np.full(len(rows), "no push", dtype=object)
    for name, (is_right, sign) in PARTS.items():
        names[(right == is_right) & (np.sign(values) == sign)] = name
    return pd.DataFrame({"tokens": rows["n_tokens"].to_numpy(), "part": names, "push": values})


def _long(table: pd.DataFrame) -> pd.DataFrame:
    """Return each run's push on the longest tenth, and how much of it points down."""
    found = []
    for (arm, seed), of_run in table.groupby(["arm", "seed"], sort=False):
        shares = []
        for _, step in of_run.groupby("step"):
            longest = step.sort_values("tokens", ascending=False, kind="stable")
            push = longest.head(max(1, len(step) // 10))["push"].to_numpy()
            shares.append((np.abs(push).sum(), -push[push < 0].sum()))
        total, down = np.mean(shares, axis=0)
        found.append((arm, seed, LONG_SHARE, float(total)))
        if total > 0:
            found.append((arm, seed, LONG_DOWN, float(down / total)))
    return pd.DataFrame(found, columns=list(paired.RUNS))


def _picture(table: pd.DataFrame) -> pd.DataFrame:
    """Return the share of answers and of the push by loss, stage, length and part."""
    cut = (table["tokens"] - 1) // BIN_TOKENS * BIN_TOKENS + 1
    named = table.assign(tokens=cut.astype(int))
    keys = ["arm", "stage", "tokens", "part"]
    found = named.groupby(keys, sort=True)["push"].agg(["sum", "size"]).reset_index()
    n_steps = named.groupby(["arm", "stage"])[["seed", "step"]].apply(
        lambda part: len(part.drop_duplicates())
    )
    whole = named.groupby(["arm", "stage"]).size()
    index = pd.MultiIndex.from_frame(found[["arm", "stage"]])
    found["push"] = found.pop("sum").to_numpy() / n_steps.loc[index].to_numpy()
    found["answers"] = found.pop("size").to_numpy() / whole.loc[index].to_numpy()
    return found


def judge(context: Context, predictions: pd.DataFrame, tables: Tables) -> Sequence[Outcome]:
    """Return the contrast's verdict."""
    return paired.outcomes(CONTRASTS, tables["runs"])


# ---------------------------------------------------------------------------- figure


def figures(tables: Tables) -> list[FigureSpec]:
    """Return who is pushed up and down, by length, one panel a loss and stage."""
    table = tables["picture"]
    panels = [(arm, stage) for arm in (TOKEN, SEQ, NORM) for stage in (FIRST, LAST)]
    bins = sorted(int(b) for b in table["tokens"].unique())
    with drawing():
        figure = new_figure(height_in=6.6)
        grid = figure.subplots(3, 2, sharex=True, sharey=True)
        for axes, (arm, stage) in zip(grid.flatten(), panels, strict=True):
            _panel(axes, table[(table["arm"] == arm) & (table["stage"] == stage)], bins)
            axes.set_title(plain(f"{arm}, {stage}"))
        for axes in grid[-1]:
            axes.set_xlabel("tokens of the answer")
        figure.supylabel("share of the push: up, down", color=MUTED, fontsize=9.5)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3)
    first = table[table["stage"] == FIRST]
    said = [
        f"{arm}: {_beyond(first[first['arm'] == arm]):.0%} of the push on answers above 32 tokens"
        for arm in (TOKEN, SEQ, NORM)
    ]
    return [
        FigureSpec(
            "picture",
            figure,
            "What the updates push with: reward, sign of the advantage and length together",
            f"Bars by length. First steps: {'; '.join(said)}.",
            "Bars above the line make answers of that length likelier, bars below less likely; "
            "height is the share of the step's Σ|A|·weight·length, the line is the share of the "
            "answers. Compare a bar with the line: where the bar below is taller than the line, "
            "the loss spends more on shortening than the answers' number calls for. With rewards "
            "±1 right answers stand above and wrong ones below; an advantage with the other sign "
            "takes a length penalty.",
        )
    ]


def _beyond(table: pd.DataFrame) -> float:
    return float(table.loc[table["tokens"] > 32, "push"].abs().sum())


def _panel(axes: Axes, table: pd.DataFrame, bins: Sequence[int]) -> None:
    x = np.arange(len(bins))
    up, down = np.zeros(len(bins)), np.zeros(len(bins))
    for number, name in enumerate(PARTS):
        part = table[table["part"] == name].set_index("tokens")["push"].reindex(list(bins))
        values = part.fillna(0.0).to_numpy(float)
        if not values.any():
            continue
        axes.bar(
            x,
            values,
            bottom=np.where(values >= 0, up, down),
            width=0.8,
            color=COLOURS[(2, 0, 3, 5)[number]],
            label=name,
        )
        up, down = up + np.maximum(values, 0.0), down + np.minimum(values, 0.0)
    answers = table.groupby("tokens")["answers"].sum().reindex(list(bins)).fillna(0.0)
    share = answers.to_numpy(float)
    axes.step(x, share, where="mid", color=MUTED, linewidth=1.2, label="share of the answers")
    axes.axhline(0, color=MUTED, linewidth=1)
    axes.grid(visible=True, axis="y")
    axes.set_xticks(x, labels=[f"{b}–{b + BIN_TOKENS - 1}" for b in bins], fontsize=8)


STUDY = Study(
    name="picture",
    title="Reward, sign and length together",
    question="Which answers does each loss really push, up or down, and how long are they?",
    predict=predict,
    measure=measure,
    judge=judge,
    figures=figures,
    how_to_read=(
        "Drawn from the dumps of the runs of the study on aggregation, through the objective "
        "itself. Mean length alone hides this: the same mean may come from short right answers "
        "pushed up or from long wrong ones pushed down."
    ),
)
