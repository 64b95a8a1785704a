"""DAPO's parts on GRPO: each added alone, all together, all minus one; paired seeds.

At equal updates and at equal generated tokens. What a part brings depends on what is there already,
so no share of the total is credited to one part: both ends and their difference are reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd

from dapolab.claims.verdict import Outcome
from dapolab.report import FigureSpec
from dapolab.report.dots import Dots, Panel, dot_panels
from dapolab.stats import Estimate
from gpu_runs.preset import Preset
from gpu_runs.validate import paired
from gpu_runs.validate.arms import UNITS, answers_in, plain
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.paired import Contrast
from gpu_runs.validate.standard_length import QUANTITY
from gpu_runs.validate.study import Study, Tables
from gpu_runs.validate.training_figures import curve_figure, difference_figure

GRPO, ALL = "GRPO", "all five"
CLIP, SAMPLING, MEAN, FILTERING, SOFT = (
    "clip-higher",
    "dynamic sampling",
    "token-mean",
    "overlong filtering",
    "soft overlong",
)
PARTS: Final = (CLIP, SAMPLING, MEAN, FILTERING, SOFT)
BUFFER_SHARE = 0.25
"""Of the cap: DAPO's is a fifth."""


@dataclass(frozen=True)
class Size:
    """How much is run."""

    n_seeds: int
    steps: int
    groups: int
    n_prompts: int


FULL = Size(n_seeds=12, steps=12, groups=16, n_prompts=64)
QUICK = Size(n_seeds=1, steps=2, groups=8, n_prompts=32)
EVERY = 2
RUNS = 27
LEARNING_RATE = 5e-5

TOKENS = "accuracy at equal generated tokens"
GENERATED = "generated tokens"
ALONE, LAST = "gain in accuracy, added alone", "gain in accuracy, taken out of all"
DEPENDS = "gain alone less gain as the last"
TOTAL = "gain in accuracy over GRPO"
TOGETHER, SUM = "all five together", "sum of the five alone"


def size_of(context: Context) -> Size:
    """Return the size of the run."""
    size = QUICK if context.quick else FULL
    return size if context.n_runs is None else replace(size, n_seeds=context.n_runs)


def without(part: str) -> str:
    """Return the name of the arm with all parts but one."""
    return f"all but {part}"


def arms(context: Context) -> dict[str, Preset]:
    """Return GRPO, one part each, all, and all but one: 12 arms."""
    size = size_of(context)
    base = plain(
        context,
        steps=size.steps,
        every=EVERY,
        groups=size.groups,
        n_prompts=size.n_prompts,
        train__learning_rate=LEARNING_RATE,
        objective__aggregation={"kind": "seq-mean-token-mean"},
        objective__clip={"kind": "ppo", "low": 0.2, "high": 0.2},
    )
    parts = _parts(base.rollout.cap_tokens)

    def with_parts(names: Sequence[str]) -> Preset:
        changes: dict[str, Any] = {}
        for name in names:
            changes |= parts[name]
        return vary(base, changes) if changes else base

    found = {GRPO: base} | {name: with_parts([name]) for name in PARTS}
    found[ALL] = with_parts(PARTS)
    return found | {without(n): with_parts([m for m in PARTS if m != n]) for n in PARTS}


def _parts(cap: int) -> Mapping[str, dict[str, Any]]:
    buffer = max(1, round(BUFFER_SHARE * cap))
    overlong = {"buffer_tokens": buffer, "factor": 1.0}
    return {
        CLIP: {"objective.clip": {"kind": "ppo", "low": 0.2, "high": 0.28}},
        SAMPLING: {"collector": {"kind": "exact_refill", "max_candidate_multiplier": 4}},
        MEAN: {"objective.aggregation": {"kind": "token-mean"}},
        FILTERING: {"objective.length.mask_truncated": True},
        SOFT: {
            "rollout.overlong": overlong,
            "objective.length.penalty": {"cap_tokens": cap, **overlong},
        },
    }


# ---------------------------------------------------------------------------- what is predicted


