"""Fit the joint law to a table of records: what is known decides what is estimated."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats

from dapolab import rng as streams
from dapolab.scenario import ConfigError, JointWorkload, Prompts
from dapolab.workload.fit import figures
from dapolab.workload.fit.estimate import Optimum, bootstrap, describe, maximise, natural
from dapolab.workload.fit.goodness import N_FOLDS, judge
from dapolab.workload.fit.kept import KeptDifficulty, scan
from dapolab.workload.fit.likelihood import NO_LOOPS, Likelihood, Nodes, Problem
from dapolab.workload.fit.progress import Progress
from dapolab.workload.fit.result import Estimate, FittedWorkload, Goodness, with_draw
from dapolab.workload.fit.rows import Rows, prepare
from dapolab.workload.marginals import marginals

Floats = NDArray[np.float64]
# With one response a prompt, between and within prompts cannot be told apart; the share that
# per-response sets with n ≥ 8 show (.7 to .8 of log-length variance) stands in.
PRIOR_PROMPT_SHARE = 0.75
_PRIOR_SD_LOGIT = 2.0
_UNITS = {"median_tokens": "tokens", "mean_tokens": "tokens"}
_DERIVED_DRAWS = 200
_FEW_CUT_PROMPTS = 10
_LOOP_LEVEL = 0.99


@dataclass(frozen=True)
class Degenerate:
    """What is known of dropped groups: counts of each kind, or candidates in all."""

    n_all_wrong: int | None = None
    n_all_right: int | None = None
    n_candidates: int | None = None

    def __post_init__(self) -> None:
        if (self.n_all_wrong is None) != (self.n_all_right is None):
            raise ConfigError("give the counts of all-wrong and all-right groups together")


def fit_workload(
    table: pd.DataFrame,
    *,
    selection: str,
    cap_tokens: int | None = None,
    steps: tuple[int, int] | None = None,
    group_size: int | None = None,
    degenerate: Degenerate | None = None,
    n_draws: int = 400,
    goodness: bool = True,
    seed: int = 0,
    source: str = "",
    progress: bool = False,
) -> FittedWorkload:
    """Fit a joint workload to records by maximum likelihood.

    Parameters
    ----------
    table : records (columns as ``dapolab.records``; ``loop`` is used where present). Missing
        correctness of truncated rows is the normal case; other rows need it or are left out.
    selection : all | kept_mixed | kept_first_finished; "unknown" is refused.
    cap_tokens : cap of the data; default the longest truncated row. Infers truncation where the
        flag is missing.
    steps : first and last training step to use; needed where steps drift.
    group_size : G at which the mixed share is reported; default the median group of the data.
    degenerate : counts of the groups that a ``kept_mixed`` file leaves out.
    n_draws : bootstrap draws kept for forecasts.
    progress : show a progress bar on stderr.

    Raises
    ------
    ConfigError
        Unknown selection, drifting steps without a window, kept groups of 3 or fewer without
        counts, nothing to fit.
    """
    rows, warnings = prepare(table, selection=selection, cap_tokens=cap_tokens, steps=steps)
    degenerate = degenerate or Degenerate()
    problem, missing = _plan(rows, selection, degenerate)
    with Progress(total=4 + N_FOLDS * goodness, shown=progress) as bar:
        likelihood, theta, more = _settle(rows, problem)
        bar.advance("curvature")
        optimum = describe(likelihood, theta)
        missing += more + _flat(likelihood, optimum)
        bar.advance("what loops could hide")
        bounds = _loop_bounds(rows, likelihood, theta)
        rng = streams.stream(seed, "fit", "bootstrap")
        kept = _kept(rows, selection, degenerate)
        p_cut, p_cut_draws = _p_correct_if_truncated(rows, rng, n_draws)
        cap = cap_tokens if cap_tokens is not None else _native_cap(rows)
        thetas = bootstrap(optimum, free=likelihood.problem.free, n_draws=n_draws, rng=rng)
        draws = pd.DataFrame([natural(likelihood, t) for t in thetas])
        if p_cut is not None:
            draws["p_correct_if_truncated"] = p_cut_draws
        best = natural(likelihood, theta)
        if kept is not None:
            best, draws = _pin_difficulty(best, draws, kept, rng)
        prompts = _prompts(table)

        def to_workload(values: dict[str, float]) -> JointWorkload:
            given = {"p_correct_if_truncated": p_cut or 0.0, **values}
            return JointWorkload(
                prompts=prompts, native_cap_tokens=cap, source=source, **_rounded(given)
            )

        workload = to_workload(best)
        size = group_size or max(2, int(np.median(rows.count())))
        bar.advance("derived quantities")
        estimates = _estimates(workload, best, draws, problem, p_cut, missing)
        estimates |= _derived(workload, draws, likelihood.problem, size, cap, kept)
        bar.advance("held-out prompts")
        verdicts: tuple[Goodness, ...] = ()
        reach = cap or _longest(rows)
        if goodness and rows.n_units >= 4 * N_FOLDS and selection != "kept_mixed":
            verdicts = judge(
                rows,
                likelihood,
                optimum,
                to_workload=to_workload,
                cap_tokens=reach,
                seed=seed,
                on_fold=lambda: bar.advance("held-out prompts"),
            )
        tables = figures.compare(rows, workload, cap_tokens=reach, problem=likelihood.problem)
    return FittedWorkload(
        workload=workload,
        selection=selection,
        group_size=size,
        cap_tokens=cap,
        n_prompts=rows.n_units,
        n_responses=len(rows.unit),
        estimates=estimates,
        draws=draws,
        loop_bounds=bounds,
        goodness=verdicts,
        not_identified=tuple(missing),
        warnings=warnings,
        figures=tables,
    )


def _plan(
    rows: Rows, selection: str, degenerate: Degenerate
) -> tuple[Problem, list[tuple[str, str]]]:
    """Decide from the data alone what is estimated, what is fixed and why."""
    stopped = ~rows.truncated
    lengths = rows.has_tokens and bool(stopped.any())
    difficulty = rows.has_correct
    single = bool((rows.count() == 1).all())
    cut_prompts = int((rows.count(rows.truncated) > 0).sum())
    fixed: dict[str, float] = {}
    missing: list[tuple[str, str]] = []
    if not lengths:
        why = "every response is cut at the cap" if rows.has_tokens else "no token counts"
        names = ["log_median", "log_between", "log_within", "correct_effect", "atanh_correlation"]
        fixed |= dict.fromkeys(names, 0.0) | _no_loops()
        missing.append(("median_tokens, sigma, prompt_share, loops", why))
    if not difficulty:
        names = ["correct_effect", "accuracy_logit", "log_sd_logit", "atanh_correlation"]
        fixed |= dict.fromkeys([*names, "atanh_loop_correlation"], 0.0)
        missing.append(("pass rates, correct_effect, correlations", "no correctness"))
    if single and lengths:
        fixed |= {"log_between": 0.0, "log_loop_sd": -3.0, "atanh_loop_correlation": 0.0}
        why = f"one response a prompt; {PRIOR_PROMPT_SHARE} is a prior from sets with n >= 8"
        missing.append(("prompt_share", why))
        missing.append(("loop_sd_logit", "one response a prompt; set to 0.05"))
    if single and difficulty:
        fixed |= {"log_sd_logit": float(np.log(_PRIOR_SD_LOGIT)), "atanh_correlation": 0.0}
        missing.append(("sd_logit, correlation", "one response a prompt; sd_logit 2 is assumed"))
    if lengths and cut_prompts == 0:
        fixed |= _no_loops()
        missing.append(("loop_share, p_correct_if_truncated", "no truncated response"))
    elif lengths and cut_prompts < _FEW_CUT_PROMPTS and not single:
        fixed |= {"log_loop_sd": 0.0, "atanh_loop_correlation": 0.0}
        why = f"only {cut_prompts} prompts have truncated responses; 1 and 0 are assumed"
        missing.append(("loop_sd_logit, loop_correlation", why))
    known = rows.has_correct and bool(np.isfinite(rows.correct[rows.truncated]).any())
    if cut_prompts and not known:
        missing.append(("p_correct_if_truncated", "no verdict on truncated responses"))
    many = rows.count().max() > 16
    kept_groups = rows.n_units
    dropped = None
    if degenerate.n_candidates is not None:
        dropped = degenerate.n_candidates - kept_groups
        if dropped < 0:
            raise ConfigError(
                f"{kept_groups} groups are in the file, more than the "
                f"{degenerate.n_candidates} candidates stated"
            )
    p_cut, _ = _p_correct_if_truncated(rows, np.random.default_rng(0), 1)
    problem = Problem(
        lengths=lengths,
        difficulty=difficulty,
        fixed=fixed,
        loops="flagged" if rows.has_loop_flags else "estimated",
        prompt_share=PRIOR_PROMPT_SHARE if single and lengths else None,
        kept=selection == "kept_mixed",
        n_all_wrong=degenerate.n_all_wrong,
        n_all_right=degenerate.n_all_right,
        n_degenerate=dropped,
        p_correct_if_truncated=p_cut or 0.0,
        nodes=Nodes(logit=241) if many and not lengths else Nodes(),
    )
    return problem, missing


def _no_loops() -> dict[str, float]:
    return {"loop_logit": NO_LOOPS, "log_loop_sd": 0.0, "atanh_loop_correlation": 0.0}


def _start(rows: Rows, problem: Problem) -> Floats:
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
        rate = float(np.nanmean(np.where(rows.truncated, np.nan, rows.correct)))
        start["accuracy_logit"] = float(special.logit(np.clip(rate, 0.02, 0.98)))
    cut = float(rows.truncated.mean())
    start["loop_logit"] = float(special.logit(np.clip(0.5 * cut, 1e-3, 0.9)))
    return np.array([start[name] for name in problem.free], dtype=np.float64)


def _settle(rows: Rows, problem: Problem) -> tuple[Likelihood, Floats, list[tuple[str, str]]]:
    """Maximise; loops stay only where the lognormal tail cannot explain the truncated rows."""
    likelihood = Likelihood(rows, problem)
    theta = maximise(likelihood, _start(rows, problem))
    if "loop_logit" not in problem.free or problem.loops != "estimated":
        return likelihood, theta, []
    without = Likelihood(rows, replace(problem, fixed=problem.fixed | _no_loops(), loops="none"))
    plain = maximise(without, _start(rows, without.problem))
    gain = likelihood.contributions(theta).sum() - without.contributions(plain).sum()
    if 2 * gain > stats.chi2.ppf(_LOOP_LEVEL, len(problem.free) - len(without.problem.free)):
        return likelihood, theta, []
    why = "the lognormal tail explains the truncated rows as well; see the bounds"
    return without, plain, [("loop_share, loop_sd_logit, loop_correlation", why)]


def _flat(likelihood: Likelihood, optimum: Optimum) -> list[tuple[str, str]]:
    shown = {
        "log_median": "median_tokens",
        "log_between": "prompt_share",
        "log_within": "sigma",
        "log_sd_logit": "sd_logit",
        "atanh_correlation": "correlation",
        "loop_logit": "loop_share",
        "log_loop_sd": "loop_sd_logit",
        "atanh_loop_correlation": "loop_correlation",
    }
    out = []
    for i, name in enumerate(likelihood.problem.free):
        if not optimum.settled_K[i]:
            flat = np.isfinite(optimum.standard_error_K[i])
            why = "the likelihood is flat in it" if flat else "the estimate is at the edge"
            out.append((shown.get(name, name), why))
    return out


def _loop_bounds(rows: Rows, likelihood: Likelihood, theta: Floats) -> dict[str, dict[str, float]]:
    """Refit with no truncated row looping, and with all of them looping."""
    problem = likelihood.problem
    ambiguous = problem.lengths and rows.truncated.any() and not rows.has_loop_flags
    if not ambiguous:
        return {}
    named = likelihood.full(theta)
    free_loops = {k: v for k, v in problem.fixed.items() if k not in _no_loops()}
    few = int((rows.count(rows.truncated) > 0).sum()) < _FEW_CUT_PROMPTS
    pinned = {"log_loop_sd": 0.0, "atanh_loop_correlation": 0.0}
    if few or problem.prompt_share is not None:
        free_loops |= pinned
    if not problem.difficulty:
        free_loops["atanh_loop_correlation"] = 0.0
    out = {}
    for key, fixed in (("none", problem.fixed | _no_loops()), ("all", free_loops)):
        case = Likelihood(rows, replace(problem, fixed=fixed, loops=key))
        cut = float(special.logit(np.clip(rows.truncated.mean(), 1e-3, 0.99)))
        usual = {"loop_logit": cut, "log_loop_sd": 0.0, "atanh_loop_correlation": 0.0}
        start = np.array(
            [usual[k] if k in usual else named[k] for k in case.problem.free], dtype=np.float64
        )
        out[key] = natural(case, maximise(case, start, tolerance=1e-7))
    return out


def _kept(rows: Rows, selection: str, degenerate: Degenerate) -> KeptDifficulty | None:
    if selection != "kept_mixed" or not rows.has_correct:
        return None
    judged = np.where(np.isfinite(rows.correct), rows.correct, 0.0)
    sizes = rows.count().astype(np.int64)
    if len(np.unique(sizes)) > 1:
        raise ConfigError(
            f"kept groups have {sizes.min()} to {sizes.max()} responses; a fit of kept groups "
            "needs one group size"
        )
    dropped = degenerate.n_candidates
    return scan(
        rows.count(judged).astype(np.int64),
        group_size=int(sizes[0]),
        n_all_wrong=degenerate.n_all_wrong,
        n_all_right=degenerate.n_all_right,
        n_degenerate=None if dropped is None else dropped - rows.n_units,
    )


def _pin_difficulty(
    best: dict[str, float], draws: pd.DataFrame, kept: KeptDifficulty, rng: np.random.Generator
) -> tuple[dict[str, float], pd.DataFrame]:
    """Let draws of the difficulty law follow its likelihood over the whole scanned plane."""
    pick = kept.draw(rng, len(draws))
    draws = draws.assign(
        mean_logit=kept.mean_logit_L[pick], sd_logit=np.maximum(kept.sd_logit_L[pick], 0.0)
    )
    return best, draws


def _p_correct_if_truncated(
    rows: Rows, rng: np.random.Generator, n_draws: int
) -> tuple[float | None, Floats]:
    known = rows.truncated & np.isfinite(rows.correct)
    if not known.any():
        return None, np.zeros(n_draws)
    right, seen = rows.count(known * np.nan_to_num(rows.correct)), rows.count(known)
    weight = rng.exponential(size=(n_draws, rows.n_units))
    return float(right.sum() / seen.sum()), np.asarray((weight @ right) / (weight @ seen))


def _native_cap(rows: Rows) -> int | None:
    cut = rows.tokens[rows.truncated]
    cut = cut[np.isfinite(cut)]
    return int(cut.max()) if len(cut) else None


def _longest(rows: Rows) -> int:
    known = rows.tokens[np.isfinite(rows.tokens)]
    return int(known.max()) if len(known) else 1 << 20


def _prompts(table: pd.DataFrame) -> Prompts:
    if "n_prompt_tokens" not in table or not table["n_prompt_tokens"].notna().any():
        return Prompts()
    tokens = pd.to_numeric(table["n_prompt_tokens"], errors="coerce").dropna().to_numpy(float)
    tokens = tokens[tokens >= 1]
    if not len(tokens):
        return Prompts()
    return Prompts(
        tokens_median=float(np.median(tokens)), tokens_sigma=round(float(np.log(tokens).std()), 3)
    )


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in values.items()}


def _estimates(
    workload: JointWorkload,
    best: dict[str, float],
    draws: pd.DataFrame,
    problem: Problem,
    p_cut: float | None,
    missing: list[tuple[str, str]],
) -> dict[str, Estimate]:
    unknown = {name.strip() for names, _ in missing for name in names.split(",")}
    out = {}
    for name in [*best, *(["p_correct_if_truncated"] if p_cut is not None else [])]:
        value = float(getattr(workload, name))
        low, high = (float(x) for x in draws[name].quantile([0.005, 0.995]))
        estimated = name not in unknown and (high > low or name == "p_correct_if_truncated")
        out[name] = Estimate(
            value, low if estimated else None, high if estimated else None, _UNITS.get(name, "")
        )
    return out


def _derived(
    workload: JointWorkload,
    draws: pd.DataFrame,
    problem: Problem,
    group_size: int,
    cap: int | None,
    kept: KeptDifficulty | None,
) -> dict[str, Estimate]:
    """Mixed share, truncated share and mean length at the native cap, with intervals."""
    reach = cap or 1 << 20
    names = (["mixed_share"] if problem.difficulty else []) + (
        ["truncated_share", "mean_tokens"] if problem.lengths else []
    )
    n = min(_DERIVED_DRAWS, len(draws))
    laws = [workload, *(with_draw(workload, draws, number=i) for i in range(n))]
    if not problem.lengths:
        flat = {"median_tokens": 1.0, "sigma": 0.0, "loop_share": 0.0}
        laws = [law.model_copy(update=flat) for law in laws]
    found = [marginals(law, group_size=group_size, cap_tokens=reach) for law in laws]
    take: dict[str, Callable[[int], float]] = {
        "mixed_share": lambda i: found[i].mixed_probability,
        "truncated_share": lambda i: found[i].truncated_share,
        "mean_tokens": lambda i: found[i].mean_tokens,
    }
    out = {}
    for name in names:
        values = [take[name](i) for i in range(len(found))]
        low, high = (float(x) for x in np.quantile(values[1:], [0.005, 0.995]))
        if name == "mixed_share" and kept is not None:
            low, high = kept.mixed_interval()
        out[name] = Estimate(values[0], low, high, _UNITS.get(name, ""))
    return out
