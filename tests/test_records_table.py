"""Plain tables: which column is what, and every kind of broken file."""

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dapolab.records import (
    COLUMNS,
    ReadOptions,
    Records,
    finish,
    parse_pairs,
    read_records,
    summarise,
    write_records,
)
from dapolab.scenario import ConfigError


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def cells(records: Records, column: str) -> list[Any]:
    return [None if pd.isna(value) else value for value in records.table[column]]


def has_note(records: Records, *words: str) -> bool:
    return any(all(word in note for word in words) for note in records.notes)


def two_groups() -> list[dict[str, Any]]:
    return [
        {"prompt_id": p, "sample": s, "tokens": 10 * s + p, "correct": (s + p) % 2}
        for p in (1, 2)
        for s in range(4)
    ]


def test_a_csv_with_common_names(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "prompt_id,sample,tokens,correct\np,0,10,1\np,1,20,0\n")
    records = read_records(path)
    assert list(records.table.columns[: len(COLUMNS)]) == list(COLUMNS)
    assert cells(records, "n_tokens") == [10, 20]
    assert cells(records, "correct") == [True, False]
    assert cells(records, "truncated") == [None, None]
    assert cells(records, "source") == ["a.csv", "a.csv"]
    assert has_note(records, "columns:", "n_tokens=tokens")


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "jsonl.gz", "parquet"])
def test_one_table_in_every_file_format(tmp_path: Path, form: str) -> None:
    frame = pd.DataFrame(two_groups())
    path = tmp_path / f"rows.{form}"
    if form == "parquet":
        frame.to_parquet(path)
    elif form.startswith("jsonl"):
        content = frame.to_json(orient="records", lines=True).encode()
        path.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    else:
        frame.to_csv(path, index=False, sep="\t" if form == "tsv" else ",")
    records = read_records(path)
    assert cells(records, "n_tokens") == frame["tokens"].tolist()
    assert cells(records, "correct") == [bool(value) for value in frame["correct"]]
    assert cells(records, "group_id") == [str(value) for value in frame["prompt_id"]]


def test_columns_by_the_users_word(tmp_path: Path) -> None:
    rows = [{"who": "a", "size": 5, "tokens": 9, "reward": 1}, {"who": "a", "size": 6, "reward": 0}]
    path = jsonl(tmp_path / "a.jsonl", rows)
    columns = {"prompt_id": "who", "n_tokens": "size", "reward": ""}
    records = read_records(path, options=ReadOptions(columns=columns))
    assert cells(records, "n_tokens") == [5, 6]
    assert cells(records, "extra/tokens") == [9, None]
    assert cells(records, "reward") == [None, None]


