"""In which order the groups of one submission enter the engine: longest first, as predicted.

Longest-first list scheduling with a predictor is what Seer (arXiv 2511.14617) and StreamRL's length
ranker (arXiv 2504.15930) do. Indices, judging and data order stay those of the prompt stream.
"""

import numpy as np
from numpy.typing import NDArray

from dapolab.workload.model import Groups
from dapolab.workload.prompts import BLOCK, BlockDraws

Ints = NDArray[np.int64]


class LongestFirst:
    """Predicted log length = mean log length of the group + N(0, sigma²), drawn by its place.

    With sigma → ∞ the order is random, as good as the stream's own.
    """

    def __init__(self, *, sigma: float, seed: int) -> None:
        self._sigma = sigma
        self._noise = BlockDraws(seed, "predicted length")

    def order(self, groups: Groups, lengths_PG: Ints) -> Ints:
        """Return rows by descending prediction, ties in submission order.

        ``lengths_PG`` are the tokens of the responses that are submitted, cut at the cap.
        """
        predicted_P = np.log(lengths_PG).mean(axis=1)
        if self._sigma:
            predicted_P += self._sigma * self._normal(groups.position_P)
        return np.argsort(-predicted_P, kind="stable")

    def _normal(self, position_P: Ints) -> NDArray[np.float64]:
        block_P, place_P = np.divmod(position_P, BLOCK)
        z_P = np.empty(len(position_P))
        for block in np.unique(block_P):
            here = block_P == block
            z_P[here] = self._noise.normal(int(block), 1)[0, place_P[here]]
        return z_P
