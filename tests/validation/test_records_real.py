"""Every per-response set of the shared data reads as it is; figures as published beside the data.

Expected figures are those of the data folder's own notes (reference/data.md, section 2, and
pass_rate_summary.csv), to the precision printed there.
"""

from pathlib import Path

import pandas as pd
import pytest

from dapolab.records import ReadOptions, Records, read_records, summarise
from dapolab.scenario import ConfigError

MMLU = {"set": "matched_controls_gemma4_12b/mmlu_pro"}
GPQA = {"set": "matched_controls_gemma4_12b/gpqa_diamond"}


def read(data: Path, name: str, where: dict[str, str] | None = None, **more: object) -> Records:
    path = data / name
    if not path.exists():
        pytest.skip(f"{name} is not in the data folder")
    return read_records(path, options=ReadOptions(where=where or {}, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "where", "groups", "tokens", "accuracy", "shares"),
    [
        (
            "gemma4_12b_reasoning_n10/lengths.csv",
            MMLU,
            {10: 75},
            (5371, 16336, 16384),
            0.50,
            (0.23, 0.17, 0.60),
        ),
        (
            "gemma4_12b_reasoning_n10/gpqa_lengths_from_trajectory.csv",
            GPQA,
            {10: 75},
            (11110, 16381, 16382),
            0.46,
            (0.15, 0.19, 0.67),
        ),
        (
            "cot_loop_qwen3_1p7b/gpqa_n10_lengths.csv",
            {},
            {10: 48},
            (7367, 14739, 30000),
            0.35,
            (0.17, 0.38, 0.46),
        ),
    ],
)
def test_published_table(
    shared_data: Path,
    name: str,
    where: dict[str, str],
    groups: dict[int, int],
    tokens: tuple[int, int, int],
    accuracy: float,
    shares: tuple[float, float, float],
) -> None:
    summary = summarise(read(shared_data, name, where))
    assert summary.group_sizes == groups
    assert tuple(summary.tokens.values()) == tokens
    assert summary.accuracy.value == pytest.approx(accuracy, abs=0.005001)
    found = (summary.all_right_share, summary.all_wrong_share, summary.mixed_share)
    assert found == pytest.approx(shares, abs=0.005001)


def test_livecodebench(shared_data: Path) -> None:
    records = read(shared_data, "cot_loop_qwen3_1p7b/livecodebench_n1_lengths.csv")
    summary = summarise(records)
    assert summary.group_sizes == {1: 1055}
    assert tuple(summary.tokens.values()) == (10931, 40341, 40585)
    assert summary.truncated.value == pytest.approx(0.209, abs=0.0005)
    assert summary.accuracy.n == 0
    assert records.selection == "all"
    assert any("the cap differs by row" in note for note in records.notes)


def test_heavy_truncation(shared_data: Path) -> None:
    records = read(shared_data, "cot_loop_qwen3_1p7b/mcq_n10_cap4096_lengths.csv")
    assert records.cap_tokens == 4096
    assert summarise(records).group_sizes == {10: 48}
    truth = pd.read_csv(shared_data / "cot_loop_qwen3_1p7b/mcq_n10_cap4096_lengths.csv")
    assert int(records.table["truncated"].sum()) == int((truth["tokens"] == 4096).sum())


@pytest.mark.parametrize("run", ["self_prefill", "self_ct1", "r1_8b+qwq32b", "self_reject"])
def test_atts_runs(shared_data: Path, run: str) -> None:
    records = read(shared_data, "atts_math500_n16/lengths.csv", {"run": run})
    summary = summarise(records)
    published = pd.read_csv(shared_data / "pass_rate_summary.csv", comment=None).set_index("set")
    row = published.loc[f"atts {run}"].astype(float)
    assert summary.group_sizes == {16: 100}
    assert records.cap_tokens == 7500
    p50, p90, p99 = summary.tokens.values()
    assert 506 <= p50 <= 806
    assert 4160 <= p90 <= 5794
    assert p99 == 7500
    found = [
        summary.accuracy.value,
        summary.all_right_share,
        summary.all_wrong_share,
        summary.mixed_share,
    ]
    wanted = row[["acc", "all_correct", "all_wrong", "mixed"]].tolist()
    assert found == pytest.approx(wanted, abs=0.000501)


