"""Sampler corrections: which one acts, which settings do nothing, which stop the run."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks import verl_sampler
from dapolab.check.frameworks.openrlhf import CORRECTION as OPENRLHF
from dapolab.check.frameworks.verl_sampler import CORRECTION, LOG_PROBS, LOSS_CORRECTION
from dapolab.check.run import Run, newer

# ---------------------------------------------------------------------------- verl


def bypass_ignores(run: Run) -> Iterator[Finding]:
    """Flag: verl: bypass mode swaps log-probs and reads none of the correction beside it."""
    if run.framework != "verl":
        return
    names = verl_sampler.ignored_by_bypass(run.reading)
    if not names:
        return
    v1 = str(run.facts.get("trainer")).startswith("v1-")
    by_name = run.reading.text(verl_sampler.LOSS_MODE) == "bypass_mode"
    why = "only puts the sampler's log-probs in the place of the old ones"
    if by_name:
        why = f"as loss_mode reads {LOSS_CORRECTION} and not {CORRECTION}"
    elif not v1:
        why += "; the switch of the loss is made after the workers have copied their settings"
    yield run.finding(
        "sampling-correction-ignored",
        "warning",
        f"{CORRECTION}.{names[0]}",
        f"bypass_mode {why}: {' and '.join(names)} {'does' if len(names) == 1 else 'do'} nothing, "
        f"the loss stays {run.loss}",
        suggestion=f"{CORRECTION}.bypass_mode=false for weights and rejection, or "
        f"{verl_sampler.LOSS_MODE}=bypass_mode with +{LOSS_CORRECTION}.…",
        source="verl 0.9.1 trainer/ppo/v1/trainer_base.py:1641-1648, 1766-1769; "
        "rollout_corr_helper.py:1141-1144 against workers/engine_workers.py:593-643",
        certain=v1 or newer(run.version_text, "0.9.0"),
    )


def bypass_double_weight(run: Run) -> Iterator[Finding]:
    """Flag: verl: the ppo_clip loss of bypass mode applies no weights, by design."""
    if run.framework != "verl" or run.reading.text(verl_sampler.LOSS_MODE) != "bypass_mode":
        return
    key = f"{LOSS_CORRECTION}.rollout_is"
    if run.loss == "reinforce" or not run.reading.given(key):
        return
    if run.reading.text(key) in (None, "", "null", "False"):
        return
    yield run.finding(
        "sampling-weights-unused",
        "warning",
        key,
        "bypass_mode with loss_type ppo_clip computes weights for its metrics alone: the clipped "
        "ratio is current/sampler already",
        suggestion=f"+{LOSS_CORRECTION}.loss_type=reinforce, or leave rollout_is out",
        source="verl 0.9.1 core_algos.py:2525-2539",
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


# ---------------------------------------------------------------------------- slime


def slime_tis(run: Run) -> Iterator[Finding]:
    """Flag: slime: weights for a denominator that is the sampler's already, or bounds of none."""
    if run.framework != "slime":
        return
    on = run.reading.flag("use_tis") is True
    if on and run.denominator == "sampler":
        yield run.finding(
            "sampling-correction-twice",
            "error",
            "use_tis",
            "--use-tis weighs old/sampler, and with --use-rollout-logprobs old is the sampler: "
            "AssertionError at start",
            suggestion="one of the two",
            source="slime utils/arguments.py: use_rollout_logprobs and use_tis exclude each other",
        )
    keys = ("tis_clip", "tis_clip_low", "custom_tis_function_path")
    given = [key for key in keys if run.given(key)]
    # --get-mismatch-metrics computes the weights too, for its metrics.
    if given and not on and run.reading.flag("get_mismatch_metrics") is not True:
        yield run.finding(
            "sampling-correction-ignored",
            "warning",
            given[0],
            f"{run.written(given[0])} without --use-tis: no weight is applied",
            suggestion="--use-tis, or leave it out",
            source="slime backends/megatron_utils/loss.py: vanilla_tis_function",
        )
    if run.given("opsm_delta") and run.reading.flag("use_opsm") is not True:
        yield run.finding(
            "sampling-correction-ignored",
            "warning",
            "opsm_delta",
            f"{run.written('opsm_delta')} without --use-opsm: no response is masked",
            suggestion="--use-opsm, or leave it out",
            source="slime utils/ppo_utils.py: compute_opsm_mask",
        )


