"""TRL, ms-swift, open-instruct, AReaL, NeMo RL, slime and 06-dapo files, as their sources say."""

import collections
import io
import json
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dapolab.records import ReadOptions, Records, detect, read_records
from dapolab.records.pickle_names import Opaque, RefusedPickleError
from dapolab.records.plain_pickle import load_plain
from dapolab.scenario import ConfigError


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def cells(records: Records, column: str) -> list[Any]:
    return [None if pd.isna(value) else value for value in records.table[column]]


def has_note(records: Records, *words: str) -> bool:
    return any(all(word in note for word in words) for note in records.notes)


def sizes(records: Records) -> list[int]:
    return sorted(records.table.groupby("group_id").size())


# TRL: blocks of num_generations rows, 1.16 with message lists


def completions(steps: dict[int, str], *, size: int, messages: bool = False) -> pd.DataFrame:
    """One row a completion; ``{5: "ab"}`` is step 5 with a block of prompt a and one of b."""
    rows = []
    for step, prompts in steps.items():
        for prompt in prompts:
            for i in range(size):
                rows.append(
                    {
                        "step": step,
                        "prompt": [{"role": "user", "content": prompt}] if messages else prompt,
                        "completion": [{"role": "assistant", "content": "x" * (i + 1)}]
                        if messages
                        else "x" * (i + 1),
                        "accuracy_reward": float(i % 2),
                        "advantage": 0.5,
                    }
                )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("messages", [False, True])
def test_trl_blocks(tmp_path: Path, messages: bool) -> None:
    folder = tmp_path / "out" / "completions"
    folder.mkdir(parents=True)
    for step, prompts in ((5, "ab"), (10, "cb")):
        table = completions({step: prompts}, size=4, messages=messages)
        table.to_parquet(folder / f"completions_{step:05d}.parquet")
    records = read_records(tmp_path / "out")
    assert records.format == "trl"
    assert records.built_from == "the format's description"
    assert sizes(records) == [4] * 4
    assert records.table["prompt_id"].nunique() == 3  # b comes in both steps
    assert cells(records, "step") == [5] * 8 + [10] * 8
    assert cells(records, "sample") == [0, 1, 2, 3] * 4
    assert cells(records, "reward") == [0.0, 1.0] * 8
    assert cells(records, "correct") == [False, True] * 8
    assert cells(records, "n_tokens") == [None] * 16
    assert has_note(records, "blocks of 4 rows")
    assert has_note(records, "--tokenizer DIR", "log_extra")
    assert has_note(records, "truncation and times are not in the file")
    counted = read_records(tmp_path / "out", options=ReadOptions(chars_per_token=0.5))
    assert cells(counted, "n_tokens") == [2, 4, 6, 8] * 4


def test_trl_hooks_of_log_extra(tmp_path: Path) -> None:
    table = completions({1: "ab"}, size=2)
    table["completion_length"] = [10, 20, 30, 40]
    table["finish_reason"] = ["stop", "length", "stop", "stop"]
    table["format_reward"] = 1.0
    path = tmp_path / "completions_00001.parquet"
    table.to_parquet(path)
    records = read_records(path)
    assert cells(records, "n_tokens") == [10, 20, 30, 40]
    assert cells(records, "truncated") == [False, True, False, False]
    assert cells(records, "reward") == [None] * 4
    assert has_note(records, "2 columns may be rewards", "--columns reward=NAME")
    chosen = read_records(path, options=ReadOptions(columns={"reward": "accuracy_reward"}))
    assert cells(chosen, "reward") == [0.0, 1.0, 0.0, 1.0]


def test_rows_that_are_no_blocks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    whole = completions({1: "ab"}, size=4)
    whole.iloc[:7].to_parquet(path)
    with pytest.raises(ConfigError, match=r"4 rows from row 1, another in 3.*--group-size N"):
        read_records(path)
    with pytest.raises(ConfigError, match="no multiple of 4"):
        read_records(path, options=ReadOptions(group_size=4))
    whole.to_parquet(path)
    with pytest.raises(ConfigError, match="row 5: a block of 8 rows holds two prompts"):
        read_records(path, options=ReadOptions(group_size=8))
    completions({1: "aab"}, size=2).to_parquet(path)  # the same prompt twice in a row
    assert sizes(read_records(path)) == [2, 2, 2]


