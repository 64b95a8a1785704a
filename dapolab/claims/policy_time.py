"""Refill against other policies in time: P3, and DAPO §3.2 on what a filter costs (c8)."""

from collections.abc import Mapping

from dapolab.claims.barrier import REFILL, Q, barrier, longest
from dapolab.claims.claim import Claim, Draws, Measured, Row, Totals
from dapolab.claims.simulated import GROUP_SIZE, GROUPS, REPEAT, Floats, Setup, mean_of
from dapolab.theory.decode import break_even_load_ratio, expected_affine_time_s
from dapolab.theory.sampling import expected_candidates, rounds

GEN_GROUPS = 3 * GROUPS

# ---------------------------------------------------------------------------- against rounds

_LOADS = (0.001, 0.05, 0.2)


def _row_name(load: float) -> str:
    return f"refill over rounds of 3·B at b/a = {load:g}"


def _costs() -> tuple[float, float, float, float]:
    law = rounds(Q, n_groups=GROUPS, gen_groups=GEN_GROUPS)
    tokens = GROUP_SIZE * longest(1)
    latency = law.expected_rounds * longest(GEN_GROUPS * GROUP_SIZE)
    return (
        barrier().expected_time,
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
        ratios[_row_name(load)] = Totals(costs["exact_refill", load], costs["rounds", load])
    low, high = _LOADS[0], _LOADS[-1]
    refill, whole = (
        # seconds are affine in b: intercept and slope of each replication
        (costs[c, low] - low * slope, slope)
        for c in ("exact_refill", "rounds")
        for slope in [(costs[c, high] - costs[c, low]) / (high - low)]
    )
    ratios["break-even b/a"] = (refill[0] - whole[0]) / (whole[1] - refill[1])
    return ratios


_FIVE = "5 % of the time: nobody changes a policy for less"
_BREAK_EVEN = Claim(
    id="p3-break-even",
    kind="value",
    statement="Refill is latency-bound, over-provision throughput-bound: at B=4, G=8, q=.5, "
    "lognormal(7, .9) cut at 8192, refill takes 2.21, 1.44 and .95 times as long as rounds of 3·B "
    "groups at b/a = .001, .05 and .2, and equal time at b/a = .166.",
    source="theory.md P3, B5",
    instrument="simulator",
    repeat=REPEAT,
    n=240,
    quick_n=10,
    rows=(
        *(
            Row(
                name=_row_name(load),
                kind="value",
                says=says,
                rival=1.0,
                tolerance=tolerance,
                unit="ratio",
                why=why,
            )
            for load, says, tolerance, why in (
                (0.001, 2.21, 0.11, _FIVE),
                (0.05, 1.44, 0.07, _FIVE),
                (0.2, 0.95, 0.0125, "a quarter of the way to equal time; 1 % of the time"),
            )
        ),
        Row(
            name="break-even b/a",
            kind="value",
            says=0.166,
            rival=0.05,
            tolerance=0.017,
            unit="ratio",
            why="10 % of b/a, as well as calibrations know it",
        ),
    ),
    predict=_predict_break_even,
    measure=_measure_break_even,
    how_to_read="a seconds an iteration, b a response and iteration. Above the break-even refill "
    "is the faster one; real engines lie far below it until they are full. Policies are paired by "
    "replication.",
)


# ---------------------------------------------------------------------------- DAPO §3.2

_POLICIES = {
    "exact refill": REFILL,
    "rounds of 3·B groups": Setup(p_mixed=Q, multiplier=None, collector="rounds"),
}


def _step(policy: str) -> str:
    return f"{policy}: rollout of a step"


def _per_group(policy: str) -> str:
    return f"{policy}: rollout per trained group with signal"


def _predict_not_slow() -> Mapping[str, float]:
    law = rounds(Q, n_groups=GROUPS, gen_groups=GEN_GROUPS)
    whole = law.expected_rounds * longest(GEN_GROUPS * GROUP_SIZE)
    steps = dict(
        zip(
            _POLICIES,
            (barrier().amplification, whole / longest(GROUPS * GROUP_SIZE)),
            strict=True,
        )
    )
    # without a filter only Q of the groups of a step have a signal
    return {_step(name): x for name, x in steps.items()} | {
        _per_group(name): Q * x for name, x in steps.items()
    }


def _measure_not_slow(draws: Draws) -> dict[str, Measured]:
    plain = Setup(p_mixed=Q, collector="none")
    seconds, signal = "time/rollout_seconds", "train/mixed_groups"
    found: dict[str, Measured] = {}
    for name, setup in _POLICIES.items():
        found[_step(name)] = Totals(mean_of(setup, draws, seconds), mean_of(plain, draws, seconds))
        found[_per_group(name)] = Totals(
            mean_of(setup, draws, seconds),
            mean_of(setup, draws, signal),
            Totals(mean_of(plain, draws, seconds), mean_of(plain, draws, signal)),
        )
    return found


_NOT_SLOW = Claim(
    id="c8-need-not-slow",
    kind="universal",
    statement="Dynamic sampling does not slow training, because generation time is dominated by "
    "the long tail anyway (DAPO v2 §3.2 as circulated; the paper says “does not necessarily "
    "impede training efficiency”): neither a step's rollout nor the rollout per trained group "
    "with a signal takes longer than without a filter.",
    correction="Exact refill slows both: a step's rollout takes 2.9 times as long, a group with a "
    "signal 1.4 times (q=.5). One over-sized round that almost surely suffices makes the step "
    "some 30 % longer and a group with a signal a third cheaper: the paper's “not necessarily” is "
    "right, of that policy and while decode is latency-bound.",
    source="DAPO, arXiv 2503.14476 v2 §3.2; theory.md circulated 8, B3",
    instrument="simulator",
    repeat=REPEAT,
    n=80,
    quick_n=10,
    rows=tuple(
        Row(
            name=name(policy),
            kind="bound",
            side="below",
            says=1.0,
            rival=2.0,
            tolerance=0.05,
            unit="ratio",
            why=_FIVE,
        )
        for name in (_step, _per_group)
        for policy in _POLICIES
    ),
    predict=_predict_not_slow,
    measure=_measure_not_slow,
    how_to_read="Rollout seconds over those of the policy without a filter, ratios of totals "
    "paired by replication; B=4, G=8, q=.5, latency-bound decode, which favours the sentence. The "
    "rival is the time of two rounds. Two readings and two policies: the sentence as circulated "
    "is general, so one of the four refutes it.",
)

CLAIMS = (_BREAK_EVEN, _NOT_SLOW)
