"""Exact and numerical summaries of a workload at a cap: what theory takes as its input.

Given a prompt (a node), responses are independent; a node carries P(L ≤ x and right) and
P(L ≤ x and wrong) for x below the cap and the truncated mass at the cap. Everything else follows:

- mixed probability q = E[1 − r^G − (1 − r)^G] with r = P(right | prompt) after the cap (theory A1);
- group maximum: P(max ≤ x) = E[F_z(x)^G] (theory B2);
- maximum of a mixed group: E[F^G − F_right^G − F_wrong^G], the F_valid of theory A12;
- tokens of mixed groups, the E[T | valid] of theory A8;
- accuracy of mixed groups, the E[K/G | mixed] of theory A9: E[K/G] less P(all right), over q.

Expectations over the normal prompt effects use the trapezoid rule (see ``normal_nodes``), over a
Beta law Gauss–Jacobi, over recorded prompts the plain mean with C(k, G)/C(n, G) in place of F^G,
because replay draws without replacement.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dapolab.scenario import (
    IndependentWorkload,
    JointWorkload,
    LognormalLengths,
    ReplayWorkload,
    Workload,
)
from dapolab.workload.difficulty import logit_mean_for, normal_nodes, pass_rate_law
from dapolab.workload.lengths import LengthLaw, LogNormalPart, latent_law
from dapolab.workload.replay import RecordedGroups, load_groups
from dapolab.workload.sources import log_length_shift, logit_shift

Floats = NDArray[np.float64]
_LEVEL_NODES, _LOGIT_NODES, _LOOP_NODES = 29, 49, 17
_REACH = 5.0
_NODES_PER_CHUNK = 1 << 22


@dataclass(frozen=True, eq=False)
class Marginals:
    """Summaries of a workload for groups of ``group_size`` under a cap.

    Axis N: prompts as quadrature nodes with ``weight_N`` (sum 1). ``pass_rate_N`` is the chance of
    a right answer when nothing is cut, ``right_N`` after the cap, ``truncated_N`` the chance of
    being cut, ``tokens_N`` the mean of min(L, cap), ``right_tokens_N`` = E[min(L, cap); right].
    """

    group_size: int
    cap_tokens: int
    weight_N: Floats
    pass_rate_N: Floats
    right_N: Floats
    truncated_N: Floats
    tokens_N: Floats
    right_tokens_N: Floats
    _cdfs: Callable[[Floats], tuple[Floats, Floats]]
    _n_rows_N: Floats | None = None

    def _all_of_group(self, share: Floats) -> Floats:
        """P(all G responses fall in an event of conditional probability ``share``, (N, …))."""
        G = self.group_size
        if self._n_rows_N is None:
            return np.asarray(share**G)
        n = self._n_rows_N.reshape((-1,) + (1,) * (share.ndim - 1))
        # Product form of C(k, G)/C(n, G); right for whole k, and interpolates where lotteries of
        # p_correct_if_truncated make k fractional.
        factors = [np.maximum(share * n - j, 0.0) / (n - j) for j in range(G)]
        return np.asarray(np.prod(np.broadcast_arrays(*factors), axis=0))

    @property
    def mixed_probability(self) -> float:
        """Return q, the probability that a group holds right and wrong answers."""
        return 1.0 - self.all_right_probability - self.all_wrong_probability

    @property
    def all_right_probability(self) -> float:
        """P(every answer of a group is right)."""
        return float(self.weight_N @ self._all_of_group(self.right_N))

    @property
    def all_wrong_probability(self) -> float:
        """P(every answer of a group is wrong)."""
        return float(self.weight_N @ self._all_of_group(1.0 - self.right_N))

    @property
    def accuracy(self) -> float:
        """P(a response is right), truncated ones included."""
        return float(self.weight_N @ self.right_N)

    @property
    def accuracy_mixed(self) -> float:
        """E[K/G | mixed], the share of right answers in mixed groups (A9); nan where none is."""
        q = self.mixed_probability
        right = self.accuracy - self.all_right_probability
        return right / q if q > 1e-12 else float("nan")

    @property
    def truncated_share(self) -> float:
        """P(a response is cut at the cap)."""
        return float(self.weight_N @ self.truncated_N)

    @property
    def mean_tokens(self) -> float:
        """E[min(L, cap)], tokens."""
        return float(self.weight_N @ self.tokens_N)

    @property
    def mean_tokens_mixed(self) -> float:
        """Mean length of the responses of mixed groups, tokens; nan where no group is mixed."""
        if self._n_rows_N is not None:
            others = self._n_rows_N, self.group_size - 1
            all_right = _rest_of_group(self.right_N, *others)
            all_wrong = _rest_of_group(1.0 - self.right_N, *others)
        else:
            all_right = self.right_N ** (self.group_size - 1)
            all_wrong = (1.0 - self.right_N) ** (self.group_size - 1)
        wrong_tokens_N = self.tokens_N - self.right_tokens_N
        kept = self.tokens_N - self.right_tokens_N * all_right - wrong_tokens_N * all_wrong
        q = self.mixed_probability
        return float(self.weight_N @ kept) / q if q > 1e-12 else float("nan")

    def conditional_survival(self, tokens: ArrayLike) -> Floats:
        """P(n_tokens > tokens | prompt), shape (N, X) for tokens (X,); 0 from the cap on."""
        x = np.atleast_1d(np.asarray(tokens, dtype=np.float64))
        right, wrong = self._cdfs(np.floor(x))
        return np.where(x >= self.cap_tokens, 0.0, np.clip(1.0 - right - wrong, 0.0, 1.0))

    def survival(self, tokens: ArrayLike) -> Floats:
        """P(n_tokens > tokens) of one response, shape of ``tokens``."""
        return self._averaged(tokens, lambda right, wrong: 1.0 - right - wrong)

    def group_survival(self, tokens: ArrayLike) -> Floats:
        """P(the longest of a group's G responses > tokens), shape of ``tokens``."""
        return self._averaged(tokens, lambda right, wrong: 1.0 - self._all_of_group(right + wrong))

    def mixed_group_survival(self, tokens: ArrayLike) -> Floats:
        """P(longest of the group > tokens | the group is mixed), shape of ``tokens``."""

        def mixed_within(right: Floats, wrong: Floats) -> Floats:
            every = self._all_of_group(right + wrong)
            return every - self._all_of_group(right) - self._all_of_group(wrong)

        q = self.mixed_probability
        return 1.0 - self._averaged(tokens, mixed_within, at_cap=q) / q

    def _averaged(
        self,
        tokens: ArrayLike,
        of: Callable[[Floats, Floats], Floats],
        *,
        at_cap: float = 0.0,
    ) -> Floats:
        x = np.asarray(tokens, dtype=np.float64)
        flat = np.floor(np.atleast_1d(x).ravel())
        out = np.full(flat.shape, at_cap)
        below = np.flatnonzero(flat < self.cap_tokens)
        chunk = max(1, _NODES_PER_CHUNK // len(self.weight_N))
        for start in range(0, len(below), chunk):
            here = below[start : start + chunk]
            out[here] = self.weight_N @ of(*self._cdfs(flat[here]))
        # quadrature weights add up to 1 only up to rounding
        return np.asarray(np.clip(out, 0.0, 1.0)).reshape(x.shape)


def _rest_of_group(share: Floats, n: Floats, others: int) -> Floats:
    """P(the other G − 1 fall in the event | one given response does), without replacement."""
    factors = [np.maximum(share * n - 1 - j, 0.0) / (n - 1 - j) for j in range(others)]
    return np.asarray(np.prod(factors, axis=0)) if factors else np.ones_like(share)


def marginals(
    workload: Workload,
    *,
    group_size: int,
    cap_tokens: int,
    trained_steps: int = 0,
    visits: int = 0,
) -> Marginals:
    """Return the summaries of a workload under a cap.

    Drift is that of ``trained_steps``, after every prompt was trained ``visits`` times (theory A
    of a walk without replacement, from epoch to epoch).

    Raises
    ------
    ConfigError
        As :class:`dapolab.workload.PromptStream`.
    """
    if isinstance(workload, ReplayWorkload):
        recorded = load_groups(workload, group_size=group_size, cap_tokens=cap_tokens)
        return _of_replay(recorded, workload.p_correct_if_truncated, group_size, cap_tokens)
    if isinstance(workload, JointWorkload):
        return _of_joint(workload, group_size, cap_tokens, trained_steps, visits)
    return _of_independent(workload, group_size, cap_tokens, trained_steps, visits)


def mixed_probability(workload: Workload, *, group_size: int, cap_tokens: int) -> float:
    """Return q = P(a group is mixed) under the cap (theory A1, integrated over prompts)."""
    return marginals(workload, group_size=group_size, cap_tokens=cap_tokens).mixed_probability


def survival(workload: Workload, *, cap_tokens: int) -> Callable[[ArrayLike], Floats]:
    """Return x ↦ P(n_tokens > x) of one response under the cap, tokens."""
    return marginals(workload, group_size=1, cap_tokens=cap_tokens).survival


def _of_joint(
    workload: JointWorkload, group_size: int, cap_tokens: int, trained_steps: int, visits: int
) -> Marginals:
    w, drift = workload, workload.drift
    between, within = np.sqrt(w.prompt_share) * w.sigma, np.sqrt(1 - w.prompt_share) * w.sigma
    z_1, weight_1 = normal_nodes(_LEVEL_NODES if between else 1, reach=_REACH)
    z_2, weight_2 = normal_nodes(_LOGIT_NODES, reach=_REACH)
    loops = w.loop_share > 0.0
    z_3, weight_3 = normal_nodes(_n_loop_nodes(w) if loops else 1, reach=_REACH)
    grid = np.meshgrid(z_1, z_2, z_3, indexing="ij")
    level, own, loop_own = (z.ravel() for z in grid)
    z_logit = w.correlation * level + np.sqrt(1 - w.correlation**2) * own
    weight = np.einsum("i,j,k->ijk", weight_1, weight_2, weight_3).ravel()
    keep = weight > 1e-9
    level, z_logit, loop_own = level[keep], z_logit[keep], loop_own[keep]
    weight = weight[keep] / weight[keep].sum()
    shift = logit_shift(drift, trained_steps, visits)
    p = special.expit(w.mean_logit + w.sd_logit * z_logit + shift)
    loop = np.zeros_like(p)
    if loops:
        z = w.loop_correlation * z_logit + np.sqrt(1 - w.loop_correlation**2) * loop_own
        mean = logit_mean_for(w.loop_share, sd=w.loop_sd_logit)
        loop = special.expit(mean + w.loop_sd_logit * z)
    base = np.log(w.median_tokens) + between * level
    base = base + log_length_shift(drift, trained_steps, visits)
    if w.unsolvable_share > 0.0:
        # The same prompts once more, right by guess alone.
        p = np.append(p, np.full_like(p, w.guess_rate))
        loop, base = np.tile(loop, 2), np.tile(base, 2)
        weight = np.append((1 - w.unsolvable_share) * weight, w.unsolvable_share * weight)
    right = LogNormalPart(base + w.correct_effect, within, p * (1 - loop))
    wrong = LogNormalPart(base, within, (1 - p) * (1 - loop))
    return _capped(right, wrong, p, weight, w.p_correct_if_truncated, group_size, cap_tokens)


def _n_loop_nodes(workload: JointWorkload) -> int:
    """Nodes of the loop effect, no more than one logit apart."""
    sd = workload.loop_sd_logit
    return 1 if sd == 0.0 else max(_LOOP_NODES, 2 * int(np.ceil(_REACH * sd)) + 1)


def _capped(
    right: LogNormalPart,
    wrong: LogNormalPart,
    p: Floats,
    weight: Floats,
    p_truncated: float | None,
    group_size: int,
    cap_tokens: int,
) -> Marginals:
    done_right, tokens_right = right.below(cap_tokens)
    done_wrong, tokens_wrong = wrong.below(cap_tokens)
    truncated = np.clip(1.0 - done_right - done_wrong, 0.0, 1.0)
    right_cut = p - done_right if p_truncated is None else p_truncated * truncated
    return Marginals(
        group_size=group_size,
        cap_tokens=cap_tokens,
        weight_N=weight,
        pass_rate_N=p,
        right_N=done_right + right_cut,
        truncated_N=truncated,
        tokens_N=tokens_right + tokens_wrong + cap_tokens * truncated,
        right_tokens_N=tokens_right + cap_tokens * right_cut,
        _cdfs=lambda x: (right.cdf(x), wrong.cdf(x)),
    )


def _of_independent(
    workload: IndependentWorkload,
    group_size: int,
    cap_tokens: int,
    trained_steps: int,
    visits: int,
) -> Marginals:
    drift, lengths = workload.drift, workload.lengths
    p, weight = pass_rate_law(workload.pass_rate, group_size=group_size).nodes()
    with np.errstate(divide="ignore"):
        p = special.expit(special.logit(p) + logit_shift(drift, trained_steps, visits))
    shift = log_length_shift(drift, trained_steps, visits)
    if isinstance(lengths, LognormalLengths) and lengths.prompt_share > 0:
        between = np.sqrt(lengths.prompt_share) * lengths.sigma
        within = float(np.sqrt(1 - lengths.prompt_share)) * lengths.sigma
        z, weight_z = normal_nodes(_LEVEL_NODES)
        base = np.repeat(np.log(lengths.median_tokens) + between * z + shift, len(p))
        weight, p = np.asarray(np.kron(weight_z, weight)), np.tile(p, len(z))
        right, wrong = LogNormalPart(base, within, p), LogNormalPart(base, within, 1 - p)
        p_cut = workload.p_correct_if_truncated
        return _capped(right, wrong, p, weight, p_cut, group_size, cap_tokens)
    latent = latent_law(lengths)
    law = LengthLaw(latent, scale=float(np.exp(shift)))
    cut = float(law.survival(cap_tokens))
    tokens = law.mean(cap_tokens)
    done = p * (1 - cut)
    p_cut = workload.p_correct_if_truncated
    right_cut = cut * (p if p_cut is None else p_cut)
    return Marginals(
        group_size=group_size,
        cap_tokens=cap_tokens,
        weight_N=weight,
        pass_rate_N=p,
        right_N=done + right_cut,
        truncated_N=np.full_like(p, cut),
        tokens_N=np.full_like(p, tokens),
        right_tokens_N=p * (tokens - cap_tokens * cut) + right_cut * cap_tokens,
        _cdfs=lambda x: (np.outer(p, law.cdf(x)), np.outer(1 - p, law.cdf(x))),
    )


def _of_replay(
    recorded: RecordedGroups, p_truncated: float, group_size: int, cap_tokens: int
) -> Marginals:
    n = recorded.n_rows_N.astype(np.float64)
    prompt = np.repeat(np.arange(len(n)), recorded.n_rows_N)
    cut = (recorded.n_tokens > cap_tokens) | recorded.truncated
    recut = recorded.n_tokens > cap_tokens
    right = np.where(recorded.correct_missing | recut, p_truncated, recorded.correct)
    tokens = np.minimum(recorded.n_tokens, cap_tokens).astype(np.float64)

    def mean(values: Floats) -> Floats:
        return np.asarray(np.bincount(prompt, weights=values, minlength=len(n)) / n)

    def cdfs(x: Floats) -> tuple[Floats, Floats]:
        pairs = [
            (mean(inside * right), mean(inside * (1 - right)))
            for inside in (tokens <= limit for limit in x)
        ]
        return np.stack([a for a, _ in pairs], axis=1), np.stack([b for _, b in pairs], axis=1)

    return Marginals(
        group_size=group_size,
        cap_tokens=cap_tokens,
        weight_N=np.full(len(n), 1.0 / len(n)),
        pass_rate_N=recorded.pass_rate_N,
        right_N=mean(right),
        truncated_N=mean(cut.astype(np.float64)),
        tokens_N=mean(tokens),
        right_tokens_N=mean(tokens * right),
        _cdfs=cdfs,
        _n_rows_N=n,
    )
