"""Prompts that are never solved: an atom at pass rate 0, kept only where the data ask for it.

It is kept where a likelihood-ratio test at one in a thousand rejects the law without it. A share of
0 lies on the edge of its range, so under that law 2·gain is 0 or χ²₁ with even odds (Self and Liang
1987, case 5). A fixed level and not BIC, whose level is .03 with 40 prompts and .004 with a
thousand: of twenty small sets it would find unsolvable prompts in one by chance.

Groups of G answers tell the atom from a wide logit-normal law by the shape between: few groups with
one or two right beside many with none. Where solvable prompts are hard too, both laws say nearly
the same; so where the atom is not kept, the largest share that is not rejected is said. An atom
that is kept may still stand for another shape (a skewed law, say): the held-out checks tell.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from dapolab.workload.difficulty import normal_nodes
from dapolab.workload.fit.estimate import maximise, natural
from dapolab.workload.fit.likelihood import Likelihood
from dapolab.workload.fit.loops import Settled
from dapolab.workload.fit.problem import BOUNDS, location
from dapolab.workload.fit.rows import Rows

Floats = NDArray[np.float64]
LEVEL = 1e-3
NEEDED = float(stats.chi2.isf(2 * LEVEL, 1)) / 2
# Right and wrong answers alone are quick to ask; with lengths it is asked only where they hint it.
_HINT = float(stats.chi2.isf(2 * 0.05, 1)) / 2
_ALLOWED = float(stats.chi2.ppf(0.99, 1)) / 2
# The tolerance of a share: a larger one that is not rejected is one that matters.
_MATTERS = 0.05
# Shares to look at first, of the groups without a right answer.
_PARTS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Share:
    """A share of unsolvable prompts with the best law of the others, by composition alone."""

    share: float
    accuracy_logit: float
    log_sd_logit: float
    log_likelihood: float


class Compositions:
    """Likelihood of (right, judged) counts of prompts under a logit-normal law with an atom at 0.

    Parameters
    ----------
    right_U, judged_U : counts of each prompt.
    n_nodes : of the trapezoid over the standardised logit.
    """

    def __init__(self, right_U: Floats, judged_U: Floats, *, n_nodes: int) -> None:
        pairs, weight = np.unique(np.stack([right_U, judged_U]), axis=1, return_counts=True)
        self._right_I, self._wrong_I = pairs[0], pairs[1] - pairs[0]
        self._weight_I = weight.astype(np.float64)
        self._z_J, weight_J = normal_nodes(n_nodes, reach=5.0)
        self._log_weight_J = np.log(weight_J)

    def log_likelihood(self, share: float, theta_K: Floats) -> tuple[float, Floats]:
        """Return Σ log[(1 − u)·P(K | law) + u·1(K = 0)], binomial factors left out, and its slope.

        ``theta_K`` and the slope are of (accuracy_logit, log_sd_logit).
        """
        accuracy, sd = float(theta_K[0]), float(np.exp(theta_K[1]))
        stretch = location(1.0, sd)
        logit_J = accuracy * stretch + sd * self._z_J
        right_J, wrong_J = special.log_expit(logit_J), special.log_expit(-logit_J)
        log_f_IJ = np.outer(self._right_I, right_J) + np.outer(self._wrong_I, wrong_J)
        log_f_IJ += self._log_weight_J
        law_I = np.log1p(-share) + special.logsumexp(log_f_IJ, axis=1)
        all_I = law_I
        if share > 0.0:
            all_I = np.logaddexp(law_I, np.where(self._right_I == 0, np.log(share), -np.inf))
        # Of each logit: right − n·p, weighed by its posterior, which the atom takes a part of.
        post_IJ = np.exp(log_f_IJ + (np.log1p(-share) - all_I)[:, None])
        n_I = self._right_I + self._wrong_I
        rest_IJ = post_IJ * (self._right_I[:, None] - np.outer(n_I, np.exp(right_J)))
        rest_J = self._weight_I @ rest_IJ
        by_sd_J = accuracy * (stretch - 1.0 / stretch) + sd * self._z_J
        slope = np.array([stretch * rest_J.sum(), rest_J @ by_sd_J])
        return float(self._weight_I @ all_I), slope

    def at(self, share: float, near: Share | None = None) -> Share:
        """Return the best law of the other prompts for a given share."""
        begin = np.array([near.accuracy_logit, near.log_sd_logit] if near else [0.0, 0.5])

        def loss(theta_K: Floats) -> tuple[float, Floats]:
            value, slope = self.log_likelihood(share, theta_K)
            return -value, -slope

        found = optimize.minimize(
            loss,
            begin,
            jac=True,
            method="L-BFGS-B",
            bounds=[BOUNDS["accuracy_logit"], BOUNDS["log_sd_logit"]],
            options={"ftol": 1e-10},
        )
        return Share(share, float(found.x[0]), float(found.x[1]), -float(found.fun))

    def best(self) -> tuple[Share, Share]:
        """Return the best law without the atom, and the best of all (the same if none gains)."""
        none = best = self.at(0.0)
        all_wrong = float(self._weight_I[self._right_I == 0].sum() / self._weight_I.sum())
        if not 0.0 < all_wrong < 1.0:
            return none, none
        near = none
        for part in _PARTS:
            near = self.at(part * all_wrong, near)
            best = max(best, near, key=_log_likelihood)
        if best is none:
            return none, none
        found = optimize.minimize_scalar(
            lambda u: -self.at(u, best).log_likelihood,
            bounds=(max(best.share - 0.25 * all_wrong, 0.0), min(best.share * 5, all_wrong)),
            method="bounded",
            options={"xatol": 2e-3 * all_wrong},
        )
        return none, max(best, self.at(float(found.x), best), key=_log_likelihood)

    def largest(self, best: Share) -> float:
        """Return the largest share that a likelihood ratio does not reject at 99 %."""
        if not self._right_I.any():
            return 1.0

        def excess(share: float) -> float:
            return best.log_likelihood - self.at(share, best).log_likelihood - _ALLOWED

        return float(optimize.brentq(excess, best.share, 1.0 - 1e-9, xtol=5e-4))


def _log_likelihood(one: Share) -> float:
    return one.log_likelihood


def ask_unsolvable(rows: Rows, settled: Settled) -> tuple[Settled, tuple[str, ...]]:
    """Add unsolvable prompts to a settled fit where the data ask for them; else say what is open.

    Returns the fit and what the user should be warned of. Nothing is asked, and nothing said, where
    groups show no composition: no verdicts, one answer a prompt, kept groups alone.
    """
    likelihood = settled.likelihood
    problem = likelihood.problem
    right_U, judged_U = likelihood.compositions
    if not problem.difficulty or problem.kept or judged_U.max() < 2:
        return settled, ()
    shapes = Compositions(right_U, judged_U, n_nodes=problem.nodes.logit)
    none, best = shapes.best()
    if best.log_likelihood - none.log_likelihood > _HINT:
        fixed = {name: x for name, x in problem.fixed.items() if name != "unsolvable_logit"}
        wider = Likelihood(rows, replace(problem, fixed=fixed))
        begin = likelihood.full(settled.theta_K) | {
            "accuracy_logit": best.accuracy_logit,
            "log_sd_logit": best.log_sd_logit,
            "unsolvable_logit": float(special.logit(best.share)),
        }
        theta = maximise(wider, np.array([begin[name] for name in wider.problem.free]))
        plain = float(likelihood.contributions(settled.theta_K).sum())
        gain = float(wider.contributions(theta).sum()) - plain
        if gain > NEEDED:
            with_atom = replace(settled, likelihood=wider, theta_K=theta)
            return with_atom, (_said(natural(likelihood, settled.theta_K), wider, theta, gain),)
    largest = shapes.largest(best)
    why = f"0 fits these data; up to {largest:.2g} is not rejected (99 %)"
    if largest > _MATTERS:
        n = np.median(judged_U)
        why += f": groups of {n:.0f} judged answers hardly tell it from a wide logit law"
    return replace(settled, missing=(*settled.missing, ("unsolvable_share", why))), ()


def _said(without: dict[str, float], wider: Likelihood, theta: Floats, gain: float) -> str:
    found = natural(wider, theta)
    return (
        f"{found['unsolvable_share']:.2g} of the prompts are fitted as never solved (unsolvable, "
        "mislabelled, or far harder than the others; unsolvable_share): log likelihood "
        f"+{gain:.1f}, sd_logit {found['sd_logit']:.2f} instead of {without['sd_logit']:.2f}"
    )