def test_a_key_that_appears_late_still_gets_its_role(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt_id": 1, "tokens": 1}] * 600
    rows = [dict(row, sample=i) for i, row in enumerate(rows)]
    rows.append({"prompt_id": 1, "sample": 600, "tokens": 2, "correct": 1})
    records = read_records(jsonl(tmp_path / "a.jsonl", rows))
    assert cells(records, "correct") == [None] * 600 + [True]


def test_nested_scalars_have_dotted_names(tmp_path: Path) -> None:
    rows = [{"prompt_id": 1, "usage": {"out": 7, "deep": {"x": 1}}, "m": [1]} for _ in range(2)]
    path = jsonl(tmp_path / "a.jsonl", rows)
    records = read_records(path, options=ReadOptions(columns={"n_tokens": "usage.out"}))
    assert cells(records, "n_tokens") == [7, 7]
    assert has_note(records, "are left out", "usage.deep (2 of 2)", "m (2 of 2)")


def test_unknown_scalar_columns_are_kept(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "prompt_id,tokens,colour,loop\n1,5,red,1\n1,6,,0\n")
    records = read_records(path)
    assert cells(records, "extra/colour") == ["red", None]
    assert cells(records, "extra/loop") == [1.0, 0.0]


# --- ids and groups -------------------------------------------------------------------------------


def test_runs_of_the_same_prompt_are_never_merged(tmp_path: Path) -> None:
    body = "run,prompt_id,sample,tokens\na,1,0,5\nb,1,0,6\n"
    path = text(tmp_path / "a.csv", body)
    records = read_records(path)
    assert cells(records, "prompt_id") == ["a/1", "b/1"]
    assert has_note(records, "2 sets in column run", "--where run=")
    only = read_records(path, options=ReadOptions(where={"run": "b"}))
    assert cells(only, "n_tokens") == [6]
    assert has_note(only, "--where kept 1 of 2 rows")


def test_a_filter_that_matches_nothing_names_what_there_is(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "run,prompt_id,tokens\na,1,5\nb,1,6\n")
    with pytest.raises(ConfigError, match="run takes: a, b"):
        read_records(path, options=ReadOptions(where={"run": "c"}))
    with pytest.raises(ConfigError, match="no column 'runs'; columns: run, prompt_id, tokens"):
        read_records(path, options=ReadOptions(where={"runs": "c"}))


def test_steps_part_the_groups_of_a_prompt(tmp_path: Path) -> None:
    rows = [{"prompt_id": "p", "step": s, "sample": i, "tokens": 1} for s in (1, 2) for i in (0, 1)]
    records = read_records(jsonl(tmp_path / "a.jsonl", rows))
    assert cells(records, "group_id") == ["p@1", "p@1", "p@2", "p@2"]
    assert set(cells(records, "prompt_id")) == {"p"}


def test_groups_go_by_id_never_by_position(tmp_path: Path) -> None:
    """prime-rl#600: P1,P2,P1,P2 with rewards 1,0,1,0 are two constant groups; slices are mixed."""
    rows = [{"prompt_id": p, "reward": r} for p, r in [("P1", 1), ("P2", 0), ("P1", 1), ("P2", 0)]]
    records = read_records(jsonl(tmp_path / "a.jsonl", rows))
    summary = summarise(records)
    assert (summary.all_right_share, summary.all_wrong_share, summary.mixed_share) == (
        0.5,
        0.5,
        0.0,
    )
    assert cells(records, "sample") == [0, 0, 1, 1]


def test_unequal_groups_are_kept(tmp_path: Path) -> None:
    """slime#1414: groups of 4, 2 and 3, rewards centred within their own group."""
    rewards = {"a": [1, 2, 3, 4], "b": [10, 12], "c": [5, 6, 7]}
    rows = [{"group_id": g, "reward": r} for g, values in rewards.items() for r in values]
    table = read_records(jsonl(tmp_path / "a.jsonl", rows)).table
    centred = table["reward"] - table.groupby("group_id")["reward"].transform("mean")
    assert centred.tolist() == [-1.5, -0.5, 0.5, 1.5, -1, 1, -1, 0, 1]


def test_no_id_is_an_error_not_a_guess(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "tokens,correct\n1,1\n2,0\n3,1\n")
    with pytest.raises(
        ConfigError, match=r"no column with a prompt or group id.*--columns prompt_id"
    ):
        read_records(path)
    path = text(tmp_path / "b.csv", "prompt_id,tokens\na,1\n,2\n")
    with pytest.raises(ConfigError, match=r"missing in 1 of 2 rows \(first: row 2\)"):
        read_records(path)


def test_prompts_by_their_text(tmp_path: Path) -> None:
    rows = [{"prompt": t, "completion": "x" * n} for t, n in [("A", 4), ("B", 6), ("A", 8)]]
    records = read_records(
        jsonl(tmp_path / "a.jsonl", rows), options=ReadOptions(chars_per_token=2)
    )
    first, other, again = cells(records, "prompt_id")
    assert first == again != other
    assert cells(records, "n_tokens") == [2, 3, 4]
    assert cells(records, "extra/output_chars") == [4, 6, 8]
    assert not {"extra/prompt", "extra/completion"} & set(records.table)


# --- duplicates -----------------------------------------------------------------------------------


def test_exact_duplicates_are_dropped_with_a_note(tmp_path: Path) -> None:
    rows = two_groups()
    records = read_records(jsonl(tmp_path / "a.jsonl", [*rows, rows[3]]))
    assert len(records.table) == len(rows)
    assert has_note(records, "1 rows were exact duplicates")


def test_conflicting_duplicates_are_an_error(tmp_path: Path) -> None:
    rows = two_groups()
    path = jsonl(tmp_path / "a.jsonl", [*rows, rows[3] | {"tokens": 99}])
    with pytest.raises(ConfigError, match="group '1' holds two different rows with sample 3"):
        read_records(path)


# --- broken files ---------------------------------------------------------------------------------


def test_a_cut_last_line_is_reported_and_the_rest_kept(tmp_path: Path) -> None:
    whole = jsonl(tmp_path / "a.jsonl", two_groups()).read_text()
    cut = text(tmp_path / "cut.jsonl", whole[:-20])
    records = read_records(cut)
    assert len(records.table) == 7
    assert has_note(records, "last line (8) is cut off", "7 rows")
    cut = text(tmp_path / "cut.csv", "prompt_id,sample,tokens,correct\n1,0,5,1\n1,1,6,0\n1,2")
    records = read_records(cut)
    assert len(records.table) == 2
    assert has_note(records, "last line (4) is cut off")


def test_a_cut_gzip_stream_is_reported(tmp_path: Path) -> None:
    rows = [dict(row, prompt_id=i) for i in range(2000) for row in two_groups()[:2]]
    packed = gzip.compress(jsonl(tmp_path / "a.jsonl", rows).read_bytes())
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    records = read_records(path)
    assert 0 < len(records.table) < 4000
    assert has_note(records, "gzip stream is cut")


@pytest.mark.parametrize("bad", ['{"prompt_id": 1,', "nonsense", "[1, 2]", "3"])
def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path, bad: str) -> None:
    path = text(tmp_path / "a.jsonl", f'{{"prompt_id":1,"tokens":1}}\n{bad}\n{{"prompt_id":1}}\n')
    with pytest.raises(ConfigError, match=r"a\.jsonl: line 2: "):
        read_records(path)


