"""D1, D2, D3, D6: multipliers by a complex step through the losses, reach by gradient flow."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, optimize, stats

from dapolab.theory import clipping

Array = NDArray[np.float64]


def smaller(x: complex, y: complex) -> complex:
    """Min of two values by their real parts, so that a complex step passes through."""
    return x if x.real <= y.real else y


def clip(x: complex, low: float, high: float) -> complex:
    return x if low <= x.real <= high else complex(min(max(x.real, low), high))


def ppo(r: complex, A: float, low: float, high: float, c: float | None = None) -> complex:
    value = smaller(r * A, clip(r, 1 - low, 1 + high) * A)
    if c is not None and A < 0 and value.real < c * A:
        return complex(c * A)
    return value


def sapo(r: complex, A: float) -> complex:
    tau = 1.0 if A > 0 else 1.05
    return 4 / tau / (1 + np.exp(-tau * (r - 1))) * A


RATIOS = [0.2, 0.7, 0.85, 1.0, 1.1, 1.22, 1.3, 2.06, 3.5, 6.0]


@pytest.mark.parametrize("A", [1.7, -0.6])
@pytest.mark.parametrize("r", RATIOS)
def test_multipliers_are_derivatives_of_the_losses(r: float, A: float) -> None:
    """Three arms; the sampled one has ratio r. dJ/dz must be m A (e_a - pi)."""
    z, a = np.array([0.4, -0.3, 0.9]), 1
    pi = np.exp(z) / np.exp(z).sum()
    old = pi[a] / r

    def ratio(logits: Any) -> complex:
        return np.exp(logits[a]) / np.exp(logits).sum() / old

    def log_pi(logits: Any) -> complex:
        return logits[a] - np.log(np.exp(logits).sum())

    def gradient(objective: Callable[[Any], complex]) -> Array:
        return np.array([objective(z + 1e-30j * e).imag for e in np.eye(3)]) / 1e-30

    direction = A * (np.eye(3)[a] - pi)
    cases = [
        (
            lambda x: ppo(ratio(x), A, 0.2, 0.28),
            clipping.ppo_multiplier(r, advantage=A, low=0.2, high=0.28),
        ),
        (
            lambda x: ppo(ratio(x), A, 0.2, 0.2, 3.0),
            clipping.ppo_multiplier(r, advantage=A, low=0.2, high=0.2, dual_c=3.0),
        ),
        (
            lambda x: min(max(r, 0.8), 1.28) * A * log_pi(x),
            clipping.cispo_multiplier(r, low=0.2, high=0.28),
        ),
        (
            lambda x: min(r, 6.0) * A * log_pi(x),
            clipping.cispo_multiplier(r, low=None, high=5.0),
        ),
        (lambda x: sapo(ratio(x), A), clipping.sapo_multiplier(r, advantage=A)),
    ]
    for objective, m in cases:
        assert float(m) * direction == pytest.approx(gradient(objective), abs=1e-9)


@pytest.mark.parametrize("A", [1.7, -0.6])
@pytest.mark.parametrize("scale", [0.0, 0.05, 2.0])
def test_gspo_multiplier_is_the_derivative_by_each_token(scale: float, A: float) -> None:
    log_ratio = scale * np.array([0.3, -0.1, 0.5, 0.2])

    def objective(x: Any) -> complex:
        return ppo(np.exp(x.mean()), A, 0.2, 0.28)

    expected = [objective(log_ratio + 1e-30j * e).imag / 1e-30 for e in np.eye(4)]
    got = clipping.gspo_multiplier(log_ratio, advantage=A, low=0.2, high=0.28)
    assert got * A == pytest.approx(expected, abs=1e-12)
    if scale == 0.0:
        assert got == pytest.approx(np.full(4, 0.25))


@given(A=st.floats(-3, 3), low=st.floats(0, 0.9), high=st.floats(0, 5))
def test_every_method_is_reinforce_at_ratio_one(A: float, low: float, high: float) -> None:
    of = [
        clipping.ppo_multiplier(1.0, advantage=A, low=low, high=high, dual_c=3.0),
        clipping.cispo_multiplier(1.0, low=low, high=high),
        clipping.sapo_multiplier(1.0, advantage=A),
    ]
    assert [float(m) for m in of] == [1.0, 1.0, 1.0]


def test_sapo_peaks() -> None:
    """Theory D1: 1.575 at 2.06, above 1 up to 3.47; tau 1.05: 1.536 at 1.99."""
    for tau, ratio, size in ((1.0, 2.06, 1.575), (1.05, 1.99, 1.536)):
        peak = clipping.sapo_peak(tau)
        assert (peak.ratio, peak.multiplier) == pytest.approx((ratio, size), abs=5.1e-3)
        assert peak.multiplier == pytest.approx(size, abs=5.1e-4)
    assert clipping.sapo_peak(1.0).until == pytest.approx(3.47, abs=5.1e-3)


@pytest.mark.parametrize("tau", [0.2, 1.0, 1.05, 7.0, 60.0])
def test_sapo_peak_by_search(tau: float) -> None:
    def m(r: float) -> float:
        return r / math.cosh(tau * (r - 1) / 2) ** 2

    peak = clipping.sapo_peak(tau)
    found = optimize.minimize_scalar(
        lambda r: -m(r), bounds=(1.0, peak.until), method="bounded", options={"xatol": 1e-10}
    )
    assert peak.ratio == pytest.approx(found.x, rel=1e-6)
    assert peak.multiplier == pytest.approx(-found.fun, rel=1e-12)
    assert m(peak.until) == pytest.approx(1.0, abs=1e-9)
    got = clipping.sapo_multiplier([peak.until, 1000.0], advantage=1.0, tau_pos=tau)
    assert got[0] == pytest.approx(1.0, abs=1e-9)
    assert 0.0 <= got[1] < 1e-9


# --- D2 --------------------------------------------------------------------------------------


def test_reach_of_positive_samples() -> None:
    """Theory D2: .01 to .5 takes 22 refreshes at .2, 16 at .28."""
    for high, refreshes in ((0.2, 22), (0.28, 16)):
        p, n = 0.01, 0
        while p < 0.5:
            p, n = p * (1 + high), n + 1
        assert clipping.refreshes_to_reach(0.01, p_target=0.5, high=high) == n == refreshes
    assert clipping.refreshes_to_reach(0.5, p_target=0.5, high=0.2) == 0
    assert clipping.refreshes_to_reach(0.125, p_target=0.5, high=1.0) == 2
    limits = [clipping.upper_clip_limit(e) for e in (0.2, 0.28)]
    assert limits == pytest.approx([0.833, 0.781], abs=5.1e-4)


def flow_end(p: float, n_arms: int, low: float, high: float, *, negatives: bool = True) -> float:
    """Inner natural-gradient steps on one rollout's expected clipped surrogate until it stops.

    Arm 0 is right; wrong arms start equal. The surrogate gradient of arm a is old_a m_a A_a.
    """
    old = np.array([p] + [(1 - p) / (n_arms - 1)] * (n_arms - 1))
    std = math.sqrt(p * (1 - p))
    A = np.array([(1 - p) / std] + [-p / std] * (n_arms - 1))
    if not negatives:
        A[1:] = 0.0
    pi, eta = old.copy(), 1e-3
    for _ in range(100_000):
        r = pi / old
        live = ((A > 0) & (r <= 1 + high)) | ((A < 0) & (r >= 1 - low))
        if not live.any():
            break
        pi = pi * np.exp(eta * np.where(live, A, 0.0))
        pi /= pi.sum()
    return float(pi[0])


@pytest.mark.parametrize(
    ("p", "low", "high"), [(0.01, 0.2, 0.28), (0.01, 0.2, 0.2), (0.6, 0.2, 0.28), (0.3, 0.1, 0.5)]
)
def test_fixed_point_of_a_rollout_by_flow(p: float, low: float, high: float) -> None:
    got = clipping.rollout_fixed_point(p, low=low, high=high)
    assert got == pytest.approx(flow_end(p, 2, low, high), abs=2e-3)


def test_reach_with_negative_samples() -> None:
    assert clipping.rollout_fixed_point(0.01, low=0.2, high=0.28) == pytest.approx(0.208)
    for high in (0.2, 0.28):
        assert clipping.rollouts_to_reach(0.01, p_target=0.5, low=0.2, high=high) == 4
    assert flow_end(0.01, 4, 0.2, 0.28) == pytest.approx(0.209, abs=2e-3)
    # the mechanism off: without negative samples the circulated bound (1 + high) p holds
    assert flow_end(0.01, 2, 0.2, 0.28, negatives=False) == pytest.approx(0.0128, abs=2e-4)


@given(p=st.floats(0.001, 0.999), low=st.floats(0.01, 0.99), high=st.floats(0.01, 3.0))
@settings(deadline=None)
def test_which_clip_binds_first(p: float, low: float, high: float) -> None:
    end = clipping.rollout_fixed_point(p, low=low, high=high)
    assert p < end <= 1.0
    by_high, by_low = (1 + high) * p, 1 - (1 - low) * (1 - p)
    if p < clipping.high_clip_first_below(low=low, high=high) * (1 - 1e-12):
        assert by_high <= by_low * (1 + 1e-12)
        assert end == pytest.approx(by_low)
    elif p > clipping.high_clip_first_below(low=low, high=high) * (1 + 1e-12):
        assert by_high >= by_low * (1 - 1e-12)
    if p >= clipping.upper_clip_limit(high):
        assert end == pytest.approx(1.0)


# --- D3 --------------------------------------------------------------------------------------


def flow_time(p: float, high: float, kind: str) -> float:
    """Time of the flow of the two-arm surrogate until the right arm's ratio is 1 + high."""
    D = 1 / math.sqrt(p * (1 - p))
    A = np.array([(1 - p) * D, -p * D])

    def probabilities(logits: Any) -> Array:
        z = np.asarray(logits)
        if kind == "sigmoid":
            x = 1 / (1 + math.exp(-z[0]))
            return np.array([x, 1 - x])
        e = np.exp(z - z.max())
        return np.asarray(e / e.sum())

    def slope(_t: float, z: Array) -> Array:
        pi = probabilities(z)
        if kind == "sigmoid":
            return np.array([pi[0] * (A[0] * (1 - pi[0]) - A[1] * pi[1])])
        g = pi * (A - pi @ A)
        if kind == "natural":
            return np.asarray(np.linalg.pinv(np.diag(pi) - np.outer(pi, pi)) @ g)
        return g

    def reached(_t: float, z: Array) -> float:
        return float(probabilities(z)[0] - (1 + high) * p)

    reached.terminal = True  # type: ignore[attr-defined]
    start = [math.log(p / (1 - p))] if kind == "sigmoid" else [math.log(p), math.log(1 - p)]
    solved = integrate.solve_ivp(
        slope, (0, 1e7), start, events=reached, method="DOP853", rtol=1e-12, atol=1e-12
    )
    return float(solved.t_events[0][0])


