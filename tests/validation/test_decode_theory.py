"""The decode engine against closed forms: theory B5, B6, B8, B9, B11, F7, M/G/1, M/M/c.

Exact statements to 1e-9; statistical ones within 4.5 standard errors, each with a twin in which the
formula is off by 5 % and must be rejected. The formulas are written out here.
"""

import heapq
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapolab.scenario import ConfigError, Hardware
from dapolab.sim.hardware import Law
from dapolab.sim.replica import Engine

A, B, C = 0.0123, 0.00047, 3.1e-6
TOKENS = st.lists(st.integers(1, 60), min_size=1, max_size=24)


def affine(a=A, b=B, c=0.0):
    return Law(a, (0.0, 1.0), (0.0, b), c)


def plain(**settings):
    settings = {"prefill": False, "prefix_cache": False, **settings}
    return Hardware(**settings)


def run(lengths, law, *, prompts=None, at_s=0.0, **settings):
    """Submit groups of one and run them all; returns (engine, facts)."""
    engine = Engine(plain(**settings), law)
    n = len(lengths)
    engine.submit(
        at_s=at_s,
        group_P=np.arange(n),
        prompt_tokens_P=np.zeros(n, int) if prompts is None else prompts,
        n_tokens_PG=np.asarray(lengths).reshape(-1, 1),
    )
    engine.drain()
    return engine, engine.facts()


# ------------------------------------------------------------------------------------------ B5


@given(lengths=TOKENS)
def test_b5_makespan_and_every_finish(lengths):
    L = np.array(lengths)
    engine, facts = run(lengths, affine(), slots=len(lengths))
    assert engine.now_s == pytest.approx(A * L.max() + B * L.sum(), rel=1e-9)
    finish = A * L + B * np.minimum(L[:, None], L[None, :]).sum(axis=1)
    np.testing.assert_allclose(facts.end_s, finish, rtol=1e-9)
    assert facts.iterations.tolist() == [L.max()]


@given(lengths=TOKENS)
def test_b5_any_duration_law(lengths):
    knots, values = (0.0, 2.0, 6.0, 10.0), (0.0, 0.04, 0.07, 0.08)
    L = np.array(lengths)
    engine, _ = run(lengths, Law(A, knots, values, 0.0), slots=len(lengths))
    n = np.array([(k <= L).sum() for k in range(1, L.max() + 1)])
    b = np.interp(n, knots, values) + np.maximum(0, n - 10) * 0.0025
    assert engine.now_s == pytest.approx(float(np.sum(A + b)), rel=1e-9)


@given(lengths=TOKENS, prompt=st.integers(0, 50))
def test_b5_context_term(lengths, prompt):
    L, P = np.array(lengths), np.arange(len(lengths)) + prompt
    engine, _ = run(lengths, affine(c=C), prompts=P, slots=len(lengths))
    context = (P * L + L * (L - 1) / 2).sum()
    assert engine.now_s == pytest.approx(A * L.max() + B * L.sum() + C * context, rel=1e-9)


def test_metamorphic_scaling_and_permutation():
    rng = np.random.default_rng(1)
    L = rng.integers(1, 500, 40)
    one, _ = run(L, affine(b=0.0), slots=40)
    three, _ = run(3 * L, affine(b=0.0), slots=40)
    assert three.now_s == pytest.approx(3 * one.now_s, rel=1e-12)
    mixed = rng.permutation(40)
    _, facts = run(L, affine(), slots=40)
    _, permuted = run(L[mixed], affine(), slots=40)
    np.testing.assert_allclose(permuted.end_s, facts.end_s[mixed], rtol=1e-12)


# -------------------------------------------------------------------------------------- B6, B8


def list_schedule(lengths, slots):
    """Return the start step of each job and the makespan, first come first served."""
    free = [0] * slots
    starts = []
    for length in lengths:
        at = heapq.heappop(free)
        starts.append(at)
        heapq.heappush(free, at + length)
    return starts, max(s + n for s, n in zip(starts, lengths, strict=True))


@given(lengths=TOKENS, slots=st.integers(1, 8))
def test_b6_slot_limit_is_list_scheduling(lengths, slots):
    engine, facts = run(lengths, affine(), slots=slots)
    _, makespan = list_schedule(lengths, slots)
    assert facts.iterations.tolist() == [makespan]
    assert engine.now_s == pytest.approx(A * makespan + B * sum(lengths), rel=1e-9)


def steps(lengths, slots):
    return int(run(lengths, affine(a=1.0, b=0.0), slots=slots)[1].iterations[0])


