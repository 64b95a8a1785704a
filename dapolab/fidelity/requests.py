"""Traces of single requests: read them, replay their arrivals through the engine, fit a law.

A request trace tells when each request was submitted and when its last token came. The engine is
run on the same arrivals and lengths, so queueing, batching and prefill are the simulator's; a law
is right when the latencies agree.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from dapolab.errors import ConfigError
from dapolab.scenario import Hardware
from dapolab.sim.hardware import Law
from dapolab.sim.replica import Engine
from dapolab.stats import LEVEL, Estimate

Floats = NDArray[np.float64]

ALIASES: dict[str, tuple[str, ...]] = {
    "prompt_tokens": ("prompt_tokens", "input_toks", "input_tokens", "n_prompt_tokens"),
    "n_tokens": ("n_tokens", "output_toks", "output_tokens", "completion_tokens"),
    "submit_s": ("submit_s", "queued_ts", "submit", "arrival_s", "arrival_time"),
    "first_token_s": ("first_token_s", "first_token_ts"),
    "end_s": ("end_s", "last_token_ts", "end", "finish_s"),
}
_OPTIONAL = ("first_token_s",)
_BLOCKS, _ROUNDS = 40, 12
_TRIED = ("a_s", "b_s", "c_s", "prefill_s")


@dataclass(frozen=True, eq=False)
class RequestTrace:
    """Requests in order of submission, times in seconds from the first submission.

    ``frame`` has the keys of ``ALIASES`` (first token NaN where unknown); ``hardware`` is what the
    trace's own settings say of the engine.
    """

    frame: pd.DataFrame
    hardware: Hardware
    name: str = ""

    @property
    def latency_s(self) -> Floats:
        """Seconds from submission to the last token."""
        return (self.frame["end_s"] - self.frame["submit_s"]).to_numpy(float)


def is_request_trace(columns: Sequence[str]) -> bool:
    """Whether a table has what a request trace needs."""
    needed = [names for role, names in ALIASES.items() if role not in _OPTIONAL]
    return all(any(name in columns for name in names) for names in needed)


def request_trace(
    table: pd.DataFrame, *, hardware: Hardware | None = None, name: str = ""
) -> RequestTrace:
    """Return the trace of a table with any of the known column names.

    Raises
    ------
    ConfigError
        A column is missing, a count or time that cannot be.
    """
    found: dict[str, Floats] = {}
    for role, names in ALIASES.items():
        column = next((n for n in names if n in table), None)
        if column is not None:
            found[role] = pd.to_numeric(table[column], errors="coerce").to_numpy(float)
        elif role not in _OPTIONAL:
            raise ConfigError(f"no column for {role}: one of {', '.join(names)}")
    found.setdefault("first_token_s", np.full(len(table), np.nan))
    frame = pd.DataFrame(found)
    needed = frame.drop(columns=list(_OPTIONAL))
    if not np.isfinite(needed.to_numpy()).all():
        row = int(np.flatnonzero(~np.isfinite(needed.to_numpy()).all(axis=1))[0])
        raise ConfigError(f"request {row} (from 0) lacks a number; leave unfinished requests out")
    if (frame["n_tokens"] < 1).any() or (frame["prompt_tokens"] < 0).any():
        raise ConfigError("a request needs at least one output token and no negative prompt")
    if (frame["end_s"] <= frame["submit_s"]).any():
        raise ConfigError("a request ends before it is submitted; are the clocks the same?")
    frame = frame.sort_values("submit_s", kind="stable").reset_index(drop=True)
    start = float(frame["submit_s"].iloc[0])
    for column in ("submit_s", "first_token_s", "end_s"):
        frame[column] -= start
    return RequestTrace(frame, hardware or Hardware(prefix_cache=False), name)


def engine_of_meta(path: Path) -> dict[str, object]:
    """Return hardware settings of the ``engine_kwargs`` in a trace's ``meta.json`` (vLLM names)."""
    if not path.is_file():
        return {}
    try:
        kwargs = json.loads(path.read_text(encoding="utf-8")).get("engine_kwargs", {})
    except (ValueError, AttributeError):
        raise ConfigError(f"{path}: not a JSON object with engine_kwargs") from None
    found: dict[str, object] = {}
    for key, name in (
        ("max_num_seqs", "slots"),
        ("max_num_batched_tokens", "token_budget"),
        ("data_parallel_size", "replicas"),
    ):
        if isinstance(kwargs.get(key), int):
            found[name] = kwargs[key]
    if found.get("replicas", 1) != 1:
        lockstep = bool(kwargs.get("enable_expert_parallel"))
        found |= {"lockstep": lockstep, "dispatch": "least_loaded", "dispatch_by": "response"}
    return found


