"""Theory A and B against independent simulations: fixed seeds, 4.5 standard errors.

Each case names a sample and the closed form as a function of ``scale``; at scale 1 the form must
agree, and with its main parameter moved by 5 % either way it must be rejected.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dapolab.theory import (
    barrier,
    capped,
    collection,
    decode,
    groups,
    quadrature,
    queueing,
    sampling,
    tails,
)

Array = NDArray[np.float64]
Sample = tuple[Array, Array]
"""(numerator, denominator) per replication: the estimate is the ratio of totals."""
N = 100_000


def z_score(sample: Sample, expected: float) -> float:
    """Standard score of sum(numerator) - expected * sum(denominator)."""
    residual = sample[0] - expected * sample[1]
    return float(abs(residual.mean()) / (residual.std() / math.sqrt(residual.size)))


def judge(values: Array, form: Callable[[float], float], per: Array | None = None) -> None:
    sample = (np.asarray(values, dtype=float), np.ones(len(values)) if per is None else per)
    assert sample[0].size >= 20_000
    assert z_score(sample, form(1.0)) <= 4.5
    for scale in (0.95, 1.05):
        assert z_score(sample, form(scale)) > 4.5, f"power: scale {scale} is not rejected"


def rng(*key: int) -> np.random.Generator:
    return np.random.default_rng([20_260, *key])


# --- sampling --------------------------------------------------------------------------------


def test_beta_prior_and_what_is_kept() -> None:
    a, b, G = 0.5, 1.2, 8
    r = rng(1)
    p = r.beta(a, b, 4 * N)
    K = r.binomial(G, p)
    mixed = ((K > 0) & (K < G)).astype(float)
    judge(mixed, lambda s: groups.mixed_groups_beta(a * s, b, group_size=G).p_mixed)
    judge(
        p * mixed,
        lambda s: groups.mixed_groups_beta(a, b * s, group_size=G).retained_pass_rate or 0.0,
        per=mixed,
    )
    judge(
        K / G * mixed,
        lambda s: groups.mixed_groups_beta(a, b * s, group_size=G).kept_accuracy or 0.0,
        per=mixed,
    )


def test_logit_normal_prior() -> None:
    r = rng(2)
    p = 1 / (1 + np.exp(-r.normal(-1.0, 2.0, 4 * N)))
    K = r.binomial(8, p)
    form = lambda s: groups.mixed_groups_logit_normal(-1.0 * s, 2.0 * s, group_size=8).p_mixed  # noqa: E731
    judge((K > 0) & (K < 8), form)


def refill_waves(
    r: np.random.Generator, q: float, B: int, cap: float, n: int
) -> tuple[Array, Array, Array]:
    """Play exact refill; return waves, candidates, kept."""
    kept, used, waves = (np.zeros(n, dtype=np.int64) for _ in range(3))
    while True:
        size = np.minimum(B - kept, cap - used).astype(np.int64)
        if not size.any():
            return waves.astype(float), used.astype(float), kept.astype(float)
        kept += r.binomial(size, q)
        used += size
        waves += size > 0


@pytest.mark.parametrize(("B", "q"), [(4, 0.5), (64, 0.3)])
def test_uncapped_refill(B: int, q: float) -> None:
    waves, used, _ = refill_waves(rng(3, B), q, B, math.inf, N)
    judge(waves, lambda s: sampling.expected_waves(q * s, n_groups=B))
    judge(used, lambda s: sampling.expected_candidates(q * s, n_groups=B))
    judge(B / used, lambda s: sampling.expected_kept_ratio(q * s, n_groups=B))
    estimate = sampling.p_mixed_unbiased(np.full(N, B), used, n_groups=B)
    judge(estimate, lambda s: q * s)


@pytest.mark.parametrize(("B", "M", "q"), [(4, 2, 0.3), (16, 4, 0.2)])
def test_capped_refill(B: int, M: int, q: float) -> None:
    waves, used, kept = refill_waves(rng(4, B), q, B, M * B, 4 * N)

    def law(s: float) -> capped.CappedRefill:
        return capped.capped_refill(q * s, n_groups=B, max_candidates=M * B)

    # E[W] is flat in q near the cap, so there the twin moves the whole prediction
    judge(waves, lambda s: s * law(1.0).expected_waves)
    judge(kept == B, lambda s: law(s).p_full)
    judge(kept, lambda s: law(s).expected_kept)
    judge(kept / used, lambda s: law(s).expected_kept_ratio)
    judge(sampling.p_mixed_unbiased(kept, used, n_groups=B), lambda s: q * s)


@pytest.mark.parametrize("limit", [2, 400])
def test_rounds(limit: int) -> None:
    B, Bg, q, n = 16, 24, 0.3, 4 * N
    r = rng(5, limit)
    kept, used = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for _ in range(limit):
        going = kept < B
        if not going.any():
            break
        kept[going] += r.binomial(Bg, q, int(going.sum()))
        used += going

    def law(s: float) -> sampling.Rounds:
        return sampling.rounds(q * s, n_groups=B, gen_groups=Bg, max_rounds=limit)

    judge(used, lambda s: law(s).expected_rounds)
    judge(np.maximum(kept - B, 0), lambda s: s * law(1.0).expected_surplus)
    if limit == 2:
        judge(kept < B, lambda s: law(s).p_abort)


def test_token_use_with_correlated_lengths() -> None:
    """Hard prompts are longer and right answers shorter; totals still follow Wald (A8)."""
    n, G, B, M, r = N, 8, 4, 24, rng(6)
    rates, lengths = np.array([0.9, 0.5, 0.08]), np.array([1.0, 2.0, 5.0])
    k = np.arange(G + 1)
    weight = stats.binom.pmf(k[None, :], G, rates[:, None]) / 3
    mean_tokens = lengths[:, None] * (1 + 0.5 * (G - k))[None, :]
    inner = (k > 0) & (k < G)
    q = float(weight[:, inner].sum())
    per_mixed = float((weight * mean_tokens)[:, inner].sum()) / q

    kind = r.integers(0, 3, size=(n, M))
    K = r.binomial(G, rates[kind])
    tokens = lengths[kind] * (1 + 0.5 * (G - K)) * r.exponential(size=(n, M))
    mixed = (K > 0) & (K < G)
    candidate = (np.cumsum(mixed, axis=1) - mixed) < B
    generated = (tokens * candidate).sum(axis=1)

    def form(s: float) -> float:
        return sampling.token_utilisation(
            q,
            tokens_per_mixed=per_mixed * s,
            tokens_per_candidate=float((weight * mean_tokens).sum()),
        )

    judge((tokens * candidate * mixed).sum(axis=1), form, per=generated)
    mean = float((weight * mean_tokens).sum())
    judge(
        generated,
        lambda s: sampling.expected_tokens_generated(
            sampling.expected_candidates(q * s, n_groups=B), tokens_per_candidate=mean
        ),
    )


# --- collection ------------------------------------------------------------------------------


@pytest.mark.parametrize(("B", "K", "q"), [(8, 8, 0.5), (3, 12, 0.4)])
def test_streaming_with_abort(B: int, K: int, q: float) -> None:
    n, r = N, rng(7, B)
    end, start = r.exponential(size=(n, K)), np.zeros((n, K))
    kept, launched, completed, now = np.zeros(n), np.full(n, float(K)), np.zeros(n), np.zeros(n)
    completed_time, rows = np.zeros(n), np.arange(n)
    going = np.ones(n, dtype=bool)
    while going.any():
        slot = end.argmin(axis=1)
        t = end[rows, slot]
        now = np.where(going, t, now)
        completed_time += np.where(going, t - start[rows, slot], 0.0)
        completed += going
        kept += going & (r.random(n) < q)
        going &= kept < B
        i = rows[going]
        start[i, slot[i]] = t[i]
        end[i, slot[i]] = t[i] + r.exponential(size=i.size)
        launched[i] += 1
    aborted = (now[:, None] - start).sum(axis=1) - (now - start[rows, slot])

    def law(s: float) -> collection.Streaming:
        return collection.streaming(q * s, n_groups=B, n_slots=K, mean_duration=1.0)

    judge(now, lambda s: law(s).expected_time)
    judge(launched, lambda s: s * law(1.0).expected_launched)
    judge(aborted, lambda s: s * law(1.0).expected_aborted_work)
    judge(completed_time, lambda s: s * law(1.0).completed_duration_ratio, per=completed)


def test_one_for_one_replacement() -> None:
    """Whole-token lognormal groups, mixed ones longer: T is the slowest slot (A11)."""
    n, B, q, cap, r = 40_000, 6, 0.45, 2000, rng(8)
    laws = [stats.lognorm(0.8, scale=400.0), stats.lognorm(0.5, scale=150.0)]

    def draw(law: int, size: int) -> Array:
        sigma, scale = ((0.8, 400.0), (0.5, 150.0))[law]
        return np.ceil(np.minimum(scale * np.exp(sigma * r.normal(size=size)), cap))

    time, open_slots = np.zeros(n * B), np.arange(n * B)
    while open_slots.size:
        hit = r.random(open_slots.size) < q
        time[open_slots[hit]] += draw(0, int(hit.sum()))
        time[open_slots[~hit]] += draw(1, int((~hit).sum()))
        open_slots = open_slots[~hit]

    def form(s: float) -> float:
        return collection.expected_replenish_tokens(
            lambda x: np.asarray(laws[0].sf(x / s)),
            n_groups=B,
            p_mixed=q,
            cap_tokens=cap,
            survival_degenerate=lambda x: np.asarray(laws[1].sf(x / s)),
        )

    judge(time.reshape(n, B).max(axis=1), form)
    exponential = np.zeros((n, B))
    for j in range(B):
        exponential[:, j] = r.gamma(r.geometric(q, n))
    judge(
        exponential.max(axis=1),
        lambda s: collection.expected_replenish_time(q * s, n_groups=B, mean_duration=1.0),
    )


def test_over_provision_with_dependent_durations() -> None:
    n, B, N0, q, r = N, 4, 9, 0.5, rng(9)
    mixed = r.random((n, N0)) < q
    time = r.exponential(np.where(mixed, 3.0, 1.0))
    valid = np.sort(np.where(mixed, time, np.inf), axis=1)[:, B - 1]
    full = np.isfinite(valid)
    stop = np.where(full, valid, time.max(axis=1))

    def law(s: float) -> collection.OverProvision:
        return collection.over_provision(
            lambda x: np.exp(-x / (3.0 * s)),
            n_groups=B,
            n_candidates=N0,
            p_mixed=q,
            survival_degenerate=lambda x: np.exp(-x / s),
        )

    judge(stop, lambda s: law(s).expected_time)
    judge(
        np.where(full, valid, 0.0),
        lambda s: law(s).expected_time_if_full or 0.0,
        per=full.astype(float),
    )
    judge(full, lambda s: sampling.p_enough(N0, p_mixed=q * s, n_groups=B))


def test_first_finished_win() -> None:
    V, k = 12, 5
    kept = np.sort(rng(10).exponential(size=(N, V)), axis=1)[:, :k]

    def law(s: float) -> collection.FirstFinished:
        return collection.first_finished(V, n_kept=k, mean_duration=s)

    judge(kept[:, -1], lambda s: law(s).expected_stop_time)
    judge(kept.mean(axis=1), lambda s: law(s).expected_kept_duration)


def test_rounds_time_with_correlated_validity() -> None:
    """Valid groups take three times as long; E[T] = E[R] h(Bg) all the same (A14)."""
    n, B, Bg, q, r = N, 5, 6, 0.4, rng(11)
    kept, time = np.zeros(n), np.zeros(n)
    while (kept < B).any():
        going = kept < B
        mixed = r.random((n, Bg)) < q
        wave = r.exponential(np.where(mixed, 3.0, 1.0)).max(axis=1)
        time += going * wave
        kept += going * mixed.sum(axis=1)
    h = tails.expected_max_tokens(lambda x: q * np.exp(-x / 3) + (1 - q) * np.exp(-x), n=Bg)

    def form(s: float) -> float:
        rounds = sampling.rounds(q, n_groups=B, gen_groups=Bg).expected_rounds
        return collection.expected_rounds_time(rounds, expected_round_max=h * s)

    judge(time, form)


# --- tails and barrier -----------------------------------------------------------------------


@pytest.mark.parametrize("whole_tokens", [False, True])
def test_maximum_of_truncated_lengths(whole_tokens: bool) -> None:
    n, cap = 32, 60
    x = np.minimum(np.exp(rng(12).normal(2.0, 0.9, size=(N, n))), cap)
    x = np.ceil(x) if whole_tokens else x
    law = stats.lognorm(0.9, scale=math.exp(2.0))
    judge(
        x.max(axis=1),
        lambda s: tails.expected_max_tokens(
            lambda t: np.asarray(law.sf(t / s)), n=n, cap_tokens=cap, whole_tokens=whole_tokens
        ),
    )
    # in whole tokens, a response that stops in its last token also has length cap
    pi = float(law.sf(cap - 1 if whole_tokens else cap))
    judge(x.max(axis=1) == cap, lambda s: tails.p_max_truncated(pi * s, n=n))


def test_correlated_groups() -> None:
    k, G, r = 4, 8, rng(13)
    level = r.normal(size=(N, k, 1))
    x = np.exp(7 + 0.7 * level + 0.5 * r.normal(size=(N, k, G)))
    longest = np.minimum(x, 8192).max(axis=(1, 2))

    def conditional(t: Array, z: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(stats.norm.sf((np.log(t) - 7 - 0.7 * z) / 0.5))

    def form(s: float) -> float:
        return s * tails.expected_max_grouped(
            conditional, n_groups=k, group_size=G, cap_tokens=8192 / s
        )

    judge(longest, form)


def barrier_times(
    r: np.random.Generator, q: float, B: int, cap: float, *, n: int, longer_if_mixed: float
) -> Array:
    """Play exact refill with exponential group durations whose mean is 1 over all groups."""
    other = (1 - q * longer_if_mixed) / (1 - q)
    kept, used, time = np.zeros(n), np.zeros(n), np.zeros(n)
    while True:
        size = np.minimum(B - kept, cap - used)
        if not size.any():
            return time
        mixed = r.random((n, B)) < q
        runs = np.arange(B)[None, :] < size[:, None]
        wave = r.exponential(np.where(mixed, longer_if_mixed, other))
        time += np.where(runs, wave, 0.0).max(axis=1)
        kept += (mixed & runs).sum(axis=1)
        used += size


@pytest.mark.parametrize("longer_if_mixed", [1.0, 1.8, 0.3])
@pytest.mark.parametrize("cap", [8.0, math.inf])
def test_barrier_time_does_not_depend_on_correlation(longer_if_mixed: float, cap: float) -> None:
    """The marginal law alone counts (B3, B4), capped and uncapped."""
    B, q = 4, 0.5
    time = barrier_times(
        rng(14, int(10 * longer_if_mixed)), q, B, cap, n=N, longer_if_mixed=longer_if_mixed
    )
    other = (1 - q * longer_if_mixed) / (1 - q)

    def survival(x: Array) -> Array:
        return np.asarray(q * np.exp(-x / longer_if_mixed) + (1 - q) * np.exp(-x / other))

    def form(s: float) -> float:
        if math.isinf(cap):
            law = barrier.expected_barrier_time(survival, p_mixed=q * s, n_groups=B)
            return law.expected_time
        refill = capped.capped_refill(q, n_groups=B, max_candidates=int(cap))
        return s * barrier.expected_capped_barrier_time(survival, refill=refill).expected_time

    judge(time, form)


def test_time_spent_waiting_for_the_longest_answer() -> None:
    """Capped refill of lognormal groups: wave maximum minus wave mean, summed over waves."""
    n, B, G, q, cap, r = 40_000, 4, 4, 0.4, 8, rng(20)
    kept, used, tail, time = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    while (size := np.minimum(B - kept, cap - used)).any():
        runs = np.arange(B)[None, :] < size[:, None]
        L = np.exp(0.8 * r.normal(size=(n, B, G))) * runs[:, :, None]
        longest = L.max(axis=(1, 2))
        tail += longest - L.sum(axis=(1, 2)) / np.maximum(size * G, 1)
        time += longest
        kept += ((r.random((n, B)) < q) & runs).sum(axis=1)
        used += size
    law = stats.lognorm(0.8)
    group = tails.group_survival(lambda x: np.asarray(law.sf(x)), group_size=G)
    refill = capped.capped_refill(q, n_groups=B, max_candidates=cap)
    expected = barrier.expected_capped_barrier_time(group, refill=refill)
    judge(time, lambda s: s * expected.expected_time)
    mean = math.exp(0.32)
    judge(tail, lambda s: s * barrier.expected_tail_time(expected, mean_response=mean))


# --- decode ----------------------------------------------------------------------------------


def test_refill_under_an_affine_law() -> None:
    """Wave by wave, a max L + b sum L, against latency and load in closed form (B5)."""
    n, B, G, q, a, b, r = 40_000, 4, 4, 0.5, 1.0, 0.05, rng(15)
    kept, time = np.zeros(n), np.zeros(n)
    while (kept < B).any():
        runs = np.arange(B)[None, :] < (B - kept)[:, None]
        L = np.minimum(np.exp(7 + 0.9 * r.normal(size=(n, B, G))), 8192) * runs[:, :, None]
        time += a * L.max(axis=(1, 2)) + b * L.sum(axis=(1, 2))
        kept += ((r.random((n, B)) < q) & runs).sum(axis=1)

    def form(s: float) -> float:
        law = stats.lognorm(0.9, scale=math.exp(7) * s)
        group = tails.group_survival(lambda x: np.asarray(law.sf(x)), group_size=G)
        latency = barrier.expected_barrier_time(group, p_mixed=q * s, n_groups=B, cap=8192)
        mean = float(quadrature.mean_from_survival(lambda x: np.asarray(law.sf(x)), cap=8192)[0])
        load = G * mean * sampling.expected_candidates(q * s, n_groups=B)
        return decode.expected_affine_time_s(
            latency_tokens=latency.expected_time, load_tokens=load, step_s=a, per_response_s=b
        )

    judge(time, form)


def test_list_scheduling_of_exponential_jobs() -> None:
    n_jobs, m = 20, 6
    r = rng(16)
    free = np.zeros((N, m))
    for _ in range(n_jobs):
        slot = free.argmin(axis=1)
        free[np.arange(N), slot] += r.exponential(size=N)
    makespan = free.max(axis=1)

    def law(s: float) -> decode.MakespanMoments:
        return decode.exponential_makespan(n_jobs, n_slots=m, mean_duration=s)

    judge(makespan, lambda s: law(s).mean)
    judge((makespan - law(1.0).mean) ** 2, lambda s: law(s).variance)


# --- queueing --------------------------------------------------------------------------------


@pytest.mark.parametrize(("law", "second"), [("exponential", 2.0), ("fixed", 1.0)])
def test_single_server_waits(law: str, second: float) -> None:
    """Lindley's recursion from an empty queue, long past its relaxation."""
    n, rate, r = 4 * N, 0.5, rng(17, int(second))
    wait = np.zeros(n)
    for _ in range(80):
        service = r.exponential(size=n) if law == "exponential" else 1.0
        wait = np.maximum(wait + service - r.exponential(1 / rate, n), 0.0)
    judge(
        wait,
        lambda s: queueing.mg1(rate * s, mean_service_s=1.0, second_moment_s2=second).wait_s,
    )


