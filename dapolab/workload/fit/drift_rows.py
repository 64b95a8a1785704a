"""From records to what the drift fits read: a row a group, a row a step."""

import pandas as pd

from dapolab.scenario import ConfigError, Drift
from dapolab.workload.fit.drift import PassRateDrift, fit_pass_rate_drift
from dapolab.workload.fit.drift_lengths import LengthDrift, fit_length_drift

# From here on the cap hides enough of the tail to bend a trend of mean lengths.
MUCH_TRUNCATED = 0.05


def fit_drift(
    table: pd.DataFrame, *, selection: str
) -> tuple[PassRateDrift, LengthDrift | None, list[str]]:
    """Fit the drift of pass rates, and of lengths where they are known, to records of many steps.

    Returns both fits and warnings. A prompt's name is used where it occurs in several groups.

    Raises
    ------
    ConfigError
        Records without steps or correctness, or that hold chosen groups only: what a filter keeps
        does not say how often it kept.
    """
    if selection != "all":
        raise ConfigError(
            f"a drift needs all candidate groups, this file holds {selection}: filtered groups "
            "stay half right however good the model gets (--selection all if it holds all)"
        )
    rows = table[table["step"].notna()]
    judged = rows[rows["correct"].notna()]
    if judged.empty:
        raise ConfigError("a drift needs the training step and the correctness of each response")
    by_group = judged.groupby(["step", "group_id", "prompt_id"], observed=True)["correct"]
    counts = (
        by_group.agg(n_samples="size", n_correct="sum")
        .reset_index()
        .astype({"step": "int64", "n_samples": "int64", "n_correct": "int64"})
    )
    if counts["prompt_id"].duplicated().any():
        counts = counts.rename(columns={"prompt_id": "prompt"})
    warnings = []
    if len(judged) < len(rows):
        warnings.append(f"{len(rows) - len(judged):,} responses without correctness left out")
    rates = fit_pass_rate_drift(counts)
    lengths, said = _lengths(rows)
    return rates, lengths, warnings + said


def drift_of(rates: PassRateDrift, lengths: LengthDrift | None = None) -> Drift:
    """Return the ``[workload.drift]`` table of two fits."""
    slope = lengths.log_tokens_per_step.value if lengths else 0.0
    return Drift(logit_per_step=rates.logit_per_step.value, log_tokens_per_step=slope)


def _lengths(rows: pd.DataFrame) -> tuple[LengthDrift | None, list[str]]:
    known = rows[rows["n_tokens"].notna()]
    if known["step"].nunique() < 2 or (known["n_tokens"] == 0).all():
        return None, []
    by_step = known.groupby("step")
    means = by_step["n_tokens"].mean()
    cut = float(known["truncated"].fillna(False).astype(float).mean())
    warnings = []
    if cut > MUCH_TRUNCATED:
        warnings.append(
            f"{cut:.0%} of the answers are cut at the cap: the drift of their mean length is "
            "smaller than that of the lengths behind it"
        )
    steps = means.index.to_numpy(dtype=float)
    return fit_length_drift(steps, means.to_numpy(dtype=float)), warnings