@pytest.mark.parametrize(
    ("lengths", "slots", "expected"),
    [
        ([1] * 6 + [3], 3, 5),  # m(m−1) ones, then m: 2m−1
        ([1] * 12 + [4], 4, 7),
        ([3, 3, 2, 2, 2], 2, 7),
        ([7, 7, 6, 6, 5, 5, 4, 4, 4], 4, 15),
    ],
)
def test_b8_goldens(lengths, slots, expected):
    assert steps(lengths, slots) == expected


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), slots=st.integers(1, 3))
def test_b8_graham_bounds(lengths, slots):
    best = min(
        max(sum(n for n, s in zip(lengths, where, strict=True) if s == k) for k in range(slots))
        for where in itertools.product(range(slots), repeat=len(lengths))
    )
    made = steps(lengths, slots)
    total, longest = sum(lengths), max(lengths)
    assert max(longest, math.ceil(total / slots)) <= best <= made
    assert made <= total / slots + (1 - 1 / slots) * longest + 1e-9
    assert made <= (2 - 1 / slots) * best + 1e-9
    assert steps(sorted(lengths, reverse=True), slots) <= (4 / 3 - 1 / (3 * slots)) * best + 1e-9


@given(lengths=TOKENS, slots=st.integers(1, 6), which=st.integers(0, 23))
def test_b8_starts_are_monotone_in_slots_and_lengths(lengths, slots, which):
    law = affine(a=1.0, b=0.0)
    base = run(lengths, law, slots=slots)[1].admit_s
    more = run(lengths, law, slots=slots + 1)[1].admit_s
    longer = list(lengths)
    longer[which % len(lengths)] += 5
    assert np.all(more <= base)
    assert np.all(run(longer, law, slots=slots)[1].admit_s >= base)


# ---------------------------------------------------------------------------- F7, conservation


def test_f7_concurrency_integral_is_the_sum_of_sojourns_and_work_is_conserved():
    rng = np.random.default_rng(2)
    at = np.cumsum(rng.exponential(0.3, 400))
    _, facts = run(rng.integers(1, 90, 400), affine(c=1e-7), at_s=at, slots=5)
    assert facts.concurrency_s.sum() == pytest.approx((facts.end_s - facts.admit_s).sum(), rel=1e-9)
    # Little: mean number in service over the run is throughput times mean service.
    span = facts.end_s.max()
    assert facts.concurrency_s[0] / span == pytest.approx(
        400 / span * (facts.end_s - facts.admit_s).mean(), rel=1e-9
    )
    for i in np.flatnonzero(facts.admit_s > facts.submit_s):
        # While someone waits past a boundary, all slots are taken.
        middle = 0.5 * (max(facts.submit_s[i], facts.admit_s[i] - A) + facts.admit_s[i])
        running = ((facts.admit_s <= middle) & (facts.end_s > middle)).sum()
        assert running == 5 or facts.admit_s[i] - facts.submit_s[i] <= A + 5 * B + 1e-3


def test_tokens_are_conserved_under_preemption():
    rng = np.random.default_rng(3)
    engine = Engine(Hardware(slots=16, kv_capacity_tokens=700, token_budget=64), affine(c=1e-7))
    L = rng.integers(1, 300, (30, 4))
    engine.submit(
        at_s=0.0, group_P=np.arange(30), prompt_tokens_P=rng.integers(0, 90, 30), n_tokens_PG=L
    )
    engine.drain()
    facts = engine.facts()
    assert facts.generated_tokens.tolist() == L.reshape(-1).tolist()
    assert facts.n_preemptions.sum() > 0
    assert facts.peak_kv_tokens[0] <= 700


def test_clock_is_monotone_and_never_passes_its_limit_and_repeats_to_the_byte():
    def play(step):
        rng = np.random.default_rng(4)
        engine = Engine(Hardware(replicas=3, slots=4, dispatch="least_loaded"), affine(c=1e-6))
        engine.submit(
            at_s=0.0,
            group_P=np.arange(50),
            prompt_tokens_P=rng.integers(1, 50, 50),
            n_tokens_PG=rng.integers(1, 200, (50, 3)),
        )
        limit, seen = 0.0, []
        while engine.n_responses_in_flight:
            limit += step
            while (found := engine.advance(limit)) is not None:
                assert engine.now_s == found.at_s <= limit
                seen += [(found.at_s, int(g)) for g in found.groups]
            assert engine.now_s == limit or not engine.n_responses_in_flight
        assert [at for at, _ in seen] == sorted(at for at, _ in seen)
        return engine.facts()

    first, again, finer = play(0.5), play(0.5), play(0.01)
    for name in ("admit_s", "first_token_s", "end_s", "group_end_s", "busy_s"):
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()
        assert getattr(first, name).tobytes() == getattr(finer, name).tobytes()


