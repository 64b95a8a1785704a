"""The soft overlong punishment: P11, its form, its intent, and whom it punishes (theory.md E)."""

import numpy as np

from dapolab.bandit import expected_gradient
from dapolab.bandit.environments import OVERLONG_BUFFER, OVERLONG_CAP, overlong
from dapolab.claims.claim import Claim, Row
from dapolab.claims.toys import Floats, gradient, length_drift, mode, policy
from dapolab.objective.plain import group_advantages, shaped_rewards, token_pushes
from dapolab.scenario import GrpoAdvantage, Length, Objective, OverlongPenalty
from dapolab.theory.groups import p_mixed
from dapolab.theory.length_bias import token_weights
from dapolab.theory.overlong import (
    flip_threshold,
    p_kept_uniform,
    penalty_share,
    uniform_group_advantages,
)

GROUP_SIZE = 8
_PENALTY = OverlongPenalty(cap_tokens=OVERLONG_CAP, buffer_tokens=OVERLONG_BUFFER)
_GRPO = GrpoAdvantage(ddof=1, eps=0.0)


def _survival(x: Floats, *, right: bool) -> Floats:
    """Return P(L > x | right or wrong) of the bandit's five arms."""
    lengths, shares = np.array([40.0, 85, 40, 85, 100]), policy(overlong())
    rows = slice(0, 2) if right else slice(2, 5)
    share = shares[rows] / shares[rows].sum()
    return np.asarray((lengths[rows] > np.asarray(x)[:, None]) @ share)


def _kept_theory() -> tuple[float, float]:
    """Return the shares of groups that a filter on outcomes and one on shaped rewards keep."""
    p = float(policy(overlong())[:2].sum())
    raw = float(p_mixed(p, group_size=GROUP_SIZE))
    right, wrong = (
        p_kept_uniform(
            lambda x, side=side: _survival(x, right=side),  # type: ignore[misc]
            group_size=GROUP_SIZE,
            cap_tokens=OVERLONG_CAP,
            buffer_tokens=OVERLONG_BUFFER,
        )
        for side in (True, False)
    )
    return raw, raw + p**GROUP_SIZE * right + (1 - p) ** GROUP_SIZE * wrong


def _kept(words: str) -> float:
    return expected_gradient(overlong(), mode(words, group_size=GROUP_SIZE)).p_trained


def _solved_group(penalty: float) -> float:
    """Return A of the one right answer of a solved group that bears a penalty."""
    return float(group_advantages([1.0 - penalty] + [1.0] * 7, _GRPO)[0])


_P11 = Claim(
    id="p11-shaped-filter",
    kind="universal",
    statement="A filter on shaped reward keeps solved prompts and turns them into a length penalty "
    "of full strength: one penalised answer of a solved group of 8 gets A = −2.47 whatever the "
    "penalty's size; a filter on correctness keeps none.",
    source="theory.md P11, E2, E3, E4; field case B34",
    instrument="bandit",
    rows=(
        Row(name="A of the penalised answer, penalty .01", kind="identity", rival=-0.01),
        Row(name="A of the penalised answer, penalty 1", kind="identity", rival=-1.0),
        Row(
            name="groups kept, filter on shaped reward",
            kind="identity",
            rival=_kept_theory()[0],
            unit="share",
        ),
        Row(
            name="groups kept, filter on correctness",
            kind="identity",
            rival=_kept_theory()[1],
            unit="share",
        ),
    ),
    predict=lambda: {
        "A of the penalised answer, penalty .01": uniform_group_advantages(
            1, group_size=GROUP_SIZE, ddof=1
        ).penalised,
        "A of the penalised answer, penalty 1": uniform_group_advantages(
            1, group_size=GROUP_SIZE, ddof=1
        ).penalised,
        "groups kept, filter on correctness": _kept_theory()[0],
        "groups kept, filter on shaped reward": _kept_theory()[1],
    },
    measure=lambda _: {
        "A of the penalised answer, penalty .01": _solved_group(0.01),
        "A of the penalised answer, penalty 1": _solved_group(1.0),
        "groups kept, filter on correctness": _kept("overlong+filter-raw"),
        "groups kept, filter on shaped reward": _kept("overlong+filter-shaped"),
    },
    how_to_read="What the second filter keeps beyond the first has no difference in correctness. "
    "Answers of 40, 85 and 100 tokens, cap 100, buffer 40, pass rate .55.",
)

