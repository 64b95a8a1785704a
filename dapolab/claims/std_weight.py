"""How dividing by the std weighs prompts: P9, c6, Dr. GRPO's second bias (theory.md C6)."""

import numpy as np

from dapolab.claims.claim import Claim, Row
from dapolab.claims.toys import STD, ladder_gradient
from dapolab.objective.plain import group_advantages
from dapolab.scenario import GrpoAdvantage
from dapolab.theory.difficulty import max_abs_advantage, std_weight, std_weight_large_group

GROUP_SIZE = 8


def _weight(p: float, *, group_size: int = GROUP_SIZE, text: str = STD) -> float:
    """Return how much more the prompt weighs than one of pass rate ½, per ∇p."""
    part = ladder_gradient(text, (p, 0.5), group_size=group_size) / np.array([p * (1 - p), 0.25])
    return float(part[0] / part[1])


def _weight_theory(p: float, *, group_size: int = GROUP_SIZE) -> float:
    weights = std_weight([p, 0.5], group_size=group_size)
    return float(weights[0] / weights[1])


_TILT = (0.001, 0.01, 0.05, 0.2, 0.8, 0.99)

_P9 = Claim(
    id="p9-std-tilt",
    kind="universal",
    statement="Dividing by the group's std tilts a prompt's weight by at most 1.43 against one of "
    "pass rate ½ at G=8, whatever its difficulty.",
    source="theory.md P9, C6",
    instrument="bandit",
    rows=tuple(
        Row(
            name=f"p={p:g}",
            kind="bound",
            side="below",
            says=1.43,
            rival=5.03,
            tolerance=0.005,
            unit="ratio",
            why="the last digit of the sentence",
        )
        for p in _TILT
    ),
    predict=lambda: {f"p={p:g}": _weight_theory(p) for p in _TILT},
    measure=lambda _: {f"p={p:g}": _weight(p) for p in _TILT},
    how_to_read="Weight per ∇p over that at ½, exact; the rival is 1/√(p(1−p)) at p=.01.",
)

_C6 = Claim(
    id="c6-std-diverges",
    kind="value",
    statement="Dividing by the std weighs a prompt by 1/√(p(1−p)): one of pass rate .01 counts 5 "
    "times as much as one of ½, and the weight diverges at the extremes.",
    correction="For G answers the weight is c_G(p) ≤ √(G−1): 1.41 at G=8 and 1.93 at G=16 for "
    "p=.01.",
    source="theory.md circulated 6, C6",
    instrument="bandit",
    rows=(
        Row(
            name="p=.01 over p=.5, G=8",
            kind="value",
            says=5.03,
            rival=1.41,
            tolerance=0.25,
            unit="ratio",
            why="5 % of a weight",
        ),
        Row(
            name="p=.01 over p=.5, G=16",
            kind="value",
            says=5.03,
            rival=1.93,
            tolerance=0.25,
            unit="ratio",
            why="5 % of a weight",
        ),
    ),
    predict=lambda: {
        "p=.01 over p=.5, G=8": _weight_theory(0.01),
        "p=.01 over p=.5, G=16": _weight_theory(0.01, group_size=16),
    },
    measure=lambda _: {
        "p=.01 over p=.5, G=8": _weight(0.01),
        "p=.01 over p=.5, G=16": _weight(0.01, group_size=16),
    },
    how_to_read="Weight per ∇p over that at ½, exact; 5.03 is the ratio of the asymptotic formula.",
)


def _within_prompts() -> float:
    """Return the largest |sum of advantages| of one prompt's group, two prompts in a batch."""
    rewards, group = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0], [0] * 4 + [1] * 4
    found = group_advantages(rewards, GrpoAdvantage(ddof=1, eps=0.0), group=group)
    return float(max(abs(found[:4].sum()), abs(found[4:].sum())))


def _largest_advantage() -> float:
    return float(group_advantages([1.0] + [0.0] * 7, GrpoAdvantage(eps=0.0)).max())


_DR_DIFFICULTY = Claim(
    id="dr-grpo-difficulty-bias",
    kind="universal",
    statement="Dividing by the std gives questions that are too hard or too easy more weight "
    "(p=.05 against ½, G=8: at least a fifth more); without it all weigh alike.",
    source="Dr. GRPO, arXiv 2503.20783; theory.md C6",
    instrument="bandit",
    rows=(
        *(
            Row(
                name=f"with std, p={p}",
                kind="order",
                says=1.0,
                rival=1.0,
                tolerance=0.2,
                unit="ratio",
                why="the fifth that the sentence names",
            )
            for p in (".05", ".95")
        ),
        Row(name="without std, p=.05", kind="identity", says=1.0, rival=1.3, unit="ratio"),
        Row(name="largest advantage, G=8, sample std", kind="identity", rival=7**0.5),
        Row(name="sum of advantages within a prompt", kind="identity", says=0.0, rival=0.5),
    ),
    predict=lambda: {
        "with std, p=.05": _weight_theory(0.05),
        "with std, p=.95": _weight_theory(0.95),
        "without std, p=.05": 1.0,
        "largest advantage, G=8, sample std": max_abs_advantage(group_size=GROUP_SIZE, ddof=1),
        "sum of advantages within a prompt": 0.0,
    },
    measure=lambda _: {
        "with std, p=.05": _weight(0.05),
        "with std, p=.95": _weight(0.95),
        "without std, p=.05": _weight(0.05, text="mean_only"),
        "largest advantage, G=8, sample std": _largest_advantage(),
        "sum of advantages within a prompt": _within_prompts(),
    },
    how_to_read="Weight per ∇p over that at pass rate ½, exact. Far less than the 2.29 of the "
    f"asymptotic formula at .05 ({float(std_weight_large_group(0.05)) / 2.0:.2f}). The last rows "
    "fix whose mean and std it is: the prompt's own, ddof 1.",
)

CLAIMS = (_P9, _C6, _DR_DIFFICULTY)
