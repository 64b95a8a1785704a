"""The command line: what it prints, how it refuses, and what it can do without."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from kill_driver import SETTINGS

from dapolab.records import read_records
from gpu_runs.__main__ import main

ROOT = Path(__file__).parent.parent
TINY = [f"--{key}={json.dumps(value)}" for key, value in SETTINGS.items()]
CORE = ("torch", "numpy", "pandas", "pyarrow", "pydantic")


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpu_runs: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("trian", "toy_cpu"), "unknown command 'trian'; choose train"),
        (("train",), "PRESET"),
        (("train", "toy_cpuu"), "nearest: toy_cpu"),
        (("train", "no/such.toml"), "no/such.toml: no such file"),
        (("train", "toy_cpu", "--learnin_rate", "1"), "nearest: --train.learning_rate"),
        (("train", "toy_cpu", "--stpes", "1"), "nearest: --steps"),
        (("train", "toy_cpu", "--train.lerning_rate", "1"), "nearest valid key: 'learning_rate'"),
        (("train", "toy_cpu", "--train.learning_rate", "-1"), "must be above 0"),
        (("train", "toy_cpu", "--recipe", "06-dpo"), "nearest: 06-dapo"),
        (("train", "toy_cpu", "--collector.kind", "segments"), "is simulated, not run"),
        (("train", "toy_cpu", "--objective.advantage.kind", "gae"), "no value function"),
        (("train", "toy_cpu", "--rollout.group_size", "1"), "no spread to filter on"),
        (("train", "toy_cpu", "--evaluation.pass_at", "[16]"), "needs as many samples"),
        (("train", "toy_cpu", "--seed"), "--seed needs a value"),
        (("train", "toy_cpu", "--device", "tpu"), "choose auto, cpu or cuda"),
        (("train", "hf_math"), "--hf-path DIR is missing"),
        (("train", "hf_math", "--hf-path", "here"), "--dataset FILE is missing"),
        (("train", "toy_cpu", "--hf-path", "here"), 'set task.kind = "math"'),
        (("train", "toy_cpu", "--rollout.cap_tokens", "4096"), "exceed the model's 128 positions"),
    ],
)
def test_wrong_words_get_one_line_and_write_nothing(
    words: tuple[str, ...],
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in _refused(capsys, *words)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="says what a torch without CUDA says"
)
def test_cuda_is_asked_for_and_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = _refused(capsys, "train", "toy_cpu", "--device", "cuda")
    assert "sees no CUDA device; use --device cpu" in told


def test_help_names_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    assert "train" in told
    assert ("validate" in told) == (importlib.util.find_spec("gpu_runs.validate") is not None)
    with pytest.raises(SystemExit) as left:
        main(["train", "--help"])
    assert left.value.code == 0
    assert "--recipe trl-1.16-dapo" in capsys.readouterr().out


def test_a_run_tells_json_and_its_dump_is_fitted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = ["train", "toy_cpu", *TINY, "--steps", "2", "--device", "cpu", "-o", str(folder)]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["command"], told["seed"]) == ("gpu_runs/train/1", "train", 5)
    assert (told["status"], told["steps"], told["folder"]) == ("finished", 2, "run")
    steps = pd.read_parquet(folder / "steps.parquet")
    accuracy = told["metrics"]["reward/accuracy"]
    assert accuracy["mean"] == steps["reward/accuracy"].iloc[-1]
    assert accuracy["unit"] == "share"
    held = told["evaluation"]["eval/accuracy"]
    assert held["low"] <= held["mean"] <= held["high"]
    assert held["n"] == 3
    records = read_records(folder / "rollouts.parquet")
    assert records.selection == "all"
    assert set(records.table["step"]) == {0, 1}
    assert main(words) == 0
    assert f"next: dapolab fit {folder}" in capsys.readouterr().out


def test_a_policy_that_gives_up_ends_the_run_with_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    tiny = [word for word in TINY if "collector" not in word]
    words = ["train", "toy_cpu", *tiny, "--collector.kind", "rounds", "--collector.gen_groups=1"]
    words += ["--collector.max_num_gen_batches", "2", "-o", str(folder), "--json"]
    assert main(words) == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["status"] == "failed"
    assert "no full batch in max_num_gen_batches=2" in told["message"]
    assert err.splitlines()[-1] == f"gpu_runs: {told['message']}"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert pd.read_parquet(folder / "steps.parquet")["ended_by"].tolist()[-1] == "failure"


_HIDING = """
import sys
from importlib.machinery import PathFinder

core = {core!r}
# what the core packages themselves bring, as their own metadata says
from importlib import metadata
import re
allowed, todo = set(), list(core)
while todo:
    name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
    if name in allowed:
        continue
    allowed.add(name)
    try:
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        continue
    todo += [re.split(r"[ ;<>=!~\\[(]", n)[0] for n in needs if "extra ==" not in n]
allowed.discard("jinja2")  # of torch, for kernels that nothing here compiles
of_module = metadata.packages_distributions()
normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()

class Hide:
    # what is not of the core looks as if it were not installed
    @staticmethod
    def find_spec(name, path=None, target=None):
        owners = {{normal(o) for o in of_module.get(name.partition(".")[0], ())}}
        if owners and not owners & allowed and not name.startswith("dapolab"):
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Hide if f is PathFinder else f for f in sys.meta_path]
for name in ("rich", "scipy", "pandera", "simpy", "numba", "matplotlib", "joblib", "jinja2"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(name + " is not blocked: the test proves nothing")
from gpu_runs.__main__ import main
code = max(main(words) for words in {commands!r})
third = sorted({{m.partition(".")[0] for m in sys.modules}} & set(of_module))
print("third-party:", *third)
sys.exit(code)
"""


def test_training_and_calibration_run_on_five_packages(tmp_path: Path) -> None:
    commands = [
        [name, "toy_cpu", *TINY, "--steps=1", *more, "--device=cpu", "-o", str(tmp_path / name)]
        for name, more in (("train", []), ("calibrate", ["--smoke", "--engine.slots=8"]))
    ]
    code = _HIDING.format(core=CORE, commands=commands)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no TensorBoard files" in done.stderr
    for name in ("train", "calibrate"):
        assert (tmp_path / name / "manifest.json").is_file()
