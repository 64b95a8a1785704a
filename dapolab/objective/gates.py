"""Rules that take the surrogate from tokens or responses; denominators and KL stay as they are."""

import torch
from torch import Tensor

from dapolab.objective.batch import Batch
from dapolab.objective.masking import keep_valid, row_mean
from dapolab.objective.quantiles import weighted_quantile
from dapolab.objective.tokens import Tokens
from dapolab.scenario import Objective


@torch.no_grad()
def token_gate(batch: Batch, tokens: Tokens, config: Objective) -> Tensor | None:
    """Return 1 where the surrogate counts and 0 where a rule takes it; None without a rule.

    Raises
    ------
    ConfigError
        If ``off_policy_kl`` meets no sampler log-probs, or ``top_entropy_share`` no entropy.
    """
    gate: Tensor | None = None
    if config.off_policy_kl is not None:
        gate = _near_policy(batch, tokens, config.off_policy_kl)
    if config.top_entropy_share < 1.0:
        uncertain = _top_entropy(batch, tokens.mask, config.top_entropy_share)
        gate = uncertain if gate is None else gate & uncertain
    return None if gate is None else gate.to(tokens.raw_logp.dtype)


def _near_policy(batch: Batch, tokens: Tokens, threshold: float) -> Tensor:
    """Drop responses that are punished and far from the current policy (DeepSeek-V3.2, OPSM)."""
    sampler = batch.need("sampler_logp", what_for="off_policy_kl")
    moved = keep_valid(sampler - batch.logp.detach(), mask=tokens.mask)
    return (tokens.advantages >= 0) | (row_mean(moved, mask=tokens.mask) <= threshold)


def _top_entropy(batch: Batch, mask: Tensor, share: float) -> Tensor:
    """Keep the share of tokens of highest entropy in the update (Wang et al. 2025, 80/20 rule)."""
    entropy = keep_valid(batch.need("entropy", what_for="top_entropy_share"), mask=mask)
    threshold = weighted_quantile(entropy, mask=mask, level=1.0 - share)
    return (entropy >= threshold[..., None, None]) & (mask != 0)
