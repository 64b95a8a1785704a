"""Counts of waves, candidates, batches: P1, P4, P5, the seed article's bounds, c12, c14."""

import pandas as pd

from dapolab.claims.claim import Claim, Draws, Measured, Row
from dapolab.claims.simulated import (
    GROUP_SIZE,
    GROUPS,
    REPEAT,
    Setup,
    mean_of,
    per_replication,
    replications,
    share_of,
)
from dapolab.theory.capped import CappedRefill, capped_refill
from dapolab.theory.groups import kept_accuracy, mixed_groups_beta
from dapolab.theory.sampling import expected_kept_ratio

_RATIO = "rollout/effective_group_ratio"


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
        "mean kept/N, q=.5": mean_of(half, draws, _RATIO),
        "waves, q=.3": mean_of(hard, draws, "rollout/waves"),
        "full batches, q=.3": share_of(hard, draws, _is_full),
        "skipped steps, q=.3": mean_of(hard, draws, "train/update_skipped"),
    }


def _value(name: str, says: float, *, rival: float, tolerance: float, unit: str) -> Row:
    return Row(name=name, kind="value", says=says, rival=rival, tolerance=tolerance, unit=unit)


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
    n=80,
    quick_n=10,
    rows=(
        _value("waves, q=.5", 2.75, rival=2.0, tolerance=0.15, unit="waves"),
        _value("steps of 5 waves, q=.5", 0.031, rival=0.25, tolerance=0.03, unit="share"),
        _value("full batches, q=.5", 0.637, rival=1.0, tolerance=0.05, unit="share"),
        _value("candidates over wanted, q=.5", 1.727, rival=2.0, tolerance=0.05, unit="ratio"),
        _value("mean kept/N, q=.5", 0.538, rival=0.5, tolerance=0.03, unit="share"),
        _value("waves, q=.3", 2.83, rival=2.0, tolerance=0.15, unit="waves"),
        _value("full batches, q=.3", 0.194, rival=1.0, tolerance=0.05, unit="share"),
        _value("skipped steps, q=.3", 0.058, rival=0.0, tolerance=0.03, unit="share"),
    ),
    predict=_predict_seed_configuration,
    measure=_measure_seed_configuration,
    how_to_read="Rivals: two waves as M suggests, a full batch every step, kept/N as an estimate "
    "of q, no step skipped.",
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
    how_to_read="Seen in thousands of steps at the q where the worst case is most likely (3.4 and "
    "0.6 %): reached, never exceeded.",
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
            tolerance=1e-9,
            unit="ratio",
        ),
        Row(
            name="mean tokens over those without a filter, q=.3",
            kind="bound",
            side="below",
            says=2.0,
            rival=1 / 0.3,
            tolerance=0.05,
            unit="ratio",
        ),
    ),
    predict=lambda: {
        "most candidates over wanted": 2.0,
        "mean tokens over those without a filter, q=.3": _chain(0.3).oversample,
    },
    measure=lambda draws: {
        "most candidates over wanted": _most(Setup(p_mixed=0.3), draws, "rollout/oversample_ratio"),
        "mean tokens over those without a filter, q=.3": (
            mean_of(Setup(p_mixed=0.3), draws, "rollout/completion_tokens")
            / mean_of(Setup(p_mixed=0.3, collector="none"), draws, "rollout/completion_tokens")
        ),
    },
    how_to_read="The rival 1/q is the cost without a cap. The bound holds for groups always, for "
    "tokens on average: one step's candidates may be longer than another's.",
)

_BETA = (2.0, 0.7)


def _predict_shift() -> dict[str, float]:
    law = mixed_groups_beta(*_BETA, group_size=GROUP_SIZE)
    assert law.retained_pass_rate is not None
    return {
        "pass rate of trained prompts": law.retained_pass_rate,
        "candidates less trained": law.mean_pass_rate - law.retained_pass_rate,
    }


def _measure_shift(draws: Draws) -> dict[str, Measured]:
    setup = Setup(beta=_BETA, multiplier=None)
    trained = mean_of(setup, draws, "bias/pass_rate_trained")

    def of_candidates(steps: pd.DataFrame) -> float:
        n = steps["rollout/candidate_groups"]
        return float((steps["bias/pass_rate_candidates"] * n).sum() / n.sum())

    return {
        "pass rate of trained prompts": trained,
        "candidates less trained": per_replication(setup, draws, of_candidates) - trained,
    }


_SHIFT = Claim(
    id="seed-difficulty-shift",
    kind="order",
    statement="Dynamic sampling is an online selection by difficulty: what is trained lies nearer "
    "the edge of the model's ability (pass rate ½) than what is sampled.",
    source="seed article 004, on dynamic sampling; theory.md A2",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        Row(
            name="candidates less trained",
            kind="order",
            says=0.0,
            rival=0.0,
            tolerance=0.05,
            unit="share",
        ),
        Row(
            name="pass rate of trained prompts",
            kind="value",
            rival=_BETA[0] / sum(_BETA),
            tolerance=0.02,
            unit="share",
        ),
    ),
    predict=_predict_shift,
    measure=_measure_shift,
    how_to_read="Pass rates ~ Beta(2, .7), mean .74; the shift is towards ½ and never across it. "
    "The composition of the batch shifts; the expected gradient does not turn (p6, c7).",
)


