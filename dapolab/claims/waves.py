"""How many waves and candidates a refilled step takes: P1, the seed article's bounds, c14."""

import pandas as pd

from dapolab.claims.claim import Claim, Draws, Measured, Row, Totals
from dapolab.claims.simulated import (
    GROUPS,
    REPEAT,
    Setup,
    mean_of,
    replications,
    share_of,
)
from dapolab.theory.capped import CappedRefill, capped_refill


def _chain(q: float, multiplier: int = 2) -> CappedRefill:
    return capped_refill(q, n_groups=GROUPS, max_candidates=multiplier * GROUPS)


def _is_full(steps: pd.DataFrame) -> "pd.Series[bool]":
    return steps["rollout/effective_groups"] == GROUPS


def _takes(waves: int, steps: pd.DataFrame) -> "pd.Series[bool]":
    return steps["rollout/waves"] == waves


# ---------------------------------------------------------------------------- P1


def _predict_seed_configuration() -> dict[str, float]:
    half, hard = _chain(0.5), _chain(0.3)
    return {
        "waves, q=.5": half.expected_waves,
        "steps of 5 waves, q=.5": half.p_worst,
        "full batches, q=.5": half.p_full,
        "candidates over wanted, q=.5": half.oversample,
        "mean kept/N, q=.5": half.expected_kept_ratio,
        "waves, q=.3": hard.expected_waves,
        "full batches, q=.3": hard.p_full,
        "skipped steps, q=.3": hard.p_skip,
    }


def _measure_seed_configuration(draws: Draws) -> dict[str, Measured]:
    half, hard = Setup(p_mixed=0.5), Setup(p_mixed=0.3)
    return {
        "waves, q=.5": mean_of(half, draws, "rollout/waves"),
        "steps of 5 waves, q=.5": share_of(half, draws, lambda steps: _takes(5, steps)),
        "full batches, q=.5": share_of(half, draws, _is_full),
        "candidates over wanted, q=.5": mean_of(half, draws, "rollout/oversample_ratio"),
        "mean kept/N, q=.5": mean_of(half, draws, "rollout/effective_group_ratio"),
        "waves, q=.3": mean_of(hard, draws, "rollout/waves"),
        "full batches, q=.3": share_of(hard, draws, _is_full),
        "skipped steps, q=.3": mean_of(hard, draws, "train/update_skipped"),
    }


def _value(name: str, says: float, *, rival: float, tolerance: float, unit: str, why: str) -> Row:
    return Row(
        name=name, kind="value", says=says, rival=rival, tolerance=tolerance, unit=unit, why=why
    )


_TIME = "5 % of a step's waves, hence of its time: nobody plans a run anew for less"
_BATCHES = "one batch in twenty"
_STEPS = "one step in a hundred, which no run of a hundred steps could show"

_P1 = Claim(
    id="p1-seed-configuration",
    kind="value",
    statement="Exact refill at B=4, M=2 (06-dapo at 4eb1b05): at q=.5 a step takes 2.75 waves, "
    "3.1 % of steps take the worst case of 5, 63.7 % of batches are full, 1.727 candidates are "
    "sampled per wanted group, and the mean kept/N is .538; at q=.3 2.83 waves, 19 % are full and "
    "5.8 % of steps are skipped.",
    source="theory.md P1, A4, A5; agentic-rl-lab 06-dapo rollout.py, collect_rollout_batch",
    instrument="simulator",
    repeat=REPEAT,
    n=240,
    quick_n=10,
    rows=(
        _value("waves, q=.5", 2.75, rival=2.0, tolerance=0.14, unit="waves", why=_TIME),
        _value(
            "steps of 5 waves, q=.5", 0.031, rival=0.1, tolerance=0.01, unit="share", why=_STEPS
        ),
        _value("full batches, q=.5", 0.637, rival=1.0, tolerance=0.05, unit="share", why=_BATCHES),
        _value(
            "candidates over wanted, q=.5",
            1.727,
            rival=2.0,
            tolerance=0.05,
            unit="ratio",
            why="3 % of the tokens",
        ),
        _value(
            "mean kept/N, q=.5",
            0.538,
            rival=0.5,
            tolerance=0.0095,
            unit="share",
            why="a quarter of the way to q; also 2 % of the candidates B/q that one would plan",
        ),
        _value("waves, q=.3", 2.83, rival=2.0, tolerance=0.14, unit="waves", why=_TIME),
        _value("full batches, q=.3", 0.194, rival=1.0, tolerance=0.05, unit="share", why=_BATCHES),
        _value(
            "skipped steps, q=.3",
            0.058,
            rival=0.0,
            tolerance=0.0145,
            unit="share",
            why="a quarter of the way to no skip at all",
        ),
    ),
    predict=_predict_seed_configuration,
    measure=_measure_seed_configuration,
    how_to_read="Rivals: two waves as M suggests, the worst case in one step of ten, a full batch "
    "every step, kept/N as an estimate of q, no step skipped.",
)


