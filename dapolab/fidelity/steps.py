"""Calibrate from a step log: rollout law, learner constants, in seconds per token and per step.

A step log has sums, not iterations: of a wave it tells the longest and the mean response. With all
responses of the wave in flight from its start (theory B5) its seconds are
overhead + a·longest + b·tokens of a replica + c·Σ context + s·prompt tokens, linear as before.
Steps of several waves are left out: their lengths cover the kept groups alone, their time all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab.errors import ConfigError
from dapolab.fidelity.law import LawFit, fit_law
from dapolab.fidelity.regression import solve
from dapolab.scenario import Hardware, Learner, Rollout
from dapolab.sim.hardware import Law
from dapolab.stats import Estimate, mean_estimate

Floats = NDArray[np.float64]

ROLLOUT = "time/rollout_seconds"
STEP = "time/step_seconds"
MEAN_TOKENS = ("rollout/mean_completion_tokens", "trained/mean_completion_tokens")
MAX_TOKENS = ("rollout/max_completion_tokens", "trained/max_completion_tokens")
PER_TOKEN = {
    "time/old_logprob_seconds": "old_logprob_s_per_token",
    "time/reference_seconds": "reference_s_per_token",
    "time/update_seconds": "update_s_per_token",
}
_ASIDE_RATIO = 1.8
_FEWEST = 4


def column(frame: pd.DataFrame, names: tuple[str, ...] | str) -> Floats:
    """Return the first of the columns that has numbers; NaN where the log has none of them."""
    for name in (names,) if isinstance(names, str) else names:
        if name in frame and frame[name].notna().any():
            return frame[name].to_numpy(float)
    return np.full(len(frame), np.nan)


def single_wave(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether a step was one wave whose lengths cover all its responses."""
    waves = column(frame, "rollout/waves")
    return np.asarray(np.isnan(waves) | (waves == 1))


def trained_tokens(frame: pd.DataFrame, rollout: Rollout) -> Floats:
    """Return prompt and response tokens of each step's trained batch."""
    total = column(frame, "trained/total_tokens")
    prompt = np.nan_to_num(column(frame, "trained/mean_prompt_tokens"))
    means = column(frame, MEAN_TOKENS[::-1])
    return np.where(np.isnan(total), n_responses(frame, rollout) * (means + prompt), total)


def n_responses(frame: pd.DataFrame, rollout: Rollout) -> Floats:
    """Return the responses of each step: the log's own count, else B·G."""
    known = column(frame, ("trained/responses", "rollout/candidate_responses"))
    wanted = float(rollout.groups_per_step * rollout.group_size)
    return np.where(np.isnan(known), wanted, known)


def polled_seconds(frame: pd.DataFrame) -> float:
    """Return the grid of the trainer's polls where the log's format tells it, else 0."""
    known = column(frame, "time/poll_seconds")
    return float(np.nanmedian(known)) if np.isfinite(known).any() else 0.0


def prompt_tokens(frame: pd.DataFrame, rollout: Rollout) -> float:
    """Return the mean prompt length, from its own column or as total less response tokens."""
    own = column(frame, "trained/mean_prompt_tokens")
    if np.isfinite(own).any():
        return float(np.nanmean(own))
    means, total = column(frame, MEAN_TOKENS[::-1]), column(frame, "trained/total_tokens")
    found = total / n_responses(frame, rollout) - means
    return float(np.nanmean(found)) if np.isfinite(found).any() else 0.0


