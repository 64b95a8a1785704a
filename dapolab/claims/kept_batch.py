"""What a filtered batch shows of the prompts: P4, P5, c12, the shift of difficulty."""

import pandas as pd

from dapolab.claims.claim import Claim, Draws, Measured, Row, Totals
from dapolab.claims.simulated import (
    GROUP_SIZE,
    GROUPS,
    REPEAT,
    Setup,
    mean_of,
    per_replication,
)
from dapolab.theory.groups import kept_accuracy, mixed_groups_beta
from dapolab.theory.sampling import expected_kept_ratio, p_enough

_RATIO = "rollout/effective_group_ratio"

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
            why="five points of pass rate: the width of a bucket of difficulty",
        ),
        Row(
            name="pass rate of trained prompts",
            kind="value",
            rival=_BETA[0] / sum(_BETA),
            tolerance=0.01,
            unit="share",
            why="one point of pass rate, the digits that dashboards show",
        ),
    ),
    predict=_predict_shift,
    measure=_measure_shift,
    how_to_read="Pass rates ~ Beta(2, .7), mean .74; the shift is towards ½ and never across it. "
    "The composition of the batch shifts; the expected gradient does not turn (p6, c7).",
)


# ---------------------------------------------------------------------------- P4, P5, circulated 12

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
            rival=p if p != 0.5 else 1.0 - 1.0 / GROUP_SIZE,
            tolerance=0.01,
            unit="share",
            why="one point of accuracy, the digits that dashboards show",
        )
        for p in _RATES
    ),
    predict=lambda: {
        f"pass rate {p:g}": float(kept_accuracy(p, group_size=GROUP_SIZE)) for p in _RATES
    },
    measure=_accuracies,
    how_to_read="One pass rate for all prompts; the rival is that pass rate itself (at ½, the "
    "end of the range). A training curve of kept accuracy is no accuracy.",
)

_QUARTER = "a quarter of the way from q to what kept/N gives; 3 % of the candidates B/q"
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
        Row(
            name="mean (B−1)/(N−1)",
            kind="value",
            says=0.5,
            rival=0.561,
            tolerance=0.015,
            unit="share",
            why=_QUARTER,
        ),
        Row(
            name="mean kept/N",
            kind="order",
            says=0.5,
            rival=0.5,
            tolerance=0.03,
            unit="share",
            why="q misread by .03 misplans the candidates B/q by 6 %",
        ),
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
        Row(
            name="mean kept/N, q=.5",
            kind="value",
            says=0.5,
            rival=0.561,
            tolerance=0.015,
            unit="share",
            why=_QUARTER,
        ),
        Row(
            name="kept accuracy, pass rate .05",
            kind="value",
            says=0.05,
            rival=0.149,
            tolerance=0.02,
            unit="share",
            why="two points of accuracy; a fifth of the way to what theory says",
        ),
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
    how_to_read="The sentence fails where the interval leaves its number by more than the "
    "tolerance.",
)

# ---------------------------------------------------------------------------- A12

_RACE = Setup(p_mixed=0.5, collector="over_provision", eta=2.0)

_OVER = Claim(
    id="a12-over-provision",
    kind="universal",
    statement="Over-provision by η=2 with the first finished winning fills 64 % of batches of 4 at "
    "q=.5, and trains answers that are shorter than those of all groups with a signal.",
    source="theory.md A12, A13",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        Row(
            name="full batches",
            kind="value",
            says=0.64,
            rival=1.0,
            tolerance=0.05,
            unit="share",
            why="one batch in twenty",
        ),
        Row(
            name="trained over effective candidates' length",
            kind="order",
            side="below",
            says=1.0,
            rival=1.0,
            tolerance=0.02,
            unit="ratio",
            why="2 % of the tokens",
        ),
    ),
    predict=lambda: {"full batches": p_enough(2 * GROUPS, p_mixed=0.5, n_groups=GROUPS)},
    measure=lambda draws: {
        "full batches": per_replication(
            _RACE, draws, lambda steps: (steps["rollout/effective_groups"] == GROUPS).mean()
        ),
        "trained over effective candidates' length": Totals(
            mean_of(_RACE, draws, "bias/length_trained"),
            mean_of(_RACE, draws, "bias/length_effective"),
        ),
    },
    how_to_read="G=8, lognormal lengths cut at 8192. Theory has the second number for durations "
    "that are exponential (4 of 6 groups kept: .525 of the mean): there the race is harsher than "
    "among groups of 8, whose longest answers are alike.",
)

CLAIMS = (_OVER, _P4, _P5, _SHIFT, _C12)