def test_pass_rates_without_lengths(shared_data: Path) -> None:
    records = read(shared_data, "justgrpo_math_n8/lengths.csv")
    summary = summarise(records)
    assert summary.group_sizes == {8: 401}
    assert summary.accuracy.value == pytest.approx(0.34, abs=0.005)
    shares = (summary.all_right_share, summary.all_wrong_share, summary.mixed_share)
    assert shares == pytest.approx((0.20, 0.44, 0.36), abs=0.005)
    assert summary.tokens == {}
    rough = read(shared_data, "justgrpo_math_n8/lengths.csv", chars_per_token=3.0)
    assert summarise(rough).tokens[0.5] == round(621 / 3)


@pytest.mark.parametrize(
    "name",
    [
        "a3-easy-control-k64-t1.0",
        "Qwen2.5-3B-Instruct-nn4mx25-k8-t1.0",
        "Qwen2.5-7B-Instruct-7b-nn3mx25-k8-t1.0",
        "Qwen2.5-7B-Instruct-7b-nn4mx25-k8-t1.0",
    ],
)
def test_pass_counts(shared_data: Path, name: str) -> None:
    records = read(shared_data, "qwen_grpo_passcounts/pass_counts.csv", {"set": name})
    _assert_published(shared_data, records, name)


@pytest.mark.parametrize("run", ["baseline", "num_groups_16", "group_size_16"])
def test_groups_of_every_step(shared_data: Path, run: str) -> None:
    records = read(shared_data, "gsm8k_grpo_ablation/groups.csv", {"run": run})
    for first, last in ((1, 10), (21, 30), (41, 50)):
        window = records.table[records.table["step"].between(first, last)]
        _assert_published(shared_data, window, f"gsm8k-grpo {run} steps {first}-{last}")


def test_a_pass_rate_history(shared_data: Path) -> None:
    records = read(shared_data, "one_shot_rlvr_acc_history/acc_history.csv")
    assert any("multiples of 1/8" in note for note in records.notes)
    for epoch in (0, 10, 20, 40, 50):
        at = records.table[records.table["step"] == epoch]
        _assert_published(shared_data, at, f"1-shot-RLVR DSR e{epoch}")


def _assert_published(data: Path, found: Records | pd.DataFrame, name: str) -> None:
    row = pd.read_csv(data / "pass_rate_summary.csv").set_index("set").loc[name].astype(float)
    summary = summarise(found)
    assert summary.group_sizes == {int(row["n"]): int(row["prompts"])}
    shares = [summary.all_right_share, summary.all_wrong_share, summary.mixed_share]
    published = row[["all_correct", "all_wrong", "mixed"]].tolist()
    assert [summary.accuracy.value, *shares] == pytest.approx(
        [row["acc"], *published], abs=0.000501
    )


@pytest.mark.parametrize(
    ("name", "format", "n_rows"),
    [
        ("verl_rollout_dump_1.jsonl", "verl", 4),
        ("verifiers_results.jsonl", "verifiers", 5),
        ("prime_rl_train_rollouts.jsonl", "prime_rl", 3),
    ],
)
def test_format_samples(shared_data: Path, name: str, format: str, n_rows: int) -> None:
    records = read(shared_data, f"formats_samples/{name}")
    assert (records.format, len(records.table)) == (format, n_rows)
    assert records.built_from == "a real sample"
    assert records.table["correct"].notna().all()


@pytest.mark.parametrize(
    "name",
    [
        "formats_samples/verl_file_logger.jsonl",
        "formats_samples/verl_console.log",
        "formats_samples/trl_grpo_train.log",
        "formats_samples/verifiers_metadata.json",
        "verl_grpo_qwen3_8b/M20_grpo_steps.csv",
        "trl_grpo_logs/trl_steps.csv",
        "dapo_math_prompts/dapo_eval_aime2024_x32.parquet",
        "servegen_deepseek_r1/output_tokens_pmf.csv",
        "verl_official_logs/SOURCE.txt",
        "verl_official_logs",
    ],
)
def test_what_holds_no_responses_is_refused_in_one_line(shared_data: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(shared_data, name)
    assert "\n" not in str(caught.value)
