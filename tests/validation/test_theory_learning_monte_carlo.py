"""Theory C to F against independent simulations: fixed seeds, 4.5 standard errors.

At scale 1 a form must agree; with its main parameter moved by 5 % either way it must be rejected.
Sign rows must lose their sign once the mechanism is off.
"""

import heapq
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dapolab.theory import (
    clipping,
    difficulty,
    entropy,
    groups,
    hazard_bandit,
    length_bandit,
    length_bias,
    overlong,
    pipeline,
)

Array = NDArray[np.float64]
N = 100_000


def z_score(values: Array, expected: float, per: Array) -> float:
    """Standard score of sum(values) - expected * sum(per)."""
    residual = values - expected * per
    return float(residual.mean() / (residual.std() / math.sqrt(residual.size)))


def judge(
    values: Any, form: Callable[[float], float], per: Array | None = None, least: int = 20_000
) -> None:
    sample = np.asarray(values, dtype=float)
    weight = np.ones(sample.size) if per is None else per
    assert sample.size >= least
    assert abs(z_score(sample, form(1.0), weight)) <= 4.5
    for scale in (0.95, 1.05):
        z = abs(z_score(sample, form(scale), weight))
        assert z > 4.5, f"power: scale {scale} is not rejected"


def rng(*key: int) -> np.random.Generator:
    return np.random.default_rng([20_261, *key])


def standardised(r: Array, ddof: int) -> Array:
    """Advantages of each row, 0 where a row has no spread."""
    spread = r.std(axis=1, ddof=ddof, keepdims=True)
    gap = r - r.mean(axis=1, keepdims=True)
    return np.divide(gap, spread, out=np.zeros_like(gap), where=spread > 0)


# --- length bias -----------------------------------------------------------------------------

LENGTHS = np.array([10.0, 100.0, 10.0, 100.0])
RIGHT = np.array([1.0, 1.0, 0.0, 0.0])
POLICY = np.array([0.2, 0.1, 0.35, 0.35])


def group_gradients(key: int, lengths: Array, mode: str, n: int = 4 * N) -> Array:
    """Gradient by the arms' logits of n groups of 8, shape (n, 4)."""
    G = 8
    arms = rng(1, key).choice(4, size=(n, G), p=POLICY)
    L, A = lengths[arms], RIGHT[arms] - RIGHT[arms].mean(axis=1, keepdims=True)
    weight = {
        "token-mean": 1 / L.sum(axis=1, keepdims=True),
        "seq-mean-token-mean": 1 / (G * L),
        "seq-mean-token-sum": np.full_like(L, 1 / G),
    }[mode]
    push = A * weight
    each = np.stack([(push * (arms == a)).sum(axis=1) for a in range(4)], axis=1)
    return np.asarray(each - push.sum(axis=1, keepdims=True) * POLICY)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_class_bandit_gradient(mode: Any) -> None:
    g = group_gradients(len(mode), LENGTHS, mode)
    bandit = length_bandit.class_bandit(RIGHT, n_tokens_A=LENGTHS)
    law = length_bandit.expected_gradient(POLICY, bandit=bandit, mode=mode, group_size=8)
    judge(g[:, 0], lambda s: s * law[0])
    judge(g[:, 2], lambda s: s * law[2])


def conditional_drift(g: Array) -> tuple[float, float]:
    """z of d log odds(long : short) given wrong and given right under a natural step."""
    step = g / POLICY
    return tuple(
        z_score(step[:, b] - step[:, a], 0.0, np.ones(len(g))) for a, b in ((2, 3), (0, 1))
    )


def test_wrong_answers_grow_and_right_ones_shrink_only_under_response_means() -> None:
    wrong, right = conditional_drift(group_gradients(21, LENGTHS, "seq-mean-token-mean"))
    assert wrong > 4.5
    assert right < -4.5
    # mechanism off: token sums, or one length for all
    for off in (
        group_gradients(22, LENGTHS, "seq-mean-token-sum"),
        group_gradients(23, np.full(4, 55.0), "seq-mean-token-mean"),
    ):
        wrong, right = conditional_drift(off)
        assert abs(wrong) < 4.5
        assert abs(right) < 4.5


def hazard_groups(key: int, p: float, h: tuple[float, float], G: int, n: int) -> tuple[Array, ...]:
    r = rng(2, key)
    right = (r.random((n, G)) < p).astype(float)
    L = r.geometric(np.where(right == 1, h[0], h[1])).astype(float)
    return right, L, right - right.mean(axis=1, keepdims=True)


