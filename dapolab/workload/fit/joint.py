"""Fit the joint law to a table of records: what is known decides what is estimated."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dapolab import rng as streams
from dapolab.scenario import ConfigError, JointWorkload, Prompts
from dapolab.workload.fit import figures
from dapolab.workload.fit.derived import (
    derived,
    longest,
    native_cap,
    observed_mixed_share,
    own_parameters,
)
from dapolab.workload.fit.estimate import Optimum, bootstrap, describe, natural
from dapolab.workload.fit.goodness import N_FOLDS, judge
from dapolab.workload.fit.kept import KeptDifficulty, scan
from dapolab.workload.fit.likelihood import Likelihood
from dapolab.workload.fit.loops import settle
from dapolab.workload.fit.plan import (
    Degenerate,
    p_correct_if_truncated,
    plan,
)
from dapolab.workload.fit.progress import Progress
from dapolab.workload.fit.result import FittedWorkload, Goodness
from dapolab.workload.fit.rows import Rows, prepare
from dapolab.workload.fit.unsolvable import ask_unsolvable

Floats = NDArray[np.float64]


def fit_workload(
    table: pd.DataFrame,
    *,
    selection: str,
    cap_tokens: int | None = None,
    steps: tuple[int, int] | None = None,
    group_size: int | None = None,
    degenerate: Degenerate | None = None,
    n_draws: int = 400,
    max_prompts: int = 1500,
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
    max_prompts : with lengths, more prompts than this are sampled down (and said so): the time of
        a fit grows with them, its intervals shrink only as their root.
    progress : show a progress bar on stderr.

    Raises
    ------
    ConfigError
        Unknown selection, drifting steps without a window, kept groups of 3 or fewer without
        counts, nothing to fit.
    """
    rows, warnings = prepare(table, selection=selection, cap_tokens=cap_tokens, steps=steps)
    rows, degenerate, said = _affordable(rows, degenerate or Degenerate(), max_prompts, seed)
    warnings += said
    problem, missing = plan(rows, selection, degenerate)
    with Progress(total=3 + N_FOLDS * goodness, shown=progress) as bar:
        settled, said = ask_unsolvable(rows, settle(rows, problem))
        warnings += said
        likelihood, theta = settled.likelihood, settled.theta_K
        bar.advance("curvature")
        optimum = describe(likelihood, theta)
        missing += [*settled.missing, *_flat(likelihood, optimum)]
        bar.advance("derived quantities")
        rng = streams.stream(seed, "fit", "bootstrap")
        kept = _kept(rows, selection, degenerate)
        draws = _draws(rows, likelihood, optimum, kept, rng=rng, n_draws=n_draws)
        cap = cap_tokens if cap_tokens is not None else native_cap(rows)
        p_cut, _ = p_correct_if_truncated(rows, rng, 1)
        template = JointWorkload(
            prompts=_prompts(table),
            native_cap_tokens=cap,
            p_correct_if_truncated=p_cut or 0.0,
            source=source,
        )
        workload = with_values(template, natural(likelihood, theta))
        size = group_size or max(2, int(np.median(rows.count())))
        estimates = own_parameters(workload, draws, missing)
        estimates |= derived(workload, draws, likelihood.problem, size, cap, kept)
        if selection == "all":
            estimates |= observed_mixed_share(rows, group_size=size, rng=rng)
        bar.advance("held-out prompts")
        reach = cap or longest(rows)
        verdicts: tuple[Goodness, ...] = ()
        if goodness and rows.n_units >= 4 * N_FOLDS and selection != "kept_mixed":
            verdicts, skipped = judge(
                rows,
                likelihood,
                optimum,
                to_workload=lambda values: with_values(template, values),
                cap_tokens=reach,
                seed=seed,
                on_fold=lambda: bar.advance("held-out prompts"),
            )
            missing += [(f"held-out {name}", why) for name, why in skipped]
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
        loop_bounds=settled.bounds,
        goodness=verdicts,
        not_identified=tuple(missing),
        warnings=warnings,
        figures=tables,
    )


def _affordable(
    rows: Rows, degenerate: Degenerate, max_prompts: int, seed: int
) -> tuple[Rows, Degenerate, tuple[str, ...]]:
    """Sample prompts down to ``max_prompts``, and counts of dropped groups in proportion."""
    n = rows.n_units
    if n <= max_prompts or not rows.has_tokens:
        return rows, degenerate, ()
    pick = streams.stream(seed, "fit", "prompts").choice(n, size=max_prompts, replace=False)

    def part(count: int | None) -> int | None:
        return None if count is None else round(count * max_prompts / n)

    scaled = Degenerate(
        part(degenerate.n_all_wrong), part(degenerate.n_all_right), part(degenerate.n_candidates)
    )
    said = f"fitted on a random {max_prompts} of {n} prompts (max_prompts)"
    return rows.take(np.sort(pick)), scaled, (said,)


def with_values(template: JointWorkload, values: dict[str, float]) -> JointWorkload:
    """Return the workload with parameters rounded to six significant digits, as they are shown."""
    rounded = {name: float(f"{value:.6g}") for name, value in values.items()}
    return template.model_copy(update=rounded)


def _draws(
    rows: Rows,
    likelihood: Likelihood,
    optimum: Optimum,
    kept: KeptDifficulty | None,
    *,
    rng: np.random.Generator,
    n_draws: int,
) -> pd.DataFrame:
    thetas = bootstrap(optimum, bounds=likelihood.problem.bounds, n_draws=n_draws, rng=rng)
    names = list(natural(likelihood, optimum.theta_K))
    draws = pd.DataFrame([natural(likelihood, theta) for theta in thetas], columns=names)
    p_cut, p_cut_draws = p_correct_if_truncated(rows, rng, n_draws)
    if p_cut is not None:
        draws["p_correct_if_truncated"] = p_cut_draws
    if kept is not None:
        # The difficulty law of kept groups follows its likelihood over the whole scanned plane:
        # a local approximation would hide how little is identified.
        pick = kept.draw(rng, n_draws)
        draws = draws.assign(mean_logit=kept.mean_logit_L[pick], sd_logit=kept.sd_logit_L[pick])
    return draws


def _flat(likelihood: Likelihood, optimum: Optimum) -> list[tuple[str, str]]:
    shown = {
        "log_median": "median_tokens",
        "log_between": "prompt_share",
        "log_within": "sigma",
        "log_sd_logit": "sd_logit",
        "unsolvable_logit": "unsolvable_share",
        "guess_logit": "guess_rate",
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