def wave_pieces(
    frame: pd.DataFrame,
    *,
    hardware: Hardware,
    rollout: Rollout,
    poll_s: float = 0.0,
    square_ratio: float | None = None,
) -> pd.DataFrame:
    """Return the one-wave steps of a log as pieces for ``fit_law``.

    Parameters
    ----------
    poll_s : the end of a rollout is seen up to so much too late (0: exactly).
    square_ratio : E[L²]/E[L]² of the lengths, for the context sum; absent: no context term.

    Raises
    ------
    ConfigError
        No rollout seconds or lengths, fewer than four one-wave steps, waves that do not fit the
        slots (their iterations are not the longest response), an engine that speculates.
    """
    if hardware.speculation is not None:
        raise ConfigError(
            "a law from a step log is of an engine that makes a token an iteration: calibrate "
            "with --hardware.speculation none, or from a trace of iterations"
        )
    keep = single_wave(frame)
    rows = frame[keep]
    seconds, mean = column(rows, ROLLOUT), column(rows, MEAN_TOKENS)
    longest, n = column(rows, MAX_TOKENS), n_responses(rows, rollout)
    good = np.isfinite(seconds) & np.isfinite(mean) & np.isfinite(longest) & (seconds > 0)
    if good.sum() < _FEWEST:
        raise ConfigError(
            f"a law from a step log needs at least {_FEWEST} steps of one wave with "
            f"{ROLLOUT}, mean and longest response; {int(good.sum())} have them"
        )
    share = n / hardware.replicas
    if (share[good] > hardware.slots).any():
        raise ConfigError(
            f"{share[good].max():.0f} responses a replica exceed hardware.slots "
            f"{hardware.slots}: a step log cannot tell how many iterations they took; calibrate "
            "from a trace of iterations or requests, or set hardware.slots"
        )
    prompt = prompt_tokens(rows, rollout)
    pieces = pd.DataFrame(
        {
            "seconds": seconds,
            "seconds_low": np.maximum(seconds - poll_s, 1e-3 * seconds),
            "calls": 1.0,
            "iterations": longest,
            "n": share * mean,
            "run": rows["run"].astype(str) if "run" in rows else "",
        }
    )
    if square_ratio is not None:
        pieces["sum_context_tokens"] = share * mean * (prompt + square_ratio * mean / 2)
    if hardware.prefill and prompt > 0:
        group = rollout.group_size if hardware.prefix_cache else 1
        pieces["prefill_tokens"] = share / group * prompt
    return pieces[good].reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class LearnerFit:
    """Learner constants with what is known of them.

    ``standard_errors`` are of the estimated fields; ``step_noise_s`` the sd of what a step takes
    beyond its parts.
    """

    learner: Learner
    estimates: Mapping[str, Estimate]
    standard_errors: Mapping[str, float]
    not_identified: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    noise_share: Mapping[str, float] = field(default_factory=dict)

    def draw(self, rng: np.random.Generator) -> Learner:
        """Return constants drawn within their standard errors, nothing below 0."""
        drawn = {
            name: max(float(getattr(self.learner, name) + se * rng.standard_normal()), 0.0)
            for name, se in self.standard_errors.items()
        }
        return self.learner.model_copy(update=drawn)


def fit_learner(frame: pd.DataFrame, *, rollout: Rollout, updates_per_step: int = 1) -> LearnerFit:
    """Fit the learner's constants to the timing columns of a log.

    Passes are per trained token, the update has a fixed part where it is identified, weights,
    scoring and the rest are means over the steps. The first steps' warm-up and any other step that
    took ``_ASIDE_RATIO`` times the median rate are set aside and counted.
    """
    tokens = trained_tokens(frame, rollout)
    values: dict[str, float] = {"updates_per_step": updates_per_step}
    estimates: dict[str, Estimate] = {}
    errors: dict[str, float] = {}
    noise: dict[str, float] = {}
    missing: list[tuple[str, str]] = []
    notes: list[str] = []
    for name, parameter in PER_TOKEN.items():
        seconds = column(frame, name)
        good = np.isfinite(seconds) & np.isfinite(tokens) & (tokens > 0) & (seconds > 0)
        if good.sum() < _FEWEST:
            missing.append((parameter, f"no {name} in the log"))
            continue
        rate = seconds[good] / tokens[good]
        keep = rate < _ASIDE_RATIO * np.median(rate)
        if not keep.all():
            notes.append(f"{name}: {int((~keep).sum())} steps far above the others set aside")
        x, y = tokens[good][keep], seconds[good][keep]
        found = solve(np.stack([x, np.ones(len(x))], axis=1), y, y)
        has_fixed = found.theta_K[1] > found.half_widths()[1]
        if not (name == "time/update_seconds" and has_fixed):
            found = solve(x[:, None], y, y)
        if name == "time/update_seconds" and not has_fixed:
            missing.append(("update_fixed_s", "the intercept does not differ from 0 (99 %)"))
        parts = [(parameter, "s/token", 1.0), ("update_fixed_s", "s", 1.0 / updates_per_step)]
        for k, (key, unit, share) in enumerate(parts[: len(found.theta_K)]):
            half = float(found.half_widths()[k]) * share
            value = float(found.theta_K[k]) * share
            values[key] = value
            errors[key] = float(np.sqrt(found.covariance_KK[k, k])) * share
            estimates[key] = Estimate(value, max(value - half, 0.0), value + half, len(x), unit)
        noise[parameter] = found.sigma
    _means(frame, rollout, values, estimates, errors, missing)
    return LearnerFit(
        Learner.model_validate(values),
        estimates,
        errors,
        tuple(missing),
        tuple(notes),
        noise,
    )


