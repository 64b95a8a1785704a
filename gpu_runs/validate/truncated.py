"""What becomes of truncated answers: wrong, masked in or out of the baseline, softly punished.

Under a cap at which the start policy is cut often. The filter looks at correctness or, in one arm,
at the shaped reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dapolab.claims.claim import Claim, Row
from dapolab.claims.verdict import Outcome
from dapolab.objective import overlong_penalty
from dapolab.report import FigureSpec
from dapolab.scenario import OverlongPenalty
from dapolab.theory.overlong import p_kept_uniform
from gpu_runs.preset import Preset
from gpu_runs.validate import first_update as first
from gpu_runs.validate import paired
from gpu_runs.validate.arms import UNITS, answers_in, plain
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.dumped import COLUMNS, signal_of
from gpu_runs.validate.paired import Contrast
from gpu_runs.validate.study import Study, Tables, predicted_row
from gpu_runs.validate.training_figures import curve_figure, difference_figure

HARD, IN, OUT = "wrong", "masked, in the baseline", "masked, out of the baseline"
SOFT, SHAPED = "soft penalty", "soft penalty, filter on shaped reward"


@dataclass(frozen=True)
class Size:
    """How much is run; the window is of evaluations, by the step before which they are made."""

    n_seeds: int
    steps: int
    window: tuple[int, int]
    groups: int
    n_prompts: int
    predicting_groups: int


FULL = Size(n_seeds=8, steps=8, window=(4, 8), groups=16, n_prompts=64, predicting_groups=256)
QUICK = Size(n_seeds=2, steps=2, window=(2, 2), groups=8, n_prompts=32, predicting_groups=64)
EVERY, EARLY = 2, 2
"""Steps between evaluations; the first steps, in which the policy is still that of the start."""
RUNS, PREDICTING = 25, 26
CAP_SHARE, BUFFER_SHARE = 0.625, 0.25
"""The cap over the preset's own, and the penalty's buffer over the cap."""

EMPTY = "kept groups of equal outcomes"
UNIFORM = "all-wrong groups that a shaped filter keeps"
DRIFT = "mean advantage of trained answers"


def size_of(context: Context) -> Size:
    """Return the size of the run."""
    size = QUICK if context.quick else FULL
    return size if context.n_runs is None else replace(size, n_seeds=context.n_runs)


def arms(context: Context) -> dict[str, Preset]:
    """Return the five treatments, all with a filter and exact refill."""
    size = size_of(context)
    cap = max(2, round(CAP_SHARE * context.preset.rollout.cap_tokens))
    base = plain(
        context,
        steps=size.steps,
        every=EVERY,
        groups=size.groups,
        n_prompts=size.n_prompts,
        collector={"kind": "exact_refill", "max_candidate_multiplier": 4},
        rollout__cap_tokens=cap,
    )
    masked: dict[str, Any] = {"objective.length.mask_truncated": True}
    buffer = max(1, round(BUFFER_SHARE * cap))
    soft: dict[str, Any] = {
        "rollout.overlong": {"buffer_tokens": buffer, "factor": 1.0},
        "objective.length.penalty": {"cap_tokens": cap, "buffer_tokens": buffer, "factor": 1.0},
    }
    return {
        HARD: base,
        IN: vary(base, masked),
        OUT: vary(base, masked | {"objective.advantage.truncated": "exclude"}),
        SOFT: vary(base, soft),
        SHAPED: vary(base, soft | {"rollout.filter_metric": "shaped"}),
    }


# ---------------------------------------------------------------------------- what is predicted


def _contrasts() -> list[Contrast]:
    contrast = partial(
        Contrast,
        quantity="truncated",
        delta=0.005,
        why="half a per cent of the answers",
        unit="share",
        source="DAPO, arXiv 2503.14476, section 3.4; theory.md E1, E2",
        how_to_read="Share of held-out answers cut at the cap, mean over the window, paired by "
        "seed. Held-out answers are judged as they are, without any length rule.",
        predict=lambda: {},
    )
    return [
        contrast(
            id="train-truncated-soft",
            statement="A soft overlong penalty lowers truncation further than counting truncated "
            "answers as wrong does.",
            arm=SOFT,
            base=HARD,
            side="below",
        ),
        contrast(
            id="train-truncated-masked",
            statement="Overlong filtering leaves more truncation than counting truncated answers "
            "as wrong: nothing pushes a masked answer down.",
            arm=IN,
            base=HARD,
        ),
        contrast(
            id="train-truncated-baseline",
            statement="With truncated answers out of the baseline truncation stays higher than "
            "with them in it, where they lift every finished answer of their group.",
            arm=OUT,
            base=IN,
            secondary=True,
        ),
    ]


CONTRASTS = _contrasts()

_IN_OUT = Claim(
    id="train-truncated-lift",
    kind="universal",
    statement="Masking truncated answers out of the loss but not out of the baseline leaves a mean "
    "advantage above 0 on what is trained; leaving them out of both leaves none.",
    source="theory.md A, E; open-instruct's order of normalising and dropping",
    instrument="real training",
    rows=(
        Row(
            name=IN,
            kind="order",
            says=0.0,
            rival=0.0,
            tolerance=0.01,
            unit="advantage",
            why="a hundredth of the advantage's standard deviation",
        ),
        Row(
            name=OUT,
            kind="value",
            says=0.0,
            rival=0.05,
            tolerance=1e-6,
            unit="advantage",
            why="double precision and the eps of the std",
        ),
    ),
    predict=lambda: {},
    repeat="run",
    how_to_read="Mean advantage over answers with a token in the loss, first steps of each run.",
)
_FILTER = Claim(
    id="train-truncated-filter",
    kind="value",
    statement="A filter on the shaped reward keeps groups in which all answers are equally right "
    "or wrong, as many as the start policy's own answers say beforehand; one on correctness none.",
    source="theory.md E3, E4; DAPO's filter with verl's metric",
    instrument="real training",
    rows=(
        Row(
            name=SHAPED,
            kind="value",
            rival=0.0,
            tolerance=0.05,
            unit="share",
            why="one in twenty of the trained groups",
        ),
        Row(
            name=SOFT,
            kind="value",
            says=0.0,
            rival=0.05,
            tolerance=1e-9,
            unit="share",
            why="arithmetic",
        ),
    ),
    predict=lambda: {},
    repeat="run",
    how_to_read="Share of trained groups without any difference in correctness, first steps. Such "
    "a group teaches length alone, with advantages as large as any other's (E2).",
)


def predict(context: Context) -> pd.DataFrame:
    """Return the limits, and what the start policy's answers say of both filters."""
    rows = paired.predicted(CONTRASTS)
    preset, size = arms(context)[SHAPED], size_of(context)
    [seed] = context.seeds(1, purpose=PREDICTING)
    sample = first.draw(preset, seed=seed, n_groups=size.predicting_groups, device=context.device)
    told = filter_forecast(sample, preset)
    rows.append(predicted_row(EMPTY, SHAPED, "frozen rollouts", told[EMPTY], unit="share"))
    rows.append(predicted_row(EMPTY, SOFT, "theory", 0.0, unit="share"))
    rows.append(predicted_row(UNIFORM, SHAPED, "frozen rollouts", told[UNIFORM], unit="share"))
    rows.append(predicted_row(UNIFORM, SHAPED, "theory, iid lengths", told["iid"], unit="share"))
    rows.append(predicted_row(DRIFT, OUT, "theory", 0.0, unit="advantage"))
    return pd.DataFrame(rows)


