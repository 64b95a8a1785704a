"""Input that cannot be used: one line that says what to do, exit 2, nothing written, no loop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_cases import TINY, Desk

from dapolab.cli import main, output

QUICK = ("--jobs", "1")
NEVER = ("--workload.pass_rate.p", "0")


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Desk(tmp_path, capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # words that nobody takes
        (["simulat", "tiny.toml"], "nearest: simulate"),
        (["--verzion"], "nearest: --version"),
        (["simulate", "tiny.toml", "--stepz", "3"], "nearest: --steps"),
        (["compare", "tiny.toml", "--collector", "rounds"], "nearest: --collectors"),
        (["fit", "r.csv", "--capp", "3"], "nearest: --cap"),
        (["fit", "r.csv", "--run.steps", "3"], "unknown option --run.steps"),
        (["sweep", "s.toml", "--engin", "ray"], "nearest: --engine"),
        (["bench", "--jsn"], "nearest: --json"),
        (["simulate", "tiny.toml", "other.toml"], "unexpected argument 'other.toml'"),
        # keys and values of the scenario
        (["simulate", "tiny.toml", "--rollout.grop_size", "3"], "nearest valid key: 'group_size'"),
        (["simulate", "tiny.toml", "--rolout.group_size", "3"], "nearest valid key: 'rollout'"),
        (["simulate", "tiny.toml", "--run.steps"], "--run.steps needs a value"),
        (["simulate", "tiny.toml", "--run.steps", "--json"], "--run.steps needs a value"),
        (["simulate", "tiny.toml", "--run.steps.more", "1"], "steps is a value, not a table"),
        (["simulate", "tiny.toml", "--run.steps", "many"], "run.steps: expected a whole number"),
        (["simulate", "tiny.toml", "--run.steps", "1.5"], "run.steps: expected a whole number"),
        (["simulate", "tiny.toml", "--run.steps", "none"], "run.steps: expected a whole number"),
        (["simulate", "tiny.toml", "--hardware.law.a_s", "nan"], "expected a finite number"),
        (["simulate", "tiny.toml", "--hardware.law.a_s=inf"], "expected a finite number"),
        (["simulate", "tiny.toml", "--workload.pass_rate.p", "1.1"], "must be at most 1"),
        (["simulate", "tiny.toml", "--rollout.group_size", "0"], "must be at least 1"),
        (["simulate", "tiny.toml", "--rollout.group_size", "-2"], "must be at least 1"),
        (["simulate", "tiny.toml", "--workload.lengths.tokens", "0"], "must be at least 1"),
        (["simulate", "tiny.toml", "--hardware.slots", "0"], "must be at least 1"),
        (["simulate", "tiny.toml", "--rollout.overlong", "3"], "expected a table of settings"),
        (["simulate", "tiny.toml", "--name", "a/b"], "use letters, digits"),
        # kinds and presets
        (["simulate", "tiny.toml", "--collector.kind", "round"], "nearest: 'rounds'"),
        (["simulate", "tiny.toml", "--workload.kind", "jiont"], "nearest: 'joint'"),
        (["simulate", "tiny.toml", "--hardware.law.kind", "afine"], "nearest: 'affine'"),
        (
            ["simulate", "tiny.toml", "--hardware.law.kind", "preset", "--hardware.law.name",
             "qwen3-8b-h10-tp1"],
            "nearest: 'qwen3-8b-h100-tp1'",
        ),
        (["compare", "tiny.toml", "--collectors", "rounds,treaming"], "nearest: 'streaming'"),
        (["compare", "tiny.toml", "--collectors", ""], "is not one of"),
        # settings that cannot work together
        (
            ["simulate", "tiny.toml", "--rollout.group_size", "1", "--rollout.singletons", "drop"],
            "a group of one never has spread",
        ),
        (
            ["simulate", "tiny.toml", "--rollout.overlong.buffer_tokens", "65"],
            "exceeds cap_tokens 64",
        ),
        (
            ["simulate", "tiny.toml", "--hardware.kv_capacity_tokens", "63"],
            "cannot hold one response",
        ),
        (["simulate", "tiny.toml", "--steps", "3", "--epochs", "1"], "give one"),
        (["theory", "tiny.toml", "--run.steps", "3", "--epochs", "1"], "give one"),
        # numbers of the command itself
        (["simulate", "tiny.toml", "--steps", "0"], "--steps: expected a whole number"),
        (["simulate", "tiny.toml", "--steps", "x"], "--steps: expected a whole number"),
        (["simulate", "tiny.toml", "--replications", "1"], "of at least 2"),
        (["simulate", "tiny.toml", "--jobs", "0"], "--jobs: expected a whole number of at least 1"),
        (["simulate", "tiny.toml", "--seed", "-1"], "--seed: expected a whole number"),
        (["simulate", "tiny.toml", "--seed", "nan"], "--seed: expected a whole number"),
        (["fit", "r.csv", "--cap", "0"], "--cap: expected a whole number of at least 1"),
        (["fit", "r.csv", "--chars-per-token", "nan"], "expected a number above 0"),
        (["fit", "r.csv", "--chars-per-token", "0"], "expected a number above 0"),
        (["fit", "r.csv", "--draws", "-1"], "of at least 0"),
        (["fit", "r.csv", "--draws", "5"], "needs at least 100"),
        (["fit", "r.csv", "--steps", "3"], "should be two whole numbers, 3:7"),
        (["fit", "r.csv", "--candidates", "a,b"], "should be two whole numbers, 3,7"),
        (["fit", "r.csv", "--columns", "n_tokens"], "should look like name=value"),
        (["fit", "r.csv", "--cap", "1", "--selection", "some"], "invalid choice: 'some'"),
    ],
)  # fmt: skip
def test_words_that_cannot_be_used(desk, words, said):
    desk.write("r.csv", "prompt_id,n_tokens,correct\na,3,1\n")
    desk.write("s.toml", 'base = "tiny.toml"\n[grid]\n"run.steps" = [1]\n')
    assert said in desk.refused(*words)


SCENARIOS = {
    "empty workload list": ("workload = [1]\n", "workload: expected a table of settings"),
    "nan": (TINY.replace("a_s = 0.01", "a_s = nan"), "expected a finite number"),
    "inf": (TINY.replace("b_s = 1e-4", "b_s = inf"), "expected a finite number"),
    "unknown key": (TINY + "stepz = 3\n", "unknown key 'run.stepz'; nearest valid key: 'steps'"),
    "unknown table": (TINY + "[runn]\n", "nearest valid key: 'run'"),
    "wrong type": (TINY.replace("steps = 3", "steps = '3x'"), "expected a whole number"),
    "no TOML": ("a = \n", "not valid TOML"),
    "JSON": ('{"a": 1}', "not valid TOML"),
    "binary": (bytes(range(256)), "not valid TOML: it is no UTF-8 text"),
    "workload file missing": ('workload = "w.toml"\n', "w.toml: no such file"),
    "workload file is no table": ('workload = "text.toml"\n', "workload should be a table"),
    "replay without a file": ("workload = { kind = 'replay' }\n", "workload.file is missing"),
    "kind missing": ("workload = { sigma = 1.0 }\n", "workload.kind is missing: one of joint"),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_files_that_cannot_be_used(desk, name):
    content, said = SCENARIOS[name]
    desk.write("s.toml", content)
    desk.write("text.toml", "workload = 3\n")
    assert said in desk.refused("simulate", "s.toml")


@pytest.mark.parametrize("command", ["simulate", "compare", "theory", "sweep", "fit"])
def test_paths_that_cannot_be_read(desk, command):
    desk.write("folder/note.txt", "x")
    desk.write("empty.csv", "")
    assert "no such file" in desk.refused(command, "absent.toml")
    message = desk.refused(command, "folder")
    assert ("no rollouts recognised" if command == "fit" else "is a folder") in message
    if command == "fit":
        assert "the file is empty" in desk.refused("fit", "empty.csv")


def test_an_empty_scenario_is_all_defaults_but_an_empty_sweep_is_refused(desk):
    desk.write("empty.toml", "")
    desk.done("simulate", "empty.toml", "--steps", "1", "--replications", "2", *QUICK)
    assert "base is missing" in desk.refused("sweep", "empty.toml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (bytes(range(256)) * 4, "not a known format"),
        ("prompt_id,n_tokens,correct\n", "no rows to read"),
        ("a,b\n1,2\n", "--columns prompt_id=NAME"),
        ("prompt_id,n_tokens,correct\na,-5,1\na,3,0\n", "line 2: n_tokens: '-5' is negative"),
        ("prompt_id,n_tokens,correct\na,nan,nan\na,nan,nan\n", "nothing to fit"),
        ('{"no": "rollouts"}\n{"no": "rollouts"}\n', "--columns prompt_id=NAME"),
    ],
)
def test_rollouts_that_cannot_be_used(desk, content, said):
    desk.write("r.data", content)
    assert said in desk.refused("fit", "r.data", "--selection", "all", "-o", "w.toml")


def test_more_responses_than_were_recorded(desk):
    rows = "".join(f"p{i},{j},{10 + j},{j % 2}\n" for i in range(5) for j in range(2))
    desk.write("r.csv", "prompt_id,sample,n_tokens,correct\n" + rows)
    words = ("--workload.kind", "replay", "--workload.file", "r.csv", *QUICK)
    desk.done("simulate", "tiny.toml", *words)
    message = desk.refused("simulate", "tiny.toml", "--rollout.group_size", "4", *words)
    assert "fit" in message
    assert "no such file" in desk.refused("simulate", "tiny.toml", *words[:3], "absent.csv")


# a filter that can never fill


@pytest.mark.parametrize(
    "words",
    [
        ["filter_no_refill"],
        ["exact_refill"],
        ["exact_refill", "--collector.at_cap", "error"],
        ["exact_refill", "--collector.max_candidate_multiplier", "none",
         "--collector.max_waves", "50"],
        ["rounds"],
        ["rounds", "--collector.max_num_gen_batches", "0", "--collector.max_waves", "20"],
        ["rounds", "--collector.at_max", "stop"],
        ["replenish", "--collector.max_candidates", "60"],
        ["streaming", "--collector.max_candidates", "60"],
        ["over_provision"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_filter_that_can_never_fill_tells_what_was_collected(desk, words):
    message = desk.refused("simulate", "tiny.toml", *NEVER, "--collector.kind", *words, *QUICK)
    assert "100.0%" in message
    assert "wrong" in message
    assert "candidate" in message
    assert "difficulty" in message


def test_compare_goes_on_where_one_policy_can_train_and_says_what_failed(desk):
    words = ("--collectors", "none,rounds", *NEVER, *QUICK, "--json")
    document = desk.done("compare", "tiny.toml", *words).document
    assert document["policies"]["rounds"]["run/p_fails"]["mean"] == 1
    assert any("rounds" in note and "2 of 2 replications" in note for note in document["notes"])


# output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "tiny.toml", "-o", "afile"], "is a file, name a folder"),
        (["compare", "tiny.toml", "-o", "afile/below"], "is a file, not a folder"),
        (["simulate", "tiny.toml", "-o", "afile"], "is a file, name a folder"),
        (["simulate", "tiny.toml", "-o", "folder"], "holds other files"),
        (["simulate", "tiny.toml", "--trace", "folder"], "name a .json file"),
        (["simulate", "tiny.toml", "--trace", "t.txt"], "name a .json file"),
        (["theory", "tiny.toml", "-o", "folder"], "name a .json file"),
        (["theory", "tiny.toml", "-o", "afile/t.json"], "is a file, not a folder"),
        (["fit", "r.csv", "-o", "w.json"], "name a .toml file"),
        (["fit", "r.csv", "-o", "folder"], "name a .toml file"),
        (["sweep", "s.toml", "-o", "afile"], "is a file, name a folder"),
    ],
)
def test_places_that_cannot_be_written(desk, words, said):
    desk.write("afile", "mine")
    desk.write("folder/note.txt", "mine")
    desk.write("r.csv", "prompt_id,n_tokens,correct\na,3,1\n")
    desk.write("s.toml", 'base = "tiny.toml"\n[grid]\n"run.steps" = [1]\n')
    assert said in desk.refused(*words, *(QUICK if words[0] != "fit" else ()))


def test_a_folder_without_permission(desk, monkeypatch):
    # the superuser may write anywhere: ask as if for somebody else
    monkeypatch.setattr(output.os, "access", lambda path, mode: False)
    assert "cannot be written" in desk.refused("compare", "tiny.toml", "-o", "reports")


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--collectors", "none", "-o", "reports"),
        ("simulate", "-o", "run"),
        ("simulate", "--trace", "t.json"),
        ("theory", "-o", "t.json"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_full_disk_leaves_no_part_of_a_file(desk, monkeypatch, words, moment):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    if moment == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        for name in ("replace", "rename"):
            monkeypatch.setattr(Path, name, full)
    command, *rest = words
    said = desk(command, "tiny.toml", *rest, *QUICK)
    assert said.code == 2
    assert said.err == "dapolab: No space left on device\n"
    left = {path for path, content in desk.files().items() if content is not None}
    assert left == {"tiny.toml"}


# interruptions


def test_ctrl_c_in_process_is_one_line(desk, monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("dapolab.compare.compare", interrupt)
    said = desk("compare", "tiny.toml", "-o", "reports")
    assert (said.code, said.out, said.err) == (130, "", "dapolab: interrupted\n")
    assert set(desk.files()) == {"tiny.toml"}


def test_ctrl_c_to_a_process_and_its_workers(desk):
    words = [sys.executable, "-m", "dapolab", "compare", "tiny.toml", "-o", "reports"]
    words += ["--steps", "4000", "--replications", "500", "--jobs", "2"]
    # the folder of the compiled kernel tells nothing: wait for the workers themselves
    child = subprocess.Popen(
        words, cwd=desk.folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    deadline = time.monotonic() + 120
    try:
        while len(children.read_text().split()) < 3:  # two workers and what tracks their resources
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(2)
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=180)
    finally:
        child.kill()
    assert (out, err) == ("", "dapolab: interrupted\n")
    # CPython dies of the signal itself where it struck inside an exec() of text (dataclasses while
    # importing): for the shell that is 130 as well
    assert child.returncode in (130, -signal.SIGINT)
    assert set(desk.files()) == {"tiny.toml"}


@pytest.mark.parametrize("words", [["simulate", "tiny.toml", "--all"], ["compare", "--help"]])
def test_a_reader_that_goes_away_is_no_error(desk, words):
    command = [sys.executable, "-m", "dapolab", *words]
    # the pipe's reading end is closed before anything is written
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command, cwd=desk.folder, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120
        )
    finally:
        os.close(write)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_out_of_memory_is_one_line(desk, monkeypatch):
    def too_much(*_args, **_kwargs):
        raise MemoryError

    monkeypatch.setattr("dapolab.compare.compare", too_much)
    assert "out of memory" in desk.refused("simulate", "tiny.toml")


def test_a_defect_is_not_disguised_as_bad_input(desk, monkeypatch):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("dapolab.compare.compare", broken)
    with pytest.raises(ZeroDivisionError):
        main(["simulate", "tiny.toml"])
