"""``dapolab bandit``: documents, tables, files, words that are wrong, and no torch."""

import csv
import json
import subprocess
import sys

import pytest

from dapolab.bandit import STUDIES
from dapolab.cli import main


def call(capsys, *words):
    code = main(["bandit", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_list_names_every_environment(capsys) -> None:
    code, out, _ = call(capsys)
    assert code == 0
    assert all(name in out for name in (*STUDIES, "three_paths"))
    assert max(map(len, out.splitlines())) <= 80


def test_document(capsys) -> None:
    words = ("length_classes", "--seeds", "5", "--steps", "3", "--modes", "token-mean,grpo+gspo")
    code, out, err = call(capsys, *words, "--json", "--seed", "7")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["command"] == "bandit"
    assert document["seed"] == 7
    assert document["environment"] == "length_classes"
    assert list(document["arms"]) == ["token-mean", "grpo+gspo"]
    metric = document["arms"]["token-mean"]["length/wrong"]
    assert list(metric) == ["mean", "low", "high", "n", "unit"]
    assert metric["low"] < metric["mean"] < metric["high"]
    assert (metric["n"], metric["unit"]) == (5, "tokens")
    again = json.loads(call(capsys, *words, "--json", "--seed", "7")[1])
    assert again == document


def test_table_and_files(capsys, tmp_path) -> None:
    words = ("overlong", "--seeds", "4", "--steps", "3", "-o", str(tmp_path))
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "how to read this" in out
    assert "overlong+filter-shaped" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("wrote")) <= 80
    page = (tmp_path / "overlong.md").read_text(encoding="utf-8")
    assert "How to read this" in page
    assert (tmp_path / "overlong.html").is_file()
    assert list((tmp_path / "overlong_figures").glob("*.svg"))
    document = json.loads((tmp_path / "overlong.json").read_text(encoding="utf-8"))
    table = (tmp_path / "overlong.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    last = next(
        row
        for row in rows
        if (row["mode"], row["metric"], row["step"]) == ("overlong", "length/mean", "3")
    )
    assert float(last["mean"]) == pytest.approx(document["arms"]["overlong"]["length/mean"]["mean"])
    assert str(tmp_path) not in page


def test_mismatch_tells_the_exact_error_of_the_gradient(capsys) -> None:
    words = ("mismatch", "--seeds", "2", "--steps", "1", "--set", "n_arms=3")
    document = json.loads(call(capsys, *words, "--json")[1])
    bias = {m: found["gradient/bias_share"] for m, found in document["arms"].items()}
    assert bias["importance"]["mean"] < bias["no-correction"]["mean"]
    assert bias["importance"]["low"] is None
    without = ("--set", "noise=0", "--set", "n_arms=3", "--modes", "no-correction")
    document = json.loads(call(capsys, *words[:-2], *without, "--json")[1])
    assert document["arms"]["no-correction"]["gradient/bias_share"]["mean"] < 1e-12


def test_three_paths(capsys, tmp_path) -> None:
    words = ("three_paths", "--seeds", "4", "--steps", "2")
    document = json.loads(call(capsys, *words, "--json")[1])
    assert document["environment"] == "three_paths"
    assert next(iter(document["arms"])) == "shaping"
    assert list(document["arms"])[-1] == "shaping×std×aggregation"
    code, out, _ = call(capsys, *words, "-o", str(tmp_path))
    assert code == 0
    assert "std×aggregation" in out
    assert (tmp_path / "three_paths.html").is_file()


def test_all_of_a_kind_and_lists(capsys) -> None:
    words = ("difficulty_ladder", "--seeds", "2", "--steps", "1", "--set", "pass_rates=0.1/0.5")
    document = json.loads(call(capsys, *words, "--modes", "clips", "--json")[1])
    assert {"ppo", "gspo", "no-clip", "clip_cov"} <= set(document["arms"])
    start = document["arms"]["gspo"]["reward/accuracy"]["mean"]
    assert start == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lenght_classes"], "nearest: length_classes"),
        (["many_arms", "--modes", "grop"], "nearest: grpo"),
        (["many_arms", "--modes", "grpo,grpo"], "twice"),
        (["many_arms", "--set", "case"], "KEY=VALUE"),
        (["many_arms", "--set", "n_arms=few"], "n_arms=30"),
        (["many_arms", "--set", "arms=3"], "n_arms"),
        (["three_paths", "--modes", "grpo"], "eight modes"),
        (["many_arms", "--seeds", "1"], "at least 2"),
        (["--json"], "needs a NAME"),
    ],
)
def test_wrong_words_are_one_line(capsys, words, said) -> None:
    try:
        code = main(["bandit", *words])
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_without_torch_one_line_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from dapolab.cli import main\nsys.exit(main(['bandit', 'many_arms']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "dapolab[train]" in done.stderr