# ---------------------------------------------------------------------------- seed article


def _most(setup: Setup, draws: Draws, column: str) -> float:
    return max(float(run.steps[column].max()) for run in replications(setup, draws))


_WORST = Claim(
    id="seed-worst-waves",
    kind="identity",
    statement="Refilling exactly what is missing, a step takes at most 1 + (M−1)·B rollout waves: "
    "5 at B=4, M=2 and 9 at M=3.",
    source="seed article 004 and 06-dapo's README at 4eb1b05; theory.md A5",
    instrument="simulator",
    n=80,
    quick_n=10,
    rows=(
        Row(name="most waves of a step, M=2", kind="identity", says=5.0, rival=2.0, unit="waves"),
        Row(name="most waves of a step, M=3", kind="identity", says=9.0, rival=3.0, unit="waves"),
    ),
    predict=lambda: {
        "most waves of a step, M=2": float(_chain(3 / 7).max_waves),
        "most waves of a step, M=3": float(_chain(3 / 11, 3).max_waves),
    },
    measure=lambda draws: {
        "most waves of a step, M=2": _most(Setup(p_mixed=3 / 7), draws, "rollout/waves"),
        "most waves of a step, M=3": _most(
            Setup(p_mixed=3 / 11, multiplier=3), draws, "rollout/waves"
        ),
    },
    how_to_read="Most of 80 runs of 100 steps each, at the q where the worst case is most likely "
    "(3.4 and 0.6 %): reached, never exceeded.",
)

_TOKENS = Claim(
    id="seed-token-cost",
    kind="bound",
    statement="A step samples at most M times the candidates of a normal batch, so its completion "
    "tokens are bounded by about M times those of one without a filter (M=2).",
    source="seed article 004; theory.md A4, A8",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        Row(
            name="most candidates over wanted",
            kind="bound",
            side="below",
            says=2.0,
            rival=2.25,
            unit="ratio",
            why="a count of groups: none beyond it",
        ),
        Row(
            name="mean tokens over those without a filter, q=.3",
            kind="bound",
            side="below",
            says=2.0,
            rival=1 / 0.3,
            tolerance=0.1,
            unit="ratio",
            why="5 % of M: the sentence says “about”",
        ),
    ),
    predict=lambda: {
        "most candidates over wanted": 2.0,
        "mean tokens over those without a filter, q=.3": _chain(0.3).oversample,
    },
    measure=lambda draws: {
        "most candidates over wanted": _most(Setup(p_mixed=0.3), draws, "rollout/oversample_ratio"),
        "mean tokens over those without a filter, q=.3": Totals(
            mean_of(Setup(p_mixed=0.3), draws, "rollout/completion_tokens"),
            mean_of(Setup(p_mixed=0.3, collector="none"), draws, "rollout/completion_tokens"),
        ),
    },
    how_to_read="The rival 1/q is the cost without a cap. The bound holds for groups always, for "
    "tokens on average: one step's candidates may be longer than another's.",
)

# ---------------------------------------------------------------------------- circulated 14

_GRID = (0.2, 0.3, 3 / 7, 0.5, 0.7)
_C14 = Claim(
    id="c14-worst-case-is-rare",
    kind="universal",
    statement="The worst case of 1 + (M−1)·B waves is right but rare: at most 3.4 % of steps at "
    "B=4, M=2, whatever q (06-dapo at 4eb1b05, which trains on a partial batch at the cap; at "
    "6db470a it raises).",
    source="seed article 004; theory.md circulated 14, A5",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=tuple(
        Row(
            name=f"steps of 5 waves, q={q:.3g}",
            kind="bound",
            side="below",
            says=0.0336,
            rival=0.05,
            tolerance=0.01,
            unit="share",
            why=_STEPS,
        )
        for q in _GRID
    ),
    predict=lambda: {f"steps of 5 waves, q={q:.3g}": _chain(q).p_worst for q in _GRID},
    measure=lambda draws: {
        f"steps of 5 waves, q={q:.3g}": share_of(
            Setup(p_mixed=q), draws, lambda steps: _takes(5, steps)
        )
        for q in _GRID
    },
    how_to_read="P = B·q^(B−1)·(1−q)^((M−1)B), largest at q=3/7. The rival is one step in "
    "twenty, which few would call rare. Rare is not harmless: such a step is the slowest of its "
    "run.",
)

CLAIMS = (_P1, _WORST, _TOKENS, _C14)
