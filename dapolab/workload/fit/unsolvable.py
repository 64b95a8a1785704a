"""Unsolvable prompts: an atom at pass rate 0 or at a guess rate, where the data ask for it.

It is asked for in two steps, each a likelihood-ratio test at one in a thousand: first at 0, then at
a guess rate. A share, or a guess rate, of 0 lies on the edge of its range, so under the law without
it 2·gain is 0 or χ²₁ with even odds (Self and Liang 1987, case 5). A fixed level and not BIC, whose
level is .03 with 40 prompts and .004 with a thousand: of twenty small sets it would find unsolvable
prompts in one by chance. Where no atom at 0 is asked for, share and guess rate come together.

Groups of G answers tell the atom from a wide logit-normal law by the shape between: few groups with
one or two right beside many with none. Where solvable prompts are hard too, both laws say nearly
the same; so where the atom is not kept, the largest share that is not rejected is said. An atom
that is kept may still stand for another shape (a skewed law, say): the held-out checks tell.
"""

from dataclasses import replace

import numpy as np
from scipy import special, stats

from dapolab.workload.fit.compositions import Compositions, Share
from dapolab.workload.fit.estimate import maximise, natural
from dapolab.workload.fit.likelihood import Likelihood
from dapolab.workload.fit.loops import Settled
from dapolab.workload.fit.rows import Rows

LEVEL = 1e-3
NEEDED = float(stats.chi2.isf(2 * LEVEL, 1)) / 2
# Without a share there is no guess rate, and the best of many is looked for: χ²₂ is above what
# simulated solvable prompts gain.
NEEDED_TOGETHER = float(stats.chi2.isf(LEVEL, 2)) / 2
# Right and wrong answers alone are quick to ask; with lengths it is asked only where they hint it.
_HINT = float(stats.chi2.isf(2 * 0.05, 1)) / 2
# The tolerance of a share: a larger one that is not rejected is one that matters.
_MATTERS = 0.05


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
    never = _with(rows, settled, best, than=none, needed=NEEDED)
    guessed = shapes.guessed(best)
    if never is None:
        found = _with(rows, settled, guessed, than=none, needed=NEEDED_TOGETHER)
    else:
        found = _with(rows, never, guessed, than=best, needed=NEEDED)
    if found is not None:
        return found, (_said(settled, never, found),)
    if never is not None:
        why = f"0 fits these data; up to {shapes.largest_guess(best):.2g} is not rejected (99 %)"
        said = _said(settled, None, never)
        return replace(never, missing=(*never.missing, ("guess_rate", why))), (said,)
    largest = shapes.largest(best)
    why = f"0 fits these data; up to {largest:.2g} is not rejected (99 %)"
    if largest > _MATTERS:
        n = np.median(judged_U)
        why += f": groups of {n:.0f} judged answers hardly tell it from a wide logit law"
    return replace(settled, missing=(*settled.missing, ("unsolvable_share", why))), ()


def _with(
    rows: Rows, settled: Settled, begin: Share, *, than: Share, needed: float
) -> Settled | None:
    """Return the fit with the atom of ``begin``; None where it gains less than needed."""
    if begin.log_likelihood - than.log_likelihood <= _HINT:
        return None
    likelihood = settled.likelihood
    at = {"unsolvable_logit": float(special.logit(begin.share))}
    if begin.guess_rate > 0.0:
        at["guess_logit"] = float(special.logit(begin.guess_rate))
    fixed = {name: x for name, x in likelihood.problem.fixed.items() if name not in at}
    wider = Likelihood(rows, replace(likelihood.problem, fixed=fixed))
    named = likelihood.full(settled.theta_K) | at
    named |= {"accuracy_logit": begin.accuracy_logit, "log_sd_logit": begin.log_sd_logit}
    theta = maximise(wider, np.array([named[name] for name in wider.problem.free]))
    found = replace(settled, likelihood=wider, theta_K=theta)
    law = natural(wider, theta)
    harder = law.get("guess_rate", 0.0) < special.expit(law["mean_logit"])
    return found if harder and _gain(settled, found) > needed else None


def _gain(one: Settled, other: Settled) -> float:
    """Return the log likelihood of the other fit above the one."""
    plain = float(one.likelihood.contributions(one.theta_K).sum())
    return float(other.likelihood.contributions(other.theta_K).sum()) - plain


def _said(without: Settled, never: Settled | None, found: Settled) -> str:
    old, new = (natural(fit.likelihood, fit.theta_K) for fit in (without, found))
    how, names, part = "never solved", "unsolvable_share", ""
    if "guess_rate" in new:
        how = f"right by guess alone, {new['guess_rate']:.2g} of the time"
        names += ", guess_rate"
    if never is not None:
        part = f", {_gain(never, found):.1f} of it by the guess rate"
    return (
        f"{new['unsolvable_share']:.2g} of the prompts are fitted as {how} (unsolvable, "
        f"mislabelled, or far harder than the others; {names}): log likelihood "
        f"+{_gain(without, found):.1f}{part}, sd_logit {new['sd_logit']:.2f} instead of "
        f"{old['sd_logit']:.2f}"
    )