@pytest.mark.parametrize(("p", "high"), [(0.05, 0.28), (0.5, 0.2), (0.7, 0.28)])
def test_inner_steps_by_integration(p: float, high: float) -> None:
    steps = clipping.inner_steps_to_clip(p, high=high, learning_rate=0.1)
    assert steps.natural * 0.1 == pytest.approx(flow_time(p, high, "natural"), rel=1e-8)
    assert steps.plain * 0.1 == pytest.approx(flow_time(p, high, "softmax"), rel=1e-8)
    one = clipping.inner_steps_to_clip(p, high=high, learning_rate=0.1, n_logits=1)
    assert one.plain * 0.1 == pytest.approx(flow_time(p, high, "sigmoid"), rel=1e-8)
    assert one.natural == steps.natural


def test_clip_that_cannot_bind_is_never_reached() -> None:
    steps = clipping.inner_steps_to_clip(0.9, high=0.28, learning_rate=0.1)
    assert (steps.natural, steps.plain) == (math.inf, math.inf)


# --- D6 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_tokens", [1, 50])
@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.8])
def test_clip_shares_by_quadrature(sigma: float, n_tokens: int) -> None:
    low, high = 0.2, 0.28
    mean, sd = -(sigma**2) / 2, sigma / math.sqrt(n_tokens)

    def density(x: float) -> float:
        return float(stats.norm.pdf(x, mean, sd))

    got = clipping.clip_shares(sigma, low=low, high=high, n_tokens=n_tokens)
    above, _ = integrate.quad(
        density, math.log(1 + high), mean + 40 * sd + 1, epsabs=1e-14, limit=200
    )
    below, _ = integrate.quad(
        density, mean - 40 * sd - 1, math.log(1 - low), epsabs=1e-14, limit=200
    )
    assert (got.high, got.low) == pytest.approx((above, below), abs=1e-10)
    # E_old[r] = 1 is what fixes the mean; KL(old || current) = E_old[-log r]
    assert math.exp(mean + sigma**2 / 2) == 1.0
    assert got.kl == -mean
    fraction = got.clip_fraction(p_positive=0.25)
    assert fraction == pytest.approx(0.25 * got.high + 0.75 * got.low, abs=1e-15)


