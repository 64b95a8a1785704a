"""Every comparison with a real system, run in one go: tables for the report.

Each part reads one folder of the real data and fills its tables; a part whose folder is absent is
named in ``missing`` and nothing stands in for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from dapolab.errors import ConfigError
from dapolab.fidelity.backtest import backtest, split_in_time
from dapolab.fidelity.censoring import cut_again, pooled, recensor, records_of
from dapolab.fidelity.given import GivenLengths, given_lengths
from dapolab.fidelity.law import fit_law
from dapolab.fidelity.pairs import (
    CONTEXT_S,
    M20_DAPO,
    M20_GSPO,
    POLL_S,
    m20_dapo_scenario,
    m20_grpo_scenario,
    m20_grpo_steps,
)
from dapolab.fidelity.profile import iterations_of_profile
from dapolab.fidelity.published import read_baselines, rows_of, systems
from dapolab.fidelity.published.seed_run import seed_pairs
from dapolab.fidelity.requests import (
    RequestTrace,
    engine_of_meta,
    fit_scale,
    latency_error,
    replay,
    request_trace,
    scaled,
)
from dapolab.fidelity.waves import compare_waves, read_waves, simulate_wave
from dapolab.logs import LogOptions, read_log
from dapolab.rng import stream
from dapolab.scenario import Hardware, PresetLaw, Rollout
from dapolab.sim.hardware import Law, resolve

LLAMA, QWEN = "RTXPRO6000_Llama-3.1-8B", "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507"
PROFILE = "prof_RTXPRO6000_meta-llama_Llama-3.1-8B_bf16_tp1"
GPQA_CAP = 30_000
NOT_COMPUTED = (
    (
        "verl fully async, 8:8 with validation by the trainer (485 → 490 s)",
        "validation is half of what it compares, and its prompts are not said",
    ),
    (
        "verl fully async, stale samples without partial rollout",
        "the row of the published table is empty",
    ),
    ("accuracies of all of them", "what a policy learns is not simulated here"),
)


@dataclass(eq=False)
class Study:
    """Tables by name, and the parts whose data are absent."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def run_study(data: Path, *, seed: int = 0, on_done: Callable[[], object] = lambda: None) -> Study:
    """Run every part that has its data (``on_done`` is called after each of ``PARTS``)."""
    found = Study()
    for folder, part in PARTS.items():
        try:
            if folder and not (data / folder).is_dir():
                raise ConfigError(f"no folder {folder}")
            part(found, data / folder, seed)
        except ConfigError as error:
            found.missing.append(f"{folder or part.__name__}: {error}")
        on_done()
    return found


def _trace(folder: Path, name: str) -> RequestTrace:
    path = folder / name / "requests.jsonl"
    if not path.is_file():
        raise ConfigError(f"no {name}")
    hardware = Hardware.model_validate(
        {"prefix_cache": False, **engine_of_meta(folder / name / "meta.json")}
    )
    return request_trace(pd.read_json(path, lines=True), hardware=hardware, name=name)


def _replay(found: Study, folder: Path, seed: int) -> None:
    """Replay both vLLM traces: uncalibrated, then with one scalar, two ways to hold out."""
    profile = iterations_of_profile(folder / PROFILE, n_layers=32, longest_prompt=4096)
    dense = fit_law(profile, concave=False, source="layer profile").law
    moe = resolve(Hardware(law=PresetLaw(name="qwen3-30b-a3b-h100-tp2")))
    rows, points = [], []
    for name, law in ((LLAMA, dense), (QWEN, moe)):
        trace = _trace(folder, name)
        short = name.removeprefix("RTXPRO6000_").removesuffix("-Instruct-2507")
        order = np.arange(len(trace.frame))
        half = len(order) // 2
        rows.append(_replay_row(trace, short, "uncalibrated, all", law, 1.0, order))
        for case, fitted, judged in (
            ("fitted on even, judged on odd", order[::2], order[1::2]),
            ("fitted on first half, judged on second", order[:half], order[half:]),
        ):
            scale = fit_scale(trace, law, rows=fitted).mean
            rows.append(_replay_row(trace, short, case, scaled(law, scale), scale, judged))
            if case.endswith("odd"):
                ends = replay(trace, scaled(law, scale))["end_s"].to_numpy(float)
                submit = trace.frame["submit_s"].to_numpy(float)
                points.append(
                    pd.DataFrame(
                        {
                            "trace": short,
                            "measured_s": trace.latency_s[judged],
                            "predicted_s": (ends - submit)[judged],
                        }
                    )
                )
    found.tables["replay"] = pd.DataFrame(rows)
    found.tables["replay_points"] = pd.concat(points, ignore_index=True)


