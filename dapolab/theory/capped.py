"""Exact refill under a cap on candidates: the joint law of waves, candidates, kept (A4, A5).

The rule of agentic-rl-lab 06-dapo (rollout.py, ``collect_rollout_batch``): every wave asks for
exactly the groups still missing, or for what the cap of M*B candidates leaves; all groups of a
wave return before any is judged. Groups are mixed independently with probability q.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dapolab.theory.arguments import require_count, require_probability
from dapolab.theory.quadrature import FloatArray

_NEGLIGIBLE = 1e-30


@dataclass(frozen=True, eq=False)
class CappedRefill:
    """Joint law of one step; axes are W waves, N candidates, K kept groups, S wave size.

    Every axis starts at 0, so ``waves_pmf[w]`` is P(W = w). Either the batch is full (K = B) or
    the cap was reached (N = cap), hence two tables hold the joint law.

    Attributes
    ----------
    p_full_WN : P(W = w, N = n, K = B).
    p_partial_WK : P(W = w, N = cap, K = k), k < B.
    p_size_WS : P(wave w is run and asks for s groups).
    """

    p_mixed: float
    n_groups: int
    max_candidates: int
    p_full_WN: FloatArray = field(repr=False)
    p_partial_WK: FloatArray = field(repr=False)
    p_size_WS: FloatArray = field(repr=False)

    @property
    def waves_pmf(self) -> FloatArray:
        """P(W = w), from w = 0; entries below 1e-30 at the far end may be missing."""
        return np.asarray(self.p_full_WN.sum(axis=1) + self.p_partial_WK.sum(axis=1))

    @property
    def candidates_pmf(self) -> FloatArray:
        """P(N = n) for n = 0 .. cap."""
        pmf = self.p_full_WN.sum(axis=0)
        pmf[self.max_candidates] += self.p_partial_WK.sum()
        return np.asarray(pmf)

    @property
    def kept_pmf(self) -> FloatArray:
        """P(K = k) for k = 0 .. B."""
        pmf = self.p_partial_WK.sum(axis=0)
        pmf[self.n_groups] += self.p_full_WN.sum()
        return np.asarray(pmf)

    @property
    def expected_waves(self) -> float:
        """E[W]."""
        return _mean(self.waves_pmf)

    @property
    def expected_candidates(self) -> float:
        """E[N], groups."""
        return _mean(self.candidates_pmf)

    @property
    def expected_kept(self) -> float:
        """E[K], groups; equals q E[N]."""
        return _mean(self.kept_pmf)

    @property
    def oversample(self) -> float:
        """E[N]/B."""
        return self.expected_candidates / self.n_groups

    @property
    def expected_fill(self) -> float:
        """E[K]/B, the mean filled share of the batch."""
        return self.expected_kept / self.n_groups

    @property
    def expected_kept_ratio(self) -> float:
        """E[K/N], the mean per-step effective ratio, which overstates q (A7)."""
        n = np.arange(1, self.max_candidates + 1)
        full = self.p_full_WN.sum(axis=0)[1:] @ (self.n_groups / n)
        return float(full) + _mean(self.p_partial_WK.sum(axis=0)) / self.max_candidates

    @property
    def p_full(self) -> float:
        """P(the batch is filled) = P(Bin(cap, q) >= B)."""
        return float(stats.binom.sf(self.n_groups - 1, self.max_candidates, self.p_mixed))

    @property
    def p_skip(self) -> float:
        """P(nothing is kept, the update is skipped) = (1-q)^cap."""
        return float((1.0 - self.p_mixed) ** self.max_candidates)

    @property
    def max_waves(self) -> int:
        """Largest possible number of waves, 1 + cap - B; 1 + (M-1)B for cap = M B (A5)."""
        return 1 + self.max_candidates - self.n_groups

    @property
    def p_worst(self) -> float:
        """P(W = max_waves) = B q^(B-1) (1-q)^(cap-B) (A5), in closed form: it may be tiny."""
        B, q, spare = self.n_groups, self.p_mixed, self.max_candidates - self.n_groups
        if spare == 0:
            return 1.0
        if spare == 1:
            return 1.0 - q**B
        return float(B * q ** (B - 1) * (1.0 - q) ** spare)

    @property
    def wave_counts(self) -> FloatArray:
        """Expected number of waves of each size s = 0 .. B in a step; sums to E[W]."""
        return np.asarray(self.p_size_WS.sum(axis=0))


def _mean(pmf: FloatArray) -> float:
    return float(pmf @ np.arange(pmf.size))


def hit_pmf(p_mixed: float, *, n_groups: int) -> FloatArray:
    """Return P(Bin(m, q) = k) as an array of shape (B+1, B+1), index [m, k]."""
    m = np.arange(n_groups + 1)
    return np.asarray(stats.binom.pmf(m[None, :], m[:, None], p_mixed), dtype=np.float64)


def capped_refill(p_mixed: float, *, n_groups: int, max_candidates: int) -> CappedRefill:
    """Return the joint law of exact refill under a cap of ``max_candidates`` groups (A4).

    Dynamic programme over (missing m, used c): a wave has size min(m, cap - c) and returns
    K ~ Bin(size, q) mixed groups. States below 1e-30 at the edge of the used-candidates range are
    dropped, which keeps B = 512 within seconds.

    Raises
    ------
    ValueError
        Where the cap is below ``n_groups`` or an argument is out of range.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    cap = require_count(max_candidates, name="max_candidates", least=B)
    chain = _Chain(hits=hit_pmf(q, n_groups=B), n_groups=B, cap=cap)
    state_MC = np.zeros((B + 1, cap + 1))
    state_MC[B, 0] = 1.0
    while state_MC.shape[0] > 1:
        state_MC = chain.advance(state_MC)
    return CappedRefill(
        p_mixed=q,
        n_groups=B,
        max_candidates=cap,
        p_full_WN=np.array(chain.full_WN),
        p_partial_WK=np.array(chain.partial_WK),
        p_size_WS=np.array(chain.size_WS),
    )