def test_hazard_gradient_of_response_means() -> None:
    p, h, G = 0.4, (0.05, 0.1), 4
    right, L, A = hazard_groups(1, p, h, G, 12 * N)

    def law(s: float) -> hazard_bandit.HazardGradient:
        return hazard_bandit.hazard_gradient(
            p, hazard_right=h[0], hazard_wrong=h[1], mode="seq-mean-token-mean", group_size=G
        )

    push = A / (G * L)
    judge((push * (1 - right) * (1 - h[1] * L)).sum(axis=1), lambda s: s * law(s).hazard_wrong)
    judge((push * right * (1 - h[0] * L)).sum(axis=1), lambda s: s * law(s).hazard_right)
    judge((push * (right - p)).sum(axis=1), lambda s: s * law(s).decision)


def test_hazard_gradient_of_the_token_mean_is_not_zero() -> None:
    p, h, G = 0.5, (0.3, 0.3), 2
    right, L, A = hazard_groups(2, p, h, G, 12 * N)
    law = hazard_bandit.hazard_gradient(
        p, hazard_right=h[0], hazard_wrong=h[1], mode="token-mean", group_size=G
    )
    push = A * (1 - right) * (1 - h[1] * L)
    judge((push / L.sum(axis=1, keepdims=True)).sum(axis=1), lambda s: s * law.hazard_wrong)
    # mechanism off: a constant in place of the batch's own token count
    fixed = (push / (G / h[0])).sum(axis=1)
    assert abs(z_score(fixed, 0.0, np.ones(fixed.size))) < 4.5


def test_std_weight_of_rare_answers() -> None:
    p, G = 0.05, 8
    r = (rng(3).random((12 * N, G)) < p).astype(float)
    step = (standardised(r, 1) * (r - p)).sum(axis=1) / G
    judge(step, lambda s: float(difficulty.std_weight(p, group_size=G, ddof=1)) * p * (1 - p) * s)


def test_dynamic_sampling_with_refill_rescales_the_gradient() -> None:
    """Two prompts, exact refill to three mixed groups: each logit's mean gradient times 1/E[q]."""
    rates, G, B, n = np.array([0.08, 0.5]), 4, 3, 3 * N
    r = rng(4)
    total, missing = np.zeros((n, 2)), np.full(n, B)
    while missing.any():
        step = np.repeat(np.arange(n), missing)
        prompt = r.integers(0, 2, step.size)
        p = rates[prompt][:, None]
        reward = (r.random((step.size, G)) < p).astype(float)
        mixed = reward.std(axis=1) > 0
        g = (standardised(reward, 0) * (reward - p)).sum(axis=1) / G
        np.add.at(total, (step[mixed], prompt[mixed]), g[mixed] / B)
        missing = missing - np.bincount(step[mixed], minlength=n)
    gain = difficulty.dynamic_sampling_gradient(rates, group_size=G).gain
    plain = 0.5 * difficulty.std_weight(rates, group_size=G) * rates * (1 - rates)
    for i in range(2):
        judge(total[:, i], lambda s, i=i: s * gain * plain[i])  # type: ignore[misc]


def test_micro_inflation() -> None:
    k, M = 4, 5
    lengths = np.rint(np.exp(rng(5).normal(5.0, 0.8, 64))).clip(1)
    T = rng(6).choice(lengths, size=(2 * N, M, k)).sum(axis=2)
    form = length_bias.expected_micro_inflation(lengths, micro_size=k, n_micro=M)
    judge((T.mean(axis=1, keepdims=True) / T).mean(axis=1), lambda s: s * form)


# --- clipping --------------------------------------------------------------------------------


@pytest.mark.parametrize(("L", "low", "high"), [(1, 0.2, 0.28), (40, 0.04, 0.03)])
def test_clip_shares(L: int, low: float, high: float) -> None:
    """Token ratios with E_old[r] = 1; a sequence ratio is the geometric mean of L of them."""
    sigma = 0.2
    log_r = rng(7, L).normal(-(sigma**2) / 2, sigma, size=(4 * N, L)).mean(axis=1)
    law = clipping.clip_shares(sigma, low=low, high=high, n_tokens=L)
    # the share beyond the upper bound is flat in sigma somewhere: the twins move the prediction
    judge(log_r > math.log1p(high), lambda s: s * law.high)
    judge(log_r < math.log1p(-low), lambda s: s * law.low)
    if L > 1:
        as_token = clipping.clip_shares(sigma / math.sqrt(L), low=low, high=high).low
        assert abs(z_score((log_r < math.log1p(-low)) * 1.0, as_token, np.ones(4 * N))) > 4.5


