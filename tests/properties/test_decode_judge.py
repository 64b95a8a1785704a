"""The kernel against the judge over all features: same iterations, preemptions, tokens, order.

``pick(low, high)`` draws an integer, from hypothesis in the test and from a generator in a sweep:
``python tests/properties/test_decode_judge.py CASES SEED SCALE`` checks that many random ones.
"""

import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from judge_decode import Judge

from dapolab.scenario import Hardware, Speculation
from dapolab.sim.hardware import Law
from dapolab.sim.replica import STATUS_NAMES, Engine

DISPATCH = ("chunks", "round_robin", "least_loaded", "sticky", "shared")


def build_law(pick, dyadic):
    """Return a law whose coefficients are dyadic (ties are exact) or arbitrary."""
    unit = 1 / 64 if dyadic else math.pi / 190
    slopes = sorted((pick(0, 4) for _ in range(2)), reverse=True)
    first = pick(0, 2)
    knots = (0.0, 4.0, 8.0) if dyadic else (0.0, 3.0, 7.0)
    b = [first * unit]
    for width, slope in zip(np.diff(knots), slopes, strict=True):
        b.append(b[-1] + float(width) * slope * unit / 8)
    return Law(
        a_s=pick(1, 8) * unit,
        n_knots=knots,
        b_knots_s=tuple(b),
        c_s=pick(0, 3) * unit / 64,
        prefill_s=pick(0, 3) * unit / 8,
        prefill_slack_s=pick(0, 2) * unit,
        prefill_context_s=pick(0, 2) * unit / 64,
    )


def build_speculation(pick, dyadic, scale, budget):
    """Return a table for half of the cases; a dyadic one yields 1, 2 or 4 tokens an iteration."""
    k, max_batch = ((1, 3)[pick(0, 1)] if dyadic else pick(1, 5)), pick(1, 4 * scale)
    if pick(0, 1) or (budget is not None and budget < (k + 1) * max_batch):
        return None
    unit = 1 / 64 if dyadic else math.pi / 190
    return Speculation(
        draft_tokens=k,
        acceptance=float(pick(0, 1)) if dyadic else pick(0, 20) / 20,
        draft_s=pick(0, 2) * unit / 8,
        verify_s=pick(0, 2) * unit / 4,
        max_batch=max_batch,
    )


def build_case(pick, dyadic, scale=1):
    """Return (hardware, law, script, pool): the script's times, the pool refills on finishes."""
    group_size = pick(1, 4)
    cap, prompt_cap = pick(1, 24 * scale), pick(0, 12 * scale)
    replicas = pick(1, 3)
    dispatch = DISPATCH[pick(0, 4)]
    lockstep = pick(0, 3) == 0
    refills = pick(0, 1) == 1
    if not dyadic and not lockstep and (refills or dispatch == "shared"):
        replicas = 1  # equal times on two clocks would differ in the last bit
    budget = pick(1, 16 * scale) if pick(0, 1) else None
    hardware = Hardware(
        replicas=replicas,
        slots=pick(1, 6 * scale),
        kv_capacity_tokens=cap + prompt_cap + pick(0, 20 * scale) if pick(0, 2) else None,
        token_budget=budget,
        prefill=pick(0, 3) > 0,
        prefix_cache=pick(0, 2) > 0,
        max_groups_in_flight=pick(1, 3) if pick(0, 2) == 0 else None,
        dispatch=dispatch,
        dispatch_by=("group", "response")[pick(0, 1)],
        lockstep=lockstep,
        speculation=build_speculation(pick, dyadic, scale, budget),
    )

    def groups(n):
        return [
            (pick(0, prompt_cap), [pick(1, cap) for _ in range(pick(1, group_size))])
            for _ in range(n)
        ]

    step = 1 / 64 if dyadic else math.e / 170
    script, at = [("submit", 0.0, groups(pick(1, 6 * scale)))], 0.0
    for _ in range(pick(0, 6)):
        at += pick(0, 60 * scale) * step
        kind = ("submit", "abort", "abort_some", "resume", "look")[pick(0, 4)]
        if kind == "submit":
            script.append((kind, at, groups(pick(1, 3))))
        elif kind == "abort_some":
            script.append((kind, at, (pick(2, 3), pick(0, 1) == 1)))
        elif kind == "abort":
            script.append((kind, at, pick(0, 1) == 1))
        else:
            script.append((kind, at, pick(0, 1) == 1))
    pool = groups(pick(1, 6 * scale)) if refills else []
    return hardware, build_law(pick, dyadic), script, pool


