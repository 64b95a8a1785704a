"""A run that is killed at any moment goes on bit by bit as if nothing had happened."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from kill_driver import SETTINGS

from dapolab.errors import ConfigError
from dapolab.store import read_run
from gpu_runs import checkpoint
from gpu_runs.journal import Journal
from gpu_runs.preset import Preset, load
from gpu_runs.train import Outcome, train

TESTS = Path(__file__).parent
ROOT = TESTS.parent


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def _preset(**changes: Any) -> Preset:
    return load("toy_cpu", SETTINGS | changes)


def _train(folder: Path, **changes: Any) -> Outcome:
    return train(_preset(**changes), folder=folder, device="cpu", progress=False)


def _without_time(table: pd.DataFrame) -> pd.DataFrame:
    clocks = ("time/", "t_", "extra/t_")
    by_clock = ("seconds", "start_s", "rollout/idle", "rollout/t", "engine/mean", "rollout/wave_")
    return table[
        [
            name
            for name in table.columns
            if not name.startswith(clocks)
            and not (name.endswith("seconds") or name.startswith(by_clock))
        ]
    ]


def _same(one: Path, other: Path) -> None:
    """Two runs are equal in everything but time."""
    states = [checkpoint.read(folder / "checkpoint.pt") for folder in (one, other)]
    weights = [state["model"] for state in states]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    moments = [state["optimizer"]["state"] for state in states]
    for key, held in moments[0].items():
        assert all(torch.equal(held[name], moments[1][key][name]) for name in held)
    assert [s["position"] for s in states] == [states[0]["position"]] * 2
    runs = [read_run(folder) for folder in (one, other)]
    assert runs[0].tables.keys() == runs[1].tables.keys()
    assert {"steps", "updates", "waves", "evaluations", "rollouts", "heldout"} <= set(
        runs[0].tables
    )
    for name, table in runs[0].tables.items():
        pd.testing.assert_frame_equal(_without_time(table), _without_time(runs[1].tables[name]))
    assert len(_without_time(runs[0].tables["steps"]).columns) > 40


def test_a_run_killed_over_and_over_equals_one_that_was_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "kill_driver.py"), str(tmp_path), "17"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["whole"] == 0
    codes = [code for code, _ in told["log"]]
    assert codes[-1] == 0
    assert codes[:-1] == [-signal.SIGKILL] * (len(codes) - 1)
    assert len(codes) > 5
    # never a step lost but the one in progress: the journal only grows, or loses its last line
    steps = [n for _, n in told["log"]]
    assert all(later >= earlier - 1 for earlier, later in itertools.pairwise(steps))
    _same(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed").glob(".*.tmp"))
    steps_table = read_run(tmp_path / "killed").tables["steps"]
    assert steps_table["step"].tolist() == list(range(5))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, never touched again."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    _train(folder, **{"run.steps": 4})
    return folder


def test_a_finished_run_goes_on_to_more_steps(tmp_path: Path, whole: Path) -> None:
    first = _train(tmp_path / "two", **{"run.steps": 2})
    assert (first.first_step, first.steps) == (0, 2)
    longer = _train(tmp_path / "two", **{"run.steps": 4})
    assert (longer.first_step, longer.steps) == (2, 4)
    _same(whole, tmp_path / "two")
    again = _train(tmp_path / "two", **{"run.steps": 4})
    assert again.first_step == again.steps == 4
    assert again.metrics == longer.metrics
    _same(whole, tmp_path / "two")


def test_steps_between_checkpoints_are_made_again(tmp_path: Path, whole: Path) -> None:
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    _train(tmp_path / "run", **{"run.steps": 2, "run.checkpoint_every": 2})
    # as if killed in step 3 with the checkpoint of step 2: the rows after it are cut
    records = Journal(whole / "journal.jsonl").records()
    journal.append(records[2] | {"position": -1})
    with journal.path.open("ab") as file:
        file.write(b'{"step": 3, "metr')
    resumed = _train(tmp_path / "run", **{"run.steps": 4})
    assert resumed.first_step == 2
    _same(whole, tmp_path / "run")


def test_a_damaged_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _train(folder, **{"run.steps": 1})
    good = (folder / "checkpoint.pt").read_bytes()
    for bad in (good[: len(good) // 2], b"", b"not a checkpoint"):
        (folder / "checkpoint.pt").write_bytes(bad)
        with pytest.raises(ConfigError, match="no checkpoint that can be read"):
            _train(folder, **{"run.steps": 2})
    torch.save({"format": 99}, folder / "checkpoint.pt")
    with pytest.raises(ConfigError, match="format 99"):
        _train(folder, **{"run.steps": 2})
    (folder / "checkpoint.pt").write_bytes(good)
    (folder / "journal.jsonl").write_text("")
    with pytest.raises(ConfigError, match="0 of the 1 steps"):
        _train(folder, **{"run.steps": 2})
    (folder / "journal.jsonl").write_text("{}\nrubbish\n{}\n")
    with pytest.raises(ConfigError, match="line 2: not a record"):
        _train(folder, **{"run.steps": 2})


def test_a_checkpoint_never_runs_what_is_in_it(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"format": 1, "step": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(ConfigError, match="no checkpoint that can be read"):
        checkpoint.read(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "ran").exists()


def test_another_run_and_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _train(folder, **{"run.steps": 1})
    with pytest.raises(ConfigError, match=r"train\.learning_rate is 0\.001 there"):
        _train(folder, **{"run.steps": 1, "train.learning_rate": 1e-4})
    other = tmp_path / "notes"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds other files"):
        _train(other)
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match="is a file"):
        _train(other / "thesis.tex")


def test_arms_share_prompts_and_draws_until_their_policies_differ(tmp_path: Path) -> None:
    dumps = []
    for name, rate in (("one", 1e-3), ("other", 1e-2)):
        _train(tmp_path / name, **{"run.steps": 2, "train.learning_rate": rate})
        rollouts = read_run(tmp_path / name).tables["rollouts"]
        dumps.append([_without_time(rollouts[rollouts["step"] == step]) for step in (0, 1)])
    pd.testing.assert_frame_equal(dumps[0][0], dumps[1][0])
    prompts = [dump[1][["prompt_id", "extra/position"]].head(12) for dump in dumps]
    pd.testing.assert_frame_equal(*prompts)
    assert not dumps[0][1].head(12).equals(dumps[1][1].head(12))


def test_a_stream_without_barrier_has_one_row_a_step_and_goes_on_alike(tmp_path: Path) -> None:
    changes = {"collector.kind": "streaming", "engine.clock": "process"}
    changes |= {"objective.clip.kind": "clip_cov", "train.shuffle": True, "train.epochs": 2}
    kept = {k: v for k, v in SETTINGS.items() if not k.startswith("collector")}
    for name, n_steps in (("whole", (3,)), ("cut", (1, 3))):
        for n in n_steps:
            preset = load("toy_cpu", kept | changes | {"run.steps": n})
            train(preset, folder=tmp_path / name, device="cpu", progress=False)
    _same(tmp_path / "whole", tmp_path / "cut")
    tables = read_run(tmp_path / "whole").tables
    assert len(tables["waves"]) == 3
    assert tables["waves"]["wave"].isna().all()
    steps, waves = tables["steps"], tables["waves"]
    assert (steps["rollout/completion_tokens"] == waves["tokens"]).all()
    assert (steps["time/rollout_seconds"] < 60).all()


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    from gpu_runs.run_folder import RunFolder

    files = RunFolder(tmp_path / "run", _preset())
    files.open()
    try:
        with pytest.raises(ConfigError, match="another process is training there"):
            _train(tmp_path / "run")
    finally:
        files.close()
    assert _train(tmp_path / "run", **{"run.steps": 1}).status == "finished"
