"""The fidelity report: every comparison with a real system beside its error."""

from collections.abc import Mapping, Sequence

import pandas as pd

from dapolab.report.document import Block, Document, Section, Table
from dapolab.report.fidelity_figures import (
    backtest_figure,
    censoring_figure,
    curves_figure,
    latency_figure,
    seed_figure,
)
from dapolab.report.fidelity_published import published_blocks, published_sentence
from dapolab.stats import Estimate

Tables = Mapping[str, pd.DataFrame]
_CASES = {
    "observed": "observed, full record",
    "naive": "mean of the cut lengths",
    "none": "bound: no cut answer loops",
    "every": "bound: all cut answers loop",
    "point": "point: loop share from outside",
}


def fidelity_document(
    tables: Tables, *, missing: Sequence[str] = (), provenance: Mapping[str, str] | None = None
) -> Document:
    """Return the report of the tables that there are (``dapolab.fidelity.study``).

    Parameters
    ----------
    missing : parts whose data are absent, one line each.
    """
    sections = [
        Section("Serving traces, request by request", _replay(tables)),
        Section("Completion curves of real waves", _waves(tables)),
        Section("From one run's log another run", _backtests(tables)),
        Section("Seconds from lengths alone", _given(tables)),
        Section("Published results", published_blocks(tables)),
        Section("The seed run", _seed(tables)),
        Section("What a short cap still tells", _censoring(tables)),
        Section("Decode laws on measured tables", _laws(tables)),
    ]
    notes = [f"not run: {line}" for line in missing]
    return Document(
        title="Predictions against real systems",
        lead=_lead(tables),
        sections=tuple(section for section in sections if section.blocks),
        notes=tuple(notes),
        provenance=provenance or {},
    )


def _lead(tables: Tables) -> str:
    said = []
    if "replay" in tables:
        rows = tables["replay"]
        llama = rows[rows["trace"].str.startswith("Llama")].set_index("case")["latency_share"]
        other = rows[~rows["trace"].str.startswith("Llama")].set_index("case")["latency_share"]
        said.append(
            "A real vLLM server's 300 requests come back with a mean latency error of "
            f"**{llama['fitted on even, judged on odd']:.1%}** (odd requests) and "
            f"**{llama['fitted on first half, judged on second']:.1%}** (second half) after one "
            f"scalar fitted on the others; {llama['uncalibrated, all']:.0%} without it."
            + _other_model(other)
        )
    if "backtests" in tables:
        rows = tables["backtests"]
        dapo = rows[rows["pair"].str.contains("DAPO")].set_index("quantity")
        said.append(
            "From a GRPO run's log the cost of switching dynamic sampling on: "
            f"{_beside(dapo, 'waves', 2)} waves, {_beside(dapo, 'rollout seconds', 1)} s of "
            f"rollout, {_beside(dapo, 'step seconds', 1)} s a step (predicted against measured). "
            f"{int(rows['covered'].sum())} of {len(rows)} nominal 90 % intervals hold (quantities "
            "of three runs, not independent)."
        )
    if "published" in tables:
        said.append(published_sentence(tables["published"]))
    return " ".join(said) or "None of the real data were found."


def _other_model(shares: pd.Series) -> str:
    """Return the errors of the trace whose law stands in for another GPU's, which set no target."""
    if len(shares) == 0:
        return ""
    return (
        " For a mixture of experts, on the law of another GPU, these are "
        f"{shares['fitted on even, judged on odd']:.1%}, "
        f"{shares['fitted on first half, judged on second']:.1%} and "
        f"{shares['uncalibrated, all']:.0%}."
    )


def _beside(rows: pd.DataFrame, quantity: str, decimals: int) -> str:
    row = rows.loc[quantity]
    return f"**{row['predicted']:.{decimals}f}** against {row['measured']:.{decimals}f}"


def _percent(value: float) -> str:
    return f"{value:+.1%}".replace("-", "−")


def _replay(tables: Tables) -> tuple[Block, ...]:
    if "replay" not in tables:
        return ()
    rows = tables["replay"]
    frame = pd.DataFrame(
        {
            "trace": rows["trace"],
            "case": rows["case"],
            "scalar": [f"{s:.3f}" for s in rows["scalar"]],
            "mean |error| of a request": [f"{v:.1%}" for v in rows["latency_share"]],
            "mean latency": [_percent(v) for v in rows["mean_latency_share"]],
            "P99": [_percent(v) for v in rows["p99_latency_share"]],
            "first token": [_percent(v) for v in rows["first_token_share"]],
            "makespan": [_percent(v) for v in rows["makespan_share"]],
        }
    )
    return (
        "LLMServingSim 2.0's vLLM 0.19 traces on RTX PRO 6000: 300 requests with their arrivals, "
        "128 slots, 2,048 tokens an iteration. A law is the time of one iteration, "
        "t = a + b(n) + c·K for n answers with K tokens of context together; the scalar multiplies "
        "it. The Llama law is composed from a layer profile of the same GPU, so without the "
        "scalar nothing of the running server is in it. For the "
        "mixture of experts (two data-parallel replicas in lockstep, least-loaded dispatch "
        "assumed) there is no profile; the law of another GPU stands in, and no target is set.",
        latency_figure(tables["replay_points"]),
        Table(frame, "Errors are predicted over measured less one; makespan is of all requests."),
    )


