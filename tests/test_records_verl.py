"""verl dumps, legacy and V1 (the layouts of verl 0.4 to 0.9.1)."""

import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dapolab.records import ReadOptions, Records, read_records, summarise
from dapolab.scenario import ConfigError


def dump(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(prompt: str, score: object, *, step: int = 1, **more: object) -> dict[str, Any]:
    output = more.pop("output", f"answer {score}")
    return {"input": prompt, "output": output, "gts": "1", "score": score, "step": step, **more}


def cells(records: Records, column: str) -> list[Any]:
    return [None if pd.isna(value) else value for value in records.table[column]]


def has_note(records: Records, *words: str) -> bool:
    return any(all(word in note for word in words) for note in records.notes)


def test_extras_that_only_some_rows_have(tmp_path: Path) -> None:
    """verl#1031 and its kind: nothing shifts, nothing is filled, score is not overwritten."""
    base = {"input": "a", "output": "x", "gts": "1", "score": 1.0, "step": 3}
    lines = [base | {"acc": 1.0}, base, base | {"acc": None}, base | {"acc": float("nan")}]
    lines = [line | {"mine": i} for i, line in enumerate(lines)]
    records = read_records(dump(tmp_path / "3.jsonl", lines))
    assert records.format == "verl"
    assert cells(records, "extra/acc") == [1.0, None, None, None]
    assert cells(records, "reward") == [1.0] * 4
    assert cells(records, "extra/mine") == [0, 1, 2, 3]
    assert has_note(records, "acc present in 1 of 4")
    assert has_note(records, "acc and pred are not used")


def test_numbers_as_strings_and_a_cut_last_line(tmp_path: Path) -> None:
    lines = [row("a", "1.0"), row("a", "tensor(-1.)"), row("b", "-1"), row("b", 1)]
    path = dump(tmp_path / "1.jsonl", lines)
    path.write_text(path.read_text()[:-9])
    records = read_records(path)
    assert cells(records, "reward") == [1.0, -1.0, -1.0]
    assert cells(records, "correct") == [True, False, False]
    assert has_note(records, "last line (4) is cut off")


def test_acc_of_another_row_is_never_believed(tmp_path: Path) -> None:
    records = read_records(dump(tmp_path / "1.jsonl", [row("a", -1.0, acc=True), row("a", 1.0)]))
    assert cells(records, "correct") == [False, True]


def test_legacy_groups_go_by_text_within_a_step(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    dump(folder / "10.jsonl", [row("a", 1, step=10), row("b", 0, step=10), row("a", 0, step=10)])
    dump(folder / "9.jsonl", [row("a", 1, step=9), row("b", 1, step=9)])
    (folder / "notes.txt").write_text("not a dump")
    records = read_records(folder)
    assert cells(records, "source") == ["9.jsonl"] * 2 + ["10.jsonl"] * 3
    sizes = records.table.groupby("group_id").size().sort_values()
    assert sizes.tolist() == [1, 1, 1, 2]
    assert summarise(records).n_prompts == 2


def test_the_step_may_come_from_the_file_name(tmp_path: Path) -> None:
    lines = [{"input": "a", "output": "x", "score": 1.0}]
    records = read_records(dump(tmp_path / "42.jsonl", lines))
    assert cells(records, "step") == [42]


def test_a_prompt_drawn_twice_in_a_step_is_pointed_to(tmp_path: Path) -> None:
    lines = [row(prompt, 1) for prompt in "aabbcccc"]
    records = read_records(dump(tmp_path / "1.jsonl", lines))
    assert has_note(records, "1 groups hold a multiple of the usual 2 responses")


def test_v1_groups_by_uid_and_drops_padding(tmp_path: Path) -> None:
    uids = ["u-1_0_0", "u-1_1_0", "u-2_0_0", "u-2_1_0", "pad_0_0"]
    lines = [row("same", float(i % 2), uid=uid) for i, uid in enumerate(uids)]
    records = read_records(dump(tmp_path / "1.jsonl", lines))
    assert cells(records, "group_id") == ["u-1", "u-1", "u-2", "u-2"]
    assert len(set(cells(records, "prompt_id"))) == 1
    assert cells(records, "sample") == [0, 1, 0, 1]
    assert has_note(records, "1 padding rows")
    assert records.built_from == "the format's description"
    assert read_records(dump(tmp_path / "2.jsonl", [row("p", 1.0)])).built_from == "a real sample"


def test_v1_sessions_with_several_outputs(tmp_path: Path) -> None:
    uids = ["u_1_0", "u_0_1", "u_0_0"]
    records = read_records(dump(tmp_path / "1.jsonl", [row("p", 1, uid=uid) for uid in uids]))
    assert cells(records, "sample") == [2, 1, 0]
    assert has_note(records, "several outputs")


def test_a_uid_of_another_form_is_an_error(tmp_path: Path) -> None:
    path = dump(tmp_path / "1.jsonl", [row("p", 1, uid="abc")])
    with pytest.raises(ConfigError, match=r"1\.jsonl: line 1: uid 'abc'"):
        read_records(path)


def test_shaped_scores_leave_correct_missing(tmp_path: Path) -> None:
    lines = [row("p", score) for score in (1.0, -1.0, 0.62, -1.4)]
    path = dump(tmp_path / "1.jsonl", lines)
    records = read_records(path)
    assert cells(records, "correct") == [None] * 4
    assert has_note(records, "score takes 4 values", "--correct-threshold")
    judged = read_records(path, options=ReadOptions(correct_threshold=0))
    assert cells(judged, "correct") == [True, False, True, False]


def test_no_lengths_names_the_options(tmp_path: Path) -> None:
    path = dump(tmp_path / "1.jsonl", [row("p", 1, output="x" * 26), row("p", 0, output="x" * 52)])
    records = read_records(path)
    assert cells(records, "n_tokens") == [None, None]
    assert has_note(records, "--tokenizer DIR", "--chars-per-token X", "--cap N")
    options = ReadOptions(chars_per_token=2.6, cap_tokens=20)
    records = read_records(path, options=options)
    assert cells(records, "n_tokens") == [10, 20]
    assert cells(records, "truncated") == [False, True]
    assert has_note(records, "estimate: characters / 2.6")
    assert has_note(records, "truncated is inferred", "approximate")


def test_selection_follows_from_constant_groups_only(tmp_path: Path) -> None:
    mixed = [row(prompt, score) for prompt in "abc" for score in (1, 0)]
    assert read_records(dump(tmp_path / "1.jsonl", mixed)).selection == "unknown"
    assert read_records(
        dump(tmp_path / "2.jsonl", [*mixed, row("d", 1), row("d", 1)])
    ).selection == ("all")


def test_texts_are_not_kept(tmp_path: Path) -> None:
    secret = "the whole answer " * 50
    records = read_records(dump(tmp_path / "1.jsonl", [row("p", 1, output=secret, pred=secret)]))
    assert not records.table.map(lambda cell: "answer" in str(cell)).any(axis=None)
    assert cells(records, "extra/output_chars") == [len(secret)]


def test_lone_surrogates_and_unicode(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text('{"input":"\\ud800","output":"数学","score":1,"step":1,"pred":"\\udfff"}\n')
    records = read_records(path)
    assert cells(records, "extra/output_chars") == [2]


def test_a_row_without_input_is_an_error(tmp_path: Path) -> None:
    lines = [row("p", 1), {"output": "x", "score": 1, "step": 1}]
    with pytest.raises(ConfigError, match="line 2: no input"):
        read_records(dump(tmp_path / "1.jsonl", lines))


def test_the_tokenizer_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dump(tmp_path / "1.jsonl", [row("p", 1)])
    with pytest.raises(ConfigError, match="no such folder"):
        read_records(path, options=ReadOptions(tokenizer=tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'dapolab\[hf\]'"):
        read_records(path, options=ReadOptions(tokenizer=tmp_path))


def test_a_tokenizer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Words:
        @classmethod
        def from_pretrained(cls, folder: str, **settings: bool) -> "Words":
            assert settings == {"local_files_only": True, "trust_remote_code": False}
            return cls()

        def __call__(self, words: str, *, add_special_tokens: bool) -> dict[str, list[str]]:
            assert not add_special_tokens
            return {"input_ids": words.split()}

    module = types.ModuleType("transformers")
    module.AutoTokenizer = Words  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", module)
    path = dump(tmp_path / "1.jsonl", [row("what is it", 1, output="it is a cat")])
    records = read_records(path, options=ReadOptions(tokenizer=tmp_path, cap_tokens=4))
    assert cells(records, "n_tokens") == [4]
    assert cells(records, "n_prompt_tokens") == [3]
    assert cells(records, "truncated") == [True]
