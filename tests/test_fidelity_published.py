"""Published results and censoring: settings judged by formulas, ranges honest, pages complete."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats

from dapolab.cli import main
from dapolab.errors import ConfigError
from dapolab.fidelity.censoring import cut_again, recensor, records_of
from dapolab.fidelity.published import (
    Row,
    Variant,
    fastest_k,
    open_rows,
    read_baselines,
    rollpacker,
    rows_of,
    systems,
)
from dapolab.fidelity.published.row import System
from dapolab.fidelity.published.seed_run import STEP_S, seed_pairs
from dapolab.report.fidelity_report import fidelity_document
from dapolab.scenario import IndependentWorkload, JointWorkload, LognormalLengths
from dapolab.workload.model import PromptStream


def test_every_variant_has_committed_parameters_at_most_two_of_them() -> None:
    committed = read_baselines()
    for system in systems():
        assert set(committed[system.name]) == {v.name for v in system.variants}
        assert set(system.baseline) <= set(system.published)
        for parameters in committed[system.name].values():
            # one scalar a model and baseline row; "tokens" is a count, not fitted to the row
            fitted = [name for name in parameters if name != "tokens"]
            assert len(fitted) <= max(2, len(system.baseline))


def test_fastest_of_n_is_the_order_statistic() -> None:
    variant = Variant("", {"prompts": 4.0, "prompt_share": 0.0})
    for n in (4, 5, 6):
        # slowest of 4 prompts, each done with the 4th of its n: P(done by x) = P(Bin(n, F) ≥ 4)^4
        def late(x: float, n: int = n) -> float:
            done = stats.binom.sf(3, n, stats.lognorm.cdf(x, 0.5))
            return float(1 - done**4)

        exact = integrate.quad(late, 0, 60, limit=400)[0]
        found = fastest_k._wait(variant, 0.5, n)
        assert found == pytest.approx(exact, rel=0.02)
        assert abs(found / (1.05 * exact) - 1) > 0.02  # the twin


def test_fastest_k_baseline_is_met_and_mean_over_max_is_half() -> None:
    system = fastest_k.system()
    one = replace(system, variants=system.variants[:1])
    rows = {row.setting: row for row in rows_of(one, read_baselines()[system.name])}
    base = rows["keep 4 of 4"]
    assert base.low == pytest.approx(464.6, rel=1e-4)
    assert base.inside is None
    values = read_baselines()[system.name]["8 prompts, 0% of the spread between prompts"]
    rng = np.random.default_rng(1)
    x = np.exp(values["sigma"] * rng.standard_normal((20_000, 32)))
    share = (x.mean(axis=1) / x.max(axis=1)).mean()
    assert share == pytest.approx(0.5, abs=4.5 * 0.13 / np.sqrt(20_000) + 0.003)


def test_lengths_from_a_ratio_and_a_quartile() -> None:
    workload = rollpacker._lognormal(28.0, 900.0)
    assert isinstance(workload, IndependentWorkload)
    law = workload.lengths
    assert isinstance(law, LognormalLengths)
    assert law.median_tokens * np.exp(0.674490 * law.sigma) == pytest.approx(900.0, rel=1e-4)
    rng = np.random.default_rng(2)
    between = np.sqrt(law.prompt_share) * rng.standard_normal((2000, 128, 1))
    within = np.sqrt(1 - law.prompt_share) * rng.standard_normal((2000, 128, 8))
    longest = np.exp(law.sigma * (between + within)).max(axis=(1, 2))
    error = longest.std() / np.sqrt(2000)
    assert abs(longest.mean() - 28.0) < 4.5 * error
    assert abs(1.05 * longest.mean() - 28.0) > 0.5 * error


def test_one_step_off_gains_nothing_without_latency_and_never_more_than_it() -> None:
    for share, latency in ((0.7, 0.0), (0.7, 0.8), (0.4, 0.4)):
        variant = Variant("", {"rollout_share": share, "latency_share": latency})
        gain = open_rows._one_step_off(variant, {})["FSDP2"]
        x = np.linspace(0.01, 0.99, 9801)
        wait = share * latency
        cycle = np.maximum(wait + (share - wait) / x, (1 - share) / (1 - x))
        assert gain == pytest.approx(1 / cycle.min() - 1, abs=2e-3)
    assert open_rows._one_step_off(Variant("", {"rollout_share": 0.7, "latency_share": 0.0}), {})[
        "FSDP2"
    ] == pytest.approx(0.0, abs=1e-9)


def test_a_range_is_no_hit_and_a_miss_has_a_size() -> None:
    inside = Row("s", "a", 10.0, "s", 5.0, 12.0)
    assert inside.inside
    assert inside.miss_share == 0
    assert Row("s", "a", 10.0, "s", 12.0, 15.0).miss_share == pytest.approx(0.2)
    assert Row("s", "a", 10.0, "s", 5.0, 8.0).miss_share == pytest.approx(-0.2)
    assert Row("s", "a", 10.0, "s", None, None).inside is None
    assert Row("s", "a", 10.0, "s", 9.0, 11.0, baseline=True).inside is None
    system = System(
        "x",
        "y",
        {"one": (1.0, "s"), "two": (2.0, "s")},
        ["one"],
        [Variant("v", {})],
        lambda v: {"k": 1.0},
        lambda v, p: {"one": p["k"]},
        {},
    )
    rows = rows_of(system, {"v": {"k": 1.0}})
    assert [row.low for row in rows] == [1.0, None]
    with pytest.raises(ConfigError, match="no committed parameters"):
        rows_of(system, {})


def test_the_seed_runs_waves_are_those_of_the_exact_chain() -> None:
    rows = seed_pairs((0.5,), replications=6)
    # theory A4, B = 4, M = 2, q = ½: E[W] = 2.75, E[N] = 6.90625
    n = 6 * 35
    for _, row in rows.iterrows():
        assert abs(row["waves"] - 2.75) < 4.5 * 1.2 / np.sqrt(n)
        assert abs(row["candidates"] - 6.90625) < 4.5 * 1.5 / np.sqrt(n)
        assert row["tok_per_s_total"] == pytest.approx(row["tokens_per_step"] / STEP_S)
    assert rows["tok_per_s_response"].is_monotonic_increasing  # loops: longer waves, more speed


def _records(n_prompts: int, n: int, seed: int) -> pd.DataFrame:
    law = JointWorkload(median_tokens=3000, sigma=0.6, prompt_share=0.75, sd_logit=1.5)
    groups = PromptStream(law, group_size=n, cap_tokens=20_000, seed=seed).draw(0, n_prompts)
    return records_of(
        pd.DataFrame(
            {
                "prompt_id": np.repeat(np.arange(n_prompts), n),
                "sample": np.tile(np.arange(n), n_prompts),
                "tokens": groups.n_tokens_PG.reshape(-1),
                "correct": groups.correct_PG.reshape(-1),
                "truncated": groups.truncated_PG.reshape(-1),
            }
        )
    )


def test_cutting_again_forgets_what_a_shorter_run_never_saw() -> None:
    records = _records(20, 4, 1)
    cut = cut_again(records, 3000)
    long = records["n_tokens"].to_numpy(int) >= 3000
    assert (cut["n_tokens"] <= 3000).all()
    assert (cut["truncated"].to_numpy(bool) == long).all()
    assert cut["correct"].isna().to_numpy(bool)[long].all()
    assert cut["correct"].notna().to_numpy(bool)[~long].all()
    assert (records["n_tokens"].max()) > 3000  # the full record is untouched


def test_without_loops_the_lower_bound_predicts_held_out_prompts() -> None:
    found = recensor(_records(48, 4, 2), cut_tokens=5000, full_cap=20_000, n_folds=2)
    for one in found:
        spread = np.hypot(one.none.mean_se, one.observed.mean_se)
        assert abs(one.none.mean_tokens - one.observed.mean_tokens) < 4.5 * spread
        assert one.naive.mean_tokens < one.observed.mean_tokens
        assert one.every.mean_tokens > one.none.mean_tokens
        assert one.every.truncated_share > 5 * max(one.observed.truncated_share, 0.002)


def test_the_report_says_what_was_not_run_and_shows_what_was(tmp_path: Path) -> None:
    empty = fidelity_document({}, missing=["vllm_traces: no folder vllm_traces"])
    assert empty.sections == ()
    assert "no folder" in empty.notes[0]
    rows = pd.DataFrame(
        [
            {
                "system": "verl fully async",
                "source": "",
                "setting": name,
                "published": 100.0,
                "unit": "s",
                "low": low,
                "high": high,
                "baseline": name == "base",
                "inside": inside,
                "miss_share": miss,
                "why": "",
            }
            for name, low, high, inside, miss in (
                ("base", 100.0, 100.0, None, 0.0),
                ("hit", 90.0, 120.0, True, 0.0),
                ("miss", 50.0, 80.0, False, -0.2),
            )
        ]
    )
    document = fidelity_document(
        {"published": rows, "seed_pairs": seed_pairs((0.5,), replications=2)}
    )
    text = document.lead
    assert "Of 2 published figures 1 lie in the range" in text
    titles = [section.title for section in document.sections]
    assert titles == ["Published results", "The seed run"]


def test_command_needs_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["fidelity"]) == 2
    assert "--data" in capsys.readouterr().err
    assert main(["fidelity", "--data", str(tmp_path / "none")]) == 2


def test_real_data_half_a_record_predicts_the_other(shared_data: Path) -> None:
    reported = Path(__file__).parents[1] / "reports" / "fidelity.json"
    if not reported.is_file():
        pytest.skip("reports/fidelity.json is made by dapolab fidelity")
    tables = json.loads(reported.read_text(encoding="utf-8"))["tables"]
    llama = [row for row in tables["replay"] if row["trace"].startswith("Llama")]
    judged = [row["latency_share"] for row in llama if "fitted" in row["case"]]
    assert len(judged) == 2
    assert max(judged) <= 0.02
    parts = {"replay", "waves", "laws", "backtests", "published", "censoring", "seed_pairs"}
    assert parts <= set(tables)
