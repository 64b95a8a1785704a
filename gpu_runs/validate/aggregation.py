"""Aggregation in training: how long wrong answers stay under three losses that share every draw.

Primary: standardised length of wrong answers on the held-out set, one window. The window was chosen
on a pilot whose seed is not used here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pandas as pd

from dapolab.claims.claim import Claim, Row
from dapolab.claims.verdict import Outcome
from dapolab.report import FigureSpec
from dapolab.scenario import Objective
from dapolab.theory.length_bias import token_weights
from gpu_runs.preset import Preset
from gpu_runs.validate import first_update as first
from gpu_runs.validate import paired
from gpu_runs.validate.arms import UNITS, answers_in, plain
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.paired import Contrast
from gpu_runs.validate.standard_length import QUANTITY
from gpu_runs.validate.study import Study, Tables, measured_row, predicted_row
from gpu_runs.validate.training_figures import curve_figure, difference_figure

TOKEN: Final = "token-mean"
SEQ: Final = "seq-mean-token-mean"
NORM: Final = "seq-mean-token-sum-norm"


@dataclass(frozen=True)
class Size:
    """How much is run; the window is of evaluations, by the step before which they are made."""

    n_seeds: int
    steps: int
    window: tuple[int, int]
    groups: int
    n_prompts: int
    n_gradients: int


FULL = Size(n_seeds=12, steps=12, window=(4, 12), groups=32, n_prompts=64, n_gradients=8)
QUICK = Size(n_seeds=2, steps=4, window=(2, 4), groups=16, n_prompts=32, n_gradients=2)
EVERY = 2
RUNS, PREDICTING, PROBING = 20, 21, 22
"""Blocks of seeds: of the runs, of the gradients that predict, of those that measure."""

SLOPE, STEP, COSINE = "slope of it, per 0.01 of ‖Δθ‖", "log ‖Δθ‖ of a step", "gradient cosine"
TO_NORM, TO_SEQ = f"{TOKEN} with {NORM}", f"{TOKEN} with {SEQ}"
SHARES = {
    "wrong": "weight on wrong answers",
    "truncated": "weight on truncated answers",
    "longest_tenth": "weight on the longest tenth",
}


def size_of(context: Context) -> Size:
    """Return the size of the run."""
    size = QUICK if context.quick else FULL
    n = context.n_runs
    return size if n is None else replace(size, n_seeds=n, n_gradients=n)


def arms(context: Context) -> dict[str, Preset]:
    """Return the three losses, all else equal."""
    size = size_of(context)
    base = plain(
        context, steps=size.steps, every=EVERY, groups=size.groups, n_prompts=size.n_prompts
    )
    cap = base.rollout.cap_tokens
    tables = {TOKEN: {}, SEQ: {}, NORM: {"constant": cap}}
    return {
        name: vary(base, {"objective.aggregation": {"kind": name, **table}})
        for name, table in tables.items()
    }


# ---------------------------------------------------------------------------- what is predicted

_SOURCE = "theory.md A, C5; DAPO, arXiv 2503.14476, section 3.3"
_READ = (
    "Both losses shorten wrong answers here, because filler does harm; the question is how much "
    "less of it a mean by answer leaves. Means of the window's evaluations, paired by seed."
)


def _contrasts() -> list[Contrast]:
    contrast = partial(Contrast, source=_SOURCE, how_to_read=_READ, predict=lambda: {})
    few = "a quarter of a token in thirty is below what anyone would change a loss for"
    return [
        contrast(
            id="train-aggregation-length",
            statement="With seq-mean-token-mean wrong answers stay longer than with token-mean: "
            "early in training, at one learning rate, on a held-out set at fixed weights over "
            "difficulty (digit sum, 0.1 M parameters, AdamW, 8 updates a rollout).",
            quantity=QUANTITY,
            arm=SEQ,
            base=TOKEN,
            delta=0.25,
            why=few,
            unit="tokens",
        ),
        contrast(
            id="train-aggregation-sum-norm",
            statement="seq-mean-token-sum-norm (Dr. GRPO) and token-mean give the same length of "
            "wrong answers in training, as their gradients have one direction.",
            kind="null",
            quantity=QUANTITY,
            arm=NORM,
            base=TOKEN,
            delta=0.25,
            rival=1.0,
            why="a quarter of one token, the size of the effect of seq-mean-token-mean",
            unit="tokens",
        ),
        contrast(
            id="train-aggregation-step",
            statement="Adam takes the scale of a loss out: seq-mean-token-sum-norm makes steps as "
            "large as token-mean.",
            kind="null",
            quantity=STEP,
            arm=NORM,
            base=TOKEN,
            delta=0.1,
            rival=0.8,
            why="10 % of a step; plain gradient steps would differ by the ratio of the "
            "normalisers, cap over mean length, about e^0.8",
            unit="nats",
        ),
        contrast(
            id="train-aggregation-raw",
            statement="The plain mean length of wrong answers shows it as well.",
            quantity="wrong answer",
            arm=SEQ,
            base=TOKEN,
            delta=0.25,
            why=few,
            unit="tokens",
            secondary=True,
        ),
        contrast(
            id="train-aggregation-right",
            statement="Right answers stay longer with seq-mean-token-mean too, by a tenth of a "
            "token at least: filler is shared.",
            quantity="right answer",
            arm=SEQ,
            base=TOKEN,
            delta=0.1,
            why="a tenth of a token, less than half of what is asked of wrong answers",
            unit="tokens",
            secondary=True,
        ),
        contrast(
            id="train-aggregation-accuracy",
            statement="The choice of the two losses does not change accuracy.",
            kind="null",
            quantity="accuracy",
            arm=SEQ,
            base=TOKEN,
            delta=0.02,
            rival=0.08,
            why="two points of accuracy; a quarter of what one DAPO component is said to bring",
            unit="share",
            secondary=True,
        ),
    ]


CONTRASTS = _contrasts()

_COSINE = Claim(
    id="train-aggregation-cosine",
    kind="value",
    statement="The first update's gradient has the same direction under token-mean and "
    "seq-mean-token-sum-norm.",
    source=_SOURCE,
    instrument="real training",
    rows=(
        Row(
            name=TO_NORM,
            kind="value",
            says=1.0,
            rival=0.9,
            tolerance=1e-4,
            unit="cosine",
            why="single precision; the cosine with seq-mean-token-mean is below 0.95",
        ),
    ),
    predict=lambda: {TO_NORM: 1.0},
    repeat="rollout",
    how_to_read="Gradients of the whole decoder on one rollout of the start policy. Both losses "
    "weigh a token by a number that is the same for all responses of an update.",
)
_SHARES = Claim(
    id="train-aggregation-shares",
    kind="value",
    statement="What a loss pushes with falls on responses as the formula of its aggregation says: "
    "by tokens under token-mean, by responses under seq-mean-token-mean.",
    source=f"{_SOURCE}, C1",
    instrument="real training",
    rows=(
        Row(
            name="largest gap of a share",
            kind="value",
            says=0.0,
            rival=0.01,
            tolerance=1e-5,
            unit="share",
            why="single precision",
        ),
    ),
    predict=lambda: {"largest gap of a share": 0.0},
    how_to_read="Σ|∂loss/∂log π| of wrong, truncated and longest responses over that of all, from "
    "the loss, beside |A|·length·weight with the weights of theory.length_bias; largest gap over "
    "rollouts, losses and shares.",
)


def predict(context: Context) -> pd.DataFrame:
    """Return the contrasts' limits, the first-order drift of the primary, and what is exact."""
    rows = paired.predicted(CONTRASTS)
    size = size_of(context)
    seeds = context.seeds(2 * size.n_gradients, purpose=PREDICTING)
    pairs = list(zip(seeds[::2], seeds[1::2], strict=True))
    work = partial(_slopes, arms(context), context.device, 2 * size.groups)
    found = context.map(work, pairs)
    for arm in (TOKEN, SEQ, NORM):
        values = np.array([0.01 * one[arm] for one in found])
        told = measured_row(SLOPE, arm, values, unit="tokens")
        ends = {end: told[end] for end in ("low", "high")}
        rows.append(
            predicted_row(
                SLOPE, arm, "first order", float(values.mean()), unit="tokens", **_floats(ends)
            )
        )
    rows.append(predicted_row(COSINE, TO_NORM, "theory", 1.0, unit="cosine"))
    return pd.DataFrame(rows)


