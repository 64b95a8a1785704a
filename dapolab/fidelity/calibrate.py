"""One entry to the calibrations: what a file holds decides, and all answers have one shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.errors import ConfigError
from dapolab.fidelity.law import LawFit, fit_law
from dapolab.fidelity.pieces import COLUMNS
from dapolab.fidelity.requests import RequestTrace, fit_requests, with_values
from dapolab.fidelity.steps import LearnerFit, calibrate_steps, polled_seconds
from dapolab.fidelity.workload import StepWorkload, workload_of_steps
from dapolab.scenario import Hardware, Learner, Rollout
from dapolab.sim.hardware import Law
from dapolab.stats import Estimate
from dapolab.workload.fit import law_toml

SHORT_NAMES = {
    "a": "a_s",
    "b": "b_s",
    "c": "c_s",
    "s": "prefill_s",
    "q": "prefill_context_s",
    "overhead": "call_overhead_s",
}


@dataclass(frozen=True, eq=False)
class Calibration:
    """What a file tells of a system.

    Attributes
    ----------
    kind : "iterations", "requests" or "steps".
    law : the law; ``estimates`` its identified parameters (the learner's too), with intervals.
    covariance_names, covariance_KK : of the law's free coefficients, in seconds².
    residuals : name -> share or count.
    fixed : parameters held by hand or by physics.
    not_identified : (name, reason).
    learner, step_workload : from a step log, where it tells; None otherwise.
    """

    kind: str
    law: Law
    call_overhead_s: float
    estimates: Mapping[str, Estimate]
    covariance_names: tuple[str, ...]
    covariance_KK: NDArray[np.float64]
    residuals: Mapping[str, float]
    fixed: Mapping[str, float]
    not_identified: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    fit: LawFit | None = None
    learner: LearnerFit | None = None
    step_workload: StepWorkload | None = None

    def to_json(self) -> dict[str, Any]:
        """Return DESIGN.md §8's body of ``calibrate``; what is not identified has no number."""
        body: dict[str, Any] = {
            "kind": self.kind,
            "law": law_table(self.law),
            "parameters": {name: e.to_json() for name, e in self.estimates.items()},
            "fixed": dict(self.fixed),
            "covariance": {
                "names": list(self.covariance_names),
                "matrix": self.covariance_KK.tolist(),
            },
            "residuals": {k: v for k, v in self.residuals.items() if np.isfinite(v)},
            "not_identified": [{"name": n, "reason": why} for n, why in self.not_identified],
            "notes": list(self.notes),
        }
        if self.learner is not None:
            body["learner"] = self.learner.learner.model_dump(exclude_defaults=True)
        if self.step_workload is not None:
            found = self.step_workload
            body["workload"] = found.workload.model_dump(mode="json", exclude_defaults=True)
            body["workload_sensitivity"] = found.sensitivity.to_dict("records")
        return body


def short_fixed(pairs: Mapping[str, float]) -> dict[str, float]:
    """Return fixed parameters by their full names (``c`` stands for ``c_s``)."""
    return {SHORT_NAMES.get(name, name): value for name, value in pairs.items()}


def is_iteration_trace(columns: Sequence[str]) -> bool:
    """Whether a table is a trace of iterations (or of sums of them)."""
    return {"seconds", "n"} <= set(columns)


def of_iterations(
    table: pd.DataFrame,
    *,
    fixed: Mapping[str, float],
    physics: Law | None,
    polled_s: float = 0.0,
    source: str = "",
) -> Calibration:
    """Calibrate from a trace of iterations (``dapolab.fidelity.pieces.COLUMNS``)."""
    pieces = table[[name for name in COLUMNS if name in table]].copy()
    if polled_s > 0:
        pieces["seconds_low"] = np.maximum(pieces["seconds"] - polled_s, 1e-3 * pieces["seconds"])
    fit = fit_law(pieces, fixed=fixed, physics=physics, source=source)
    return _of_fit("iterations", fit)


def of_requests(
    trace: RequestTrace, *, fixed: Mapping[str, float], start: Law, physics: bool, source: str = ""
) -> Calibration:
    """Calibrate from a trace of requests: the engine is run on its arrivals."""
    extra = [name for name in fixed if name not in ("a_s", "b_s", "c_s", "prefill_s")]
    if extra:
        raise ConfigError(f"--fix {extra[0]}: a request trace fits a, b, c and s alone")
    begin = with_values(start, fixed)
    fit = fit_requests(trace, begin, fixed=tuple(fixed), source=source, physics=physics)
    error = fit.error
    return Calibration(
        kind="requests",
        law=fit.law,
        call_overhead_s=0.0,
        estimates=fit.estimates,
        covariance_names=fit.names,
        covariance_KK=fit.covariance_KK,
        residuals={
            "mean_abs_share": error.latency_share,
            "makespan_share": error.makespan_share,
            "mean_latency_share": error.mean_latency_share,
            "p99_latency_share": error.p99_latency_share,
            "first_token_share": error.first_token_share,
            "n": float(error.n),
        },
        fixed=dict(fixed),
        not_identified=fit.not_identified,
    )


def of_steps(
    frame: pd.DataFrame,
    *,
    hardware: Hardware,
    rollout: Rollout,
    fixed: Mapping[str, float],
    physics: Law | None,
    polled_s: float = 0.0,
    updates_per_step: int = 1,
    draws: bool = True,
    source: str = "",
) -> Calibration:
    """Calibrate law, learner and workload from the step table of one run.

    With ``physics`` (or c among ``fixed``) the context term is taken from there: lengths and
    tokens of a step log move together, so c is never told apart from b. ``polled_s`` 0: as the log
    tells, where it does.
    """
    notes: list[str] = []
    found: StepWorkload | None = None
    ratio: float | None = None
    try:
        found = workload_of_steps(frame, rollout=rollout, source=source, draws=draws)
        ratio = float(found.sensitivity["square_ratio"].iloc[1])
    except ConfigError as error:
        notes.append(f"no workload: {error}")
    held = dict(fixed)
    if physics is not None:
        held.setdefault("c_s", physics.c_s)
    if "c_s" in held and ratio is None:
        notes.append("c has no effect here: without a workload the context sum is not known")
        del held["c_s"]
    done = calibrate_steps(
        frame,
        hardware=hardware,
        rollout=rollout,
        poll_s=polled_s or polled_seconds(frame),
        fixed=held,
        physics=physics,
        square_ratio=ratio if "c_s" in held else None,
        updates_per_step=updates_per_step,
        source=source,
    )
    if done.n_one_wave < done.n_steps:
        notes.append(
            f"{done.n_steps - done.n_one_wave} of {done.n_steps} steps had several waves: their "
            "lengths cover kept groups alone, so the law and the workload come from the others"
        )
    base = _of_fit("steps", done.rollout)
    learner = done.learner
    return replace(
        base,
        estimates={**base.estimates, **learner.estimates},
        not_identified=(*base.not_identified, *learner.not_identified),
        notes=(*notes, *learner.notes),
        learner=learner,
        step_workload=found,
    )


def _of_fit(kind: str, fit: LawFit) -> Calibration:
    return Calibration(
        kind=kind,
        law=fit.law,
        call_overhead_s=fit.call_overhead_s,
        estimates=fit.estimates,
        covariance_names=fit.names,
        covariance_KK=fit.covariance_KK,
        residuals=fit.residuals,
        fixed=fit.fixed,
        not_identified=fit.not_identified,
        fit=fit,
    )


def law_table(law: Law) -> dict[str, Any]:
    """Return the law as a ``[hardware.law]`` table (affine, or piecewise where b bends)."""
    table: dict[str, Any] = {"kind": "affine", "a_s": law.a_s}
    if len(law.n_knots) > 2:
        table |= {
            "kind": "piecewise",
            "n_knots": list(law.n_knots),
            "b_knots_s": list(law.b_knots_s),
        }
    else:
        table["b_s"] = law.b_knots_s[-1] / law.n_knots[-1]
    table["c_s"] = law.c_s
    table["prefill_s"] = law.prefill_s
    table["prefill_slack_s"] = law.prefill_slack_s
    table["prefill_context_s"] = law.prefill_context_s
    table["source"] = law.source
    return table


def to_toml(found: Calibration, *, name: str) -> str:
    """Return the law, and the learner where there is one, as tables of a scenario."""
    lines = [
        f"# Calibrated from {name} ({found.kind}). 99 % intervals beside the values.",
        f"# Mean absolute error {found.residuals['mean_abs_share']:.2%} of the time, in sample.",
    ]
    lines += [f"# Not identified: {n} ({why}); 0" for n, why in found.not_identified]
    lines += [f"# Taken from physics or by hand: {n} = {v:.6g}" for n, v in found.fixed.items()]
    lines += [f"# {note}" for note in found.notes]
    lines += ["", "[hardware.law]"]
    for key, value in law_table(found.law).items():
        lines.append(f"{key} = {_toml(value)}{_interval(found.estimates.get(key))}")
    if found.call_overhead_s:
        lines += ["", "[hardware]", f"call_overhead_s = {_toml(found.call_overhead_s)}"]
    if found.learner is not None:
        lines += ["", "[learner]"]
        values: Learner = found.learner.learner
        for key, value in values.model_dump(exclude_defaults=True).items():
            lines.append(f"{key} = {_toml(value)}{_interval(found.estimates.get(key))}")
    return "\n".join(lines) + "\n"


def workload_toml(found: StepWorkload) -> str:
    """Return the workload file of a step log, with what the prior does to it as comments."""
    figures = found.figures
    comments = [
        f"Step figures only: all-right {figures.all_right_share:.3g}, all-wrong "
        f"{figures.all_wrong_share:.3g}, mean length {figures.mean_tokens:.4g}, mean over steps of "
        f"the longest of {figures.groups_per_step} × {figures.group_size} responses "
        f"{figures.max_tokens:.4g}, cap {figures.cap_tokens}.",
        "prompt_share is a prior: mean and longest response do not identify it.",
    ]
    comments += [
        f"prompt_share {row.prompt_share:.2f}: median {row.median_tokens:.4g}, sigma "
        f"{row.sigma:.3g}, truncated {row.truncated_share:.2%}"
        for row in found.sensitivity.itertuples()
    ]
    return law_toml(found.workload, comments=comments)


def _toml(value: object) -> str:
    if isinstance(value, float):
        return repr(float(f"{value:.6g}"))
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


def _interval(e: Estimate | None) -> str:
    if e is None or e.low is None or e.high is None:
        return ""
    return f"  # {e.low:.4g} … {e.high:.4g} {e.unit}"


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV, JSONL or Parquet table.

    Raises
    ------
    ConfigError
        The file is missing, empty, or no such table.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        elif path.suffix in (".jsonl", ".json"):
            table = pd.read_json(path, lines=True)
        else:
            table = pd.read_csv(path, comment="#")
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a table: {str(error).splitlines()[0]}") from None
    if table.empty:
        raise ConfigError(f"{path}: no rows in it")
    return table
