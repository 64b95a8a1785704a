"""Open servers and conservation laws: M/M/1, M/D/1, M/G/1, M/M/c, affine PS, Little (B9, B10, F7).

Poisson arrivals; rates per second, times in seconds. An overloaded queue has infinite times.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from dapolab.theory.arguments import (
    require_count,
    require_not_negative,
    require_positive,
    require_probability,
)
from dapolab.theory.quadrature import FloatArray, Survival, mean_from_survival


@dataclass(frozen=True)
class Queue:
    """Stationary means of a queue; ``n_waiting`` and ``n_in_system`` follow by Little's law."""

    utilisation: float
    wait_s: float
    sojourn_s: float
    n_waiting: float
    n_in_system: float


def _queue(arrival_per_s: float, *, utilisation: float, wait_s: float, service_s: float) -> Queue:
    wait = wait_s if utilisation < 1.0 else math.inf
    return Queue(
        utilisation=utilisation,
        wait_s=wait,
        sojourn_s=wait + service_s,
        n_waiting=arrival_per_s * wait,
        n_in_system=arrival_per_s * (wait + service_s),
    )


def mg1(arrival_per_s: float, *, mean_service_s: float, second_moment_s2: float) -> Queue:
    """Return M/G/1 by Pollaczek-Khinchine: Wq = lambda E[S^2]/(2(1-rho)) (B10)."""
    rate = require_positive(arrival_per_s, name="arrival_per_s")
    mean = require_positive(mean_service_s, name="mean_service_s")
    if second_moment_s2 < mean * mean * (1.0 - 1e-12):
        raise ValueError(f"second_moment_s2 {second_moment_s2} is below the square of the mean")
    rho = rate * mean
    wait = rate * second_moment_s2 / (2.0 * (1.0 - rho)) if rho < 1.0 else math.inf
    return _queue(rate, utilisation=rho, wait_s=wait, service_s=mean)


def mm1(arrival_per_s: float, *, service_per_s: float) -> Queue:
    """Return M/M/1: Wq = rho/(mu - lambda) (B10)."""
    mean = 1.0 / require_positive(service_per_s, name="service_per_s")
    return mg1(arrival_per_s, mean_service_s=mean, second_moment_s2=2.0 * mean * mean)


def md1(arrival_per_s: float, *, service_s: float) -> Queue:
    """Return M/D/1: Wq = rho/(2 mu (1-rho)) (B10)."""
    mean = require_positive(service_s, name="service_s")
    return mg1(arrival_per_s, mean_service_s=mean, second_moment_s2=mean * mean)


def erlang_c(n_servers: int, *, utilisation: float) -> float:
    """Return the probability of waiting in M/M/c at load rho per server; 1 from rho = 1 on (B10).

    By the Erlang B recursion, stable for thousands of servers.
    """
    c = require_count(n_servers, name="n_servers")
    rho = require_not_negative(utilisation, name="utilisation")
    if rho >= 1.0:
        return 1.0
    blocking = 1.0
    for k in range(1, c + 1):
        blocking = c * rho * blocking / (k + c * rho * blocking)
    return blocking / (1.0 - rho * (1.0 - blocking))


def mmc(arrival_per_s: float, *, service_per_s: float, n_servers: int) -> Queue:
    """Return M/M/c: Wq = C(c, rho)/(c mu - lambda) (B10)."""
    rate = require_positive(arrival_per_s, name="arrival_per_s")
    mu = require_positive(service_per_s, name="service_per_s")
    c = require_count(n_servers, name="n_servers")
    rho = rate / (c * mu)
    wait = erlang_c(c, utilisation=rho) / (c * mu - rate) if rho < 1.0 else math.inf
    return _queue(rate, utilisation=rho, wait_s=wait, service_s=1.0 / mu)


@dataclass(frozen=True)
class SharedServer:
    """Stationary law of an open decode server: number in service is NegBin(size, 1 - p_busy).

    ``size`` is a/b + 1, inf (a Poisson law) at b = 0.
    """

    size: float
    p_busy: float
    n_in_service: float
    latency_s: float