def _means(
    frame: pd.DataFrame,
    rollout: Rollout,
    values: dict[str, float],
    estimates: dict[str, Estimate],
    errors: dict[str, float],
    missing: list[tuple[str, str]],
) -> None:
    """Fill in what is a mean over steps: sync, scoring, validation, and the rest of the step."""

    def put(key: str, seconds: Floats, unit: str) -> None:
        known = seconds[np.isfinite(seconds)]
        if len(known) < _FEWEST:
            missing.append((key, "not in the log"))
            return
        # the first step's warm-up is no part of what every step pays
        known = known[known <= _ASIDE_RATIO * max(float(np.median(known)), 0.0) + 1e-9]
        found = mean_estimate(known, unit=unit) if len(known) else mean_estimate([0.0], unit=unit)
        if found.low is None or found.low <= 0:
            missing.append((key, f"{found.mean:.3g} {unit} does not differ from 0 (99 %)"))
            return
        values[key] = found.mean
        errors[key] = float(known.std(ddof=1) / np.sqrt(len(known)))
        estimates[key] = found

    put("sync_s", column(frame, "time/sync_seconds"), "s")
    reward = column(frame, "time/reward_seconds") / n_responses(frame, rollout)
    put("reward_s_per_response", reward, "s")
    step = column(frame, STEP)
    parts = ("rollout", "old_logprob", "reference", "update", "sync", "reward")
    others = [np.nan_to_num(column(frame, f"time/{part}_seconds")) for part in parts]
    extra = ("advantage", "values", "critic_update")
    others += [np.nan_to_num(column(frame, f"time/{part}_seconds")) * 0 for part in extra]
    rest = step - np.sum(others, axis=0)
    validation = column(frame, "time/validation_seconds")
    validated = np.isfinite(validation) & (validation > 0)
    # some trainers count validation into the step, others beside it
    inside = validated & (rest >= 0.8 * np.nan_to_num(validation))
    rest = np.where(inside, rest - np.nan_to_num(validation), rest)
    put("fixed_s", rest, "s")
    if validated.any() and "step" in frame:
        at = frame["step"].to_numpy(float)[validated]
        values["validation_s"] = float(validation[validated].mean())
        gap = float(np.median(np.diff(at))) if len(at) > 1 else float(at[0])
        values["validation_every"] = max(int(gap), 1)


@dataclass(frozen=True, eq=False)
class StepCalibration:
    """A law and learner constants of one log, and the noise of its rollouts."""

    rollout: LawFit
    learner: LearnerFit
    n_steps: int
    n_one_wave: int


def calibrate_steps(
    frame: pd.DataFrame,
    *,
    hardware: Hardware,
    rollout: Rollout,
    poll_s: float = 0.0,
    fixed: Mapping[str, float] | None = None,
    physics: Law | None = None,
    square_ratio: float | None = None,
    updates_per_step: int = 1,
    source: str = "",
) -> StepCalibration:
    """Fit law and learner to one run's steps (rows of a step table)."""
    pieces = wave_pieces(
        frame, hardware=hardware, rollout=rollout, poll_s=poll_s, square_ratio=square_ratio
    )
    law = fit_law(pieces, fixed=fixed, physics=physics, source=source)
    learner = fit_learner(frame, rollout=rollout, updates_per_step=updates_per_step)
    return StepCalibration(law, learner, len(frame), int(single_wave(frame).sum()))
