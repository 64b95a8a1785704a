"""The likelihood of recorded responses under the joint law, censoring and selection included.

One prompt: z₂ is its standardised logit pass rate, its length level given z₂ is normal, its loop
logit depends on z₂ and an own effect. Given z₂ the levels of the stopped rows integrate in closed
form; what remains is an expectation over the *posterior* of the level (Gauss–Hermite, smooth at
the posterior's own scale), the loop effect and z₂ (both trapezoid).

A stopped row contributes (1 − λ)·p^c (1 − p)^(1−c)·φ(log length | level + δ·c); a truncated row,
whose verdict is treated as missing, λ + (1 − λ)·[p·S₁(c) + (1 − p)·S₀(c)].

With a share u of unsolvable prompts it is (1 − u)·(that) + u·(the same at p = g, the guess rate):
they have lengths and loops like all others, z₂ included.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dapolab.workload.difficulty import normal_nodes
from dapolab.workload.fit.problem import ALL_SOLVABLE, NAMES, NO_LOOPS, Problem, location
from dapolab.workload.fit.rows import Rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_NARROW, _REACH = 3, 5.0


class Likelihood:
    """Log likelihood per unit (prompt or group) as a function of the free parameters."""

    def __init__(self, rows: Rows, problem: Problem) -> None:
        self.problem = problem
        self._index = [NAMES.index(name) for name in problem.free]
        self._values = np.array([problem.fixed.get(name, 0.0) for name in NAMES])
        stopped = ~rows.truncated
        right = stopped & (rows.correct == 1.0)
        self._right_U = rows.count(right)
        self._stopped_U = rows.count(stopped)
        if not problem.lengths:
            self._right_U = rows.count(rows.correct == 1.0)
            self._stopped_U = rows.count(np.isfinite(rows.correct))
        log_length = np.where(np.isfinite(rows.log_length), rows.log_length, 0.0)
        self._y_U = rows.count(stopped * log_length)
        self._yy_U = rows.count(stopped * log_length**2)
        self._y_right_U = rows.count(right * log_length)
        self._prepare_cut(rows, log_length)
        self._n_U = rows.count()
        n_logit = problem.nodes.logit if problem.difficulty else 1
        self._z2, self._weight2 = normal_nodes(n_logit, reach=_REACH)
        self._level_z, self._level_weight = _hermite(problem.nodes.level)
        # Where it is known which rows loop, the loop effect never meets the level: nodes are cheap.
        together = problem.loops == "estimated"
        n_loop = problem.nodes.loop if together else problem.nodes.loop_alone
        self._loop_z, self._loop_weight = normal_nodes(n_loop, reach=4.0)

    def _prepare_cut(self, rows: Rows, log_length: Floats) -> None:
        cut_U = rows.count(rows.truncated) if self.problem.lengths else np.zeros(rows.n_units)
        looping = np.zeros(rows.n_units)
        if self.problem.loops == "all":
            looping = cut_U
        elif self.problem.loops == "flagged":
            looping = rows.count(rows.truncated & (rows.loop == 1.0))
        self._looping_U, self._open_U = looping, cut_U - looping
        self._cut = np.flatnonzero(cut_U > 0)
        total = rows.count(rows.truncated * log_length)
        # Censoring points of a prompt are one number in every set seen; their mean log otherwise.
        self._log_cap = total[self._cut] / np.maximum(cut_U[self._cut], 1.0)
        everywhere = rows.truncated.any() and self.problem.lengths
        self._log_cap_all = float(log_length[rows.truncated].mean()) if everywhere else np.inf

    def full(self, theta: Floats) -> dict[str, float]:
        """Return all parameters by name for values of the free ones."""
        values = self._values.copy()
        values[self._index] = theta
        return dict(zip(NAMES, values.tolist(), strict=True))

    @property
    def compositions(self) -> tuple[Floats, Floats]:
        """Right answers and judged answers of each unit, cut ones left out where lengths count."""
        return self._right_U, self._stopped_U

    def spreads(self, named: dict[str, float]) -> tuple[float, float]:
        """Return the between and within sd of log length."""
        within, share = np.exp(named["log_within"]), self.problem.prompt_share
        if share is None:
            return float(np.exp(named["log_between"])), float(within)
        # One response a prompt: "within" carries the total, the share is prior.
        return float(np.sqrt(share) * within), float(np.sqrt(1 - share) * within)

    def contributions(self, theta: Floats) -> Floats:
        """Return the log likelihood of each unit, shape (U,)."""
        named = self.full(theta)
        log_f = np.zeros((len(self._n_U), len(self._z2))) + np.log(self._weight2)
        logit = self._logits(named)
        if self.problem.difficulty:
            log_f += np.outer(self._right_U, special.log_expit(logit))
            log_f += np.outer(self._stopped_U - self._right_U, special.log_expit(-logit))
        if self.problem.lengths:
            log_f += self._stopped_lengths(named)
            log_f += self._never_stopped(named, special.expit(logit))
        out = np.asarray(special.logsumexp(log_f, axis=1))
        if named["unsolvable_logit"] != ALL_SOLVABLE:
            out = self._with_unsolvable(named, out)
        if self.problem.kept:
            out = out + self._selected(named)
        return out

    def _with_unsolvable(self, named: dict[str, float], solvable_U: Floats) -> Floats:
        """Mix in the likelihood at the guess rate; at 0 a right answer rules it out."""
        logit, guess = named["unsolvable_logit"], float(special.expit(named["guess_logit"]))
        log_f = np.zeros((len(self._n_U), len(self._z2))) + np.log(self._weight2)
        if self.problem.lengths:
            log_f += self._stopped_lengths(named)
            log_f += self._never_stopped(named, np.full(len(self._z2), guess))
        guess_U = special.logsumexp(log_f, axis=1)
        guess_U += special.xlogy(self._right_U, guess)
        guess_U += special.xlog1py(self._stopped_U - self._right_U, -guess)
        return np.logaddexp(
            special.log_expit(-logit) + solvable_U, special.log_expit(logit) + guess_U
        )

    def _logits(self, named: dict[str, float]) -> Floats:
        sd = float(np.exp(named["log_sd_logit"]))
        return location(named["accuracy_logit"], sd) + sd * self._z2

    def _level(self, named: dict[str, float]) -> tuple[Floats, float, float]:
        between, within = self.spreads(named)
        rho = np.tanh(named["atanh_correlation"])
        return between * rho * self._z2, between**2 * (1 - rho**2) + 1e-12, within**2

    def _residuals(self, named: dict[str, float]) -> tuple[Floats, Floats]:
        mu, effect, n, k = (
            named["log_median"],
            named["correct_effect"],
            self._stopped_U,
            self._right_U if self.problem.difficulty else np.zeros_like(self._stopped_U),
        )
        total = self._y_U - n * mu - k * effect
        cross = mu * self._y_U + effect * self._y_right_U * (k > 0)
        square = self._yy_U - 2 * cross + n * mu**2 + 2 * mu * effect * k + k * effect**2
        return total, square

    def _stopped_lengths(self, named: dict[str, float]) -> Floats:
        prior, var, within2 = self._level(named)
        total, square = self._residuals(named)
        n = self._stopped_U
        some = np.maximum(n, 1.0)
        spread = np.maximum(square - total**2 / some, 0.0)
        marginal = within2 + n * var
        constant = -0.5 * (n * np.log(2 * np.pi) + (n - 1) * np.log(within2) + np.log(marginal))
        constant -= 0.5 * spread / within2
        gap = (total / some)[:, None] - prior[None, :]
        return np.where(
            (n > 0)[:, None],
            constant[:, None] - 0.5 * (n / marginal)[:, None] * gap**2,
            0.0,
        )

    def _never_stopped(self, named: dict[str, float], p: Floats) -> Floats:
        """Log E[(1 − λ)^stopped · λ^looping · Π open rows], shape (U, J)."""
        loop_logit = self._loop_nodes(named)
        log_loop, log_stop = special.log_expit(loop_logit), special.log_expit(-loop_logit)
        if self.problem.loops == "none" or named["loop_logit"] == NO_LOOPS:
            out = np.zeros((len(self._n_U), len(p)))
        else:
            counts, which = np.unique(self._stopped_U, return_inverse=True)
            exponent = counts[:, None, None] * log_stop[None] + np.log(self._loop_weight)
            out = np.asarray(special.logsumexp(exponent, axis=2))[which]
        if len(self._cut):
            out[self._cut] = self._cut_units(named, p, log_loop, log_stop)
        return np.asarray(out)

    def _loop_nodes(self, named: dict[str, float]) -> Floats:
        """Loop logits, shape (J, H)."""
        if self.problem.loops == "none" or named["loop_logit"] == NO_LOOPS:
            return np.full((len(self._z2), 1), -700.0)
        rho, sd = np.tanh(named["atanh_loop_correlation"]), np.exp(named["log_loop_sd"])
        z = rho * self._z2[:, None] + np.sqrt(1 - rho**2) * self._loop_z[None, :]
        return np.asarray(location(named["loop_logit"], float(sd)) + sd * z)

    def _cut_units(
        self, named: dict[str, float], p: Floats, log_loop: Floats, log_stop: Floats
    ) -> Floats:
        """Log of the truncated and stopping factors of units with truncated rows, (C, J)."""
        out = np.empty((len(self._cut), len(p)))
        # With a few stopped rows the level's posterior is narrow and few nodes integrate it.
        narrow = self._stopped_U[self._cut] >= _NARROW
        for here, n in ((narrow, self.problem.nodes.level_narrow), (~narrow, 0)):
            z, weight = _hermite(n or self.problem.nodes.level)
            if here.any():
                cut = self._cut[here]
                survive = self._survive(named, p, cut, self._log_cap[here], z)
                out[here] = self._cut_factor(cut, survive, weight, log_loop, log_stop)
        return out

    def _survive(
        self, named: dict[str, float], p: Floats, cut: Ints, log_cap: Floats, z: Floats
    ) -> Floats:
        """P(a response that stops is longer than the cap | nodes), shape (C, J, level nodes)."""
        prior, var, within2 = self._level(named)
        total, _ = self._residuals(named)
        precision = self._stopped_U[cut] / within2 + 1.0 / var
        centre = (prior[None, :] / var + total[cut, None] / within2) / precision[:, None]
        level = centre[:, :, None] + z / np.sqrt(precision)[:, None, None]
        gap = (level + named["log_median"] - log_cap[:, None, None]) / np.sqrt(within2)
        if not self.problem.difficulty:
            return np.asarray(special.ndtr(gap))
        shift = named["correct_effect"] / np.sqrt(within2)
        wrong, right = special.ndtr(gap), special.ndtr(gap + shift)
        return np.asarray(wrong + p[None, :, None] * (right - wrong))

    def _cut_factor(
        self, cut: Ints, survive: Floats, level_weight: Floats, log_loop: Floats, log_stop: Floats
    ) -> Floats:
        n_open, n_loop = self._open_U[cut], log_loop.shape[1]
        weight = self._loop_weight if n_loop > 1 else np.ones(1)
        stop = np.exp(log_stop)
        if self.problem.loops == "estimated":
            # One pass per loop node keeps the working set in cache.
            columns = []
            for looping, stopping in zip(np.exp(log_loop).T, stop.T, strict=True):
                one = looping[None, :, None] + stopping[None, :, None] * survive
                columns.append(_whole_power(one, n_open) @ level_weight)
            inner = np.stack(columns, axis=2)
        else:
            inner = (_whole_power(survive, n_open) @ level_weight)[..., None]
            looping = self._looping_U[cut][:, None, None] * log_loop[None]
            inner = inner * np.exp(n_open[:, None, None] * log_stop[None] + looping)
        stopped = np.exp(self._stopped_U[cut][:, None, None] * log_stop[None])
        return np.asarray(np.log(np.maximum((inner * stopped) @ weight, 1e-300)))

    def group_masses(self, named: dict[str, float], group_size: int) -> tuple[float, float]:
        """Return P(all right), P(all wrong) of a group, verdicts as judged at the cap."""
        p = special.expit(self._logits(named))[:, None, None]
        weight = self._weight2[:, None, None]
        right = p
        if self.problem.lengths and np.isfinite(self._log_cap_all):
            prior, var, within2 = self._level(named)
            level = prior[:, None] + np.sqrt(var) * self._level_z
            shifted = level + named["log_median"] - self._log_cap_all
            loop = special.expit(self._loop_nodes(named))[:, None, :]
            stops = (1 - loop) * special.ndtr(
                -(shifted + named["correct_effect"])[:, :, None] / np.sqrt(within2)
            )
            wrong_stops = (1 - loop) * special.ndtr(-shifted[:, :, None] / np.sqrt(within2))
            right = p * stops
            cut = 1 - right - (1 - p) * wrong_stops
            right = right + self.problem.p_correct_if_truncated * cut
            loop_weight = self._loop_weight if loop.shape[2] > 1 else np.ones(1)
            weight = weight * self._level_weight[:, None] * loop_weight
        return (
            float((weight * right**group_size).sum()),
            float((weight * (1 - right) ** group_size).sum()),
        )

    def _selected(self, named: dict[str, float]) -> Floats:
        """Condition on a mixed group, or spread the known degenerate groups over the units."""
        problem = self.problem
        out = np.zeros(len(self._n_U))
        for size in np.unique(self._n_U):
            here = self._n_U == size
            all_right, all_wrong = self.group_masses(named, int(size))
            if problem.n_all_wrong is not None and problem.n_all_right is not None:
                extra = problem.n_all_wrong * np.log(all_wrong)
                extra += problem.n_all_right * np.log(all_right)
                out[here] += extra / len(out)
            elif problem.n_degenerate is not None:
                out[here] += problem.n_degenerate * np.log(all_right + all_wrong) / len(out)
            else:
                out[here] -= np.log(max(1.0 - all_right - all_wrong, 1e-300))
        return out


@lru_cache(maxsize=8)
def _hermite(n: int) -> tuple[Floats, Floats]:
    z, weight = np.polynomial.hermite_e.hermegauss(n)
    return z, weight / weight.sum()


def _whole_power(x: Floats, n: Floats) -> Floats:
    """x[i]^n[i] along the first axis for whole n ≥ 0: multiplications, not logarithms."""
    out = np.ones_like(x)
    for power in np.unique(n).astype(np.int64):
        here = n == power
        square, rest = x[here], int(power)
        product: Floats | None = None
        while rest:
            if rest & 1:
                product = square if product is None else product * square
            rest >>= 1
            if rest:
                square = square * square
        if product is not None:
            out[here] = product
    return out
