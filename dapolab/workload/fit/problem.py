"""The parameters of a fit: their names and bounds, what is free, what is fixed."""

from dataclasses import dataclass, field, replace

import numpy as np

NAMES = (
    "log_median",
    "log_between",
    "log_within",
    "correct_effect",
    "accuracy_logit",
    "log_sd_logit",
    "atanh_correlation",
    "loop_logit",
    "log_loop_sd",
    "atanh_loop_correlation",
    "unsolvable_logit",
    "guess_logit",
)
BOUNDS = {
    "log_median": (0.0, 16.0),
    "log_between": (-4.0, 1.5),
    "log_within": (-4.0, 1.5),
    "correct_effect": (-4.0, 4.0),
    "accuracy_logit": (-7.0, 7.0),
    "log_sd_logit": (-3.0, 2.5),
    "atanh_correlation": (-2.3, 2.3),
    "loop_logit": (-11.0, 5.0),
    "log_loop_sd": (-3.0, 1.0),
    "atanh_loop_correlation": (-2.3, 2.3),
    "unsolvable_logit": (-9.0, 9.0),
    # A guess is right at most every other time: of two choices.
    "guess_logit": (-7.0, 0.0),
}
NO_LOOPS = -np.inf
ALL_SOLVABLE = -np.inf
NO_GUESS = -np.inf
# Loops that cluster in few prompts need a wide loop effect, and that needs more nodes.
WIDE_LOOP_NODES, WIDE_LOG_LOOP_SD = 31, 1.8


def location(marginal_logit: float, sd: float) -> float:
    """Return the mean of a normal logit whose expected probability is near expit(marginal_logit).

    E expit(m + sd·Z) ≈ expit(m/√(1 + .346·sd²)): the accuracy and the loop share are what data
    fix best, so they, not the means of the logits, are the free parameters.
    """
    return float(marginal_logit * np.sqrt(1.0 + 0.346 * sd * sd))


@dataclass(frozen=True)
class Nodes:
    """How finely each effect is integrated."""

    logit: int = 61
    level: int = 15
    level_narrow: int = 5
    loop: int = 11
    loop_alone: int = 25

    def wide(self) -> "Nodes":
        """Return nodes for a loop effect with an sd of several logits."""
        return replace(self, loop=WIDE_LOOP_NODES, loop_alone=2 * WIDE_LOOP_NODES - 1)


@dataclass(frozen=True)
class Problem:
    """What is estimated and what is held fixed.

    ``fixed`` holds values of NAMES that are not estimated; ``loops`` says what truncated rows
    beyond the cap are: "estimated", "none", "all" or "flagged" (the records tell).
    ``prompt_share`` fixes the between share (one response a prompt). ``kept`` conditions on a
    mixed group; degenerate counts, where known, replace the condition.
    """

    lengths: bool
    difficulty: bool
    fixed: dict[str, float] = field(default_factory=dict)
    loops: str = "estimated"
    prompt_share: float | None = None
    kept: bool = False
    n_all_wrong: int | None = None
    n_all_right: int | None = None
    n_degenerate: int | None = None
    p_correct_if_truncated: float = 0.0
    nodes: Nodes = Nodes()

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Bounds of the free parameters; a loop effect is as wide as its nodes can resolve."""
        wide = self.nodes.loop >= WIDE_LOOP_NODES
        widest = (BOUNDS["log_loop_sd"][0], WIDE_LOG_LOOP_SD if wide else BOUNDS["log_loop_sd"][1])
        return [widest if name == "log_loop_sd" else BOUNDS[name] for name in self.free]

    @property
    def free(self) -> tuple[str, ...]:
        """Names that are estimated, in the order of NAMES."""
        return tuple(name for name in NAMES if name not in self.fixed)
