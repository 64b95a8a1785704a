"""Batch: sizes that do not fit, token budgets, masks that empty it, what is counted in steps."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks.dapo06 import MOST_RESPONSES
from dapolab.check.frameworks.verl import ACTOR, ROLLOUT
from dapolab.check.run import Run

VALIDATE = "verl 0.9.1 workers/config/actor.py, utils/config.py (validate_config)"
MINI = f"{ACTOR}.ppo_mini_batch_size"


def mini_over_batch(run: Run) -> Iterator[Finding]:
    """Flag: a mini-batch larger than the batch."""
    if run.batch_responses is None or run.update_responses is None:
        return
    if run.update_responses <= run.batch_responses:
        return
    shown = f"{run.update_responses} responses an update, {run.batch_responses} in a rollout"
    if run.framework == "verl":
        yield from _verl_mini_over_batch(run)
        return
    if run.framework == "trl":
        return  # an accumulation window may span generations: no loss, an on-policy update
    yield run.finding(
        "batch-mini-over-batch",
        "error" if run.framework == "slime" else "warning",
        "n_updates",
        f"{shown}: no full update per rollout",
        suggestion=f"{run.batch_responses} or a divisor of it",
        source="slime 624b824 utils/arguments.py; OpenRLHF 0.11.2 cli/train_ppo_ray.py",
        certain=run.framework == "slime",
    )


def _verl_mini_over_batch(run: Run) -> Iterator[Finding]:
    mini = run.reading.integer(MINI)
    if run.batch_groups is None or mini is None:
        return
    dynamic = run.reading.flag(f"{ACTOR}.use_dynamic_bsz") is True
    v1 = str(run.facts.get("trainer")).startswith("v1")
    default = "" if run.reading.given(MINI) else " (the default)"
    shown = f"ppo_mini_batch_size = {mini}{default} is above the {run.batch_groups} prompts trained"
    effect = "ValueError at start"
    if dynamic:
        effect = "padding rows fill the one update" if v1 else "AssertionError at the first update"
    yield run.finding(
        "batch-mini-over-batch",
        "warning" if dynamic and v1 else "error",
        "n_updates" if run.reading.given(MINI) else "batch_groups",
        f"{shown}: {effect}",
        suggestion=f"ppo_mini_batch_size={run.batch_groups} or a divisor of it",
        source=VALIDATE,
        certain=not dynamic,
    )


def not_divisible(run: Run) -> Iterator[Finding]:
    """Flag: verl: batch, mini-batch and ranks that never align (field case B39)."""
    if run.framework != "verl" or not run.group_size or not run.batch_groups:
        return
    ranks = _ranks(run)
    mini = run.reading.integer(MINI)
    trainer = str(run.facts.get("trainer"))
    responses = run.batch_groups * run.group_size
    dynamic = run.reading.flag(f"{ACTOR}.use_dynamic_bsz") is True
    if ranks and not dynamic and responses % ranks and trainer != "fully-async":
        yield run.finding(
            "batch-not-divisible",
            "error",
            "batch_groups",
            f"{run.batch_groups} prompts x {run.group_size} responses = {responses} are not "
            f"divisible by {ranks} GPUs ({responses % ranks} left over): AssertionError at start",
            suggestion=f"a batch whose responses are a multiple of {ranks}",
            source=VALIDATE,
            certain=not _megatron(run),
        )
    if not mini:
        return
    if 0 < mini < run.batch_groups and run.batch_groups % mini:
        yield from _uneven_minis(run, mini, trainer)
    dp = _data_parallel(run)
    if dp and mini * run.group_size % dp:
        yield run.finding(
            "batch-not-divisible",
            "error",
            "n_updates",
            f"a mini-batch of {mini} x {run.group_size} = {mini * run.group_size} responses is not "
            f"divisible by {dp} data-parallel ranks: AssertionError at the first update",
            suggestion=f"a mini-batch whose responses are a multiple of {dp}",
            source="verl 0.9.1 workers/engine_workers.py:267",
            certain=not _megatron(run),
        )


def _uneven_minis(run: Run, mini: int, trainer: str) -> Iterator[Finding]:
    assert run.batch_groups is not None
    left = run.batch_groups % mini
    v1 = trainer.startswith("v1")
    effect = f"V1 pads the last one with {mini - left} empty groups" if v1 else "AssertionError"
    yield run.finding(
        "batch-not-divisible",
        "warning" if v1 else "error",
        "n_updates",
        f"{run.batch_groups} prompts are not a multiple of mini-batches of {mini} "
        f"({left} left over): {effect}",
        suggestion=f"a divisor of {run.batch_groups}",
        source="verl 0.9.1 utils/tensordict_utils.py:588; v1/trainer_base.py:1585-1606",
        certain=not v1,
    )


def _ranks(run: Run) -> int | None:
    gpus = run.reading.integer("trainer.n_gpus_per_node")
    nodes = run.reading.integer("trainer.nnodes")
    if not run.reading.given("trainer.n_gpus_per_node"):
        return None  # a fragment: the default of 8 is nobody's choice
    return gpus * nodes if gpus and nodes else None


def _megatron(run: Run) -> bool:
    return bool(run.reading.under(f"{ACTOR}.megatron")) or "megatron" in str(
        run.reading.text("model_engine")
    )


def _data_parallel(run: Run) -> int | None:
    ranks = _ranks(run)
    sp = run.reading.integer(f"{ACTOR}.ulysses_sequence_parallel_size")
    return ranks // sp if ranks and sp and not _megatron(run) and ranks % sp == 0 else None


def micro_unset(run: Run) -> Iterator[Finding]:
    """Flag: verl: neither a micro-batch size nor dynamic batches."""
    if run.framework != "verl" or run.reading.source.entry is None:
        return
    if run.reading.flag(f"{ACTOR}.use_dynamic_bsz") is not False:
        return
    sizes = (f"{ACTOR}.ppo_micro_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    if any(run.reading.value(key) is not None for key in sizes):
        return
    yield run.finding(
        "batch-micro-unset",
        "error",
        sizes[1],
        "neither a micro-batch size nor dynamic batches: AssertionError at start",
        suggestion=f"{ACTOR}.use_dynamic_bsz=True, or {sizes[1]}=<n>",
        source=VALIDATE,
    )


def token_budget(run: Run) -> Iterator[Finding]:
    """Flag: a token budget per GPU that one long sequence does not fit into."""
    if run.framework == "verl":
        yield from _verl_budget(run)
        return
    if run.framework not in ("slime", "openrlhf") or run.cap_tokens is None:
        return
    key = "max_tokens_per_gpu" if run.framework == "slime" else "train.max_tokens_per_gpu"
    flag = "use_dynamic_batch_size" if run.framework == "slime" else "train.dynamic_batch_enable"
    budget = run.reading.integer(key)
    ring = "context_parallel_size" if run.framework == "slime" else "ds.ring_attn_size"
    parallel = run.reading.integer(ring) or 1
    need = run.cap_tokens + (run.prompt_tokens or 0)
    if budget is None or run.reading.flag(flag) is not True or budget * parallel >= need:
        return
    yield run.finding(
        "batch-token-budget",
        "warning",
        key,
        f"{budget} tokens per GPU x {parallel} are below one sequence of up to {need} tokens: "
        "long answers exceed the budget and may run out of memory",
        suggestion=f"at least {-(-need // parallel)}",
        source="slime 624b824 --max-tokens-per-gpu; OpenRLHF 0.11.2",
        certain=False,
    )


def _verl_budget(run: Run) -> Iterator[Finding]:
    if run.reading.flag(f"{ACTOR}.use_dynamic_bsz") is not True or _megatron(run):
        return
    sp = run.reading.integer(f"{ACTOR}.ulysses_sequence_parallel_size") or 1
    if run.cap_tokens is None or run.prompt_tokens is None:
        return
    need = run.cap_tokens + run.prompt_tokens
    for key in (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu"):
        budget = run.reading.integer(key)
        if budget is None or budget * sp >= need:
            continue
        default = "" if run.reading.given(key) else " (the default)"
        yield run.finding(
            "batch-token-budget",
            "error",
            key if run.reading.given(key) else "cap_tokens",
            f"{key.rpartition('.')[2]} = {budget}{default} x sequence parallel {sp} is below "
            f"prompt + response = {need}: AssertionError at the first longer sequence",
            suggestion=f"{key.rpartition('.')[2]}={-(-need // sp)} or more",
            source="verl 0.9.1 utils/seqlen_balancing.py:384",
        )
        return


def trl_generation(run: Run) -> Iterator[Finding]:
    """Flag: TRL: both sizes given, or groups that do not fill the generation batch."""
    r = run.reading
    if run.framework != "trl":
        return
    if r.value("generation_batch_size") is not None and r.value("steps_per_generation") is not None:
        yield run.finding(
            "batch-generation-twice",
            "error",
            "generation_batch_size",
            "generation_batch_size and steps_per_generation are both set: ValueError",
            suggestion="set one of them",
            source="TRL 1.16 GRPOConfig.__post_init__",
        )
        return
    size = r.integer("generation_batch_size") or run.batch_responses
    G = run.group_size
    if not size or not G or size % G == 0:
        return
    exact = r.value("generation_batch_size") is not None or r.given("num_processes")
    yield run.finding(
        "batch-not-divisible",
        "error" if exact else "warning",
        "group_size",
        f"a generation batch of {size}{'' if exact else ' per process'} is not divisible by "
        f"num_generations = {G}: ValueError"
        + ("" if exact else " unless the number of processes makes up for it"),
        suggestion=f"per_device_train_batch_size x processes x steps a multiple of {G}",
        source="TRL 1.16 GRPOConfig.__post_init__",
        certain=exact,
    )


def others_not_divisible(run: Run) -> Iterator[Finding]:
    """Flag: slime and OpenRLHF: the rollout is not a multiple of the update."""
    total, update = run.batch_responses, run.update_responses
    if run.framework not in ("slime", "openrlhf") or not total or not update or update > total:
        return
    if total % update == 0:
        return
    slime = run.framework == "slime"
    yield run.finding(
        "batch-not-divisible",
        "error" if slime else "warning",
        "n_updates",
        f"{total} responses per rollout are not a multiple of {update} per update "
        f"({total % update} left over)" + (": the arguments are refused" if slime else ""),
        suggestion=f"a divisor of {total}",
        source="slime 624b824 utils/arguments.py; OpenRLHF 0.11.2 cli/train_ppo_ray.py",
        certain=slime,
    )


def dapo06_limit(run: Run) -> Iterator[Finding]:
    """Flag: 06-dapo: more responses per step than one training batch may have."""
    if run.framework != "06-dapo" or run.batch_responses is None:
        return
    if run.batch_responses > MOST_RESPONSES:
        yield run.finding(
            "batch-too-large",
            "error",
            "batch_groups",
            f"{run.batch_groups} groups x {run.group_size} = {run.batch_responses} responses exceed"
            f" the {MOST_RESPONSES} of one training batch: refused at start",
            suggestion=f"groups x group size <= {MOST_RESPONSES}",
            source="agentic-rl-lab 06-dapo/train.py:47, 605-611 (5fc44d8)",
        )


def async_sizes(run: Run) -> Iterator[Finding]:
    """Flag: verl's fully async and separate async modes ask for sizes of their own."""
    trainer = run.facts.get("trainer")
    if trainer == "fully-async":
        for key, must in (("data.train_batch_size", 0), ("data.gen_batch_size", 1)):
            if run.reading.integer(key) not in (None, must):
                yield run.finding(
                    "batch-async-sizes",
                    "error",
                    key,
                    f"the fully async trainer needs {key}={must}, here {run.reading.integer(key)}: "
                    "AssertionError at start",
                    suggestion=f"{key}={must}",
                    source="verl 0.9.1 fully_async_policy/fully_async_rollouter.py:351-352",
                )
    if trainer == "v1-separate-async":
        batch = run.reading.integer("data.train_batch_size")
        mini = run.reading.integer(MINI)
        syncs = run.reading.integer("trainer.v1.separate_async.parameter_sync_step")
        if batch and mini and syncs and batch != mini * syncs:
            yield run.finding(
                "batch-async-sizes",
                "error",
                "batch_groups",
                f"separate_async needs train_batch_size = parameter_sync_step x "
                f"ppo_mini_batch_size = {syncs} x {mini} = {syncs * mini}, here {batch}",
                suggestion=f"data.train_batch_size={syncs * mini}",
                source="verl 0.9.1 trainer/ppo/v1 (separate_async)",
            )