# ---------------------------------------------------------------------------- Eq. 13

_LENGTHS = (60, 61, 80, 100, 120)
_BEYOND = {60: -0.025, 61: 0.0, 80: -1.0, 100: -0.5, 120: -1.5}
"""What a threshold off by one, a step in place of a ramp, or no clamp would give."""


def _penalties() -> dict[str, float]:
    found = shaped_rewards([0.0] * len(_LENGTHS), Length(penalty=_PENALTY), n_tokens=_LENGTHS)
    return {f"L={n}": float(x) for n, x in zip(_LENGTHS, found, strict=True)}


_FORM = Claim(
    id="overlong-form",
    kind="universal",
    statement="The soft overlong punishment is 0 up to and at cap − buffer, falls linearly, is −1 "
    "at the cap and stays −1 beyond (DAPO Eq. 13; cap 100, buffer 40).",
    source="DAPO, arXiv 2503.14476 v2 Eq. 13; theory.md E",
    instrument="objective",
    rows=tuple(
        Row(name=f"L={n}", kind="identity", rival=_BEYOND[n], unit="reward") for n in _LENGTHS
    ),
    predict=lambda: {
        f"L={n}": -float(penalty_share(n, cap_tokens=OVERLONG_CAP, buffer_tokens=OVERLONG_BUFFER))
        for n in _LENGTHS
    },
    measure=lambda _: _penalties(),
    how_to_read="verl, AReaL, NeMo RL and ms-swift do not clamp; an engine that stops at the cap "
    "never gets beyond it.",
)


def _right_in_buffer(u: float) -> float:
    """Return A of the only penalised answer, a right one, where 7 of 8 are right."""
    rewards = [1.0 - u] + [1.0] * 6 + [-1.0]
    return float(group_advantages(rewards, _GRPO)[0])


_FLIP = Claim(
    id="overlong-spares-right",
    kind="universal",
    statement="With ±1 rewards the soft punishment only ranks: a right answer inside the buffer is "
    "still reinforced (advantage above 0).",
    correction="Its reward stays above that of any wrong answer, its advantage need not: with 7 of "
    "8 right it is negative above 29 % of the penalty (13 % at G=16).",
    source="06-dapo's description of its shaping, as circulated; theory.md E1, E6",
    instrument="objective",
    rows=(
        *(
            Row(
                name=f"7 of 8 right, u={u}",
                kind="order",
                says=0.0,
                rival=-0.5,
                tolerance=0.01,
                why="1 % of a standard deviation: the sign is the statement",
            )
            for u in (".2", ".5")
        ),
        Row(
            name="u where the sign turns",
            kind="order",
            says=1.0,
            rival=0.286,
            tolerance=0.0,
            unit="share",
            why="“still reinforced” leaves no room below the whole penalty",
        ),
    ),
    predict=lambda: {
        "7 of 8 right, u=.2": _one_penalised_theory(0.2),
        "7 of 8 right, u=.5": _one_penalised_theory(0.5),
        "u where the sign turns": flip_threshold(7, group_size=GROUP_SIZE),
    },
    measure=lambda _: {
        "7 of 8 right, u=.2": _right_in_buffer(0.2),
        "7 of 8 right, u=.5": _right_in_buffer(0.5),
        "u where the sign turns": _turning_point(),
    },
    how_to_read="u is the share of the penalty that the answer bears. G=8, factor 1.",
)


def _one_penalised_theory(u: float) -> float:
    rewards = np.array([1.0 - u, *[1.0] * 6, -1.0])
    return float((rewards[0] - rewards.mean()) / rewards.std(ddof=1))


def _turning_point() -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _right_in_buffer(middle) > 0 else (low, middle)
    return low


# ---------------------------------------------------------------------------- intent


def _drift_theory(*, penalised: bool) -> tuple[float, float]:
    """Return dE[L] of mean-only token sums over G, (1−1/G)·Cov_π(ℓ, π(R − R̄)), and by ‖Δθ‖."""
    pi = policy(overlong())
    length = np.array([40.0, 85, 40, 85, 100])
    reward = np.array([1.0, 1, -1, -1, -1])
    if penalised:
        reward = reward - penalty_share(
            length, cap_tokens=OVERLONG_CAP, buffer_tokens=OVERLONG_BUFFER
        )
    step = (1 - 1 / GROUP_SIZE) * pi * (reward - pi @ reward)
    drift = float((pi * (length - pi @ length)) @ step)
    return drift, drift / float(np.linalg.norm(step))


