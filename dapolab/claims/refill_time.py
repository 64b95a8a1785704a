"""What refill costs in time: P2, P3, and what the seed article and DAPO §3.2 say of wall-clock."""

from collections.abc import Mapping

import numpy as np
from scipy import stats

from dapolab.claims.claim import Claim, Draws, Measured, Row
from dapolab.claims.simulated import (
    CAP_TOKENS,
    GROUP_SIZE,
    GROUPS,
    REPEAT,
    Floats,
    Setup,
    mean_of,
    replications,
    seconds_over_first_wave,
)
from dapolab.theory.barrier import (
    BarrierTime,
    expected_barrier_time,
    expected_capped_barrier_time,
)
from dapolab.theory.capped import capped_refill
from dapolab.theory.decode import break_even_load_ratio, expected_affine_time_s
from dapolab.theory.sampling import expected_candidates, expected_waves, rounds
from dapolab.theory.tails import expected_max_tokens, survival_of_max

Q = 0.5
GEN_GROUPS = 3 * GROUPS
UNCAPPED_TOKENS = 10**6
_REFILL = Setup(p_mixed=Q, multiplier=None)
_SOURCE = "theory.md B3, B5"


def _response(x: Floats, log_median: float = 7.0) -> Floats:
    return np.asarray(stats.norm.sf((np.log(np.maximum(x, 1e-9)) - log_median) / 0.9))


def _barrier(log_median: float = 7.0, *, cap: int = CAP_TOKENS) -> BarrierTime:
    return expected_barrier_time(
        lambda x: survival_of_max(_response(x, log_median), n=GROUP_SIZE),
        p_mixed=Q,
        n_groups=GROUPS,
        cap=cap,
        whole_tokens=True,
    )


def _longest(n_responses: int) -> float:
    return expected_max_tokens(_response, n=n_responses, cap_tokens=CAP_TOKENS, whole_tokens=True)


# ---------------------------------------------------------------------------- amplification


def _predict_amplification() -> dict[str, float]:
    light, heavy = _barrier(), _barrier(8.0)
    free = _barrier(cap=UNCAPPED_TOKENS)
    return {
        "lognormal(7, .9) cut at 8192": light.amplification,
        "lognormal(8, .9) cut at 8192": heavy.amplification,
        "bound E[W]": heavy.amplification,
        "cut more often less cut less often": heavy.amplification - light.amplification,
        "cut less not cut at all": light.amplification - free.amplification,
    }


def _amplifications(setup: Setup, draws: Draws) -> Floats:
    return np.array([seconds_over_first_wave(run) for run in replications(setup, draws)])


def _measure_amplification(draws: Draws) -> dict[str, Measured]:
    light = _amplifications(_REFILL, draws)
    heavy = _amplifications(Setup(p_mixed=Q, multiplier=None, log_median=8.0), draws)
    free = _amplifications(Setup(p_mixed=Q, multiplier=None, cap_tokens=UNCAPPED_TOKENS), draws)
    return {
        "lognormal(7, .9) cut at 8192": light,
        "lognormal(8, .9) cut at 8192": heavy,
        "bound E[W]": heavy,
        "cut more often less cut less often": heavy - light,
        "cut less not cut at all": light - free,
    }


_AMPLIFICATION = Claim(
    id="p2-amplification",
    kind="universal",
    statement="The barrier of exact refill (B=4, G=8, q=.5, no cap on candidates, latency-bound "
    "decode) makes a step at most E[W] times as long as its first wave; more where lengths are "
    "cut at a cap, less where long tails are not.",
    source="theory.md P2, B3",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        Row(name="lognormal(7, .9) cut at 8192", kind="value", rival=2.0, tolerance=0.2),
        Row(name="lognormal(8, .9) cut at 8192", kind="value", rival=2.0, tolerance=0.2),
        Row(
            name="bound E[W]",
            kind="bound",
            side="below",
            says=expected_waves(Q, n_groups=GROUPS),
            rival=4.0,
            tolerance=0.05,
        ),
        Row(
            name="cut more often less cut less often",
            kind="order",
            says=0.0,
            rival=0.0,
            tolerance=0.2,
        ),
        Row(name="cut less not cut at all", kind="order", says=0.0, rival=0.0, tolerance=0.02),
    ),
    predict=_predict_amplification,
    measure=_measure_amplification,
    how_to_read="Rollout seconds over those of first waves, totals of a replication; the rival "
    "value 2 is what M=2 suggests. A bound may be exceeded by .05 before anyone would act.",
)