def filter_forecast(sample: first.Sample, preset: Preset) -> dict[str, float]:
    """Return what a shaped filter keeps of the sample's groups; see ``_FILTER``.

    ``iid`` is E3 with the pooled lengths of all-wrong groups: it takes lengths within a group for
    independent, which those of one prompt are not.
    """
    penalty = preset.objective.length.penalty
    assert penalty is not None
    size = preset.rollout.group_size
    lengths = sample.lengths.double().reshape(-1, size)
    right = (sample.batch.reward_N > 0).reshape(-1, size)
    shaped = overlong_penalty(lengths, penalty)
    uniform = right.all(dim=1) | ~right.any(dim=1)
    spread = shaped.amax(dim=1) > shaped.amin(dim=1)
    wrong = ~right.any(dim=1)
    kept = ~uniform | spread
    lengths_of_wrong = lengths[wrong].flatten().numpy()
    return {
        EMPTY: float((uniform & spread).sum() / kept.sum()),
        UNIFORM: float(spread[wrong].double().mean()),
        "iid": _iid(lengths_of_wrong, size=size, penalty=penalty),
    }


def _iid(
    tokens: np.ndarray[Any, np.dtype[np.float64]], *, size: int, penalty: OverlongPenalty
) -> float:
    """Return E3 with the survival function of these lengths; a cut one is as long as the cap."""

    def survival(x: Any) -> Any:
        return (tokens[:, None] > np.atleast_1d(x)).mean(axis=0)

    cap, buffer = penalty.cap_tokens, penalty.buffer_tokens
    return p_kept_uniform(survival, group_size=size, cap_tokens=cap, buffer_tokens=buffer)


# ---------------------------------------------------------------------------- what is measured


