"""Console logs: verl's step lines among bars, colours and other processes (field case B64)."""

import gzip
import math
from pathlib import Path

import pytest

from dapolab.errors import ConfigError
from dapolab.logs import LogOptions, read_log
from dapolab.logs.values import leading_value, number_of, whole_value
from tests.log_lines import FIELD_CASE, column, has_note, read_text, verl_line


def test_the_field_case(tmp_path: Path) -> None:
    table = read_text(tmp_path, FIELD_CASE)
    assert list(table.frame["step"]) == [7]
    assert column(table, "kl/old_k1") == [-8.1e-06]
    assert column(table, "train/loss") == [-0.002]
    assert column(table, "reward/trained_mean") == [-0.25]
    assert column(table, "time/rollout_seconds") == [41.7]
    assert column(table, "rollout/waves") == [3.0]
    assert column(table, "extra/message/num_prompt_in_batch") == [11.0]
    assert "train/gradient_norm" not in table.frame
    assert has_note(table, "actor/grad_norm (1)", "missing")
    assert has_note(table, "1 rows hold no training metric", "step 0")
    assert not has_note(table, "disagree")


def test_waves_from_the_messages_alone(tmp_path: Path) -> None:
    lines = FIELD_CASE.replace(" - train/num_gen_batches:3", "") + verl_line(8, timing_s__gen=20.0)
    table = read_text(tmp_path, lines)
    assert column(table, "rollout/waves") == [3.0, 1.0]


def test_a_key_and_its_messages_that_disagree_are_told(tmp_path: Path) -> None:
    table = read_text(tmp_path, FIELD_CASE.replace("num_gen_batches:3", "num_gen_batches:2"))
    assert column(table, "rollout/waves") == [2.0]
    assert has_note(table, "1 steps", "disagree", "step 7")


def test_what_a_filter_hides_stays_missing(tmp_path: Path) -> None:
    """B66 and verl's metric_utils: response_length is of kept groups, timing_s/gen of all waves."""
    step = verl_line(1, timing_s__gen=9.0, response_length__mean=100.0, response_length__max=200)
    filtered = read_text(tmp_path, step.strip() + " - train/num_gen_batches:2\n")
    assert column(filtered, "trained/mean_completion_tokens") == [100.0]
    assert "rollout/mean_completion_tokens" not in filtered.frame
    assert has_note(filtered, "a filter may be on", "--unfiltered")
    assert has_note(filtered, "response_length/mean", "kept groups only")
    assert has_note(filtered, "timing_s/gen", "discarded groups included")
    said = read_text(tmp_path, step.strip() + " - train/num_gen_batches:1\n", unfiltered=True)
    assert column(said, "rollout/mean_completion_tokens") == [100.0]
    plain = read_text(tmp_path, step)
    assert column(plain, "rollout/max_completion_tokens") == [200.0]
    assert has_note(plain, "trained batch = all that was sampled")


def test_rows_of_the_batch_follow_from_its_tokens(tmp_path: Path) -> None:
    """24 responses of mean 100.25 on prompts of mean 49.75: 24 × 150 = 3600 tokens."""
    step = {"timing_s__gen": 1.0, "prompt_length__mean": 49.75, "response_length__mean": 100.25}
    table = read_text(tmp_path, verl_line(1, **step, perf__total_num_tokens=3600))
    assert column(table, "trained/responses") == [24.0]
    assert column(table, "rollout/train_completion_tokens") == [2406.0]
    uneven = read_text(tmp_path, verl_line(1, **step, perf__total_num_tokens=3650))
    assert "trained/responses" not in uneven.frame


def test_v1_clip_ratio_is_no_truncation_rate(tmp_path: Path) -> None:
    """verl#7817: in V1 the width is the longest row, so the ratio is never 0."""

    def lines(longest: tuple[int, int]) -> str:
        return "".join(
            verl_line(
                i, timing_s__gen=1.0, response_length__max=m, response_length__clip_ratio=0.01
            )
            for i, m in enumerate(longest, start=1)
        )

    legacy = read_text(tmp_path, lines((512, 512)))
    assert column(legacy, "trained/truncated_share") == [0.01, 0.01]
    v1 = read_text(tmp_path, lines((500, 512)))
    assert "trained/truncated_share" not in v1.frame
    assert column(v1, "extra/response_length/clip_ratio") == [0.01, 0.01]
    assert has_note(v1, "not the truncation rate", "7817")