def _waves(tables: Tables) -> tuple[Block, ...]:
    if "waves" not in tables:
        return ()
    rows, law = tables["waves"], tables["waves_law"].iloc[0]
    grouped = rows.groupby(["n", "percent"])
    frame = pd.DataFrame(
        [
            {
                "requests": int(str(n)),
                "time": "wall" if percent == 100 else f"t{percent}",
                "waves": len(part),
                "mean error": _percent(float(part["error_share"].mean())),
                "mean |error|": f"{part['error_share'].abs().mean():.1%}",
                "measured, share of wall": f"{part['measured_share'].mean():.2f}",
                "predicted": f"{part['predicted_share'].mean():.2f}",
            }
            for (n, percent), part in grouped
        ]
    )
    return (
        "open-rs evaluations (vLLM 0.7.2, a 1.5B model on one A40-class GPU): every request's "
        "length and completion time. Two numbers are fitted on the even waves: a scalar on bytes "
        f"over bandwidth, which comes out at **{law['scale']:.2f}**, and {law['each_us']:.0f} µs a "
        "response for that engine's scheduler and sampler. The odd waves are judged. For waves of "
        "500 on 256 slots the order of submission is not known and is drawn at random.",
        curves_figure(tables["wave_curves"]),
        Table(frame, "Times at which 50, 90, 95, 99 and 100 % of a wave's requests are done."),
    )


def _backtests(tables: Tables) -> tuple[Block, ...]:
    if "backtests" not in tables:
        return ()
    rows = tables["backtests"]
    frame = pd.DataFrame(
        {
            "pair": rows["pair"],
            "mean of a step": rows["quantity"],
            "predicted": [
                Estimate(row["predicted"], row["low"], row["high"], 40, row["unit"])
                for _, row in rows.iterrows()
            ],
            "measured": rows["measured"],
            "error": [_percent(v) for v in rows["error_share"]],
            "holds": ["yes" if c else "no" for c in rows["covered"]],
            "of single steps": [
                "" if pd.isna(v) else f"{v:.0%} of {n}"
                for v, n in zip(rows["step_coverage"], rows["n_steps"], strict=True)
            ],
        }
    )
    frame["predicted"] = frame["predicted"].astype(object)
    sensitivity = tables["sensitivity"]
    prior = pd.DataFrame(
        {
            "prompt share (prior)": [f"{v:.2f}" for v in sensitivity["prompt_share"]],
            "median tokens": sensitivity["median_tokens"].round(),
            "sigma": [f"{v:.3f}" for v in sensitivity["sigma"]],
            "mixed groups": [f"{v:.1%}" for v in sensitivity["mixed_share"]],
            "truncated": [f"{v:.2%}" for v in sensitivity["truncated_share"]],
        }
    )
    lost = "; ".join(
        f"{row.parameter} ({row.reason})" for row in tables["not_identified"].itertuples()
    )
    return (
        "Qwen3-8B on 4 × H20, 20 GRPO steps of 16 × 8 on verl. Law, learner and workload come from "
        "that log alone (its trainer polls every 2 s, so rollout times are intervals; c is fixed "
        "by KV bytes over bandwidth). The DAPO run differs in the filter, in overlong shaping and "
        "in having no reference pass. Its rollouts took 1.93 times as long; the filter's waves "
        "alone would say 2.1.",
        backtest_figure(rows),
        Table(frame, "Predicted with the 90 % interval of one run; error is over measured."),
        "Rollouts of the later runs come out shorter than predicted by 6 to 12 %: their longest "
        "answers were shorter than those of the run that was calibrated on, in which 7 of 20 steps "
        "met the cap. The intervals are wide enough to hold it, the means are not unbiased.",
        Table(prior, "Mean and longest response do not tell the prompt share; what it changes."),
        f"Not identified by the log: {lost}.",
    )


