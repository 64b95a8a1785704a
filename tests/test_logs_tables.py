"""Logs that are files of rows: JSON lines, CSV, Parquet, trainer states, TensorBoard events."""

import json
import struct
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest

from dapolab.errors import ConfigError
from dapolab.logs import BY_COLUMN, LOG_METRICS, LogOptions, finish, read_log, written_bytes
from dapolab.logs.events import masked_crc
from dapolab.metrics import BY_NAME
from tests.log_lines import column, has_note, read_text


def lines(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_verl_file_logger(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "data": {"val-core/x/acc/mean@1": 0.5}},
        {"step": 1, "data": {"timing_s/gen": 5.5, "actor/grad_norm": float("nan"), "note": "x"}},
    ]
    table = read_text(tmp_path, lines(rows), "exp.jsonl")
    assert (table.format, table.framework) == ("jsonl", "verl")
    assert list(table.frame["step"]) == [1]
    assert column(table, "time/rollout_seconds") == [5.5]
    assert has_note(table, "note (1)", "no number")


def test_prime_rl_metrics_of_two_processes_in_one_file(tmp_path: Path) -> None:
    """Both log time/step; the trainer's must not become the step's."""
    rows = [
        {"step": 4, "time": 1.0, "time/step": 30.0, "reward/all/mean": 0.5, "solve_all/all": 0.25},
        {"step": 4, "time": 2.0, "time/step": 9.0, "mismatch_kl/all/mean": 0.1, "optim/lr": 1e-6},
        {"step": 4, "time": 3.0, "off_policy/mean": 1.5},
    ]
    for order in (rows, rows[::-1]):
        table = read_text(tmp_path, lines(order), "metrics.jsonl")
        assert table.framework == "prime_rl"
        assert column(table, "time/step_seconds") == [30.0]
        assert column(table, "extra/trainer/time/step") == [9.0]
        assert column(table, "staleness/mean_versions_by_response") == [1.5]
        assert column(table, "rollout/all_right_share") == [0.25]
        assert not has_note(table, "more than once")


def test_prime_rl_agents_are_named_by_the_user(tmp_path: Path) -> None:
    """train/agg/{all|effective}/{agent}/… (prime-rl's TraceMetrics): one agent, else nothing."""
    row = {
        "step": 3,
        "time/step": 30.0,
        "train/agg/all/num_output_tokens/mean": 200.0,
        "train/agg/all/solver/solved_some": 0.25,
        "train/agg/all/solver/is_truncated/mean": 0.125,
        "train/agg/effective/solver/reward/mean": 0.5,
        "train/agg/all/solver/reward/mean": 0.75,
    }
    table = read_text(tmp_path, lines([row]), "metrics.jsonl")
    assert table.framework == "prime_rl"
    assert column(table, "rollout/mean_completion_tokens") == [200.0]
    assert column(table, "rollout/mixed_share") == [0.25]
    assert column(table, "rollout/truncated_share") == [0.125]
    assert column(table, "reward/candidate_mean") == [0.75]
    assert column(table, "reward/trained_mean") == [0.5]
    assert has_note(table, "solver/reward/mean", "rejected and errored too")
    two = read_text(tmp_path, lines([row | {"train/agg/all/judge/solved_some": 0.5}]), "m.jsonl")
    assert "rollout/mixed_share" not in two.frame
    assert column(two, "extra/train/agg/all/judge/solved_some") == [0.5]
    assert column(two, "extra/train/agg/all/solver/solved_some") == [0.25]


def test_tinker_metrics(tmp_path: Path) -> None:
    def row(step: int, mixed: float) -> dict[str, float]:
        return {
            "step": step,
            "env/all/by_group/frac_mixed": mixed,
            "env/all/by_group/frac_all_good": (1 - mixed) / 2,
            "env/all/by_group/frac_all_bad": (1 - mixed) / 2,
            "env/all/ac_tokens_per_turn": 50.0,
            "env/all/turns_per_episode": 3.0,
            "optim/lr": 1e-5,
            "time/total": 80.0,
        }

    table = read_text(tmp_path, lines([row(0, 0.5), row(1, 1.0)]), "metrics.jsonl")
    assert table.framework == "tinker"
    assert column(table, "rollout/mixed_share") == [0.5, 1.0]
    assert column(table, "rollout/mean_completion_tokens") == [150.0, 150.0]
    removed = read_text(tmp_path, lines([row(0, 1.0), row(1, 1.0)]), "metrics.jsonl")
    assert "rollout/mixed_share" not in removed.frame
    assert has_note(removed, "constant groups were removed")