def _predict_bound() -> dict[str, float]:
    capped = capped_refill(Q, n_groups=GROUPS, max_candidates=2 * GROUPS)
    law = expected_capped_barrier_time(
        lambda x: survival_of_max(_response(x), n=GROUP_SIZE),
        refill=capped,
        cap=CAP_TOKENS,
        whole_tokens=True,
    )
    return {"mean step over its first wave": law.amplification}


_NOT_BOUNDED = Claim(
    id="seed-wall-clock",
    kind="bound",
    statement="Wall-clock is not bounded by the candidate multiplier: at M=2 a step may take more "
    "than twice its first wave (B=4, G=8, cap 8192 tokens).",
    source="seed article 004 (agentic-rl-lab 06-dapo), on the refill barrier; theory.md A4, B3",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        Row(name="mean step over its first wave", kind="order", says=2.0, rival=2.0, tolerance=0.1),
    ),
    predict=_predict_bound,
    measure=lambda draws: {
        "mean step over its first wave": _amplifications(Setup(p_mixed=Q), draws),
    },
    how_to_read="Even the mean, as a ratio of totals, lies above M=2, so 2× is no bound; the rival "
    "is that bound. Decode is latency-bound: one token costs the same time for 1 or 32 answers.",
)


# ---------------------------------------------------------------------------- the last group


def _predict_last() -> dict[str, float]:
    law = _barrier()
    single = _longest(GROUP_SIZE) / _longest(GROUPS * GROUP_SIZE)
    return {"time after the first wave": law.tail_wave_share, "one-group wave over first": single}


def _measure_last(draws: Draws) -> dict[str, Measured]:
    runs = replications(_REFILL, draws)
    ratio = []
    for run in runs:
        seconds = run.waves.groupby("n_groups")["wave_s"].mean()
        ratio.append(float(seconds[1] / seconds[GROUPS]))
    return {
        "time after the first wave": 1.0 - 1.0 / _amplifications(_REFILL, draws),
        "one-group wave over first": np.array(ratio),
    }


_LAST_GROUP = Claim(
    id="seed-last-group",
    kind="order",
    statement="The last missing group rules the step: a refill wave of one group waits nearly as "
    "long as a full wave, and most of the step is spent after the first wave (B=4, q=.5).",
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
        ),
        Row(
            name="one-group wave over first",
            kind="order",
            says=0.5,
            rival=0.25,
            tolerance=0.05,
            unit="ratio",
        ),
    ),
    predict=_predict_last,
    measure=_measure_last,
    how_to_read="A quarter of the groups would take a quarter of the time if throughput ruled. "
    "Decode is latency-bound here; where it is not, waves of one group are cheaper (P3).",
)


# ---------------------------------------------------------------------------- against rounds

_LOADS = (0.001, 0.05, 0.2)


def _row_name(load: float) -> str:
    return f"refill over rounds of 3·B at b/a = {load:g}"


def _costs() -> tuple[float, float, float, float]:
    law = rounds(Q, n_groups=GROUPS, gen_groups=GEN_GROUPS)
    tokens = GROUP_SIZE * _longest(1)
    latency = law.expected_rounds * _longest(GEN_GROUPS * GROUP_SIZE)
    return (
        _barrier().expected_time,
        latency,
        tokens * expected_candidates(Q, n_groups=GROUPS),
        tokens * law.expected_candidates,
    )


def _predict_break_even() -> dict[str, float]:
    refill_s, rounds_s, refill_tokens, rounds_tokens = _costs()

    def seconds(latency: float, load: float, price: float) -> float:
        return expected_affine_time_s(
            latency_tokens=latency, load_tokens=load, step_s=1.0, per_response_s=price
        )

    found = {
        _row_name(b): seconds(refill_s, refill_tokens, b) / seconds(rounds_s, rounds_tokens, b)
        for b in _LOADS
    }
    at = break_even_load_ratio(
        refill_latency_tokens=refill_s,
        rounds_latency_tokens=rounds_s,
        refill_load_tokens=refill_tokens,
        rounds_load_tokens=rounds_tokens,
    )
    return found | {"break-even b/a": at}


