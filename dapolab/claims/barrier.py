"""What the barrier of exact refill costs: P2, and what the seed article says of wall-clock."""

import numpy as np
from scipy import stats

from dapolab.claims.claim import Claim, Draws, Measured, Row, Totals
from dapolab.claims.simulated import (
    CAP_TOKENS,
    GROUP_SIZE,
    GROUPS,
    REPEAT,
    Floats,
    Setup,
    replications,
    seconds_by_wave,
)
from dapolab.theory.barrier import (
    BarrierTime,
    expected_barrier_time,
    expected_capped_barrier_time,
)
from dapolab.theory.capped import capped_refill
from dapolab.theory.sampling import expected_waves
from dapolab.theory.tails import expected_max_tokens, survival_of_max

Q = 0.5
UNCAPPED_TOKENS = 10**6
REFILL = Setup(p_mixed=Q, multiplier=None)


def _response(x: Floats, log_median: float = 7.0) -> Floats:
    return np.asarray(stats.norm.sf((np.log(np.maximum(x, 1e-9)) - log_median) / 0.9))


def barrier(log_median: float = 7.0, *, cap: int = CAP_TOKENS) -> BarrierTime:
    """Return theory's time of an uncapped refill, seconds at one token a second (B3)."""
    return expected_barrier_time(
        lambda x: survival_of_max(_response(x, log_median), n=GROUP_SIZE),
        p_mixed=Q,
        n_groups=GROUPS,
        cap=cap,
        whole_tokens=True,
    )


def longest(n_responses: int) -> float:
    """Return the expected longest of so many responses, tokens (B1)."""
    return expected_max_tokens(_response, n=n_responses, cap_tokens=CAP_TOKENS, whole_tokens=True)


# ---------------------------------------------------------------------------- amplification


def _predict_amplification() -> dict[str, float]:
    light, heavy = barrier(), barrier(8.0)
    free = barrier(cap=UNCAPPED_TOKENS)
    return {
        "lognormal(7, .9) cut at 8192": light.amplification,
        "bound E[W]": heavy.amplification,
        "cut more often less cut less often": heavy.amplification - light.amplification,
        "cut less not cut at all": light.amplification - free.amplification,
    }


def _measure_amplification(draws: Draws) -> dict[str, Measured]:
    light = seconds_by_wave(REFILL, draws)
    heavy = seconds_by_wave(Setup(p_mixed=Q, multiplier=None, log_median=8.0), draws)
    free = seconds_by_wave(Setup(p_mixed=Q, multiplier=None, cap_tokens=UNCAPPED_TOKENS), draws)
    return {
        "lognormal(7, .9) cut at 8192": light,
        "bound E[W]": heavy,
        "cut more often less cut less often": heavy.over / heavy.under - light.over / light.under,
        "cut less not cut at all": light.over / light.under - free.over / free.under,
    }


_TWENTIETH = "a twentieth of the first wave's time"
_AMPLIFICATION = Claim(
    id="p2-amplification",
    kind="universal",
    statement="The barrier of exact refill (B=4, G=8, q=.5, no cap on candidates, latency-bound "
    "decode) makes a step at most E[W] = 3.51 times as long as its first wave, 2.87 times for "
    "lognormal(7, .9) lengths cut at 8192; more where lengths are cut more often, less where long "
    "tails are not cut at all.",
    source="theory.md P2, B3",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        Row(
            name="lognormal(7, .9) cut at 8192",
            kind="value",
            rival=expected_waves(Q, n_groups=GROUPS),
            tolerance=0.14,
            unit="ratio",
            why="5 % of the time, which is less than a quarter of the way to E[W]",
        ),
        Row(
            name="bound E[W]",
            kind="bound",
            side="below",
            says=expected_waves(Q, n_groups=GROUPS),
            rival=4.0,
            tolerance=0.05,
            unit="ratio",
            why=_TWENTIETH,
        ),
        *(
            Row(
                name=name,
                kind="order",
                says=0.0,
                rival=0.0,
                tolerance=0.05,
                unit="ratio",
                why=_TWENTIETH,
            )
            for name in ("cut more often less cut less often", "cut less not cut at all")
        ),
    ),
    predict=_predict_amplification,
    measure=_measure_amplification,
    how_to_read="Rollout seconds over those of first waves, ratios of totals. Rivals: E[W] itself, "
    "every wave as long as the first; 4.0, the cruder bound 1 + H_B/λ (A3). Cut more often: "
    "lognormal(8, .9), of which the bound is asked too, as it comes nearest.",
)