def test_a_csv_without_a_last_line_break_may_be_cut(tmp_path: Path) -> None:
    """Cut inside a number (163 of 16384) cannot be seen otherwise."""
    path = text(tmp_path / "a.csv", "prompt_id,tokens\n1,5\n1,163")
    assert has_note(read_records(path), "no line break at the end", "line 3")


def test_a_badly_quoted_row_is_an_error_unless_it_is_the_last(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", 'prompt_id,tokens\n1,5\n"1"x,6\n1,7\n')
    with pytest.raises(ConfigError, match=r"a\.csv: line 3: not valid CSV"):
        read_records(path)
    path = text(tmp_path / "b.csv", 'prompt_id,tokens\n1,5\n1,"6')
    records = read_records(path)
    assert cells(records, "n_tokens") == [5]
    assert has_note(records, "last line (3) is cut off")


def test_a_csv_row_of_another_width_is_an_error(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "prompt_id,tokens\n1,5\n1\n1,6\n")
    with pytest.raises(ConfigError, match="line 3: 1 cells, expected 2"):
        read_records(path)
    path = text(tmp_path / "b.csv", 'prompt_id,tokens\n"1,5\n1,6\n1,7\n')
    with pytest.raises(ConfigError, match="line 2: a quote opened here is never closed"):
        read_records(path)


@pytest.mark.parametrize(
    ("header", "cell", "message"),
    [
        ("tokens", "abc", "line 3: n_tokens: 'abc' is not a number"),
        ("tokens", "-3", "line 3: n_tokens: '-3' is negative"),
        ("tokens", "7.5", "line 3: n_tokens: '7.5' is not a whole number"),
        ("correct", "0.5", "line 3: correct: '0.5' is neither.*--correct-threshold"),
        ("reward", "inf", "line 3: reward: 'inf' is not finite"),
    ],
)
def test_a_cell_that_does_not_fit_names_its_place(
    tmp_path: Path, header: str, cell: str, message: str
) -> None:
    path = text(tmp_path / "a.csv", f"prompt_id,{header}\np,1\np,{cell}\n")
    with pytest.raises(ConfigError, match=message):
        read_records(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.jsonl", "\n \n", "the file is empty"),
        ("a.csv", "prompt_id,tokens\n", "no rows to read"),
        ("a.json", '[{"prompt_id": 1}]', "a JSON array, not JSON lines"),
        ("a.jsonl", '{"step": 1, "data": {"a": 1}}\n', "verl's metric log"),
        ("a.log", "(TaskRunner pid=1) step:1 - a:1 - b:2\n", "not a known format"),
        ("a.bin", "\x00\x01\x02\x03", "not a known format .*binary data"),
        ("a.csv", "a,a\n1,2\n", "names column 'a' twice"),
        ("a.csv", "prompt_id,colour\n1,red\n", "no length, reward or correctness"),
        ("a.parquet", "PAR1 but not really", "not a readable Parquet"),
    ],
)
def test_one_clear_error_for_a_wrong_file(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = text(tmp_path / name, content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_records(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_records(tmp_path / "nothing.csv")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"no rollouts recognised \(it holds x\.txt\)"):
        read_records(tmp_path)


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"prompt_id,tokens,name\n1,2,caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_records(path)


# --- correctness, truncation, cap, selection ------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0, 1, None, "1"], [False, True, None, True]),
        ([-1.0, 1.0, -1.0, 1.0], [False, True, False, True]),
        ([0.2, 0.8, 0.2, 0.8], [None] * 4),
        ([-1.0, 0.0, 1.0, 1.0], [None] * 4),
        ([1.0, 0.7, -1.0, 1.0], [None] * 4),
    ],
)
def test_correct_from_a_reward_only_where_it_is_plain(
    tmp_path: Path, rewards: list[Any], expected: list[bool | None]
) -> None:
    rows = [{"prompt_id": "p", "sample": i, "reward": r} for i, r in enumerate(rewards)]
    path = jsonl(tmp_path / "a.jsonl", rows)
    records = read_records(path)
    assert cells(records, "correct") == expected
    if expected[0] is None:
        assert has_note(records, "correct is missing", "--correct-threshold")