def _replay_row(
    trace: RequestTrace, name: str, case: str, law: Law, scale: float, rows: np.ndarray
) -> dict[str, object]:
    error = latency_error(trace, law, rows=rows)
    return {
        "trace": name,
        "case": case,
        "scalar": scale,
        "n": error.n,
        "latency_share": error.latency_share,
        "mean_latency_share": error.mean_latency_share,
        "p99_latency_share": error.p99_latency_share,
        "first_token_share": error.first_token_share,
        "makespan_share": error.makespan_share,
    }


def _laws(found: Study, folder: Path, seed: int) -> None:
    """Fit a law to every measured grid of the decode tables."""
    table = pd.read_csv(folder / "decode_grid.csv")
    rows = []
    for (model, system, tp), grid in table.groupby(["model", "system", "tp"]):
        pieces = pd.DataFrame(
            {
                "seconds": grid["decode_ms"] / 1e3,
                "n": grid["batch"],
                "sum_context_tokens": grid["batch"] * grid["ctx"],
            }
        )
        fit = fit_law(pieces)
        straight = fit if not fit.knots else fit_law(pieces, concave=False)
        rows.append(
            {
                "model": str(model).split("/")[-1],
                "gpu": str(system).split("_")[0],
                "tp": int(str(tp)),
                "a_ms": 1e3 * fit.law.a_s,
                "b": "concave" if fit.knots else f"{1e6 * fit.law.b_knots_s[-1]:.3g} µs",
                "c_ns": 1e9 * fit.law.c_s,
                "error_share": fit.residuals["mean_abs_share"],
                "straight_share": straight.residuals["mean_abs_share"],
            }
        )
    found.tables["laws"] = pd.DataFrame(rows)


def _waves(found: Study, folder: Path, seed: int) -> None:
    """Judge completion curves of the odd waves, and keep three whole curves for the figure."""
    table, law, scale = compare_waves(folder)
    found.tables["waves"] = table
    found.tables["waves_law"] = pd.DataFrame(
        [{"scale": scale, "each_us": 1e6 * law.b_knots_s[-1], "a_ms": 1e3 * law.a_s}]
    )
    curves = []
    for n in (30, 40, 500):
        wave = next(w for w in read_waves(folder)[1::2] if w.size == n)
        order = stream(seed, "order", wave.number, 0).permutation(n) if n > 256 else None
        predicted = np.sort(simulate_wave(wave, law, order=order))
        curves.append(
            pd.DataFrame(
                {
                    "n": n,
                    "task": wave.task.rsplit("/", 1)[-1],
                    "done_share": np.arange(1, n + 1) / n,
                    "measured_s": np.sort(wave.done_s_R),
                    "predicted_s": predicted,
                }
            )
        )
    found.tables["wave_curves"] = pd.concat(curves, ignore_index=True)