def test_own_metrics_are_taken_as_they_are(tmp_path: Path) -> None:
    rows = [{"step": 1, "rollout/candidate_groups": 6, "time/step_seconds": 4.5, "mine/x": 0.5}]
    table = read_text(tmp_path, lines(rows), "metrics.jsonl")
    assert table.framework == "dapolab"
    assert column(table, "rollout/candidate_groups") == [6.0]
    assert column(table, "extra/mine/x") == [0.5]


def test_a_trainer_state_knows_its_steps(tmp_path: Path) -> None:
    history = [
        {"step": 10, "epoch": 0.1, "completions/mean_length": 40.0, "step_time": 2.0, "kl": None},
        {"step": 10, "epoch": 0.1, "eval_loss": 0.5},
        {"step": 20, "epoch": 0.2, "completions/mean_length": 60.0, "step_time": 3.0},
        {"step": 20, "train_runtime": 100.0, "train_loss": 0.1},
        {"no": "step"},
    ]
    for step in (10, 20):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        state = {"log_history": [row for row in history if row.get("step", 0) <= step]}
        (folder / "trainer_state.json").write_text(json.dumps(state, indent=2))
    table = read_log(tmp_path)
    assert (table.format, table.framework, table.runs) == (
        "trainer_state",
        "trl",
        ("checkpoint-20",),
    )
    assert list(table.frame["step"]) == [10, 20]
    assert column(table, "log/steps") == [10.0, 10.0]
    assert column(table, "extra/eval_loss") == [0.5, None]
    assert has_note(table, "1 entries without a step")


def test_a_csv_with_runs_and_columns_of_its_own(tmp_path: Path) -> None:
    text = "run,it,t_gen,grad_norm,comment\na,1,1.5,0.1,x\nb,1,2.5,,y\na,2,3.5,0.3,z\n"
    with pytest.raises(ConfigError, match="no column of steps; say --columns step=NAME"):
        read_text(tmp_path, text, "a.csv")
    with pytest.raises(ConfigError, match=r"no key of a known framework.*--columns"):
        read_text(tmp_path, text, "a.csv", columns={"step": "it"})
    columns = {"step": "it", "time/rollout_seconds": "t_gen"}
    table = read_text(tmp_path, text, "a.csv", columns=columns)
    assert table.runs == ("a", "b")
    assert list(table.one_run("a")["time/rollout_seconds"]) == [1.5, 3.5]
    assert list(table.one_run("a")["extra/grad_norm"]) == [0.1, 0.3]
    assert has_note(table, "comment (3)")
    with pytest.raises(ConfigError, match="the log holds 2 runs: a, b; choose with --run"):
        table.one_run()
    with pytest.raises(ConfigError, match=r"--columns time/rollout_seconds=t_gem: .*nearest: t_ge"):
        read_text(tmp_path, text, "a.csv", columns=columns | {"time/rollout_seconds": "t_gem"})
    with pytest.raises(ConfigError, match=r"unknown 'time/rolout_seconds'; nearest"):
        LogOptions(columns={"time/rolout_seconds": "x"})


def test_charts_exported_from_wandb_hold_a_run_a_column(tmp_path: Path) -> None:
    text = (
        '"Step","one - timing_s/gen","one - timing_s/gen__MIN","one - timing_s/gen__MAX",'
        '"two - timing_s/gen"\n"1","2.5","2.5","2.5",""\n"2","3.5","3.5","3.5","9.5"\n'
    )
    table = read_text(tmp_path, text, "export.csv")
    assert table.runs == ("one", "two")
    assert list(table.one_run("one")["time/rollout_seconds"]) == [2.5, 3.5]
    assert list(table.one_run("two")["step"]) == [2]


