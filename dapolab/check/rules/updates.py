"""Updates: token budgets, masks that empty an update, what is counted in steps."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks.verl import ACTOR, ROLLOUT
from dapolab.check.rules.batch import VALIDATE, megatron
from dapolab.check.run import Run


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
    if run.reading.flag(f"{ACTOR}.use_dynamic_bsz") is not True or megatron(run):
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


RULES = (micro_unset, token_budget, masks_can_empty, epochs, warmup)
