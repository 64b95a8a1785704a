"""What goes into a loss and what comes out: shapes, and which policy each tensor belongs to."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from dapolab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The responses of one optimizer update; axes are (replicas..., N responses, T tokens).

    Leading replica axes may be absent, or 1 where all replicas share a tensor. What lies outside
    the mask is never read: NaN and infinities there change neither value nor gradient.
    """

    logp: Tensor
    """log π of each sampled token under the current policy; the loss is differentiable in it."""
    mask: Tensor
    """0 for what is no response token; else how often the token counts (1, or a multiplicity)."""
    advantages: Tensor
    """One a token, (..., N, T), or one a response, (..., N) or (..., N, 1).

    With fewer axes than ``logp`` they are one a response; replicas share (1, N, T).
    """
    old_logp: Tensor | None = None
    """The same tokens under the proximal policy, that of the start of the update."""
    sampler_logp: Tensor | None = None
    """The same tokens under the policy that sampled them, as its engine reported them."""
    ref_logp: Tensor | None = None
    """The same tokens under the reference policy of the KL term."""
    entropy: Tensor | None = None
    """Entropy of the current policy at each token, in nats."""
    group: Tensor | None = None
    """(N,) int64: id of the prompt that each response belongs to, in any order."""
    full_mask: Tensor | None = None
    """The mask before filtering took responses out, where a denominator still counts them."""

    def need(self, name: str, *, what_for: str) -> Tensor:
        """Return a tensor that may be absent, or say who needs it; no policy replaces another."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ConfigError(f"{what_for} needs {name}; pass it: {_MEANINGS[name]}")
        return value

    def checked(self) -> "Batch":
        """Return the batch with advantages as (..., N, T or 1), or raise for a wrong shape.

        Raises
        ------
        ConfigError
            If a tensor does not broadcast to the shape of ``logp``, or group ids are not (N,).
        """
        shape = self.logp.shape
        if len(shape) < 2:
            raise ConfigError(f"logp must be (..., responses, tokens), it is {tuple(shape)}")
        advantages = self.advantages.unsqueeze(-1) if self._one_a_response() else self.advantages
        for name in ("mask", "full_mask", "old_logp", "sampler_logp", "ref_logp", "entropy"):
            value = getattr(self, name)
            if value is not None and value.shape[-2:] != shape[-2:]:
                raise ConfigError(
                    f"{name} has responses × tokens {tuple(value.shape[-2:])}, logp has "
                    f"{tuple(shape[-2:])}: pad both alike"
                )
        if advantages.shape[-2] != shape[-2] or advantages.shape[-1] not in (1, shape[-1]):
            raise ConfigError(
                f"advantages {tuple(self.advantages.shape)} do not fit logp {tuple(shape)}: give "
                "one a response or one a token"
            )
        if self.group is not None and self.group.shape != shape[-2:-1]:
            raise ConfigError(f"group has shape {tuple(self.group.shape)}, not one id a response")
        return replace(self, advantages=advantages)

    def _one_a_response(self) -> bool:
        return self.advantages.dim() in (1, self.logp.dim() - 1)

    def rows(self, index: Tensor) -> "Batch":
        """Return the responses with these indices, as one micro-batch would hold them."""

        def cut(name: str, value: Tensor | None) -> Tensor | None:
            if value is None:
                return None
            if name == "group":
                return value[index]
            per_row = name == "advantages" and self._one_a_response()
            return value[..., index] if per_row else value[..., index, :]

        cuts: dict[str, Any] = {f.name: cut(f.name, getattr(self, f.name)) for f in fields(self)}
        return Batch(**cuts)


_MEANINGS = {
    "old_logp": "log-probs of the tokens under the policy at the start of the update",
    "sampler_logp": "log-probs of the tokens as the sampling engine reported them",
    "ref_logp": "log-probs of the tokens under the reference policy",
    "entropy": "entropy of the current policy at each token",
    "group": "the prompt id of each response",
}


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Which rank and which micro-batch each response of the update is computed in.

    Only losses whose value depends on the split read it; without one, the update is a single
    micro-batch on a single rank.
    """

    rank_N: Tensor
    micro_N: Tensor
    """Number of the micro-batch within the rank; equal numbers on two ranks are two batches."""
    generation_tokens: Tensor | float | None = None
    """Loss tokens of the whole generation batch, over all ranks (``generation-window`` alone)."""

    @classmethod
    def split(cls, n_rows: int, *, n_ranks: int = 1, micro_rows: int | None = None) -> "Structure":
        """Cut responses in order: contiguous equal ranks, then micro-batches of ``micro_rows``."""
        if n_rows % n_ranks:
            raise ConfigError(f"{n_rows} responses do not divide by {n_ranks} ranks")
        per_rank = n_rows // n_ranks
        row = torch.arange(n_rows)
        micro = (row % per_rank) // (micro_rows or max(per_rank, 1))
        return cls(rank_N=row // max(per_rank, 1), micro_N=micro)


@dataclass(frozen=True)
class Loss:
    """Result of ``policy_loss``; every tensor has the shape of the replica axes."""

    value: Tensor
    """To be minimised; differentiable in the current log-probs and the entropy."""
    metrics: dict[str, Tensor]
    is_empty: Tensor
    """True where no token was left: value and gradient are exactly 0, no step was learned from."""