class _Chain:
    """The dynamic programme; the three lists grow by one row a wave, row 0 is "no wave"."""

    def __init__(self, *, hits: FloatArray, n_groups: int, cap: int) -> None:
        self.hits, self.B, self.cap = hits, n_groups, cap
        self.full_WN: list[FloatArray] = [np.zeros(cap + 1)]
        self.partial_WK: list[FloatArray] = [np.zeros(n_groups + 1)]
        self.size_WS: list[FloatArray] = [np.zeros(n_groups + 1)]

    def advance(self, state_MC: FloatArray) -> FloatArray:
        """Run one wave from P(missing = m, used = c) and return the state after it."""
        worst = state_MC.shape[0] - 1
        after_MC = np.zeros_like(state_MC)
        partial_K, size_S = np.zeros(self.B + 1), np.zeros(self.B + 1)
        for m in range(1, worst + 1):
            used = np.flatnonzero(state_MC[m])
            if used.size == 0:
                continue
            self._cut_waves(state_MC[m], m, used[used > self.cap - m], partial_K, size_S)
            low, high = int(used[0]), min(int(used[-1]), self.cap - m)
            if low > high:
                continue
            block = state_MC[m, low : high + 1]
            size_S[m] += block.sum()
            # after[m - k] gains hits[k] * block, shifted by the m candidates of this wave
            after_MC[: m + 1, low + m : high + m + 1] += np.outer(self.hits[m, m::-1], block)
        self.full_WN.append(after_MC[0].copy())
        partial_K[self.B - worst : self.B] += after_MC[worst:0:-1, self.cap]
        self.partial_WK.append(partial_K)
        self.size_WS.append(size_S)
        after_MC[0] = 0.0
        after_MC[:, self.cap] = 0.0
        after_MC[after_MC <= _NEGLIGIBLE] = 0.0
        missing = np.flatnonzero(after_MC.any(axis=1))
        return after_MC[: missing[-1] + 1 if missing.size else 1]

    def _cut_waves(
        self,
        row_C: FloatArray,
        m: int,
        used: NDArray[np.intp],
        partial_K: FloatArray,
        size_S: FloatArray,
    ) -> None:
        """Add the waves that the cap makes smaller than the deficit; they end the step."""
        for c in used:
            size = self.cap - int(c)
            kept = self.B - m
            size_S[size] += row_C[c]
            partial_K[kept : kept + size + 1] += row_C[c] * self.hits[size, : size + 1]


def uncapped_wave_counts(p_mixed: float, *, n_groups: int) -> FloatArray:
    """Return the expected number of waves of each size s = 0 .. B without a cap (A3).

    First-passage sums over the deficit, exact for every q > 0 however small; they add up to
    E[W]. At q = 0 the count of size-B waves is inf.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    counts = np.zeros(B + 1)
    if q == 0.0:
        counts[B] = math.inf
        return counts
    hits = hit_pmf(q, n_groups=B)
    arrivals = np.zeros(B + 1)
    arrivals[B] = 1.0
    for m in range(B, 0, -1):
        # the deficit stays at m with probability (1-q)^m, so a visit lasts 1/(1-(1-q)^m) waves
        leave = 1.0 if q == 1.0 else -math.expm1(m * math.log1p(-q))
        counts[m] = arrivals[m] / leave
        arrivals[:m] += counts[m] * hits[m, m:0:-1]
    return counts
