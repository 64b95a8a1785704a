"""The order of validation: predictions on disk first; verdicts; the page from stored tables."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

from dapolab.claims.claim import Claim, Row
from dapolab.claims.verdict import Outcome
from dapolab.errors import ConfigError
from gpu_runs.preset import load
from gpu_runs.validate import main
from gpu_runs.validate import run as command
from gpu_runs.validate.context import Context, vary
from gpu_runs.validate.study import Study, Tables, measured_row, predicted_row, settle

CLAIM = Claim(
    id="v-test",
    kind="value",
    statement="the mean is one",
    source="this test",
    instrument="real training",
    rows=(Row(name="mean", kind="value", says=1.0, rival=2.0, tolerance=0.1, why="a tenth"),),
    predict=lambda: {},
    how_to_read="near one",
    repeat="number",
    n=8,
    quick_n=6,
)
SAMPLES = 1.0 + 0.02 * np.array([-1.5, -1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 1.5])


def _study(seen: list[bool]) -> Study:
    def predict(context: Context) -> pd.DataFrame:
        return pd.DataFrame([predicted_row("mean", "here", "theory", 1.0, unit="ratio")])

    def measure(context: Context) -> Tables:
        written = command.table_folder(context.folder, "law") / "predictions.csv"
        seen.append(written.is_file() and "theory" in written.read_text(encoding="utf-8"))
        return {
            "measured": pd.DataFrame([measured_row("mean", "here", SAMPLES, unit="ratio")]),
            "samples": pd.DataFrame({"value": SAMPLES}),
        }

    def judge(context: Context, predictions: pd.DataFrame, tables: Tables) -> Sequence[Outcome]:
        values = tables["samples"]["value"].to_numpy(float)
        return [settle(CLAIM, {"mean": values}, predicted={"mean": 1.0})]

    return Study("law", "Means", "Is it one?", predict, measure, judge, lambda tables: [])


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(
        preset=load("toy_cpu"),
        quick=False,
        seed=0,
        device="cpu",
        n_jobs=1,
        folder=tmp_path / "out",
        cache=tmp_path / "cache",
    )


def test_predictions_are_on_disk_before_the_measurement_and_misses_stay(context: Context) -> None:
    seen: list[bool] = []
    claims = command.run_study(_study(seen), context)
    assert seen == [True]
    assert claims[0]["verdict"] == "holds"
    assert claims[0]["low"] < 1.0 < claims[0]["high"]
    place = command.table_folder(context.folder, "law")
    before = json.loads((place / "predictions.json").read_text(encoding="utf-8"))
    about = json.loads((place / "study.json").read_text(encoding="utf-8"))
    assert about["predictions_sha256"] == before["sha256"]
    assert about["n"] == {"v-test": 8}


def test_a_failing_measurement_leaves_the_predictions_and_no_manifest(context: Context) -> None:
    def fail(context: Context) -> Tables:
        raise ConfigError("no machine")

    study = replace(_study([]), measure=fail)
    command.run_study(_study([]), context)
    with pytest.raises(ConfigError, match="no machine"):
        command.run_study(study, context)
    place = command.table_folder(context.folder, "law")
    assert (place / "predictions.csv").is_file()
    assert not (place / "study.json").exists()


def test_a_changed_table_is_refused_and_a_page_is_drawn_from_tables_alone(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _study([])
    monkeypatch.setattr(command, "names", lambda: ("law",))
    monkeypatch.setattr(command, "find_study", lambda name: study)
    command.run_study(study, context)
    page = command.draw(context.folder)[1].read_text(encoding="utf-8")
    assert "v-test: holds" in page
    assert "| mean | here | 1 | 1.0" in page
    again = command.draw(context.folder)[1].read_text(encoding="utf-8")
    assert again == page
    path = command.table_folder(context.folder, "law") / "measured.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("here", "there"), encoding="utf-8")
    with pytest.raises(ConfigError, match="changed after it was measured"):
        command.draw(context.folder)


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        (SAMPLES, "holds"),
        (SAMPLES + 0.5, "fails"),
        (SAMPLES + 0.1, "undecided"),
        (SAMPLES[:5], "undecided"),
    ],
)
def test_settle_follows_the_rule_and_few_samples_decide_nothing(
    samples: np.ndarray, verdict: str
) -> None:
    found = settle(CLAIM, {"mean": samples}, predicted={"mean": 1.0})
    assert found.verdict == verdict
    assert found.rows[0].measured is not None
    assert found.rows[0].measured.mean == pytest.approx(float(samples.mean()))
    assert found.rows[0].measured.has_interval == (samples.size >= 6)


def test_vary_lays_settings_over_and_names_a_wrong_key() -> None:
    preset = load("toy_cpu")
    assert vary(preset, {"train.learning_rate": 1e-4}).train.learning_rate == 1e-4
    with pytest.raises(ConfigError, match="learning_rate"):
        vary(preset, {"train.learning_rat": 1e-4})


def test_seeds_of_blocks_purposes_and_quick_runs_are_apart(context: Context) -> None:
    sets = [
        set(replace(context, seed=block, quick=quick).seeds(20, purpose=purpose))
        for block in (0, 1)
        for quick in (False, True)
        for purpose in (0, 1, 2)
    ]
    assert len(set.union(*sets)) == 20 * len(sets)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toy_cpu", "--studies", "wave"], "nearest: waves"),
        (["toy_cpu", "--jobs", "0"], "--jobs"),
        (["toy_cpu", "--device", "tpu"], "auto, cpu or cuda"),
        (["toy_cpus"], "nearest: toy_cpu"),
        ([], "PRESET"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        main(words)
    assert not list(tmp_path.iterdir())


def test_a_finished_run_is_not_trained_again_and_the_tables_name_arm_and_seed(
    context: Context,
) -> None:
    small = vary(
        context.preset,
        {"run.steps": 1, "rollout.groups_per_step": 2, "evaluation.n_prompts": 2},
    )
    steps = context.train_runs({"a": small}, [5], tables=("steps",))["steps"]
    assert steps[["arm", "seed", "step"]].to_numpy().tolist() == [["a", 5, 0]]
    folder = context.run_folder(vary(small, {"run.seed": 5}))
    written = (folder / "steps.parquet").stat().st_mtime_ns
    context.train_runs({"a": small}, [5], tables=("steps",))
    assert (folder / "steps.parquet").stat().st_mtime_ns == written
