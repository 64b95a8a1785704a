"""Which of dapolab's settings compute what TRL computes, by loss type and level."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import judges_trl as trl
import torch
from draws import Draw, Split
from torch import Tensor

from dapolab.objective import advantages, policy_loss
from dapolab.scenario import (
    Advantage,
    Aggregation,
    BatchStdAdvantage,
    CispoClip,
    Clip,
    GdpoAdvantage,
    GenerationWindow,
    GrpoAdvantage,
    GspoClip,
    LuspoClip,
    MeanOnlyAdvantage,
    Objective,
    PpoClip,
    SapoClip,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMeanMicro,
    VespoClip,
)

LOW, HIGH, CISPO_CAP, LENGTH = 0.2, 0.28, 3.0, 16
LEVELS = ("token", "sequence")
PAIRS = [(loss, level) for loss in trl.LOSS_TYPES for level in LEVELS]


def clip(loss: str, level: str, delta: float | None) -> Clip:
    """Return dapolab's surrogate."""
    if loss == "cispo":
        return CispoClip(bounds="absolute", low=None, high=CISPO_CAP, level=level)  # type: ignore[arg-type]
    if loss == "sapo":
        return SapoClip(level=level)  # type: ignore[arg-type]
    if loss == "vespo":
        return VespoClip(log_ratio_clamp=20.0, log_weight_clamp=True)
    if loss == "luspo" and delta is None:
        return LuspoClip(low=LOW, high=HIGH, level=level)  # type: ignore[arg-type]
    if level == "sequence":
        return GspoClip(low=LOW, high=HIGH, level="sequence", delta=delta)
    return PpoClip(low=LOW, high=HIGH, delta=delta)


def aggregation(loss: str, delta: float | None, n_accumulate: int, n_steps: int) -> Aggregation:
    """Return dapolab's aggregation."""
    match loss:
        case "grpo" | "sapo":
            return SeqMeanTokenMean(micro="mean")
        case "bnpo":
            return TokenMeanMicro(combine="mean")
        case "dr_grpo":
            return SeqMeanTokenSumNorm(constant=LENGTH, micro="mean")
        case "luspo":
            # LuspoClip carries the factor n; with δ the plain surrogate is summed instead.
            return SeqMeanTokenMean(micro="mean") if delta is None else SeqMeanTokenSum(
                micro="mean"
            )  # fmt: skip
        case _:
            return GenerationWindow(
                variant="trl-1.16",
                gradient_accumulation_steps=n_accumulate,
                steps_per_generation=n_steps,
            )


def judged_loss(
    loss: str,
    data: Draw,
    A_N: Tensor,
    split: Split,
    *,
    logp: Tensor,
    generation_tokens: float,
    n_steps: int,
    per_row: Mapping[str, Tensor] | None = None,
    **settings: Any,
) -> tuple[Tensor, dict[str, float]]:
    """Let TRL compute each micro-batch; they are added, processes averaged as DDP does."""
    total, told = torch.zeros((), dtype=logp.dtype), {}
    limits = {"epsilon": LOW, "epsilon_high": CISPO_CAP if loss == "cispo" else HIGH}
    for rank in split.rows:
        for micro in rank:
            rows = list(micro)
            value, told = trl.compute_loss(
                logp=logp[rows],
                old=data.old[rows],
                advantages=A_N[rows],
                mask=data.mask[rows],
                loss_type=loss,
                generation_tokens=generation_tokens,
                gradient_accumulation_steps=len(rank),
                steps_per_generation=n_steps,
                n_processes=split.n_ranks,
                max_completion_length=LENGTH,
                **(limits | settings),
                **{name: values[rows] for name, values in (per_row or {}).items()},
            )
            total = total + value / split.n_ranks
    return total, told


def our_loss(
    config: Objective,
    data: Draw,
    A: Tensor,
    split: Split,
    *,
    logp: Tensor,
    generation_tokens: float,
) -> Tensor:
    """Let dapolab compute the update."""
    structure = replace(split.structure, generation_tokens=generation_tokens)
    return policy_loss(data.batch(logp, A), config, structure=structure).value


ESTIMATORS: dict[str, Advantage] = {
    "group": GrpoAdvantage(ddof=1, eps=1e-4),
    "batch": BatchStdAdvantage(ddof=1, eps=1e-4),
    "none": MeanOnlyAdvantage(),
    "gdpo": GdpoAdvantage(weights=(1.0, 0.5), ddof=1, eps=1e-4, whiten="rows"),
}
"""``scale_rewards``, and GDPO (``multi_objective_aggregation="normalize_then_sum"``)."""


def judged_advantage(name: str, data: Draw) -> Tensor:
    """Let TRL make advantages; (N,)."""
    gdpo = name == "gdpo"
    rewards = torch.stack([data.rewards, data.values[:, 0].round()], dim=-1)
    return trl.advantages(
        rewards if gdpo else rewards[:, :1],
        group_size=4,
        scale_rewards="group" if gdpo else name,
        weights=(1.0, 0.5) if gdpo else (1.0,),
        gdpo=gdpo,
    )


def our_advantage(name: str, data: Draw) -> Tensor:
    """Let dapolab make advantages of the same rewards; (N, 1)."""
    rewards = data.rewards
    if name == "gdpo":
        rewards = torch.stack([data.rewards, data.values[:, 0].round()], dim=-1)
    found = advantages(rewards, ESTIMATORS[name], group=data.group, mask=data.mask)
    return found.value