def _floats(ends: Mapping[str, object]) -> dict[str, float | None]:
    return {k: None if v is None else float(str(v)) for k, v in ends.items()}


def _objectives(presets: Mapping[str, Preset]) -> dict[str, Objective]:
    return {arm: preset.objective for arm, preset in presets.items()}


def _slopes(
    presets: Mapping[str, Preset], device: str, n_groups: int, seeds: tuple[int, int]
) -> dict[str, float]:
    return first.slopes(
        presets[TOKEN], seeds=seeds, n_groups=n_groups, arms=_objectives(presets), device=device
    )


# ---------------------------------------------------------------------------- what is measured


def measure(context: Context) -> Tables:
    """Train the arms, and take the first update's gradient apart."""
    size, presets = size_of(context), arms(context)
    seeds = context.seeds(size.n_seeds, purpose=RUNS)
    trained = context.train_runs(presets, seeds, tables=("steps", "evaluations", "heldout"))
    steps = trained["steps"].assign(log_step=lambda t: np.log(t["train/parameter_step"]))
    begin, end = size.window
    runs = pd.concat(
        [
            answers_in(trained["heldout"], first=begin, last=end),
            paired.window(steps, "log_step", quantity=STEP, first=0, last=size.steps),
            _first_slopes(trained["heldout"], steps),
        ],
        ignore_index=True,
    )
    probing = context.seeds(size.n_gradients, purpose=PROBING)
    gradients = pd.concat(
        context.map(partial(_probe, presets, context.device, size.groups), probing),
        ignore_index=True,
    )
    rows = paired.measured(runs, CONTRASTS, units={**UNITS, STEP: "nats", SLOPE: "tokens"})
    for (quantity, setting), part in gradients.groupby(["quantity", "setting"], sort=False):
        values = part["value"].to_numpy()
        unit = "cosine" if quantity == COSINE else "share"
        rows.append(measured_row(str(quantity), str(setting), values, unit=unit))
    shown = {
        "eval/wrong_completion_tokens": "wrong answer, tokens",
        "eval/right_completion_tokens": "right answer, tokens",
        "eval/accuracy": "accuracy",
        "eval/filler_tokens": "filler, tokens",
    }
    return {
        "measured": pd.DataFrame(rows),
        "runs": runs,
        "gradients": gradients,
        "curves": paired.curves(trained["evaluations"], shown),
    }


