"""C3, C4, C5 against the enumeration of every group and derivatives by a complex step."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate

from dapolab.theory import hazard_bandit, length_bandit

Array = NDArray[np.float64]
CONSTANT = 20.0
MODES: list[Any] = [
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
]
ARMS = length_bandit.class_bandit([1, 1, 0, 0], n_tokens_A=[3, 25, 3, 25])
UNEVEN = np.array([0.1, 0.25, 0.45, 0.2])


def complex_step(f: Callable[[Any], Any], z: Array) -> Array:
    """Gradient without subtraction: Im f(z + i h e_a)/h at h = 1e-30."""
    return np.array([f(z + 1e-30j * e).imag for e in np.eye(z.size)]) / 1e-30


def response_weights(lengths: Array, mode: str) -> Array:
    n = lengths.size
    return {
        "token-mean": np.full(n, 1 / lengths.sum()),
        "seq-mean-token-mean": 1 / (n * lengths),
        "seq-mean-token-sum": np.full(n, 1 / n),
        "seq-mean-token-sum-norm": np.full(n, 1 / (n * CONSTANT)),
    }[mode]


def advantages(r: Array, ddof: int | None) -> Array:
    if ddof is None or r.std() == 0.0:
        return r - r.mean()
    return (r - r.mean()) / r.std(ddof=ddof)


def enumerated_gradient(
    logits: Array,
    log_policy: Callable[[Any], Any],
    rewards: Array,
    lengths: Array,
    G: int,
    mode: str,
    ddof: int | None,
) -> Array:
    """Gradient of the expected surrogate, groups drawn at the current logits."""
    pi = np.exp(log_policy(logits))
    coefficient = np.zeros(pi.size)
    for arms in itertools.product(range(pi.size), repeat=G):
        index = list(arms)
        A = advantages(rewards[index], ddof) * response_weights(lengths[index], mode)
        np.add.at(coefficient, index, math.prod(pi[index]) * A)
    return complex_step(lambda z: log_policy(z) @ coefficient, logits)


def log_softmax(z: Any) -> Any:
    return z - np.log(np.exp(z).sum())


@pytest.mark.parametrize("ddof", [None, 0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_expected_gradient_by_enumeration(mode: Any, ddof: int | None) -> None:
    expected = enumerated_gradient(
        np.log(UNEVEN), log_softmax, ARMS.reward_A, ARMS.n_tokens_A, 4, mode, ddof
    )
    got = length_bandit.expected_gradient(
        UNEVEN, bandit=ARMS, mode=mode, group_size=4, std_ddof=ddof, constant_tokens=CONSTANT
    )
    assert got == pytest.approx(expected, abs=1e-9)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_expected_gradient_of_graded_rewards(mode: Any) -> None:
    bandit = length_bandit.class_bandit([0.3, -1.0, 2.0], n_tokens_A=[2, 11, 5])
    pi = np.array([0.5, 0.2, 0.3])
    expected = enumerated_gradient(
        np.log(pi), log_softmax, bandit.reward_A, bandit.n_tokens_A, 5, mode, None
    )
    got = length_bandit.expected_gradient(
        pi, bandit=bandit, mode=mode, group_size=5, constant_tokens=CONSTANT
    )
    assert got == pytest.approx(expected, abs=1e-9)


def expected_length(z: Any) -> Any:
    return np.exp(log_softmax(z)) @ ARMS.n_tokens_A


@pytest.mark.parametrize("mode", MODES[1:])
def test_length_drift_is_the_derivative_along_the_step(mode: Any) -> None:
    z = np.log(UNEVEN)
    pi = UNEVEN
    # natural gradient: solve Fisher dz = g by pseudo-inverse, g from large-group enumeration
    g = length_bandit.expected_gradient(
        pi, bandit=ARMS, mode=mode, group_size=2, constant_tokens=CONSTANT
    ) / (1 - 1 / 2)
    fisher = np.diag(pi) - np.outer(pi, pi)
    steps = {"plain": g, "natural": np.linalg.pinv(fisher) @ g}
    slope = complex_step(expected_length, z)
    for geometry, step in steps.items():
        got = length_bandit.length_drift_tokens(
            pi,
            bandit=ARMS,
            mode=mode,
            geometry=geometry,  # type: ignore[arg-type]
            constant_tokens=CONSTANT,
        )
        assert got == pytest.approx(float(slope @ step), abs=1e-9)


def test_natural_drift_is_minus_mean_length_times_the_covariance() -> None:
    length, r = ARMS.n_tokens_A, ARMS.reward_A

    def cov(x: Array, y: Array) -> float:
        return float(UNEVEN @ (x * y) - (UNEVEN @ x) * (UNEVEN @ y))

    drift = [
        length_bandit.length_drift_tokens(UNEVEN, bandit=ARMS, mode=mode, geometry="natural")
        for mode in MODES[1:3]
    ]
    expected = [-float(UNEVEN @ length) * cov(r, 1 / length), cov(length, r)]
    assert drift == pytest.approx(expected, abs=1e-12)


@given(p=st.floats(0.01, 0.99), long=st.floats(3.5, 1000.0))
@settings(deadline=None)
def test_plain_drift_of_equal_classes(p: float, long: float) -> None:
    bandit = length_bandit.class_bandit([1, 1, 0, 0], n_tokens_A=[3.0, long, 3.0, long])
    pi = np.array([p, p, 1 - p, 1 - p]) / 2
    got = length_bandit.length_drift_tokens(
        pi, bandit=bandit, mode="seq-mean-token-mean", geometry="plain"
    )
    form = length_bandit.plain_drift_equal_classes_tokens(p, short_tokens=3.0, long_tokens=long)
    assert got == pytest.approx(form, abs=1e-9, rel=1e-9)
    assert math.copysign(1, form) == math.copysign(1, 1 - 2 * p) or abs(p - 0.5) < 1e-9
    # the mechanism off: token sums have no drift at all
    off = length_bandit.length_drift_tokens(
        pi, bandit=bandit, mode="seq-mean-token-sum", geometry="plain"
    )
    assert off == pytest.approx(0.0, abs=1e-9)


def test_odds_growth_is_the_fitness_difference() -> None:
    d = length_bandit.fitness(UNEVEN, bandit=ARMS, mode="seq-mean-token-mean")
    growth = length_bandit.odds_growth(0.35, short_tokens=3, long_tokens=25)
    assert (growth.right, growth.wrong) == pytest.approx((d[1] - d[0], d[3] - d[2]), abs=1e-12)
    assert growth.wrong > 0 > growth.right
    off = length_bandit.fitness(UNEVEN, bandit=ARMS, mode="seq-mean-token-sum")
    assert (off[1] - off[0], off[3] - off[2]) == (0.0, 0.0)


SEED_BANDIT = length_bandit.class_bandit([1, 1, 0, 0], n_tokens_A=[10, 100, 10, 100])
SEED_POLICY = [0.15, 0.15, 0.35, 0.35]


def test_ode_figures() -> None:
    """Theory C4: E[L|wrong], E[L|right], E[L], accuracy at t = 48 from 55 tokens."""
    path = length_bandit.length_path(
        SEED_POLICY,
        bandit=SEED_BANDIT,
        mode="seq-mean-token-mean",
        geometry="natural",
        until=48,
        step=0.05,
    )
    assert path.length_T[0] == pytest.approx(55.0)
    ends = [
        path.length_wrong_T[-1],
        path.length_right_T[-1],
        path.length_T[-1],
        path.accuracy_T[-1],
    ]
    assert ends[:3] == pytest.approx([93.7, 23.5, 36.7], abs=0.051)
    assert ends[3] == pytest.approx(0.812, abs=5.1e-4)
    assert path.time_T[-1] == pytest.approx(48.0)


@pytest.mark.parametrize("geometry", ["natural", "plain"])
def test_path_follows_the_ode(geometry: Any) -> None:
    bandit, pi0 = SEED_BANDIT, np.array(SEED_POLICY)

    def slope(_t: float, z: Array) -> Array:
        pi = np.exp(z - z.max())
        pi /= pi.sum()
        d = (bandit.reward_A - pi @ bandit.reward_A) / bandit.n_tokens_A
        return d if geometry == "natural" else pi * (d - pi @ d)

    solved = integrate.solve_ivp(slope, (0, 20), np.log(pi0), rtol=1e-11, atol=1e-12)
    pi = np.exp(solved.y[:, -1])
    expected = pi / pi.sum() @ bandit.n_tokens_A
    gaps = []
    for step in (0.02, 0.01):
        path = length_bandit.length_path(
            SEED_POLICY,
            bandit=bandit,
            mode="seq-mean-token-mean",
            geometry=geometry,
            until=20,
            step=step,
        )
        gaps.append(path.length_T[-1] - expected)
    # Euler is of first order: extrapolation to step 0 hits the solver's value
    assert 2 * gaps[1] - gaps[0] == pytest.approx(0.0, abs=2e-5)


def test_token_sums_freeze_the_conditional_lengths() -> None:
    path = length_bandit.length_path(
        SEED_POLICY,
        bandit=SEED_BANDIT,
        mode="seq-mean-token-sum",
        geometry="natural",
        until=5,
        step=0.05,
    )
    assert path.length_right_T == pytest.approx(np.full(101, 55.0), abs=1e-9)
    assert path.length_wrong_T == pytest.approx(np.full(101, 55.0), abs=1e-9)
    assert path.accuracy_T[-1] > 0.9


# --- C3 --------------------------------------------------------------------------------------


def shared_enumerated(
    x: float, c_short: float, c_long: float, G: int, mode: str, ddof: int | None
) -> float:
    """The same surrogate with one logit for the length and outcomes the policy cannot move."""

    def log_policy(y: Any) -> Any:
        long = 1 / (1 + np.exp(-y[0]))
        return np.log(
            np.array(
                [
                    (1 - long) * c_short,
                    (1 - long) * (1 - c_short),
                    long * c_long,
                    long * (1 - c_long),
                ]
            )
        )

    return float(
        enumerated_gradient(
            np.array([math.log(x / (1 - x))]),
            log_policy,
            np.array([1.0, 0.0, 1.0, 0.0]),
            np.array([3.0, 3.0, 25.0, 25.0]),
            G,
            mode,
            ddof,
        )[0]
    )


@pytest.mark.parametrize("ddof", [None, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("c_short", "c_long"), [(0.3, 0.3), (0.2, 0.7), (0.6, 0.5)])
def test_shared_length_drift_by_enumeration(
    mode: Any, ddof: int | None, c_short: float, c_long: float
) -> None:
    expected = shared_enumerated(0.15, c_short, c_long, 4, mode, ddof)
    got = length_bandit.shared_length_drift(
        0.15,
        accuracy_short=c_short,
        accuracy_long=c_long,
        short_tokens=3,
        long_tokens=25,
        mode=mode,
        group_size=4,
        std_ddof=ddof,
        constant_tokens=CONSTANT,
    )
    assert got == pytest.approx(expected, abs=1e-9)
    if c_short == c_long:
        assert got == pytest.approx(0.0, abs=1e-12)
    else:
        assert got * (c_long - c_short) > 0


def test_shared_drift_closed_forms() -> None:
    x, G, gap = 0.15, 8, 0.5
    common: dict[str, Any] = {
        "accuracy_short": 0.2,
        "accuracy_long": 0.2 + gap,
        "short_tokens": 3,
        "long_tokens": 25,
        "group_size": G,
    }
    token_sum = length_bandit.shared_length_drift(x, mode="seq-mean-token-sum", **common)
    assert token_sum == pytest.approx((1 - 1 / G) * x * (1 - x) * gap, abs=1e-12)
    per_response = length_bandit.shared_length_drift(x, mode="seq-mean-token-mean", **common)
    assert per_response / token_sum == pytest.approx((1 - x) / 25 + x / 3, abs=1e-12)


# --- C5 --------------------------------------------------------------------------------------


def hazard_enumerated(
    p: float, h_c: float, h_w: float, G: int, mode: str, ddof: int | None, horizon: int
) -> Array:
    """E[g] by (u_c, u_w, v), summing over outcomes and lengths of every response."""
    length = np.arange(1.0, horizon + 1)
    right = np.concatenate([np.ones(horizon), np.zeros(horizon)])
    L = np.concatenate([length, length])
    law = np.concatenate(
        [p * h_c * (1 - h_c) ** (length - 1), (1 - p) * h_w * (1 - h_w) ** (length - 1)]
    )
    score = np.stack([right * (1 - h_c * L), (1 - right) * (1 - h_w * L), right - p])
    shape = [2 * horizon] * G
    axes = [
        np.arange(2 * horizon).reshape([-1 if j == i else 1 for j in range(G)]) for i in range(G)
    ]
    weight, K, total = np.ones(shape), np.zeros(shape), np.zeros(shape)
    for axis in axes:
        weight, K, total = weight * law[axis], K + right[axis], total + L[axis]
    std = np.sqrt(K * (G - K)) / G
    if ddof == 1:
        std = std * math.sqrt(G / (G - 1))
    scale = (
        np.ones(shape) if ddof is None else np.divide(1.0, std, where=std > 0, out=np.zeros(shape))
    )
    gradient = np.zeros(3)
    for axis in axes:
        A = (right[axis] - K / G) * scale
        per = {
            "token-mean": 1 / total,
            "seq-mean-token-mean": 1 / (G * L[axis]),
            "seq-mean-token-sum": 1 / G,
            "seq-mean-token-sum-norm": 1 / (G * CONSTANT),
        }[mode]
        gradient += np.array([(weight * A * per * s[axis]).sum() for s in score])
    return gradient


@pytest.mark.parametrize("ddof", [None, 0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_hazard_gradient_by_enumeration(mode: Any, ddof: int | None) -> None:
    p, h_c, h_w, G = 0.35, 0.5, 0.4, 3
    expected = hazard_enumerated(p, h_c, h_w, G, mode, ddof, horizon=60)
    got = hazard_bandit.hazard_gradient(
        p,
        hazard_right=h_c,
        hazard_wrong=h_w,
        mode=mode,
        group_size=G,
        std_ddof=ddof,
        constant_tokens=CONSTANT,
    )
    # what lies beyond 60 tokens is below 1e-12
    found = [got.hazard_right, got.hazard_wrong, got.decision]
    assert found == pytest.approx(list(expected), abs=1e-9)
    if mode in ("token-mean", "seq-mean-token-mean"):
        assert got.hazard_right > 1e-4
        assert got.hazard_wrong < -1e-4
    else:
        assert (got.hazard_right, got.hazard_wrong) == (0.0, 0.0)


@pytest.mark.parametrize("mode", MODES)
def test_length_drifts_are_derivatives_along_the_gradient(mode: Any) -> None:
    p, h_c, h_w = 0.35, 0.02, 0.3
    got = hazard_bandit.hazard_gradient(
        p, hazard_right=h_c, hazard_wrong=h_w, mode=mode, group_size=8, constant_tokens=CONSTANT
    )

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    def lengths(z: Any) -> Any:
        q, right, wrong = sigmoid(z[2]), 1 / sigmoid(z[0]), 1 / sigmoid(z[1])
        return np.array([right, wrong, q * right + (1 - q) * wrong])

    at = np.array([math.log(x / (1 - x)) for x in (h_c, h_w, p)])
    along = np.array([got.hazard_right, got.hazard_wrong, got.decision])
    expected = lengths(at + 1e-30j * along).imag / 1e-30
    found = [
        got.length_right_drift_tokens,
        got.length_wrong_drift_tokens,
        got.length_drift_tokens,
    ]
    assert found == pytest.approx(list(expected), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("h", [1e-3, 0.01, 0.3, 0.9])
def test_inverse_length_by_summation(h: float) -> None:
    n = np.arange(1, int(60 / h))
    mean = float((h * np.exp((n - 1) * math.log1p(-h))) @ (1 / n))
    assert float(hazard_bandit.expected_inverse_length(h)) == pytest.approx(mean, abs=1e-12)


def test_inverse_length_excess_matches_the_oracle_table() -> None:
    """Theory out_golden T10."""
    got = hazard_bandit.inverse_length_excess([0.1, 0.01, 0.001])
    expected = [0.15584278811044958, 0.03651687056553628, 0.005914669948931067]
    assert got == pytest.approx(expected, abs=1e-15)
    assert got / [0.1, 0.01, 0.001] == pytest.approx([1.558, 3.652, 5.915], abs=5.1e-4)
    assert float(hazard_bandit.inverse_length_excess(1.0)) == 0.0


@given(p=st.floats(0.02, 0.98), h=st.floats(0.002, 0.9), G=st.integers(2, 32))
@settings(deadline=None, max_examples=40)
def test_equal_hazards_move_the_mean_length_by_one_minus_two_p(p: float, h: float, G: int) -> None:
    for mode in ("seq-mean-token-mean", "token-mean"):
        got = hazard_bandit.hazard_gradient(
            p,
            hazard_right=h,
            hazard_wrong=h,
            mode=mode,  # type: ignore[arg-type]
            group_size=G,
        )
        assert got.hazard_right == pytest.approx(-got.hazard_wrong, rel=1e-7)
        drift = got.length_wrong_drift_tokens * (1 - 2 * p)
        assert got.length_drift_tokens == pytest.approx(drift, rel=1e-6, abs=1e-12)


def test_token_mean_residue_shrinks_as_one_over_n() -> None:
    """Same sign as the per-response mean, a share of it that falls as 1/n."""
    share = []
    for G in (8, 16, 32, 64):
        both = [
            hazard_bandit.hazard_gradient(
                0.5, hazard_right=0.02, hazard_wrong=0.02, mode=mode, group_size=G
            ).hazard_wrong
            for mode in MODES[:2]
        ]
        assert both[0] < 0 > both[1]
        share.append(both[0] / both[1])
    assert share[0] < 0.06
    # per response h(1-h)/n^2 against beta/n: the product with n settles at h(1-h)/beta
    beta = float(hazard_bandit.inverse_length_excess(0.02))
    assert share[-1] * 64 == pytest.approx(0.02 * 0.98 / beta, rel=0.05)
    ratios = [a / b for a, b in itertools.pairwise(share)]
    assert ratios == pytest.approx([2.0] * 3, rel=0.15)


@pytest.mark.parametrize("K", [0, 1, 2])
def test_token_mean_residue_by_quadrature_of_the_printed_integral(K: int) -> None:
    h_c, h_w, G = 0.3, 0.05, 3

    def integrand(t: float) -> float:
        phi_c, phi_w = (h * t / (1 - (1 - h) * t) for h in (h_c, h_w))
        own = h_w * (1 - h_w) * (1 - t) / (1 - (1 - h_w) * t) ** 2
        return phi_c**K * phi_w ** (G - K - 1) * own

    expected, _ = integrate.quad(integrand, 0, 1, epsabs=1e-14)
    got = hazard_bandit.token_mean_residue(K, hazard_right=h_c, hazard_wrong=h_w, group_size=G)
    assert got == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: length_bandit.class_bandit([1], n_tokens_A=[0]), "above 0"),
        (lambda: length_bandit.class_bandit([1, 0], n_tokens_A=[3]), "equal length"),
        (
            lambda: length_bandit.fitness([0.5, 0.2, 0.2, 0.2], bandit=ARMS, mode=MODES[1]),
            "sum to 1",
        ),
        (lambda: length_bandit.fitness(UNEVEN, bandit=ARMS, mode=MODES[0]), "token-mean"),
        (lambda: length_bandit.fitness(UNEVEN, bandit=ARMS, mode=MODES[3]), "constant_tokens"),
        (
            lambda: length_bandit.expected_gradient(
                [1.0],
                bandit=length_bandit.class_bandit([0.5], n_tokens_A=[1]),
                mode=MODES[1],
                group_size=4,
                std_ddof=0,
            ),
            "rewards of 0 and 1",
        ),
        (
            lambda: length_bandit.length_path(
                [0.5, 0.5, 0.0, 0.0],
                bandit=ARMS,
                mode=MODES[1],
                geometry="natural",
                until=1,
                step=0.1,
            ),
            "both of them",
        ),
        (
            lambda: hazard_bandit.hazard_gradient(
                1.0, hazard_right=0.1, hazard_wrong=0.1, mode=MODES[0], group_size=4
            ),
            "p_correct",
        ),
        (
            lambda: hazard_bandit.hazard_gradient(
                0.5, hazard_right=0.1, hazard_wrong=0.1, mode=MODES[3], group_size=4
            ),
            "constant_tokens",
        ),
        (
            lambda: hazard_bandit.token_mean_residue(
                4, hazard_right=0.1, hazard_wrong=0.1, group_size=4
            ),
            "no wrong",
        ),
        (lambda: hazard_bandit.expected_inverse_length(0.0), "hazards"),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()
    assert "\n" not in str(caught.value)