# ---------------------------------------------------------------------------- OpenRLHF


_GATE = ("mode", "gating", "threshold")
_OPENRLHF_LOSS = "OpenRLHF 0.11.2 models/loss.py:158-172, 216-240"


def _openrlhf_level(run: Run) -> str | None:
    """Return off, token or seq; None for other frameworks and releases without these settings."""
    if run.framework != "openrlhf" or not newer(run.version_text, "0.11.0"):
        return None
    return run.reading.text(f"{OPENRLHF}_level") or "off"


def openrlhf_off(run: Run) -> Iterator[Finding]:
    """Flag: OpenRLHF: settings of a correction that is off."""
    given = [name for name in _GATE if run.reading.given(f"{OPENRLHF}_{name}")]
    if _openrlhf_level(run) != "off" or not given:
        return
    key = f"{OPENRLHF}_{given[0]}"
    yield run.finding(
        "sampling-correction-ignored",
        "warning",
        key,
        f"{run.written(key)} while {OPENRLHF}_level is off: no weight is applied",
        suggestion=f"--{OPENRLHF}_level token",
        source=_OPENRLHF_LOSS,
    )


def openrlhf_refused(run: Run) -> Iterator[Finding]:
    """Flag: OpenRLHF: gates that PolicyLoss refuses."""
    level = _openrlhf_level(run)
    if level in (None, "off"):
        return
    mode, gating = (run.reading.text(f"{OPENRLHF}_{name}") for name in ("mode", "gating"))
    bounds = run.reading.value(f"{OPENRLHF}_threshold")
    two = isinstance(bounds, list) and len(bounds) == 2
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        at, wrong = "mode", "mode clip needs level token and gating ratio"
        suggestion = f"--{OPENRLHF}_mode mask"
    elif gating != "ratio" and isinstance(bounds, list) and two and _above_zero(bounds[0]):
        at, wrong = "gating", f"gating {gating} takes one upper bound, here {bounds[0]} {bounds[1]}"
        suggestion = f"--{OPENRLHF}_threshold <one bound>"
    else:
        return
    yield run.finding(
        "sampling-correction-refused",
        "error",
        f"{OPENRLHF}_{at}",
        f"{wrong}: ValueError at start",
        suggestion=suggestion,
        source=_OPENRLHF_LOSS,
    )


def _above_zero(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def openrlhf_gspo(run: Run) -> Iterator[Finding]:
    """Flag: OpenRLHF: under GSPO the correction only changes the denominator."""
    if _openrlhf_level(run) in (None, "off") or run.loss != "gspo":
        return
    yield run.finding(
        "sampling-correction-replaces",
        "note",
        f"{OPENRLHF}_level",
        "with gspo the correction weighs and drops nothing: it only puts the sampler's log-probs "
        "under the sequence ratio",
        source=_OPENRLHF_LOSS,
    )


def openrlhf_rounding(run: Run) -> Iterator[Finding]:
    """Flag: OpenRLHF: a binary KL of single tokens that must not be below 0, in float32."""
    if _openrlhf_level(run) != "token":
        return
    bounds = run.reading.value(f"{OPENRLHF}_threshold")
    low = bounds[0] if isinstance(bounds, list) and len(bounds) == 2 else 0
    if run.reading.text(f"{OPENRLHF}_gating") != "binary_kl" or low != 0:
        return
    yield run.finding(
        "sampling-gate-rounding",
        "warning",
        f"{OPENRLHF}_gating",
        "the gate keeps 0 <= KL <= bound, and float32 rounds small KLs below 0: tokens that hardly "
        "moved are dropped, 3 % of them at a mean |log ratio| of 8e-4, 28 % at 8e-6",
        suggestion=f"--{OPENRLHF}_threshold -0.001 <bound>, or --{OPENRLHF}_level seq",
        source="OpenRLHF 0.11.2 models/loss.py:219-236, run on 64,000 tokens",
    )


RULES = (
    bypass_ignores,
    bypass_double_weight,
    log_probs_off,
    slime_tis,
    openrlhf_off,
    openrlhf_refused,
    openrlhf_gspo,
    openrlhf_rounding,
)
