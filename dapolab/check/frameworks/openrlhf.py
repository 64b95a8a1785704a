"""OpenRLHF's train_ppo_ray: dotted arguments (0.11) and the flat ones of earlier releases."""

from dapolab.check import keys
from dapolab.check.reading import Reading, Source
from dapolab.check.run import Filter, Overlong, Run, newer
from dapolab.check.values import Value

# Flat names of releases before the dotted ones -> the dotted name of the same setting.
FLAT = {
    "advantage_estimator": "algo.advantage.estimator",
    "dynamic_filtering": "algo.dynamic_filtering_enable",
    "dynamic_filtering_reward_range": "algo.dynamic_filtering_range",
    "remote_rm_url": "reward.remote_url",
    "agent_func_path": "train.agent_func_path",
    "vllm_generate_batch_size": "rollout.vllm_generate_batch_size",
    "init_kl_coef": "algo.kl.init_coef",
    "kl_estimator": "algo.kl.estimator",
    "use_kl_loss": "algo.kl.use_loss",
    "eps_clip": "actor.eps_clip",
    "eps_clip_low_high": "actor.eps_clip_low_high",
    "dual_clip": "actor.dual_clip",
    "policy_loss_type": "actor.policy_loss_type",
    "train_batch_size": "train.batch_size",
    "rollout_batch_size": "rollout.batch_size",
    "micro_train_batch_size": "train.micro_batch_size",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "max_epochs": "train.max_epochs",
    "generate_max_len": "rollout.max_new_tokens",
    "max_len": "data.max_len",
    "max_new_tokens": "rollout.max_new_tokens",
    "overlong_buffer_len": "reward.overlong_buffer_len",
    "overlong_penalty_factor": "reward.overlong_penalty_factor",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "use_dynamic_batch": "train.dynamic_batch_enable",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu",
    "async_train": "train.async_enable",
    "prompt_max_len": "prompt_max_len",
}
CORRECTION = "algo.advantage.is_correction"
GROUP_BASELINES = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
DOTTED_SINCE = "0.11.0"


def reading(source: Source, *, version: str) -> Reading:
    """Return the arguments, under their dotted names, over the parser's defaults."""
    aliases = {old: new for old, new in FLAT.items() if old != new}
    return Reading("openrlhf", version, source, keys.table("openrlhf")["keys"], aliases)


def understand(reading: Reading) -> Run:
    """Return what train_ppo_ray computes (models/loss.py, samples_generator.py; 0.11.2)."""
    n = reading.integer("rollout.n_samples_per_prompt")
    rollout = reading.integer("rollout.batch_size")
    update = reading.integer("train.batch_size")
    passes = reading.integer("train.max_epochs") or 1
    low, high, name = _eps(reading)
    responses = rollout * n if rollout and n else None
    estimator = reading.text("algo.advantage.estimator") or "gae"
    kl_on = reading.flag("algo.kl.use_loss") is True
    kl = reading.text("algo.kl.estimator"), reading.number("algo.kl.init_coef")
    kl_reward = not kl_on and kl[1] != 0
    gspo = reading.text("actor.policy_loss_type") == "gspo"
    cap = reading.integer("rollout.max_new_tokens")
    return Run(
        reading=reading,
        trainer="train_ppo_ray",
        names=_NAMES | {"eps_low": name, "eps_high": name},
        group_size=n,
        batch_groups=rollout,
        batch_responses=responses,
        update_responses=update,
        n_updates=responses // update * passes if responses and update else None,
        loss="gspo" if gspo else "ppo",
        clip_shape="sequence" if gspo else "ratio",
        eps_low=low,
        eps_high=high,
        dual_c=reading.number("actor.dual_clip"),
        aggregation=_aggregation(reading, gspo),
        advantage=estimator,
        group_baseline=estimator in GROUP_BASELINES,
        denominator="sampler" if gspo and _level(reading) != "off" else "recomputed",
        sampler_words=_correction(reading),
        kl_loss_estimator=kl[0] if kl_on else None,
        kl_loss_coef=kl[1] if kl_on else None,
        kl_reward_estimator=kl[0] if kl_reward else None,
        kl_reward_coef=kl[1] if kl_reward else None,
        prompt_tokens=reading.integer("prompt_max_len"),
        cap_tokens=cap,
        context_tokens=reading.integer("data.max_len") if reading.given("data.max_len") else None,
        overlong=_overlong(reading, cap),
        filter=_filter(reading),
        filter_words=_filter_words(reading),
        temperature=reading.number("rollout.temperature"),
        top_p=reading.number("rollout.top_p"),
        facts={"unbiased_kl": reading.flag("algo.kl.unbiased_gradient") is True},
    )


