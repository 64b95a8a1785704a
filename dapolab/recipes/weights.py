"""How much each token counts, in closed form (theory.md C1, C8): no torch, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

from dapolab.errors import ConfigError
from dapolab.recipes.slopes import slope
from dapolab.scenario.aggregation import (
    Aggregation,
    GenerationWindow,
    Micro,
    PromptMean,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
    TokenSum,
)
from dapolab.scenario.clip import LuspoClip
from dapolab.scenario.objective import Objective


@dataclass(frozen=True)
class Update:
    """The responses of one optimizer update, as far as the weights need them."""

    lengths: tuple[int, ...]
    """Loss tokens of each response; 0 is a fully masked one."""
    groups: tuple[int, ...]
    """Prompt of each response."""
    micros: tuple[tuple[int, int], ...]
    """Rank and micro-batch of each response."""
    padded_width: int

    @property
    def n(self) -> int:
        """Return the number of responses."""
        return len(self.lengths)

    def members(self, keys: Sequence[object]) -> list[list[int]]:
        """Return, for each response, the indices of those with the same key."""
        return [[j for j, other in enumerate(keys) if other == key] for key in keys]


def update_of(
    lengths: Sequence[int],
    *,
    groups: Sequence[int] | None = None,
    micro_rows: int | None = None,
    n_ranks: int = 1,
    padded_width: int | None = None,
) -> Update:
    """Describe an update: contiguous equal ranks, cut into micro-batches of ``micro_rows``.

    Parameters
    ----------
    lengths
        Loss tokens of each response.
    groups
        Prompt of each response; absent: all of one prompt.
    micro_rows
        Responses of a micro-batch; absent: a rank holds one.
    n_ranks
        Data-parallel ranks.
    padded_width
        Columns of the response tensor; absent: the longest response.

    Raises
    ------
    ConfigError
        No responses, a negative length, another number of groups than of responses, ranks that do
        not divide the responses, or a width below the longest response.
    """
    n = len(lengths)
    if n == 0 or min(lengths) < 0:
        raise ConfigError("lengths must be whole numbers of tokens, 0 or more, at least one")
    given = (0,) * n if groups is None else tuple(groups)
    if len(given) != n:
        raise ConfigError(f"{len(given)} groups for {n} lengths: give one group a response")
    if n_ranks < 1 or n % n_ranks or (micro_rows is not None and micro_rows < 1):
        raise ConfigError(f"{n} responses do not divide into {n_ranks} ranks and micro-batches")
    width = max(lengths) if padded_width is None else padded_width
    if width < max(lengths):
        raise ConfigError(f"a padded width of {width} is below the longest response")
    per_rank = n // n_ranks
    rows = micro_rows or per_rank
    micros = tuple((i // per_rank, (i % per_rank) // rows) for i in range(n))
    return Update(tuple(lengths), given, micros, max(width, 1))


def weights(
    objective: Objective,
    lengths: Sequence[int],
    *,
    groups: Sequence[int] | None = None,
    micro_rows: int | None = None,
    n_ranks: int = 1,
    padded_width: int | None = None,
) -> tuple[float, ...]:
    """Return the weight of one token of each response: −∂loss/∂log π at ratio 1 per unit advantage.

    All four policies are taken as one (ratio 1, no correction), the KL and entropy terms are left
    out, and every group is taken to have a signal. An update is taken for its whole share of the
    generation batch where that matters. A response without tokens has weight 0.

    Parameters
    ----------
    objective
        ``recipe.objective``.
    lengths, groups, micro_rows, n_ranks, padded_width
        The update; see ``update_of``.

    Raises
    ------
    ConfigError
        The update is impossible; see ``update_of``.
    """
    update = update_of(
        lengths, groups=groups, micro_rows=micro_rows, n_ranks=n_ranks, padded_width=padded_width
    )
    factor = slope(objective.clip, 1.0, advantage=1.0)
    by_length = isinstance(objective.clip, LuspoClip)
    return tuple(
        scale * factor * (n if by_length else 1) if n else 0.0
        for scale, n in zip(scales(objective.aggregation, update), update.lengths, strict=True)
    )


def scales(aggregation: Aggregation, update: Update) -> list[float]:
    """Return the factor of each response's token losses in the loss; (responses,)."""
    n_of = update.lengths
    match aggregation:
        case TokenMean():
            return [_inverse(sum(max(n, aggregation.empty_row_tokens) for n in n_of))] * update.n
        case TokenMeanMicro():
            cells = update.members(update.micros)
            local = [_inverse(sum(n_of[j] for j in cell)) for cell in cells]
            return _combined(local, aggregation.combine, update)
        case GenerationWindow():
            return [_inverse(sum(n_of)) * window_factor(aggregation)] * update.n
        case SeqMeanTokenMean():
            mean = _sequence_mean(aggregation, update)
            return [w * _inverse(n) for w, n in zip(mean, n_of, strict=True)]
        case SeqMeanTokenSum():
            mean = _sequence_mean(aggregation, update)
            divides = aggregation.variant != "standard"
            return [w * (_inverse(n) if divides else 1) for w, n in zip(mean, n_of, strict=True)]
        case SeqMeanTokenSumNorm():
            padded = aggregation.constant == "padded-width"
            constant = update.padded_width if padded else float(aggregation.constant)
            return [w / constant for w in _sequence_mean(aggregation, update)]
        case PromptMean():
            tokens = [sum(n_of[j] for j in of) for of in update.members(update.groups)]
            full = {g for g, n in zip(update.groups, n_of, strict=True) if n}
            n_groups = len(full if aggregation.empty_groups == "out" else set(update.groups))
            return [_inverse(n) * _inverse(n_groups) for n in tokens]
        case TokenSum():
            return [1.0] * update.n


def window_factor(window: GenerationWindow) -> float:
    """Return what the update's token mean is multiplied by (trl#5619, ms-swift#10117)."""
    if window.variant == "ms-swift":
        return 1.0 / window.gradient_accumulation_steps
    if window.variant == "trl-1.10":
        return window.gradient_accumulation_steps / window.steps_per_generation
    return 1.0


def _inverse(count: float) -> float:
    return 1.0 / count if count else 0.0


def _sequence_mean(
    config: SeqMeanTokenMean | SeqMeanTokenSum | SeqMeanTokenSumNorm, update: Update
) -> list[float]:
    """Return 1/B at each response, or 1 where responses are added up."""
    counts = [1 if config.empty_rows == "in" or n else 0 for n in update.lengths]
    adds = isinstance(config, SeqMeanTokenSumNorm) and config.rows == "sum"
    if config.micro == "global":
        return [1.0 if adds else _inverse(sum(counts))] * update.n
    cells = update.members(update.micros)
    local = [1.0 if adds else _inverse(sum(counts[j] for j in cell)) for cell in cells]
    return _combined(local, config.micro, update)


def _combined(local: Sequence[float], how: Micro, update: Update) -> list[float]:
    """Weigh each micro-batch by ``how``; ranks are averaged, as DDP and FSDP do."""
    ranks = [rank for rank, _ in update.micros]
    n_ranks = len(set(ranks))
    weighed = []
    for scale, cell in zip(local, update.micros, strict=True):
        if how == "mean":
            weight = 1.0 / len({other for other in update.micros if other[0] == cell[0]})
        elif how == "rows":
            weight = update.micros.count(cell) / ranks.count(cell[0])
        else:
            weight = 1.0
        weighed.append(scale * weight / n_ranks)
    return weighed
