"""Damaged files through every reader of rollouts, logs and configurations.

Each gives a table, a report or one ConfigError, no more. Starts from small whole files of every
format, the checker's test configurations and, where they are beside the checkout, the real samples;
damages their bytes, and reads them. A million inputs, an hour and a half on one core:

    python -m tests.properties.fuzz_readers --inputs 1000000 --seed 1

A failure is written to --keep (default: the folder for temporary files) and named. The test-suite
runs a few hundred (test_logs_bad_input.py).
"""

import argparse
import json
import pickle
import random
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pandas as pd

from dapolab.check import Report, check_file
from dapolab.errors import ConfigError
from dapolab.logs import LogOptions, StepTable, read_log
from dapolab.records import ReadOptions, read_records
from tests.conftest import shared_folder
from tests.log_lines import FIELD_CASE, verl_line
from tests.test_logs_console import trl_log
from tests.test_logs_tables import event, scalar
from tests.test_records_trainers import (
    areal_row,
    completions,
    nemo_row,
    open_instruct_row,
    sample,
)

TOKENS = (
    b"\n", b"\r", b"\0", b"\xff", b"\x1b[36m", b" - ", b":", b"step:", b"step:7 - a/b:1", b"nan",
    b"inf", b"-", b"1e999", b"9" * 25, b"{", b"}", b"[", b"]", b'"', b"'", b",", b"null", b"{'",
    b"Global step 3: ", b"Step 2 | ", b"(x pid=1)", b"\\u0000", b"\xf0\x9f", b"true", b"-1", b"0.5",
    b"$", b"${", b"$((", b"`", b"\\\n", b"<<E\n", b"=", b"--", b" #", b"&a ", b"*a", b"!!py",
    b"R", b"c", b".", b"\x93", b"\x80\x02", b"\x95", b"(", b"t", b"q", b"r\xff\xff\xff\xff",
)  # fmt: skip


