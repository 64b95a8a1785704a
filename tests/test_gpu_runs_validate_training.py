"""Training studies: statistics by hand, and what small runs must show whatever the seed."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

from scipy import stats

from dapolab.claims.claim import Row
from dapolab.claims.verdict import check_rival, judge
from dapolab.report.style import legend_columns
from gpu_runs.preset import Preset, load
from gpu_runs.validate import aggregation, clip_higher, ladder, paired, picture, truncated
from gpu_runs.validate.aggregation import COSINE, NORM, SEQ, TO_NORM, TO_SEQ, TOKEN
from gpu_runs.validate.arms import plain
from gpu_runs.validate.clipped_tokens import CLIPPED, LARGEST, REWARDED, clipped_tokens
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.dumped import signal_of
from gpu_runs.validate.paired import Contrast, decisive_p, holm
from gpu_runs.validate.run import run_study, stored
from gpu_runs.validate.standard_length import class_of, standard_length

STUDIES = (aggregation, picture, clip_higher, truncated, ladder)


def context_in(folder: Path, **changes: Any) -> Context:
    return Context(
        preset=load("toy_cpu", {"data.n_prompts": 256}),
        quick=True,
        seed=0,
        device="cpu",
        n_jobs=1,
        folder=folder / "report",
        cache=folder / "cache",
        **changes,
    )


# ---------------------------------------------------------------------------- statistics


def test_holm_by_hand() -> None:
    # sorted .01, .03, .04: 3·.01, 2·.03, then 1·.04 raised to the largest so far
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06}
    )
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def samples_with(mean: float, p: float, *, n: int = 6) -> np.ndarray[Any, Any]:
    """Return n numbers whose one-sided t test against 0 has exactly this p."""
    shape = np.arange(n) - (n - 1) / 2
    unit = shape / shape.std(ddof=1)
    t = float(stats.t.isf(p, n - 1))
    values: np.ndarray[Any, Any] = mean + unit * mean * np.sqrt(n) / t
    return values


@pytest.mark.parametrize("kind", ["order", "null"])
def test_decisive_p_is_where_the_judge_changes_its_mind(kind: Any) -> None:
    rng = np.random.default_rng(5)
    row = Row(name="x", kind=kind, says=0.0, rival=-4.0, tolerance=1.0, why="test")
    for _ in range(20):
        samples = rng.normal(rng.uniform(-3, 3), 0.6, size=8)
        p = decisive_p(row, samples)
        if 1e-6 < p < 0.45:
            assert judge(row, samples, says=0.0, level=1 - 1.02 * p) != "undecided"
            assert judge(row, samples, says=0.0, level=1 - 0.98 * p) == "undecided"


def contrast(name: str, **changes: Any) -> Contrast:
    words = {"statement": "s", "source": "s", "how_to_read": "h", "why": "w", "unit": "tokens"}
    return Contrast(
        id=name,
        quantity=name,
        arm="new",
        base="old",
        delta=1e-9,
        predict=lambda: {},
        **{**words, **changes},
    )


def runs_of(samples: Mapping[str, np.ndarray[Any, Any]]) -> pd.DataFrame:
    rows = [
        (arm, seed, name, 10.0 + (value if arm == "new" else 0.0))
        for name, values in samples.items()
        for seed, value in enumerate(values)
        for arm in ("new", "old")
    ]
    return pd.DataFrame(rows, columns=list(paired.RUNS))


def test_one_secondary_result_among_three_must_be_stronger() -> None:
    samples = {
        "strong": samples_with(1.0, 0.003),
        "weak": samples_with(1.0, 0.006),
        "none": samples_with(1.0, 0.4),
    }

    def verdicts(*, secondary: bool) -> dict[str, str]:
        contrasts = [contrast(name, secondary=secondary) for name in samples]
        found = paired.outcomes(contrasts, runs_of(samples))
        return {outcome.claim.id: outcome.verdict for outcome in found}

    alone = verdicts(secondary=False)
    assert alone == {"strong": "holds", "weak": "holds", "none": "undecided"}
    # 3·.003 < .01, but 2·.006 > .01
    assert verdicts(secondary=True) == {**alone, "weak": "undecided"}


def test_differences_are_taken_within_a_seed() -> None:
    runs = pd.DataFrame(
        [("new", 2, "q", 5.0), ("old", 1, "q", 1.0), ("new", 1, "q", 3.0), ("new", 3, "q", 9.0)],
        columns=list(paired.RUNS),
    )
    assert paired.difference(runs, "q", "new", "old").tolist() == [2.0]
    assert paired.difference(runs, "other", "new", "old").size == 0


def answers(rows: list[tuple[int, str, int, bool]]) -> pd.DataFrame:
    columns = ["extra/difficulty", "extra/stratum", "n_tokens", "correct"]
    return pd.DataFrame(rows, columns=columns)


def test_standardised_length_by_hand() -> None:
    rows = [
        (2, "n=2", 10, False),
        (5, "n=5", 20, False),
        (12, "n=12", 40, False),
        (12, "n=12", 64, True),
        (4, "masked", 30, False),
    ]
    weights = {"2 to 5 digits": 0.2, "6 to 9 digits": 0.4, "10 to 12 digits": 0.3, "masked": 0.1}
    # no wrong answer to 6 to 9 digits: the weights of the rest are .2, .3, .1
    by_hand = (0.2 * 15 + 0.3 * 40 + 0.1 * 30) / 0.6
    assert standard_length(answers(rows), weights=weights) == pytest.approx(by_hand)
    more = answers([*rows, *[(2, "n=2", 10, False), (5, "n=5", 20, False)] * 9])
    assert standard_length(more, weights=weights) == pytest.approx(by_hand)
    assert more[~more["correct"]]["n_tokens"].mean() < 20  # which the plain mean follows
    assert standard_length(answers(rows), weights=weights, right=True) == 64.0
    assert np.isnan(standard_length(answers(rows[3:4])))
    assert [class_of(n, "") for n in (5, 6, 9, 10)] == [
        "2 to 5 digits",
        *["6 to 9 digits"] * 2,
        "10 to 12 digits",
    ]


def test_equal_tokens_by_hand() -> None:
    steps = pd.DataFrame(
        [("a", 1, s, 100.0) for s in (0, 1)] + [("b", 1, s, 200.0) for s in (0, 1)],
        columns=["arm", "seed", "step", "rollout/completion_tokens"],
    )
    exams = pd.DataFrame(
        [("a", 1, 0, 0.2), ("a", 1, 2, 0.4), ("b", 1, 0, 0.2), ("b", 1, 1, 0.5), ("b", 1, 2, 0.9)],
        columns=["arm", "seed", "step", "eval/accuracy"],
    )
    found = ladder.at_equal_tokens(steps, exams)
    at = found[found["quantity"] == ladder.TOKENS].set_index("arm")["value"]
    # a has spent 200 tokens at its end; b had spent 200 after its first step
    assert at.to_dict() == pytest.approx({"a": 0.4, "b": 0.5})


def test_equal_accuracy_by_hand() -> None:
    # entropy = 1 − accuracy in one arm and 1.1 − accuracy in the other, which learns faster
    rows = [("slow", 1, a, 1.0 - a) for a in (0.2, 0.4, 0.6)]
    rows += [("fast", 1, a, 1.1 - a) for a in (0.3, 0.6, 0.9)]
    steps = pd.DataFrame(rows, columns=["arm", "seed", "reward/accuracy", "entropy/token_mean"])
    found = clip_higher.at_equal_accuracy(steps).set_index("arm")["value"]
    assert found.to_dict() == pytest.approx({"slow": 0.55, "fast": 0.65})  # at (.3 + .6)/2
    assert clip_higher.at_equal_accuracy(steps.head(3)).shape[0] == 1


def test_gains_by_hand() -> None:
    value = {ladder.GRPO: 0.3, ladder.ALL: 0.5}
    value |= {part: 0.3 + 0.02 * i for i, part in enumerate(ladder.PARTS)}
    value |= {ladder.without(part): 0.5 - 0.01 * i for i, part in enumerate(ladder.PARTS)}
    runs = pd.DataFrame(
        [(arm, 1, "accuracy", v) for arm, v in value.items()], columns=list(paired.RUNS)
    )
    found = ladder.gains(runs, "accuracy").set_index(["quantity", "arm"])["value"]
    assert found[ladder.ALONE, ladder.SOFT] == pytest.approx(0.08)
    assert found[ladder.LAST, ladder.SOFT] == pytest.approx(0.04)
    assert found[ladder.DEPENDS, ladder.SOFT] == pytest.approx(0.04)
    assert found[ladder.TOTAL, ladder.TOGETHER] == pytest.approx(0.2)
    assert found[ladder.TOTAL, ladder.SUM] == pytest.approx(0.02 + 0.04 + 0.06 + 0.08)


@pytest.mark.parametrize("module", STUDIES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_claim_can_be_refuted(module: Any) -> None:
    claims = [contrast.claim for contrast in module.CONTRASTS]
    claims += [value for value in vars(module).values() if hasattr(value, "rows")]
    ids = [claim.id for claim in claims]
    assert len(set(ids)) == len(ids)
    for claim in claims:
        told = dict(claim.predict())
        for row in claim.rows:
            says = told.get(row.name, 0.5) if row.says is None else row.says
            check_rival(claim, row, says=says)


def test_blocks_of_seeds_are_disjoint(tmp_path: Path) -> None:
    blocks = [aggregation.RUNS, aggregation.PREDICTING, aggregation.PROBING]
    blocks += [clip_higher.RUNS, clip_higher.PROBING]
    blocks += [truncated.RUNS, truncated.PREDICTING, ladder.RUNS]
    assert all(a < b for a, b in pairwise(blocks))
    context = context_in(tmp_path)
    first = {context.seeds(1, purpose=block)[0] for block in blocks}
    assert len(first) == len(blocks)


# ---------------------------------------------------------------------------- dumped answers


def test_masked_answers_lift_the_others_only_from_within_the_baseline() -> None:
    rows = pd.DataFrame(
        {
            "group_id": "0/1",
            "n_tokens": [3, 2, 4, 4],
            "correct": [True, False, False, False],
            "truncated": [False, False, True, True],
        }
    )
    preset = vary(load("toy_cpu"), {"objective.length.mask_truncated": True})

    def advantages(preset: Preset) -> list[float]:
        found = signal_of(preset, rows)
        assert found.trained.tolist() == [True, True, False, False]
        return [float(a) for a in found.signal.advantages.squeeze(-1)[found.trained]]

    # rewards 1, −1, −1, −1: mean −.5, standard deviation 1
    assert advantages(preset) == pytest.approx([1.5, -0.5], abs=1e-5)
    out = vary(preset, {"objective.advantage.truncated": "exclude"})
    # rewards 1, −1 alone: mean 0, standard deviation √2
    assert advantages(out) == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)


# ---------------------------------------------------------------------------- small runs


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run the studies on aggregation in a size that is only good for identities."""
    size = aggregation.Size(n_seeds=1, steps=2, window=(0, 2), groups=3, n_prompts=4, n_gradients=1)
    context = context_in(tmp_path_factory.mktemp("validate"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "QUICK", size)
        patch.setattr(picture, "_n_steps", lambda context: 1)
        run_study(aggregation.STUDY, context)
        run_study(picture.STUDY, context)
        presets = aggregation.arms(context)
    return context, presets


def test_arms_share_every_draw_until_they_have_learned(small: Any) -> None:
    context, presets = small
    [seed] = context.seeds(1, purpose=aggregation.RUNS)
    folders = {arm: context.run_folder(vary(p, {"run.seed": seed})) for arm, p in presets.items()}

    def drawn(arm: str, table: str, step: int) -> list[list[Any]]:
        rows = pd.read_parquet(folders[arm] / f"{table}.parquet")
        columns = ["prompt_id", "sample", "n_tokens", "correct", "extra/answer"]
        return rows.loc[rows["step"] == step, columns].to_numpy().tolist()

    for table in ("rollouts", "heldout"):
        assert drawn(TOKEN, table, 0) == drawn(SEQ, table, 0) == drawn(NORM, table, 0)
    prompts = [[row[0] for row in drawn(arm, "rollouts", 1)] for arm in (TOKEN, SEQ)]
    assert prompts[0] == prompts[1]
    assert drawn(TOKEN, "rollouts", 1) != drawn(SEQ, "rollouts", 1)


def test_one_direction_and_the_weights_of_the_formula(small: Any) -> None:
    context, _ = small
    found = stored(context.folder, "aggregation")
    assert found is not None
    gradients = found[1]["gradients"].set_index(["quantity", "setting"])["value"]
    assert gradients[COSINE, TO_NORM] > 0.9999
    assert gradients[COSINE, TO_SEQ] < 0.99
    assert gradients["largest gap of a share", "loss less formula"] < 1e-5
    assert (
        gradients["weight on the longest tenth", TOKEN]
        > 1.2 * (gradients["weight on the longest tenth", SEQ])
    )


def test_the_picture_holds_all_of_the_push(small: Any) -> None:
    context, _ = small
    found = stored(context.folder, "picture")
    assert found is not None
    table = found[1]["picture"]
    for _, part in table.groupby(["arm", "stage"]):
        assert part["push"].abs().sum() == pytest.approx(1.0, abs=1e-6)
        assert part["answers"].sum() == pytest.approx(1.0, abs=1e-6)
    # with rewards ±1 a right answer is never pushed down, a wrong one never up
    assert set(table["part"]) <= {"right, A > 0", "wrong, A < 0", "no push"}


def test_few_runs_decide_nothing_but_identities_and_every_figure_is_drawn(small: Any) -> None:
    context, _ = small
    for study in (aggregation.STUDY, picture.STUDY):
        found = stored(context.folder, study.name)
        assert found is not None
        assert study.figures(found[1])
        assert set(found[1]["measured"]["n"]) == {1}


def test_a_higher_bound_clips_fewer_tokens_and_none_that_was_likely(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    base = plain(
        context,
        steps=1,
        every=1,
        groups=8,
        n_prompts=2,
        train__epochs=2,
        train__learning_rate=1e-4,
    )
    clips = {high: {"kind": "ppo", "low": 0.2, "high": high} for high in (0.2, 0.28)}
    arms = {str(high): vary(base, {"objective.clip": clip}) for high, clip in clips.items()}
    steps = context.train_runs(arms, [1], tables=["steps"])["steps"].set_index("arm")
    share = steps["ppo/upper_clip_fraction"]
    assert 0 < share["0.28"] < 0.85 * share["0.2"]  # .50, .60, .66 at three seeds
    found = clipped_tokens(("", arms["0.28"], 1, "cpu"))
    likely, unlikely, largest = (float(str(found[q])) for q in (REWARDED, CLIPPED, LARGEST))
    assert largest <= 1 / 1.28 + 1e-5
    assert unlikely < likely - 0.2


def test_a_soft_penalty_lowers_truncation(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    base = plain(
        context,
        steps=3,
        every=3,
        groups=6,
        n_prompts=24,
        rollout__cap_tokens=40,
        train__learning_rate=2e-4,
    )
    overlong = {"buffer_tokens": 16, "factor": 1.0}
    penalty = {"cap_tokens": 40, **overlong}
    soft = vary(base, {"rollout.overlong": overlong, "objective.length.penalty": penalty})
    trained = context.train_runs({"wrong": base, "soft": soft}, [13], tables=["evaluations"])
    share = partial(paired.window, trained["evaluations"], "eval/truncated_share", quantity="t")
    assert (paired.difference(share(first=0, last=0), "t", "soft", "wrong") == 0).all()
    gaps = paired.difference(share(first=3, last=3), "t", "soft", "wrong")
    assert gaps.size == 1
    assert gaps[0] < -0.01  # over five seeds it is −.075, with a standard deviation of .03


def test_runs_may_be_fewer_than_the_studys_own(tmp_path: Path) -> None:
    context = dataclasses.replace(context_in(tmp_path), n_runs=3)
    for module in (aggregation, clip_higher, truncated, ladder):
        assert module.size_of(context).n_seeds == 3


def test_a_legend_has_as_many_columns_as_fit() -> None:
    """Of 57.6 em: 4·(.6·14 + 4.8) = 52.8 fit, .6·(40 + 40 + 1) + 3·4.8 = 63 do not."""
    assert legend_columns(["x" * 14] * 4) == 4
    assert legend_columns(["x" * 20, "x" * 22, "x"]) == 3
    assert legend_columns(["x" * 40, "x" * 40, "x"]) == 2
    assert legend_columns(["x" * 60, "x" * 60]) == 1
