"""Exact refill and whole rounds: waves, candidates, batch fill, estimators of q (A3, A6-A8).

All laws assume fresh iid candidates: every group is mixed with probability q independently of
the others (the prompt pool is much larger than a batch, no prompt is retried). The capped refill
of agentic-rl-lab 06-dapo (A4, A5) has its own module, ``capped``.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from dapolab.theory.arguments import require_count, require_positive, require_probability
from dapolab.theory.quadrature import FloatArray, integrate


def harmonic(n: int, *, order: int = 1) -> float:
    """Return the harmonic number H_n of the given order, sum over j <= n of j^-order."""
    count = require_count(n, name="n", least=0)
    return math.fsum(1.0 / j**order for j in range(1, count + 1))


def p_waves_at_most(n_waves: ArrayLike, *, p_mixed: float, n_groups: int) -> FloatArray:
    """Return P(W <= w) = (1 - (1-q)^w)^B of uncapped exact refill (A3).

    Every wanted slot is its own geometric race, so W is the largest of B geometrics.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    w = np.asarray(n_waves, dtype=np.float64)
    with np.errstate(divide="ignore"):
        still_missing = np.where(w > 0.0, (1.0 - q) ** np.maximum(w, 0.0), 1.0)
        return np.asarray(np.exp(B * np.log1p(-still_missing)))


def _log_survival(q: float) -> float:
    return -math.log1p(-q)