def _given(tables: Tables) -> tuple[Block, ...]:
    found = [tables[name] for name in ("given_verl", "given_trl", "given_gsm8k") if name in tables]
    if not found:
        return ()
    rows = pd.concat(found, ignore_index=True)
    frame = pd.DataFrame(
        {
            "log": rows["log"],
            "time": rows["time"],
            "judged": rows["case"],
            "steps": rows["n"],
            "mean |error| of a step": [f"{v:.1%}" for v in rows["error_share"]],
            "error of the sum": [_percent(v) for v in rows["total_share"]],
            "in 90 % interval": [f"{v:.0%}" for v in rows["coverage"]],
        }
    )
    return (
        "A linear law of a constant, the longest response and the tokens, fitted on some steps, "
        "predicts the seconds of others from their own lengths. It carries within a run (the "
        "second PPO log gets slower for reasons that no length shows), and from run to run at "
        "the same batch "
        "size. It does not carry to another batch size: with one size in the data, what is paid "
        "once and what is paid per response cannot be told apart. That is why calibrate quotes "
        "only what is identified.",
        Table(frame, "Half of each run is judged by the other half; the ablation by its baseline."),
    )


def _seed(tables: Tables) -> tuple[Block, ...]:
    if "seed_pairs" not in tables:
        return ()
    rows = tables["seed_pairs"]
    frame = pd.DataFrame(
        {
            "lengths": rows["lengths"],
            "mixed share q": [f"{q:.1f}" for q in rows["q"]],
            "waves": [f"{v:.2f}" for v in rows["waves"]],
            "tokens a step": rows["tokens_per_step"].round(-2),
            "tokens/s, one answer": [f"{v:.1f}" for v in rows["tok_per_s_response"]],
            "tokens/s, all": rows["tok_per_s_total"].round(),
        }
    )
    return (
        "agentic-rl-lab 06-dapo: 35 steps in 4.17 h at B = 4, G = 8, M = 2, cap 8,192. The law of "
        "the hosted service is unknown, and so is q: one number for two unknowns.",
        seed_figure(rows),
        Table(frame, "Pairs that give 4.17 h, the whole step taken as rollout."),
    )


def _censoring(tables: Tables) -> tuple[Block, ...]:
    if "censoring" not in tables:
        return ()
    rows = tables["censoring"]
    frame = pd.DataFrame(
        {
            "cut at": [f"{c:,}" for c in rows["cut_tokens"]],
            "read as": [_CASES[c] for c in rows["case"]],
            "mean tokens at 30,000 (± 1 SE)": [
                f"{m:,.0f} ± {s:,.0f}"
                for m, s in zip(rows["mean_tokens"], rows["mean_se"], strict=True)
            ],
            "truncated at 30,000": [
                f"{t:.1%} ± {s:.1%}"
                for t, s in zip(rows["truncated_share"], rows["truncated_se"], strict=True)
            ],
        }
    )
    shares = rows.groupby("cut_tokens")["cut_share"].first()
    said = ", ".join(f"{share:.0%} of the answers at {cut:,}" for cut, share in shares.items())
    return (
        "Qwen3-1.7B on GPQA, 48 prompts × 10, cap 30,000, cut again at lower caps; every prompt is "
        f"predicted from fits that did not see it (three folds). The cuts hide {said}. Beyond the "
        "cut a loop and a long tail look alike, so the data give bounds; the loop share of the "
        "fitted prompts at the full cap is the number from outside. At 8,192 the lower bound is "
        "itself an extrapolation of a lognormal, and is too high by a standard error; the point "
        "adds loops to a tail that is already too long. At 16,384 the bounds hold the truth.",
        censoring_figure(rows),
        Table(frame, "Means over held-out prompts; the cut lengths' own mean is what is logged."),
    )


def _laws(tables: Tables) -> tuple[Block, ...]:
    if "laws" not in tables:
        return ()
    rows = tables["laws"]
    frame = pd.DataFrame(
        {
            "model": rows["model"],
            "GPU": rows["gpu"].str.upper() + " × " + rows["tp"].astype(str),
            "a, ms": [f"{v:.2f}" for v in rows["a_ms"]],
            "b a response": rows["b"],
            "c, ns a token": [f"{v:.1f}" for v in rows["c_ns"]],
            "mean |error|": [f"{v:.1%}" for v in rows["error_share"]],
            "with a straight b": [f"{v:.1%}" for v in rows["straight_share"]],
        }
    )
    return (
        "NVIDIA AIConfigurator's measured operator tables (88 points of batch × context each), "
        "fitted by the same function as everything above. A concave b(n) is used where it predicts "
        "left-out points better by a fifth: for the mixture of experts alone.",
        Table(frame, "In-sample error of t = a + b(n) + c·K."),
    )