def _contrasts() -> list[Contrast]:
    contrast = partial(
        Contrast,
        base=GRPO,
        source="DAPO, arXiv 2503.14476, table 1, where parts are added one after another",
        how_to_read="Held-out answers of the last two evaluations, judged without any length "
        "rule, paired by seed.",
        predict=lambda: {},
        secondary=True,
    )
    accuracy = "two points of accuracy; DAPO's table gives its parts one to eight"
    share = "half a per cent of the answers"
    null: dict[str, Any] = {"kind": "null", "rival": 0.08, "delta": 0.02, "unit": "share"}
    return [
        contrast(
            id="ladder-interactions",
            statement="What DAPO's parts bring alone adds up to what they bring together (as a "
            "ladder of gains is read).",
            quantity=TOTAL,
            arm=TOGETHER,
            base=SUM,
            why=accuracy,
            secondary=False,
            **null,
        ),
        contrast(
            id="ladder-sampling-updates",
            statement="Dynamic sampling alone gains accuracy at equal updates, each of which "
            "holds more groups with a signal.",
            quantity="accuracy",
            arm=SAMPLING,
            delta=0.01,
            why="one point of accuracy",
            unit="share",
        ),
        contrast(
            id="ladder-sampling-tokens",
            statement="At equal generated tokens dynamic sampling alone changes no accuracy: it "
            "buys its signal with the answers that it throws away.",
            quantity=TOKENS,
            arm=SAMPLING,
            why=accuracy,
            **null,
        ),
        contrast(
            id="ladder-clip",
            statement="Clip-higher alone changes no accuracy where hardly a token reaches the "
            "bound.",
            quantity="accuracy",
            arm=CLIP,
            why=accuracy,
            **null,
        ),
        contrast(
            id="ladder-token-mean",
            statement="Token-mean alone leaves wrong answers shorter.",
            quantity=QUANTITY,
            arm=MEAN,
            side="below",
            delta=0.25,
            why="a quarter of a token in thirty",
            unit="tokens",
        ),
        contrast(
            id="ladder-filtering",
            statement="Overlong filtering alone leaves more truncation than GRPO, which counts a "
            "truncated answer as wrong.",
            quantity="truncated",
            arm=FILTERING,
            delta=0.005,
            why=share,
            unit="share",
        ),
        contrast(
            id="ladder-soft",
            statement="Soft overlong punishment alone leaves less truncation than GRPO.",
            quantity="truncated",
            arm=SOFT,
            side="below",
            delta=0.005,
            why=share,
            unit="share",
        ),
    ]


CONTRASTS = _contrasts()


def predict(context: Context) -> pd.DataFrame:
    """Return the contrasts' limits; of the rest theory says nothing."""
    return pd.DataFrame(paired.predicted(CONTRASTS))


# ---------------------------------------------------------------------------- what is measured


def measure(context: Context) -> Tables:
    """Train the twelve arms; compare at equal updates and at equal generated tokens."""
    size = size_of(context)
    seeds = context.seeds(size.n_seeds, purpose=RUNS)
    tables = ("steps", "evaluations", "heldout")
    trained = context.train_runs(arms(context), seeds, tables=tables)
    first = max(EVERY, size.steps - EVERY)
    runs = answers_in(trained["heldout"], first=first, last=size.steps)
    budgets = at_equal_tokens(trained["steps"], trained["evaluations"])
    runs = pd.concat([runs, budgets], ignore_index=True)
    parts = [gains(runs, quantity) for quantity in ("accuracy", TOKENS)]
    runs = pd.concat([runs, *parts], ignore_index=True)
    units = {**UNITS, TOKENS: "share", GENERATED: "tokens", TOTAL: "share"}
    units |= {
        f"{name}{at}": "share" for name in (ALONE, LAST, DEPENDS, TOTAL) for at in ("", _AT_TOKENS)
    }
    shown = {"eval/accuracy": "accuracy", "eval/truncated_share": "truncated"}
    return {
        "measured": pd.DataFrame(paired.measured(runs, CONTRASTS, units=units)),
        "runs": runs,
        "curves": paired.curves(trained["evaluations"], shown),
    }