def test_colours_bars_and_glued_lines(tmp_path: Path) -> None:
    text = (
        "\x1b[2m\x1b[36m(TaskRunner pid=7, ip=10.0.0.1)\x1b[0m step:1 - timing_s/gen:1.5\r\n"
        " 10%|█  | 2/20 [00:03<00:27]\r 15%|█▌ | 3/20 [00:04<00:26]"
        "\x1b[36m(TaskRunner pid=7, ip=10.0.0.1)\x1b[0m step:2 - timing_s/gen:2.5 - "
        "actor/lr:1e-06(TaskRunner pid=7, ip=10.0.0.1) step:3 - timing_s/gen:3.5 - "
        "actor/lr:np.float64(2e-06) [repeated 2x across cluster]\n"
        "[36m(TaskRunner pid=7, ip=10.0.0.1)[0m step:4 - timing_s/gen:4.5\n"
    )
    table = read_text(tmp_path, text)
    assert list(table.frame["step"]) == [1, 2, 3, 4]
    assert column(table, "time/rollout_seconds") == [1.5, 2.5, 3.5, 4.5]
    assert column(table, "train/learning_rate") == [None, 1e-06, 2e-06, None]
    assert len(table.runs) == 1


def test_data_set_names_with_separators(tmp_path: Path) -> None:
    text = "step:1 - timing_s/gen:1.0 - val-core/a - b:c/acc/mean@1:0.25 - critic/lr(1e-4):0.1\n"
    table = read_text(tmp_path, text)
    assert column(table, "extra/val-core/a - b:c/acc/mean@1") == [0.25]
    assert column(table, "extra/critic/lr(1e-4)") == [0.1]


def test_numbers_printed_into_each_other_are_missing_not_wrong(tmp_path: Path) -> None:
    text = "step:1 - timing_s/gen:1.0 - timing_s/step:41.72024-01-01 INFO\n"
    table = read_text(tmp_path, text)
    assert "time/step_seconds" not in table.frame
    assert has_note(table, "no number", "timing_s/step (1)")


def test_a_cut_last_line_loses_its_last_value_only(tmp_path: Path) -> None:
    whole = verl_line(1, timing_s__gen=1.0, timing_s__step=2.0)
    cut = verl_line(2, timing_s__gen=1.25, timing_s__step=63.25)[:-4]
    assert cut.endswith("timing_s/step:63")  # a number, and a wrong one
    table = read_text(tmp_path, whole + cut)
    assert column(table, "time/rollout_seconds") == [1.0, 1.25]
    assert column(table, "time/step_seconds") == [2.0, None]
    assert has_note(table, "no line break at the end", "timing_s/step")