def test_clip_bias() -> None:
    """Arms from the old policy, advantages +1 or -1 by a coin, PPO's clip."""
    pi, old = np.array([0.75, 0.2, 0.05]), np.array([0.55, 0.3, 0.15])
    low, high, n = 0.2, 0.28, 40 * N
    r = rng(8)
    arm = r.choice(3, size=n, p=old)
    A = r.choice([-1.0, 1.0], size=n)
    ratio = (pi / old)[arm]
    live = np.where(A > 0, ratio <= 1 + high, ratio >= 1 - low)
    phi = pi * (np.log(pi) - pi @ np.log(pi))
    change = -A * live * ratio * (phi[arm] - pi @ phi)
    law = entropy.clip_bias(pi, old_policy_A=old, low=low, high=high, mean_abs_advantage=1.0)
    judge(change[ratio > 1 + high], lambda s: s * law.from_high / old[0])
    judge(change[ratio < 1 - low], lambda s: s * law.from_low / old[1:].sum())


def trained_entropy(
    key: int, p_likely: float, *, reward: str, high: float, inner: int, low: float = 0.2
) -> Array:
    """Entropy of 30 arms after one rollout of 32 and ``inner`` PPO steps, by seed."""
    n_seeds, n, r = 400, 32, rng(9, key)
    pi0 = np.full(30, (1 - p_likely) / 29)
    pi0[0] = p_likely
    arms = r.choice(30, size=(n_seeds, n), p=pi0)
    likely_right = (arms == 0).astype(float)
    rewards = likely_right if reward == "likely" else r.integers(0, 2, (n_seeds, n)).astype(float)
    A = standardised(rewards, 0)
    one_hot = np.eye(30)[arms]
    z = np.tile(np.log(pi0), (n_seeds, 1))
    for _ in range(inner):
        pi = np.exp(z - z.max(axis=1, keepdims=True))
        pi /= pi.sum(axis=1, keepdims=True)
        ratio = np.take_along_axis(pi, arms, axis=1) / pi0[arms]
        live = np.where(A > 0, ratio <= 1 + high, ratio >= 1 - low)
        push = live * ratio * A / n
        z = z + np.einsum("sn,sna->sa", push, one_hot) - push.sum(axis=1, keepdims=True) * pi
    pi = np.exp(z - z.max(axis=1, keepdims=True))
    pi /= pi.sum(axis=1, keepdims=True)
    return np.asarray(-(pi * np.log(pi)).sum(axis=1))


@pytest.mark.parametrize(
    ("p_likely", "reward", "sign"),
    [(0.5, "likely", -1), (0.9, "random", 1), (0.5, "random", 1), (1 / 30, "random", -1)],
)
def test_sign_map_of_clip_higher(p_likely: float, reward: str, sign: int) -> None:
    """Theory D7: the sign depends on the state; paired seeds, .28 against .2."""

    def paired(high: float, inner: int) -> Array:
        key = round(100 * p_likely)
        a, b = (
            trained_entropy(key, p_likely, reward=reward, high=e, inner=inner) for e in (high, 0.2)
        )
        return a - b

    effect = paired(0.28, 16)
    assert sign * z_score(effect, 0.0, np.ones(effect.size)) > 4.5
    # mechanism off: one update on fresh data, or equal bounds
    assert not paired(0.28, 1).any()
    assert not paired(0.2, 16).any()


def test_clip_higher_has_no_effect_where_the_upper_clip_cannot_bind() -> None:
    assert clipping.upper_clip_limit(0.2) < 0.9
    effect = [trained_entropy(90, 0.9, reward="likely", high=e, inner=16) for e in (0.28, 0.2)]
    assert np.array_equal(effect[0], effect[1])


# --- overlong --------------------------------------------------------------------------------


def test_shaped_filter() -> None:
    a, b, G, h, cap, buffer, n = 2.0, 0.7, 8, 0.004, 500, 120, 2 * N
    r = rng(10)
    p = r.beta(a, b, n)[:, None]
    right = r.random((n, G)) < p
    L = np.minimum(r.geometric(h, (n, G)), cap)
    shaped = 2.0 * right - np.clip((L - (cap - buffer)) / buffer, 0, 1)
    kept = shaped.max(axis=1) > shaped.min(axis=1)
    solved = right.all(axis=1) | ~right.any(axis=1)

    def law(s: float) -> overlong.ShapedFilter:
        k = overlong.p_kept_uniform(
            lambda x: (1 - h) ** x, group_size=G, cap_tokens=cap, buffer_tokens=buffer
        )
        mixed = groups.mixed_groups_beta(a, b * s, group_size=G)
        return overlong.shaped_filter(mixed, p_kept_all_right=k, p_kept_all_wrong=k)

    judge(kept, lambda s: s * law(1.0).retention)
    judge((kept & solved) * 1.0, lambda s: law(s).degenerate_share or 0.0, per=kept * 1.0)
    # mechanism off: without a penalty only mixed groups differ
    assert np.array_equal(right.max(axis=1) > right.min(axis=1), ~solved)


