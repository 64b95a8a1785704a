"""First-order drift: what the gradient says a small step does to lengths, and what it really does.

At the start policy. A loss's gradient gives the direction d of one step; the score-function
gradient of an observable, from answers of another sample, gives its predicted change ε·⟨d, ∇E[X]⟩.
The real step is taken both ways (θ ± ε·d, ‖d‖ = 1) with common random numbers, so that the
second-order part cancels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dapolab.claims.claim import Claim, Row
from dapolab.claims.verdict import Outcome
from dapolab.report import FigureSpec
from dapolab.scenario import Objective
from gpu_runs.collect import collect_step
from gpu_runs.preset import Preset
from gpu_runs.rollout import Candidate
from gpu_runs.setup import build_world, choose_device
from gpu_runs.validate import first_update as first
from gpu_runs.validate.beside_figure import beside
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.run import fingerprint
from gpu_runs.validate.study import Study, Tables, measured_row, predicted_row, settle

Floats = npt.NDArray[np.float64]

EPSILON = 0.01
"""‖Δθ‖ of a step. In a prototype the linear range ended near three times that."""
MODES: Final = ("token-mean", "seq-mean-token-mean")
OBSERVABLES = {
    "length of wrong answers": "tokens",
    "length": "tokens",
    "filler": "tokens",
    "truncated share": "share",
    "accuracy": "share",
}
RATIO = 0.3
NOTHING = 0.0
"""What the claim denies: that the first order says nothing of a real step."""
LIKE_TOKEN_MEAN = -0.75
"""What the claim on a mean by answer denies: that its step does what token-mean's does, in units of
the latter. Of filler, which it moves most, that is three quarters; of lengths the whole."""


@dataclass(frozen=True)
class Size:
    """Independent gradient samples, groups of each, and groups behind a measured change."""

    n_samples: int
    n_groups: int
    n_measured: int


def size_of(context: Context) -> Size:
    """Return the sizes."""
    return Size(3, 48, 64) if context.quick else Size(12, 192, 512)


def objective_of(mode: str) -> Objective:
    """Return DAPO's objective with another aggregation and no clip: one on-policy update."""
    return Objective.model_validate({"aggregation": {"kind": mode}})


# ---------------------------------------------------------------------- gradients


@dataclass(frozen=True)
class Gradients:
    """One sample's directions of the losses (unit norm) and gradients of the observables."""

    direction: dict[str, Floats]
    of_mean: dict[str, Floats]


def gradients(work: tuple[Preset, int, int, str]) -> Gradients:
    """Sample groups at the start policy; return ascent directions and ∇E of the observables."""
    preset, seed, n_groups, device = work
    sample = first.draw(preset, seed=seed, n_groups=n_groups, device=device)
    values = observables(sample.candidates)
    mask = sample.batch.mask_NT
    weights = {mode: first.pushes(sample, objective_of(mode)) for mode in MODES}
    for name, (value_N, chosen_N) in values.items():
        weights[name] = score_weights(value_N, chosen_N).to(mask.device)[:, None] * mask
    found = {name: g.double().numpy() for name, g in first.gradients(sample, weights).items()}
    return Gradients(
        direction={mode: found[mode] / np.linalg.norm(found[mode]) for mode in MODES},
        of_mean={name: found[name] for name in values},
    )


def observables(candidates: Sequence[Candidate]) -> dict[str, tuple[Floats, npt.NDArray[np.bool_]]]:
    """Return of each observable its value by response and which responses it is the mean over."""
    pairs = [
        (completion, score)
        for candidate in candidates
        for completion, score in zip(candidate.completions, candidate.scores, strict=True)
        if completion is not None and score is not None
    ]
    length = np.array([float(len(c.tokens)) for c, _ in pairs])
    right = np.array([score.right for _, score in pairs])
    everyone = np.ones(len(pairs), dtype=bool)
    return {
        "length of wrong answers": (length, ~right),
        "length": (length, everyone),
        "filler": (np.array([float(score.filler) for _, score in pairs]), everyone),
        "truncated share": (np.array([float(c.finish == "length") for c, _ in pairs]), everyone),
        "accuracy": (right.astype(np.float64), everyone),
    }


def score_weights(value_N: Floats, chosen_N: npt.NDArray[np.bool_]) -> Tensor:
    """Return w with E[Σ w·∇log π(y)] = ∇E[X | chosen], REINFORCE with the mean as baseline.

    Of a conditional mean: ∇(E[X·1]/E[1]) = E[1·(X − E[X | 1])·∇log π]/E[1]; the mean's own noise
    costs the factor n/(n − 1).
    """
    n = int(chosen_N.sum())
    centred = np.where(chosen_N, value_N - value_N[chosen_N].mean(), 0.0)
    return torch.from_numpy(centred / max(n - 1, 1)).float()


def _sampled(context: Context) -> list[Gradients]:
    size = size_of(context)
    seeds = context.seeds(size.n_samples, purpose=11)
    work = [(context.preset, seed, size.n_groups, context.device) for seed in seeds]
    return context.map(gradients, work)


