"""verl: V1 trainer, legacy trainer, DAPO recipe, fully async and one-step-off (0.3 – 0.9.1)."""

from dapolab.check import keys
from dapolab.check.frameworks import verl_sampler
from dapolab.check.reading import Reading, Source
from dapolab.check.run import ClipShape, Filter, Overlong, Run, newer
from dapolab.check.values import Value

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
CORRECTION = verl_sampler.CORRECTION
FILTER = "algorithm.filter_groups"
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"
RECIPE_KEYS: dict[str, Value] = {
    # dapo/config/dapo_trainer.yaml of verl-recipe 48ea0a7, over verl's own ppo_trainer
    "reward.reward_manager.name": "dapo",
    "reward.reward_kwargs.max_resp_len": None,
    f"{BUFFER}.enable": False,
    f"{BUFFER}.len": 0,
    f"{BUFFER}.penalty_factor": 0.0,
    f"{BUFFER}.log": False,
    f"{FILTER}.metric": None,
}
# Where 0.9.1 still reads a setting under its old name (experimental/reward_loop/reward_loop.py).
LEGACY_NAMES = {
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_kwargs.max_resp_len": "reward.reward_kwargs.max_resp_len",
    **{
        f"reward_model.reward_kwargs.overlong_buffer_cfg.{leaf}": f"{BUFFER}.{leaf}"
        for leaf in ("enable", "len", "penalty_factor", "log")
    },
}
# Up to 0.7 the DAPO reward manager read these; there the cap was data.max_response_length.
OLD_BUFFER = {
    f"reward_model.overlong_buffer.{leaf}": f"{BUFFER}.{leaf}"
    for leaf in ("enable", "len", "penalty_factor", "log")
}
LAST_OLD_BUFFER = "0.8.0"
SHAPES: dict[str, ClipShape] = {
    "vanilla": "ratio",
    "bypass_mode": "ratio",
    "gspo": "sequence",
    "clip_cov": "ratio",
    "cispo": "ratio",
    "geo_mean": "log",
    "dppo_tv": "probability",
    "dppo_kl": "probability",
}
NO_GROUP_BASELINE = ("gae", "reinforce_plus_plus", "remax")


def reading(source: Source, *, version: str) -> Reading:
    """Return the settings over the defaults of the configuration that the launch uses."""
    defaults = keys.verl_keys(config_name(source))
    if is_recipe(source):
        defaults = defaults | RECIPE_KEYS
    if not newer(version, "0.9.1"):
        defaults = defaults | {f"{FILTER}.metric": None}  # "reward" became the default in 0.9.1
    aliases = dict(LEGACY_NAMES)
    if not newer(version, LAST_OLD_BUFFER):
        aliases |= OLD_BUFFER
    given = {aliases.get(s.key, s.key): s.value for s in source.settings if s.prefix != "~"}
    together: dict[str, Value] = defaults | given
    resolved = {key: keys.resolve(value, together) for key, value in defaults.items()}
    return Reading("verl", version, source, resolved, aliases)


def config_name(source: Source) -> str:
    """Return which of verl's top configurations is the base of this run."""
    named = next((str(s.value) for s in source.settings if s.key == "--config-name"), "")
    named = named.removesuffix(".yaml")
    entry = source.entry or ""
    top = {s.key.partition(".")[0] for s in source.settings}
    engine = next((s.value for s in source.settings if s.key == "model_engine"), "dp")
    megatron = engine == "megatron" or "megatron" in named
    megatron = megatron or any(
        s.key.startswith((f"{ACTOR}.megatron", "actor_rollout_ref.ref.megatron"))
        for s in source.settings
    )
    kind = "ppo"
    if "fully_async" in entry or "fully_async" in named or "async_training" in top:
        kind = "fully_async_ppo"
    elif "one_step_off" in entry or "one_step_off" in named:
        kind = "one_step_off_ppo"
    return f"{kind}_megatron_trainer" if megatron else f"{kind}_trainer"


def is_recipe(source: Source) -> bool:
    """Say whether the DAPO recipe's own trainer runs (verl-recipe dapo, main_dapo)."""
    return "dapo" in (source.entry or "").rpartition(".")[2].lower()


def trainer_of(reading: Reading) -> str:
    """Return which loop runs: recipe, v1-…, legacy, fully-async or one-step-off."""
    base = config_name(reading.source)
    if base.startswith("fully_async"):
        return "fully-async"
    if base.startswith("one_step_off"):
        return "one-step-off"
    if is_recipe(reading.source):
        return "recipe"
    if not newer(reading.version, "0.9.0") or reading.flag("trainer.use_v1") is False:
        return "legacy"
    return "v1-" + (reading.text("trainer.v1.trainer_mode") or "sync").replace("_", "-")


