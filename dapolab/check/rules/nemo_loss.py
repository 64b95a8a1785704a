"""NeMo RL: what its clipped policy-gradient loss refuses, ignores and forces."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.rules.unlisted import is_newest
from dapolab.check.run import Run

_LOSS = "NeMo RL 006907a nemo_rl/algorithms/loss/loss_functions.py (ClippedPGLossFn.__init__)"
_SETUP = "NeMo RL 002cdc2 nemo_rl/algorithms/grpo.py (setup)"
_IS = "loss_fn.truncated_importance_sampling"
_KINDS = ("tis", "icepop", "seq-mask-tis")


def truncation(run: Run) -> Iterator[Finding]:
    """Flag: bounds without a type, which do nothing; a type that stops the run."""
    if run.framework != "nemo-rl":
        return
    kind = run.reading.text(f"{_IS}_type")
    given = [k for k in (f"{_IS}_ratio", f"{_IS}_ratio_min") if run.reading.value(k) is not None]
    if kind is not None:
        yield from _refused(run, kind)
    elif given:
        on = run.reading.flag("loss_fn.use_importance_sampling_correction") is True
        yield run.finding(
            "sampling-correction-ignored",
            "warning",
            given[0],
            f"{given[0].partition('.')[2]} without truncated_importance_sampling_type: "
            + ("the weights are applied without a bound" if on else "no weight is applied"),
            suggestion=f"{_IS}_type: tis, or leave it out",
            source=_LOSS,
            certain=is_newest(run),
        )


def _refused(run: Run, kind: str) -> Iterator[Finding]:
    high, low = run.reading.number(f"{_IS}_ratio"), run.reading.number(f"{_IS}_ratio_min")
    on = run.reading.flag("loss_fn.use_importance_sampling_correction") is True
    wrong = {
        f"{kind} is none of {', '.join(_KINDS)}": kind not in _KINDS,
        "use_importance_sampling_correction is off": not on,
        "truncated_importance_sampling_ratio is not above 0": high is None or not high > 0,
        "truncated_importance_sampling_ratio_min is unset": low is None and kind in _KINDS[1:],
        "truncated_importance_sampling_ratio_min is above the ratio": high is not None
        and low is not None
        and low > high,
        "it masks responses and weighs tokens, against sequence_level_importance_ratios": kind
        == "seq-mask-tis"
        and run.clip_shape == "sequence",
    }
    for why in (words for words, holds in wrong.items() if holds):
        yield run.finding(
            "sampling-correction-refused",
            "error",
            f"{_IS}_type",
            f"truncated_importance_sampling_type {kind}: {why}: AssertionError at start",
            suggestion="loss_fn.use_importance_sampling_correction: true, "
            f"{_IS}_ratio: 2.0, with icepop and seq-mask-tis {_IS}_ratio_min: 0.5",
            source=_LOSS,
        )
        return


def levels(run: Run) -> Iterator[Finding]:
    """Flag: sequence ratios under a token-level loss."""
    if run.framework != "nemo-rl" or run.clip_shape != "sequence":
        return
    if run.reading.flag("loss_fn.token_level_loss") is False:
        return
    yield run.finding(
        "loss-levels-exclude",
        "error",
        "loss_fn.sequence_level_importance_ratios",
        "sequence_level_importance_ratios with token_level_loss: AssertionError at start",
        suggestion="loss_fn.token_level_loss: false",
        source=_LOSS,
    )


def cispo(run: Run) -> Iterator[Finding]:
    """Flag: settings that CISPO excludes."""
    if run.framework != "nemo-rl" or run.reading.flag("loss_fn.use_cispo") is not True:
        return
    on = [
        name
        for name in (
            "disable_ppo_ratio",
            "force_on_policy_ratio",
            "sequence_level_importance_ratios",
        )
        if run.reading.flag(f"loss_fn.{name}") is True
    ]
    if run.reading.value("loss_fn.ratio_clip_c") is not None:
        on.append("ratio_clip_c")
    if run.reading.flag("loss_fn.token_level_loss") is False:
        on.append("token_level_loss: false")
    if on:
        yield run.finding(
            "loss-cispo-excludes",
            "error",
            "loss_fn.use_cispo",
            f"use_cispo with {' and '.join(on)}: AssertionError at start",
            suggestion="leave it out beside use_cispo",
            source=_LOSS,
        )


def forced(run: Run) -> Iterator[Finding]:
    """Flag: the ratio forced to 1 although an update is not the whole rollout."""
    key = "loss_fn.force_on_policy_ratio"
    if run.framework != "nemo-rl" or run.reading.flag(key) is not True:
        return
    if run.n_updates is None or run.n_updates == 1:
        return
    yield run.finding(
        "clip-ratio-forced",
        "error",
        key,
        f"the ratio can be forced to 1 in one update per rollout only, here {run.n_updates:.4g}: "
        "AssertionError at start",
        suggestion=f"{key}: false, or policy.train_global_batch_size: {run.batch_responses}",
        source=_SETUP,
    )


def no_reference(run: Run) -> Iterator[Finding]:
    """Flag: a KL term whose reference log-probs are not computed."""
    key = "grpo.skip_reference_policy_logprobs_calculation"
    if run.framework != "nemo-rl" or run.reading.flag(key) is not True:
        return
    coefficient = run.reading.number("loss_fn.reference_policy_kl_penalty")
    if coefficient:
        yield run.finding(
            "kl-without-reference",
            "error",
            key,
            f"the reference's log-probs are skipped and reference_policy_kl_penalty is "
            f"{coefficient:g}: AssertionError at start",
            suggestion="loss_fn.reference_policy_kl_penalty: 0",
            source=_SETUP,
        )


def multiplier(run: Run) -> Iterator[Finding]:
    """Flag: larger generation batches without the filter that would use them."""
    key = "grpo.batch_multiplier"
    if run.framework != "nemo-rl" or run.filter is not None:
        return
    times = run.reading.number(key)
    if times is not None and times != 1:
        yield run.finding(
            "filter-multiplier-alone",
            "error",
            key,
            f"batch_multiplier {times:g} without use_dynamic_sampling: AssertionError at start",
            suggestion="grpo.use_dynamic_sampling: true, or 1",
            source=_SETUP,
        )


def inert_nll(run: Run) -> Iterator[Finding]:
    """Flag: VAPO's term for right answers, which GRPO never feeds."""
    key = "loss_fn.positive_example_nll_weight"
    weight = run.reading.number(key) if run.framework == "nemo-rl" else None
    if weight:
        yield run.finding(
            "loss-nll-inert",
            "warning",
            key,
            f"weight {weight:g} does nothing: GRPO hands the loss no rewards, and the term was 0 "
            "at every step measured",
            source="NeMo RL pull 3792 (2026-08-26, open)",
            certain=is_newest(run),
        )


RULES = (truncation, levels, cispo, forced, no_reference, multiplier, inert_nll)
