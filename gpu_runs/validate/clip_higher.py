"""Clip-higher in training: what the upper clip silences, and whether entropy is the better for it.

Entropy falls because the policy learns, so it is compared at equal steps and at equal accuracy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from dapolab.claims.claim import Claim, Row
from dapolab.claims.verdict import Outcome
from dapolab.report import FigureSpec
from dapolab.theory.clipping import upper_clip_limit
from gpu_runs.preset import Preset
from gpu_runs.validate import paired
from gpu_runs.validate.arms import plain
from gpu_runs.validate.clipped_tokens import CLIPPED, LARGEST, REWARDED, clipped_tokens
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.paired import Contrast
from gpu_runs.validate.study import Study, Tables, measured_row, predicted_row
from gpu_runs.validate.training_figures import curve_figure, difference_figure

SAME, HIGHER = "ε_high = .20", "ε_high = .28"
BOUNDS = {SAME: 0.20, HIGHER: 0.28}


@dataclass(frozen=True)
class Size:
    """How much is run; ``early`` steps for the clip itself, all of them for entropy."""

    n_seeds: int
    steps: int
    early: int
    groups: int
    n_probes: int
    probe_steps: int


FULL = Size(n_seeds=16, steps=12, early=4, groups=32, n_probes=6, probe_steps=3)
QUICK = Size(n_seeds=2, steps=3, early=3, groups=16, n_probes=2, probe_steps=2)
RUNS, PROBING = 23, 24
EPOCHS, LEARNING_RATE = 2, 1e-4
"""Two passes at a rate at which tokens do reach the bound; at 3e-5 and one pass none does."""

UPPER, ENTROPY, EQUAL = "clipped above", "entropy", "entropy at equal accuracy"


def size_of(context: Context) -> Size:
    """Return the size of the run."""
    size = QUICK if context.quick else FULL
    n = context.n_runs
    return size if n is None else replace(size, n_seeds=n, n_probes=n)


def arms(context: Context) -> dict[str, Preset]:
    """Return both clips, all else equal."""
    size = size_of(context)
    base = plain(
        context,
        steps=size.steps,
        every=size.steps,
        groups=size.groups,
        n_prompts=8,
        train__epochs=EPOCHS,
        train__learning_rate=LEARNING_RATE,
    )
    clips = {arm: {"kind": "ppo", "low": 0.2, "high": high} for arm, high in BOUNDS.items()}
    return {arm: vary(base, {"objective.clip": clip}) for arm, clip in clips.items()}


# ---------------------------------------------------------------------------- what is predicted

_SOURCE = "DAPO, arXiv 2503.14476, section 3.1; theory.md D2, D6"


def _contrasts() -> list[Contrast]:
    contrast = partial(
        Contrast, arm=HIGHER, base=SAME, source=_SOURCE, predict=lambda: {}, rival=0.0
    )
    entropy = (
        "Mean entropy of sampled tokens under the policy that updates, in nats, paired by seed. "
        "Faster learning lowers entropy, so equal steps compare two policies of different skill."
    )
    why = "a hundredth of a nat, a fortieth of the entropy at the start"
    return [
        contrast(
            id="train-clip-fraction",
            statement="Raising ε_high from .20 to .28 lowers the share of tokens that the upper "
            "clip silences.",
            quantity=UPPER,
            side="below",
            delta=1e-4,
            why="a tenth of a per mille of the tokens; the share itself is a few per mille",
            unit="share",
            how_to_read="Share of trained tokens with A > 0 and a ratio above the bound, mean over "
            "the early steps, paired by seed.",
        ),
        contrast(
            id="train-clip-entropy",
            statement="Clip-higher keeps entropy up: after the same number of steps it is higher "
            "with ε_high = .28.",
            quantity=ENTROPY,
            delta=0.01,
            why=why,
            unit="nats",
            how_to_read=entropy,
            secondary=True,
        ),
        contrast(
            id="train-clip-entropy-accuracy",
            statement="Clip-higher keeps entropy up at equal accuracy too.",
            quantity=EQUAL,
            delta=0.01,
            why=why,
            unit="nats",
            how_to_read=f"{entropy} At equal accuracy: each run's entropy as a line in its own "
            "training accuracy, read off where both runs of a seed have been.",
            secondary=True,
        ),
    ]


CONTRASTS = _contrasts()

_LOW = Claim(
    id="train-clip-old-probability",
    kind="order",
    statement="What the upper clip silences are tokens that were unlikely: their mean old "
    "probability is at least .2 below that of all tokens with A > 0.",
    source=_SOURCE,
    instrument="real training",
    rows=tuple(
        Row(
            name=arm,
            kind="order",
            says=0.0,
            rival=0.0,
            tolerance=0.2,
            unit="probability",
            why="a fifth of the scale: what is called unlikely must look so",
        )
        for arm in BOUNDS
    ),
    predict=lambda: {},
    repeat="run",
    how_to_read="Old probability of all A > 0 tokens less that of those whose ratio has passed the "
    "bound at the end of a rollout's updates; steps of a run together, runs are the unit.",
)
_LIMIT = Claim(
    id="train-clip-limit",
    kind="bound",
    statement="No token whose old probability is above 1/(1+ε_high) is ever clipped above: a "
    "probability ends at 1.",
    source="theory.md D2",
    instrument="real training",
    rows=tuple(
        Row(
            name=arm,
            kind="bound",
            side="below",
            says=upper_clip_limit(high),
            rival=1.0,
            tolerance=1e-5,
            unit="probability",
            why="single precision",
        )
        for arm, high in BOUNDS.items()
    ),
    predict=lambda: {arm: upper_clip_limit(high) for arm, high in BOUNDS.items()},
    how_to_read="Largest old probability of a token that was clipped above, over all runs.",
)


def predict(context: Context) -> pd.DataFrame:
    """Return the contrasts' limits and the exact bound on old probabilities."""
    rows = paired.predicted(CONTRASTS)
    for arm, high in BOUNDS.items():
        limit = upper_clip_limit(high)
        rows.append(predicted_row(LARGEST, arm, "theory, at most", limit, unit="probability"))
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------------- what is measured


