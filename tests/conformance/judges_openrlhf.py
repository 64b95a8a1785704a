"""The real ``PolicyLoss`` of OpenRLHF 0.11.2. Nothing here computes a loss.

``openrlhf.models`` imports deepspeed on import and its losses use none of it: the two modules are
loaded from their files, with an empty stand-in for deepspeed while that happens.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def _load() -> ModuleType:
    """Return ``openrlhf.models.loss``."""
    spec = importlib.util.find_spec("openrlhf")
    assert spec is not None, "OpenRLHF is not installed here"
    assert spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations))) / "models"
    package = ModuleType("openrlhf.models")
    package.__path__ = [str(folder)]
    stand_ins = {"deepspeed": ModuleType("deepspeed"), "openrlhf.models": package}
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules |= stand_ins
    try:
        return importlib.import_module("openrlhf.models.loss")
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


PolicyLoss: Any = _load().PolicyLoss


def policy_loss(
    *,
    logp: Tensor,
    old: Tensor,
    sampler: Tensor,
    advantages: Tensor,
    mask: Tensor,
    micros: tuple[tuple[tuple[int, ...], ...], ...],
    by_sample: bool = False,
    **settings: Any,
) -> Tensor:
    """Call ``PolicyLoss`` on every micro-batch of every rank and add up as DDP does.

    Parameters
    ----------
    micros
        Rank → micro-batches → rows. The counts that every call gets are the update's, as
        ``get_loss_batch_info`` takes them before the first backward pass.
    by_sample
        ``--actor.loss_agg_mode seq-mean-token-mean``.
    settings
        Of ``PolicyLoss``.
    """
    judge = PolicyLoss(token_level_loss=not by_sample, **settings)
    counts = {
        "dp_size": len(micros),
        "batch_num_tokens": float(mask.sum()),
        "global_batch_size": float((mask.sum(dim=-1) > 0).sum()),
    }
    total = torch.zeros((), dtype=logp.dtype)
    for rank in micros:
        for micro in rank:
            rows = list(micro)
            value, *_ = judge(
                logp[rows],
                old[rows],
                advantages[rows],
                action_mask=mask[rows],
                rollout_log_probs=sampler[rows],
                **counts,
            )
            total = total + value / len(micros)
    return total


def filtered_share(*, old: Tensor, sampler: Tensor, mask: Tensor, **settings: Any) -> float:
    """Return the share of tokens, or of responses, that a correction drops, as it logs it."""
    judge = PolicyLoss(**settings)
    *_, share = judge(old, old, torch.ones_like(old), action_mask=mask, rollout_log_probs=sampler)
    return float(share)
