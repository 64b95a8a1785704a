"""Clip: whether ε acts at all, on what, and whether it is written as the framework reads it."""

import math
from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks.verl import ACTOR
from dapolab.check.run import Run

DAPO = "DAPO Eq. 10, §4.1 (arXiv 2503.14476)"
ONE_UPDATE = "DAPO#23, verl#791: clipping starts with the second update on the same rollout"
LARGEST_SEQUENCE_EPS = 0.05


def _ratio_clip(run: Run) -> bool:
    return run.clip_shape in ("ratio", "sequence", "log")


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


def dual(run: Run) -> Iterator[Finding]:
    """Flag: dual clip: c at most 1 is refused by verl; on by default, and not in the paper."""
    c = run.dual_c
    if c is None or run.clip_shape not in ("ratio", "sequence"):
        return
    if not c > 1:
        yield run.finding(
            "clip-dual-invalid",
            "error",
            "dual_c",
            f"c = {c:g}: the dual clip needs c > 1"
            + (" (AssertionError)" if run.framework == "verl" else ""),
            suggestion="3, or 10 as in the published DAPO runs",
            source="verl 0.9.1 core_algos.py:1285-1376",
        )
        return
    default = "" if run.given("dual_c") else " by default"
    yield run.finding(
        "clip-dual-on",
        "note",
        "dual_c",
        f"dual clip is on{default}, c = {c:g}: with A < 0 and a ratio above {c:g} the gradient is "
        "0; the DAPO paper has no such bound",
        source="verl 0.9.1 core_algos.py:1285-1376; published runs set 10",
    )


def no_effect(run: Run) -> Iterator[Finding]:
    """Flag: one update per rollout on recomputed log-probs, the ratio is 1 (B15)."""
    if run.denominator == "sampler" or run.n_updates is None or not run.n_updates <= 1:
        return
    if not _ratio_clip(run) or run.facts.get("straddles"):
        return
    meant = run.given("eps_high") or run.given("eps_low") or run.given("eps_any")
    size = "the whole rollout"
    if run.batch_responses:
        size = f"{run.batch_responses} responses{_each(run)}"
    per = "rollout"
    if run.framework == "trl" and run.n_updates < 1:
        per = f"{1 / run.n_updates:.4g} rollouts"  # a window of several generations
        size += " a rollout"
    yield run.finding(
        "clip-no-effect",
        "warning" if meant else "note",
        "eps_high" if run.given("eps_high") else "eps_low",
        f"clip has no effect: one update per {per} ({size}), so the ratio is 1 on every token"
        + ("" if run.framework == "trl" else ", up to rounding"),
        suggestion=_more_updates(run),
        source=ONE_UPDATE,
    )


def _each(run: Run) -> str:
    return " per process" if run.per_process else ""


def _more_updates(run: Run) -> str:
    if run.framework == "trl":
        return "steps_per_generation > gradient_accumulation_steps, or num_iterations > 1"
    return f"a smaller {run.written('n_updates')}, or leave the clip settings out"


def updates(run: Run) -> Iterator[Finding]:
    """Flag: How many updates a rollout gets and how many of them are off-policy."""
    n = run.n_updates
    if n is None or not n > 1 or run.clip_shape == "none" or run.denominator == "sampler":
        return
    if run.facts.get("straddles"):
        return  # updates are then neither all on-policy nor all off-policy: see straddles
    count = f"{n:.4g} updates per rollout, {n - 1:.4g} of them off-policy"
    those = "that one" if n == 2 else f"those {n - 1:.4g}"
    sizes = ""
    if run.batch_responses and run.update_responses:
        sizes = f" ({run.batch_responses} responses, {run.update_responses} an update{_each(run)})"
    yield run.finding(
        "clip-updates",
        "note",
        "n_updates",
        f"{count}{sizes}: the clip can act in {those} alone; {n:.4g} updates are one rollout "
        "step on a plot over updates",
        source="DAPO#23; DAPO §4.1 counts gradient updates (verl#795)",
    )


def straddles(run: Run) -> Iterator[Finding]:
    """Flag: TRL, an optimizer step that ends inside a generation: a part of it is off-policy."""
    if not run.facts.get("straddles"):
        return
    window, generation, passes = (run.facts[k] for k in ("window", "generation", "passes"))
    share = run.facts["off_policy_share"]
    assert isinstance(share, float)
    yield run.finding(
        "clip-updates-straddle",
        "note",
        "n_updates",
        f"{generation} x {passes} micro-batches per generation and {window} per update do not "
        f"divide: updates end inside a generation, {100 * share:.3g} % of the micro-batches are "
        "trained after an update on their own generation, and the clip can act in those alone",
        suggestion="make one a multiple of the other",
        source="TRL 1.16 grpo_trainer.py:2642",
    )


def sampler_denominator(run: Run) -> Iterator[Finding]:
    """Flag: the sampler's log-probs stand under the ratio: the clip acts on the mismatch too."""
    if run.denominator != "sampler" or not _ratio_clip(run):
        return
    n, period = run.n_updates, "per rollout"
    syncs = run.facts.get("syncs_every")
    if n is not None and isinstance(syncs, int) and syncs > 1:
        n, period = n * syncs, "from one weight sync to the next"
    if n is not None and n <= 1:
        acts = "one update per rollout: the clip acts on the sampler–trainer mismatch only"
    else:
        count = f" ({n:.4g} updates {period})" if n else ""
        acts = f"the clip acts on the sampler–trainer mismatch plus the policy's move{count}"
    yield run.finding(
        "clip-sampler-mismatch",
        "note",
        "denominator",
        f"the ratio's denominator is the sampler's log-prob, not one recomputed by the trainer; "
        f"{acts}",
        source=_SAMPLER_SOURCES.get(run.framework, "vendor source"),
    )


_SAMPLER_SOURCES = {
    "06-dapo": "agentic-rl-lab 06-dapo/train.py:172-307: one forward, one Adam step",
    "verl": "verl 0.9.1 trainer/ppo/ray_trainer.py, rollout_correction.bypass_mode",
    "slime": "slime 624b824 --use-rollout-logprobs",
}


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
    dual,
    no_effect,
    updates,
    straddles,
    sampler_denominator,
    unused,
    absolute,
    sequence_scale,
)