def _measure_break_even(draws: Draws) -> dict[str, Measured]:
    ratios: dict[str, Measured] = {}
    costs: dict[tuple[str, float], Floats] = {}
    for load in _LOADS:
        for collector in ("exact_refill", "rounds"):
            setup = Setup(p_mixed=Q, multiplier=None, collector=collector, load_s=load)
            costs[collector, load] = mean_of(setup, draws, "time/rollout_seconds")
        ratios[_row_name(load)] = costs["exact_refill", load] / costs["rounds", load]
    low, high = _LOADS[0], _LOADS[-1]
    refill, whole = (
        # seconds are affine in b: intercept and slope of each replication
        (costs[c, low] - low * slope, slope)
        for c in ("exact_refill", "rounds")
        for slope in [(costs[c, high] - costs[c, low]) / (high - low)]
    )
    ratios["break-even b/a"] = (refill[0] - whole[0]) / (whole[1] - refill[1])
    return ratios


_BREAK_EVEN = Claim(
    id="p3-break-even",
    kind="value",
    statement="Refill is latency-bound, over-provision throughput-bound: at B=4, G=8, q=.5, "
    "lognormal(7, .9) cut at 8192, refill takes 2.21, 1.44 and .95 times as long as rounds of 3·B "
    "groups at b/a = .001, .05 and .2, and equal time at b/a = .166.",
    source="theory.md P3, B5",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        Row(name=_row_name(0.001), kind="value", says=2.21, rival=1.0, tolerance=0.15),
        Row(name=_row_name(0.05), kind="value", says=1.44, rival=1.0, tolerance=0.1),
        Row(name=_row_name(0.2), kind="value", says=0.95, rival=1.05, tolerance=0.04),
        Row(name="break-even b/a", kind="value", says=0.166, rival=0.05, tolerance=0.05),
    ),
    predict=_predict_break_even,
    measure=_measure_break_even,
    how_to_read="a seconds an iteration, b a response and iteration. Above the break-even refill "
    "is the faster one; real engines lie far below it until they are full. Policies are paired by "
    "replication.",
)


# ---------------------------------------------------------------------------- DAPO §3.2


def _predict_need_not_slow() -> Mapping[str, float]:
    law = rounds(Q, n_groups=GROUPS, gen_groups=GEN_GROUPS)
    plain = _longest(GROUPS * GROUP_SIZE)
    whole = law.expected_rounds * _longest(GEN_GROUPS * GROUP_SIZE) / plain
    return {"exact refill": _barrier().amplification, "rounds of 3·B groups": whole}


def _measure_need_not_slow(draws: Draws) -> dict[str, Measured]:
    plain = mean_of(Setup(p_mixed=Q, collector="none"), draws, "time/rollout_seconds")
    return {
        "exact refill": mean_of(_REFILL, draws, "time/rollout_seconds") / plain,
        "rounds of 3·B groups": mean_of(
            Setup(p_mixed=Q, collector="rounds"), draws, "time/rollout_seconds"
        )
        / plain,
    }


_NEED_NOT_SLOW = Claim(
    id="c8-need-not-slow",
    kind="value",
    statement="Dynamic sampling does not necessarily slow training, because generation time is "
    "dominated by the long tail (DAPO v2 §3.2; read here as: a step's rollout takes less than "
    "half as long again as without it).",
    correction="True of one over-sized round that almost surely suffices, and then only as far as "
    "the longest of three times as many answers is hardly longer; exact refill takes about 2.9 "
    "times as long at q=.5.",
    source="DAPO, arXiv 2503.14476 v2 §3.2; theory.md circulated 8, B3",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=(
        Row(name="exact refill", kind="value", says=1.0, rival=2.8, tolerance=0.5),
        Row(name="rounds of 3·B groups", kind="value", says=1.0, rival=2.8, tolerance=0.5),
    ),
    predict=_predict_need_not_slow,
    measure=_measure_need_not_slow,
    how_to_read="Rollout seconds over those of a policy without a filter, paired by replication; "
    "B=4, G=8, q=.5, latency-bound decode, which favours the sentence. The sentence fails as a "
    "general one if one policy refutes it.",
)

CLAIMS = (_AMPLIFICATION, _BREAK_EVEN, _NOT_BOUNDED, _LAST_GROUP, _NEED_NOT_SLOW)
