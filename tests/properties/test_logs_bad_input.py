"""Whatever a log holds: a table or one line of refusal; noise between steps changes nothing."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dapolab.check import check_file
from dapolab.logs import LogOptions, read_log
from tests.log_lines import verl_line
from tests.properties import fuzz_readers

KEYS = st.sampled_from(
    ["timing_s__gen", "timing_s__step", "response_length__mean", "actor__lr", "val-core__a__acc"]
)
VALUES = st.floats(allow_nan=False, allow_infinity=False)
STEPS = st.lists(
    st.dictionaries(KEYS, VALUES, min_size=1).filter(lambda row: "timing_s__gen" in row),
    min_size=1,
    max_size=6,
)
NOISE = st.sampled_from(
    [
        "Training Progress:  10%|█   | 3/30 [00:10<01:30, 3.3s/it]\n",
        "\r 50%|█████     | 1/2 [00:01<00:01]",
        "\x1b[36m(WorkerDict pid=9)\x1b[0m INFO: loaded in 3.5 s\n",
        "step 3 - not a step: 5\n",
        "Step 1: multiply 2 * 3 = 6 | so the answer is 6\n",
        "{'a': 1, 'b': 'text'}\n",
        "laststep:4 - a/b:1\n",
        "\n",
        "\0\n",
        "(TaskRunner pid=7) a question: what is {x} - 3?\n",
    ]
)


def written(content: str | bytes, name: str = "a.log") -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_log(path, options=LogOptions(progress=False)).frame


@given(STEPS, st.lists(NOISE, max_size=8), st.randoms(use_true_random=False))
def test_noise_between_steps_changes_nothing(rows, noise, rng) -> None:  # type: ignore[no-untyped-def]
    lines = [verl_line(i, **row) for i, row in enumerate(rows, start=1)]
    plain = written("".join(lines))
    mixed = lines.copy()
    for line in noise:
        mixed.insert(rng.randrange(len(mixed) + 1), line)
    pd.testing.assert_frame_equal(written("".join(mixed)), plain)


@given(STEPS)
def test_every_number_comes_back_exactly(rows) -> None:  # type: ignore[no-untyped-def]
    frame = written("".join(verl_line(i, **row) for i, row in enumerate(rows, start=1)))
    assert list(frame["step"]) == list(range(1, len(rows) + 1))
    assert list(frame["time/rollout_seconds"]) == [row["timing_s__gen"] for row in rows]
    for place, row in enumerate(rows):
        if "val-core__a__acc" in row:
            assert frame["extra/val-core/a/acc"].iloc[place] == row["val-core__a__acc"]


@given(STEPS, st.data())
def test_a_step_that_is_missing_moves_no_other(rows, data) -> None:  # type: ignore[no-untyped-def]
    lines = [verl_line(i, **row) for i, row in enumerate(rows, start=1)]
    lost = data.draw(st.integers(0, len(lines) - 1))
    rest = [*lines[:lost], lines[lost].partition(" - ")[0] + "\n", *lines[lost + 1 :]]
    assume(len(lines) > 1)
    frame = written("".join(rest)).set_index("step")
    whole = written("".join(lines)).set_index("step").drop(index=lost + 1)
    shared = [name for name in whole if name in frame]
    pd.testing.assert_frame_equal(frame[shared], whole[shared])


def test_a_log_cut_at_every_byte_never_gives_a_wrong_number() -> None:
    lines = [verl_line(i, timing_s__gen=10.25 + i, actor__lr=1.5e-06) for i in (1, 2)]
    content = "".join(lines).encode()
    whole = written(content).set_index("step")
    for size in range(len(lines[0]), len(content)):
        frame = written(content[:size]).set_index("step")
        for step in frame.index:
            for name in frame.columns.drop("run"):
                value = frame.loc[step, name]
                assert value != value or value == whole.loc[step, name], (size, name)


@given(st.binary(max_size=300), st.sampled_from(["a.log", "a.csv", "a.jsonl", "x.tfevents"]))
def test_bytes_of_anything(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        fuzz_readers.check(path, fuzz_readers.READERS[1])


def test_whole_seeds_are_read_by_one_reader(tmp_path: Path) -> None:
    """The fuzzer starts from files that are right: else it would only see refusals."""
    for name, content in fuzz_readers.seeds():
        path = tmp_path / name
        path.write_bytes(content)
        refusals = [fuzz_readers.check(path, read) for read in fuzz_readers.READERS]
        assert "" in refusals, refusals
    for name, content in fuzz_readers.configs():
        path = tmp_path / name
        path.write_bytes(content)
        assert fuzz_readers.check(path, check_file) == "", name


def test_damaged_files(tmp_path: Path) -> None:
    assert fuzz_readers.run(200, seed=11, folder=tmp_path, keep=tmp_path) == 0


@pytest.mark.parametrize("read", fuzz_readers.READERS, ids=["records", "log"])
def test_names_that_are_no_text_in_parquet(tmp_path: Path, read: Callable[[Path], object]) -> None:
    frame = pd.DataFrame({"prompt_id": ["a", "a"], "n_tokens": [3, 4], "correct": [1.0, 0.0]})
    content = fuzz_readers.parquet(frame)
    path = tmp_path / "a.parquet"
    path.write_bytes(content.replace(b"prompt_id", b"prompt\xf4id"))
    assert "Parquet" in fuzz_readers.check(path, read)


def test_a_key_with_a_line_break_is_named_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"feed\\nback": 1.0, "score": 2.0}\n' * 2)
    assert "feed back" in fuzz_readers.check(path, fuzz_readers.READERS[1])