def scaled(law: Law, scale: float) -> Law:
    """Return the law with every term times ``scale``."""
    return replace(
        law,
        a_s=law.a_s * scale,
        b_knots_s=tuple(b * scale for b in law.b_knots_s),
        c_s=law.c_s * scale,
        prefill_s=law.prefill_s * scale,
        prefill_slack_s=law.prefill_slack_s * scale,
        prefill_context_s=law.prefill_context_s * scale,
    )


def replay(trace: RequestTrace, law: Law) -> pd.DataFrame:
    """Run the trace's arrivals through the engine; columns ``first_token_s, end_s``, same rows."""
    frame = trace.frame
    engine = Engine(trace.hardware, law, n_expected=len(frame))
    engine.submit(
        at_s=frame["submit_s"].to_numpy(float),
        group_P=np.arange(len(frame)),
        prompt_tokens_P=frame["prompt_tokens"].to_numpy(np.int64),
        n_tokens_PG=frame["n_tokens"].to_numpy(np.int64)[:, None],
    )
    engine.drain()
    facts = engine.facts()
    return pd.DataFrame({"first_token_s": facts.first_token_s, "end_s": facts.end_s})


@dataclass(frozen=True)
class LatencyError:
    """How far a replay is from the trace, as shares of the measured values.

    ``latency_share`` is the mean over requests of |predicted/measured − 1|; the others are the
    relative errors of the makespan, the mean latency, its 99th percentile and the mean time to
    the first token (NaN where the trace does not tell it).
    """

    latency_share: float
    makespan_share: float
    mean_latency_share: float
    p99_latency_share: float
    first_token_share: float
    n: int


def latency_error(
    trace: RequestTrace, law: Law, *, rows: NDArray[np.int64] | None = None
) -> LatencyError:
    """Replay the whole trace and judge the latencies of ``rows`` (all of them without)."""
    at = np.arange(len(trace.frame)) if rows is None else rows
    found, frame = replay(trace, law), trace.frame
    submit = frame["submit_s"].to_numpy(float)[at]
    measured = trace.latency_s[at]
    predicted = found["end_s"].to_numpy(float)[at] - submit
    first = frame["first_token_s"].to_numpy(float)[at] - submit
    predicted_first = found["first_token_s"].to_numpy(float)[at] - submit
    return LatencyError(
        latency_share=float(np.abs(predicted / measured - 1).mean()),
        makespan_share=float(found["end_s"].max() / frame["end_s"].max() - 1),
        mean_latency_share=float(predicted.mean() / measured.mean() - 1),
        p99_latency_share=float(np.quantile(predicted, 0.99) / np.quantile(measured, 0.99) - 1),
        first_token_share=float(predicted_first.mean() / first.mean() - 1),
        n=len(at),
    )


def fit_scale(trace: RequestTrace, law: Law, *, rows: NDArray[np.int64] | None = None) -> Estimate:
    """Return the one scalar on every term that fits the latencies of ``rows`` best.

    Least squares of log latency; the interval takes blocks of consecutive requests as the units,
    because neighbours share iterations.
    """
    fit = _least_squares(trace, law, ("scale",), rows)
    value, half = float(fit.theta_K[0]), float(fit.half_K[0])
    return Estimate(value, max(value - half, 0.0), value + half, fit.n, "ratio")


@dataclass(frozen=True, eq=False)
class RequestFit:
    """A law fitted to request latencies: estimates, what was not identified, the law itself."""

    law: Law
    estimates: Mapping[str, Estimate]
    names: tuple[str, ...]
    covariance_KK: Floats
    not_identified: tuple[tuple[str, str], ...]
    error: LatencyError


def fit_requests(
    trace: RequestTrace,
    start: Law,
    *,
    fixed: Sequence[str] = (),
    source: str = "",
    physics: bool = False,
) -> RequestFit:
    """Fit a, b, c and the prefill rate to the latencies of a trace.

    Parameters
    ----------
    start : where to begin; also what a parameter keeps that is ``fixed`` or, with ``physics``,
        not identified (without: 0).
    """
    free = [name for name in _TRIED if name not in fixed]
    law, missing = start, []
    while True:
        fit = _least_squares(trace, law, tuple(free), None)
        weak = [
            name
            for name, value, half in zip(free, fit.theta_K, fit.half_K, strict=True)
            if value - half <= 0
        ]
        if not weak or len(free) == 1:
            break
        lost = max(weak, key=_TRIED.index)
        place = free.index(lost)
        missing.append(
            (lost, f"{fit.theta_K[place]:.3g} ± {fit.half_K[place]:.2g} does not differ from 0")
        )
        law = with_values(law, {lost: _value(start, lost) if physics else 0.0})
        free.remove(lost)
    law = replace(
        with_values(law, dict(zip(free, fit.theta_K.tolist(), strict=True))), source=source
    )
    estimates = {
        name: Estimate(
            value, value - half, value + half, fit.n, "s" if name == "a_s" else "s/token"
        )
        for name, value, half in zip(free, fit.theta_K.tolist(), fit.half_K.tolist(), strict=True)
    }
    missing.append(("prefill_context_s", "prefill is fitted by tokens alone in a request trace"))
    return RequestFit(
        law, estimates, tuple(free), fit.covariance_KK, tuple(missing), latency_error(trace, law)
    )


