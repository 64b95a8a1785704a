"""D4, D5: entropy changes by a complex step, the clip's push by enumeration of arm and reward."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dapolab.theory import entropy

Array = NDArray[np.float64]
PI = np.array([0.5, 0.3, 0.15, 0.05])
A = np.array([1.0, -0.4, 0.3, 2.0])


def entropy_of(z: Any) -> Any:
    pi = np.exp(z) / np.exp(z).sum()
    return -(pi @ np.log(pi))


def slope_along(pi: Array, step: Array) -> float:
    return float(entropy_of(np.log(pi) + 1e-30j * step).imag / 1e-30)


def test_entropy_changes_are_derivatives() -> None:
    assert entropy.entropy(PI) == pytest.approx(float(entropy_of(np.log(PI))), abs=1e-15)
    step = np.array([0.3, -1.0, 0.2, 2.0])
    changes = [
        (entropy.entropy_change(PI, logit_step_A=step), step),
        (entropy.entropy_change_natural(PI, advantage_A=A), A),
        (entropy.entropy_change_plain(PI, advantage_A=A), PI * (A - PI @ A)),
    ]
    for got, along in changes:
        assert got == pytest.approx(slope_along(PI, along), abs=1e-12)


def test_plain_gradient_is_the_mean_over_samples() -> None:
    """E over arms of the single-sample changes, and -E[phi A] for centred advantages."""
    centred = A - PI @ A
    single = [
        entropy.entropy_change_sample(PI, arm=a, advantage=float(centred[a])) for a in range(4)
    ]
    for a in range(4):
        step = centred[a] * (np.eye(4)[a] - PI)
        assert single[a] == pytest.approx(slope_along(PI, step), abs=1e-12)
    expected = entropy.entropy_change_plain(PI, advantage_A=A)
    assert PI @ np.array(single) == pytest.approx(expected, abs=1e-12)
    phi = PI * (np.log(PI) + entropy.entropy(PI))
    assert -float(PI @ (phi * centred)) == pytest.approx(expected, abs=1e-12)


def test_uncentred_advantages_need_centring() -> None:
    """-E[phi A] as printed misses by E[A] Cov(pi, log pi) where A has a mean."""
    phi = PI * (np.log(PI) + entropy.entropy(PI))
    printed = -float(PI @ (phi * A))
    got = entropy.entropy_change_plain(PI, advantage_A=A)
    assert got - printed == pytest.approx(float(PI @ A) * float(PI @ phi), abs=1e-12)
    assert abs(got - printed) > 1e-3


policies = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8).map(
    lambda x: np.array(x) / sum(x)
)


@given(pi=policies, arm=st.integers(0, 7))
@settings(deadline=None)
def test_raising_one_logit_raises_entropy_below_the_threshold(pi: Array, arm: int) -> None:
    arm %= pi.size
    threshold = entropy.entropy_raising_threshold(pi)
    got = entropy.entropy_change(pi, logit_step_A=np.eye(pi.size)[arm])
    if abs(pi[arm] - threshold) > 1e-6:
        assert (got > 0) == (pi[arm] < threshold)
        assert threshold == pytest.approx(1 / math.exp(float(entropy_of(np.log(pi)))))


@given(pi=policies, arm=st.integers(0, 7), shift=st.floats(-5, 5))
@settings(deadline=None)
def test_a_common_shift_of_the_logits_changes_nothing(pi: Array, arm: int, shift: float) -> None:
    step = np.eye(pi.size)[arm % pi.size]
    here = entropy.entropy_change(pi, logit_step_A=step)
    there = entropy.entropy_change(pi, logit_step_A=step + shift)
    assert there == pytest.approx(here, abs=1e-9)


# --- D5 --------------------------------------------------------------------------------------


def clipped_push(pi: Array, old: Array, low: float, high: float) -> Array:
    """Expected gradient of PPO's surrogate: arm ~ old, A = +1 or -1 by a coin."""
    coefficient = np.zeros(pi.size)
    for a in range(pi.size):
        r = pi[a] / old[a]
        for sign in (1.0, -1.0):
            unclipped = r * sign <= min(max(r, 1 - low), 1 + high) * sign
            coefficient[a] += old[a] * 0.5 * sign * r * unclipped
    return np.array([coefficient @ (np.eye(pi.size)[:, b] - pi[b]) for b in range(pi.size)])