def measure(context: Context) -> Tables:
    """Train both clips, and look at the tokens that a few short runs clip."""
    size, presets = size_of(context), arms(context)
    seeds = context.seeds(size.n_seeds, purpose=RUNS)
    steps = context.train_runs(presets, seeds, tables=("steps",))["steps"]
    late = max(0, size.steps - 6)
    runs = pd.concat(
        [
            paired.window(
                steps, "ppo/upper_clip_fraction", quantity=UPPER, first=0, last=size.early - 1
            ),
            paired.window(
                steps, "entropy/token_mean", quantity=ENTROPY, first=late, last=size.steps
            ),
            at_equal_accuracy(steps),
        ],
        ignore_index=True,
    )
    work = [
        (arm, vary(preset, {"run.seed": seed}), size.probe_steps, context.device)
        for seed in context.seeds(size.n_probes, purpose=PROBING)
        for arm, preset in presets.items()
    ]
    tokens = pd.DataFrame(context.map(clipped_tokens, work))
    units = {UPPER: "share", ENTROPY: "nats", EQUAL: "nats"}
    rows = paired.measured(runs, CONTRASTS, units=units)
    for arm, part in tokens.groupby("arm", sort=False):
        for quantity in (CLIPPED, REWARDED):
            values = part[quantity].dropna().to_numpy()
            if values.size:
                rows.append(measured_row(quantity, str(arm), values, unit="probability"))
        largest = float(part[LARGEST].max())
        if np.isfinite(largest):
            rows.append(measured_row(LARGEST, str(arm), largest, unit="probability"))
    shown = {
        "ppo/upper_clip_fraction": "share clipped above",
        "entropy/token_mean": "entropy, nats",
        "reward/accuracy": "accuracy in training",
        "ppo/lower_clip_fraction": "share clipped below",
    }
    return {
        "measured": pd.DataFrame(rows),
        "runs": runs,
        "tokens": tokens,
        "curves": paired.curves(steps, shown),
    }


