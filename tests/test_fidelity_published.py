"""Published results and censoring: settings judged by formulas, ranges honest, pages complete."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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
    april,
    fastest_k,
    one_step_off,
    read_baselines,
    rollpacker,
    rollpacker_steps,
    rows_of,
    systems,
    verl_async,
    verl_async_moe,
)
from dapolab.fidelity.published.h20 import decode_law, kv_tokens
from dapolab.fidelity.published.lengths import UNPUBLISHED
from dapolab.fidelity.published.row import System
from dapolab.fidelity.published.seed_run import STEP_S, seed_pairs
from dapolab.report.document import FigureSpec, Table
from dapolab.report.fidelity_published import _second_reading
from dapolab.report.fidelity_report import fidelity_document
from dapolab.scenario import (
    AffineLaw,
    IndependentWorkload,
    JointWorkload,
    LognormalLengths,
    Scenario,
)
from dapolab.workload.model import PromptStream


def test_every_variant_has_committed_parameters_at_most_two_of_them() -> None:
    committed = read_baselines()
    for system in systems():
        assert set(committed[system.name]) == {v.name for v in system.variants}
        assert set(system.baseline) <= set(system.published)
        for parameters in committed[system.name].values():
            # one scalar a model and baseline row
            assert len(parameters) <= max(2, len(system.baseline))


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


def test_the_figures_average_is_of_longest_rounds() -> None:
    # k = 4 short rounds to a long one, two blocks: (4 · 9 + 30) / 5
    seconds = np.array([1, 2, 9, 3, 20, 4, 5, 6, 7, 30], dtype=float)
    assert rollpacker.plotted_average(seconds, 1.25) == pytest.approx(13.2)
    # k = 8: one block of 9, the tenth iteration is left out: (8 · 20 + 7) / 9
    assert rollpacker.plotted_average(seconds, 1.125) == pytest.approx(167 / 9)
    assert rollpacker.plotted_average(seconds, 1.0) == 30


def test_what_a_shorter_rollout_gains_of_a_step() -> None:
    alone, scheduled, streamed = rollpacker_steps.gains(0.5, (0.7, 0.1, 0.2))
    assert alone == pytest.approx(1 / 0.65 - 1)
    assert scheduled == pytest.approx(1 / 0.55 - 1)
    assert streamed == pytest.approx(1 / 0.51 - 1)
    for shares in rollpacker_steps.SHARES.values():
        assert sum(shares) == pytest.approx(1.0)


def test_nothing_is_read_out_of_a_variants_name(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = rollpacker_steps.system().variants
    assert {v.task for v in variants} == set(rollpacker_steps.SHARES)
    ratio = {"TailBatching": 0.5, "NoFilter": 1.0}
    monkeypatch.setattr(
        rollpacker_steps, "_mean_seconds", lambda _, __, policy: ratio[type(policy).__name__]
    )
    for variant in variants:
        found = rollpacker_steps._predict(replace(variant, name="renamed; code"), {})
        shares = rollpacker_steps.SHARES[variant.task]
        assert found["7B, 8k: tail batching"] == pytest.approx(1 / (1 - shares[0] / 2) - 1)

    laws: list[object] = []

    def steps_of(scenario: Scenario, **_: object) -> SimpleNamespace:
        laws.append(scenario.hardware.law)
        columns = {"rollout/train_completion_tokens": 1.0, "time/rollout_seconds": 1.0}
        return SimpleNamespace(steps=pd.DataFrame(columns, index=range(april._WARM_UP + 1)))

    monkeypatch.setattr(april, "simulate", steps_of)
    for variant in april.system().variants:
        april._predict(replace(variant, name="renamed"), {})
        assert laws[-2:] == [april._LAWS[variant.law]] * 2
    assert len({repr(law) for law in laws}) == len(april._LAWS)


def test_the_law_of_four_h20_is_the_data_sheets() -> None:
    law = decode_law(4, scale=2.0)
    # 15.24 GB of weights over 4 · 4 TB/s · 0.8, and 0.5 ms of launches
    assert law.a_s == pytest.approx(2 * (15.24e9 / 12.8e12 + 5e-4))
    # 2 · 7.62 Gflop over 4 · 148 Tflop/s · 0.5, and 10 µs of sampler
    assert law.b_s == pytest.approx(2 * (15.24e9 / 296e12 + 1e-5))
    # 28 layers · 4 heads · 128 · 2 (K and V) · 2 bytes = 57,344 bytes a token
    assert law.c_s == pytest.approx(2 * 57_344 / 12.8e12)
    assert kv_tokens(4) == int((0.8 * 4 * 96e9 - 15.24e9) / 57_344)


def test_the_second_reading_says_what_was_fitted() -> None:
    committed = read_baselines()["verl fully async, fixed part fitted"].values()
    fixed_ms = [1e3 * values["fixed_s"] for values in committed]
    said = "to %.1f to %.1f ms where the data sheet has %.1f"
    assert said % (min(fixed_ms), max(fixed_ms), 1e3 * decode_law(4).a_s) in _second_reading({})
    system = verl_async.system(second_reading=True)
    one = replace(system, variants=system.variants[2:3], predict=lambda v, p: {})
    assert not any(row.counted for row in rows_of(one, read_baselines()[system.name]))
    # the fitted law gives back the row it was fitted to
    parameters = read_baselines()[system.name][system.variants[2].name]
    found = verl_async._generation("median 800, sigma 1.1", 128, verl_async._law(parameters))
    assert found == pytest.approx(177.85, rel=1e-3)


def test_verls_published_parts_add_up_to_their_steps() -> None:
    rows = [*verl_async._ROWS, verl_async_moe._ROW]
    for row in rows:
        rest = row.step_s - row.wait_s - row.update_s
        if row.setting == "64:64, fetch of 1 × 32":
            assert rest == pytest.approx(-8.49)  # as published: no mean of the same steps
        else:
            assert 3.5 < rest < 4.5
        # a version is 512 prompts, whatever is fetched at once
        assert verl_async.GROUPS % row.fetches == 0


@pytest.mark.parametrize("staleness", [0.0, 0.5])
def test_a_row_is_the_max_plus_cycle(staleness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    row = verl_async.AsyncRow("", 16, staleness, 4, 40.0, 0.0, 0.0)
    # every answer 28,672 tokens at 1 ms an iteration: one batch takes 64 prompts at a time, 8
    # rounds of 28.672 s on 4 replicas of 16 prompts each
    law = AffineLaw(a_s=1e-3, b_s=0.0, c_s=0.0, prefill_s=0.0)
    name = "never stop"
    monkeypatch.setitem(UNPUBLISHED, name, {"median": 1e7, "sigma": 1e-3, "loop_share": 0.0})
    wait, step = verl_async.async_step(
        row,
        lengths=name,
        law=law,
        cap_tokens=28_672,
        other_s=3.0,
        sync_s=0.1,
        kv_capacity_tokens=None,
    )
    rollout = 8 * 28.672
    if staleness == 0.0:
        # the trainer starts after its first quarter, is as fast as the next three, ends with a
        # quarter of the update after the last answer; then the rest and the weights
        assert step == pytest.approx(rollout + 10.0 + 3.1, rel=0.01)
    else:
        # rollout never waits for the trainer, so it alone sets the pace
        assert step == pytest.approx(rollout, rel=0.02)
    assert wait == pytest.approx(step - 40.0 - 3.1, rel=0.01)


def test_one_step_off_is_the_slower_of_rollout_and_training() -> None:
    system = one_step_off.system()
    slow, fast = system.variants[2], system.variants[0]
    assert (slow.values, fast.values["slower"]) == (
        {"slower": 16 / 12, "rest_share": 0.0},
        1.0,
    )
    found = system.predict(slow, {"FSDP2": 1e-9, "Megatron": 1e-9})
    assert found["FSDP2, 4:12: step"] == pytest.approx((88 + 286) * 4 / 3)
    assert found["Megatron, 4:12: gain in total time"] == pytest.approx(699 / (463 * 4 / 3) - 1)
    committed = read_baselines()[system.name][fast.name]
    found = system.predict(fast, {name: 100 * scale for name, scale in committed.items()})
    # 100 times slower, rollout is the step, and the scalar gives back the row it was fitted to
    assert found["FSDP2, 4:12: step"] > 100 * 247
    assert found["FSDP2, colocated: generation of a rank"] == pytest.approx(100 * 247, rel=1e-4)


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
                "counted": name in ("hit", "undetermined", "miss"),
                "inside": inside,
                "miss_share": miss,
                "why": "",
            }
            for name, low, high, inside, miss in (
                ("base", 100.0, 100.0, None, 0.0),
                ("hit", 95.0, 120.0, True, 0.0),  # a factor of 1.26
                ("undetermined", 80.0, 120.0, True, 0.0),
                ("miss", 50.0, 80.0, False, -0.2),
                ("hit: wait", 0.0, 200.0, True, 0.0),  # no ratio shows a 0: not drawn
            )
        ]
    )
    document = fidelity_document(
        {"published": rows, "seed_pairs": seed_pairs((0.5,), replications=2)}
    )
    said = "Of 3 published figures of other systems 1 lie in a range"
    assert said in document.lead
    assert "1 in a wider one, which says little, and 1 outside" in document.lead
    (table,) = [b for b in document.sections[0].blocks if isinstance(b, Table)]
    assert list(table.frame["verdict"]) == [
        "fitted",
        "in range",
        "in a wide range",
        "outside by 20%",
        "inside",
    ]
    (figure,) = [b for b in document.sections[0].blocks if isinstance(b, FigureSpec)]
    assert figure.alt == "2 of 3 published values lie in their range."
    titles = [section.title for section in document.sections]
    assert titles == ["Published results", "The seed run"]


def test_the_page_counts_what_its_tables_hold() -> None:
    text = (Path(__file__).parents[1] / "reports" / "fidelity.json").read_text(encoding="utf-8")
    stored = json.loads(text)["tables"]
    # one interval of the sixteen no longer holds, and one published row of those drawn is missed
    stored["backtests"][3] |= {"low": 0.0, "high": 0.0, "covered": False}
    names = ("backtests", "sensitivity", "not_identified", "calibrated", "published", "seed_pairs")
    names += ("censoring", "laws", "given_trl", "not_computed")
    tables = {name: pd.DataFrame(stored[name]) for name in names}
    document = fidelity_document(tables)
    held = [row["covered"] for row in stored["backtests"]]
    assert f"{sum(held)} of {len(held)} nominal" in document.lead
    assert sum(held) == len(held) - 1
    figures = {
        block.name: block.alt
        for section in document.sections
        for block in section.blocks
        if isinstance(block, FigureSpec)
    }
    assert {"backtests", "seed-run", "censoring"} <= set(figures)
    assert figures["backtests"].startswith(f"{sum(held)} of {len(held)} ")
    shown = {section.title: section for section in document.sections}
    (given,) = [b for b in shown["Seconds from lengths alone"].blocks if isinstance(b, Table)]
    assert list(given.frame["log"]) == ["TRL, 34 runs"]
    (cut,) = [b for b in shown["What a short cap still tells"].blocks if isinstance(b, Table)]
    assert list(cut.frame["cut at"]) == ["8,192"] * 5 + ["16,384"] * 5
    (laws,) = [b for b in shown["Decode laws on measured tables"].blocks if isinstance(b, Table)]
    # the mixture of experts alone bends
    bent = laws.frame[laws.frame["b a response"] == "concave"]
    assert list(bent["model"]) == ["Qwen3-30B-A3B"]
    # a row outside is explained, one that was fitted is not judged
    outside = [row for row in stored["published"] if row["why"]]
    tables_of = [b for b in shown["Published results"].blocks if isinstance(b, Table)]
    verdicts = [v for b in tables_of if "verdict" in b.frame for v in b.frame["verdict"]]
    assert verdicts.count("fitted") == sum(row["baseline"] for row in stored["published"])
    (explained,) = [b.frame["rows outside"] for b in tables_of if "rows outside" in b.frame]
    assert {row["setting"] for row in outside} == set("; ".join(explained).split("; "))


def test_command_needs_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["fidelity"]) == 2
    assert "--data" in capsys.readouterr().err
    assert main(["fidelity", "--data", str(tmp_path / "none")]) == 2


def test_baselines_are_fitted_to_their_rows_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = fastest_k.system()
    one = replace(system, variants=system.variants[:1])
    target = tmp_path / "baselines.json"
    monkeypatch.setattr("dapolab.fidelity.published.BASELINES", target)
    monkeypatch.setattr("dapolab.fidelity.published.systems", lambda: [one])
    assert main(["fidelity", "--fit-baselines"]) == 0
    assert capsys.readouterr().out == f"wrote {target}\n"
    assert json.loads(target.read_text(encoding="utf-8"))["fitted_to"] == {
        system.name: ["keep 4 of 4"]
    }
    name = one.variants[0].name
    fitted = read_baselines(target)[system.name]
    # what is committed is what the fit gives, and meets the baseline's row
    assert fitted == {name: pytest.approx(read_baselines()[system.name][name], rel=1e-4)}
    (base, *_) = rows_of(one, fitted)
    assert base.low == pytest.approx(464.6, rel=1e-4)
    with pytest.raises(ConfigError, match="no fitted baselines"):
        read_baselines(tmp_path / "none.json")


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
