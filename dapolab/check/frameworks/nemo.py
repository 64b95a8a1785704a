"""NeMo RL's GRPO YAML (commit 7ea279a): the settings that decide clip, filter and loss."""

import math

from dapolab.check.reading import Reading, Source
from dapolab.check.run import ClipShape, Filter, Overlong, Run
from dapolab.check.values import Value

SHAPING = "grpo.reward_shaping"
# examples/configs/grpo_math_1B.yaml and nemo_rl/algorithms/grpo.py; only what is read here
DEFAULTS: dict[str, Value] = {
    "grpo.num_prompts_per_step": None,
    "grpo.num_generations_per_prompt": None,
    "grpo.use_leave_one_out_baseline": True,
    "grpo.normalize_rewards": True,
    "grpo.use_dynamic_sampling": False,
    "grpo.dynamic_sampling_max_gen_batches": 10,
    "grpo.batch_multiplier": 1,
    "grpo.skip_reference_policy_logprobs_calculation": False,
    "grpo.overlong_filtering": False,
    "grpo.reward_shaping.enabled": False,
    "grpo.reward_shaping.overlong_buffer_length": 128,
    "grpo.reward_shaping.overlong_buffer_penalty": 1.0,
    "grpo.reward_shaping.max_response_length": None,
    "grpo.reward_scaling.enabled": False,
    "grpo.reward_scaling.target_min": 0.0,
    "grpo.reward_scaling.target_max": 1.0,
    "policy.train_global_batch_size": None,
    "policy.max_total_sequence_length": None,
    "policy.generation.max_new_tokens": None,
    "policy.generation.temperature": 1.0,
    "policy.generation.top_p": 1.0,
    "policy.generation.top_k": None,
    "loss_fn.ratio_clip_min": 0.2,
    "loss_fn.ratio_clip_max": 0.2,
    "loss_fn.ratio_clip_c": None,
    "loss_fn.token_level_loss": True,
    "loss_fn.reference_policy_kl_penalty": 0.01,
    "loss_fn.reference_policy_kl_type": "k3",
    "loss_fn.use_kl_in_reward": False,
    "loss_fn.use_importance_sampling_correction": False,
    "loss_fn.truncated_importance_sampling_ratio": None,
    "loss_fn.truncated_importance_sampling_ratio_min": None,
    "loss_fn.truncated_importance_sampling_type": None,
    "loss_fn.sequence_level_importance_ratios": False,
    "loss_fn.use_cispo": False,
    "loss_fn.positive_example_nll_weight": 0.0,
    "loss_fn.disable_ppo_ratio": False,
    "loss_fn.force_on_policy_ratio": False,
}


def reading(source: Source, *, version: str) -> Reading:
    """Return the settings over NeMo RL's defaults."""
    return Reading("nemo-rl", version, source, DEFAULTS)


def understand(reading: Reading) -> Run:
    """Return what NeMo RL's GRPO computes (algorithms/loss/loss_functions.py, grpo.py)."""
    groups = reading.integer("grpo.num_prompts_per_step")
    n = reading.integer("grpo.num_generations_per_prompt")
    update = reading.integer("policy.train_global_batch_size")
    responses = groups * n if groups and n else None
    leave_one_out = reading.flag("grpo.use_leave_one_out_baseline") is not False
    token_level = reading.flag("loss_fn.token_level_loss") is not False
    loss, shape = _loss(reading)
    kl = reading.number("loss_fn.reference_policy_kl_penalty")
    estimator = reading.text("loss_fn.reference_policy_kl_type") if kl else None
    in_reward = reading.flag("loss_fn.use_kl_in_reward") is True
    return Run(
        reading=reading,
        trainer="NeMo RL GRPO",
        names=_NAMES,
        group_size=n,
        batch_groups=groups,
        batch_responses=responses,
        update_responses=update,
        n_updates=responses / update if responses and update else None,
        loss=loss,
        clip_shape=shape,
        sampler_words=_correction(reading),
        kl_loss_estimator=None if in_reward else estimator,
        kl_loss_coef=None if in_reward else kl,
        kl_reward_estimator=estimator if in_reward else None,
        kl_reward_coef=kl if in_reward else None,
        eps_low=reading.number("loss_fn.ratio_clip_min"),
        eps_high=reading.number("loss_fn.ratio_clip_max"),
        dual_c=reading.number("loss_fn.ratio_clip_c"),
        aggregation="token mean" if token_level else "mean over responses of token means",
        advantage="leave-one-out mean and std" if leave_one_out else "group mean / std",
        cap_tokens=reading.integer("policy.generation.max_new_tokens"),
        overlong=_overlong(reading),
        filter=_filter(reading, groups),
        filter_words=_words(reading),
        temperature=reading.number("policy.generation.temperature"),
        top_p=reading.number("policy.generation.top_p"),
        top_k=reading.integer("policy.generation.top_k"),
        facts={"leave_one_out": leave_one_out},
    )