WORDS = {
    "recipe": "DAPO recipe trainer",
    "legacy": "legacy PPO trainer",
    "fully-async": "fully async trainer",
    "one-step-off": "one-step-off trainer",
}


def understand(reading: Reading) -> Run:
    """Return what the configuration computes (verl 0.9.1 core_algos.py, engine_workers.py)."""
    trainer = trainer_of(reading)
    n = reading.integer(f"{ROLLOUT}.n")
    batch, update = _batch(reading, trainer)
    passes = reading.integer(f"{ACTOR}.ppo_epochs") or 1
    loss = reading.text(f"{ACTOR}.policy_loss.loss_mode") or "vanilla"
    eps_low, low_name = _eps(reading, "low")
    eps_high, high_name = _eps(reading, "high")
    shape = SHAPES.get(loss, "none")
    c = reading.number(f"{ACTOR}.clip_ratio_c") if loss in ("vanilla", "bypass_mode") else None
    bypass = reading.flag(f"{CORRECTION}.bypass_mode") is True
    by_name = reading.text(f"{verl_sampler.LOSS_CORRECTION}.loss_type") == "reinforce"
    if loss == "bypass_mode" and by_name:
        loss, shape, c = "reinforce", "none", None
    kl_on = reading.flag(f"{ACTOR}.use_kl_loss") is True
    kl_reward = reading.flag("algorithm.use_kl_in_reward") is True
    return Run(
        reading=reading,
        trainer=WORDS.get(trainer, f"V1 {trainer.removeprefix('v1-')} trainer"),
        names=_names(low_name, high_name),
        assumed="" if reading.source.entry else "launched by main_ppo",
        group_size=n,
        batch_groups=batch,
        batch_responses=batch * n if batch and n else None,
        update_responses=update * n if update and n else None,
        n_updates=_updates(batch, update, trainer, passes),
        denominator="sampler" if bypass else "recomputed",
        loss=loss,
        clip_shape=shape,
        eps_low=eps_low,
        eps_high=eps_high,
        dual_c=c,
        aggregation=aggregation(reading, loss),
        advantage=_advantage(reading),
        sampler_words=verl_sampler.words(reading),
        group_baseline=reading.text("algorithm.adv_estimator") not in NO_GROUP_BASELINE,
        kl_loss_estimator=reading.text(f"{ACTOR}.kl_loss_type") if kl_on else None,
        kl_loss_coef=reading.number(f"{ACTOR}.kl_loss_coef") if kl_on else None,
        kl_reward_estimator=reading.text("algorithm.kl_penalty") if kl_reward else None,
        kl_reward_coef=reading.number("algorithm.kl_ctrl.kl_coef") if kl_reward else None,
        prompt_tokens=reading.integer("data.max_prompt_length"),
        cap_tokens=reading.integer("data.max_response_length"),
        context_tokens=reading.integer(f"{ROLLOUT}.max_model_len"),
        overlong=_overlong(reading),
        filter=_filter(reading, trainer),
        filter_words=_filter_words(reading, trainer),
        temperature=reading.number(f"{ROLLOUT}.temperature"),
        top_p=reading.number(f"{ROLLOUT}.top_p"),
        top_k=reading.integer(f"{ROLLOUT}.top_k"),
        warmup_steps=reading.integer(f"{ACTOR}.optim.lr_warmup_steps"),
        facts={"trainer": trainer, "syncs_every": _syncs_every(reading, trainer)},
    )


def _names(low_name: str, high_name: str) -> dict[str, str]:
    return {
        "group_size": f"{ROLLOUT}.n",
        "batch_groups": "data.train_batch_size",
        "n_updates": f"{ACTOR}.ppo_mini_batch_size",
        "denominator": f"{CORRECTION}.bypass_mode",
        "loss": f"{ACTOR}.policy_loss.loss_mode",
        "eps_low": low_name,
        "eps_high": high_name,
        "eps_any": f"{ACTOR}.clip_ratio",
        "dual_c": f"{ACTOR}.clip_ratio_c",
        "aggregation": f"{ACTOR}.loss_agg_mode",
        "kl_loss_estimator": f"{ACTOR}.kl_loss_type",
        "kl_loss_coef": f"{ACTOR}.kl_loss_coef",
        "kl_reward_coef": "algorithm.kl_ctrl.kl_coef",
        "cap_tokens": "data.max_response_length",
        "context_tokens": f"{ROLLOUT}.max_model_len",
        "overlong": f"{BUFFER}.enable",
        "buffer_tokens": f"{BUFFER}.len",
        "factor": f"{BUFFER}.penalty_factor",
        "penalty_cap": "reward.reward_kwargs.max_resp_len",
        "filter": f"{FILTER}.enable",
        "metric": f"{FILTER}.metric",
        "max_rounds": f"{FILTER}.max_num_gen_batches",
        "round_groups": "data.gen_batch_size",
        "temperature": f"{ROLLOUT}.temperature",
        "top_p": f"{ROLLOUT}.top_p",
        "top_k": f"{ROLLOUT}.top_k",
        "warmup_steps": f"{ACTOR}.optim.lr_warmup_steps",
    }


