"""Sampling: what the sampler draws from and what the trainer computes log-probs of."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.run import Run


def truncated(run: Run) -> Iterator[Finding]:
    """Flag: top-p, top-k or min-p at work: the trainer's log-probs know none of it."""
    active = {
        "top_p": run.top_p is not None and 0 < run.top_p < 1,
        "top_k": run.top_k is not None and run.top_k > 0,
        "min_p": run.min_p is not None and run.min_p > 0,
    }
    for what in (name for name, on in active.items() if on):
        yield run.finding(
            "sampling-truncated",
            "warning",
            what,
            f"{what} = {getattr(run, what):g} cuts the sampler's distribution; the trainer's "
            "log-probs are over the whole vocabulary, so the two policies differ on every cut token"
            + _on_ratio(run),
            suggestion="top_p 1, top_k off, min_p off while training",
            source=_APPLIED.get(run.framework, "the trainer applies temperature alone"),
        )


_APPLIED = {
    "verl": "verl 0.9.1 workers/engine/fsdp/transformer_impl.py applies temperature alone",
    "trl": "TRL 1.16 grpo_trainer.py divides the logits by temperature alone",
}


def _on_ratio(run: Run) -> str:
    if run.denominator == "sampler":
        return "; with the sampler as denominator the ratio starts below 1 and the clip sees it"
    return ""


def temperature_unmatched(run: Run) -> Iterator[Finding]:
    """Flag: 06-dapo: the trainer's log-probs are at temperature 1."""
    t = run.temperature
    if run.framework != "06-dapo" or t is None or t == 1 or t <= 0:
        return
    yield run.finding(
        "sampling-temperature-unmatched",
        "warning",
        "temperature",
        f"sampling at temperature {t:g}, log-probs of the training pass at 1: the ratio is not 1 "
        "on-policy unless the service returns untempered log-probs",
        suggestion="temperature 1",
        source="agentic-rl-lab 06-dapo/train.py:172-307",
        certain=False,
    )


def temperature_zero(run: Run) -> Iterator[Finding]:
    """Flag: greedy sampling: all responses of a group are the same."""
    t = run.temperature
    if t is None or t > 0:
        return
    yield run.finding(
        "sampling-greedy",
        "error",
        "temperature",
        f"temperature {t:g}: all responses of a prompt are equal, every group is degenerate",
        suggestion="1.0",
        source="1 − p^G − (1−p)^G is 0 for p in {0, 1} (theory A1)",
    )


RULES = (truncated, temperature_unmatched, temperature_zero)
