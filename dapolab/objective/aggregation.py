"""How per-token losses become one number.

Every aggregation gives all tokens of a response the same weight, so it is one number a response:
loss = Σ_i scale_i · Σ_t mask_it · loss_it. The scales depend on the mask, the groups and the split
alone, never on a loss; micro-batches computed one by one with the scales of the whole update add up
to the global loss (theory.md C1, C8; verl core_algos.py:1140-1206).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from dapolab.errors import ConfigError
from dapolab.objective.batch import Structure
from dapolab.objective.groups import Groups
from dapolab.objective.masking import inverse
from dapolab.scenario import (
    Aggregation,
    GenerationWindow,
    PromptMean,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
    TokenSum,
)


def row_scales(
    mask: Tensor,
    config: Aggregation,
    *,
    group: Tensor | None = None,
    structure: Structure | None = None,
    full_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of a token of each response, multiplicity aside; (..., N).

    Parameters
    ----------
    mask
        (..., N, T) multiplicities of the tokens in the loss.
    group
        (N,) prompt ids; ``prompt-mean`` needs them.
    structure
        Ranks and micro-batches, for the modes that depend on the split.
    full_mask
        The mask before filtering, for the modes that count filtered tokens.

    Raises
    ------
    ConfigError
        If the mode needs an input that is absent.
    """
    n_N = mask.sum(dim=-1)
    full_N = n_N if full_mask is None else full_mask.sum(dim=-1)
    match config:
        case TokenMean():
            counted = full_N if config.filtered_tokens == "in" else n_N
            counted = counted.clamp(min=config.empty_row_tokens)
            return _everywhere(inverse(counted.sum(dim=-1)), n_N)
        case TokenMeanMicro():
            return _by_micro(n_N, structure, config.combine, partial(_cell_inverse, n_N))
        case GenerationWindow():
            counted = full_N if config.filtered_tokens == "in" else n_N
            return _everywhere(_window_scale(counted.sum(dim=-1), config, structure), n_N)
        case SeqMeanTokenMean():
            return _sequence_mean(n_N, config, structure) * inverse(n_N)
        case SeqMeanTokenSum():
            scales = _sequence_mean(n_N, config, structure)
            return scales if config.variant == "standard" else scales * inverse(n_N)
        case SeqMeanTokenSumNorm():
            width = config.constant if config.constant != "padded-width" else mask.shape[-1]
            return _sequence_mean(n_N, config, structure) / width
        case PromptMean():
            return _prompt_mean(n_N, config, group)
        case TokenSum():
            return torch.ones_like(n_N)


def aggregate(losses: Tensor, *, mask: Tensor, scales: Tensor) -> Tensor:
    """Add up clean per-token losses; (...).

    Parameters
    ----------
    losses
        (..., N, T), or (..., N, 1) where a response has one loss for all its tokens; finite outside
        the mask (``keep_valid``).
    mask
        (..., N, T) multiplicities.
    scales
        (..., N) of ``row_scales``.
    """
    return ((losses * mask).sum(dim=-1) * scales).sum(dim=-1)


def _everywhere(per_replica: Tensor, n_N: Tensor) -> Tensor:
    return per_replica.unsqueeze(-1).expand(n_N.shape)


def _window_scale(
    n_tokens: Tensor, config: GenerationWindow, structure: Structure | None
) -> Tensor:
    """Return TRL's and ms-swift's factor (trainers.md §2a, §11a)."""
    n_accumulate, n_steps = config.gradient_accumulation_steps, config.steps_per_generation
    if config.variant == "ms-swift":
        return inverse(n_tokens) / n_accumulate
    given = None if structure is None else structure.generation_tokens
    if given is None and n_accumulate != n_steps:
        raise ConfigError(
            f"generation-window needs structure.generation_tokens: an update of {n_accumulate} of "
            f"{n_steps} micro-steps does not hold the generation batch's token count"
        )
    window = n_tokens if given is None else torch.as_tensor(given).to(n_tokens)
    share = n_accumulate / n_steps if config.variant == "trl-1.16" else 1.0
    return inverse((window * share).expand(n_tokens.shape))


def _prompt_mean(n_N: Tensor, config: PromptMean, group: Tensor | None) -> Tensor:
    if group is None:
        raise ConfigError("prompt-mean needs group, the prompt id of each response")
    groups = Groups.by_id(group.to(n_N.device))
    n_K = groups.sum(n_N)
    n_groups = (n_K > 0).sum(dim=-1, keepdim=True).to(n_N)
    if config.empty_groups == "in":
        n_groups = torch.full_like(n_groups, groups.n)
    return groups.spread_back(inverse(n_K) * inverse(n_groups))


# ---------------------------------------------------------------------------- responses


def _sequence_mean(
    n_N: Tensor,
    config: SeqMeanTokenMean | SeqMeanTokenSum | SeqMeanTokenSumNorm,
    structure: Structure | None,
) -> Tensor:
    """Return 1/B at each response, B the responses that count, in the update or its micro-batch."""
    counts = torch.ones_like(n_N) if config.empty_rows == "in" else (n_N > 0).to(n_N)
    adds = isinstance(config, SeqMeanTokenSumNorm) and config.rows == "sum"
    if config.micro == "global":
        total = counts.sum(dim=-1, keepdim=True)
        return torch.ones_like(n_N) if adds else inverse(total).expand(n_N.shape)

    def local(cells: Groups) -> Tensor:
        return torch.ones_like(n_N) if adds else _cell_inverse(counts, cells)

    return _by_micro(n_N, structure, config.micro, local)


# ---------------------------------------------------------------------------- micro-batches


def _cell_inverse(counts: Tensor, cells: Groups) -> Tensor:
    return cells.spread_back(inverse(cells.sum(counts)))


def _by_micro(
    n_N: Tensor,
    structure: Structure | None,
    combine: str,
    local: Callable[[Groups], Tensor],
) -> Tensor:
    """Weigh local scales by micro-batch: ranks averaged, micro-batches as ``combine`` says.

    A micro-batch without tokens still counts as one, as it does in an accumulation loop.
    """
    rows = n_N.shape[-1]
    split = structure or Structure.split(rows)
    ranks = Groups.by_id(split.rank_N.to(n_N.device))
    micro = torch.unique(split.micro_N.to(n_N.device), return_inverse=True)[1]
    cells = Groups.by_id(ranks.index_N * (rows + 1) + micro)
    one = n_N.new_ones(rows)
    rows_of_cell = cells.total(one)
    if combine == "mean":
        micros_of_rank = ranks.total(1.0 / rows_of_cell)
        weight = 1.0 / micros_of_rank
    elif combine == "rows":
        weight = rows_of_cell / ranks.total(one)
    else:
        weight = one
    return local(cells) * weight / ranks.n