def drive(engine, script, pool, look, *, drain=False):
    """Run a script on an engine or a judge; returns the finishes and what was seen on the way.

    ``drain``: the engine runs what is left to its end in one call (no refills then).
    """
    pool = list(pool)
    finishes, seen = [], []
    count = [0]

    def submit(at, groups):
        engine.submit(
            at_s=at,
            group_P=[count[0] + k for k in range(len(groups))],
            prompt_tokens_P=[prompt for prompt, _ in groups],
            n_tokens_PG=[length for _, lengths in groups for length in lengths],
            members_P=[len(lengths) for _, lengths in groups],
        )
        count[0] += len(groups)

    def move(until):
        while (found := engine.advance(until)) is not None:
            at, groups = found
            finishes.append((at, [int(g) for g in groups]))
            for _ in groups:
                if pool:
                    submit(at, [pool.pop()])

    for kind, at, what in script:
        move(at)
        if kind == "submit":
            submit(at, what)
        elif kind == "abort":
            engine.abort(at_s=at, keep_kv=what)
        elif kind == "abort_some":
            engine.abort(at_s=at, groups=range(0, count[0], what[0]), keep_kv=what[1])
        elif kind == "resume":
            engine.resume(at_s=at, groups=[int(g) for g in engine.resumable()], front=what)
        else:
            seen.append(look(engine))
    if drain:
        finishes += [(engine.drain().at_s, [])]
    else:
        move(math.inf)
    if script[-1][2] and (left := [int(g) for g in engine.resumable()]):
        engine.resume(at_s=engine.now_s, groups=left)
        move(math.inf)
    return finishes, seen


def look_engine(engine):
    facts = engine.facts()
    status = [STATUS_NAMES[k] for k in facts.status]
    return status, facts.generated_tokens.tolist(), engine.n_responses_in_flight


def look_judge(judge):
    names = {"new": "queued"}
    status = [names.get(x.status, x.status) for x in judge.responses]
    flying = sum(x.status in ("new", "queued", "running") for x in judge.responses)
    ahead = [g for _, kind, g in judge.external if kind != "submit"]
    flying += sum(x.status == "aborted" for g in ahead for x in judge.groups[g])
    return status, [x.generated for x in judge.responses], flying


def close(left, right):
    np.testing.assert_allclose(left, right, rtol=1e-9, atol=0)


def merged(finishes):
    """Join instants that only rounding separates (clocks in step under an arbitrary law)."""
    joined = []
    for at, groups in finishes:
        if joined and at - joined[-1][0] <= 1e-9 * at:
            joined[-1] = (joined[-1][0], sorted(joined[-1][1] + groups))
        else:
            joined.append((at, groups))
    return joined