def test_rows_before_the_first_step_are_left_out(tmp_path: Path) -> None:
    table = read_text(tmp_path, lines([{"config": 1}, {"step": 4, "timing_s/gen": 2}]), "m.jsonl")
    assert list(table.frame["step"]) == [4]
    assert has_note(table, "1 rows without a step", "line 1")


def test_the_users_columns_go_before_the_frameworks(tmp_path: Path) -> None:
    text = "step,timing_s/gen,mine,timing_s/step\n1,5,6,9\n"
    asked = {"time/rollout_seconds": "mine", "time/step_seconds": ""}
    table = read_text(tmp_path, text, "a.csv", columns=asked)
    assert column(table, "time/rollout_seconds") == [6.0]
    assert "time/step_seconds" not in table.frame
    assert column(table, "extra/timing_s/step") == [9.0]


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("step,timing_s/gen\n1.5,2\n", "a.csv", "step: '1.5' is not a whole number"),
        ("step,timing_s/gen\n-1,2\n", "a.csv", "not a whole number from 0"),
        ("step,timing_s/gen\nx,2\n", "a.csv", "line 2: step: 'x' is no step"),
        ("step,timing_s/gen,timing_s/gen\n1,2,3\n", "a.csv", "names column .* twice"),
        ('{"step": 1}\nnot json\n{"step": 2}\n', "a.jsonl", "line 2: not valid JSON"),
        ('{"log_history": 3}', "trainer_state.json", "no log_history"),
        ('{"log_history": [', "trainer_state.json", "not valid JSON"),
        ('{"input": "a", "output": "b", "step": 1}\n', "1.jsonl", "dapolab fit"),
    ],
)
def test_broken_tables(tmp_path: Path, text: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read_text(tmp_path, text, name)
    assert "\n" not in str(caught.value)


def test_rows_without_a_step_and_a_cut_end_are_told(tmp_path: Path) -> None:
    text = '{"step": 1, "timing_s/gen": 1}\n{"step": null, "timing_s/gen": 2}\n{"step": 2, "tim'
    table = read_text(tmp_path, text, "a.jsonl")
    assert list(table.frame["step"]) == [1]
    assert has_note(table, "1 rows without a step", "line 2")
    assert has_note(table, "last line (3) is cut off")


def test_parquet_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"global_step": [1, 2], "timing_s/gen": [1.5, None], "tags": [["a"], []]})
    frame.to_parquet(path)
    table = read_log(path)
    assert list(table.frame["step"]) == [1]  # the second row holds no number at all
    assert has_note(table, "step = global_step")
    assert has_note(table, "list columns left out: tags")