def _backtests(found: Study, folder: Path, seed: int) -> None:
    """Predict runs from the GRPO log: DAPO's, a third run, and its own second half."""
    log = m20_grpo_steps(folder)
    first, second = split_in_time(log)
    rows = []
    cases = (
        ("GRPO → DAPO (dynamic sampling on)", log, m20_dapo_scenario(), None, M20_DAPO),
        ("GRPO → GSPO (same sampling)", log, m20_grpo_scenario(), None, M20_GSPO),
        ("GRPO, first 10 → last 10 steps", first, m20_grpo_scenario(), second, None),
    )
    for name, source, scenario, against, means in cases:
        done = backtest(
            source,
            scenario,
            against=against,
            polled_s=POLL_S,
            fixed={"c_s": CONTEXT_S},
            seed=seed,
        )
        for row in done.rows:
            measured = row.measured if means is None else means.get(row.quantity)
            # one wave a step without a filter is no prediction
            if measured is None or not np.isfinite(measured) or row.low == row.high:
                continue
            rows.append(
                {
                    "pair": name,
                    "quantity": row.quantity,
                    "unit": row.unit,
                    "predicted": row.predicted,
                    "low": row.low,
                    "high": row.high,
                    "chance_low": row.chance_low,
                    "chance_high": row.chance_high,
                    "measured": measured,
                    "error_share": row.predicted / measured - 1,
                    "covered": bool(row.low <= measured <= row.high),
                    "step_coverage": row.step_coverage,
                    "n_steps": row.n_steps,
                }
            )
        if source is log and scenario.collector.kind == "rounds":
            workload = done.calibration.step_workload
            assert workload is not None
            found.tables["sensitivity"] = workload.sensitivity
            found.tables["calibrated"] = pd.DataFrame(
                [
                    {
                        "parameter": key,
                        "value": e.mean,
                        "low": e.low,
                        "high": e.high,
                        "unit": e.unit,
                    }
                    for key, e in done.calibration.estimates.items()
                ]
            )
            found.tables["not_identified"] = pd.DataFrame(
                done.calibration.not_identified, columns=["parameter", "reason"]
            )
    found.tables["backtests"] = pd.DataFrame(rows)


def _given_row(log: str, what: str, case: str, found: GivenLengths) -> dict[str, object]:
    return {
        "log": log,
        "time": what,
        "case": case,
        "n": len(found.measured),
        "error_share": found.error_share,
        "total_share": found.total_error_share,
        "coverage": found.coverage,
    }


def _verl_logs(found: Study, folder: Path, seed: int) -> None:
    """Predict the second half of three official runs from its lengths."""
    rows = []
    for path in sorted(folder.glob("*.log")):
        frame = read_log(path, options=LogOptions(progress=False)).one_run()
        groups = int(path.name.split("bsz")[1].split("_")[0])
        rollout = Rollout(groups_per_step=groups, group_size=1, cap_tokens=512)
        first, second = split_in_time(frame)
        for seconds in ("time/rollout_seconds", "time/update_seconds"):
            judged = given_lengths(first, second, seconds=seconds, rollout=rollout)
            what = seconds.split("/")[1].split("_")[0]
            rows.append(_given_row(path.name.split(".log")[0], what, "second half", judged))
    found.tables["given_verl"] = pd.DataFrame(rows)


def _trl_logs(found: Study, folder: Path, seed: int) -> None:
    """Predict the second half of 34 TRL runs; one row over all."""
    table = read_log(folder / "trl_steps.csv", options=LogOptions(progress=False))
    parts = []
    for run in table.runs:
        first, second = split_in_time(table.one_run(run))
        parts.append(
            given_lengths(
                first,
                second,
                seconds="time/step_seconds",
                rollout=Rollout(groups_per_step=2, group_size=4),
            )
        )
    joined = GivenLengths(
        predicted=np.concatenate([p.predicted for p in parts]),
        measured=np.concatenate([p.measured for p in parts]),
        low=np.concatenate([p.low for p in parts]),
        high=np.concatenate([p.high for p in parts]),
        n_fitted=sum(p.n_fitted for p in parts),
    )
    row = _given_row(f"TRL, {len(parts)} runs", "step", "second half of each", joined)
    found.tables["given_trl"] = pd.DataFrame([row])