def test_two_server_waits() -> None:
    n, rate, r = 4 * N, 1.2, rng(18)
    left = np.zeros((n, 2))
    for _ in range(120):
        wait = left[:, 0].copy()
        left[:, 0] += r.exponential(size=n)
        left = np.sort(np.maximum(left - r.exponential(1 / rate, (n, 1)), 0.0), axis=1)
    judge(wait, lambda s: queueing.mmc(rate * s, service_per_s=1.0, n_servers=2).wait_s)
    p_wait = queueing.erlang_c(2, utilisation=rate / 2)
    judge(wait > 0, lambda s: s * p_wait)


@pytest.mark.parametrize("law", ["exponential", "fixed", "lognormal"])
def test_shared_decode_server_is_insensitive(law: str) -> None:
    """Fluid sharing at 1/(a + b n) tokens/s each, from empty, past its relaxation (B9)."""
    n, rate, mean, a, b, slots = 20_000, 0.25, 8.0, 1.0, 0.1, 24
    r = rng(19, len(law))
    left, now = np.full((n, slots), np.inf), np.zeros(n)
    horizon = 120.0
    arrival = r.exponential(1 / rate, n)
    while (now < horizon).any():
        count = np.isfinite(left).sum(axis=1)
        shortest = left.min(axis=1)
        step = a + b * count
        until = np.minimum(np.minimum(shortest * step, arrival - now), horizon - now)
        left -= (until / step)[:, None]
        now = now + until
        left[left <= 1e-9] = np.inf
        born = np.flatnonzero((arrival <= now + 1e-12) & (now < horizon))
        if law == "exponential":
            length = r.exponential(mean, born.size)
        elif law == "fixed":
            length = np.full(born.size, mean)
        else:
            length = mean * np.exp(0.8 * r.normal(size=born.size) - 0.32)
        left[born, np.isinf(left[born]).argmax(axis=1)] = length
        arrival[born] = now[born] + r.exponential(1 / rate, born.size)
    count = np.isfinite(left).sum(axis=1).astype(float)
    assert count.max() < slots

    def form(s: float) -> float:
        server = queueing.shared_server(rate * s, mean_tokens=mean, step_s=a, per_response_s=b)
        return server.n_in_service

    judge(count, form)