_NAMES = {
    "group_size": "grpo.num_generations_per_prompt",
    "batch_groups": "grpo.num_prompts_per_step",
    "n_updates": "policy.train_global_batch_size",
    "eps_low": "loss_fn.ratio_clip_min",
    "eps_high": "loss_fn.ratio_clip_max",
    "dual_c": "loss_fn.ratio_clip_c",
    "kl_loss_estimator": "loss_fn.reference_policy_kl_type",
    "kl_loss_coef": "loss_fn.reference_policy_kl_penalty",
    "kl_reward_coef": "loss_fn.reference_policy_kl_penalty",
    "cap_tokens": "policy.generation.max_new_tokens",
    "overlong": f"{SHAPING}.enabled",
    "buffer_tokens": f"{SHAPING}.overlong_buffer_length",
    "factor": f"{SHAPING}.overlong_buffer_penalty",
    "penalty_cap": f"{SHAPING}.max_response_length",
    "filter": "grpo.use_dynamic_sampling",
    "max_rounds": "grpo.dynamic_sampling_max_gen_batches",
    "round_groups": "grpo.batch_multiplier",
    "temperature": "policy.generation.temperature",
    "top_p": "policy.generation.top_p",
    "top_k": "policy.generation.top_k",
}


def _loss(reading: Reading) -> tuple[str, ClipShape]:
    if reading.flag("loss_fn.disable_ppo_ratio") is True:
        return "reinforce", "none"
    if reading.flag("loss_fn.use_cispo") is True:
        return "cispo", "ratio"
    sequence = reading.flag("loss_fn.sequence_level_importance_ratios") is True
    return ("gspo", "sequence") if sequence else ("ppo", "ratio")


def _correction(reading: Reading) -> str:
    """Return the correction for the generation engine, in words (ClippedPGLossFn)."""
    if reading.flag("loss_fn.use_importance_sampling_correction") is not True:
        return ""
    name = "loss_fn.truncated_importance_sampling"
    kind = reading.text(f"{name}_type")
    if kind is None:
        return "sampler correction: weights without a bound"
    bounds = (reading.number(f"{name}_ratio{end}") for end in ("_min", ""))
    low, high = ("?" if bound is None else f"{bound:g}" for bound in bounds)
    if kind == "tis":
        return f"sampler correction tis, weights within [{low.replace('?', '0')}, {high}]"
    if kind == "icepop":
        return f"sampler correction icepop, tokens outside [{low}, {high}] out"
    return f"sampler correction {kind}, responses whose mean ratio leaves [{low}, {high}] out"


def _overlong(reading: Reading) -> Overlong | None:
    """Return the penalty (reward_functions.py:160-170), which is not clamped beyond its cap."""
    if reading.flag(f"{SHAPING}.enabled") is not True:
        return None
    scaled = reading.flag("grpo.reward_scaling.enabled") is True
    low, high = (reading.number(f"grpo.reward_scaling.target_{end}") for end in ("min", "max"))
    return Overlong(
        reading.number(f"{SHAPING}.overlong_buffer_length"),
        reading.number(f"{SHAPING}.max_response_length"),
        reading.number(f"{SHAPING}.overlong_buffer_penalty"),
        high - low if scaled and low is not None and high is not None else None,
    )


def _filter(reading: Reading, groups: int | None) -> Filter | None:
    if reading.flag("grpo.use_dynamic_sampling") is not True:
        return None
    size = (groups or 0) * (reading.number("grpo.batch_multiplier") or 1.0)
    limit = reading.integer("grpo.dynamic_sampling_max_gen_batches")
    return Filter(
        "std",
        "rounds",
        int(size) if size and math.isfinite(size) else None,
        max_rounds=limit + 1 if limit is not None else None,  # grpo.py: one more is generated
    )


def _words(reading: Reading) -> str:
    kept = _filter(reading, reading.integer("grpo.num_prompts_per_step"))
    if kept is None:
        return "no filter"
    return f"samples with std 0 dropped, at most {kept.max_rounds} rounds"
