"""What holds for every table: order means nothing, formats are equal, missing stays missing."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.records import ReadOptions, read_records, summarise, write_records

names = st.text("abcXYZ019_-. ä", min_size=1, max_size=6).map(str.strip).filter(bool)
values = st.one_of(st.none(), st.integers(0, 9), st.floats(-5, 5, width=32), st.booleans(), names)


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of unequal groups with missing cells; sample ids are given and unique."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    row = st.fixed_dictionaries(
        {
            "tokens": st.one_of(st.none(), st.integers(0, 10**6)),
            "reward": st.one_of(st.none(), st.sampled_from([-1.0, 0.0, 1.0, 0.25])),
            "correct": st.one_of(st.none(), st.booleans()),
            "truncated": st.one_of(st.none(), st.booleans()),
            "mine": values,
        }
    )
    return [
        {"prompt_id": f"p{group}", "sample": sample, **draw(row)}
        for group, size in enumerate(sizes)
        for sample in range(size)
    ]


def read(rows: list[dict[str, Any]]) -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return read_records(path).table


def by_id(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values(["group_id", "sample"]).reset_index(drop=True)


@given(tables(), st.randoms(use_true_random=False))
def test_shuffled_rows_give_the_same_result_per_row(rows: list[dict[str, Any]], rng: Any) -> None:
    shuffled = list(rows)
    rng.shuffle(shuffled)
    pd.testing.assert_frame_equal(by_id(read(rows)), by_id(read(shuffled)))


@given(tables(), st.randoms(use_true_random=False))
def test_without_sample_ids_every_group_keeps_its_rows(
    rows: list[dict[str, Any]], rng: Any
) -> None:
    for row in rows:
        del row["sample"]
    shuffled = list(rows)
    rng.shuffle(shuffled)
    columns = ["group_id", "n_tokens", "reward", "correct", "truncated"]
    first, second = (
        frame[columns].astype(str).sort_values(columns).reset_index(drop=True)
        for frame in (read(rows), read(shuffled))
    )
    pd.testing.assert_frame_equal(first, second)


@given(tables())
def test_missing_cells_stay_missing_and_present_ones_stay(rows: list[dict[str, Any]]) -> None:
    table = read(rows)
    for column, key in (("n_tokens", "tokens"), ("reward", "reward"), ("truncated", "truncated")):
        expected = [row[key] for row in rows]
        found = [None if pd.isna(cell) else cell for cell in table[column]]
        assert found == expected
    summary = summarise(table)
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    assert (summary.reward.n, summary.reward.missing) == (len(rewards), len(rows) - len(rewards))
    if rewards:
        assert summary.reward.value is not None
        assert abs(summary.reward.value - sum(rewards) / len(rewards)) < 1e-12
    assert sum(size * n for size, n in summary.group_sizes.items()) == len(rows)


@given(tables())
def test_absent_keys_and_nulls_are_the_same(rows: list[dict[str, Any]]) -> None:
    sparse = [{key: cell for key, cell in row.items() if cell is not None} for row in rows]
    measures = ("tokens", "reward", "correct", "truncated")
    if not any(key in row for row in sparse for key in measures):
        return
    first, second = read(rows), read(sparse)
    common = [name for name in first.columns if name in second.columns]
    pd.testing.assert_frame_equal(first[common], second[common])


@settings(max_examples=25)  # seven reads and writes an example
@given(tables())
def test_the_three_file_formats_hold_the_same_table(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "a.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        records = read_records(source, options=ReadOptions(selection="all", cap_tokens=10**7))
        present = records.table.dropna(axis="columns", how="all")
        for suffix in ("parquet", "csv", "jsonl"):
            path = Path(folder) / f"b.{suffix}"
            write_records(records, path)
            again = read_records(path, options=ReadOptions(selection="all"))
            pd.testing.assert_frame_equal(again.table[list(present)], present)


@given(tables())
def test_constant_groups_are_none_of_the_survivors(rows: list[dict[str, Any]]) -> None:
    known = [row | {"correct": bool(row["correct"])} for row in rows]
    summary = summarise(read(known))
    groups: dict[str, list[bool]] = {}
    for row in known:
        groups.setdefault(row["prompt_id"], []).append(row["correct"])
    mixed = [group for group in groups.values() if len(set(group)) == 2]
    n_mixed_rows = sum(map(len, mixed))
    assert summary.survivor_accuracy.n == n_mixed_rows
    if mixed:
        assert summary.survivor_accuracy.value == sum(map(sum, mixed)) / n_mixed_rows
    judged = [group for group in groups.values() if len(group) > 1]
    if judged:
        shares = (summary.all_right_share, summary.all_wrong_share, summary.mixed_share)
        assert abs(sum(share for share in shares if share is not None) - 1) < 1e-12
