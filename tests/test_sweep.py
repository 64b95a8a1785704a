"""Sweeps: points known by their content, nothing lost, nothing twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from cli_cases import TINY, Desk

from dapolab import sweep
from dapolab.scenario import ConfigError
from dapolab.sweep import point as point_module

QUICK = ("--jobs", "1")
GRID = """\
name = "s"
base = "tiny.toml"
[grid]
"workload.pass_rate.p" = [0.4, 0.5, 0.6]
"""


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    desk = Desk(tmp_path, capsys)
    desk.write("s.toml", GRID)
    return desk


def ids(path="s.toml", **changes):
    path = Path(path)
    return [point.id for point in sweep.expand(sweep.read_sweep(path), folder=path.parent)]


def counts(said):
    document = said.document
    return tuple(document[key] for key in ("points", "computed", "skipped", "failed"))


def rows_in(shards):
    return pd.concat(pd.read_parquet(path) for path in sorted(shards.glob("[!.]*.parquet")))


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in Path(folder, "shards").iterdir()}


# identity


def test_ids_come_from_what_can_change_a_number(desk):
    first = ids()
    assert len(set(first)) == 3
    told = TINY.replace('name = "tiny"', 'name = "other"\ndescription = "told"\nsource = "me"')
    desk.write("tiny.toml", told + "[alternatives.r]\nkind = 'rounds'\n")
    assert ids() == first
    desk.write("tiny.toml", TINY.replace("a_s = 0.01", "a_s = 0.02"))
    assert not set(ids()) & set(first)


def test_ids_do_not_depend_on_where_the_files_lie_but_on_what_they_say(desk, monkeypatch):
    desk.write("here/r.csv", "prompt_id,sample,n_tokens,correct\na,0,3,1\na,1,4,0\n")
    desk.write(
        "here/s.toml",
        'base = "../tiny.toml"\n[fixed]\n"workload.kind" = "replay"\n"workload.file" = "r.csv"\n'
        '[grid]\n"run.steps" = [1, 2]\n',
    )
    first = ids("here/s.toml")
    monkeypatch.chdir("here")
    assert ids("s.toml") == first
    shutil.copytree(desk.folder, desk.folder.parent / "elsewhere", dirs_exist_ok=True)
    assert ids(desk.folder.parent / "elsewhere/here/s.toml") == first
    desk.write("here/r.csv", "prompt_id,sample,n_tokens,correct\na,0,3,1\na,1,5,0\n")
    assert not set(ids("s.toml")) & set(first)


def test_seeds_make_points_of_their_own_and_the_option_moves_them(desk):
    one = sweep.read_sweep(desk.write("s.toml", "seeds = [0, 1, 1]\n" + GRID))
    points = sweep.expand(one, folder=desk.folder)
    assert [point.seed for point in points] == [0, 1] * 3
    moved = sweep.expand(one, folder=desk.folder, first_seed=1)
    assert {p.id for p in points} & {p.id for p in moved} == {p.id for p in points if p.seed == 1}


# reruns


def test_a_rerun_computes_nothing_and_one_new_value_only_its_points(desk):
    first = desk.done("sweep", "s.toml", "-o", "out", "--json", *QUICK)
    assert counts(first) == (3, 3, 0, 0)
    before, table = stamps("out"), pd.read_parquet(first.document["table"])
    again = desk.done("sweep", "s.toml", "-o", "out", "--json", *QUICK)
    assert counts(again) == (3, 0, 3, 0)
    assert stamps("out") == before
    pd.testing.assert_frame_equal(pd.read_parquet(again.document["table"]), table)
    desk.write("s.toml", GRID.replace("0.6]", "0.6, 0.7]"))
    more = desk.done("sweep", "s.toml", "-o", "out", "--json", *QUICK)
    assert counts(more) == (4, 1, 3, 0)
    assert stamps("out").items() >= before.items()
    assert len(rows_in(Path("out/shards"))) == 4
    table = pd.read_parquet(more.document["table"])
    assert table["set/workload.pass_rate.p"].tolist() == [0.4, 0.5, 0.6, 0.7]
    assert table["id"].is_unique


def test_a_point_has_the_numbers_of_simulate(desk):
    table = pd.read_parquet(desk.done("sweep", "s.toml", "--json", *QUICK).document["table"])
    for p, row in zip((0.4, 0.5, 0.6), table.to_dict("records"), strict=True):
        words = ("--workload.pass_rate.p", str(p), "--json", *QUICK)
        metrics = desk.done("simulate", "tiny.toml", *words).document["policies"]["exact_refill"]
        for name in ("rollout/waves", "rollout/completion_tokens", "time/step_seconds"):
            assert row[name] == pytest.approx(metrics[name]["mean"], rel=1e-12)


def test_costs_are_those_of_compare_where_groups_without_signal_are_trained_too(desk):
    desk.write("none.toml", GRID + '[fixed]\n"collector.kind" = "none"\n')
    table = pd.read_parquet(desk.done("sweep", "none.toml", "--json", *QUICK).document["table"])
    for p, row in zip((0.4, 0.5, 0.6), table.to_dict("records"), strict=True):
        words = ("--workload.pass_rate.p", str(p), "--collector.kind", "none", "--json", *QUICK)
        metrics = desk.done("simulate", "tiny.toml", *words).document["policies"]["none"]
        assert metrics["rollout/mixed_share"]["mean"] < 1  # some groups carry no signal
        for name, same in (("step_seconds", "seconds"), ("completion_tokens",) * 2):
            wanted = metrics[f"per_trained_group/{same}"]["mean"]
            assert row[f"per_trained_group/{name}"] == pytest.approx(wanted, rel=1e-12)


def test_two_sweeps_share_a_folder_and_the_points_they_have_in_common(desk):
    desk.write("t.toml", GRID.replace('"s"', '"t"').replace("[0.4, 0.5, 0.6]", "[0.6, 0.8]"))
    assert counts(desk.done("sweep", "s.toml", "-o", "out", "--json", *QUICK)) == (3, 3, 0, 0)
    assert counts(desk.done("sweep", "t.toml", "-o", "out", "--json", *QUICK)) == (2, 1, 1, 0)
    tables = [pd.read_parquet(f"out/{name}.parquet") for name in "st"]
    assert [len(table) for table in tables] == [3, 2]
    assert tables[0].iloc[2]["id"] == tables[1].iloc[0]["id"]


# failures


def test_a_failed_point_is_kept_listed_and_not_run_again(desk):
    desk.write(
        "s.toml",
        GRID.replace("[0.4, 0.5, 0.6]", "[0, 0.5, 1]")
        + '[fixed]\n"collector.kind" = "rounds"\n"collector.max_num_gen_batches" = 3\n',
    )
    said = desk.done("sweep", "s.toml", "-o", "out", "--json", *QUICK)
    assert counts(said) == (3, 3, 0, 2)
    table = pd.read_parquet(said.document["table"])
    assert table["error"].isna().tolist() == [False, True, False]
    assert "all-wrong 100.0%" in table["error"][0]
    assert table["p_fails"].tolist() == [1.0, 0.0, 1.0]
    again = desk.done("sweep", "s.toml", "-o", "out", *QUICK)
    assert "0 computed, 3 skipped" in again.out
    assert "2 with an error" in " ".join(again.out.split())
    assert "workload.pass_rate.p=0, seed 0:" in again.out
    assert "workload.pass_rate.p=1, seed 0:" in again.out


def test_a_defect_does_not_end_the_sweep_and_is_tried_again(desk, monkeypatch):
    measure = point_module.measure

    def broken(point):
        if point.changed["workload.pass_rate.p"] == 0.5:
            raise ZeroDivisionError("a defect")
        return measure(point)

    moved = []
    monkeypatch.setattr(point_module, "measure", broken)
    points = sweep.expand(sweep.read_sweep(Path("s.toml")), folder=Path())
    done = sweep.run_sweep(points, Path("out"), n_jobs=1, on_done=lambda: moved.append(1))
    assert len(moved) == 3  # the bar moves for the failed one too
    assert done.failures == ("workload.pass_rate.p=0.5, seed 0: ZeroDivisionError: a defect",)
    monkeypatch.setattr(point_module, "measure", measure)
    done = sweep.run_sweep(points, Path("out"), n_jobs=1)
    assert (done.n_computed, done.n_skipped, done.failures) == (1, 2, ())


def test_killed_and_started_again_nothing_is_lost_and_nothing_done_twice(desk):
    values = [round(0.1 + i / 1000, 4) for i in range(400)]
    desk.write("s.toml", GRID.replace("[0.4, 0.5, 0.6]", str(values)))
    words = [sys.executable, "-m", "dapolab", "sweep", "s.toml", "-o", "out", "--jobs", "2"]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True)
    shards = Path("out/shards")
    deadline = time.monotonic() + 120
    try:
        while len(list(shards.glob("[!.]*.parquet"))) < 5:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    before = {name: stamp for name, stamp in stamps("out").items() if not name.startswith(".")}
    had = set(rows_in(shards)["id"])
    assert 5 <= len(had) < 400
    desk.write("s.toml", GRID.replace("[0.4, 0.5, 0.6]", str(values[:60])))
    said = desk.done("sweep", "s.toml", "-o", "out", "--json", *QUICK)
    points, computed, skipped, failed = counts(said)
    assert (points, computed + skipped, failed) == (60, 60, 0)
    assert skipped == len(had & set(ids()))
    # what was there is untouched, and no committed point was computed again
    assert stamps("out").items() >= before.items()
    rows = rows_in(shards)
    assert rows["id"].is_unique
    assert set(ids()) <= set(rows["id"])
    # and what workers computed is what one process computes
    alone = desk.done("sweep", "s.toml", "-o", "alone", "--json", *QUICK).document["table"]
    tables = [pd.read_parquet(t).drop(columns="seconds") for t in (alone, said.document["table"])]
    pd.testing.assert_frame_equal(*tables)


def test_ctrl_c_stops_with_one_line_and_keeps_what_is_done(desk):
    values = [round(0.1 + i / 1000, 4) for i in range(800)]
    desk.write("s.toml", GRID.replace("[0.4, 0.5, 0.6]", str(values)))
    words = [sys.executable, "-m", "dapolab", "sweep", "s.toml", "-o", "out", "--jobs", "2"]
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    try:
        while len(list(Path("out/shards").glob("[!.]*.parquet"))) < 5:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert (out, err) == ("", "dapolab: interrupted\n")
    # CPython dies of the signal itself where it struck inside an exec() of text (dataclasses while
    # importing): for the shell that is 130 as well
    assert child.returncode in (130, -signal.SIGINT)
    assert len(list(Path("out/shards").glob("[!.]*.parquet"))) >= 5


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(desk, jobs):
    values = [round(0.1 + i / 1000, 4) for i in range(40)]
    desk.write("s.toml", GRID.replace("[0.4, 0.5, 0.6]", str(values)))
    # a limit on the size of files is a disk that is full for this process and its children
    words = [sys.executable, "-c", FULL_DISK, "sweep", "s.toml", "-o", "out", "--jobs", jobs]
    child = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert child.returncode == 2
    assert child.stderr.count("\n") == 1
    assert "File too large" in child.stderr
    assert not [path for path in Path("out").rglob("*") if path.is_file()]
    assert counts(desk.done("sweep", "s.toml", "-o", "out", "--json", *QUICK)) == (40, 40, 0, 0)


FULL_DISK = """\
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
from dapolab.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_two_sweeps_at_once_in_one_folder_lose_nothing(desk):
    values = [round(0.1 + i / 1000, 4) for i in range(30)]
    desk.write("s.toml", GRID.replace("[0.4, 0.5, 0.6]", str(values)))
    words = [sys.executable, "-m", "dapolab", "sweep", "s.toml", "-o", "out", "--json", *QUICK]
    children = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    documents = [json.loads(child.communicate(timeout=120)[0]) for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert all(d["computed"] + d["skipped"] == 30 for d in documents)
    assert set(rows_in(Path("out/shards"))["id"]) == set(ids())
    assert pd.read_parquet("out/s.parquet")["rollout/waves"].notna().all()
    assert counts(desk.done("sweep", "s.toml", "-o", "out", "--json", *QUICK)) == (30, 0, 30, 0)


def test_out_of_time_the_rest_is_left_and_taken_up_later(desk):
    points = sweep.expand(sweep.read_sweep(Path("s.toml")), folder=Path())
    none = sweep.run_sweep(points, Path("out"), n_jobs=1, max_seconds=0)
    assert (none.n_computed, none.n_left, len(none.table)) == (0, 3, 0)
    slow = sweep.run_sweep(points, Path("out"), n_jobs=1, max_seconds=1e-9)
    assert slow.n_computed + slow.n_left == 3
    rest = sweep.run_sweep(points, Path("out"), n_jobs=1, max_seconds=1000)
    assert (rest.n_left, len(rest.table)) == (0, 3)
    assert 0 < rest.efficiency <= 1


# what is varied


def test_random_draws_depend_on_nothing_but_their_key_and_number(desk):
    def drawn(n, *, more=""):
        desk.write(
            "r.toml",
            f'base = "tiny.toml"\n[random]\nn = {n}\nseed = 3\n[random.keys]\n'
            '"workload.pass_rate.p" = { low = 0.2, high = 0.8 }\n' + more,
        )
        points = sweep.expand(sweep.read_sweep(Path("r.toml")), folder=Path())
        return [dict(point.changed) for point in points]

    few, many = drawn(5), drawn(50)
    assert many[:5] == few
    values = [row["workload.pass_rate.p"] for row in many]
    assert len(set(values)) == 50
    assert 0.2 <= min(values) < 0.3
    assert 0.7 < max(values) < 0.8
    more = drawn(
        50,
        more='"rollout.cap_tokens" = { low = 32, high = 1024, log = true, integer = true }\n'
        '"collector.kind" = { choices = ["none", "rounds"] }\n',
    )
    assert [row["workload.pass_rate.p"] for row in more] == values
    caps = [row["rollout.cap_tokens"] for row in more]
    assert all(isinstance(cap, int) and 32 <= cap <= 1024 for cap in caps)
    # uniform in the logarithm: half of the draws below the geometric mean, 181
    below = sum(cap < 181 for cap in caps)
    assert abs(below - 25) < 4.5 * (50 * 0.25) ** 0.5
    assert {row["collector.kind"] for row in more} == {"none", "rounds"}


def test_every_whole_number_of_a_range_is_drawn_as_often():
    spread = sweep.Spread(low=1, high=4, integer=True)
    values = [spread.at((i + 0.5) / 4000) for i in range(4000)]
    assert [values.count(k) for k in (1, 2, 3, 4)] == [1000] * 4


def test_lists_move_together_and_policies_have_names(desk):
    desk.write(
        "l.toml",
        'base = "tiny.toml"\n[lists]\n"rollout.groups_per_step" = [2, 4]\n'
        '"hardware.slots" = [4, 8]\n[policies.half]\nkind = "over_provision"\neta = 1.5\n'
        '[policies.double]\nkind = "over_provision"\neta = 2.0\n',
    )
    points = sweep.expand(sweep.read_sweep(Path("l.toml")), folder=Path())
    seen = [
        (p.changed["policy"], p.scenario.collector.eta, p.scenario.rollout.groups_per_step)
        for p in points
    ]
    assert seen == [("half", 1.5, 2), ("half", 1.5, 4), ("double", 2.0, 2), ("double", 2.0, 4)]
    assert [p.scenario.hardware.slots for p in points] == [4, 8, 4, 8]
    table = pd.read_parquet(desk.done("sweep", "l.toml", "--json", *QUICK).document["table"])
    assert table["policy"].tolist() == ["half", "half", "double", "double"]


# grids


def test_grids_of_several_kinds_of_value(desk):
    desk.write("w.toml", '[workload]\nkind = "joint"\nmedian_tokens = 20\n')
    desk.write(
        "s.toml",
        'name = "s"\nbase = "tiny.toml"\n[grid]\n'
        '"collector" = [{ kind = "rounds", gen_groups = 3 }, { kind = "none" }]\n'
        '"rollout.overlong" = ["none", { buffer_tokens = 8 }]\n"workload" = ["w.toml"]\n',
    )
    table = pd.read_parquet(desk.done("sweep", "s.toml", "--json", *QUICK).document["table"])
    assert table["policy"].tolist() == ["rounds", "rounds", "none", "none"]
    assert table["set/rollout.overlong"].tolist()[0] == "none"
    assert table["set/workload"].tolist() == ["w.toml"] * 4
    assert table["error"].isna().all()
    row = json.loads(pd.read_parquet("runs/s/shards")["row"][0])
    assert {"collector", "rollout.overlong", "workload"} == set(json.loads(row["settings"]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "base is missing"),
        ('base = "tiny.toml"\n', "[grid] is empty"),
        ('base = "tiny.toml"\n[grid]\n"run.steps" = []\n', "grid.run.steps has no value"),
        ('base = "tiny.toml"\n[grid]\n"run.steps" = 3\n', "expected a list"),
        ('base = "absent.toml"\n[grid]\n"run.steps" = [3]\n', "absent.toml: no such file"),
        ('base = "tiny.toml"\ngird = 3\n', "unknown key 'gird'; nearest valid key: 'grid'"),
        ('base = "tiny.toml"\nseeds = [-1]\n[grid]\n"run.steps" = [3]\n', "must be at least 0"),
        ('base = "tiny.toml"\nseeds = []\n[grid]\n"run.steps" = [3]\n', "at least 1 value"),
        (
            'base = "tiny.toml"\n[grid]\n"run.stepz" = [3]\n',
            "unknown key 'run.stepz'; nearest valid key: 'steps' (at run.stepz=3)",
        ),
        (
            'base = "tiny.toml"\n[grid]\n"run.steps" = [3, 0]\n',
            "run.steps: must be at least 1, got 0 (at run.steps=0)",
        ),
        ('base = "tiny.toml"\n[fixed]\nrun = 3\n[grid]\n"run.steps" = [3]\n', "not a table"),
        (
            'base = "tiny.toml"\n[lists]\n"run.steps" = [1, 2]\n"hardware.slots" = [3]\n',
            "lists move together and need one length: run.steps 2, hardware.slots 1",
        ),
        (
            'base = "tiny.toml"\n[random]\nn = 2\n[random.keys]\n"run.steps" = { low = 3 }\n',
            "give low < high, or choices",
        ),
        ('base = "tiny.toml"\n[policies.x]\nkind = "nosuch"\n', "nosuch"),
        ('base = "tiny.toml"\nname = "a/b"\n[grid]\n"run.steps" = [3]\n', "use letters"),
    ],
)
def test_sweeps_that_cannot_be_used(desk, content, said):
    desk.write("s.toml", content)
    assert said in desk.refused("sweep", "s.toml", "-o", "out")


def test_ray_without_ray_names_the_extra(desk, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.util.joblib", None)
    message = desk.refused("sweep", "s.toml", "-o", "out", "--engine", "ray")
    assert message == "dapolab: --engine ray needs Ray: pip install 'dapolab[ray]'"


def test_a_file_that_went_away_is_refused(desk):
    point = sweep.expand(sweep.read_sweep(Path("s.toml")), folder=Path())[0]
    workload = {"kind": "replay", "file": "absent.csv"}
    scenario = type(point.scenario).model_validate({"workload": workload})
    with pytest.raises(ConfigError, match=r"absent\.csv"):
        sweep.identity(scenario, 0)
