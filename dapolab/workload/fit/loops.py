"""Answers that never stop: estimated, and bounded by what the cap hides.

Beyond the cap a loop and the tail of the lognormal look alike; only the lengths below the cap tell
them apart. So the fit is made three times: no truncated row loops, all do, and undecided.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dapolab.workload.fit.estimate import maximise, natural
from dapolab.workload.fit.likelihood import Likelihood
from dapolab.workload.fit.plan import few_cut_prompts, no_loops, start
from dapolab.workload.fit.problem import Problem
from dapolab.workload.fit.rows import Rows

Floats = NDArray[np.float64]
# Loops are kept only where this likelihood-ratio level asks for them.
_LEVEL = 0.99
# Above this sd of the loop effect the usual nodes are too coarse.
_WIDE = float(np.log(2.0))
_NEARLY_NONE = -9.0
_EFFECT = {"log_loop_sd": 0.0, "atanh_loop_correlation": 0.0}


@dataclass(frozen=True, eq=False)
class Settled:
    """The chosen likelihood with its maximum; what is not identified; the two bounds."""

    likelihood: Likelihood
    theta_K: Floats
    missing: tuple[tuple[str, str], ...]
    bounds: dict[str, dict[str, float]]


def settle(rows: Rows, problem: Problem) -> Settled:
    """Maximise the likelihood and decide on loops."""
    undecided = problem.loops == "estimated" and "loop_logit" in problem.free
    if not undecided:
        likelihood = Likelihood(rows, problem)
        theta = maximise(likelihood, start(rows, problem))
        return Settled(*_widened(rows, likelihood, theta), (), {})
    none = Likelihood(rows, replace(problem, fixed=problem.fixed | no_loops(), loops="none"))
    plain = maximise(none, start(rows, none.problem))
    every = _all_loop(rows, problem)
    most = maximise(every, _translate(none, plain, every, rows), tolerance=1e-7)
    bounds = {"none": natural(none, plain), "all": natural(every, most)}
    likelihood = Likelihood(rows, problem)
    begins = [_translate(case, at, likelihood, rows) for case, at in ((none, plain), (every, most))]
    best = max(begins, key=lambda begin: float(likelihood.contributions(begin).sum()))
    likelihood, theta = _widened(rows, likelihood, maximise(likelihood, best))
    gain = likelihood.contributions(theta).sum() - none.contributions(plain).sum()
    if 2 * gain > stats.chi2.ppf(_LEVEL, len(problem.free) - len(none.problem.free)):
        return Settled(likelihood, theta, (), bounds)
    why = "the lognormal tail explains the truncated rows as well; see the bounds"
    names = "loop_share, loop_sd_logit, loop_correlation"
    return Settled(none, plain, ((names, why),), bounds)


def _widened(rows: Rows, likelihood: Likelihood, theta: Floats) -> tuple[Likelihood, Floats]:
    """Refit with more nodes where loops cluster in few prompts."""
    problem, named = likelihood.problem, likelihood.full(theta)
    nearly_none = named["loop_logit"] < _NEARLY_NONE
    if "log_loop_sd" not in problem.free or named["log_loop_sd"] <= _WIDE or nearly_none:
        return likelihood, theta
    finer = Likelihood(rows, replace(problem, nodes=problem.nodes.wide()))
    return finer, maximise(finer, theta)


def _all_loop(rows: Rows, problem: Problem) -> Likelihood:
    fixed = {name: value for name, value in problem.fixed.items() if name not in no_loops()}
    if few_cut_prompts(rows) or problem.prompt_share is not None:
        fixed |= _EFFECT
    if not problem.difficulty:
        fixed["atanh_loop_correlation"] = 0.0
    return Likelihood(rows, replace(problem, fixed=fixed, loops="all", nodes=problem.nodes.wide()))


def _translate(case: Likelihood, theta: Floats, to: Likelihood, rows: Rows) -> Floats:
    """Carry the parameters of one case over to another; loops that were off begin at half."""
    named = case.full(theta)
    cut = float(rows.truncated.mean())
    if "loop_logit" not in case.problem.free:
        named |= {"loop_logit": float(special.logit(np.clip(cut / 2, 1e-3, 0.9))), **_EFFECT}
    return np.array([named[name] for name in to.problem.free], dtype=np.float64)
