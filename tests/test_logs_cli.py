"""``dapolab import-log`` in process: what it prints, writes and refuses."""

import json
from pathlib import Path

import pandas as pd
import pytest

from dapolab.cli import main
from tests.log_lines import FIELD_CASE, verl_line


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(FIELD_CASE + verl_line(8, pid=4242, timing_s__gen=20.5, timing_s__step=30))
    return path


def test_the_document(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-log", str(log), "--json"]) == 0

    def refuse(word: str) -> None:
        raise AssertionError(word)

    document = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert document["schema"] == "dapolab/import-log/1"
    assert document["command"] == "import-log"
    assert document["seed"] is None
    assert (document["format"], document["framework"], document["steps"]) == ("console", "verl", 2)
    assert document["runs"] == [{"run": "run", "steps": 2, "first_step": 7, "last_step": 8}]
    assert document["columns"]["time/rollout_seconds"] == {
        "unit": "s",
        "source": "timing_s/gen",
        "n": 2,
        "mean": (41.7 + 20.5) / 2,
        "min": 20.5,
        "max": 41.7,
    }
    assert any("kept groups" in note or "all waves" in note for note in document["notes"])


def test_the_page_fits_80_columns_and_names_keys(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import-log", str(log)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "timing_s/gen → time/rollout_seconds" in out
    assert "2 rows of 1 run, steps 7 to 8" in out


def test_the_table_is_written_whole(log: Path, tmp_path: Path) -> None:
    for name in ("out.parquet", "out.csv"):
        target = tmp_path / "new" / name
        assert main(["import-log", str(log), "-o", str(target)]) == 0
        read = pd.read_parquet(target) if name.endswith("parquet") else pd.read_csv(target)
        assert list(read["time/rollout_seconds"]) == [41.7, 20.5]
        assert [f.name for f in target.parent.glob(".*")] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.log"], "no such file or folder"),
        (["run.log", "-o", "out.xlsx"], "name a .parquet or .csv file"),
        (["run.log", "-o", "."], "is a folder"),
        (["run.log", "--format", "consol"], "nearest: 'console'"),
        (["run.log", "--framework", "ver"], "nearest: 'verl'"),
        (["run.log", "--columns", "x"], "should look like column=key"),
        (["run.log", "--columns", "step=a,step=b"], "names 'step' twice"),
        (["run.log", "--run", "other"], "it holds run"),
        (["run.log", "--every", "0"], "--every"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(log.parent)
    try:
        code = main(["import-log", *words])
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    err = capsys.readouterr().err
    assert message in err.replace("\n", " ")
    assert [f.name for f in log.parent.iterdir()] == ["run.log"]
