"""Whatever a file holds, reading it ends in records or in one line of ConfigError, nothing else."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.records import SCHEMA, ReadOptions, read_records
from dapolab.scenario import ConfigError

KEYS = {
    "verl": ("input", "output", "score", "step", "uid", "acc", "gts"),
    "verifiers": (
        *("example_id", "reward", "completion", "token_usage", "metrics", "timing"),
        *("is_truncated", "stop_condition", "info"),
    ),
    "prime_rl": ("traces", "group", "task", "run", "env", "ok"),
    "ms_swift": ("step", "gen_step", "prompt", "completion", "acc", "advantages", "finish_reason"),
    "open_instruct": (
        *("step", "sample_idx", "prompt_idx", "prompt_tokens", "response_tokens", "reward"),
        *("finish_reason", "dataset", "advantage"),
    ),
    "areal": (
        *("task_id", "sample_idx", "seqlen", "prompt_len", "head_version", "tail_version"),
        *("reward", "prompt"),
    ),
    "nemo_rl": (
        *("token_ids", "token_loss_mask", "input_lengths", "rewards", "filtered_rewards", "idx"),
        "sample_loss_mask",
    ),
    "dapo_06": ("type", "problem_id", "val_n", "generations", "num_correct"),
    "tinker": (
        *("group_idx", "traj_idx", "steps", "total_reward", "trajectory_metrics", "tags"),
        *("iteration", "split"),
    ),
    "table": (
        *("prompt_id", "sample", "step", "tokens", "reward", "correct", "truncated", "k", "e1"),
        *("n_correct", "pass_rate", "completion", "run", "max_tokens", "stop_reason", "chars"),
    ),
}
INNER = (
    *("nodes", "mask", "token_ids", "rewards", "score", "weight", "timing", "agent", "start", "id"),
    *("end", "generation", "output_tokens", "input_tokens", "correct_answer", "work", "step"),
    *("correct", "completion_tokens", "stop_reason", "text", "content"),
    *("ac_len", "ob_len", "metrics", "stop/length", "content", "role", "key", "policy"),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**64),
    st.floats(),
    st.sampled_from(
        ["", "a", "1", "-0.5", "nan", "tensor(1.)", "u_0_1", "pad_0_0", "length", "problem"]
    ),
    st.text(max_size=4),
)
cells = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(INNER), inner, max_size=3)
    ),
    max_leaves=6,
)


def outcome(content: bytes, *, name: str = "1.jsonl", **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        message = ""
        try:
            records = read_records(path, options=ReadOptions(**options))
        except ConfigError as error:
            message = str(error)
        else:
            assert len(records.table) > 0
            SCHEMA.validate(records.table)
        assert "\n" not in message


@settings(max_examples=150)
@given(st.data())
def test_rows_of_anything(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(sorted(KEYS)))
    row = st.dictionaries(st.sampled_from(KEYS[format]), cells, max_size=8)
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    outcome(content, format=data.draw(st.sampled_from(["auto", format])))


@given(st.binary(max_size=200), st.sampled_from(["auto", "table", "verl", "tinker"]))
def test_bytes_of_anything(content: bytes, format: str) -> None:
    outcome(content, format=format)


@given(st.text("a1,;\n\r\"'\t.- {}[]:", max_size=80), st.sampled_from(["auto", "table"]))
def test_text_of_anything(content: str, format: str) -> None:
    outcome(("prompt_id,tokens\n" + content).encode(), name="1.csv", format=format)


def test_a_dump_cut_at_every_byte() -> None:
    rows = [
        {"input": f"p{i // 2}", "output": "é", "score": float(i % 2), "step": 1, "acc": None}
        for i in range(3)
    ]
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
    content = b"".join(lines)
    whole_lines = [sum(map(len, lines[: n + 1])) - 1 for n in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1.jsonl"
        for size in range(whole_lines[1], len(content) + 1):
            path.write_bytes(content[:size])
            records = read_records(path)
            n_complete = sum(end <= size for end in whole_lines)
            assert len(records.table) == n_complete
            started = sum(sum(map(len, lines[:n])) < size for n in range(3))
            cut = [note for note in records.notes if "cut off" in note]
            assert len(cut) == (started > n_complete)
            assert all(f"last line ({started})" in note for note in cut)