def test_what_can_never_fit_is_refused_at_submission():
    engine = Engine(Hardware(kv_capacity_tokens=100), affine())
    with pytest.raises(ConfigError, match=r"prompt 60 \+ 41 tokens; raise the capacity"):
        engine.submit(
            at_s=0.0, group_P=[0, 1], prompt_tokens_P=[1, 60], n_tokens_PG=[[3, 99], [40, 41]]
        )
    assert engine.n_responses_in_flight == 0


# ------------------------------------------------------------------------------------ statistics


def z_score(samples, expected):
    samples = np.asarray(samples)
    return (samples.mean() - expected) / (samples.std(ddof=1) / math.sqrt(samples.size))


def check(samples, expected):
    """Within 4.5 standard errors of the formula, and not of one that is 5 % off."""
    assert abs(z_score(samples, expected)) < 4.5
    assert abs(z_score(samples, 1.05 * expected)) > 4.5
    assert abs(z_score(samples, 0.95 * expected)) > 4.5


def test_b11_response_rate_with_k_always_in_flight():
    K, mean, horizon = 32, 50, 400.0
    a, b = 0.01, 0.0005
    rates = []
    for k in range(40):
        rng = np.random.default_rng([5, k])
        n = int(1.3 * horizon * K / ((a + b * K) * mean))
        engine = Engine(plain(slots=K), affine(a=a, b=b))
        engine.submit(
            at_s=0.0,
            group_P=np.arange(n),
            prompt_tokens_P=np.zeros(n, int),
            n_tokens_PG=rng.geometric(1 / mean, (n, 1)),
        )
        while engine.advance(horizon) is not None:
            pass
        # Geometric lengths forget, so the number finished is exactly binomial in the tokens made.
        finished = n - engine.n_responses_in_flight
        rates.append(finished / horizon)
    check(rates, K / ((a + b * K) * mean))


def queue_waits(seed, *, slots, rate, lengths, law, n=30_000):
    """Mean wait and mean latency of the last 80 % of n Poisson arrivals."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, n))
    _, facts = run(lengths(rng, n), law, at_s=at, slots=slots)
    late = slice(n // 5, None)
    wait = (facts.admit_s - facts.submit_s)[late].mean()
    return wait, (facts.end_s - facts.submit_s)[late].mean(), facts


def test_one_slot_is_m_g_1_with_integer_service():
    # Pollaczek–Khinchine with S uniform on 1 … 9 seconds: E[S] = 5, E[S²] = 95/3.
    rate = 0.1
    waits = [
        queue_waits(
            [6, k],
            slots=1,
            rate=rate,
            lengths=lambda rng, n: rng.integers(1, 10, n),
            law=affine(a=1.0, b=0.0),
        )[0]
        for k in range(40)
    ]
    check(waits, rate * (95 / 3) / (2 * (1 - rate * 5)))


def extrapolated(seed, measure):
    """Richardson: twice the figure at iteration time h/2 less the one at h, on the same draws."""
    return 2 * measure(seed, 0.01) - measure(seed, 0.02)


def test_erlang_c_as_the_iteration_time_goes_to_zero():
    # M/M/2 at ρ = 0.6: C = 0.45, Wq = C/(cμ − λ) = 0.5625.
    def measure(seed, h):
        return queue_waits(
            seed,
            slots=2,
            rate=1.2,
            lengths=lambda rng, n: np.ceil(rng.exponential(1.0, n) / h).astype(int),
            law=affine(a=h, b=0.0),
        )[0]

    check([extrapolated([7, k], measure) for k in range(40)], 0.45 / 0.8)


@pytest.mark.parametrize("law_of_lengths", ["exponential", "constant"])
def test_b9_open_server_is_insensitive_to_the_length_law(law_of_lengths):
    a, b, rate, mean = 1.0, 0.25, 1.0, 2.0  # b·u = 0.5
    u = rate * mean

    def lengths(h):
        def draw(rng, n):
            size = rng.exponential(mean, n) if law_of_lengths == "exponential" else np.full(n, mean)
            return np.ceil(size / h).astype(int)

        return draw

    def both(seed, h):
        _, latency, facts = queue_waits(
            seed, slots=400, rate=rate, lengths=lengths(h), law=affine(a=a * h, b=b * h), n=20_000
        )
        span = facts.end_s.max()
        return np.array([latency, facts.concurrency_s[0] / span, 1 - facts.busy_s[0] / span])

    found = np.array([extrapolated([8, k], both) for k in range(60)])
    check(found[:, 0], mean * (a + b) / (1 - b * u))
    check(found[:, 1], u * (a + b) / (1 - b * u))
    # NegBin(a/b + 1, 1 − bu) at 0: the share of time with nobody in service.
    assert abs(z_score(found[:, 2], (1 - b * u) ** (a / b + 1))) < 4.5
