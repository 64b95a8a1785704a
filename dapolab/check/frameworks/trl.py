"""TRL's GRPOTrainer: GRPOConfig as YAML, JSON, arguments or a Python call (≤ 1.10 and 1.16)."""

import math

from dapolab.check import keys
from dapolab.check.reading import Reading, Source
from dapolab.check.run import ClipShape, Run, newer

WINDOWED = ("dapo", "cispo", "vespo")
SHAPES: dict[str, ClipShape] = {"cispo": "absolute", "sapo": "none", "vespo": "none"}
AGGREGATIONS = {
    "grpo": "mean over responses of token means",
    "sapo": "mean over responses of token means",
    "bnpo": "token mean of each micro-batch, averaged",
    "dr_grpo": "token sum / (responses x max_completion_length)",
    "luspo": "mean over responses of token sums",
}


def reading(source: Source, *, version: str) -> Reading:
    """Return the settings over GRPOConfig's defaults (and those of the grpo command's parts)."""
    stored = keys.table("trl")
    defaults = stored["keys"] | stored["command_only"]
    return Reading("trl", version, source, defaults)


def understand(reading: Reading) -> Run:
    """Return what GRPOTrainer computes (trl/trainer/grpo_trainer.py, 1.16.0)."""
    window = reading.integer("gradient_accumulation_steps")
    generation = steps_per_generation(reading)
    passes = reading.integer("num_iterations")
    per_device = reading.integer("per_device_train_batch_size")
    group = reading.integer("num_generations")
    uses = generation * passes if generation and passes else None
    updates = uses / window if uses and window else None
    straddles = bool(uses and window and window % uses and uses % window)
    loss = reading.text("loss_type") or "dapo"
    sequence = reading.text("importance_sampling_level") == "sequence"
    low = reading.number("epsilon")
    high_given = reading.value("epsilon_high") is not None
    beta = reading.number("beta")
    shape = SHAPES.get(loss, "sequence" if sequence else "ratio")
    ranks = _processes(reading)
    per_micro = per_device * (ranks or 1) if per_device else None
    responses = generation * per_micro if generation and per_micro else None
    if reading.value("generation_batch_size") is not None:
        responses = reading.integer("generation_batch_size")
    return Run(
        reading=reading,
        trainer="GRPOTrainer",
        names=_names(high_given),
        group_size=group,
        batch_groups=responses // group if responses and group else None,
        batch_responses=responses,
        update_responses=window * per_micro if window and per_micro else None,
        per_process=ranks is None,
        n_updates=updates,
        loss=loss,
        clip_shape=shape,
        eps_low=low if shape in ("ratio", "sequence") else None,
        eps_high=(reading.number("epsilon_high") if high_given else low),
        aggregation=_aggregation(loss, reading.version, window, generation),
        advantage=_advantage(reading),
        sampler_words=_correction(reading),
        kl_loss_estimator="k3" if beta else None,
        kl_loss_coef=beta if beta else None,
        cap_tokens=reading.integer("max_completion_length"),
        context_tokens=reading.integer("vllm_max_model_length"),
        filter_words="no group filter (TRL has none)",
        temperature=reading.number("temperature"),
        top_p=reading.number("top_p"),
        top_k=reading.integer("top_k"),
        min_p=reading.number("min_p"),
        warmup_steps=reading.integer("warmup_steps") if reading.given("warmup_steps") else None,
        facts={
            "window": window,
            "generation": generation,
            "passes": passes,
            "straddles": straddles,
            "off_policy_share": off_policy_share(window, uses) if window and uses else None,
        },
    )


def _names(high_given: bool) -> dict[str, str]:
    return {
        "group_size": "num_generations",
        "n_updates": "steps_per_generation",
        "loss": "loss_type",
        "eps_low": "epsilon",
        "eps_high": "epsilon_high" if high_given else "epsilon",
        "aggregation": "loss_type",
        "kl_loss_coef": "beta",
        "cap_tokens": "max_completion_length",
        "context_tokens": "vllm_max_model_length",
    }


def steps_per_generation(reading: Reading) -> int | None:
    """Return micro-batches per generation as GRPOConfig derives them.

    None where generation_batch_size is given and the number of processes is not.
    """
    if reading.value("steps_per_generation") is not None:
        return reading.integer("steps_per_generation")
    if reading.value("generation_batch_size") is None:
        return reading.integer("gradient_accumulation_steps")
    size = reading.integer("generation_batch_size")
    per_device = reading.integer("per_device_train_batch_size")
    ranks = _processes(reading)
    return size // (per_device * ranks) if size and per_device and ranks else None


def off_policy_share(window: int, uses: int) -> float:
    """Return the share of micro-batches trained after an update on their own generation.

    ``uses`` micro-steps (passes included) follow each generation; an update ends every ``window``.
    """
    common = math.gcd(window, uses)
    w, u = window // common, uses // common
    # Generations start t = 1 … w common steps before an update's end, equally often.
    least = min(w, u)
    on_policy = least * (least + 1) // 2 + max(w - u, 0) * u
    return 1 - on_policy / (w * u)


def _processes(reading: Reading) -> int | None:
    return reading.integer("num_processes") if reading.given("num_processes") else None


def _aggregation(loss: str, version: str, window: int | None, generation: int | None) -> str:
    """Return the aggregation in words; ``window`` and ``generation`` in micro-batches."""
    if loss not in WINDOWED:
        return AGGREGATIONS.get(loss, loss)
    if window is not None and window == generation:
        return "token mean over the update"
    if not newer(version, "1.11"):
        return "token sum / the generation batch's tokens"
    if window and generation and window % generation == 0:
        return "token mean of each generation in the update, averaged"
    return "token sum / the generation batch's average tokens per update"


def _correction(reading: Reading) -> str:
    """Return the vLLM correction in words; empty where TRL generates itself or it is off."""
    name = "vllm_importance_sampling"
    on = reading.flag("use_vllm") is True and reading.flag(f"{name}_correction") is True
    if not on or not newer(reading.version, "1.11"):
        return ""
    low, high = (reading.number(f"{name}_clip_{side}") for side in ("min", "max"))
    cap = reading.number(f"{name}_cap")  # the old name wins where it is given
    high = high if cap is None else cap
    low_shown, high_shown = ("–" if bound is None else f"{bound:g}" for bound in (low, high))
    mode = reading.text(f"{name}_mode")
    return f"vLLM correction {mode}, weights within [{low_shown}, {high_shown}]"


def _advantage(reading: Reading) -> str:
    scale = reading.value("scale_rewards")
    words = {"True": "group", "False": "none"}.get(str(scale), str(scale))
    if words == "none":
        return "group mean only"
    return f"group mean / ({words} std ddof 1, + 1e-4)"