_NAMES = {
    "group_size": "rollout.n_samples_per_prompt",
    "batch_groups": "rollout.batch_size",
    "n_updates": "train.batch_size",
    "dual_c": "actor.dual_clip",
    "kl_loss_estimator": "algo.kl.estimator",
    "kl_loss_coef": "algo.kl.init_coef",
    "kl_reward_coef": "algo.kl.init_coef",
    "denominator": f"{CORRECTION}_level",
    "cap_tokens": "rollout.max_new_tokens",
    "context_tokens": "data.max_len",
    "overlong": "reward.overlong_buffer_len",
    "buffer_tokens": "reward.overlong_buffer_len",
    "factor": "reward.overlong_penalty_factor",
    "filter": "algo.dynamic_filtering_enable",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
}


def _level(reading: Reading) -> str:
    """Return the level of the correction for vLLM: off, token or seq."""
    if newer(reading.version, DOTTED_SINCE):
        return reading.text(f"{CORRECTION}_level") or "off"
    if reading.flag("enable_vllm_is_correction") is not True:
        return "off"
    return "seq" if _kind(reading) == "seq-mask-tis" else "token"


def _kind(reading: Reading) -> str:
    """Return tis, icepop or seq-mask-tis, as releases before 0.11 name them."""
    if reading.flag("use_icepop") is True:
        return "icepop"
    return reading.text("vllm_is_correction_type") or "tis"


def _correction(reading: Reading) -> str:
    """Return the correction in words (models/loss.py; tis, icepop, seq-mask-tis before 0.11)."""
    level = _level(reading)
    if level == "off" or reading.text("actor.policy_loss_type") == "gspo":
        return ""
    new = newer(reading.version, DOTTED_SINCE)
    kind = _kind(reading)
    bounds = reading.value(f"{CORRECTION}_threshold" if new else "vllm_is_truncated_threshold")
    if not isinstance(bounds, list):  # one number is an upper bound
        bounds = [0.5, 5.0] if bounds is None else [bounds]
    within = f"within [{', '.join(str(b) for b in [0, *bounds][-2:])}]"
    clips = reading.text(f"{CORRECTION}_mode") == "clip" if new else kind == "tis"
    if clips:
        return f"sampler correction: token weights truncated, {within}"
    what = (reading.text(f"{CORRECTION}_gating") or "ratio") if new else "ratio"
    unit = "responses whose mean" if level == "seq" else "tokens whose"
    return f"sampler correction: token weights, {unit} {what} is not {within} out"


def _eps(reading: Reading) -> tuple[float | None, float | None, str]:
    pair = reading.value("actor.eps_clip_low_high")
    if isinstance(pair, list) and len(pair) == 2:
        low, high = (_float(item) for item in pair)
        return low, high, "actor.eps_clip_low_high"
    eps = None if pair is not None else reading.number("actor.eps_clip")
    return eps, eps, "actor.eps_clip"


def _float(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _aggregation(reading: Reading, gspo: bool) -> str:
    if reading.text("actor.loss_agg_mode") == "seq-mean-token-mean" or gspo:
        return "mean over responses of token means"
    return "token mean over the update"


def _overlong(reading: Reading, cap: int | None) -> Overlong | None:
    if reading.value("reward.overlong_buffer_len") is None:
        return None
    limit = cap if cap is not None else reading.integer("data.max_len")
    return Overlong(
        reading.number("reward.overlong_buffer_len"),
        limit,
        reading.number("reward.overlong_penalty_factor"),
        None,
    )


def _filter(reading: Reading) -> Filter | None:
    if reading.flag("algo.dynamic_filtering_enable") is not True:
        return None
    return Filter("score", "one-for-one")


def _filter_words(reading: Reading) -> str:
    if _filter(reading) is None:
        return "no group filter"
    bounds = reading.value("algo.dynamic_filtering_range")
    low, high = bounds if isinstance(bounds, list) and len(bounds) == 2 else (0, 1)
    return f"groups kept where {low} < mean score < {high}, one-for-one refill"
