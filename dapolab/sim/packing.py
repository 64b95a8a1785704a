"""Seconds of passes over packed micro-batches: a token budget, padding, ranks that wait.

A pass over an update's responses is shared by R ranks. A rank's micro-batches run one after the
other, each as long as its tokens and a fixed cost say; the update ends with the slowest rank. At
the learner's rate of s seconds a token for all ranks together, one rank takes s·R a token, so
perfectly balanced ranks without padding take s·tokens, as without packing.

Balancing is greedy (longest first to the rank with the fewest tokens, equal counts), where verl's
``get_seqlen_balanced_partitions`` (utils/seqlen_balancing.py) uses Karmarkar-Karp: the largest rank
differs by less than the shortest response once a rank has a few of them.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from dapolab.scenario import Packing

Int = NDArray[np.int64]


def packed_seconds(
    lengths: Int, *, packing: Packing, ranks: int, n_updates: int, s_per_token: float
) -> float:
    """Return the seconds of one pass over responses of ``lengths`` tokens (prompt included).

    Parameters
    ----------
    lengths : tokens of each trained response, in the order of the batch; the ``n_updates`` parts
        of the batch are contiguous and as equal as can be.
    s_per_token : seconds a token for all ranks together.
    """
    share = _balanced if packing.balance == "tokens" else _in_order
    seconds = 0.0
    for part in np.array_split(lengths, n_updates):
        loads = [_rank_load(of_rank, packing) for of_rank in share(part, ranks)]
        seconds += max(
            ranks * s_per_token * tokens + n * packing.micro_batch_s for tokens, n in loads
        )
    return seconds


def _in_order(lengths: Int, ranks: int) -> list[Int]:
    return [np.asarray(part) for part in np.array_split(lengths, ranks)]


def _balanced(lengths: Int, ranks: int) -> list[Int]:
    """Give the longest first to the rank with the fewest tokens among those with room left.

    Within a rank the order of the batch stays.
    """
    most = -(-len(lengths) // ranks)
    shares: list[list[int]] = [[] for _ in range(ranks)]
    open_ranks = [(0, rank) for rank in range(ranks)]
    for index in np.argsort(-lengths, kind="stable").tolist():
        tokens, rank = heapq.heappop(open_ranks)
        shares[rank].append(index)
        if len(shares[rank]) < most:
            heapq.heappush(open_ranks, (tokens + int(lengths[index]), rank))
    return [lengths[np.sort(np.asarray(share, dtype=np.int64))] for share in shares]


def _rank_load(lengths: Int, packing: Packing) -> tuple[float, int]:
    """Return the tokens that a rank computes, padded ones at their share, and its micro-batches.

    Micro-batches are filled one after the other; one response above the budget goes alone.
    """
    ordered = np.sort(lengths)[::-1] if packing.sort else lengths
    pads = packing.padding == "longest"
    batches: list[tuple[int, int, int]] = []  # responses, tokens, longest
    count, total, longest = 0, 0, 0
    for length in ordered.tolist():
        widest = max(longest, length)
        size = widest * (count + 1) if pads else total + length
        if count and size > packing.micro_batch_tokens:
            batches.append((count, total, longest))
            count, total, widest = 0, 0, length
        count, total, longest = count + 1, total + length, widest
    if count:
        batches.append((count, total, longest))
    padded = sum(n * widest - tokens for n, tokens, widest in batches) if pads else 0
    return float(lengths.sum() + packing.padded_token_share * padded), len(batches)