def expected_waves(p_mixed: float, *, n_groups: int) -> float:
    """Return E[W], waves of uncapped exact refill; inf at q = 0 (A3; Eisenberg 2008).

    Sum over w >= 0 of 1 - (1 - (1-q)^w)^B. Where that needs more than some 40 000 terms the
    closed B <= 2 forms, or H_B/lambda + 1/2 (error below 1e-10 there), are used instead.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    if q == 0.0:
        return math.inf
    if B == 1 or q == 1.0:
        return 1.0 / q
    if B == 2:
        return 2.0 / q - 1.0 / (q * (2.0 - q))
    rate = _log_survival(q)
    if rate < 1e-3:
        return expected_waves_asymptotic(q, n_groups=B)
    w = np.arange(1 + math.ceil((math.log(B) + 40.0) / rate))
    with np.errstate(divide="ignore"):
        return float(np.sum(-np.expm1(B * np.log1p(-np.exp(-rate * w)))))


def expected_waves_asymptotic(p_mixed: float, *, n_groups: int) -> float:
    """Return H_B/lambda + 1/2 with lambda = -ln(1-q), close to E[W] for B >= 3, q < .6 (A3)."""
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    if q == 0.0:
        return math.inf
    return 0.5 if q == 1.0 else harmonic(B) / _log_survival(q) + 0.5


def expected_waves_bounds(p_mixed: float, *, n_groups: int) -> tuple[float, float]:
    """Return (H_B/lambda, 1 + H_B/lambda), which enclose E[W] of uncapped refill (A3)."""
    middle = expected_waves_asymptotic(p_mixed, n_groups=n_groups)
    return middle - 0.5, middle + 0.5


def expected_candidates(p_mixed: float, *, n_groups: int) -> float:
    """Return E[N] = B/q candidate groups of uncapped refill (Wald; A3); inf at q = 0."""
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    return B / q if q > 0.0 else math.inf


def candidates_pmf(n_candidates: ArrayLike, *, p_mixed: float, n_groups: int) -> FloatArray:
    """Return P(N = n) of uncapped refill: negative binomial, the trial of the B-th hit (A3)."""
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    n = np.asarray(n_candidates)
    if q == 0.0:
        return np.zeros(n.shape)
    return np.asarray(stats.nbinom.pmf(n - B, B, q), dtype=np.float64)


def p_enough(n_candidates: int, *, p_mixed: float, n_groups: int) -> float:
    """Return P(Bin(N0, q) >= B): one wave of N0 candidates fills the batch (A4, A12)."""
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    N0 = require_count(n_candidates, name="n_candidates", least=0)
    return float(special.bdtrc(B - 1, N0, q)) if N0 >= B else 0.0


def candidates_needed(p_mixed: float, *, n_groups: int, confidence: float = 0.95) -> float:
    """Return the least N0 whose single wave fills the batch with this probability; inf at q = 0."""
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    if q == 0.0:
        return math.inf
    # P(Bin(N0, q) >= B) = P(N <= N0), so N0 is a quantile of the negative binomial.
    N0 = max(B, B + int(stats.nbinom.ppf(confidence, B, q)) - 1)
    while p_enough(N0, p_mixed=q, n_groups=B) < confidence:
        N0 += 1
    return float(N0)


def p_rounds_at_most(
    n_rounds: ArrayLike, *, p_mixed: float, n_groups: int, gen_groups: int
) -> FloatArray:
    """Return P(R <= r) = P(Bin(r Bg, q) >= Bt), rounds of Bg groups until Bt are mixed (A6)."""
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    Bg = require_count(gen_groups, name="gen_groups")
    r = np.asarray(n_rounds, dtype=np.int64)
    return np.asarray(stats.binom.sf(B - 1, np.maximum(r, 0) * Bg, q), dtype=np.float64)


def rounds_pmf(n_rounds: int, *, p_mixed: float, n_groups: int, gen_groups: int) -> FloatArray:
    """Return P(R = r) for r = 0 .. n_rounds (A6); the sum falls short of 1 by P(R > n_rounds)."""
    last = require_count(n_rounds, name="n_rounds")
    law = p_rounds_at_most(
        np.arange(last + 1), p_mixed=p_mixed, n_groups=n_groups, gen_groups=gen_groups
    )
    return np.diff(law, prepend=0.0)


@dataclass(frozen=True)
class Rounds:
    """One step of whole rounds (A6).

    ``expected_rounds`` and ``expected_candidates`` count aborted steps too;
    ``expected_surplus`` is the mean number of mixed groups dropped per started step, and
    ``candidate_utilisation`` trained groups over generated groups, both in totals.
    """

    p_abort: float
    expected_rounds: float
    expected_candidates: float
    expected_trained: float
    expected_surplus: float
    candidate_utilisation: float


def rounds(
    p_mixed: float, *, n_groups: int, gen_groups: int, max_rounds: int | None = None
) -> Rounds:
    """Return the law of whole-round collection: Bg groups a round until Bt are mixed (A6).

    The verl recipe (dapo_ray_trainer.py, ``gen_batch_size``, ``max_num_gen_batches``) keeps the
    first Bt in loader order, drops the surplus, and raises when ``max_rounds`` rounds do not
    suffice: ``p_abort``. ``None`` means no limit; then q = 0 gives infinite rounds.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    Bg = require_count(gen_groups, name="gen_groups")
    if max_rounds is None:
        mean_rounds = _expected_rounds(q, B, Bg)
        p_abort, trained, wasted = 0.0, float(B), 0.0
    else:
        last = require_count(max_rounds, name="max_rounds")
        ongoing = 1.0 - p_rounds_at_most(np.arange(last), p_mixed=q, n_groups=B, gen_groups=Bg)
        mean_rounds = float(ongoing.sum())
        p_abort = float(stats.binom.cdf(B - 1, last * Bg, q))
        trained = B * (1.0 - p_abort)
        v = np.arange(min(B, last * Bg + 1))
        wasted = float(v @ stats.binom.pmf(v, last * Bg, q))
    candidates = Bg * mean_rounds
    # Wald: mixed groups generated are q per candidate; what is not trained nor lost is surplus.
    surplus = q * candidates - trained - wasted if math.isfinite(candidates) else 0.0
    return Rounds(
        p_abort=p_abort if q > 0.0 or max_rounds is not None else 1.0,
        expected_rounds=mean_rounds,
        expected_candidates=candidates,
        expected_trained=trained if math.isfinite(candidates) else 0.0,
        expected_surplus=max(surplus, 0.0),
        candidate_utilisation=trained / candidates if math.isfinite(candidates) else 0.0,
    )