def masks_can_empty(run: Run) -> Iterator[Finding]:
    """Flag: masking truncated answers can leave an update without a token (field case B08)."""
    key = {"trl": "mask_truncated_completions", "nemo-rl": "grpo.overlong_filtering"}.get(
        run.framework
    )
    if key is None or run.reading.flag(key) is not True:
        return
    yield run.finding(
        "batch-masks-can-empty",
        "note",
        key,
        "truncated answers are masked: an update whose answers are all truncated has no token left "
        "and learns nothing, and the masked answers still shape their group's advantages",
        suggestion="watch the truncation rate; raise the cap before masking",
        source="unsloth-zoo#1286; TRL 1.16 grpo_trainer.py:2417-2427",
    )


def epochs(run: Run) -> Iterator[Finding]:
    """Flag: the recipe counts planned steps in generation batches (field case B42)."""
    if run.facts.get("trainer") != "recipe" or run.filter is None:
        return
    if run.reading.value("trainer.total_training_steps") is not None:
        return
    yield run.finding(
        "batch-steps-are-rounds",
        "note",
        "filter" if not run.given("round_groups") else "round_groups",
        f"planned steps count generation batches of {run.filter.round_groups} prompts: with k "
        "batches per step the data end after 1/k of them, and an LR schedule stops 1/k through",
        suggestion="more epochs, or trainer.total_training_steps with a constant rate",
        source="verl ray_trainer.py:435-441; verl#991, #1334",
    )


def warmup(run: Run) -> Iterator[Finding]:
    """Flag: warm-up steps are rollout steps in verl, optimizer updates in TRL (field case B55)."""
    steps, n = run.warmup_steps, run.n_updates
    if not steps or steps <= 0 or n is None or n <= 1 or not run.given("warmup_steps"):
        return
    if run.framework == "verl":
        message = (
            f"{steps} warm-up steps are rollout steps, {steps * n:.5g} optimizer updates; the DAPO "
            "paper warms up over 20 rollout steps"
        )
        source = "verl 0.9.1 workers/engine_workers.py:308; DAPO §4.1"
    else:
        message = f"{steps} warm-up steps are optimizer updates, {steps / n:.4g} rollouts"
        source = "transformers Trainer counts optimizer steps"
    yield run.finding("batch-warmup-units", "note", "warmup_steps", message, source=source)


RULES = (
    mini_over_batch,
    not_divisible,
    micro_unset,
    token_budget,
    trl_generation,
    others_not_divisible,
    dapo06_limit,
    async_sizes,
    masks_can_empty,
    epochs,
    warmup,
)
