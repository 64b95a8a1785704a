"""What dynamic sampling does to the update: P6, c7, and DAPO's intent (theory.md C7)."""

import numpy as np
from scipy import stats

from dapolab.bandit import expected_gradient
from dapolab.bandit.environments import difficulty_ladder
from dapolab.claims.claim import Claim, Draws, Measured, Row
from dapolab.claims.simulated import GROUPS, Setup, replications
from dapolab.claims.toys import LADDER, STD, ladder_gradient, mode
from dapolab.theory.difficulty import dynamic_sampling_gradient
from dapolab.theory.groups import p_mixed

GROUP_SIZE = 8


def _cosine_and_gain() -> tuple[float, float]:
    plain, kept = ladder_gradient(STD), ladder_gradient(f"{STD}+filter-raw")
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
        "length over length": dynamic_sampling_gradient(LADDER, group_size=GROUP_SIZE).gain,
    },
    measure=lambda _: dict(
        zip(("cosine of the two", "length over length"), _cosine_and_gain(), strict=True)
    ),
    how_to_read="Exact over all compositions of a group; the factor is the over-sampling ratio.",
)


def _medium_share(text: str) -> float:
    part = np.abs(ladder_gradient(text))
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
            why="the five points that the sentence names",
        ),
    ),
    predict=lambda: {"share of p=.3 to .7, with the filter less without": 0.0},
    measure=lambda _: {
        "share of p=.3 to .7, with the filter less without": _medium_share(f"{STD}+filter-raw")
        - _medium_share(STD)
    },
    how_to_read="Share of Σ|E[g_k]| over prompts. The batch does look more medium (seed-"
    "difficulty-shift); its gradient is not.",
)


def _spread_theory(*, filtered: bool) -> float:
    """Return Var(g)/|E g|² of one group: g = K(G−K)/G² at its prompt's logit, prompts alike."""
    K = np.arange(GROUP_SIZE + 1)
    slope = K * (GROUP_SIZE - K) / GROUP_SIZE**2
    pmf = stats.binom.pmf(K, GROUP_SIZE, np.array(LADDER)[:, None])
    mean = pmf @ slope / len(LADDER)
    second = float((pmf @ slope**2).mean())
    q = float(p_mixed(LADDER, group_size=GROUP_SIZE).mean()) if filtered else 1.0
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
            why="what a batch 1.4 times as large would give without a filter",
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

CLAIMS = (_P6, _C7, _DYNAMIC)
