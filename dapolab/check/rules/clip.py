"""Clip: whether ε acts at all, in how many updates, and on which ratio."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.run import Run

ONE_UPDATE = "DAPO#23, verl#791: clipping starts with the second update on the same rollout"


def _ratio_clip(run: Run) -> bool:
    return run.clip_shape in ("ratio", "sequence", "log")


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


RULES = (dual, no_effect, updates, straddles, sampler_denominator)