def predict(context: Context) -> pd.DataFrame:
    """Return predicted changes; each sample's direction meets the next sample's ∇E."""
    found = _sampled(context)
    rows, table = [], []
    for mode in MODES:
        for name, unit in OBSERVABLES.items():
            values = np.array(
                [
                    EPSILON * own.direction[mode] @ after.of_mean[name]
                    for own, after in zip(found, [*found[1:], found[0]], strict=True)
                ]
            )
            told = measured_row(name, mode, values, unit=unit)
            ends = {"low": told["low"], "high": told["high"]}
            mean = float(values.mean())
            rows.append(predicted_row(name, mode, "first order", mean, unit=unit) | ends)
            table += [
                {"sample": i, "mode": mode, "quantity": name, "predicted": v}
                for i, v in enumerate(values.tolist())
            ]
    folder = _folder(context)
    folder.mkdir(parents=True, exist_ok=True)
    stacked = {mode: np.stack([g.direction[mode] for g in found]) for mode in MODES}
    np.savez(folder / "directions.npz", **stacked)  # type: ignore[arg-type]
    pd.DataFrame(table).to_csv(folder / "predicted.csv", index=False)
    return pd.DataFrame(rows)


def _folder(context: Context) -> Path:
    return context.cache / f"drift-{fingerprint(context)}"


# ---------------------------------------------------------------------- real steps


@dataclass(frozen=True)
class Step:
    """A step to take both ways: direction ``index`` of a file, measured with a seed of its own."""

    preset: Preset
    file: Path
    mode: str
    index: int
    n_groups: int
    device: str


def take(step: Step) -> dict[str, float]:
    """Return half the difference of every observable between θ + ε·d and θ − ε·d."""
    with np.load(step.file) as stored:
        direction = torch.from_numpy(stored[step.mode][step.index]).float()
    ends = [_means(step, sign * EPSILON * direction) for sign in (1.0, -1.0)]
    return {name: (ends[0][name] - ends[1][name]) / 2.0 for name in ends[0]}


def _means(step: Step, change: Tensor) -> dict[str, float]:
    preset = vary(
        step.preset,
        {"rollout.groups_per_step": step.n_groups, "collector": {"kind": "none"}},
    )
    world = build_world(preset, choose_device(step.device))
    parameters = list(world.model.parameters())
    with torch.no_grad():
        moved = parameters_to_vector(parameters) + change.to(world.device)
        vector_to_parameters(moved, parameters)
        world.generator.refresh()
        rollout = collect_step(
            world.generator,
            world.prompts,
            scores=world.scores,
            collector=preset.collector,
            rollout=preset.rollout,
            step=0,
        )
    return {
        name: float(value_N[chosen_N].mean())
        for name, (value_N, chosen_N) in observables(rollout.trained).items()
    }


def measure(context: Context) -> Tables:
    """Take every sample's step for every loss; the two losses share prompts and noise."""
    size, folder = size_of(context), _folder(context)
    seeds = context.seeds(size.n_samples, purpose=12)
    steps = [
        Step(
            vary(context.preset, {"run.seed": seed}),
            folder / "directions.npz",
            mode,
            index,
            size.n_measured,
            context.device,
        )
        for index, seed in enumerate(seeds)
        for mode in MODES
    ]
    changes = context.map(take, steps)
    rows = [
        {"sample": step.index, "mode": step.mode, "quantity": name, "measured": value}
        for step, change in zip(steps, changes, strict=True)
        for name, value in change.items()
    ]
    keys = ["sample", "mode", "quantity"]
    samples = pd.read_csv(folder / "predicted.csv").merge(pd.DataFrame(rows), on=keys)
    measured = [
        measured_row(name, mode, _column(samples, mode, name, "measured"), unit=unit)
        for mode in MODES
        for name, unit in OBSERVABLES.items()
    ]
    return {"measured": pd.DataFrame(measured), "samples": samples}


def _column(samples: pd.DataFrame, mode: str, name: str, column: str) -> Floats:
    chosen = samples[(samples["mode"] == mode) & (samples["quantity"] == name)]
    return np.asarray(chosen.sort_values("sample")[column].to_numpy(float), dtype=np.float64)


# ---------------------------------------------------------------------- claims


def _nothing() -> dict[str, float]:
    return {}


def _claim(name: str, statement: str, rows: tuple[Row, ...], **words: Any) -> Claim:
    return Claim(
        id=name,
        statement=statement,
        source="theory C5; sizes from a prototype of another warm start",
        instrument="real training",
        rows=rows,
        predict=_nothing,
        repeat="gradient sample, with the next sample's ∇E and a real step of its own",
        n=12,
        quick_n=8,
        **words,
    )