def test_the_users_threshold(tmp_path: Path) -> None:
    rows = [{"prompt_id": "p", "sample": i, "reward": r} for i, r in enumerate([0.2, 0.8, None])]
    path = jsonl(tmp_path / "a.jsonl", rows)
    records = read_records(path, options=ReadOptions(correct_threshold=0.5))
    assert cells(records, "correct") == [False, True, None]


def test_the_cap_infers_truncation_and_says_so(tmp_path: Path) -> None:
    rows = [{"prompt_id": "p", "sample": i, "tokens": t} for i, t in enumerate([5, 100, 120, None])]
    path = jsonl(tmp_path / "a.jsonl", rows)
    assert cells(read_records(path), "truncated") == [None] * 4
    records = read_records(path, options=ReadOptions(cap_tokens=100))
    assert cells(records, "truncated") == [False, True, True, None]
    assert records.cap_tokens == 100
    assert has_note(records, "truncated is inferred")


def test_a_heap_of_lengths_at_the_end_is_pointed_to(tmp_path: Path) -> None:
    lengths = [*range(1, 90), *[4096] * 11]
    rows = [{"prompt_id": i, "tokens": t} for i, t in enumerate(lengths)]
    records = read_records(jsonl(tmp_path / "a.jsonl", rows))
    assert has_note(records, "11 of 100 rows", "4096", "--cap N")
    assert records.cap_tokens is None