def test_clip_shares_match_the_oracle_table() -> None:
    """Theory out_golden T11: sigma -> (high .2, low .2, high .28, low .2)."""
    table = {
        0.05: (0.0001, 0.0, 0.0, 0.0),
        0.1: (0.0305, 0.0146, 0.0059, 0.0146),
        0.15: (0.0984, 0.0789, 0.0426, 0.0789),
        0.2: (0.1559, 0.1549, 0.0911, 0.1549),
        0.3: (0.2243, 0.2763, 0.1653, 0.2763),
    }
    for sigma, row in table.items():
        both = [clipping.clip_shares(sigma, low=0.2, high=high) for high in (0.2, 0.28)]
        got = [both[0].high, both[0].low, both[1].high, both[1].low]
        assert got == pytest.approx(row, abs=5.1e-5)


def test_gspo_ratio_keeps_the_token_mean_and_loses_the_spread() -> None:
    """Read as a token ratio of sigma/sqrt(L), the low share would be one half, not nearly all."""
    sigma, L = 0.2, 1000
    right = clipping.clip_shares(sigma, low=3e-4, high=4e-4, n_tokens=L)
    naive = clipping.clip_shares(sigma / math.sqrt(L), low=3e-4, high=4e-4)
    assert right.low > 0.99
    assert right.high < 0.001
    assert naive.low == pytest.approx(0.49, abs=0.02)


def test_log_symmetric_partner() -> None:
    assert clipping.log_symmetric_high(0.2) == pytest.approx(0.25, abs=1e-15)
    for low in (0.01, 0.3, 0.9):
        partner = clipping.log_symmetric_high(low)
        assert math.log(1 + partner) == pytest.approx(-math.log(1 - low), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: clipping.ppo_multiplier(0.0, advantage=1, low=0.2, high=0.2), "ratios"),
        (lambda: clipping.ppo_multiplier(1, advantage=1, low=0.2, high=0.2, dual_c=1.0), "dual_c"),
        (lambda: clipping.gspo_multiplier([], advantage=1, low=0.2, high=0.2), "log_ratio_T"),
        (lambda: clipping.sapo_multiplier(1.0, advantage=1, tau_pos=0.0), "tau_pos"),
        (lambda: clipping.rollout_fixed_point(1.0, low=0.2, high=0.2), "p_old"),
        (
            lambda: clipping.inner_steps_to_clip(0.1, high=0.2, learning_rate=1, n_logits=3),
            "n_logits",
        ),
        (lambda: clipping.clip_shares(0.0, low=0.2, high=0.2), "sigma"),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()
    assert "\n" not in str(caught.value)