@dataclass(frozen=True, eq=False)
class _Fit:
    theta_K: Floats
    covariance_KK: Floats
    half_K: Floats
    n: int


def _least_squares(
    trace: RequestTrace, law: Law, names: tuple[str, ...], rows: NDArray[np.int64] | None
) -> _Fit:
    at = np.arange(len(trace.frame)) if rows is None else rows
    measured = np.log(trace.latency_s[at])
    submit = trace.frame["submit_s"].to_numpy(float)
    begin = np.array([_value(law, name) for name in names])

    def miss(log_theta: Floats) -> Floats:
        theta = begin * np.exp(log_theta)
        tried = with_values(law, dict(zip(names, theta.tolist(), strict=True)))
        latency = replay(trace, tried)["end_s"].to_numpy(float) - submit
        return np.asarray(np.log(latency[at]) - measured)

    log_theta, slopes = _gauss_newton(miss, len(names))
    missed = miss(log_theta)
    theta = begin * np.exp(log_theta)
    block = np.arange(len(at)) * min(len(at), _BLOCKS) // len(at)
    n_blocks = int(block.max()) + 1
    score = np.zeros((n_blocks, len(names)))
    np.add.at(score, block, slopes * missed[:, None])
    bread = np.linalg.pinv(slopes.T @ slopes)
    covariance = n_blocks / max(n_blocks - 1, 1) * bread @ (score.T @ score) @ bread
    covariance = covariance * np.outer(theta, theta)
    factor = float(special.stdtrit(max(n_blocks - 1, 1), 0.5 + LEVEL / 2))
    return _Fit(theta, covariance, factor * np.sqrt(np.diag(covariance)), len(at))


def _gauss_newton(miss: Callable[[Floats], Floats], n_parameters: int) -> tuple[Floats, Floats]:
    """Return the least-squares point and the slopes there.

    Latencies jump by whole iterations, so slopes are central differences over steps wider than
    those jumps, and a step is halved until it gains.
    """
    at = np.zeros(n_parameters)
    # first all together: one scalar brings most of it
    if n_parameters > 1:
        common, _ = _gauss_newton(lambda z: miss(np.full(n_parameters, z[0])), 1)
        at += common[0]

    def slopes(width: float) -> Floats:
        moves = width * np.eye(n_parameters)
        columns = [(miss(at + move) - miss(at - move)) / (2 * width) for move in moves]
        return np.stack(columns, axis=1)

    value = float((miss(at) ** 2).sum())
    for width in np.geomspace(0.1, 0.015, _ROUNDS):
        move = -np.linalg.lstsq(slopes(float(width)), miss(at), rcond=1e-6)[0]
        move *= min(1.0, 1.0 / max(float(np.abs(move).max()), 1e-12))
        for scale in (1.0, 0.5, 0.25, 0.1):
            reached = float((miss(at + scale * move) ** 2).sum())
            if reached < value:
                at, value = at + scale * move, reached
                break
    return at, slopes(0.02)


def _value(law: Law, name: str) -> float:
    if name == "scale":
        return 1.0
    if name == "b_s":
        return max(law.b_knots_s[-1] / law.n_knots[-1], 1e-9)
    return max(float(getattr(law, name)), 1e-12)


def with_values(law: Law, values: Mapping[str, float]) -> Law:
    """Return the law with some of ``scale, a_s, b_s, c_s, prefill_s`` set."""
    changed = law
    for name, value in values.items():
        match name:
            case "scale":
                changed = scaled(changed, value)
            case "a_s":
                changed = replace(changed, a_s=value)
            case "b_s":
                changed = replace(changed, n_knots=(0.0, 1.0), b_knots_s=(0.0, value))
            case "c_s":
                changed = replace(changed, c_s=value)
            case "prefill_s":
                changed = replace(changed, prefill_s=value)
    return changed
