"""NeMo RL's GRPO YAML (commit 7ea279a): the settings that decide clip, filter and loss."""

from dapolab.check.reading import Reading, Source
from dapolab.check.run import Filter, Run
from dapolab.check.values import Value

# examples/configs/grpo_math_1B.yaml and nemo_rl/algorithms/grpo.py; only what is read here
DEFAULTS: dict[str, Value] = {
    "grpo.num_prompts_per_step": None,
    "grpo.num_generations_per_prompt": None,
    "grpo.use_leave_one_out_baseline": True,
    "grpo.normalize_rewards": True,
    "grpo.use_dynamic_sampling": False,
    "grpo.dynamic_sampling_max_gen_batches": 10,
    "grpo.batch_multiplier": 1,
    "grpo.overlong_filtering": False,
    "policy.train_global_batch_size": None,
    "policy.max_total_sequence_length": None,
    "policy.generation.temperature": 1.0,
    "policy.generation.top_p": 1.0,
    "policy.generation.top_k": None,
    "loss_fn.ratio_clip_min": 0.2,
    "loss_fn.ratio_clip_max": 0.2,
    "loss_fn.ratio_clip_c": None,
    "loss_fn.token_level_loss": True,
    "loss_fn.reference_policy_kl_penalty": 0.01,
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
    return Run(
        reading=reading,
        trainer="NeMo RL GRPO",
        names=_NAMES,
        group_size=n,
        batch_groups=groups,
        batch_responses=responses,
        update_responses=update,
        n_updates=responses / update if responses and update else None,
        eps_low=reading.number("loss_fn.ratio_clip_min"),
        eps_high=reading.number("loss_fn.ratio_clip_max"),
        dual_c=reading.number("loss_fn.ratio_clip_c"),
        aggregation="token mean" if token_level else "mean over responses of token means",
        advantage="leave-one-out mean and std" if leave_one_out else "group mean / std",
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
    "filter": "grpo.use_dynamic_sampling",
    "max_rounds": "grpo.dynamic_sampling_max_gen_batches",
    "round_groups": "grpo.batch_multiplier",
    "temperature": "policy.generation.temperature",
    "top_p": "policy.generation.top_p",
    "top_k": "policy.generation.top_k",
}


def _filter(reading: Reading, groups: int | None) -> Filter | None:
    if reading.flag("grpo.use_dynamic_sampling") is not True:
        return None
    times = reading.number("grpo.batch_multiplier") or 1.0
    limit = reading.integer("grpo.dynamic_sampling_max_gen_batches")
    return Filter(
        "std",
        "rounds",
        int(groups * times) if groups else None,
        max_rounds=limit + 1 if limit is not None else None,  # grpo.py: one more is generated
    )


def _words(reading: Reading) -> str:
    kept = _filter(reading, reading.integer("grpo.num_prompts_per_step"))
    if kept is None:
        return "no filter"
    return f"samples with std 0 dropped, at most {kept.max_rounds} rounds"
