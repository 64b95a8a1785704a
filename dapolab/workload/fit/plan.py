"""What the data can identify: decided from the data alone, before anything is estimated."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dapolab.scenario import ConfigError
from dapolab.workload.fit.problem import ALL_SOLVABLE, NO_GUESS, NO_LOOPS, Nodes, Problem
from dapolab.workload.fit.rows import Rows

Floats = NDArray[np.float64]
# With one response a prompt, between and within prompts cannot be told apart; the share that
# per-response sets with n ≥ 8 show (.7 to .8 of log-length variance) stands in.
PRIOR_PROMPT_SHARE = 0.75
_PRIOR_SD_LOGIT = 2.0
FEW_CUT_PROMPTS = 10


@dataclass(frozen=True)
class Degenerate:
    """What is known of dropped groups: counts of each kind, or candidates in all."""

    n_all_wrong: int | None = None
    n_all_right: int | None = None
    n_candidates: int | None = None

    def __post_init__(self) -> None:
        if (self.n_all_wrong is None) != (self.n_all_right is None):
            raise ConfigError("give the counts of all-wrong and all-right groups together")


Fixed = dict[str, float]
Missing = list[tuple[str, str]]


def plan(rows: Rows, selection: str, degenerate: Degenerate) -> tuple[Problem, Missing]:
    """Decide from the data alone what is estimated, what is fixed and why.

    Raises
    ------
    ConfigError
        Fewer candidates stated than groups are in the file.
    """
    lengths = rows.has_tokens and not bool(rows.truncated.all())
    single = bool((rows.count() == 1).all())
    fixed, missing = _absent(rows, lengths=lengths)
    # Whether some prompts are unsolvable is asked once the rest is settled (unsolvable.py).
    fixed |= {"unsolvable_logit": ALL_SOLVABLE, "guess_logit": NO_GUESS}
    if selection == "kept_mixed" and rows.has_correct:
        why = "such prompts leave no kept group, or guessed ones that look hard; 0 is assumed"
        missing.append(("unsolvable_share", why))
    if single:
        _add(fixed, missing, *_one_response(lengths=lengths, difficulty=rows.has_correct))
    _add(fixed, missing, *_truncation(rows, lengths=lengths, single=single))
    p_cut, _ = p_correct_if_truncated(rows, np.random.default_rng(0), 1)
    problem = Problem(
        lengths=lengths,
        difficulty=rows.has_correct,
        fixed=fixed,
        loops="flagged" if rows.has_loop_flags else "estimated",
        prompt_share=PRIOR_PROMPT_SHARE if single and lengths else None,
        kept=selection == "kept_mixed",
        n_all_wrong=degenerate.n_all_wrong,
        n_all_right=degenerate.n_all_right,
        n_degenerate=_n_degenerate(rows, degenerate),
        p_correct_if_truncated=p_cut or 0.0,
        # Many answers a prompt fix its pass rate sharply; the nodes must lie closer.
        nodes=Nodes(logit=241) if rows.count().max() > 16 else Nodes(),
    )
    return problem, missing


def _add(fixed: Fixed, missing: Missing, more_fixed: Fixed, more_missing: Missing) -> None:
    fixed.update(more_fixed)
    missing.extend(more_missing)


def _absent(rows: Rows, *, lengths: bool) -> tuple[Fixed, Missing]:
    fixed: Fixed = {}
    missing: Missing = []
    if not lengths:
        why = "every response is cut at the cap" if rows.has_tokens else "no token counts"
        names = ["log_median", "log_between", "log_within", "correct_effect", "atanh_correlation"]
        fixed |= dict.fromkeys(names, 0.0) | no_loops()
        missing.append(("median_tokens, sigma, prompt_share, loops", why))
    if not rows.has_correct:
        names = ["correct_effect", "accuracy_logit", "log_sd_logit", "atanh_correlation"]
        fixed |= dict.fromkeys([*names, "atanh_loop_correlation"], 0.0)
        missing.append(("pass rates, correct_effect, correlations", "no correctness"))
    return fixed, missing


def _one_response(*, lengths: bool, difficulty: bool) -> tuple[Fixed, Missing]:
    """One response a prompt cannot split anything into between and within prompts."""
    fixed: Fixed = {}
    missing: Missing = []
    if lengths:
        fixed |= {"log_between": 0.0, "log_loop_sd": -3.0, "atanh_loop_correlation": 0.0}
        why = f"one response a prompt; {PRIOR_PROMPT_SHARE} is a prior from sets with n >= 8"
        missing.append(("prompt_share", why))
        missing.append(("loop_sd_logit", "one response a prompt; set to 0.05"))
    if difficulty:
        fixed |= {"log_sd_logit": float(np.log(_PRIOR_SD_LOGIT)), "atanh_correlation": 0.0}
        missing.append(("sd_logit, correlation", "one response a prompt; sd_logit 2 is assumed"))
        missing.append(("unsolvable_share", "one response a prompt; 0 is assumed"))
    return fixed, missing


def _truncation(rows: Rows, *, lengths: bool, single: bool) -> tuple[Fixed, Missing]:
    cut_prompts = int((rows.count(rows.truncated) > 0).sum())
    if cut_prompts == 0:
        missing = [("loop_share, p_correct_if_truncated", "no truncated response")]
        return (no_loops(), missing) if lengths else ({}, [])
    fixed: Fixed = {}
    missing = []
    if lengths and few_cut_prompts(rows) and not single:
        fixed = {"log_loop_sd": 0.0, "atanh_loop_correlation": 0.0}
        why = f"only {cut_prompts} prompts have truncated responses; 1 and 0 are assumed"
        missing.append(("loop_sd_logit, loop_correlation", why))
    if not np.isfinite(rows.correct[rows.truncated]).any():
        missing.append(("p_correct_if_truncated", "no verdict on truncated responses"))
    return fixed, missing


def _n_degenerate(rows: Rows, degenerate: Degenerate) -> int | None:
    if degenerate.n_candidates is None:
        return None
    if degenerate.n_candidates < rows.n_units:
        raise ConfigError(
            f"{rows.n_units} groups are in the file, more than the "
            f"{degenerate.n_candidates} candidates stated"
        )
    return degenerate.n_candidates - rows.n_units


def few_cut_prompts(rows: Rows) -> bool:
    """Whether too few prompts have truncated rows to tell how loops differ between prompts."""
    return int((rows.count(rows.truncated) > 0).sum()) < FEW_CUT_PROMPTS


def no_loops() -> dict[str, float]:
    """Return the fixed parameters of a law without loops."""
    return {"loop_logit": NO_LOOPS, "log_loop_sd": 0.0, "atanh_loop_correlation": 0.0}


def start(rows: Rows, problem: Problem) -> Floats:
    """Naive moments: good enough to start from, biased by the cap."""
    stopped = ~rows.truncated & np.isfinite(rows.log_length)
    start = dict.fromkeys(problem.free, 0.0) | {"log_sd_logit": 0.5, "log_loop_sd": 0.0}
    if stopped.any():
        y = rows.log_length[stopped]
        spread = max(float(y.std()), 0.05)
        start |= {"log_median": float(y.mean()), "log_between": np.log(0.8 * spread)}
        share = 0.55 if problem.prompt_share is None else 1.0
        start["log_within"] = np.log(share * spread)
    if problem.difficulty:
        judged = ~rows.truncated if problem.lengths else np.isfinite(rows.correct)
        rate = float(np.nanmean(rows.correct[judged]))
        start["accuracy_logit"] = float(special.logit(np.clip(rate, 0.02, 0.98)))
    cut = float(rows.truncated.mean())
    start["loop_logit"] = float(special.logit(np.clip(0.5 * cut, 1e-3, 0.9)))
    return np.array([start[name] for name in problem.free], dtype=np.float64)


def p_correct_if_truncated(
    rows: Rows, rng: np.random.Generator, n_draws: int
) -> tuple[float | None, Floats]:
    """Return the share of right verdicts on truncated rows, with draws over prompts; or None."""
    known = rows.truncated & np.isfinite(rows.correct)
    if not known.any():
        return None, np.zeros(n_draws)
    right, seen = rows.count(known * np.nan_to_num(rows.correct)), rows.count(known)
    weight = rng.exponential(size=(n_draws, rows.n_units))
    return float(right.sum() / seen.sum()), np.asarray((weight @ right) / (weight @ seen))