def _batch(reading: Reading, trainer: str) -> tuple[int | None, int | None]:
    """Return prompts trained per rollout and prompts per update."""
    mini = reading.integer(f"{ACTOR}.ppo_mini_batch_size")
    batch = reading.integer("data.train_batch_size")
    if trainer == "fully-async":
        required = reading.integer("async_training.require_batches")
        return (mini * required if mini and required else None), mini
    filtering = reading.flag(f"{FILTER}.enable")
    rounds = reading.integer("data.gen_batch_size")
    if trainer == "recipe" and filtering is False and rounds:
        batch = rounds  # without the filter the recipe trains on the whole generation batch
    return batch, mini


def _updates(batch: int | None, update: int | None, trainer: str, passes: int) -> float | None:
    """Return optimizer updates per rollout; V1 pads the last mini-batch, nobody else does.

    In separate_async the ratio's denominator is the policy at the start of a parameter-sync cycle,
    so a cycle counts as one rollout there.
    """
    if not batch or not update or batch < 0 or update < 0:
        return None
    whole = -(-batch // update) if trainer.startswith("v1-") else batch / update
    return float(whole * passes)


def _syncs_every(reading: Reading, trainer: str) -> int | None:
    """Return local updates, of ``require_batches`` mini-batches each, between two weight syncs."""
    key = "async_training.trigger_parameter_sync_step"
    return reading.integer(key) if trainer == "fully-async" else None


def _eps(reading: Reading, side: str) -> tuple[float | None, str]:
    """Return an ε and the setting that decides it; clip_ratio counts only where side is null."""
    name = f"{ACTOR}.clip_ratio_{side}"
    if reading.value(name) is None:
        return reading.number(f"{ACTOR}.clip_ratio"), f"{ACTOR}.clip_ratio"
    return reading.number(name), name


def aggregation(reading: Reading, loss: str) -> str:
    """Return the aggregation that the version applies for this loss."""
    mode = reading.text(f"{ACTOR}.loss_agg_mode") or "token-mean"
    if loss == "geo_mean":
        return "row mean per micro-batch, summed"
    if loss == "sapo" or (loss == "gspo" and not newer(reading.version, "0.9.1")):
        return "seq-mean-token-mean (forced)"
    if mode == "token-mean" and not newer(reading.version, "0.8.0"):
        return "token-mean per micro-batch, averaged"
    return f"{mode} over the update" if mode == "token-mean" else mode


def _advantage(reading: Reading) -> str:
    estimator = reading.text("algorithm.adv_estimator") or "gae"
    if estimator != "grpo":
        return estimator
    if reading.flag("algorithm.norm_adv_by_std_in_grpo") is False:
        return "grpo (mean only)"
    return "grpo (std ddof 1, + 1e-6)"


def _overlong(reading: Reading) -> Overlong | None:
    if reading.flag(f"{BUFFER}.enable") is not True:
        return None
    cap = reading.number("reward.reward_kwargs.max_resp_len")
    if cap is None and not reading.given("reward.reward_kwargs.max_resp_len"):
        old = not newer(reading.version, LAST_OLD_BUFFER)
        cap = reading.number("data.max_response_length") if old else None
    files = reading.readable("data.train_files").lower()
    gap = 2.0 if "dapo-math" in files or "dapo_math" in files else None
    return Overlong(
        reading.number(f"{BUFFER}.len"), cap, reading.number(f"{BUFFER}.penalty_factor"), gap
    )


def _filter(reading: Reading, trainer: str) -> Filter | None:
    if reading.flag(f"{FILTER}.enable") is not True:
        return None
    metric = reading.text(f"{FILTER}.metric")
    if trainer == "recipe":
        limit = reading.integer(f"{FILTER}.max_num_gen_batches") or 0
        rounds = reading.integer("data.gen_batch_size") or reading.integer("data.train_batch_size")
        return Filter(metric, "rounds", rounds, max_rounds=limit if limit > 0 else None)
    return Filter(metric, "credit") if trainer.startswith("v1-") else None


def _filter_words(reading: Reading, trainer: str) -> str:
    kept = _filter(reading, trainer)
    if kept is None:
        on = reading.flag(f"{FILTER}.enable") is True
        return "group filter ignored" if on else "no group filter"
    metric = kept.metric or "unset metric"
    if kept.refill == "credit":
        return f"groups with std 0 of {metric} evicted and refilled, no limit"
    limit = f"at most {kept.max_rounds}" if kept.max_rounds else "no limit"
    return f"groups with std 0 of {metric} dropped, rounds of {kept.round_groups} prompts, {limit}"
