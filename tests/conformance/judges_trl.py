"""The real functions of TRL 1.16.0 behind one face each. Nothing here computes a loss.

``GRPOTrainer._compute_loss`` runs unbound on a stand-in for the trainer that hands it the
log-probs. Advantages and the vLLM correction have no function of their own: their statements are
taken out of ``_generate_and_score_completions`` by their syntax and run as they stand.
"""

import ast
import inspect
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl.rewards import get_soft_overlong_punishment
from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "vespo", "sapo", "luspo")
ENTROPY_SETTINGS = ("entropy_target", "entropy_coef_delta", "entropy_coef_min", "entropy_coef_max")
ENTROPY_MEMORY = ("_last_world_entropy", "_entropy_window_stats")


def compute_loss(
    *,
    logp: Tensor,
    old: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    loss_type: str,
    level: str = "token",
    generation_tokens: float,
    epsilon: float = 0.2,
    epsilon_high: float = 0.28,
    delta: float | None = None,
    beta: float = 0.0,
    reference: Tensor | None = None,
    bias_correction_kl: bool = False,
    weights: Tensor | None = None,
    entropy: Tensor | None = None,
    entropy_coef: float = 0.0,
    top_entropy_quantile: float = 1.0,
    off_policy_mask_threshold: float | None = None,
    sampler: Tensor | None = None,
    gradient_accumulation_steps: int = 1,
    steps_per_generation: int = 1,
    n_processes: int = 1,
    max_completion_length: int = 16,
    adaptive: dict[str, Any] | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Call ``_compute_loss`` on one micro-batch of one process: loss and logged metrics.

    ``adaptive`` is what the trainer remembers of the adaptive entropy coefficient and its settings;
    it is brought up to date.
    """
    controller = adaptive or {}
    metrics: dict[str, dict[str, list[float]]] = {"train": defaultdict(list)}
    entropies = torch.zeros_like(logp) if entropy is None else entropy
    trainer = SimpleNamespace(
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_low=epsilon,
        epsilon_high=epsilon_high,
        beta=beta,
        max_completion_length=max_completion_length,
        current_gradient_accumulation_steps=gradient_accumulation_steps,
        args=SimpleNamespace(
            delta=delta,
            steps_per_generation=steps_per_generation,
            use_bias_correction_kl=bias_correction_kl,
            **{name: value for name, value in controller.items() if name in ENTROPY_SETTINGS},
            **{
                name: default(name)
                for name in (
                    "sapo_temperature_pos",
                    "sapo_temperature_neg",
                    "vespo_k_pos",
                    "vespo_lambda_pos",
                    "vespo_k_neg",
                    "vespo_lambda_neg",
                )
            },
        ),
        accelerator=SimpleNamespace(
            num_processes=n_processes,
            gather=lambda x: x,
            gather_for_metrics=lambda x: x,
            reduce=lambda x, reduction="sum": x,
            pad_across_processes=lambda x, **_: x,
            sync_gradients=controller.get("sync_gradients", True),
        ),
        model=SimpleNamespace(training=True),
        use_vllm=weights is not None,
        vllm_importance_sampling_correction=True,
        aux_loss_enabled=False,
        top_entropy_quantile=top_entropy_quantile,
        off_policy_mask_threshold=off_policy_mask_threshold,
        _entropy_bonus_enabled=entropy_coef != 0.0 or adaptive is not None,
        entropy_coef=controller.get("entropy_coef", entropy_coef),
        use_adaptive_entropy=adaptive is not None,
        **{name: controller.get(name) for name in ENTROPY_MEMORY},
        _metrics=metrics,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropies, None),
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
    )
    trainer.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, trainer)
    rows, width = logp.shape
    inputs = {
        "prompt_ids": torch.ones(rows, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.int64),
        "completion_ids": torch.ones(rows, width, dtype=torch.int64),
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "num_items_in_batch": torch.tensor(float(generation_tokens), dtype=torch.float64),
    }
    if reference is not None:
        inputs["ref_per_token_logps"] = reference
    if sampler is not None:
        inputs["sampling_per_token_logps"] = sampler
    if weights is not None:
        inputs["importance_sampling_ratio"] = weights
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    if adaptive is not None:
        adaptive |= {name: getattr(trainer, name) for name in (*ENTROPY_MEMORY, "entropy_coef")}
    return loss, {name: values[-1] for name, values in metrics["train"].items()}


def default(name: str) -> Any:
    """Return a default of GRPOConfig."""
    return GRPOConfig.__dataclass_fields__[name].default


def overlong(lengths: Sequence[int], *, cap: int, buffer: int) -> list[float]:
    """Call the soft overlong punishment."""
    punish = get_soft_overlong_punishment(max_completion_len=cap, soft_punish_cache=buffer)
    return punish(completion_ids=[[1] * n for n in lengths])


# ---------------------------------------------------------------------------- inline statements


def _statements(is_wanted: Callable[[ast.stmt], bool]) -> CodeType:
    """Compile the one statement of ``_generate_and_score_completions`` that is wanted."""
    source = textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions))
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and is_wanted(node)
    ]
    if len(found) != 1:
        raise ImportError(f"TRL has {len(found)} statements of this kind, not one: read it again")
    return compile(ast.Module(body=found, type_ignores=[]), grpo_trainer.__file__, "exec")


def _tests(node: ast.stmt, text: str, assigns: str) -> bool:
    if not isinstance(node, ast.If) or text not in ast.unparse(node.test):
        return False
    return any(assigns in ast.unparse(child) for child in node.body)


_CORRECTION = _statements(
    lambda node: _tests(
        node, "self.vllm_importance_sampling_correction", "vllm_importance_sampling_ratio ="
    )
)
_ADVANTAGES = _statements(
    lambda node: _tests(node, "'sum_then_normalize'", "advantages = rewards - mean_grouped")
)


def vllm_correction(
    *, old: Tensor, sampler: Tensor, mask: Tensor, mode: str, low: float | None, high: float | None
) -> Tensor:
    """Run the statements that weigh tokens or sequences for the mismatch with vLLM."""
    trainer = SimpleNamespace(
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=low,
        vllm_importance_sampling_clip_max=high,
    )
    names = {
        "self": trainer,
        "old_per_token_logps": old,
        "sampling_per_token_logps": sampler,
        "completion_mask": mask,
        "tool_mask": None,
        "torch": torch,
        "math": math,
    }
    exec(_CORRECTION, names)
    found: Tensor = names["vllm_importance_sampling_ratio"]  # type: ignore[assignment]
    return found


def advantages(
    rewards: Tensor, *, group_size: int, scale_rewards: str, weights: Sequence[float], gdpo: bool
) -> Tensor:
    """Run the statements that make advantages of (N, n_rewards), groups in consecutive rows."""
    trainer = SimpleNamespace(
        multi_objective_aggregation="normalize_then_sum" if gdpo else "sum_then_normalize",
        reward_weights=torch.tensor(weights, dtype=rewards.dtype),
        reward_funcs=[None] * rewards.shape[1],
        scale_rewards=scale_rewards,
    )
    names = {
        "self": trainer,
        "rewards_per_func": rewards,
        "unscorable_mask": torch.isnan(rewards).all(dim=1),
        "num_generations": group_size,
        "device": rewards.device,
        "nanstd": grpo_trainer.nanstd,
        "torch": torch,
    }
    exec(_ADVANTAGES, names)
    found: Tensor = names["advantages"]  # type: ignore[assignment]
    return torch.nan_to_num(found, nan=0.0)
