"""Speculative decoding: tokens and seconds of an iteration, a wave that speculates at its end.

A response drafts k tokens an iteration, each accepted with probability alpha as long as all before
it were, and the verification adds a token of its own (Leviathan, Kalman & Matias 2023, arXiv
2211.17192). With n responses and K context tokens in all, a plain iteration takes a + b n + c K
seconds and a speculative one a + b (k+1) n + c K + k draft_s + verify_s.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dapolab.theory.arguments import (
    require_count,
    require_lengths,
    require_not_negative,
    require_probability,
)
from dapolab.theory.quadrature import FloatArray


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """k drafted tokens an iteration, accepted with probability alpha; seconds of both parts.

    ``draft_s`` is of one of the k draft passes, ``verify_s`` of the verification beyond a + b n.
    """

    draft_tokens: int
    acceptance: float
    draft_s: float = 0.0
    verify_s: float = 0.0

    def __post_init__(self) -> None:
        require_count(self.draft_tokens, name="draft_tokens")
        require_probability(self.acceptance, name="acceptance")
        require_not_negative(self.draft_s, name="draft_s")
        require_not_negative(self.verify_s, name="verify_s")

    @property
    def tokens_pmf(self) -> FloatArray:
        """P(an iteration yields 1 ... k+1 tokens): alpha^j (1-alpha), and alpha^k for all of them.

        Exact where acceptances are independent (Leviathan's assumption of beta = alpha throughout).
        """
        accepted = self.acceptance ** np.arange(self.draft_tokens + 1.0)
        return np.asarray(accepted - np.append(accepted[1:], 0.0))

    @property
    def tokens_per_iteration(self) -> float:
        """E = (1 - alpha^(k+1))/(1 - alpha), k + 1 at alpha = 1 (Leviathan, Eq. 1)."""
        k, alpha = self.draft_tokens, self.acceptance
        return k + 1.0 if alpha == 1.0 else (1.0 - alpha ** (k + 1)) / (1.0 - alpha)

    @property
    def fixed_s(self) -> float:
        """Return the seconds that drafting and verification add to every iteration."""
        return self.draft_tokens * self.draft_s + self.verify_s


def expected_iterations(n_tokens: int, speculation: Speculation) -> float:
    """Return the mean iterations after which one response has its n tokens, luck included.

    Exact, by N(r) = 1 + sum_j P(j tokens) N(r - j), N = 0 from 0 down. By Wald N(n) E lies between
    n and n + k, so the mean field n/E is short of it by at most k/E iterations.
    """
    n, k = require_count(n_tokens, name="n_tokens"), speculation.draft_tokens
    pmf = speculation.tokens_pmf
    found = np.zeros(n + k + 1)  # place k + r holds N(r): those at and below 0 tokens are 0
    for place in range(k + 1, n + k + 1):
        found[place] = 1.0 + float(pmf @ found[place - k - 1 : place][::-1])
    return float(found[-1])


def speedup(speculation: Speculation, *, step_s: float) -> float:
    """Return E a/(a + k draft_s + verify_s): tokens a second of one response over plain ones.

    For b = c = 0; with draft_s = c' a and no verify_s, E/(k c' + 1) (Leviathan, Theorem 3.8).
    """
    a = require_not_negative(step_s, name="step_s")
    return speculation.tokens_per_iteration * a / (a + speculation.fixed_s)


def largest_paying_batch(
    speculation: Speculation,
    *,
    step_s: float,
    per_response_s: float,
    context_s_per_response: float = 0.0,
) -> float:
    """Return the number n of responses below which speculation yields tokens sooner.

    Where a + b (k+1) n + C n + d < E (a + b n + C n), d = k draft_s + verify_s and C =
    ``context_s_per_response`` (c times the context of one response): below
    ((E-1) a - d)/(b (k+1-E) - (E-1) C). 0: never; inf: always.
    """
    a = require_not_negative(step_s, name="step_s")
    b = require_not_negative(per_response_s, name="per_response_s")
    context_s = require_not_negative(context_s_per_response, name="context_s_per_response")
    yielded = speculation.tokens_per_iteration
    gain_s = (yielded - 1.0) * a - speculation.fixed_s
    price_s = b * (speculation.draft_tokens + 1 - yielded) - (yielded - 1.0) * context_s
    if price_s > 0.0:
        return max(0.0, gain_s / price_s)
    return math.inf if gain_s > 0.0 else 0.0


def finish_times_s(
    lengths: ArrayLike,
    speculation: Speculation,
    *,
    max_batch: int,
    step_s: float,
    per_response_s: float = 0.0,
    per_context_token_s: float = 0.0,
    prompt_tokens: ArrayLike = 0,
) -> FloatArray:
    """Return when each response of a wave ends, in a mean field, order of ``lengths``.

    All start together and need no prefill; while more than ``max_batch`` are left each token takes
    a plain iteration, then 1/E of a speculative one. The i-th shortest response adds, over the
    n left, x = L_i - L_{i-1} times (a + b n) or (a + b (k+1) n + d)/E, and c or c/E times the
    context they read.
    """
    L = require_lengths(lengths)
    a = require_not_negative(step_s, name="step_s")
    b = require_not_negative(per_response_s, name="per_response_s")
    c = require_not_negative(per_context_token_s, name="per_context_token_s")
    limit = require_count(max_batch, name="max_batch", least=0)
    P = np.broadcast_to(np.asarray(prompt_tokens, dtype=np.float64), L.shape)
    order = np.argsort(L, kind="stable")
    end, prompts = L[order], np.cumsum(P[order][::-1])[::-1]
    begin = np.concatenate([[0.0], end[:-1]])
    n = np.arange(L.size, 0, -1.0)
    x = end - begin
    context = prompts * x + n * (end * (end - 1.0) - begin * (begin - 1.0)) / 2.0
    plain = (a + b * n) * x + c * context
    verified = (a + b * (speculation.draft_tokens + 1) * n + speculation.fixed_s) * x + c * context
    seconds = np.where(n > limit, plain, verified / speculation.tokens_per_iteration)
    finish = np.empty_like(L)
    finish[order] = np.cumsum(seconds)
    return finish