# TensorBoard, written by hand from event.proto, summary.proto and record_writer.h


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def part(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def scalar(tag: str, value: float) -> bytes:
    return part(1, part(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value))


def double_tensor(tag: str, value: float) -> bytes:
    tensor = varint(1 << 3) + varint(2) + part(2, b"") + part(6, struct.pack("<d", value))
    return part(1, part(1, tag.encode()) + part(8, tensor))


def event(step: int, *values: bytes) -> bytes:
    clock = varint(1 << 3 | 1) + struct.pack("<d", 1.7e9)
    message = clock + varint(2 << 3) + varint(step) + part(5, b"".join(values))
    head = struct.pack("<Q", len(message))
    head += struct.pack("<I", masked_crc(head))
    return head + message + struct.pack("<I", masked_crc(message))


def test_the_checksum_is_crc32c() -> None:
    """CRC-32C of "123456789" is e3069283 (RFC 3720 B.4's polynomial, the usual check value)."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_tensorboard_folders_are_runs(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    events = [
        event(s, scalar("timing_s/gen", s + 0.5), double_tensor("actor/lr", 1e-6)) for s in (1, 2)
    ]
    (one / "events.out.tfevents.100.h.1.0").write_bytes(b"".join(events))
    resumed = event(2, scalar("timing_s/gen", 9.5)) + event(3, scalar("timing_s/gen", 3.5))
    (one / "events.out.tfevents.200.h.1.0").write_bytes(resumed)
    split = event(1, scalar("timing_s/gen", 4.0)) + event(1, scalar("timing_s/step", 8.0))
    text = event(1, part(1, part(1, b"a text") + part(8, varint(1 << 3) + varint(7))))
    (two / "events.out.tfevents.100.h.1.0").write_bytes(split + text + b"\x05\0\0")
    table = read_log(tmp_path)
    assert table.runs == ("one", "two")
    assert list(table.one_run("one")["time/rollout_seconds"]) == [1.5, 9.5, 3.5]
    assert list(table.one_run("two")["time/step_seconds"]) == [8.0]
    assert has_note(table, "two/events", "last record (4) is cut off")
    assert column(read_log(one), "train/learning_rate") == [1e-6, 1e-6, None]


def test_damaged_events_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.h"
    whole = event(1, scalar("timing_s/gen", 1.5)) + event(2, scalar("timing_s/gen", 2.5))
    for place in (0, 9, 30, len(whole) - 1):
        broken = bytearray(whole)
        broken[place] ^= 1
        path.write_bytes(bytes(broken))
        with pytest.raises(ConfigError, match=r"checksum|longer"):
            read_log(path)


def test_events_that_tensorboard_wrote(tmp_path: Path) -> None:
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    protos = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    summary = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    out = writer.EventFileWriter(str(tmp_path))
    for step in range(1, 6):
        value = summary.Summary.Value(tag="timing_s/gen", simple_value=step / 4)
        out.add_event(protos.Event(step=step, summary=summary.Summary(value=[value])))
    out.close()
    assert column(read_log(tmp_path), "time/rollout_seconds") == [0.25, 0.5, 0.75, 1.0, 1.25]


def test_a_written_table_is_read_back(tmp_path: Path) -> None:
    rows = [{"step": s, "data": {"timing_s/gen": s + 0.5, "x": 1}} for s in (1, 2)]
    table = read_text(tmp_path, lines(rows), "exp.jsonl")
    (tmp_path / "out.parquet").write_bytes(written_bytes(table, ".parquet"))
    again = read_log(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(again.frame, table.frame)
    assert (again.sources, again.notes, again.framework) == (
        table.sources,
        table.notes,
        table.framework,
    )
    with pytest.raises(ConfigError, match="no run 'z'"):
        read_log(tmp_path / "out.parquet", options=LogOptions(run="z"))
    (tmp_path / "out.csv").write_bytes(written_bytes(table, ".csv"))
    pd.testing.assert_frame_equal(read_log(tmp_path / "out.csv").frame, table.frame)
    with pytest.raises(ConfigError, match="write steps as"):
        written_bytes(table, ".xlsx")


def test_the_table_checks_itself() -> None:
    good = pd.DataFrame({"run": "a", "step": [2, 1], "extra/x": [1.0, 2.0]})
    assert list(finish(good, where="t").frame["step"]) == [1, 2]
    for bad, words in (
        (good.iloc[:0], "no training step"),
        (good.assign(step=[1, 1]), "step 1 twice"),
        (good.assign(step=[1.5, 2]), "whole number"),
        (good.assign(step=["a", "b"]), "not a number"),
        (good.assign(speed=1.0), "'speed' is no metric"),
        (good.assign(**{"extra/x": "a"}), "no number"),
        (good.drop(columns="run"), "no column 'run'"),
    ):
        with pytest.raises(ConfigError, match=words):
            finish(bad, where="t")


def test_a_log_metric_never_doubles_one_of_the_simulator() -> None:
    names = [metric.name for metric in LOG_METRICS]
    assert len(set(names)) == len(names)
    assert not set(names) & set(BY_NAME)
    assert set(BY_COLUMN) == set(names) | set(BY_NAME)


def test_every_column_of_every_vocabulary_exists() -> None:
    from dapolab.logs.read import VOCABULARIES

    for vocabulary in VOCABULARIES.values():
        for key in vocabulary.keys:
            assert set(key.columns) <= set(BY_COLUMN), key
        plain = [key.name for key in vocabulary.keys]
        assert len(set(plain)) == len(plain)