def test_expected_penalty() -> None:
    cap, buffer, mu, sd = 8192, 2048, 8.0, 0.9
    L = np.minimum(np.ceil(np.exp(rng(11).normal(mu, sd, 4 * N))), cap)
    u = np.clip((L - (cap - buffer)) / buffer, 0, 1)

    def form(s: float) -> float:
        return overlong.expected_penalty_share(
            lambda x: stats.lognorm.sf(x, sd, scale=s * math.exp(mu)),
            cap_tokens=cap,
            buffer_tokens=buffer,
        )

    judge(u, form)


# --- pipelines -------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0, 1, 3])
def test_exponential_schedule(eta: int) -> None:
    """Serial rollout, gate and trainer of 20,000 runs side by side; steps 60 to 140."""
    n, mu_rollout, mu_train, r = 20_000, 1.0, 1.4, rng(12, eta)
    train_end = [np.zeros(n)] * (eta + 1)
    rollout_end = np.zeros(n)
    marks = []
    for k in range(140):
        start = np.maximum(rollout_end, train_end[-eta - 1])
        rollout_end = start + r.exponential(1 / mu_rollout, n)
        train_end.append(np.maximum(rollout_end, train_end[-1]) + r.exponential(1 / mu_train, n))
        if k in (59, 139):
            marks.append(train_end[-1])
    rate = pipeline.exponential_step_rate
    per_cycle = (marks[1] - marks[0]) / 80
    judge(per_cycle, lambda s: 1 / rate(mu_rollout * s, train_per_s=mu_train, staleness=eta))
    if eta == 1:
        judge(
            per_cycle, lambda s: pipeline.one_step_off_exponential_s(s, mean_train_s=1 / mu_train)
        )


def test_one_step_off_with_fixed_training() -> None:
    D = rng(13).exponential(3.0, 2 * N)
    judge(
        np.maximum(D, 2.0), lambda s: pipeline.one_step_off_fixed_training_s(3.0 * s, train_s=2.0)
    )


def test_streaming_staleness_grows_with_the_own_duration() -> None:
    """Twenty slots, batches of four, training fast; slopes of 100 stretches of one long run."""
    K, B, n, train = 20, 4, 200_000, 1e-3
    L = rng(14).gamma(2.0, 1.0, n)
    slots = [(L[i], i) for i in range(K)]
    heapq.heapify(slots)
    start, version, staleness, order = np.zeros(n), np.zeros(n), np.full(n, -1.0), []
    bump, trained = 0, []
    for i in range(K, n):
        now, who = heapq.heappop(slots)
        order.append(who)
        if trained and now >= trained[0]:
            bump, trained = bump + 1, trained[1:]
        if len(order) % B == 0:
            for w in order[-B:]:
                staleness[w] = bump - version[w]
            trained.append(now + train)
        start[i], version[i] = now, bump
        heapq.heappush(slots, (now + L[i], i))
    body = np.arange(2000, n - 2000)
    assert (staleness[body] >= 0).all()
    slopes, means, durations = [], [], []
    for part in np.array_split(body, 100):
        slopes.append(np.polyfit(L[part], staleness[part], 1)[0])
        means.append(staleness[part].mean())
        durations.append((start[part[-1]] - start[part[0]]) / (part.size / B))
    law = pipeline.streaming_staleness(n_slots=K, batch_responses=B, mean_duration_s=2.0)
    judge(slopes, lambda s: s * law.slope_versions_per_s, least=100)
    judge(durations, lambda s: s / law.rollout_bound_step_rate, least=100)
    # a bump follows its batch at once: it finds all slots busy and an empty queue
    judge(means, lambda s: s * law.mean_versions, least=100)


def test_size_bias_of_what_is_in_flight() -> None:
    n, shape = 2 * N, 2.0
    L = rng(15).gamma(shape, 1.0, (n, 60))
    ends = L.cumsum(axis=1)
    at = 40.0
    which = (ends <= at).sum(axis=1)
    assert which.max() < 59
    own, end = (np.take_along_axis(x, which[:, None], axis=1)[:, 0] for x in (L, ends))
    second = shape * (shape + 1)
    judge(own, lambda s: pipeline.in_flight_mean(shape, second_moment=second * s))
    judge(end - at, lambda s: pipeline.residual_mean(shape, second_moment=second * s))