def at_equal_accuracy(steps: pd.DataFrame) -> pd.DataFrame:
    """Return each run's entropy at the middle of the accuracies that all runs of its seed reached.

    A run's entropy is a straight line in its training accuracy, fitted over its steps.
    """
    found = []
    for seed, of_seed in steps.groupby("seed"):
        lines = {}
        low, high = 0.0, 1.0
        for arm, run in of_seed.groupby("arm", sort=False):
            x = run["reward/accuracy"].to_numpy(float)
            y = run["entropy/token_mean"].to_numpy(float)
            keep = np.isfinite(x) & np.isfinite(y)
            if keep.sum() >= 3 and np.ptp(x[keep]) > 0:
                lines[arm] = np.polynomial.Polynomial.fit(x[keep], y[keep], 1)
                low, high = max(low, float(x[keep].min())), min(high, float(x[keep].max()))
        if len(lines) == of_seed["arm"].nunique() and low < high:
            middle = 0.5 * (low + high)
            found += [(arm, seed, EQUAL, float(line(middle))) for arm, line in lines.items()]
    return pd.DataFrame(found, columns=list(paired.RUNS))


def judge(context: Context, predictions: pd.DataFrame, tables: Tables) -> Sequence[Outcome]:
    """Return the contrasts' verdicts, then those on the clipped tokens."""
    tokens = tables["tokens"].dropna()
    by_arm = {arm: tokens[tokens["arm"] == arm] for arm in BOUNDS}
    gaps = {arm: (t[REWARDED] - t[CLIPPED]).to_numpy(np.float64) for arm, t in by_arm.items()}
    largest = {arm: float(t[LARGEST].max()) for arm, t in by_arm.items() if len(t)}
    limits = {arm: upper_clip_limit(high) for arm, high in BOUNDS.items()}
    whole = largest if len(largest) == len(BOUNDS) else {arm: np.zeros(0) for arm in BOUNDS}
    return [
        *paired.outcomes(CONTRASTS, tables["runs"]),
        paired.settled(_LOW, gaps),
        paired.settled(_LIMIT, whole, predicted=limits),
    ]


def figures(tables: Tables) -> list[FigureSpec]:
    """Return curves over training and the differences in entropy."""
    entropy = tables["measured"]
    entropy = entropy[entropy["quantity"].isin([ENTROPY, EQUAL])]
    both = entropy[entropy["setting"].str.contains(" less ")]
    named = both.assign(setting=both["quantity"] + " less ", quantity=ENTROPY)
    return [
        difference_figure(
            named,
            name="clip-higher-entropy",
            title="Entropy under ε_high = .28, less that under .20",
            quantity=ENTROPY,
            x_label="nats",
            how_to_read="Right of the line: clip-higher leaves more entropy. The first row "
            "compares equal steps, the second the same skill: what stands in the first row "
            "alone is a difference in how far training went.",
        ),
        curve_figure(
            tables["curves"],
            name="clip-higher-curves",
            title="What the clips silence, and what entropy does meanwhile",
            how_to_read="Upper left must be lower under .28 by arithmetic. Whether that moves "
            "entropy is the lower question: compare it with the accuracy beside it.",
        ),
    ]


STUDY = Study(
    name="clip_higher",
    title="Clip-higher in training",
    question="Does a higher upper clip keep unlikely tokens, and entropy, alive?",
    predict=predict,
    measure=measure,
    judge=judge,
    figures=figures,
    how_to_read=(
        f"Two passes over each rollout at a learning rate of {LEARNING_RATE:g}: at the preset's "
        "own no ratio reaches the bound. Both statements on entropy are corrected by Holm's rule."
    ),
)