def lines(rows: list[dict[str, object]]) -> bytes:
    """JSON lines of the rows."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(frame: pd.DataFrame) -> bytes:
    """The frame as a Parquet file."""
    sink = BytesIO()
    frame.to_parquet(sink)
    return sink.getvalue()


def archive(content: object) -> bytes:
    """What torch.save would write of plain data."""
    sink = BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        file.writestr("0/data.pkl", pickle.dumps(content, protocol=2))
    return sink.getvalue()


def seeds() -> list[tuple[str, bytes]]:
    """Whole files of every format: (name, content)."""
    verl = [{"input": f"p{i // 2}", "output": "x", "score": i % 2, "step": 1} for i in range(4)]
    tinker = [
        {"group_idx": 0, "traj_idx": i, "iteration": 1, "steps": [{"ac_len": 3, "ob_len": 2}]}
        for i in range(2)
    ]
    verifiers = [{"example_id": 0, "reward": 1.0, "completion": "x", "timing": {}}]
    problem = {"type": "problem", "problem_id": 1, "generations": [{"correct": True}]}
    swift = completions({1: "ab"}, size=2).rename(columns={"advantage": "advantages"})
    log_rows = [{"step": s, "data": {"timing_s/gen": s + 0.5}} for s in (1, 2)]
    prime = [{"step": 1, "time/step": 2.0, "reward/all/mean": 0.5, "solve_all/all": 0.25}]
    openrlhf = "✨ Global step 2: {'policy_loss': 0.5, 'reward': 0.25, 'timing/generation': 4.0}\n"
    state = {"log_history": [{"step": 1, "completions/mean_length": 4.0}]}
    found = [
        ("1.jsonl", lines(verl)),
        ("a_rollout_summaries.jsonl", lines(tinker)),
        ("results.jsonl", lines(verifiers)),
        ("eval.jsonl", lines([problem])),
        ("a.csv", b"prompt_id,tokens,correct\na,5,1\na,6,0\n"),
        ("completions_00001.parquet", parquet(completions({1: "ab"}, size=2))),
        ("completions.jsonl", lines([{n: swift[n].tolist() for n in swift}])),
        ("r_rollouts_000000.jsonl", lines([open_instruct_row(1, i, 0) for i in range(2)])),
        ("7.jsonl", lines([areal_row(7, i) for i in range(2)])),
        ("train_data_step1.jsonl", lines([nemo_row([1], [2, 3], rewards=1.0)])),
        ("1.pt", archive({"rollout_id": 1, "samples": [sample(0, 0), sample(0, 1)]})),
        ("verl.log", (FIELD_CASE + verl_line(8, timing_s__gen=2.0)).encode()),
        ("trl.log", trl_log(4, total=20).encode()),
        ("openrlhf.log", openrlhf.encode()),
        ("prime.log", b"SUCCESS Step 3 | Time: 13.04s | Reward: 0.1160 | Async Level: 1\n"),
        ("exp.jsonl", lines(log_rows)),
        ("metrics.jsonl", lines(prime)),
        ("trainer_state.json", json.dumps(state).encode()),
        ("steps.csv", b"run,step,timing_s/gen\na,1,2.5\nb,1,3.5\n"),
        ("events.out.tfevents.1.h", event(1, scalar("timing_s/gen", 1.5)) * 2),
    ]
    real = shared_folder() / "data" / "formats_samples"
    for path in sorted(real.glob("*.*l*")) if real.is_dir() else []:  # .jsonl and .log
        content = path.read_bytes()
        is_log = path.suffix == ".log"  # its steps come last
        found.append((path.name, content[-6000:] if is_log else content[:6000]))
    return found


def configs() -> list[tuple[str, bytes]]:
    """Whole configurations of every framework: (name, content)."""
    folder = Path(__file__).parents[1] / "check_configs"
    return [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Change one to six places: flip, drop, repeat, insert, cut, or swap two pieces."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 5, 40)))
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end]
        elif kind in (3, 4):
            data[at:at] = rng.choice(TOKENS)
        elif kind == 5 and rng.random() < 0.3:
            del data[at:]
        elif data:
            other = rng.randrange(len(data))
            data[at:end] = data[other : other + end - at]
    return bytes(data)


def check(path: Path, read: Callable[[Path], object]) -> str:
    """Read; return the refusal, empty where there is none.

    Raises
    ------
    AssertionError
        A refusal of several lines, a table that is none, or a summary of several lines.
    """
    try:
        found = read(path)
    except ConfigError as error:
        if "\n" in str(error):
            raise AssertionError(f"a refusal of several lines: {error}") from None
        return str(error)
    if isinstance(found, StepTable):
        assert len(found.frame)
        assert not found.frame.duplicated(["run", "step"]).any()
    elif isinstance(found, Report):
        assert "\n" not in found.summary
    else:
        assert len(found.table)  # type: ignore[attr-defined]
    return ""


READERS: tuple[Callable[[Path], object], ...] = (
    lambda path: read_records(path, options=ReadOptions(progress=False)),
    lambda path: read_log(path, options=LogOptions(progress=False)),
)


def run(n_inputs: int, *, seed: int, folder: Path, keep: Path) -> int:
    """Read ``n_inputs`` damaged files with their readers; return how many failed."""
    whole = [(*file, READERS) for file in seeds()] + [(*file, (check_file,)) for file in configs()]
    failures, start_s = 0, time.monotonic()
    for i in range(n_inputs):
        rng = random.Random(f"{seed}/{i}")
        name, content, readers = whole[i % len(whole)]
        data = damaged(content, rng)
        path = folder / name
        path.write_bytes(data)
        for read in readers:
            try:
                check(path, read)
            except Exception:
                failures += 1
                kept = keep / f"failed-{seed}-{i}-{name}"
                kept.write_bytes(data)
                print(f"input {i}: {kept}", file=sys.stderr)
                traceback.print_exc(limit=-3)
        path.unlink()
        if i % 1000 == 999:
            rate = (i + 1) / (time.monotonic() - start_s)
            print(f"{i + 1:,} of {n_inputs:,}, {rate:,.0f}/s", file=sys.stderr)
    return failures


def main() -> int:
    """Run from the command line; 1 where an input failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        failures = run(options.inputs, seed=options.seed, folder=Path(folder), keep=options.keep)
    print(f"{options.inputs:,} inputs, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