def shared_server(
    arrival_per_s: float, *, mean_tokens: float, step_s: float, per_response_s: float
) -> SharedServer:
    """Return the open server with t(n) = a + b n and no slot limit (B9).

    With u = lambda E[L]: E[N] = u(a+b)/(1-bu), latency E[L](a+b)/(1-bu); insensitive to the law
    of lengths. Fluid processor sharing: whole tokens shift it by about one iteration. inf where
    b u >= 1.
    """
    rate = require_positive(arrival_per_s, name="arrival_per_s")
    mean = require_positive(mean_tokens, name="mean_tokens")
    a = require_not_negative(step_s, name="step_s")
    b = require_not_negative(per_response_s, name="per_response_s")
    if a + b == 0.0:
        raise ValueError("step_s and per_response_s must not both be 0")
    load = b * rate * mean
    latency = mean * (a + b) / (1.0 - load) if load < 1.0 else math.inf
    return SharedServer(
        size=a / b + 1.0 if b > 0.0 else math.inf,
        p_busy=load,
        n_in_service=rate * latency,
        latency_s=latency,
    )


def shared_server_pmf(n: ArrayLike, *, server: SharedServer) -> FloatArray:
    """Return P(N = n) in service of a stable shared server (B9)."""
    if not math.isfinite(server.n_in_service):
        raise ValueError(f"the server is overloaded (load {server.p_busy:g}): no stationary law")
    counts = np.asarray(n, dtype=np.int64)
    if math.isinf(server.size):
        return np.asarray(stats.poisson.pmf(counts, server.n_in_service), dtype=np.float64)
    pmf = stats.nbinom.pmf(
        counts, server.size, 1.0 - require_probability(server.p_busy, name="load")
    )
    return np.asarray(pmf, dtype=np.float64)


@dataclass(frozen=True)
class TokenMoments:
    """First and second moment of a whole-token length, tokens and tokens^2."""

    mean_tokens: float
    second_moment_tokens2: float


def whole_token_moments(survival: Survival, *, cap_tokens: int) -> TokenMoments:
    """Return E[L] and E[L^2] of L = ceil(min(X, cap)): sums of S(x) and (2x+1) S(x), x >= 0.

    One slot that decodes L tokens of (a+b) seconds each is M/G/1 with these moments (B10).
    """
    cap = require_count(cap_tokens, name="cap_tokens")
    mean, second = mean_from_survival(
        lambda x: np.stack([survival(x), (2.0 * x + 1.0) * survival(x)], axis=1),
        cap=cap,
        whole_tokens=True,
    ).tolist()
    return TokenMoments(mean, second)


@dataclass(frozen=True)
class SojournIdentity:
    """Both sides of F7 for one run that starts and ends empty; seconds * responses."""

    integral_in_system: float
    total_sojourn: float

    @property
    def relative_error(self) -> float:
        """|difference| over the total sojourn, 0 for an empty run."""
        gap = abs(self.integral_in_system - self.total_sojourn)
        return gap / self.total_sojourn if self.total_sojourn > 0.0 else gap


def sojourn_identity(start_s: ArrayLike, *, end_s: ArrayLike) -> SojournIdentity:
    """Return the integral of N(t) and the sum of sojourns of one run (F7; Little).

    ``start_s`` and ``end_s`` are paired by response. The integral is taken over the merged event
    times alone, without the pairing: a record that swaps or loses an end shows up.

    Raises
    ------
    ValueError
        Where shapes differ or a response ends before it starts.
    """
    start = np.asarray(start_s, dtype=np.float64).ravel()
    end = np.asarray(end_s, dtype=np.float64).ravel()
    if start.shape != end.shape or not np.all(end >= start):
        raise ValueError("start_s and end_s must be equally long, with no end before its start")
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    in_system = np.cumsum(np.repeat([1.0, -1.0], start.size)[order])
    integral = float(in_system[:-1] @ np.diff(times[order])) if times.size else 0.0
    return SojournIdentity(integral, float(np.sum(end - start)))


def sojourn_from_count(n_in_system: float, *, arrival_per_s: float) -> float:
    """Return W = N/lambda (Little's law), seconds."""
    require_not_negative(n_in_system, name="n_in_system")
    return n_in_system / require_positive(arrival_per_s, name="arrival_per_s")
