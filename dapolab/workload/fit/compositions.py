"""Right answers of prompts under a logit-normal law with an atom at the guess rate.

Counts alone: quick to ask many laws of, where a likelihood with lengths takes far longer.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from dapolab.workload.difficulty import normal_nodes
from dapolab.workload.fit.problem import BOUNDS, location

Floats = NDArray[np.float64]
_ALLOWED = float(stats.chi2.ppf(0.99, 1)) / 2
# Shares to look at first, of the groups without a right answer.
_PARTS = (0.05, 0.25, 0.5, 0.75, 0.95)
# Guess rates and shares to begin at; the likelihood may have a maximum near each.
_GUESSES, _GUESSED = (0.02, 0.1, 0.3), (0.05, 0.3)
_LAW = ("accuracy_logit", "log_sd_logit")
_MOST_GUESSED = float(special.expit(BOUNDS["guess_logit"][1]))


@dataclass(frozen=True)
class Share:
    """A share of unsolvable prompts with the best law of the others, by composition alone."""

    share: float
    accuracy_logit: float
    log_sd_logit: float
    log_likelihood: float
    guess_rate: float = 0.0

    @property
    def harder(self) -> bool:
        """Whether unsolvable prompts are harder than half of the others."""
        middle = location(self.accuracy_logit, float(np.exp(self.log_sd_logit)))
        return self.guess_rate < float(special.expit(middle))


class Compositions:
    """Likelihood of (right, judged) counts of prompts.

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

    def log_likelihood(
        self, share: float, theta_K: Floats, guess_rate: float = 0.0
    ) -> tuple[float, Floats]:
        """Return Σ log[(1 − u)·P(K | law) + u·P(K | g)], binomial factors left out, and its slope.

        ``theta_K`` is (accuracy_logit, log_sd_logit); the slope is of these two and of the logits
        of the share u and the guess rate g.
        """
        accuracy, sd = float(theta_K[0]), float(np.exp(theta_K[1]))
        stretch = location(1.0, sd)
        logit_J = accuracy * stretch + sd * self._z_J
        right_J, wrong_J = special.log_expit(logit_J), special.log_expit(-logit_J)
        log_f_IJ = np.outer(self._right_I, right_J) + np.outer(self._wrong_I, wrong_J)
        log_f_IJ += self._log_weight_J
        law_I = np.log1p(-share) + special.logsumexp(log_f_IJ, axis=1)
        all_I, atom_I = law_I, np.full_like(law_I, -np.inf)
        if share > 0.0:
            atom_I = special.xlogy(self._right_I, guess_rate)
            atom_I += special.xlog1py(self._wrong_I, -guess_rate) + np.log(share)
            all_I = np.logaddexp(law_I, atom_I)
        # Of each logit: right − n·p, weighed by its posterior, which the atom takes a part of.
        post_IJ = np.exp(log_f_IJ + (np.log1p(-share) - all_I)[:, None])
        n_I = self._right_I + self._wrong_I
        rest_IJ = post_IJ * (self._right_I[:, None] - np.outer(n_I, np.exp(right_J)))
        rest_J = self._weight_I @ rest_IJ
        by_sd_J = accuracy * (stretch - 1.0 / stretch) + sd * self._z_J
        taken_I = self._weight_I * np.exp(atom_I - all_I)
        slope = np.array(
            [
                stretch * rest_J.sum(),
                rest_J @ by_sd_J,
                taken_I.sum() - share * self._weight_I.sum(),
                taken_I @ (self._right_I - guess_rate * n_I),
            ]
        )
        return float(self._weight_I @ all_I), slope

    def at(self, share: float, near: Share | None = None) -> Share:
        """Return the best law of the other prompts for a share that is never right."""
        begin = np.array([near.accuracy_logit, near.log_sd_logit] if near else [0.0, 0.5])

        def loss(theta_K: Floats) -> tuple[float, Floats]:
            value, slope = self.log_likelihood(share, theta_K)
            return -value, -slope[:2]

        found = optimize.minimize(
            loss,
            begin,
            jac=True,
            method="L-BFGS-B",
            bounds=[BOUNDS[name] for name in _LAW],
            options={"ftol": 1e-10},
        )
        return Share(share, float(found.x[0]), float(found.x[1]), -float(found.fun))

    def best(self) -> tuple[Share, Share]:
        """Return the best law without unsolvable prompts, and the best with some never right.

        They are the same where the second gains nothing.
        """
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
        """Return the largest share never right that a likelihood ratio does not reject at 99 %."""
        if not self._right_I.any():
            return 1.0

        def excess(share: float) -> float:
            return best.log_likelihood - self.at(share, best).log_likelihood - _ALLOWED

        return float(optimize.brentq(excess, best.share, 1.0 - 1e-9, xtol=5e-4))

    def guessed(self, best: Share) -> Share:
        """Return the best law with unsolvable prompts that are guessed; ``best`` if none is better.

        An atom easier than half of the other prompts is another shape of their law, not its hard
        end, and is passed over.
        """
        begins = [(share, guess) for guess in _GUESSES for share in _GUESSED]
        if best.share > 0.0:
            begins = [(best.share, guess) for guess in _GUESSES] + begins
        found = [self._climbed(best, share, guess) for share, guess in begins]
        harder = [one for one in found if one.harder]
        return max([best, *harder], key=_log_likelihood)

    def largest_guess(self, best: Share) -> float:
        """Return the largest guess rate that a likelihood ratio does not reject at 99 %.

        ``best`` is the best law with unsolvable prompts that are never right. Looked for up to 1/2.
        """

        def excess(guess: float) -> float:
            found = self._climbed(best, best.share, guess, fixed=True)
            return best.log_likelihood - found.log_likelihood - _ALLOWED

        if excess(_MOST_GUESSED) < 0.0:
            return _MOST_GUESSED
        return float(optimize.brentq(excess, 1e-6, _MOST_GUESSED, xtol=5e-4))

    def _climbed(self, near: Share, share: float, guess: float, *, fixed: bool = False) -> Share:
        """Climb from a law with a guess rate; ``fixed`` leaves the guess rate where it is."""
        free = [*_LAW, "unsolvable_logit", "guess_logit"][: 3 if fixed else 4]

        def loss(x: Floats) -> tuple[float, Floats]:
            rate = guess if fixed else float(special.expit(x[3]))
            value, slope = self.log_likelihood(float(special.expit(x[2])), x[:2], rate)
            return -value, -slope[: len(x)]

        begin = [near.accuracy_logit, near.log_sd_logit, *special.logit([share, guess])]
        found = optimize.minimize(
            loss,
            np.array(begin[: len(free)]),
            jac=True,
            method="L-BFGS-B",
            bounds=[BOUNDS[name] for name in free],
            options={"ftol": 1e-10},
        )
        accuracy, log_sd = (float(x) for x in found.x[:2])
        rate = guess if fixed else float(special.expit(found.x[3]))
        return Share(float(special.expit(found.x[2])), accuracy, log_sd, -float(found.fun), rate)


def _log_likelihood(one: Share) -> float:
    return one.log_likelihood
