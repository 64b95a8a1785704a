"""Nothing half-written: real interruptions, real kills, torn files."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from dapolab import store
from dapolab.scenario import ConfigError
from dapolab.store import files, runs, shards


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def tables() -> dict[str, pd.DataFrame]:
    steps = pd.DataFrame(
        {
            "step": pd.array([0, 1, None], dtype="Int64"),
            "time/step_seconds": [1.5, float("nan"), 2.0],
            "policy": ["a", "b", "ü"],
        }
    )
    return {"steps": steps, "groups": pd.DataFrame({"n": [1]})}


def test_atomic_write_makes_folders_and_replaces(tmp_path):
    path = store.atomic_write(tmp_path / "a" / "b.txt", "ä\n")
    assert path.read_bytes() == "ä\n".encode()
    store.atomic_write(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert names(path.parent) == ["b.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_old_file_alone(tmp_path, monkeypatch, error, moment):
    path = tmp_path / "report.json"
    path.write_text("old")

    def interrupt(*_args):
        raise error

    if moment == "fsync":
        monkeypatch.setattr(files.os, "fsync", interrupt)
    else:
        monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises((KeyboardInterrupt, OSError)):
        store.atomic_write(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["report.json"]


def test_a_run_comes_back_as_it_was(tmp_path, tables):
    written = store.manifest(command=["dapolab", "simulate"], seed=3, fingerprint="ab")
    folder = store.write_run(tmp_path / "runs" / "x", manifest=written, tables=tables)
    assert names(folder) == ["groups.parquet", "manifest.json", "steps.parquet"]
    assert names(folder.parent) == ["x"]
    back = store.read_run(folder)
    assert back.manifest == written
    for name, table in tables.items():
        pd.testing.assert_frame_equal(back.tables[name], table)


def test_a_run_is_not_overwritten_unless_asked(tmp_path, tables):
    entry = store.manifest(command=["c"], seed=1, fingerprint="ab")
    folder = store.write_run(tmp_path / "x", manifest=entry, tables=tables)
    with pytest.raises(ConfigError, match="holds a run already"):
        store.write_run(folder, manifest=entry, tables={})
    store.write_run(folder, manifest={**entry, "seed": 2}, tables={}, overwrite=True)
    assert names(folder) == ["manifest.json"]
    assert store.read_run(folder).manifest["seed"] == 2
    assert names(tmp_path) == ["x"]


def test_other_peoples_files_are_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="other files"):
            store.write_run(tmp_path / "home", manifest={}, tables={}, overwrite=overwrite)
    assert names(tmp_path / "home") == ["thesis.txt"]
    with pytest.raises(ConfigError, match="is a file"):
        store.write_run(tmp_path / "home" / "thesis.txt", manifest={}, tables={})


def test_a_failed_run_leaves_nothing(tmp_path, tables, monkeypatch):
    with pytest.raises(ValueError, match="JSON"):
        store.write_run(tmp_path / "x", manifest={"mean": float("nan")}, tables=tables)
    with pytest.raises(ValueError, match="table name"):
        store.write_run(tmp_path / "x", manifest={}, tables={"../x": tables["steps"]})

    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "atomic_write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write_run(tmp_path / "x", manifest={}, tables=tables)
    assert names(tmp_path) == []


def test_the_old_run_returns_when_the_new_one_cannot_be_placed(tmp_path, tables, monkeypatch):
    entry = store.manifest(command=["c"], seed=1, fingerprint="ab")
    folder = store.write_run(tmp_path / "x", manifest=entry, tables=tables)
    real = Path.rename

    def refuse_the_new(self, target):
        if target == folder and (self / "manifest.json").read_text().find('"seed": 2') > 0:
            raise OSError("disk gone")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    with pytest.raises(OSError, match="disk gone"):
        store.write_run(folder, manifest={**entry, "seed": 2}, tables={}, overwrite=True)
    assert store.read_run(folder).manifest["seed"] == 1
    assert names(tmp_path) == ["x"]


def test_reading_what_is_no_run_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="no manifest"):
        store.read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        store.read_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 99}')
    with pytest.raises(ConfigError, match="schema 99"):
        store.read_run(tmp_path)


def test_finished_runs_skips_what_is_half_written(tmp_path):
    entry = store.manifest(command=["c"], seed=1, fingerprint="ab")
    for name in ("b", "a"):
        store.write_run(tmp_path / name, manifest=entry, tables={})
    (tmp_path / "empty").mkdir()
    (tmp_path / ".c.123.tmp").mkdir()
    (tmp_path / ".c.123.tmp" / "manifest.json").write_text("{}")
    assert store.finished_runs(tmp_path) == ("a", "b")
    assert store.finished_runs(tmp_path / "missing") == ()


def test_the_manifest_names_no_machine():
    entry = store.manifest(
        command=[
            "dapolab",
            "fit",
            "/home/me/secret/rollouts.jsonl",
            "--out=/tmp/x/y.toml",
            "-o",
            "r",
        ],
        seed=None,
        fingerprint="ab",
        policies=["rounds"],
    )
    assert entry["command"] == "dapolab fit rollouts.jsonl --out=y.toml -o r"
    assert entry["policies"] == ["rounds"]
    assert entry["packages"]["numpy"]
    text = json.dumps(entry)
    assert os.uname().nodename not in text
    assert "/home" not in text
    assert "/tmp" not in text


def test_shards_of_several_workers_read_as_one_table(tmp_path):
    with store.ShardWriter(tmp_path) as first, store.ShardWriter(tmp_path) as second:
        first.append({"id": "a", "x": 1})
        first.commit()
        first.append({"id": "b", "x": 2.5, "error": "late column"})
        second.append({"id": "a", "x": 1})
        second.append({"id": "c", "x": None})
    found = store.read_shards(tmp_path, key="id")
    assert found.torn == ()
    table = found.table.set_index("id")
    assert sorted(table.index) == ["a", "b", "c"]
    assert table.loc["b", "x"] == 2.5
    assert table.loc["b", "error"] == "late column"
    assert len(store.read_shards(tmp_path).table) == 4
    assert store.read_shards(tmp_path / "missing").table.empty


def test_torn_and_temporary_shards_are_ignored_and_named(tmp_path):
    with store.ShardWriter(tmp_path, worker="w") as writer:
        writer.append({"id": "a"})
    whole = (tmp_path / "w-000000.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "zero.parquet").write_bytes(b"")
    (tmp_path / ".w-000001.parquet.1.tmp").write_bytes(whole[:10])
    found = store.read_shards(tmp_path)
    assert found.table["id"].tolist() == ["a"]
    assert found.torn == ("torn.parquet", "zero.parquet")


def test_a_full_disk_keeps_the_rows_for_the_next_commit(tmp_path, monkeypatch):
    writer = store.ShardWriter(tmp_path, every_s=3600)
    writer.append({"id": "a"})

    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shards, "atomic_write", full)
        with pytest.raises(OSError, match="No space"):
            writer.commit()
    writer.append({"id": "b"})
    writer.close()
    writer.close()
    assert store.read_shards(tmp_path).table["id"].tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="closed"):
        writer.append({"id": "c"})


def test_a_commit_that_fails_in_the_background_is_raised_by_the_next_append(tmp_path, monkeypatch):
    failed = threading.Event()

    def full(*_args):
        failed.set()
        raise OSError(28, "No space left on device")

    with store.ShardWriter(tmp_path, every_s=0.02) as writer, monkeypatch.context() as patch:
        patch.setattr(shards, "atomic_write", full)
        writer.append({"id": "a"})
        assert failed.wait(30)
        with pytest.raises(OSError, match="No space"):
            writer.append({"id": "b"})
    assert set(store.read_shards(tmp_path).table["id"]) == {"a", "b"}


def test_kill_9_loses_at_most_the_last_second(tmp_path):
    child = textwrap.dedent(
        """
        import sys, time
        from dapolab.store import ShardWriter
        writer = ShardWriter(sys.argv[1], every_s=0.2)
        for i in range(5):
            writer.append({"id": i})
        print("appended", flush=True)
        time.sleep(600)  # the next point takes long: the rows must reach the disk all the same
        """
    )
    process = subprocess.Popen([sys.executable, "-c", child, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"appended\n"
    deadline = time.monotonic() + 30
    while len(store.read_shards(tmp_path).table) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    found = store.read_shards(tmp_path)
    assert found.torn == ()
    assert sorted(found.table["id"]) == [0, 1, 2, 3, 4]


def test_kill_9_amid_writing_leaves_only_whole_files(tmp_path):
    child = textwrap.dedent(
        """
        import sys
        from dapolab import store
        import pandas as pd
        table = pd.DataFrame({"x": range(1000)})
        entry = store.manifest(command=["c"], seed=1, fingerprint="ab")
        writer = store.ShardWriter(sys.argv[1] + "/shards", every_s=0.0001)
        print("go", flush=True)
        i = 0
        while True:
            writer.append({"id": i})
            store.write_run(f"{sys.argv[1]}/runs/{i}", manifest=entry, tables={"t": table})
            i += 1
        """
    )
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", child, tmp_path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for name in store.finished_runs(tmp_path / "runs"):
            assert len(store.read_run(tmp_path / "runs" / name).tables["t"]) == 1000
        found = store.read_shards(tmp_path / "shards")
        assert found.torn == ()
        assert found.table["id"].is_unique
        # the next round starts on a clean folder of runs; shards of dead workers stay
        for folder in (tmp_path / "runs", tmp_path / "shards"):
            folder.rename(tmp_path / f"done-{time.monotonic_ns()}")