def _first_slopes(heldout: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return each run's change of the primary over its first steps, per 0.01 of path length."""
    found = []
    path = steps[steps["step"] < EVERY].groupby(["arm", "seed"])["train/parameter_step"].sum()
    ends = [answers_in(heldout, first=at, last=at) for at in (0, EVERY)]
    before, after = (e[e["quantity"] == QUANTITY].set_index(["arm", "seed"])["value"] for e in ends)
    change = 0.01 * ((after - before) / path).dropna()
    for (arm, seed), value in zip(change.index, change, strict=True):
        found.append((arm, seed, SLOPE, float(value)))
    return pd.DataFrame(found, columns=list(paired.RUNS))


def _probe(presets: Mapping[str, Preset], device: str, n_groups: int, seed: int) -> pd.DataFrame:
    """Return cosines and weight shares of one rollout of the start policy."""
    sample = first.draw(presets[TOKEN], seed=seed, n_groups=n_groups, device=device)
    weights = {arm: first.pushes(sample, rule) for arm, rule in _objectives(presets).items()}
    vectors = first.gradients(sample, weights)
    rows = [
        (COSINE, TO_NORM, first.cosine(vectors[TOKEN], vectors[NORM])),
        (COSINE, TO_SEQ, first.cosine(vectors[TOKEN], vectors[SEQ])),
    ]
    lengths = sample.lengths
    size_N = weights[SEQ].abs().sum(dim=-1)  # |A|/N: a mean by answer gives each its advantage
    gap = 0.0
    for arm in (TOKEN, SEQ, NORM):
        constant = float(presets[arm].rollout.cap_tokens) if arm == NORM else None
        formula = token_weights(lengths.numpy(), mode=arm, constant_tokens=constant)
        by_loss = first.shares(sample, weights[arm].abs().sum(dim=-1))
        by_formula = first.shares(sample, size_N * lengths * lengths.new_tensor(formula))
        for field, words in SHARES.items():
            found, says = getattr(by_loss, field), getattr(by_formula, field)
            gap = max(gap, abs(found - says))
            rows.append((words, arm, found))
    rows.append(("largest gap of a share", "loss less formula", gap))
    table = pd.DataFrame(rows, columns=["quantity", "setting", "value"])
    return table.assign(seed=seed)


def judge(context: Context, predictions: pd.DataFrame, tables: Tables) -> Sequence[Outcome]:
    """Return the contrasts' verdicts, then those of the two exact statements."""
    gradients = tables["gradients"]

    def values(quantity: str, setting: str) -> paired.Floats:
        at = (gradients["quantity"] == quantity) & (gradients["setting"] == setting)
        return gradients.loc[at, "value"].to_numpy(dtype=np.float64)

    gap = "largest gap of a share"
    largest = float(values(gap, "loss less formula").max())
    return [
        *paired.outcomes(CONTRASTS, tables["runs"]),
        paired.settled(_COSINE, {TO_NORM: values(COSINE, TO_NORM)}, predicted={TO_NORM: 1.0}),
        paired.settled(_SHARES, {gap: largest}, predicted={gap: 0.0}),
    ]


def figures(tables: Tables) -> list[FigureSpec]:
    """Return curves over training, and the primary's differences."""
    return [
        difference_figure(
            tables["measured"],
            name="aggregation-primary",
            title="Standardised length of wrong answers, less that under token-mean",
            quantity=QUANTITY,
            x_label="tokens, less those under token-mean",
            how_to_read="One dot a loss with its 99 % interval over paired seeds. Right of the "
            "line: wrong answers stay longer than under token-mean. An interval across the line "
            "decides nothing.",
        ),
        curve_figure(
            tables["curves"],
            name="aggregation-curves",
            title="Held-out answers over training, three aggregations on the same draws",
            how_to_read="Bands are 99 % over seeds, of each arm alone: pairing makes differences "
            "much sharper than the bands look. Falling length is filler that dies; look at how "
            "far apart the lines are early, not at where they end.",
        ),
    ]


STUDY = Study(
    name="aggregation",
    title="Aggregation in training",
    question="Do wrong answers stay longer where the loss is a mean by answer?",
    predict=predict,
    measure=measure,
    judge=judge,
    figures=figures,
    how_to_read=(
        "Predictions: theory says the sign; *first order* is the gradient of each loss on rollouts "
        "of their own against the gradient of the standardised length. Measured slopes are those "
        "of Adam's path, whose direction is not the gradient's: compare their order, not size. "
        "Secondary claims (plain length, right answers, accuracy) are corrected by Holm's rule."
    ),
)