def _gsm8k(found: Study, folder: Path, seed: int) -> None:
    """Predict the runs of an ablation from its baseline: same batch size, then another."""
    steps = pd.read_csv(folder / "step_stats.csv")
    groups = pd.read_csv(folder / "groups.csv")
    count = groups.groupby(["run", "step"], as_index=False)["n"].sum()
    steps = steps[steps["run"] != "run"]
    steps = steps.assign(step=steps["step"].astype(float).astype(int))
    steps = steps.merge(count, on=["run", "step"])
    frame = steps.rename(
        columns={
            "seq_len_mean": "trained/mean_completion_tokens",
            "t_rollout": "time/rollout_seconds",
            "t_train": "time/update_seconds",
            "n": "trained/responses",
        }
    )
    names = ["trained/mean_completion_tokens", "time/rollout_seconds", "time/update_seconds"]
    frame[names] = frame[names].astype(float)
    base = frame[frame["run"] == "baseline"]
    other_batch = frame["run"].str.startswith(("group_size", "num_groups"))
    left_out = other_batch | frame["run"].str.startswith(("mu_", "baseline"))
    rows = []
    for kind, chosen in (("same batch", ~left_out), ("batch × ½ or × 2", other_batch)):
        judged = frame[chosen]
        for seconds in names[1:]:
            one = given_lengths(
                base, judged, seconds=seconds, rollout=Rollout(groups_per_step=8, group_size=8)
            )
            what = seconds.split("/")[1].split("_")[0]
            n_runs = judged["run"].nunique()
            rows.append(_given_row("GSM8K ablation", what, f"{n_runs} runs, {kind}", one))
    found.tables["given_gsm8k"] = pd.DataFrame(rows)


def _censoring(found: Study, folder: Path, seed: int) -> None:
    """Cut Qwen3-1.7B's GPQA answers again at 8k and 16k."""
    records = records_of(pd.read_csv(folder / "gpqa_n10_lengths.csv"))
    rows = []
    for cut in (8192, 16_384):
        one = pooled(recensor(records, cut_tokens=cut, full_cap=GPQA_CAP))
        share = float(cut_again(records, cut)["truncated"].astype(float).mean())
        for name in ("observed", "naive", "none", "every", "point"):
            figures = getattr(one, name)
            rows.append(
                {
                    "cut_tokens": cut,
                    "cut_share": share,
                    "case": name,
                    "mean_tokens": figures.mean_tokens,
                    "mean_se": figures.mean_se,
                    "truncated_share": figures.truncated_share,
                    "truncated_se": figures.truncated_se,
                    "loop_share": one.loop_share,
                }
            )
    found.tables["censoring"] = pd.DataFrame(rows)


def _published(found: Study, folder: Path, seed: int) -> None:
    """Predict every published row with the committed parameters; the seed run's pairs."""
    parameters = read_baselines()
    rows = []
    for system in systems():
        for row in rows_of(system, parameters[system.name]):
            rows.append(
                {
                    "system": row.system,
                    "source": system.source,
                    "setting": row.setting,
                    "published": row.published,
                    "unit": row.unit,
                    "low": row.low,
                    "high": row.high,
                    "baseline": row.baseline,
                    "counted": row.counted,
                    "inside": row.inside,
                    "miss_share": row.miss_share,
                    "why": row.why if row.inside is False else "",
                }
            )
    found.tables["published"] = pd.DataFrame(rows)
    found.tables["not_computed"] = pd.DataFrame(NOT_COMPUTED, columns=["row", "why"])
    found.tables["seed_pairs"] = seed_pairs()


PARTS: dict[str, Callable[[Study, Path, int], None]] = {
    "vllm_traces": _replay,
    "openrs_vllm_wave_curves": _waves,
    "decode_tables": _laws,
    "verl_grpo_qwen3_8b": _backtests,
    "verl_official_logs": _verl_logs,
    "trl_grpo_logs": _trl_logs,
    "gsm8k_grpo_ablation": _gsm8k,
    "cot_loop_qwen3_1p7b": _censoring,
    "": _published,
}
"""Folder of the real data -> the part that reads it; the last needs none."""