def test_ms_swift_lines_are_tables_of_lists(tmp_path: Path) -> None:
    table = completions({1: "ab"}, size=2)
    table = table.rename(columns={"advantage": "advantages"}).assign(step="1")
    line = {name: table[name].tolist() for name in table}
    path = jsonl(tmp_path / "completions.jsonl", [line, line | {"step": ["2"] * 4}])
    records = read_records(tmp_path)
    assert records.format == "ms_swift"
    assert sizes(records) == [2] * 4
    assert cells(records, "step") == [1] * 4 + [2] * 4
    assert cells(records, "reward") == [0.0, 1.0] * 4
    rows = table.to_dict(orient="records")
    flat = read_records(jsonl(tmp_path / "flat" / "completions.jsonl", rows))
    assert (flat.format, sizes(flat)) == ("ms_swift", [2, 2])
    assert has_note(records, "original batch where resampling failed")
    path.write_text(json.dumps({"prompt": [1, 2], "completion": ["a", "b"]}) + "\n")
    with pytest.raises(ConfigError, match="line 1: no prompt"):
        read_records(path)


def open_instruct_row(step: int, place: int, prompt: int, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "sample_idx": place,
        "prompt_idx": place // 2,
        "prompt_tokens": [prompt, 7, 8],
        "response_tokens": list(range(place + 1)),
        "reward": float(place % 2) * 10,
        "advantage": 0.1,
        "finish_reason": "length" if place == 3 else "stop",
        "dataset": "gsm8k",
        "request_info": {"num_calls": 0},
        **more,
    }