def judge(context: Context, predictions: pd.DataFrame, tables: Tables) -> Sequence[Outcome]:
    """Judge the ratio measured/predicted by loss, accuracy apart, and the order of the losses."""
    samples = tables["samples"]
    sure = [name for name in OBSERVABLES if name != "accuracy"]
    token, by_answer = MODES
    outcomes = [
        _ratios("v-drift-token-mean", "the loss token-mean", samples, [(token, n) for n in sure]),
        _by_answer(samples, by_answer, token, sure),
    ]
    accuracy = [(mode, "accuracy") for mode in MODES]
    outcomes.append(_ratios("v-drift-accuracy", "either loss", samples, accuracy))
    return [*outcomes, _order(samples)]


def _ratios(
    name: str, loss: str, samples: pd.DataFrame, cells: Sequence[tuple[str, str]]
) -> Outcome:
    names = [f"{quantity}, {mode}" for mode, quantity in cells]
    claim = _claim(
        name,
        f"A step of ‖Δθ‖ = {EPSILON:g} along the gradient of {loss} changes what the first order "
        "says, within 30 %.",
        tuple(
            Row(
                name=row,
                kind="value",
                says=1.0,
                rival=NOTHING,
                tolerance=RATIO,
                why="set before any run: far enough from no change, and what is left to the second "
                "order at this step in a prototype is half of it",
                unit="ratio",
            )
            for row in names
        ),
        kind="value",
        how_to_read="Measured over predicted change, one ratio a gradient sample: the error of "
        "both is in the interval.",
    )
    measured = {}
    for row, (mode, quantity) in zip(names, cells, strict=True):
        predicted = _column(samples, mode, quantity, "predicted")
        real = _column(samples, mode, quantity, "measured")
        # (m − p)/mean(p): a single small prediction does not blow up a ratio
        measured[row] = 1.0 + (real - predicted) / predicted.mean()
    return settle(claim, measured, predicted=dict.fromkeys(names, 1.0))


def _by_answer(samples: pd.DataFrame, mode: str, base: str, quantities: Sequence[str]) -> Outcome:
    """Judge errors in units of the other loss's change: this loss's own is too near to 0."""
    names = {quantity: f"{quantity}, {mode}" for quantity in quantities}
    claim = _claim(
        f"v-drift-{mode}",
        f"Where a step along the gradient of {mode} changes little, the first order says so: its "
        f"error is within 30 % of the change that a step along {base} makes.",
        tuple(
            Row(
                name=row,
                kind="value",
                says=0.0,
                rival=LIKE_TOKEN_MEAN,
                tolerance=RATIO,
                why="as for the ratio, of which this is the numerator",
                unit=f"of the change under {base}",
            )
            for row in names.values()
        ),
        kind="value",
        how_to_read="Measured less predicted change, over the size of what is predicted of "
        f"{base}. A ratio to its own prediction has no meaning where that is hardly different "
        "from 0.",
    )
    measured = {}
    for quantity, row in names.items():
        error = _column(samples, mode, quantity, "measured") - _column(
            samples, mode, quantity, "predicted"
        )
        measured[row] = error / abs(_column(samples, base, quantity, "predicted").mean())
    return settle(claim, measured, predicted=dict.fromkeys(names.values(), 0.0))


def _order(samples: pd.DataFrame) -> Outcome:
    quantity = "length of wrong answers"
    row = Row(
        name="shorter by",
        kind="order",
        says=0.0,
        rival=0.0,
        tolerance=0.2,
        why="a fifth of a token a step of 0.01 would not show in a run of tens of steps",
        unit="tokens",
    )
    claim = _claim(
        "v-drift-order",
        "A step of the same norm leaves wrong answers shorter along token-mean than along "
        "seq-mean-token-mean.",
        (row,),
        kind="order",
        how_to_read="Change under seq-mean-token-mean less that under token-mean, paired by "
        "gradient sample, prompts and noise.",
    )
    changes = [_column(samples, mode, quantity, "measured") for mode in MODES]
    measured = {row.name: changes[1] - changes[0]}
    said = [_column(samples, mode, quantity, "predicted").mean() for mode in MODES]
    return settle(claim, measured, predicted={row.name: float(said[1] - said[0])})


def figures(tables: Tables) -> list[FigureSpec]:
    """Return predicted and measured changes."""
    return [
        beside(
            tables,
            {
                "length of wrong answers": "wrong answers, tokens",
                "filler": "filler, tokens",
                "truncated share": "truncated, share",
                "accuracy": "accuracy, share",
            },
            name="drift",
            title=f"Change of lengths and shares by one step of ‖Δθ‖ = {EPSILON:g}",
            read="Blue: the real step. Square below it: the gradient's prediction. Both with 99 % "
            "intervals over gradient samples.",
        )
    ]


STUDY = Study(
    name="drift",
    title="First-order drift of one step",
    question="Does the gradient tell how a real step changes lengths, truncation and accuracy?",
    predict=predict,
    measure=measure,
    judge=judge,
    figures=figures,
    how_to_read="Changes of the mean over answers to training prompts. Only the aggregation "
    "differs between the two losses; their steps have the same norm.",
)
