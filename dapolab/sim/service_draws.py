"""Seconds of scores and tools, and which samplings fail, named by place and not by order of asking.

Prompt, response, sampling and call name the draw, so every policy meets the same ones, and a
setting that is switched on shifts no other.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dapolab.rng import stream
from dapolab.scenario import Failures, Rollout
from dapolab.scenario.service import Seconds

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Luck:
    """Draws of one group: K responses, A samplings of each, C calls of each.

    ``fails_at_KA`` is the share of its tokens at which a sampling fails, NaN where it does not.
    """

    score_s_K: Floats
    call_s_KC: Floats
    fails_at_KA: Floats

    def fails_after(self, member: int, attempt: int, *, n_tokens: int) -> int | None:
        """Return the tokens after which sampling ``attempt`` fails, at least 1; None if never."""
        share = float(self.fails_at_KA[member, attempt])
        return None if math.isnan(share) else max(1, math.ceil(share * n_tokens))


class Draws:
    """All draws of a run."""

    def __init__(self, rollout: Rollout, *, seed: int) -> None:
        self._rollout = rollout
        self._seed = seed
        self._failures = rollout.failures or Failures()

    def luck(self, position: int, n_responses: int, *, visit: int = 0) -> Luck:
        """Return the draws of the prompt at ``position``; ``visit`` counts samplings afresh."""
        rollout, failures, K = self._rollout, self._failures, n_responses
        n_calls = rollout.tools.turns - 1 if rollout.tools else 0
        n_attempts = 1 + (failures.max_retries if failures.on_failure == "retry" else 0)
        fails_at = np.full((K, n_attempts), np.nan)
        if failures.probability > 0:
            draw = stream(self._seed, "failures", position, visit).random((K, n_attempts, 2))
            fails_at = np.where(draw[..., 0] < failures.probability, draw[..., 1], np.nan)
        return Luck(
            self._seconds(rollout.reward, "reward", position, visit, (K,)),
            self._seconds(rollout.tools, "tools", position, visit, (K, n_calls)),
            fails_at,
        )

    def _seconds(
        self, law: Seconds | None, name: str, position: int, visit: int, shape: tuple[int, ...]
    ) -> Floats:
        if law is None or law.sigma == 0:
            return np.full(shape, law.median_s if law else 0.0)
        normal = stream(self._seed, name, position, visit).standard_normal(shape)
        return np.asarray(law.median_s * np.exp(law.sigma * normal))