def test_open_instruct(tmp_path: Path) -> None:
    rows = [open_instruct_row(s, i, prompt=i // 2) for s in (1, 2) for i in range(4)]
    jsonl(tmp_path / "run_rollouts_000000.jsonl", rows[:5])
    jsonl(tmp_path / "run_rollouts_000001.jsonl", rows[5:])
    records = read_records(tmp_path)
    assert records.format == "open_instruct"
    assert sizes(records) == [2] * 4
    assert records.table["prompt_id"].nunique() == 2
    assert cells(records, "n_tokens") == [1, 2, 3, 4] * 2
    assert cells(records, "n_prompt_tokens") == [3] * 8
    assert cells(records, "truncated") == [False, False, False, True] * 2
    assert cells(records, "reward") == [0.0, 10.0] * 4
    assert has_note(records, "groups that were filtered are in no file")
    assert records.selection == "unknown"  # all mixed: it may have been filtered


def test_open_instruct_misaligned_groups_are_refused(tmp_path: Path) -> None:
    rows = [open_instruct_row(1, i, prompt=(i + 1) // 2) for i in range(4)]
    with pytest.raises(ConfigError, match="line 2: prompt_idx 0 of step 1 joins two prompts"):
        read_records(jsonl(tmp_path / "run_rollouts_000000.jsonl", rows))


def test_two_runs_of_open_instruct_stay_apart(tmp_path: Path) -> None:
    for run in ("a", "b"):
        rows = [open_instruct_row(1, i, prompt=0) for i in range(2)]
        jsonl(tmp_path / f"{run}_rollouts_000000.jsonl", rows)
    assert sizes(read_records(tmp_path)) == [2, 2]


def areal_row(task: int, sample: int, **more: Any) -> dict[str, Any]:
    """As in the files that AReaL's own tools index: {version}/{task_id}.jsonl."""
    return {
        "task_id": task,
        "sample_idx": sample,
        "seqlen": 100 + sample,
        "prompt_len": 60,
        "head_version": 2,
        "tail_version": 3,
        "version_rle": [[3, 40]],
        "reward": float(sample),
        "prompt": f"p{task}",
        "completion": "answer",
        **more,
    }


def test_areal_folders(tmp_path: Path) -> None:
    jsonl(tmp_path / "3" / "7.jsonl", [areal_row(7, 0), areal_row(7, 1)])
    jsonl(tmp_path / "4" / "7.jsonl", [areal_row(7, 2, tail_version=4)])
    jsonl(tmp_path / "10" / "8.jsonl", [areal_row(8, 0, tail_version=10)])
    records = read_records(tmp_path)
    assert (records.format, records.selection) == ("areal", "all")
    assert sizes(records) == [1, 3]  # a task's samples end at different versions
    assert cells(records, "n_tokens") == [40, 41, 42, 40]
    assert cells(records, "n_prompt_tokens") == [60] * 4
    assert cells(records, "step") == [3, 3, 4, 10]
    assert has_note(records, "truncation and times are not in the file")
    # one version's folder has the names of verl's dumps
    assert detect(tmp_path / "3").format == "areal"
    with pytest.raises(ConfigError, match=r"seqlen 50 is less than prompt_len 60"):
        read_records(jsonl(tmp_path / "5.jsonl", [areal_row(1, 0, seqlen=50)]))


def nemo_row(prompt: list[int], answer: list[int], **more: Any) -> dict[str, Any]:
    tokens = [*prompt, *answer, 0, 0]
    mask = [0] * len(prompt) + [1] * len(answer) + [0, 0]
    return {
        "content": "text",
        "rewards": [9.0],
        "input_lengths": len(prompt) + len(answer),
        "token_ids": tokens,
        "token_loss_mask": mask,
        "sample_loss_mask": 1.0,
        "idx": 0,
        **more,
    }


def test_nemo_rl_groups_by_the_prompts_tokens(tmp_path: Path) -> None:
    rows = [
        nemo_row([1, 2], [5], rewards=1.0),
        nemo_row([3], [6, 7], rewards=0.0),
        nemo_row([1, 2], [5, 6, 7], rewards=0.0),
    ]
    for step in (2, 10):
        jsonl(tmp_path / f"train_data_step{step}.jsonl", rows)
    records = read_records(tmp_path)
    assert records.format == "nemo_rl"
    assert cells(records, "step") == [2] * 3 + [10] * 3
    assert sizes(records) == [1, 1, 2, 2]
    assert cells(records, "n_tokens") == [1, 2, 3] * 2
    assert cells(records, "n_prompt_tokens") == [2, 1, 2] * 2
    assert cells(records, "reward") == [1.0, 0.0, 0.0] * 2


def test_nemo_rl_never_takes_the_unfiltered_rewards(tmp_path: Path) -> None:
    rows = [nemo_row([1], [5], filtered_rewards=r, rewards=777.125) for r in (0.0, 1.0)]
    records = read_records(jsonl(tmp_path / "train_data_step1.jsonl", rows))
    assert cells(records, "reward") == [0.0, 1.0]
    assert not any(
        "777.125" in str(value) for name in records.table for value in cells(records, name)
    )
    assert records.selection == "kept_mixed"
    old = {"content": "x", "rewards": 1.0, "input_lengths": 5}
    with pytest.raises(ConfigError, match="line 1: no token_ids"):
        read_records(jsonl(tmp_path / "train_data_step2.jsonl", [old]))


def test_evaluations_of_06_dapo(tmp_path: Path) -> None:
    def generation(correct: bool, tokens: int, reason: str) -> dict[str, Any]:
        return {
            "correct": correct,
            "completion_tokens": tokens,
            "stop_reason": reason,
            "formatted": True,
            "text": "ab",
        }

    problem = {
        "type": "problem",
        "problem_id": "q1",
        "val_n": 2,
        "num_correct": 1,
        "generations": [generation(True, 10, "stop"), generation(False, 64, "length")],
    }
    path = jsonl(tmp_path / "eval.jsonl", [problem, {"type": "summary", "accuracy": 0.5}])
    records = read_records(path)
    assert (records.format, records.selection) == ("dapo_06", "all")
    assert cells(records, "correct") == [True, False]
    assert cells(records, "n_tokens") == [10, 64]
    assert cells(records, "truncated") == [False, True]
    with pytest.raises(ConfigError, match="val_n 3, but 2 generations"):
        read_records(jsonl(path, [problem | {"val_n": 3}]))


# slime: torch.save archives, read without torch and without unpickling


def sample(group: int, index: int, **more: Any) -> dict[str, Any]:
    return {
        "group_index": group,
        "index": index,
        "prompt": f"p{group}",
        "tokens": [1, 2, 3, *range(300, 310 + index)],
        "response": "text",
        "response_length": 10 + index,
        "reward": float(index % 2),
        "status": "completed",
        "metadata": {"a": 1},
        "non_generation_time": 0.5,
        "trace": {
            "events": [
                {"type": "span_start", "name": "sglang_generate", "ts": 100.0 + index},
                {"type": "span_end", "name": "sglang_generate", "ts": 105.5 + index},
                {"type": "span_start", "name": "reward", "ts": 1.0},
                {"type": "span_end", "name": "reward", "ts": 200.0},
            ]
        },
        **more,
    }


def archive(path: Path, data: bytes, *, compressed: bool = False) -> Path:
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("0/data.pkl", data)
        file.writestr("0/version", b"3\n")
    return path


def saved(path: Path, content: Any, *, protocol: int = 2) -> Path:
    return archive(path, pickle.dumps(content, protocol=protocol))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_slime_rollout_data(tmp_path: Path, protocol: int) -> None:
    folder = tmp_path / "rollout_data"
    folder.mkdir()
    statuses = ("completed", "truncated", "aborted", "completed")
    samples = [sample(i // 2, i, status=statuses[i]) for i in range(4)]
    samples[0]["reward"] = np.float64(0.25)
    samples[1]["reward"] = {"score": 0.75, "format": 1.0}
    saved(folder / "3.pt", {"rollout_id": 3, "samples": samples}, protocol=protocol)
    saved(folder / "eval_3.pt", {"samples": []})
    records = read_records(tmp_path)
    assert records.format == "slime"
    assert cells(records, "step") == [3] * 4
    assert sizes(records) == [2, 2]
    assert cells(records, "n_tokens") == [10, 11, 12, 13]
    assert cells(records, "n_prompt_tokens") == [3] * 4
    assert cells(records, "truncated") == [False, True, None, False]
    assert cells(records, "reward") == [0.25, 0.75, 0.0, 1.0]
    assert cells(records, "t_start_s") == [100.0, 101.0, 102.0, 103.0]
    assert cells(records, "t_end_s") == [105.5, 106.5, 107.5, 108.5]
    assert has_note(records, "aborted (1)", "truncation is missing")
    assert has_note(records, "rejected groups")


def test_slime_file_of_torch_itself(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    samples = [sample(0, i, loss_mask=torch.ones(3), rollout_log_probs=[-0.5]) for i in range(2)]
    extra = collections.OrderedDict(a=torch.zeros(2, dtype=torch.bfloat16), b=torch.Size([3]))
    torch.save({"rollout_id": 7, "samples": samples, "extra": extra}, tmp_path / "7.pt")
    records = read_records(tmp_path / "7.pt")
    assert cells(records, "n_tokens") == [10, 11]
    assert cells(records, "step") == [7, 7]


class Evil:
    """What a hostile file would hold."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


@pytest.mark.parametrize(
    "evil",
    [
        Evil(os.system, "touch PLACE"),
        Evil(eval, "open('PLACE', 'w')"),
        Evil(exec, "open('PLACE', 'w')"),
        Evil(open, "PLACE", "w"),
        Evil(getattr, sys, "exit"),
        Evil(__import__, "os"),
        io.BytesIO,
    ],
)
@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_a_hostile_pickle_is_refused_and_runs_nothing(
    tmp_path: Path, evil: Any, protocol: int
) -> None:
    place = tmp_path / "ran"
    if isinstance(evil, Evil):
        arguments = (str(a).replace("PLACE", str(place)) for a in evil.arguments)
        evil = Evil(evil.function, *arguments)
    content = {"rollout_id": 1, "samples": [sample(0, 0, metadata=evil)]}
    path = saved(tmp_path / "1.pt", content, protocol=protocol)
    with pytest.raises(ConfigError, match=r"its pickle is not opened: .*plain data") as caught:
        read_records(path)
    assert "\n" not in str(caught.value)
    assert not place.exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "names os.system"),
        (b"(S'true'\nios\nsystem\n.", "opcode"),
        (b"(cos\nsystem\nS'true'\no.", "names os.system"),
        (b"\x82\x01.", "opcode"),
        (b"\x80\x02N}\x93.", "names"),
        (b"\x80\x02]cbuiltins\nset\nR.", "calls something"),
        (b"\x80\x02K\x01}b.", "sets the state"),
        (b"\x80\x02}]K\x01s.", "broken"),
        (b"\x80\x02]q\x00h\x07.", "broken"),
        (b"\x80\x02X\xff\xff\xff\xff.", "cut off"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "integer of 2147483647 bytes"),
        (b"\x80\x02u.", "broken|mark"),
        (b"\x80\x02]", "broken"),
        (b"", "broken"),
    ],
)
def test_broken_and_odd_pickles(data: bytes, words: str) -> None:
    with pytest.raises(RefusedPickleError, match=words):
        load_plain(data)


def test_a_huge_memo_index_costs_nothing() -> None:
    """CPython's own reader allocates as many places as the index says (gh-115952)."""
    assert load_plain(b"\x80\x02K\x07r\xff\xff\xff\xff.") == 7


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_come_back_as_pickle_gives_them(protocol: int) -> None:
    values: list[Any] = [
        {"a": [1, -1, 255, 256, 65535, 65536, 2**31, -(2**40), 2**70, True, None, 0.5, -1e300]},
        (("x",), ("x", "y"), (1, 2, 3, 4), ()),
        ["é", "\ud800", "a" * 300, b"bytes", b"b" * 300],
        [[]] * 3,
    ]
    shared = [1, 2]
    values.append({"one": shared, "two": shared})
    assert load_plain(pickle.dumps(values, protocol=protocol)) == values
    sets = load_plain(pickle.dumps({1, 2}, protocol=protocol))
    assert isinstance(sets, Opaque)


@pytest.mark.parametrize("kind", ["float64", "float32", "int64", "int32", "bool"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_numpy_scalars_are_their_numbers(kind: str, protocol: int) -> None:
    assert load_plain(pickle.dumps(np.dtype(kind).type(1), protocol=protocol)) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"rollout_id": 1}, "no list of samples"),
        ({"samples": [3]}, "sample 1: not a dict"),
        ({"samples": [{"reward": 1.0}]}, "sample 1: no group_index and no prompt"),
        ({"samples": [sample(0, 0, response_length=-1)]}, "sample 1: .*negative"),
        ({"samples": []}, "no rows to read"),
    ],
)
def test_slime_content_that_is_none(tmp_path: Path, content: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_records(saved(tmp_path / "1.pt", content))


def test_archives_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "1.pt"
    data = pickle.dumps({"samples": [sample(0, 0)]}, protocol=2)
    with pytest.raises(ConfigError, match="compressed"):
        read_records(archive(path, data, compressed=True))
    archive(path, data)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ConfigError, match="not a readable archive"):
        read_records(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("other.txt", "x")
    with pytest.raises(ConfigError, match=r"no data\.pkl"):
        read_records(path)
    deep = b"\x80\x02" + b"}X" + struct.pack("<I", 7) + b"samples"
    deep += b"]}X" + struct.pack("<I", 5) + b"index" + b"]" * 200_000 + b"a" * 199_999 + b"sas."
    with pytest.raises(ConfigError, match="sample 1: "):
        read_records(archive(path, deep))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    for name in ("global_step_1_training_input.pkl", "data.bin"):
        path = tmp_path / name
        path.write_bytes(pickle.dumps({"uids": [1]}, protocol=4))
        with pytest.raises(ConfigError, match="a pickle can run code and is never opened; SkyRL"):
            read_records(path)
    (tmp_path / "data.bin").unlink()
    with pytest.raises(ConfigError, match="SkyRL"):
        read_records(tmp_path)
