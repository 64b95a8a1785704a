"""What std and dynamic sampling do to prompts of different difficulty: P6, P9, c6, c7."""

import numpy as np
from scipy import stats

from dapolab.bandit import expected_gradient
from dapolab.bandit.environments import difficulty_ladder
from dapolab.claims.claim import Claim, Draws, Measured, Row
from dapolab.claims.simulated import GROUPS, Setup, replications
from dapolab.claims.toys import Floats, gradient, mode
from dapolab.objective.plain import group_advantages
from dapolab.scenario import GrpoAdvantage
from dapolab.theory.difficulty import (
    dynamic_sampling_gradient,
    max_abs_advantage,
    std_weight,
    std_weight_large_group,
)
from dapolab.theory.groups import p_mixed

GROUP_SIZE = 8
_LADDER = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
_STD = "grpo+advantage.ddof=0+advantage.eps=0"


def _ladder(text: str, rates: tuple[float, ...] = _LADDER, *, group_size: int = 8) -> Floats:
    """Return each prompt's part of the expected gradient, (P,)."""
    return gradient(difficulty_ladder(pass_rates=rates), text, group_size=group_size)


def _weight(p: float, *, group_size: int = GROUP_SIZE, text: str = _STD) -> float:
    """Return how much more the prompt weighs than one of pass rate ½, per ∇p."""
    part = _ladder(text, (p, 0.5), group_size=group_size) / np.array([p * (1 - p), 0.25])
    return float(part[0] / part[1])


def _weight_theory(p: float, *, group_size: int = GROUP_SIZE) -> float:
    weights = std_weight([p, 0.5], group_size=group_size)
    return float(weights[0] / weights[1])


# ---------------------------------------------------------------------------- dynamic sampling


def _cosine_and_gain() -> tuple[float, float]:
    plain, kept = _ladder(_STD), _ladder(f"{_STD}+filter-raw")
    sizes = float(np.linalg.norm(plain)), float(np.linalg.norm(kept))
    return float(plain @ kept) / (sizes[0] * sizes[1]), sizes[1] / sizes[0]


_P6 = Claim(
    id="p6-larger-step",
    kind="identity",
    statement="Dynamic sampling is a larger step at the same policy, not another direction: the "
    "expected gradient with it is the one without, over E[q] (on-policy, per-group aggregation, "
    "pass rates .02 to .98, G=8, with std).",
    source="theory.md P6, C7",
    instrument="bandit",
    rows=(
        Row(name="cosine of the two", kind="identity", says=1.0, rival=0.95, unit="cosine"),
        Row(name="length over length", kind="identity", rival=1.0, unit="ratio"),
    ),
    predict=lambda: {
        "cosine of the two": 1.0,
        "length over length": dynamic_sampling_gradient(_LADDER, group_size=GROUP_SIZE).gain,
    },
    measure=lambda _: dict(
        zip(("cosine of the two", "length over length"), _cosine_and_gain(), strict=True)
    ),
    how_to_read="Exact over all compositions of a group; the factor is the over-sampling ratio.",
)


def _medium_share(text: str) -> float:
    part = np.abs(_ladder(text))
    return float(part[2:5].sum() / part.sum())


_C7 = Claim(
    id="c7-medium-prompts",
    kind="order",
    statement="Dynamic sampling focuses learning on prompts of medium difficulty: their share of "
    "the expected gradient rises by at least five points.",
    correction="It changes how often prompts are in the batch and how large each one's gradient is "
    "given that it is, by exactly opposite factors. Scale and variance change; Adam takes the "
    "scale away.",
    source="theory.md circulated 7, C7",
    instrument="bandit",
    rows=(
        Row(
            name="share of p=.3 to .7, with the filter less without",
            kind="order",
            says=0.0,
            rival=0.0,
            tolerance=0.05,
            unit="share",
        ),
    ),
    predict=lambda: {"share of p=.3 to .7, with the filter less without": 0.0},
    measure=lambda _: {
        "share of p=.3 to .7, with the filter less without": _medium_share(f"{_STD}+filter-raw")
        - _medium_share(_STD)
    },
    how_to_read="Share of Σ|E[g_k]| over prompts. The batch does look more medium (seed-"
    "difficulty-shift); its gradient is not.",
)


def _spread_theory(*, filtered: bool) -> float:
    """Return Var(g)/|E g|² of one group: g = K(G−K)/G² at its prompt's logit, prompts alike."""
    K = np.arange(GROUP_SIZE + 1)
    slope = K * (GROUP_SIZE - K) / GROUP_SIZE**2
    pmf = stats.binom.pmf(K, GROUP_SIZE, np.array(_LADDER)[:, None])
    mean = pmf @ slope / len(_LADDER)
    second = float((pmf @ slope**2).mean())
    q = float(p_mixed(_LADDER, group_size=GROUP_SIZE).mean()) if filtered else 1.0
    return q * second / float(mean @ mean) - 1.0


def _spread(text: str) -> float:
    law = expected_gradient(difficulty_ladder(), mode(text, group_size=GROUP_SIZE))
    return law.variance / float(law.mean @ law.mean)


def _least_filled(draws: Draws) -> float:
    runs = replications(Setup(p_mixed=0.5, multiplier=None), draws)
    return min(float(run.steps["train/mixed_groups"].min()) for run in runs)


def _measure_dynamic(draws: Draws) -> dict[str, Measured]:
    without, with_filter = _spread("mean_only"), _spread("mean_only+filter-raw")
    return {
        "noise with the filter over without": with_filter / without,
        "noise without the filter": without,
        "fewest trained groups with signal": _least_filled(draws),
    }


_DYNAMIC = Claim(
    id="dapo-dynamic-sampling",
    kind="universal",
    statement="Dynamic sampling keeps the number of prompts with a gradient in a batch constant "
    "and makes the gradient less noisy: relative variance per trained group at most .7 of that "
    "without (DAPO §3.2; no cap on candidates; pass rates .02 to .98, G=8).",
    source="DAPO, arXiv 2503.14476 v2 §3.2; theory.md C7",
    instrument="bandit",
    n=80,
    quick_n=10,
    rows=(
        Row(
            name="noise with the filter over without",
            kind="bound",
            side="below",
            says=0.7,
            rival=1.0,
            unit="ratio",
        ),
        Row(name="noise without the filter", kind="identity", rival=0.0, unit="ratio"),
        Row(
            name="fewest trained groups with signal",
            kind="identity",
            says=float(GROUPS),
            rival=GROUPS / 2,
            unit="groups",
        ),
    ),
    predict=lambda: {
        "noise with the filter over without": _spread_theory(filtered=True)
        / _spread_theory(filtered=False),
        "noise without the filter": _spread_theory(filtered=False),
        "fewest trained groups with signal": float(GROUPS),
    },
    measure=_measure_dynamic,
    how_to_read="tr Cov(g)/|E g|² of one trained group, exact. Per sampled token nothing is won: "
    "the dropped groups were paid for. The last row is the simulator's, over all steps.",
)


# ---------------------------------------------------------------------------- std

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
            tolerance=0.5,
            unit="ratio",
        ),
        Row(
            name="p=.01 over p=.5, G=16",
            kind="value",
            says=5.03,
            rival=1.93,
            tolerance=0.5,
            unit="ratio",
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
        Row(name="with std, p=.05", kind="order", says=1.0, rival=1.0, tolerance=0.2, unit="ratio"),
        Row(name="with std, p=.95", kind="order", says=1.0, rival=1.0, tolerance=0.2, unit="ratio"),
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

CLAIMS = (_P6, _P9, _C6, _C7, _DR_DIFFICULTY, _DYNAMIC)