def check(case):
    hardware, law, script, pool = case
    engine, judge = Engine(hardware, law), Judge(hardware, law)
    got, seen = drive(engine, script, pool, look_engine)
    want, expected = drive(judge, script, pool, look_judge)
    if not hardware.lockstep and hardware.replicas > 1 and law.a_s % (1 / 64):
        got, want = merged(got), merged(want)
    assert [groups for _, groups in got] == [groups for _, groups in want]
    close([at for at, _ in got], [at for at, _ in want])
    assert seen == expected
    close(engine.now_s, judge.now_s)
    facts = engine.facts()
    rs = judge.responses
    assert look_engine(engine) == look_judge(judge)
    assert facts.n_preemptions.tolist() == [x.preemptions for x in rs]
    placed = [k for k, x in enumerate(rs) if not math.isnan(x.admit_s)]
    assert facts.replica[placed].tolist() == [rs[k].replica for k in placed]
    close(facts.admit_s, [x.admit_s for x in rs])
    close(facts.first_token_s, [x.first_s for x in rs])
    close(facts.end_s, [x.end_s for x in rs])
    close(facts.submit_s, [judge.submit_s[x.group] for x in rs])
    ends = [judge.group_end.get(g, math.nan) for g in range(len(judge.groups))]
    close(facts.group_end_s, ends)
    assert facts.iterations.tolist() == [r.iterations for r in judge.replicas]
    assert facts.peak_kv_tokens.tolist() == [r.peak_kv for r in judge.replicas]
    assert facts.peak_running.tolist() == [r.peak_running for r in judge.replicas]
    close(facts.busy_s, [r.busy_s for r in judge.replicas])
    close(facts.prefill_s, [r.prefill_s for r in judge.replicas])
    close(facts.concurrency_s, [r.concurrency_s for r in judge.replicas])
    if not pool:
        other = Engine(hardware, law)
        drive(other, script, [], look_engine, drain=True)
        for name in ("end_s", "group_end_s", "first_token_s", "iterations", "n_preemptions"):
            assert getattr(other.facts(), name).tobytes() == getattr(facts, name).tobytes()
    return judge


@pytest.mark.parametrize("dyadic", [True, False])
@settings(max_examples=150)
@given(data=st.data())
def test_kernel_agrees_with_judge(data, dyadic):
    check(build_case(lambda low, high: data.draw(st.integers(low, high)), dyadic))


def features(case, judge):
    """Name what a case exercised, so that a sweep can say what it covered."""
    hardware, law, script, pool = case
    found = {hardware.dispatch, f"by {hardware.dispatch_by}"}
    named = {
        "lockstep": hardware.lockstep and hardware.replicas > 1,
        "preemptions": any(x.preemptions for x in judge.responses),
        "aborted": any(x.status == "aborted" for x in judge.responses),
        "aborts": any(kind.startswith("abort") for kind, _, _ in script),
        "resumes": any(kind == "resume" for kind, _, _ in script),
        "token budget": hardware.token_budget is not None and hardware.prefill,
        "prefill and cache": hardware.prefill and hardware.prefix_cache,
        "group limit": hardware.max_groups_in_flight is not None,
        "refills": bool(pool),
        "speculation": judge.n_speculated > 0,
        "lockstep speculation": judge.n_speculated > 0 and hardware.lockstep,
        "piecewise b": law.b_knots_s[2] - law.b_knots_s[1] < law.b_knots_s[1] - law.b_knots_s[0],
    }
    return found | {name for name, is_there in named.items() if is_there}


def sweep(n, seed, scale, *, build=build_case, seen_in=lambda case: features(case, check(case))):
    """Check ``n`` random cases, half of them with ties; returns how often each feature occurred."""
    seen = Counter()
    for k in range(n):
        rng = np.random.default_rng([seed, k])

        def pick(low, high, rng=rng):
            return int(rng.integers(low, high + 1))

        case = build(pick, k % 2 == 0, scale)
        try:
            seen.update(seen_in(case))
        except BaseException:
            print("seed", seed, "case", k)
            raise
    return seen


def sweep_from_arguments(**parts):
    """Run ``sweep`` by the command line: number of cases, first seed, scale."""
    n, seed, scale = (int(text) for text in [*sys.argv[1:], "300", "0", "1"][:3])
    print(n, "cases agree:", dict(sweep(n, seed, scale, **parts).most_common()))


if __name__ == "__main__":
    sweep_from_arguments()
