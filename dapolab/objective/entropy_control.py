"""An entropy coefficient that follows the entropy: state in, state out."""

import math
from dataclasses import dataclass, replace

from dapolab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EntropyControl:
    """Coefficient of the entropy bonus, raised while the entropy is at or below its target.

    Before each update read ``applied`` into ``Objective.entropy_coef``, afterwards hand the
    update's entropy to ``after`` (Skywork-OR1; TRL 1.16.0 grpo_trainer.py:3185-3246, whose defaults
    these are). The bonus acts only while the last entropy seen was at or below the target, so never
    in the first update.

    Raises
    ------
    ConfigError
        If the bounds are in the wrong order, or a step is negative.
    """

    coef: float = 0.0
    """The coefficient itself, moved whether or not it is applied."""
    target: float = 0.2
    """Nats per token; of the tokens that ``top_entropy_share`` keeps, where it is below 1."""
    delta: float = 0.005
    """Step of the coefficient at each update."""
    low: float = 0.0
    high: float = 1.0
    last_entropy: float = math.inf
    """Mean entropy of the last update's tokens, over all ranks."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"entropy coefficient: low {self.low} exceeds high {self.high}")
        if self.delta < 0:
            raise ConfigError(f"entropy coefficient: delta {self.delta} is negative; give a step")

    @property
    def applied(self) -> float:
        """Return the coefficient of the next update."""
        return self.coef if self.last_entropy <= self.target else 0.0

    def after(self, entropy: float) -> "EntropyControl":
        """Return the state after an update of this mean entropy, in nats per token."""
        if entropy <= self.target:
            coef = min(self.coef + self.delta, self.high)
        else:
            coef = max(self.coef - self.delta, self.low)
        return replace(self, coef=coef, last_entropy=entropy)