def measure(context: Context) -> Tables:
    """Train the treatments; read truncation from the held-out set, the rest from the dumps."""
    size, presets = size_of(context), arms(context)
    seeds = context.seeds(size.n_seeds, purpose=RUNS)
    trained = context.train_runs(presets, seeds, tables=("evaluations", "heldout"))
    begin, end = size.window
    early = []
    for arm, preset in presets.items():
        for seed in seeds:
            folder = context.run_folder(vary(preset, {"run.seed": seed}))
            early += [(arm, seed, *found) for found in first_steps(preset, folder).items()]
    runs = pd.concat(
        [
            answers_in(trained["heldout"], first=begin, last=end),
            pd.DataFrame(early, columns=list(paired.RUNS)),
        ],
        ignore_index=True,
    )
    units = {**UNITS, EMPTY: "share", UNIFORM: "share", DRIFT: "advantage"}
    shown = {
        "eval/truncated_share": "truncated",
        "eval/accuracy": "accuracy",
        "eval/completion_tokens": "tokens of an answer",
        "eval/wrong_completion_tokens": "tokens of a wrong answer",
    }
    return {
        "measured": pd.DataFrame(paired.measured(runs, CONTRASTS, units=units)),
        "runs": runs,
        "curves": paired.curves(trained["evaluations"], shown),
    }


def first_steps(preset: Preset, folder: Path) -> dict[str, float]:
    """Return what the filter kept and what the advantages were in the first steps of a run."""
    rows = pd.read_parquet(folder / "rollouts.parquet", columns=list(COLUMNS))
    rows = rows[(rows["step"] < EARLY) & rows["correct"].notna()]
    right = rows["correct"].astype(bool)
    groups = rows.assign(correct=right).groupby(["step", "group_id"])
    n_right, n = groups["correct"].sum(), groups.size()
    kept = groups["kept"].first().astype(bool)
    uniform = (n_right == 0) | (n_right == n)
    found = {EMPTY: float(uniform[kept].mean())} if kept.any() else {}
    if preset.rollout.filter_metric == "shaped" and (n_right == 0).any():
        spread = groups["reward"].max() - groups["reward"].min()
        found[UNIFORM] = float((spread[n_right == 0] > 0).mean())
    values = []
    for _, step in rows[rows["kept"].astype(bool)].groupby("step"):
        dumped = signal_of(preset, step)
        values.append(dumped.signal.advantages.squeeze(-1)[dumped.trained].numpy())
    if values:
        found[DRIFT] = float(np.concatenate(values).mean())
    return found


def judge(context: Context, predictions: pd.DataFrame, tables: Tables) -> Sequence[Outcome]:
    """Return the contrasts' verdicts, then those on baseline and filter."""
    runs = tables["runs"]

    def values(quantity: str, arm: str) -> paired.Floats:
        at = (runs["quantity"] == quantity) & (runs["arm"] == arm)
        return runs.loc[at, "value"].to_numpy(dtype=np.float64)

    said = predictions.set_index(["quantity", "setting", "instrument"])["value"]
    forecast = float(said.loc[(EMPTY, SHAPED, "frozen rollouts")])
    return [
        *paired.outcomes(CONTRASTS, runs),
        paired.settled(_IN_OUT, {arm: values(DRIFT, arm) for arm in (IN, OUT)}),
        paired.settled(
            _FILTER,
            {arm: values(EMPTY, arm) for arm in (SHAPED, SOFT)},
            predicted={SHAPED: forecast, SOFT: 0.0},
        ),
    ]


def figures(tables: Tables) -> list[FigureSpec]:
    """Return curves over training and the differences in truncation."""
    return [
        difference_figure(
            tables["measured"],
            name="truncated-differences",
            title="Truncation, less that under the treatment it is compared with",
            quantity="truncated",
            x_label="share of held-out answers",
            how_to_read="Soft penalty and masking in the baseline are compared with counting "
            "truncated answers as wrong, masking out of the baseline with masking in it. Left of "
            "the line: fewer answers are cut.",
        ),
        curve_figure(
            tables["curves"],
            name="truncated-curves",
            title="Held-out answers under five treatments of truncated ones",
            how_to_read="Look at truncation and accuracy together: an answer that is not cut is "
            "not yet right, and a penalty that shortens answers may cost right ones.",
        ),
    ]


STUDY = Study(
    name="truncated",
    title="Truncated answers",
    question="Count them wrong, mask them, or punish them softly: what does truncation do?",
    predict=predict,
    measure=measure,
    judge=judge,
    figures=figures,
    how_to_read=(
        "*Frozen rollouts*: both filters applied to answers of the start policy that no run uses. "
        "*Theory, iid lengths*: E3 with the pooled lengths of all-wrong groups; it takes lengths "
        "within a group for independent."
    ),
)
