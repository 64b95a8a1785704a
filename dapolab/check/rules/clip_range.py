"""Clip: whether ε is written as the framework and the loss read it."""

import math
from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks.verl import ACTOR
from dapolab.check.run import Run

DAPO = "DAPO Eq. 10, §4.1 (arXiv 2503.14476)"
LARGEST_SEQUENCE_EPS = 0.05


def range_invalid(run: Run) -> Iterator[Finding]:
    """Flag: a negative or NaN ε."""
    for what in ("eps_low", "eps_high"):
        eps = run.eps_low if what == "eps_low" else run.eps_high
        if eps is not None and (math.isnan(eps) or eps < 0):
            yield run.finding(
                "clip-range-invalid",
                "error",
                what,
                f"the clip range {eps:g} is no distance from 1: every ratio would be clipped",
                suggestion="a number between 0 and 1, e.g. 0.2 (low) and 0.28 (high)",
                source=DAPO,
            )
            return


def range_notation(run: Run) -> Iterator[Finding]:
    """Flag: ε_high written as the upper bound: 1.28 where 0.28 is meant (field case B19)."""
    eps = run.eps_high
    if eps is None or not eps >= 1 or run.clip_shape not in ("ratio", "sequence"):
        return
    meant = f"did you mean {eps - 1:.4g}?" if 1 < eps < 2 else "a ratio this large is rare"
    yield run.finding(
        "clip-range-notation",
        "warning",
        "eps_high",
        f"ε_high = {eps:g} makes the upper bound {1 + eps:.4g}; {meant}",
        suggestion=f"{eps - 1:.4g}" if 1 < eps < 2 else "0.28 is the paper's value",
        source="JustRL#2; frameworks take the distance from 1, papers write the bound",
    )


def low_one_or_more(run: Run) -> Iterator[Finding]:
    """Flag: ε_low of 1 or more: the lower bound is 0 or less, no ratio is below it."""
    eps = run.eps_low
    if eps is None or not eps >= 1 or run.clip_shape not in ("ratio", "sequence"):
        return
    yield run.finding(
        "clip-low-one-or-more",
        "warning",
        "eps_low",
        f"ε_low = {eps:g} makes the lower bound {1 - eps:.4g}: ratios are positive, the lower clip "
        "never acts",
        suggestion="0.2, or say on purpose that there is no lower clip",
        source="JustRL#2, AReaL#285",
    )


def high_below_low(run: Run) -> Iterator[Finding]:
    """Flag: ε_high below ε_low: clip-lower instead of clip-higher (allowed, rarely meant)."""
    low, high = run.eps_low, run.eps_high
    if low is None or high is None or not 0 <= high < low or run.clip_shape == "absolute":
        return
    yield run.finding(
        "clip-high-below-low",
        "warning",
        "eps_high",
        f"ε_high {high:g} is below ε_low {low:g}: rises are clipped sooner than falls",
        suggestion=f"ε_high >= {low:g}; the paper has 0.2 and 0.28",
        source=DAPO,
    )


def ratio_alone(run: Run) -> Iterator[Finding]:
    """Flag: verl: clip_ratio given alone is ignored, low and high default to 0.2 and win."""
    if run.framework != "verl" or not run.reading.given(f"{ACTOR}.clip_ratio"):
        return
    wanted = run.reading.number(f"{ACTOR}.clip_ratio")
    ignored = [
        side
        for side, eps in (("low", run.eps_low), ("high", run.eps_high))
        if not run.reading.given(f"{ACTOR}.clip_ratio_{side}") and eps is not None and eps != wanted
    ]
    if ignored and wanted is not None:
        sides = " and ".join(f"clip_ratio_{side}" for side in ignored)
        yield run.finding(
            "clip-ratio-ignored",
            "warning",
            f"{ACTOR}.clip_ratio",
            f"clip_ratio = {wanted:g} does nothing: {sides} default to 0.2 and are the ones read",
            suggestion=f"set {sides} to {wanted:g}",
            source="verl 0.9.1 trainer/config/actor/actor.yaml:36-42, core_algos.py:1285",
        )


def unused(run: Run) -> Iterator[Finding]:
    """Flag: ε given although the loss has none."""
    if run.clip_shape != "none":
        return
    names = [what for what in ("eps_low", "eps_high") if run.given(what)]
    if names:
        yield run.finding(
            "clip-unused-by-loss",
            "warning",
            names[-1],
            f"the loss {run.loss} has no ε: the clip settings do nothing",
            suggestion="leave them out, or choose a clipped loss",
            source="verl 0.9.1 core_algos.py (sapo, gpg, dro), TRL 1.16 grpo_trainer.py",
        )


def absolute(run: Run) -> Iterator[Finding]:
    """Flag: TRL's cispo: epsilon_high is the cap of the weight itself, not a distance from 1."""
    if run.clip_shape != "absolute" or run.eps_high is None or not run.eps_high < 1:
        return
    yield run.finding(
        "clip-cispo-absolute",
        "warning",
        "eps_high",
        f"cispo caps the weight at epsilon_high itself, {run.eps_high:g}: a ratio of 1 already "
        f"counts {run.eps_high:g}, the gradient shrinks to that share",
        suggestion="epsilon_high = 5.0 (MiniMax-M1, ScaleRL), an absolute cap above 1",
        source="TRL 1.16 grpo_trainer.py: clamp(ratio, max=epsilon_high), no lower bound",
    )


def sequence_scale(run: Run) -> Iterator[Finding]:
    """Flag: GSPO with a token-sized ε: a sequence's mean log ratio never moves that far."""
    if run.clip_shape != "sequence" or run.n_updates is None or run.n_updates <= 1:
        return
    if run.eps_high is None or run.eps_high < LARGEST_SEQUENCE_EPS:
        return
    yield run.finding(
        "clip-sequence-scale",
        "warning",
        "eps_high",
        f"sequence-level ratio with ε_high = {run.eps_high:g}: the mean log ratio of L tokens "
        "spreads 1/√L as wide as one token's, so a token-sized ε hardly ever clips",
        suggestion="3e-4 and 4e-4 (GSPO paper)",
        source="GSPO §5.1 (arXiv 2507.18071)",
        certain=False,
    )


RULES = (
    range_invalid,
    range_notation,
    low_one_or_more,
    high_below_low,
    ratio_alone,
    unused,
    absolute,
    sequence_scale,
)