def at_equal_tokens(steps: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return each run's accuracy where it has generated as many tokens as any arm of its seed has.

    Between evaluations accuracy is taken as a straight line in the tokens generated before them,
    those of dropped and surplus groups included.
    """
    totals, curves = {}, {}
    for key, run in steps.sort_values("step").groupby(["arm", "seed"]):
        spent = np.concatenate([[0.0], run["rollout/completion_tokens"].cumsum().to_numpy(float)])
        exams = evaluations[
            (evaluations["arm"] == key[0]) & (evaluations["seed"] == key[1])
        ].sort_values("step")
        at = exams["step"].to_numpy(int)
        totals[key] = float(spent[-1])
        curves[key] = (spent[at], exams["eval/accuracy"].to_numpy(float))
    found = []
    for (arm, seed), (spent, accuracy) in curves.items():
        budget = min(total for (_, other), total in totals.items() if other == seed)
        value = float(np.interp(budget, spent, accuracy))
        found += [(arm, seed, TOKENS, value), (arm, seed, GENERATED, totals[arm, seed])]
    return pd.DataFrame(found, columns=list(paired.RUNS))


_AT_TOKENS = ", equal tokens"


def gains(runs: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Return, of each seed, what each part gains alone and as the last of all, and the totals."""
    at = _AT_TOKENS if quantity == TOKENS else ""
    wide = runs[runs["quantity"] == quantity].pivot_table(
        index="seed", columns="arm", values="value"
    )
    found = []
    for seed, row in wide.iterrows():
        alone = {part: float(row[part] - row[GRPO]) for part in PARTS}
        last = {part: float(row[ALL] - row[without(part)]) for part in PARTS}
        for part in PARTS:
            found.append((part, seed, f"{ALONE}{at}", alone[part]))
            found.append((part, seed, f"{LAST}{at}", last[part]))
            found.append((part, seed, f"{DEPENDS}{at}", alone[part] - last[part]))
        found.append((TOGETHER, seed, f"{TOTAL}{at}", float(row[ALL] - row[GRPO])))
        found.append((SUM, seed, f"{TOTAL}{at}", sum(alone.values())))
    return pd.DataFrame(found, columns=list(paired.RUNS))


def judge(context: Context, predictions: pd.DataFrame, tables: Tables) -> Sequence[Outcome]:
    """Return the contrasts' verdicts."""
    return paired.outcomes(CONTRASTS, tables["runs"])


# ---------------------------------------------------------------------------- figures


def figures(tables: Tables) -> list[FigureSpec]:
    """Return the gain of each part alone and as the last, and curves of the arms."""
    curves = tables["curves"]
    few = curves[curves["arm"].isin([GRPO, *PARTS, ALL])]
    return [
        _gains_figure(tables["measured"]),
        difference_figure(
            tables["measured"],
            name="ladder-truncation",
            title="Truncation with one part, less that of GRPO",
            quantity="truncated",
            x_label="share of held-out answers",
            how_to_read="The two overlong parts pull in opposite directions: a masked answer is "
            "not pushed down, a punished one is pushed down before it is cut.",
        ),
        curve_figure(
            few,
            name="ladder-curves",
            title="GRPO, one part each, and all five",
            how_to_read="Curves at equal updates. An arm with dynamic sampling generates more "
            "tokens for the same updates: the table has both comparisons.",
        ),
    ]


def _gains_figure(measured: pd.DataFrame) -> FigureSpec:
    panels, said = [], []
    for at, title in (("", "equal updates"), (_AT_TOKENS, "equal tokens")):
        series = []
        for name, words, filled in ((ALONE, "added alone", True), (LAST, "taken out last", False)):
            rows = measured[measured["quantity"] == f"{name}{at}"]
            found = {str(r["setting"]): _estimate(r) for r in rows.to_dict("records")}
            series.append(
                Dots(words, {part: found[part] for part in PARTS if part in found}, filled)
            )
            said += [f"{title}, {words}: {part} {e.mean:+.3f}" for part, e in found.items()]
        panels.append(Panel(title, series, reference=0.0))
    figure = dot_panels(list(PARTS), panels, x_label="gain in held-out accuracy")
    return FigureSpec(
        "ladder-gains",
        figure,
        "What each part gains alone on GRPO, and as the last of the five",
        f"Gains around 0. {'; '.join(said)}.",
        "Filled: the part added to GRPO. Hollow: all five less all but this one. Where the two "
        "stand apart the part's worth depends on the others, and a share of the total credited to "
        "it would be an artefact of the order in which parts are added.",
    )


def _estimate(row: Mapping[Any, Any]) -> Estimate:
    ends = [None if pd.isna(row[end]) else float(row[end]) for end in ("low", "high")]
    return Estimate(float(row["value"]), ends[0], ends[1], int(row["n"]), "")


STUDY = Study(
    name="ladder",
    title="DAPO's parts, alone and together",
    question="What does each part bring alone, what as the last, and do the gains add up?",
    predict=predict,
    measure=measure,
    judge=judge,
    figures=figures,
    how_to_read=(
        "*Equal updates*: the same number of rollouts and optimizer steps. *Equal tokens*: "
        "accuracy where a run has generated as much as the thriftiest arm of its seed. All claims "
        "but that on interactions are corrected by Holm's rule; no share of the total belongs to "
        "one part."
    ),
)
