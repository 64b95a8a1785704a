"""prime-rl, verifiers and tinker files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dapolab.records import ReadOptions, Records, detect, read_records
from dapolab.scenario import ConfigError


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def cells(records: Records, column: str) -> list[Any]:
    return [None if pd.isna(value) else value for value in records.table[column]]


def has_note(records: Records, *words: str) -> bool:
    return any(all(word in note for word in words) for note in records.notes)


def rollout(example: int, reward: float, **more: Any) -> dict[str, Any]:
    return {
        "example_id": example,
        "prompt": [{"role": "user", "content": "?"}],
        "completion": [{"role": "assistant", "content": "four"}],
        "reward": reward,
        "is_truncated": False,
        "timing": {"generation": {"start": 5.0, "end": 7.5, "duration": 2.5}},
        "token_usage": {"input_tokens": 12.0, "output_tokens": 14.0},
        "metrics": {"correct_answer": 1.0 if reward > 0.5 else 0.0},
        **more,
    }


def test_verifiers_results_with_metadata(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "results.jsonl", [rollout(0, 0.8), rollout(0, 0.2), rollout(1, 1.0)])
    (tmp_path / "metadata.json").write_text(
        json.dumps({"env_id": "e", "rollouts_per_example": 2, "sampling_args": {"max_tokens": 64}})
    )
    records = read_records(path)
    assert (records.format, records.selection, records.cap_tokens) == ("verifiers", "all", 64)
    assert records.built_from == "a real sample"
    assert cells(records, "prompt_id") == ["e/0", "e/0", "e/1"]
    assert cells(records, "correct") == [True, False, True]
    assert cells(records, "n_tokens") == [14] * 3
    assert cells(records, "n_prompt_tokens") == [12] * 3
    assert cells(records, "t_end_s") == [7.5] * 3
    assert has_note(records, "1 of 2 examples do not have the 2 rollouts")


def test_verifiers_several_turns_and_missing_parts(tmp_path: Path) -> None:
    turns = [{"role": "assistant", "content": "a"}, {"role": "user"}, {"role": "assistant"}]
    bare = {"example_id": 1, "reward": None, "completion": "text", "timing": None}
    rows = [rollout(0, 1.0, completion=turns), bare]
    records = read_records(jsonl(tmp_path / "results.jsonl", rows))
    assert cells(records, "n_prompt_tokens") == [None, None]
    assert cells(records, "n_tokens") == [14, None]
    assert cells(records, "truncated") == [False, None]
    assert has_note(records, "1 rollouts have several turns")


def test_a_metric_that_is_no_verdict_needs_a_threshold(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "results.jsonl", [rollout(0, 0.7, metrics={"correct_answer": 0.5})])
    with pytest.raises(ConfigError, match=r"line 1: 0.5 is neither"):
        read_records(path)
    records = read_records(path, options=ReadOptions(correct_threshold=0.6))
    assert cells(records, "correct") == [True]


def test_prime_rl_rollouts_of_several_steps(tmp_path: Path) -> None:
    for step in (2, 10):
        jsonl(tmp_path / f"step_{step}" / "train_rollouts.jsonl", [rollout(0, 1), rollout(0, 0)])
    records = read_records(tmp_path)
    assert records.format == "prime_rl"
    assert cells(records, "step") == [2, 2, 10, 10]
    assert cells(records, "group_id") == ["0@2", "0@2", "0@10", "0@10"]
    assert cells(records, "source")[0] == "step_2/train_rollouts.jsonl"
    assert records.selection == "unknown"


def episode(group: str, key: str, traces: list[dict[str, Any]]) -> dict[str, Any]:
    work = {"step": 4, "policy": {"start": 3, "end": 4}}
    return {
        "id": "x",
        "env": "math",
        "task": {"key": key, "hash": "h"},
        "group": {"id": group},
        "run": {"work": work},
        "ok": True,
        "traces": traces,
    }


def trace(reward: float, n_tokens: int, stop: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": "t",
        "nodes": [
            {"token_ids": [1, 2, 3], "mask": [False] * 3},
            {"token_ids": list(range(n_tokens)), "mask": [True] * n_tokens},
        ],
        "rewards": {"a": {"score": reward, "weight": 1.0}, "b": {"score": 1.0, "weight": 0.0}},
        "timing": {"start": 0.0, "agent": {"start": 1.0, "end": 2.0}},
    }
    return found if stop is None else found | {"stop_condition": stop}


def test_prime_rl_traces_by_description(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts" / "step_4" / "train"
    rows = [
        episode("g1", "p", [trace(1.0, 5, "stop")]),
        episode("g1", "p", [trace(0.0, 9, "length")]),
        episode("g2", "p", [trace(1.0, 6, None)]),
    ]
    path = jsonl(folder / "all" / "traces.jsonl", rows)
    records = read_records(path)
    assert (records.format, records.selection) == ("prime_rl", "all")
    assert records.built_from == "the format's description"
    assert has_note(records, "built from the format's description")
    assert cells(records, "group_id") == ["g1", "g1", "g2"]
    assert cells(records, "prompt_id") == ["p"] * 3
    assert cells(records, "n_tokens") == [5, 9, 6]
    assert cells(records, "n_prompt_tokens") == [3] * 3
    assert cells(records, "reward") == [1.0, 0.0, 1.0]
    assert cells(records, "truncated") == [False, True, None]
    assert cells(records, "step") == [4] * 3
    assert cells(records, "t_start_s") == [1.0] * 3
    kept = read_records(jsonl(folder / "effective" / "traces.jsonl", rows))
    assert kept.selection == "kept_mixed"
    assert cells(kept, "kept") == [True] * 3


def test_prime_rl_kinds_are_not_mixed(tmp_path: Path) -> None:
    jsonl(tmp_path / "step_1" / "all" / "traces.jsonl", [episode("g", "p", [trace(1, 2, None)])])
    with pytest.raises(ConfigError, match=r"without group\.id"):
        read_records(jsonl(tmp_path / "traces.jsonl", [{"traces": [], "run": {}}]))


def summary(group: int, trajectory: int, reward: float, **more: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "split": "train",
        "iteration": 7,
        "group_idx": group,
        "traj_idx": trajectory,
        "tags": ["math", "hard"],
        "total_reward": reward,
        "final_reward": reward,
        "trajectory_metrics": {"stop/length": 1.0} if trajectory else {"stop/stop": 1.0},
        "steps": [{"step_idx": 0, "ob_len": 30, "ac_len": 100, "reward": reward}],
        **more,
    }


def test_tinker_summaries(tmp_path: Path) -> None:
    two = [{"ob_len": 30, "ac_len": 100}, {"ob_len": 140, "ac_len": 11}]
    rows = [summary(0, 0, 1.0), summary(0, 1, 0.0, steps=two), summary(1, 0, 1.0)]
    path = tmp_path / "iteration_000007" / "train_rollout_summaries.jsonl"
    records = read_records(jsonl(path, rows).parents[1])
    assert (records.format, records.selection) == ("tinker", "all")
    assert records.built_from == "the format's description"
    assert cells(records, "group_id") == ["train/0@7", "train/0@7", "train/1@7"]
    assert cells(records, "n_tokens") == [100, 111, 100]
    assert cells(records, "n_prompt_tokens") == [30] * 3
    assert cells(records, "truncated") == [False, True, False]
    assert cells(records, "correct") == [True, False, True]
    assert cells(records, "extra/tags") == ["math,hard"] * 3
    assert has_note(records, "no prompt ids")


@pytest.mark.parametrize(
    ("name", "row", "format"),
    [
        ("x.jsonl", {"input": "a", "output": "b", "score": 1, "step": 1}, "verl"),
        ("results.jsonl", rollout(0, 1), "verifiers"),
        ("train_rollouts.jsonl", rollout(0, 1), "prime_rl"),
        ("x.jsonl", episode("g", "p", []), "prime_rl"),
        ("x.jsonl", summary(0, 0, 1), "tinker"),
        ("x.jsonl", {"prompt_id": 1, "tokens": 5}, "table"),
        ("x.jsonl", {"input": "a" * 100_000, "output": "b", "score": 1, "step": 1}, "verl"),
    ],
)
def test_the_reader_is_found_by_content(
    tmp_path: Path, name: str, row: dict[str, Any], format: str
) -> None:
    assert detect(jsonl(tmp_path / name, [row])).format == format


def test_the_users_format_is_taken_at_its_word(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "1.jsonl", [{"input": "a", "output": "b", "score": 1, "tokens": 3}])
    records = read_records(path, options=ReadOptions(format="table"))
    assert (records.format, cells(records, "n_tokens")) == ("table", [3])


def test_where_reaches_nested_fields(tmp_path: Path) -> None:
    rows = [rollout(i, 1, info={"difficulty": d}) for i, d in enumerate(["easy", "hard"])]
    path = jsonl(tmp_path / "results.jsonl", rows)
    records = read_records(path, options=ReadOptions(where={"info.difficulty": "hard"}))
    assert cells(records, "prompt_id") == ["1"]