def _expected_rounds(q: float, B: int, Bg: int) -> float:
    """Return E[R] = sum over r >= 0 of P(Bin(r Bg, q) < B)."""
    if q == 0.0:
        return math.inf
    if B == 1:
        return 1.0 / -math.expm1(Bg * math.log1p(-q)) if q < 1.0 else 1.0
    # For many candidates the residue of N modulo Bg is uniform, up to (q Bg / 2 pi)^B.
    if B * math.log(q * Bg / (2.0 * math.pi)) < math.log(1e-11):
        return B / (q * Bg) + (Bg - 1) / (2.0 * Bg)
    spread = math.sqrt(B * (1.0 - q)) / q
    n_terms = 2 + math.ceil((B / q + 12.0 * spread + 40.0 / q) / Bg)
    r = np.arange(n_terms)
    return float(np.sum(stats.binom.cdf(B - 1, r * Bg, q)))


def expected_kept_ratio(p_mixed: float, *, n_groups: int) -> float:
    """Return E[B/N] of uncapped refill, the mean per-step "effective ratio" (A7).

    Above q, so averaging per-step ratios overstates q. With s = qt/(1-(1-q)t) the integral of
    theory A7 becomes B * integral over (0,1) of s^(B-1) q/(q + (1-q)s) ds.
    """
    q = require_probability(p_mixed, name="p_mixed")
    B = require_count(n_groups, name="n_groups")
    if q in (0.0, 1.0):
        return q
    edges = np.concatenate([[0.0], 2.0 ** np.arange(-40, 0), 1.0 - 2.0 ** np.arange(-2, -14, -1.0)])

    def integrand(s: FloatArray) -> FloatArray:
        return np.asarray(B * s ** (B - 1) * (q / (q + (1.0 - q) * s)))

    return float(integrate(integrand, edges=np.append(edges, 1.0))[0])


def p_mixed_unbiased(n_kept: ArrayLike, n_candidates: ArrayLike, *, n_groups: int) -> FloatArray:
    """Return the unbiased per-step estimate of q (A7; Girshick, Mosteller and Savage 1946).

    (B-1)/(N-1) where the batch was filled, kept/N where the candidate cap ended the step. For
    exact refill, capped or not; broadcasts.
    """
    B = require_count(n_groups, name="n_groups")
    kept, N = np.broadcast_arrays(
        np.asarray(n_kept, dtype=np.float64), np.asarray(n_candidates, dtype=np.float64)
    )
    if np.any((kept < 0) | (kept > B) | (kept > N) | (N < 1)):
        raise ValueError("need 0 <= n_kept <= n_groups and n_candidates >= max(n_kept, 1)")
    # One wanted group found at once leaves 0/0: the estimator is the indicator of that event.
    filled = np.divide(B - 1.0, N - 1.0, out=np.ones(N.shape), where=N > 1.0)
    return np.asarray(np.where(kept == B, filled, kept / N))


def expected_tokens_generated(n_candidates: float, *, tokens_per_candidate: float) -> float:
    """Return E[tokens] = E[N] E[tokens per candidate] (A8, Wald), whatever the dependence.

    Holds for barrier policies and one-for-one replacement, not for first-come races.
    """
    require_positive(tokens_per_candidate, name="tokens_per_candidate")
    return n_candidates * tokens_per_candidate


def token_utilisation(
    p_mixed: float, *, tokens_per_mixed: float, tokens_per_candidate: float
) -> float:
    """Return q E[T | mixed]/E[T], trained over generated tokens of exact refill (A8).

    Any dependence between length, correctness and difficulty; long-run ratio of totals.
    """
    q = require_probability(p_mixed, name="p_mixed")
    require_positive(tokens_per_mixed, name="tokens_per_mixed")
    return (
        q * tokens_per_mixed / require_positive(tokens_per_candidate, name="tokens_per_candidate")
    )


def rounds_token_utilisation(
    law: Rounds, *, tokens_per_mixed: float, tokens_per_candidate: float
) -> float:
    """Return Bt E[T | mixed]/(E[R] Bg E[T]), trained over generated tokens of rounds (A8)."""
    require_positive(tokens_per_mixed, name="tokens_per_mixed")
    require_positive(tokens_per_candidate, name="tokens_per_candidate")
    return law.candidate_utilisation * tokens_per_mixed / tokens_per_candidate