@pytest.mark.parametrize(
    "pi", [[0.75, 0.2, 0.05], [0.2, 0.2, 0.6], [0.45, 0.25, 0.3], [0.05, 0.15, 0.8]]
)
def test_clip_bias_by_enumeration(pi: list[float]) -> None:
    now, old = np.array(pi), np.array([0.5, 0.3, 0.2])
    got = entropy.clip_bias(now, old_policy_A=old, low=0.2, high=0.28, mean_abs_advantage=0.8)
    expected = 0.8 * clipped_push(now, old, 0.2, 0.28)
    assert got.logit_step_A == pytest.approx(expected, abs=1e-12)
    assert got.entropy_change == pytest.approx(slope_along(now, expected), abs=1e-12)
    # the formula as printed
    phi = now * (np.log(now) + entropy.entropy(now))
    centred, r = now * (phi - now @ phi), now / old
    assert got.from_high == pytest.approx(0.4 * centred[r > 1.28].sum(), abs=1e-12)
    assert got.from_low == pytest.approx(-0.4 * centred[r < 0.8].sum(), abs=1e-12)


@given(pi=policies, old=policies)
@settings(deadline=None)
def test_the_clip_pulls_back_to_the_old_policy(pi: Array, old: Array) -> None:
    """Never a larger KL(pi || old): the step's inner product with its gradient is not positive."""
    n = min(pi.size, old.size)
    pi, old = pi[:n] / pi[:n].sum(), old[:n] / old[:n].sum()
    step = entropy.clip_bias(
        pi, old_policy_A=old, low=0.2, high=0.28, mean_abs_advantage=1.0
    ).logit_step_A
    log_r = np.log(pi / old)
    assert float(step @ (pi * (log_r - pi @ log_r))) <= 1e-12


def test_without_a_binding_clip_there_is_no_push() -> None:
    """The mechanism off: at the old policy itself, the first update, no sign is left."""
    got = entropy.clip_bias(PI, old_policy_A=PI, low=0.2, high=0.28, mean_abs_advantage=1.0)
    assert got.logit_step_A == pytest.approx(np.zeros(4), abs=1e-15)
    assert (got.from_high, got.from_low) == (0.0, 0.0)


def bias(pi: list[float], old: list[float], high: float = 0.2) -> entropy.ClipBias:
    return entropy.clip_bias(pi, old_policy_A=old, low=0.2, high=high, mean_abs_advantage=1.0)


def test_sign_map_of_the_clip() -> None:
    # counter-example: the likely arm, clipped high, raises the entropy
    assert bias([0.75, 0.25], [0.6, 0.4]).from_high > 0
    # uniform: clip-high raises it, so a higher bound takes some of that away
    spread = [0.12, 0.08] * 5
    assert bias([x / 1.0 for x in [0.125, 0.075] * 5], [0.1] * 10).from_high > 0
    assert bias([0.125, 0.075] * 5, [0.1] * 10, high=0.28).from_high == 0.0
    assert bias(spread, [0.1] * 10).from_high == 0.0
    # peaked, a rare arm clipped high: the usual sign; with a higher bound it stops acting
    peaked = [0.87, 0.065, 0.065]
    assert bias(peaked, [0.9, 0.05, 0.05]).from_high < 0
    assert bias(peaked, [0.9, 0.05, 0.05], high=0.5).from_high == 0.0
    # rare arms clipped low: raised
    assert bias([0.94, 0.03, 0.03], [0.9, 0.05, 0.05]).from_low > 0


@given(pi=policies, old=policies)
@settings(deadline=None, max_examples=200)
def test_sufficient_condition_for_the_usual_signs(pi: Array, old: Array) -> None:
    n = min(pi.size, old.size)
    pi, old = pi[:n] / pi[:n].sum(), old[:n] / old[:n].sum()
    r, threshold = pi / old, entropy.entropy_raising_threshold(pi)
    got = entropy.clip_bias(pi, old_policy_A=old, low=0.2, high=0.2, mean_abs_advantage=1.0)
    if (pi[r > 1.2] < threshold).all():
        assert got.from_high <= 0.0
    if (pi[r < 0.8] < threshold).all():
        assert got.from_low >= 0.0


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: entropy.entropy([0.5, 0.4]), "sum to 1"),
        (lambda: entropy.entropy([1.0, 0.0]), "above 0"),
        (lambda: entropy.entropy_change(PI, logit_step_A=[1.0]), "4 arms"),
        (lambda: entropy.entropy_change_sample(PI, arm=4, advantage=1.0), "arm"),
        (lambda: bias([0.5, 0.5], [0.2, 0.3, 0.5]), "3 arms"),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()
    assert "\n" not in str(caught.value)