# ---------------------------------------------------------------------------- P4, P5, 12, 14

_RATES = (0.05, 0.2, 0.5, 0.8, 0.95)


def _accuracies(draws: Draws) -> dict[str, Measured]:
    return {
        f"pass rate {p:g}": mean_of(
            Setup(pass_rate=p, multiplier=None), draws, "reward/trained_accuracy"
        )
        for p in _RATES
    }


_P4 = Claim(
    id="p4-kept-accuracy",
    kind="universal",
    statement="Under dynamic sampling the accuracy of the trained batch is (p − p^G)/q(p), between "
    "1/G and 1 − 1/G and nearer ½ than the pass rate p, whatever p (G=8).",
    source="theory.md P4, A9",
    instrument="simulator",
    repeat=REPEAT,
    n=20,
    quick_n=6,
    rows=tuple(
        Row(
            name=f"pass rate {p:g}",
            kind="value",
            rival=p if p != 0.5 else 1.0,
            tolerance=0.02,
            unit="share",
        )
        for p in _RATES
    ),
    predict=lambda: {
        f"pass rate {p:g}": float(kept_accuracy(p, group_size=GROUP_SIZE)) for p in _RATES
    },
    measure=_accuracies,
    how_to_read="One pass rate for all prompts; the rival is that pass rate itself. A training "
    "curve of kept accuracy is no accuracy.",
)

_UNCAPPED = Setup(p_mixed=0.5, multiplier=None)

_P5 = Claim(
    id="p5-unbiased-ratio",
    kind="value",
    statement="(B−1)/(N−1) is an unbiased estimate of the share q of mixed groups; kept/N is not "
    "(B=4, q=.5, exact refill).",
    source="theory.md P5, A7; Girshick, Mosteller, Savage 1946",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        _value("mean (B−1)/(N−1)", 0.5, rival=0.561, tolerance=0.03, unit="share"),
        Row(name="mean kept/N", kind="order", says=0.5, rival=0.5, tolerance=0.03, unit="share"),
    ),
    predict=lambda: {
        "mean (B−1)/(N−1)": 0.5,
        "mean kept/N": expected_kept_ratio(0.5, n_groups=GROUPS),
    },
    measure=lambda draws: {
        "mean (B−1)/(N−1)": mean_of(_UNCAPPED, draws, "rollout/unbiased_effective_ratio"),
        "mean kept/N": mean_of(_UNCAPPED, draws, _RATIO),
    },
    how_to_read="Means over steps; the rival of the first row is what kept/N gives.",
)

_C12 = Claim(
    id="c12-effective-ratio",
    kind="value",
    statement="The effective-group ratio kept/N, averaged over steps, is the share of prompts "
    "with signal, and the accuracy of the kept batch is the pass rate (dashboards of DAPO runs).",
    correction="kept/N stops at the B-th success and reads .561 at q=.5, B=4; the kept batch reads "
    "about .24 at a pass rate of .2 and lies in [1/G, 1−1/G] always. Use (B−1)/(N−1), or totals; "
    "read accuracy over all candidates.",
    source="06-dapo's rollout/effective_group_ratio; theory.md circulated 12, A7, A9",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        _value("mean kept/N, q=.5", 0.5, rival=0.561, tolerance=0.02, unit="share"),
        _value("kept accuracy, pass rate .05", 0.05, rival=0.147, tolerance=0.02, unit="share"),
    ),
    predict=lambda: {
        "mean kept/N, q=.5": expected_kept_ratio(0.5, n_groups=GROUPS),
        "kept accuracy, pass rate .05": float(kept_accuracy(0.05, group_size=GROUP_SIZE)),
    },
    measure=lambda draws: {
        "mean kept/N, q=.5": mean_of(_UNCAPPED, draws, _RATIO),
        "kept accuracy, pass rate .05": mean_of(
            Setup(pass_rate=0.05, multiplier=None), draws, "reward/trained_accuracy"
        ),
    },
    how_to_read="The sentence fails where the interval leaves its number by more than .02.",
)

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
            rival=0.25,
            tolerance=0.02,
            unit="share",
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
    how_to_read="P = B·q^(B−1)·(1−q)^((M−1)B), largest at q=3/7. Rare is not harmless: such a step "
    "is the slowest of its run.",
)

CLAIMS = (_P1, _P4, _P5, _WORST, _TOKENS, _SHIFT, _C12, _C14)

__all__ = ["CLAIMS"]
