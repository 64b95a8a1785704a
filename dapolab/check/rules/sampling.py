"""Sampling: what the sampler draws from and what the trainer computes log-probs of."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks import verl_sampler
from dapolab.check.frameworks.verl_sampler import CORRECTION, LOG_PROBS
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


def bypass_ignores(run: Run) -> Iterator[Finding]:
    """Flag: verl V1: bypass mode swaps log-probs and reads none of the correction beside it."""
    if run.framework != "verl":
        return
    names = verl_sampler.ignored_by_bypass(run.reading, trainer=str(run.facts.get("trainer")))
    if not names:
        return
    yield run.finding(
        "sampling-correction-ignored",
        "warning",
        f"{CORRECTION}.{names[0]}",
        "bypass_mode in the V1 trainer only puts the sampler's log-probs in the place of the old "
        f"ones: {' and '.join(names)} {'does' if len(names) == 1 else 'do'} nothing, the loss "
        f"stays {run.loss}",
        suggestion=f"{CORRECTION}.bypass_mode=false for weights and rejection, or leave it out",
        source="verl 0.9.1 trainer/ppo/v1/trainer_base.py:1641-1648, 1766-1769",
    )


def log_probs_off(run: Run) -> Iterator[Finding]:
    """Flag: verl: something asks for the sampler's log-probs, and they are not computed."""
    if run.framework != "verl" or run.reading.flag(LOG_PROBS) is not False:
        return
    names = verl_sampler.weights(run.reading)
    stops = ""
    if run.facts.get("trainer") == "fully-async":
        stops = "the fully async trainer asks for them: AssertionError at start"
    elif run.denominator == "sampler":
        stops = "bypass_mode has nothing to take as old log-probs: the first step fails"
    elif not names:
        return
    yield run.finding(
        "sampling-no-log-probs",
        "error" if stops else "warning",
        LOG_PROBS,
        "the sampler's log-probs are not computed; "
        + (stops or f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} skipped silently"),
        suggestion=f"{LOG_PROBS}=True",
        source="verl 0.9.1 ray_trainer.py:1650-1654, v1/trainer_base.py:1766-1769, "
        "rollout_corr_helper.py:1131-1135, fully_async_rollouter.py:733",
    )


RULES = (truncated, temperature_unmatched, temperature_zero, bypass_ignores, log_probs_off)
