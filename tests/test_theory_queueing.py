"""Queues: B9, B10, F7 against balance equations solved numerically and textbook values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from dapolab.theory import queueing


def birth_death(birth: float, death: list[float]) -> np.ndarray:
    """Stationary law of a birth-death chain with constant births."""
    weight = np.cumprod([1.0, *[birth / d for d in death]])
    return weight / weight.sum()


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_mm1_equals_its_balance_equations(rho: float) -> None:
    pi = birth_death(rho, [1.0] * 2000)
    got = queueing.mm1(rho, service_per_s=1.0)
    n = np.arange(pi.size)
    assert got.n_in_system == pytest.approx(pi @ n, rel=1e-9)
    assert got.n_waiting == pytest.approx(pi @ np.maximum(n - 1, 0), rel=1e-9)
    assert got.wait_s == pytest.approx(rho / (1 - rho), rel=1e-12)


@pytest.mark.parametrize(("c", "rho"), [(1, 0.4), (2, 0.75), (5, 0.9), (40, 0.8)])
def test_mmc_equals_its_balance_equations(c: int, rho: float) -> None:
    arrival = 2.0 * c * rho
    pi = birth_death(arrival, [2.0 * min(n, c) for n in range(1, 3000)])
    n = np.arange(pi.size)
    got = queueing.mmc(arrival, service_per_s=2.0, n_servers=c)
    assert queueing.erlang_c(c, utilisation=rho) == pytest.approx(pi[c:].sum(), rel=1e-9)
    assert got.n_waiting == pytest.approx(pi @ np.maximum(n - c, 0), rel=1e-9)
    assert got.n_in_system == pytest.approx(pi @ n, rel=1e-9)


def test_textbook_values() -> None:
    assert queueing.erlang_c(2, utilisation=0.75) == pytest.approx(0.642857142857, abs=1e-12)
    assert queueing.md1(0.5, service_s=1.0).wait_s == pytest.approx(0.5)
    one = queueing.mm1(3.0, service_per_s=4.0)
    assert (one.utilisation, one.wait_s, one.sojourn_s) == pytest.approx((0.75, 0.75, 1.0))
    assert queueing.erlang_c(4000, utilisation=0.999) < 1.0


def test_general_service_joins_its_special_cases() -> None:
    general = queueing.mg1(0.3, mean_service_s=2.0, second_moment_s2=8.0)
    assert general == queueing.mm1(0.3, service_per_s=0.5)
    fixed = queueing.mg1(0.3, mean_service_s=2.0, second_moment_s2=4.0)
    assert fixed.wait_s == pytest.approx(general.wait_s / 2)


def test_overload_is_infinite_and_never_nan() -> None:
    for queue in (
        queueing.mm1(1.0, service_per_s=1.0),
        queueing.md1(2.0, service_s=1.0),
        queueing.mmc(9.0, service_per_s=1.0, n_servers=3),
    ):
        assert queue.wait_s == math.inf
        assert queue.n_in_system == math.inf
    full = queueing.shared_server(1.0, mean_tokens=20.0, step_s=1.0, per_response_s=0.05)
    assert full.latency_s == math.inf
    with pytest.raises(ValueError, match="overloaded"):
        queueing.shared_server_pmf([0], server=full)


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.1), (0.02, 0.0005), (0.0, 0.5), (1.0, 0.0)])
def test_shared_server_equals_its_balance_equations(a: float, b: float) -> None:
    """Exponential lengths: n in service finish at rate n/((a + b n) E[L])."""
    mean, load = 20.0, 0.5
    arrival = load / (mean * (b if b > 0 else a))
    death = [n / ((a + b * n) * mean) for n in range(1, 3000)]
    pi = birth_death(arrival, death)
    n = np.arange(200)
    server = queueing.shared_server(arrival, mean_tokens=mean, step_s=a, per_response_s=b)
    assert queueing.shared_server_pmf(n, server=server) == pytest.approx(pi[:200], abs=1e-10)
    assert server.n_in_service == pytest.approx(pi @ np.arange(pi.size), rel=1e-9)
    assert server.latency_s == pytest.approx(server.n_in_service / arrival, rel=1e-12)


def test_shared_server_golden() -> None:
    """T14: a = 1, b = .1, E[L] = 20, lambda = .25: 11 in service, 44 s."""
    got = queueing.shared_server(0.25, mean_tokens=20.0, step_s=1.0, per_response_s=0.1)
    assert (got.n_in_service, got.latency_s) == pytest.approx((11.0, 44.0))
    assert (got.size, got.p_busy) == pytest.approx((11.0, 0.5))


def test_whole_token_moments_of_a_known_law() -> None:
    """X uniform on (0, 4.5), cap 4: L is 1, 2, 3, 4 with 2, 2, 2, 3 ninths."""
    law = {1: 2 / 9, 2: 2 / 9, 3: 2 / 9, 4: 3 / 9}
    got = queueing.whole_token_moments(lambda x: np.clip(1 - x / 4.5, 0, 1), cap_tokens=4)
    assert got.mean_tokens == pytest.approx(sum(x * p for x, p in law.items()), abs=1e-12)
    second = sum(x * x * p for x, p in law.items())
    assert got.second_moment_tokens2 == pytest.approx(second, abs=1e-12)


def test_sojourn_identity_by_an_integral_over_time() -> None:
    start, end = [0.0, 1.0, 1.0, 7.5], [4.0, 9.0, 1.0, 8.0]

    def in_system(t: float) -> int:
        return sum(s <= t < e for s, e in zip(start, end, strict=True))

    area, _ = integrate.quad(in_system, 0, 9, points=[1, 4, 7.5, 8], limit=200)
    got = queueing.sojourn_identity(start, end_s=end)
    assert got.integral_in_system == pytest.approx(area, rel=1e-9)
    assert got.total_sojourn == pytest.approx(12.5)
    assert queueing.sojourn_identity([], end_s=[]).relative_error == 0.0


def test_littles_law() -> None:
    assert queueing.sojourn_from_count(11.0, arrival_per_s=0.25) == 44.0


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: queueing.mm1(0.0, service_per_s=1.0), "arrival_per_s"),
        (lambda: queueing.mm1(1.0, service_per_s=float("nan")), "service_per_s"),
        (lambda: queueing.mg1(1.0, mean_service_s=1.0, second_moment_s2=0.5), "second_moment"),
        (lambda: queueing.erlang_c(0, utilisation=0.5), "n_servers"),
        (lambda: queueing.sojourn_identity([1.0], end_s=[0.0]), "end before"),
        (
            lambda: queueing.shared_server(1.0, mean_tokens=1.0, step_s=0.0, per_response_s=0.0),
            "both",
        ),
    ],
)
def test_bad_arguments_are_named_in_one_line(call: object, word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@given(st.integers(1, 300), st.floats(0.0, 0.999))
def test_waiting_probability_is_bounded_and_monotone(c: int, rho: float) -> None:
    p = queueing.erlang_c(c, utilisation=rho)
    assert 0.0 <= p <= 1.0
    assert queueing.erlang_c(c + 1, utilisation=rho) <= p + 1e-12
    assert queueing.erlang_c(c, utilisation=min(1.0, rho + 0.01)) >= p - 1e-12


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e3)), min_size=1, max_size=40))
def test_sojourn_identity_holds_for_any_run(runs: list[tuple[float, float]]) -> None:
    start = [s for s, _ in runs]
    end = [s + d for s, d in runs]
    got = queueing.sojourn_identity(start, end_s=end)
    assert got.integral_in_system == pytest.approx(got.total_sojourn, rel=1e-9, abs=1e-9)