_THOUSANDTH = "a thousandth of the mean length of 63 tokens"
_SUMS, _MEANS = "seq-mean-token-sum+mean_only", "token-mean+grpo"
_DRIFTS = {
    "token sums, equal learning rate": (_SUMS, False, 0.063, _THOUSANDTH),
    "token mean with std, equal learning rate": (
        _MEANS, False, 0.001, f"{_THOUSANDTH}, over the 63 tokens that a token mean divides by",
    ),
    "token sums, equal ‖Δθ‖": (_SUMS, True, 0.063, _THOUSANDTH),
    "token mean with std, equal ‖Δθ‖": (_MEANS, True, 0.063, _THOUSANDTH),
}  # fmt: skip
"""Mode, whether per unit of ‖Δθ‖ and not of learning rate, δ and why."""
_WITH = "drift with it, token sums"


def _less(words: str, *, per_size: bool) -> float:
    """Return the drift of mean length with the penalty less that without."""
    bandit, found = overlong(), []
    for text in (f"{words}+overlong", words):
        step = gradient(bandit, text, group_size=GROUP_SIZE)
        size = float(np.linalg.norm(step)) if per_size else 1.0
        found.append(length_drift(bandit, step) / size)
    return found[0] - found[1]


_INTENT = Claim(
    id="dapo-overlong-shaping",
    kind="universal",
    statement="Soft overlong punishment shortens answers: the first expected update lowers mean "
    "length by more than without it, at equal learning rate and at equal size of the update (DAPO "
    "§3.4; 40, 85 or 100 tokens, cap 100, buffer 40).",
    source="DAPO, arXiv 2503.14476 v2 §3.4; theory.md E",
    instrument="bandit",
    rows=(
        *(
            Row(
                name=name,
                kind="order",
                side="below",
                says=0.0,
                rival=0.0,
                tolerance=tolerance,
                unit="tokens",
                why=why,
            )
            for name, (*_, tolerance, why) in _DRIFTS.items()
        ),
        Row(name=_WITH, kind="identity", rival=0.0, unit="tokens"),
    ),
    predict=lambda: {
        "token sums, equal learning rate": _drift_theory(penalised=True)[0]
        - _drift_theory(penalised=False)[0],
        "token sums, equal ‖Δθ‖": _drift_theory(penalised=True)[1]
        - _drift_theory(penalised=False)[1],
        _WITH: _drift_theory(penalised=True)[0],
    },
    measure=lambda _: (
        {name: _less(words, per_size=per_size) for name, (words, per_size, *_) in _DRIFTS.items()}
        | {
            _WITH: length_drift(
                overlong(), gradient(overlong(), f"{_SUMS}+overlong", group_size=8)
            ),
        }
    ),
    how_to_read="dE[L] with it less without, per unit of learning rate or of ‖Δθ‖, exact: the "
    "penalty also makes the update larger, which the equal size takes away. With std there is no "
    "closed form.",
)

_WEIGHT = "weight of a token beside a masked answer"
_FILTERING = Claim(
    id="overlong-filtering",
    kind="identity",
    statement="Overlong filtering takes truncated answers out of the loss and of the token-mean's "
    "denominator: beside a masked answer of 90 tokens, one of 10 has 1/10 a token, not 1/100.",
    source="DAPO, arXiv 2503.14476 v2 §3.4; field case B07",
    instrument="objective",
    rows=(Row(name=_WEIGHT, kind="identity", says=0.1, rival=0.01),),
    predict=lambda: {_WEIGHT: float(token_weights([10, 0], mode="token-mean")[0])},
    measure=lambda _: {
        _WEIGHT: float(
            token_pushes([10, 90], Objective(), advantages=[1.0, -1.0], truncated=[False, True])[0]
        )
    },
    how_to_read="ms-swift, and TRL before #6439, keep the masked tokens in the denominator "
    "(filtered_tokens = in), which shrinks the update.",
)

CLAIMS = (_P11, _FORM, _FLIP, _INTENT, _FILTERING)
