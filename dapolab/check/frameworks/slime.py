"""slime: arguments of train.py and train_async.py (commit 624b824)."""

from dapolab.check.reading import Reading, Source
from dapolab.check.run import Filter, Run
from dapolab.check.values import Value

# slime/utils/arguments.py; only what the checker reads (Megatron and SGLang add hundreds more)
DEFAULTS: dict[str, Value] = {
    "rollout_batch_size": None,
    "n_samples_per_prompt": 1,
    "global_batch_size": None,
    "num_steps_per_rollout": None,
    "over_sampling_batch_size": None,
    "partial_rollout": False,
    "dynamic_sampling_filter_path": None,
    "eps_clip": 0.2,
    "eps_clip_high": None,
    "eps_clip_c": None,
    "advantage_estimator": "grpo",
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
    "kl_loss_type": "k1",
    "kl_coef": 0.0,
    "use_unbiased_kl": False,
    "get_mismatch_metrics": False,
    "use_tis": False,
    "tis_clip": 2.0,
    "tis_clip_low": 0.0,
    "custom_tis_function_path": None,
    "use_opsm": False,
    "opsm_delta": 1e-4,
    "normalize_advantages": False,
    "grpo_std_normalization": True,
    "disable_grpo_std_normalization": False,
    "calculate_per_token_loss": False,
    "use_rollout_logprobs": False,
    "rollout_max_response_len": None,
    "rollout_max_prompt_len": None,
    "rollout_max_context_len": None,
    "rollout_temperature": 1.0,
    "rollout_top_p": 1.0,
    "rollout_top_k": -1,
    "use_dynamic_batch_size": False,
    "max_tokens_per_gpu": None,
    "context_parallel_size": 1,
}
GROUP_BASELINES = ("grpo", "gspo")


def reading(source: Source, *, version: str) -> Reading:
    """Return the arguments over slime's defaults."""
    return Reading("slime", version, source, DEFAULTS)


def understand(reading: Reading) -> Run:
    """Return what slime computes (utils/ppo_utils.py, rollout/sglang_rollout.py)."""
    n = reading.integer("n_samples_per_prompt")
    rollout = reading.integer("rollout_batch_size")
    update = reading.integer("global_batch_size")
    steps = reading.integer("num_steps_per_rollout")
    responses = rollout * n if rollout and n else None
    if update is None and responses and steps:
        update = responses // steps
    estimator = reading.text("advantage_estimator") or "grpo"
    high_given = reading.value("eps_clip_high") is not None
    kl_on = reading.flag("use_kl_loss") is True
    per_token = reading.flag("calculate_per_token_loss") is True
    gspo, cispo = estimator == "gspo", estimator == "cispo"
    return Run(
        reading=reading,
        trainer="slime",
        names=_NAMES | {"eps_high": "eps_clip_high" if high_given else "eps_clip"},
        group_size=n,
        batch_groups=rollout,
        batch_responses=responses,
        update_responses=update,
        n_updates=responses / update if responses and update else None,
        denominator="sampler" if reading.flag("use_rollout_logprobs") is True else "recomputed",
        loss=estimator if gspo or cispo else "ppo",
        clip_shape="sequence" if gspo else "ratio",
        eps_low=reading.number("eps_clip"),
        eps_high=reading.number("eps_clip_high" if high_given else "eps_clip"),
        dual_c=reading.number("eps_clip_c"),
        aggregation="token mean over the update"
        if per_token
        else "mean over responses of token means",
        advantage=_advantage(reading, estimator),
        group_baseline=estimator in GROUP_BASELINES,
        kl_loss_estimator=reading.text("kl_loss_type") if kl_on else None,
        kl_loss_coef=reading.number("kl_loss_coef") if kl_on else None,
        kl_reward_estimator=reading.text("kl_loss_type") if reading.number("kl_coef") else None,
        kl_reward_coef=reading.number("kl_coef") or None,
        sampler_words=_correction(reading),
        prompt_tokens=reading.integer("rollout_max_prompt_len"),
        cap_tokens=reading.integer("rollout_max_response_len"),
        context_tokens=reading.integer("rollout_max_context_len"),
        filter=_filter(reading),
        filter_words=_filter_words(reading),
        temperature=reading.number("rollout_temperature"),
        top_p=reading.number("rollout_top_p"),
        top_k=reading.integer("rollout_top_k"),
        facts={"unbiased_kl": reading.flag("use_unbiased_kl") is True},
    )


_NAMES = {
    "group_size": "n_samples_per_prompt",
    "batch_groups": "rollout_batch_size",
    "n_updates": "global_batch_size",
    "denominator": "use_rollout_logprobs",
    "loss": "advantage_estimator",
    "eps_low": "eps_clip",
    "dual_c": "eps_clip_c",
    "aggregation": "calculate_per_token_loss",
    "kl_loss_estimator": "kl_loss_type",
    "kl_reward_coef": "kl_coef",
    "cap_tokens": "rollout_max_response_len",
    "context_tokens": "rollout_max_context_len",
    "filter": "dynamic_sampling_filter_path",
    "round_groups": "over_sampling_batch_size",
    "temperature": "rollout_temperature",
    "top_p": "rollout_top_p",
    "top_k": "rollout_top_k",
}


def _advantage(reading: Reading, estimator: str) -> str:
    if estimator not in GROUP_BASELINES:
        return estimator
    plain = reading.flag("disable_grpo_std_normalization") is True
    plain = plain or reading.flag("grpo_std_normalization") is False
    return "grpo (mean only)" if plain else "grpo (std ddof 1, + 1e-6)"


def _correction(reading: Reading) -> str:
    """Return what is done about the sampler, in words (backends/megatron_utils/loss.py)."""
    parts = []
    if reading.flag("use_tis") is True:
        custom = reading.text("custom_tis_function_path")
        bounds = (reading.number(key) for key in ("tis_clip_low", "tis_clip"))
        low, high = ("?" if bound is None else f"{bound:g}" for bound in bounds)
        how = f"by {custom.rpartition('.')[2]}" if custom else "truncated"
        parts.append(f"token weights {how} to [{low}, {high}]")
    if reading.flag("use_opsm") is True:
        delta = reading.number("opsm_delta")
        parts.append(f"punished responses out above a mean KL of {delta:g}" if delta else "OPSM")
    return "sampler correction: " + ", ".join(parts) if parts else ""


def _filter(reading: Reading) -> Filter | None:
    path = reading.text("dynamic_sampling_filter_path")
    if path is None:
        return None
    chunk = reading.integer("over_sampling_batch_size") or reading.integer("rollout_batch_size")
    return Filter(path.rpartition(".")[2], "chunks", round_groups=chunk)


def _filter_words(reading: Reading) -> str:
    kept = _filter(reading)
    if kept is None:
        return "no group filter"
    return f"groups judged by {kept.metric}, refilled in chunks of {kept.round_groups}"