def test_a_gzipped_log_and_one_whose_end_is_cut(tmp_path: Path) -> None:
    text = "".join(verl_line(i, timing_s__gen=float(i)) for i in range(1, 400)).encode()
    whole = read_text(tmp_path, gzip.compress(text), "a.log.gz")
    assert len(whole.frame) == 399
    assert whole.runs == ("a",)
    packed = gzip.compress(text)
    cut = read_text(tmp_path, packed[: len(packed) * 3 // 4], "b.log.gz")
    assert 0 < len(cut.frame) < 399
    assert has_note(cut, "the gzip stream is cut")


def test_a_resumed_run_keeps_each_step_as_it_came_last(tmp_path: Path) -> None:
    first = "".join(verl_line(i, pid=1, timing_s__gen=float(i)) for i in range(1, 11))
    again = "".join(verl_line(i, pid=2, timing_s__gen=100.0 + i) for i in range(8, 13))
    table = read_text(tmp_path, first + again)
    assert len(table.runs) == 1
    assert list(table.frame["step"]) == list(range(1, 13))
    assert column(table, "time/rollout_seconds")[6:] == [7.0, 108.0, 109.0, 110.0, 111.0, 112.0]
    assert has_note(table, "resumed", "step 8")
    assert has_note(table, "3 steps come more than once")


def test_a_run_that_starts_again_is_another_run(tmp_path: Path) -> None:
    first = verl_line(0, val_core__x=0.5) + "".join(
        verl_line(i, timing_s__gen=float(i)) for i in range(1, 6)
    )
    second = "".join(verl_line(i, timing_s__gen=10.0 * i) for i in range(1, 4))
    table = read_text(tmp_path, first + second)
    assert table.runs == ("a#1", "a#2")
    assert list(table.one_run("a#2")["step"]) == [1, 2, 3]
    chosen = read_log(tmp_path / "a.log", options=LogOptions(run="a#1"))
    assert chosen.runs == ("a#1",)
    with pytest.raises(ConfigError, match=r"--run a: not in .*it holds a#1, a#2"):
        read_log(tmp_path / "a.log", options=LogOptions(run="a"))


def test_two_processes_at_once_are_two_runs(tmp_path: Path) -> None:
    lines = [
        verl_line(i, pid=pid, timing_s__gen=float(pid)) for i in range(1, 5) for pid in (11, 22)
    ]
    table = read_text(tmp_path, "".join(lines))
    assert table.runs == ("a#1", "a#2")
    assert set(table.one_run("a#1")["time/rollout_seconds"]) == {11.0}


def test_validation_beside_a_step_stays_with_it(tmp_path: Path) -> None:
    text = verl_line(5, val_core__acc=0.5) + verl_line(5, timing_s__gen=2.0)
    table = read_text(tmp_path, text)
    assert list(table.frame["step"]) == [5]
    assert column(table, "extra/val_core/acc") == [0.5]
    assert not has_note(table, "more than once")


TRL_HEAD = "***** Running training *****\n  Total optimization steps = {total}\n"
TRL_ROW = (
    "{{'loss': 0.1, 'grad_norm': {norm}, 'num_tokens': {tokens}, 'completions/mean_length': 50.0, "
    "'completions/max_length': 90.0, 'reward': '0.5', 'frac_reward_zero_std': 0.25, "
    "'step_time': 3.5, 'epoch': 0.1}}\n"
)
TRL_END = "{'train_runtime': 70.0, 'train_loss': 0.1, 'epoch': 0.1}\n"


def trl_log(n_rows: int, *, total: int, end: str = TRL_END) -> str:
    rows = [TRL_ROW.format(norm=1.0, tokens=1000.0 * i) for i in range(1, n_rows + 1)]
    bar = f" 50%|█ | {total // 2}/{total} [00:05<00:05]"
    return TRL_HEAD.format(total=total) + bar + "".join(rows) + end


def test_trl_rows_get_the_steps_that_fit(tmp_path: Path) -> None:
    table = read_text(tmp_path, trl_log(4, total=20))
    assert table.framework == "trl"
    assert list(table.frame["step"]) == [5, 10, 15, 20]
    assert column(table, "log/steps") == [5.0] * 4
    assert column(table, "trained/total_tokens") == [None, 200.0, 200.0, 200.0]
    assert column(table, "rollout/mean_completion_tokens") == [50.0] * 4
    assert column(table, "reward/trained_mean") == [0.5] * 4
    assert has_note(table, "mean over 5 steps")


def test_trl_rows_of_an_unfinished_training_are_counted(tmp_path: Path) -> None:
    """20 steps, logged every 2, cut after 5 rows: 4 would fit too, so nothing is guessed."""
    text = trl_log(5, total=20, end="")
    table = read_text(tmp_path, text)
    assert list(table.frame["step"]) == [1, 2, 3, 4, 5]
    assert "log/steps" not in table.frame
    assert "trained/total_tokens" not in table.frame
    assert has_note(table, "rows are counted", "--every N")
    said = read_text(tmp_path, text, every=2)
    assert list(said.frame["step"]) == [2, 4, 6, 8, 10]


def test_two_trainings_of_trl_and_one_resumed(tmp_path: Path) -> None:
    first, second = trl_log(4, total=20), trl_log(10, total=20)
    table = read_text(tmp_path, first + second)
    assert table.runs == ("a#1", "a#2")
    assert list(table.one_run("a#1")["step"]) == [5, 10, 15, 20]
    assert list(table.one_run("a#2")["step"]) == list(range(2, 21, 2))
    # two rows of 20 steps: every 7, 8, 9 or 10 would do, so they are counted
    assert list(read_text(tmp_path, trl_log(2, total=20)).frame["step"]) == [1, 2]
    # stopped after 10 of 20 steps, taken up again at 10: rows at 15 and 20
    begun = trl_log(2, total=20, end="")
    again = trl_log(2, total=20).replace(
        "  Total optim", "  Continuing training from global step 10\n  Total optim"
    )
    resumed = read_text(tmp_path, begun + again, every=5)
    assert resumed.runs == ("a",)
    assert list(resumed.frame["step"]) == [5, 10, 15, 20]


def test_a_dict_that_is_cut_or_no_training_row_is_left_out(tmp_path: Path) -> None:
    text = (
        "{'type': 'config', 'epoch': 3}\n{'eval_loss': 0.3, 'epoch': 0.1}\n"
        + TRL_ROW.format(norm="nan", tokens=5.0)
        + TRL_ROW.format(norm=1.0, tokens=6.0)[:90]
    )
    table = read_text(tmp_path, text)
    assert len(table.frame) == 1
    assert has_note(table, "1 dict rows without end")
    assert has_note(table, "grad_norm (1)")


def test_openrlhf_lines(tmp_path: Path) -> None:
    row = (
        "(PPOTrainer pid=9) INFO ppo.py:1] ✨ Global step {step}: {{'policy_loss': 0.5, "
        "'reward': 0.25, 'response_length': 300.0, 'timing/generation': 40.0, "
        "'timing/step_total': 60.0, 'dynamic_filtering_pass_rate': 400.0}}\n"
    )
    table = read_text(tmp_path, row.format(step=1) + row.format(step="2 [replay]"))
    assert table.framework == "openrlhf"
    assert list(table.frame["step"]) == [1, 2]
    assert column(table, "time/rollout_seconds") == [40.0, 40.0]
    assert column(table, "extra/dynamic_filtering_pass_rate") == [400.0, 400.0]
    assert has_note(table, "dynamic_filtering_pass_rate", "n samples a prompt times too large")


def test_prime_rl_lines_keep_the_two_processes_apart(tmp_path: Path) -> None:
    text = (
        "\x1b[32m12:01:07\x1b[0m SUCCESS Step 3 | Time: 13.04s | Reward: 0.1160 | Throughput: "
        "4.5K tokens/s | Seq. Length: 396.8 tokens/sample | Async Level: 1\n"
        "12:01:08 SUCCESS Step 3 | Time: 2.50s | Loss: 0.0125 | Entropy: 0.5 | "
        "Peak Mem.: 30.1 GiB\n"
    )
    table = read_text(tmp_path, text)
    assert table.framework == "prime_rl"
    assert column(table, "time/step_seconds") == [13.04]
    assert column(table, "extra/trainer/Time") == [2.5]
    assert column(table, "reward/trained_mean") == [0.116]
    assert column(table, "train/loss") == [0.0125]
    assert column(table, "extra/orchestrator/Throughput") == [4500.0]


def test_the_framework_with_the_most_rows_is_read_and_others_named(tmp_path: Path) -> None:
    text = "".join(verl_line(i, timing_s__gen=1.0) for i in (1, 2)) + TRL_ROW.format(
        norm=1, tokens=1
    )
    table = read_text(tmp_path, text)
    assert table.framework == "verl"
    assert has_note(table, "trl (1 rows)", "--framework")
    assert read_text(tmp_path, text, framework="trl").framework == "trl"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (b"nothing to see here\n", "no line of a training step"),
        (b"\x80\x04\x95\x00pickle", "a pickle or an archive"),
        (b"PK\x03\x04zip", "a pickle or an archive"),
        (bytes(range(256)) * 40, "no line of a training step|binary data"),
        (b"\0" * 5000, "binary data"),
        (b"step:1 - val-core/x/acc:0.5\n", "only rows without training metrics"),
        (b'[{"step": 1}]', "JSON array"),
    ],
)
def test_files_that_are_no_log(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read_text(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_a_missing_path_and_a_folder_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_log(tmp_path / "no.log")
    with pytest.raises(ConfigError, match="it holds nothing"):
        read_log(tmp_path)
    (tmp_path / "a.log").write_text(verl_line(1, timing_s__gen=1.0))
    assert len(read_log(tmp_path).frame) == 1
    (tmp_path / "b.log").write_text("x")
    with pytest.raises(ConfigError, match=r"a\.log, b\.log"):
        read_log(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-06", 1e-06),
        (" -8.1e-06 ", -8.1e-06),
        ("np.float64(0.5)", 0.5),
        ("tensor(-1., device='cuda:0')", -1.0),
        ("'0.25'", 0.25),
        ("True", 1.0),
        ("1_000", None),
        ("1.2.3", None),
        ("0x10", None),
        ("abc", None),
    ],
)
def test_whole_values(text: str, value: float | None) -> None:
    assert whole_value(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5(TaskRunner pid=3) ", 0.5),
        ("0.5 [repeated 2x across cluster]", 0.5),
        ("7INFO start", 7.0),
        ("41.72024-01-01", None),
        ("41.7 20", None),
        ("12:30", None),
        ("1.5.2", None),
    ],
)
def test_leading_values(text: str, value: float | None) -> None:
    assert leading_value(text) == value


def test_missing_cells_are_nan_and_text_is_none() -> None:
    assert all(math.isnan(number_of(cell) or 0.0) for cell in (None, "", "nan", "None"))
    assert number_of("hello") is None
    assert number_of([1]) is None
    assert number_of(10**400) == math.inf
