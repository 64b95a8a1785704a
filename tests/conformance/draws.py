"""Random ragged batches: what a judge and dapolab are both given."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.objective import Batch, Structure

WIDTH = 9
LENGTHS = (5, 9, 0, 3, 1, 7, 9, 2, 4, 0, 6, 8)
"""Response tokens; two responses are fully masked."""
GROUPS = (3, 1, 3, 3, 1, 7, 1, 7, 3, 3, 9, 3)
"""Unequal groups, members apart; one is a response alone."""
PAIRED_GROUPS = (3, 1, 3, 3, 1, 7, 1, 7, 3, 9, 9, 1)
"""The same without a response alone."""
EQUAL_GROUPS = (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)


@dataclass(frozen=True)
class Draw:
    """One batch; float64, values outside the mask are finite but large."""

    logp: Tensor
    old: Tensor
    sampler: Tensor
    reference: Tensor
    entropy: Tensor
    values: Tensor
    mask: Tensor
    group: Tensor
    rewards: Tensor
    advantages: Tensor
    sum_pi_squared: Tensor

    def batch(self, logp: Tensor, advantages: Tensor | None = None) -> Batch:
        """Return dapolab's view, differentiable in ``logp``."""
        return Batch(
            logp=logp,
            mask=self.mask,
            advantages=self.advantages if advantages is None else advantages,
            old_logp=self.old,
            sampler_logp=self.sampler,
            ref_logp=self.reference,
            entropy=self.entropy,
            group=self.group,
        )


def draw(
    seed: int,
    *,
    extreme: bool = False,
    groups: tuple[int, ...] = GROUPS,
    lengths: tuple[int, ...] = LENGTHS,
) -> Draw:
    """Draw one batch; ``extreme`` moves some tokens by up to 25 in log-probability, up or down."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    n = len(groups)
    lengths_N = torch.tensor(lengths)
    mask = (torch.arange(WIDTH) < lengths_N[:, None]).double()
    old = -torch.rand(n, WIDTH, generator=rng, dtype=torch.float64) * 3.0 - 0.01
    logp = old + 0.3 * normal(n, WIDTH)
    sampler = old + 0.2 * normal(n, WIDTH)
    if extreme:
        hit = torch.rand(n, WIDTH, generator=rng) < 0.15
        moved = -25.0 * torch.rand(n, WIDTH, generator=rng, dtype=torch.float64)
        up = torch.rand(n, WIDTH, generator=rng) < 0.5
        logp, old = torch.where(hit & ~up, moved, logp), torch.where(hit & up, moved, old)
        sampler = torch.where(hit, sampler + 3.0 * normal(n, WIDTH).clamp(-1, 1), sampler)
    outside = mask == 0

    def log_probs(values: Tensor, junk: float) -> Tensor:
        # Mirrored at 0, not cut: equal log-probs would tie covariances.
        return -values.abs().clamp(min=1e-6).masked_fill(outside, -junk)

    return Draw(
        logp=log_probs(logp, 5.0),
        old=log_probs(old, -4.0),
        sampler=log_probs(sampler, 2.0),
        reference=log_probs(old + 0.5 * normal(n, WIDTH), 1.0),
        entropy=torch.rand(n, WIDTH, generator=rng, dtype=torch.float64),
        values=normal(n, WIDTH),
        mask=mask,
        group=torch.tensor(groups),
        rewards=torch.randint(0, 2, (n,), generator=rng).double() + 0.25 * normal(n).round(),
        advantages=normal(n),
        sum_pi_squared=_sum_of_squares(old, junk=7.0 * outside),
    )


def _sum_of_squares(logp: Tensor, *, junk: Tensor) -> Tensor:
    """Return Σπ² where the rest of the probability is shared by five other tokens alike."""
    p = (-logp.abs()).exp()
    return p.square() + (1.0 - p).square() / 5.0 + junk


# ---------------------------------------------------------------------------- structures


@dataclass(frozen=True)
class Split:
    """How an update is cut: rank → micro-batches → rows."""

    name: str
    rows: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def n_ranks(self) -> int:
        return len(self.rows)

    @property
    def structure(self) -> Structure:
        """Return dapolab's view of the cut."""
        n = sum(len(micro) for rank in self.rows for micro in rank)
        rank_N, micro_N = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
        for r, rank in enumerate(self.rows):
            for m, micro in enumerate(rank):
                rank_N[list(micro)] = r
                micro_N[list(micro)] = m
        return Structure(rank_N=rank_N, micro_N=micro_N)

    def __str__(self) -> str:
        return self.name


LOCAL = Split("local", ((tuple(range(12)),),))
"""One call of the framework without global counts: its own denominators."""
WHOLE = Split("whole", ((tuple(range(12)),),))
MICROS = Split("3 micro-batches", (((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)),))
RANKS = Split("2 ranks × uneven micro-batches", (((0, 1, 2, 3), (4, 5)), ((6, 7), (8, 9, 10, 11))))
SHUFFLED = Split("2 ranks × shuffled rows", (((11, 2, 5), (7, 9, 0)), ((1, 10, 3), (4, 6, 8))))