def test_stop_reasons_and_a_cap_column(tmp_path: Path) -> None:
    body = "prompt_id,tokens,stop_reason,max_tokens\n1,5,stop,8\n1,8,length,8\n1,7,,8\n"
    records = read_records(text(tmp_path / "a.csv", body))
    assert cells(records, "truncated") == [False, True, None]
    assert records.cap_tokens == 8


def test_selection_is_concluded_from_the_groups_or_left_unknown(tmp_path: Path) -> None:
    def rows(outcomes: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        return [
            {"prompt_id": p, "sample": s, "correct": c}
            for p, group in enumerate(outcomes)
            for s, c in enumerate(group)
        ]

    mixed = [[0, 1, 1, 0]] * 9
    whole = read_records(jsonl(tmp_path / "all.jsonl", rows([*mixed, [1, 1, 1, 1]])))
    assert whole.selection == "all"
    assert has_note(whole, "1 of 10 groups")
    kept = jsonl(tmp_path / "kept.jsonl", rows(mixed))
    assert read_records(kept).selection == "unknown"
    assert has_note(read_records(kept), "--selection kept_mixed")
    asked = read_records(kept, options=ReadOptions(selection="kept_mixed"))
    assert asked.selection == "kept_mixed"
    few = read_records(jsonl(tmp_path / "few.jsonl", rows([*mixed * 30, [1, 1, 1, 1]])))
    assert few.selection == "unknown"  # 1 constant group of 271 is no unfiltered set


def test_rows_marked_as_not_kept_prove_that_all_are_there(tmp_path: Path) -> None:
    rows = [{"prompt_id": p, "tokens": 5, "kept": p == 1} for p in (1, 2)]
    records = read_records(jsonl(tmp_path / "a.jsonl", rows))
    assert records.selection == "all"
    assert cells(records, "kept") == [True, False]


# --- counts and pass rates ------------------------------------------------------------------------


def test_counts_become_rows(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "prompt_id,k,n_correct\na,4,3\nb,2,0\n")
    records = read_records(path)
    assert cells(records, "correct") == [True, True, True, False, False, False]
    assert cells(records, "sample") == [0, 1, 2, 3, 0, 1]
    assert has_note(records, "2 groups are expanded to 6 rows")


def test_groups_without_prompts_are_prompts_of_their_own(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "run,step,group,n,n_correct\nx,1,0,2,1\nx,2,0,2,2\n")
    records = read_records(path)
    assert sorted(set(cells(records, "group_id"))) == ["x/0@1", "x/0@2"]
    assert cells(records, "prompt_id") == cells(records, "group_id")
    assert cells(records, "step") == [1, 1, 2, 2]


def test_wide_pass_rates_become_steps(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "prompt_id,e0,e1,e2\na,0.125,1,\nb,0.5,0,0.25\n")
    records = read_records(path)
    right = records.table.groupby(["prompt_id", "step"])["correct"].sum()
    assert right.to_dict() == {("a", 0): 1, ("a", 1): 8, ("b", 0): 4, ("b", 1): 0, ("b", 2): 2}
    assert has_note(records, "multiples of 1/8")
    more = read_records(path, options=ReadOptions(group_size=16))
    assert len(more.table) == 2 * len(records.table)


def test_counts_that_do_not_fit(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "prompt_id,k,n_correct\na,4,5\n")
    with pytest.raises(ConfigError, match="group 'a': n_correct 5 does not fit 4 samples"):
        read_records(path)
    path = text(tmp_path / "b.csv", "prompt_id,n_correct\na,4\n")
    with pytest.raises(ConfigError, match="--group-size"):
        read_records(path)
    path = text(tmp_path / "c.csv", "prompt_id,pass_rate\na,0.31\nb,0.4999\n")
    with pytest.raises(ConfigError, match="--group-size"):
        read_records(path)


# --- summary --------------------------------------------------------------------------------------


def test_all_generated_and_survivors_are_told_apart(tmp_path: Path) -> None:
    """prime-rl#1205: six groups right, one wrong, three half: .75 generated, .50 survivors."""
    outcomes = [[1] * 4] * 6 + [[0] * 4] + [[1, 1, 0, 0]] * 3
    rows = [{"group_id": g, "correct": c} for g, group in enumerate(outcomes) for c in group]
    summary = summarise(read_records(jsonl(tmp_path / "a.jsonl", rows)))
    assert summary.accuracy.value == pytest.approx(0.75)
    assert summary.survivor_accuracy.value == pytest.approx(0.50)
    shares = (summary.all_right_share, summary.all_wrong_share, summary.mixed_share)
    assert shares == pytest.approx((0.6, 0.1, 0.3))


def test_missing_rewards_are_counted_not_averaged(tmp_path: Path) -> None:
    """TRL#4501."""
    rewards = [0.5, math.nan, math.nan, 0.8, 0.6, 0.7]
    rows = [{"group_id": 1, "reward": r} for r in rewards]
    summary = summarise(read_records(jsonl(tmp_path / "a.jsonl", rows)))
    assert summary.reward.value == pytest.approx(0.65)
    assert (summary.reward.n, summary.reward.missing) == (4, 2)
    empty = read_records(
        jsonl(tmp_path / "b.jsonl", [{"group_id": 1, "reward": None, "tokens": 1}])
    )
    assert summarise(empty).reward.value is None


# --- finish, write, options -----------------------------------------------------------------------


def test_finish_checks_what_it_is_given() -> None:
    good = pd.DataFrame({"group_id": ["a", "a"], "source": "x", "n_tokens": [1, 2]})
    assert finish(good, selection="all").table["sample"].tolist() == [0, 1]
    with pytest.raises(ConfigError, match="a group holds two prompts"):
        finish(good.assign(prompt_id=["p", "q"]), selection="all")
    with pytest.raises(ConfigError, match="n_tokens"):
        finish(good.assign(n_tokens=[1, -2]), selection="all")
    with pytest.raises(ConfigError, match="t_end_s lies before t_start_s"):
        finish(good.assign(t_start_s=[1.0, 1.0], t_end_s=[2.0, 0.0]), selection="all")
    with pytest.raises(ConfigError, match="no rows"):
        finish(good.iloc[:0], selection="all")
    assert list(good.columns) == ["group_id", "source", "n_tokens"]


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = read_records(jsonl(tmp_path / "a.jsonl", two_groups()))
    with pytest.raises(ConfigError, match=r"\.parquet, \.csv, \.jsonl"):
        write_records(records, tmp_path / "a.pickle")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ConfigError, match="No space left"):
        write_records(records, tmp_path / "b.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_parquet_keeps_selection_and_cap(tmp_path: Path) -> None:
    options = ReadOptions(selection="kept_first_finished", cap_tokens=30)
    records = read_records(jsonl(tmp_path / "a.jsonl", two_groups()), options=options)
    write_records(records, tmp_path / "b.parquet")
    again = read_records(tmp_path / "b.parquet")
    assert (again.selection, again.cap_tokens) == ("kept_first_finished", 30)
    pd.testing.assert_frame_equal(again.table, records.table)


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "verll"},
        {"selection": "some"},
        {"columns": {"tokenz": "a"}},
        {"cap_tokens": 0},
        {"group_size": 0},
        {"chars_per_token": -1.0},
        {"chars_per_token": math.nan},
        {"correct_threshold": math.inf},
        {"chars_per_token": 2.0, "tokenizer": Path("x")},
    ],
)
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ReadOptions(**wrong)


def test_pairs_from_the_command_line() -> None:
    assert parse_pairs(["a=1,b=2", "c=x,y"], flag="--where") == {"a": "1", "b": "2", "c": "x,y"}
    with pytest.raises(ConfigError, match="--where takes NAME=VALUE"):
        parse_pairs(["a"], flag="--where")
    with pytest.raises(ConfigError, match="twice"):
        parse_pairs(["a=1", "a=2"], flag="--where")