_CAPS = {
    "M=2, q=.5: mean step over its first wave": (2, 0.5),
    "M=3, q=.3: mean step over its first wave": (3, 0.3),
}


def _predict_bound(multiplier: int, q: float) -> float:
    law = expected_capped_barrier_time(
        lambda x: survival_of_max(_response(x), n=GROUP_SIZE),
        refill=capped_refill(q, n_groups=GROUPS, max_candidates=multiplier * GROUPS),
        cap=CAP_TOKENS,
        whole_tokens=True,
    )
    return law.amplification


_NOT_BOUNDED = Claim(
    id="seed-wall-clock",
    kind="universal",
    statement="Wall-clock is not bounded by the candidate multiplier: at M=2 (3) a step may take "
    "more than 2 (3) times its first wave (B=4, G=8, cap 8192 tokens).",
    source="seed article 004 (agentic-rl-lab 06-dapo), on the refill barrier; theory.md A4, B3",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=tuple(
        Row(
            name=name,
            kind="order",
            says=float(multiplier),
            rival=float(multiplier),
            tolerance=0.05 * multiplier,
            unit="ratio",
            why="5 % of the time beyond the bound",
        )
        for name, (multiplier, _) in _CAPS.items()
    ),
    predict=lambda: {name: _predict_bound(m, q) for name, (m, q) in _CAPS.items()},
    measure=lambda draws: {
        name: seconds_by_wave(Setup(p_mixed=q, multiplier=m), draws)
        for name, (m, q) in _CAPS.items()
    },
    how_to_read="Even the mean, as a ratio of totals, lies above M, so M× is no bound; the rival "
    "is that bound. Decode is latency-bound: one token costs the same time for 1 or 32 answers.",
)


# ---------------------------------------------------------------------------- the last group


def _predict_last() -> dict[str, float]:
    law = barrier()
    single = longest(GROUP_SIZE) / longest(GROUPS * GROUP_SIZE)
    return {"time after the first wave": law.tail_wave_share, "one-group wave over first": single}


def _measure_last(draws: Draws) -> dict[str, Measured]:
    seconds = seconds_by_wave(REFILL, draws)
    pairs = []
    for run in replications(REFILL, draws):
        by_size = run.waves.groupby("n_groups")["wave_s"].mean()
        pairs.append((by_size[1], by_size[GROUPS]))
    return {
        "time after the first wave": Totals(seconds.over - seconds.under, seconds.over),
        "one-group wave over first": Totals(*np.array(pairs).T),
    }


_LAST_GROUP = Claim(
    id="seed-last-group",
    kind="order",
    statement="The last missing group rules the step: a refill wave of one group waits for more "
    "than half of a full wave of four, and most of the step is spent after the first wave (B=4, "
    "q=.5).",
    source="seed article 004, on the refill barrier; theory.md B1, B3",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        Row(
            name="time after the first wave",
            kind="order",
            says=0.5,
            rival=0.5,
            tolerance=0.05,
            unit="share",
            why="a twentieth of the step's time",
        ),
        Row(
            name="one-group wave over first",
            kind="order",
            says=0.5,
            rival=0.25,
            tolerance=0.05,
            unit="ratio",
            why="a twentieth of a wave's time",
        ),
    ),
    predict=_predict_last,
    measure=_measure_last,
    how_to_read="A quarter of the groups would take a quarter of the time if throughput ruled. "
    "Decode is latency-bound here; where it is not, waves of one group are cheaper (P3).",
)


CLAIMS = (_AMPLIFICATION, _NOT_BOUNDED, _LAST_GROUP)
