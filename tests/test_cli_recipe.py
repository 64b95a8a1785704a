"""``dapolab recipe``: its list, one recipe, two of them, the document, the refusals."""

import pytest
from cli_cases import Desk

from dapolab import __version__, recipes


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    return Desk(tmp_path, capsys)


PAIRS = [
    ("paper", "dapo-32b-run"),
    ("verl-2025-04-04-seq-sum", "verl-2025-04-06-seq-sum"),
    ("trl-1.16-cispo", "tinker-cispo"),
    ("trl-1.10-dapo", "trl-1.16-dapo"),
    ("06-dapo", "06-dapo"),
]


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize(
    "words", [(), *((name,) for name in recipes.ALL), *PAIRS], ids=lambda words: "+".join(words)
)
def test_lines_fit_the_terminal(desk, monkeypatch, columns, words):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = desk.done("recipe", *words).out
    assert max(map(len, out.splitlines())) <= min(columns, 80)
    assert not [line for line in out.splitlines() if line != line.rstrip()]
    assert "\x1b" not in out


def test_the_list_names_every_recipe_with_its_evidence(desk):
    lines = desk.done("recipe").out.splitlines()
    first = {words[0]: words[1] for words in map(str.split, lines) if len(words) > 2}
    for recipe in recipes.ALL.values():
        assert first[recipe.id] == recipe.evidence.how
        assert recipe.framework in lines or recipe.framework in [x.strip() for x in lines]


def test_one_recipe_shows_formula_sources_and_weights(desk):
    out = desk.done("recipe", "06-grpo", "--lengths", "10,100").out
    assert "L = Σ_i (Σ_t l / n_i) / N" in out
    assert "l = −min(r·A, clip(r, 0.8, 1.2)·A)" in out
    assert "06-dapo/train.py" in out
    assert "0.05" in out  # 1/(2·10), field case B67
    assert "0.005" in out
    assert "read: KMnO4-zx/agentic-rl-lab 5fc44d8" in out


def test_document_of_one_recipe(desk):
    said = desk.done("recipe", "06-grpo", "--lengths", "10,100", "--json")
    document = said.document
    assert document["schema"] == "dapolab/recipe/1"
    assert document["command"] == "recipe"
    assert document["version"] == __version__
    assert document["seed"] is None
    assert document["differences"] == []
    (recipe,) = document["recipes"]
    assert {"id", "evidence", "formula", "defaults", "weights"} <= set(recipe)
    assert recipe["evidence"]["how"] == "read"
    assert recipe["defaults"]["objective"]["clip"]["high"] == 0.2
    assert recipe["defaults"]["collector"]["kind"] == "filter_no_refill"
    assert [row["per_token"] for row in recipe["weights"]] == pytest.approx([0.05, 0.005])


def test_document_of_all(desk):
    document = desk.done("recipe", "--json").document
    assert [recipe["id"] for recipe in document["recipes"]] == list(recipes.ALL)


def test_document_of_two(desk):
    document = desk.done("recipe", "verl-0.7.0-sum-norm", "verl-0.7.1-sum-norm", "--json").document
    assert len(document["recipes"]) == 2
    rows = {row["name"]: row for row in document["differences"]}
    assert rows["aggregation.rows"] == {
        "kind": "setting",
        "name": "aggregation.rows",
        "a": "sum",
        "b": "mean",
    }
    weight = rows["token weight, n 100"]
    assert weight["kind"] == "number"
    assert weight["ratio"] == pytest.approx(1 / 3)  # three sequences


def test_no_ratio_where_a_value_is_0(desk):
    """A ratio to or from 0 says nothing: a dash in the table, null in the document."""
    words = ("recipe", "dapo-32b-run", "grpo")
    rows = {row["name"]: row for row in desk.done(*words, "--json").document["differences"]}
    at_cap = rows["reward for length 20,480"]
    assert (at_cap["a"], at_cap["b"], at_cap["ratio"]) == (-1, 0, None)
    (line,) = (line for line in desk.done(*words).out.splitlines() if "length 20,480" in line)
    assert line.split()[-3:] == ["-1", "0", "–"]


def test_groups_move_the_prompt_mean(desk):
    words = ("recipe", "paper", "--lengths", "2,6,12", "--json")
    one = desk.done(*words, "--groups", "0,0,0").document["recipes"][0]["weights"]
    two = desk.done(*words, "--groups", "4,4,9").document["recipes"][0]["weights"]
    assert [row["per_token"] for row in one] == pytest.approx([1 / 20] * 3)
    assert [row["per_token"] for row in two] == pytest.approx([1 / 16, 1 / 16, 1 / 24])


def test_lengths_reach_the_differences(desk):
    out = desk.done("recipe", "verl-0.9.0-gspo", "verl-0.9.1-gspo", "--lengths", "2,8").out
    assert "token weight, n 8" in out
    assert "n 100" not in out
    twice = desk.done("recipe", "verl-0.9.0-gspo", "verl-0.9.1-gspo", "--lengths", "4,4,2").out
    assert "token weight, n 4, response 1" in twice


def test_the_same_recipe_twice_says_so(desk):
    assert "compute the same" in desk.done("recipe", "slime", "slime").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("trl-1.16-drgrpo",), "nearest: trl-1.16-dr_grpo"),
        (("paper", "grpo", "slime"), "name one recipe, or two"),
        (("paper", "--lengths", "10,x"), "whole numbers"),
        (("paper", "--lengths", "10,-1"), "whole numbers"),
        (("paper", "--lengths", "10,20", "--groups", "1"), "1 groups for 2 lengths"),
        (("paper", "grpo", "--lengths", "10,20", "--groups", "1"), "1 groups for 2 lengths"),
        (("paper", "--length", "10"), "nearest: --lengths"),
        (("paper", "--clip.high", "0.3"), "unknown option --clip.high"),
    ],
)
def test_refusals_are_one_line(desk, words, told):
    assert told in desk.refused("recipe", *words)
