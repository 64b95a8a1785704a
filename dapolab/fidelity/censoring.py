"""What a short cap still tells of long answers: re-censored data against the full record.

Recorded answers are cut again at a lower cap, a workload is fitted to some prompts, and lengths at
the original cap are predicted for the others. Beyond the cap a loop and a lognormal tail look
alike, so the data give two bounds: no cut answer loops, all do. One number from outside, the share
of answers that never stop, makes a point of it.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from dapolab import rng as streams
from dapolab.scenario import JointWorkload
from dapolab.workload.fit.estimate import bootstrap, describe, maximise, natural
from dapolab.workload.fit.joint import with_values
from dapolab.workload.fit.likelihood import Likelihood
from dapolab.workload.fit.plan import Degenerate, no_loops, plan, start
from dapolab.workload.fit.problem import Problem
from dapolab.workload.fit.rows import Rows, prepare
from dapolab.workload.marginals import marginals

Floats = NDArray[np.float64]
_DRAWS = 40


@dataclass(frozen=True)
class Figures:
    """Mean tokens and truncated share at a cap, each with a standard error over prompts."""

    mean_tokens: float
    truncated_share: float
    mean_se: float = 0.0
    truncated_se: float = 0.0


@dataclass(frozen=True)
class Recensored:
    """One cut and fold: what was predicted for held-out prompts at the full cap.

    ``none`` and ``every``: no cut answer loops, all do; ``point``: with the loop share from
    outside; ``naive``: the cut lengths themselves, what a mean over them says.
    """

    cut_tokens: int
    fold: int
    observed: Figures
    none: Figures
    every: Figures
    point: Figures
    naive: Figures
    loop_share: float


def records_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``split, prompt_id, sample, tokens, correct, truncated`` as a table of records."""
    prompt = table["prompt_id"].astype(str)
    return pd.DataFrame(
        {
            "prompt_id": prompt.astype("string"),
            "group_id": prompt.astype("string"),
            "sample": table["sample"].astype("Int64"),
            "step": pd.Series([pd.NA] * len(table), dtype="Int64"),
            "n_tokens": table["tokens"].astype("Int64"),
            "correct": table["correct"].astype("boolean"),
            "truncated": table["truncated"].astype("boolean"),
        }
    )


def cut_again(records: pd.DataFrame, cut_tokens: int) -> pd.DataFrame:
    """Return the records as a run with a lower cap would have written them.

    An answer that was cut has no verdict: whether it would have been right is not known there.
    """
    long = (records["n_tokens"] >= cut_tokens).fillna(value=False).to_numpy(bool)
    shorter = records.copy()
    shorter["n_tokens"] = shorter["n_tokens"].clip(upper=cut_tokens)
    shorter["truncated"] = pd.array(long, dtype="boolean")
    shorter.loc[long, "correct"] = pd.NA
    return shorter


def recensor(
    records: pd.DataFrame, *, cut_tokens: int, full_cap: int, n_folds: int = 3
) -> list[Recensored]:
    """Fit cut records of some prompts, predict full lengths of the others, fold by fold.

    The loop share from outside is the truncated share at the full cap of the fitted prompts: one
    number that a small run with a long cap gives.
    """
    prompts = records["prompt_id"].drop_duplicates().to_numpy()
    out = []
    for fold in range(n_folds):
        held = set(prompts[fold::n_folds])
        is_held = records["prompt_id"].isin(held).to_numpy(bool)
        seen, hidden = records[~is_held], records[is_held]
        loop_share = float(seen["truncated"].astype(float).mean())
        found = _predictions(cut_again(seen, cut_tokens), cut_tokens, loop_share, full_cap)
        cut = cut_again(hidden, cut_tokens)
        out.append(
            Recensored(
                cut_tokens=cut_tokens,
                fold=fold,
                observed=_observed(hidden),
                none=found["none"],
                every=found["every"],
                point=found["point"],
                naive=_observed(cut),
                loop_share=loop_share,
            )
        )
    return out


def _predictions(
    records: pd.DataFrame, cap: int, loop_share: float, full_cap: int
) -> dict[str, Figures]:
    """Return figures at the full cap if no cut answer loops, if all do, at a known loop share."""
    rows, _ = prepare(records, selection="all", cap_tokens=cap, steps=None)
    problem, _ = plan(rows, "all", Degenerate())
    every = {k: v for k, v in problem.fixed.items() if k not in no_loops()}
    every |= {"log_loop_sd": 0.0, "atanh_loop_correlation": 0.0}
    # how loops spread over prompts is not in cut data: one logit, as where few prompts have them
    known = {**every, "loop_logit": float(special.logit(np.clip(loop_share, 1e-4, 0.99)))}
    cases = {
        "none": replace(problem, fixed=problem.fixed | no_loops(), loops="none"),
        "every": replace(problem, fixed=every, loops="all"),
        "point": replace(problem, fixed=known),
    }
    return {name: _predicted(rows, case, cap, full_cap) for name, case in cases.items()}


def _predicted(rows: Rows, problem: Problem, cap: int, full_cap: int) -> Figures:
    """Fit one case; figures at the full cap with standard errors by a bootstrap over prompts."""
    likelihood = Likelihood(rows, problem)
    optimum = describe(likelihood, maximise(likelihood, start(rows, problem)))
    drawn = bootstrap(
        optimum, bounds=problem.bounds, n_draws=_DRAWS, rng=streams.stream(0, "recensor")
    )
    template = JointWorkload(native_cap_tokens=cap)

    def at(theta: Floats) -> tuple[float, float]:
        law = with_values(template, natural(likelihood, theta))
        found = marginals(law, group_size=2, cap_tokens=full_cap)
        return float(found.weight_N @ found.tokens_N), float(found.weight_N @ found.truncated_N)

    mean, truncated = at(optimum.theta_K)
    spread = np.std([at(theta) for theta in drawn], axis=0, ddof=1)
    return Figures(mean, truncated, float(spread[0]), float(spread[1]))


def _observed(records: pd.DataFrame) -> Figures:
    by_prompt = records.assign(
        tokens=records["n_tokens"].astype(float), cut=records["truncated"].astype(float)
    ).groupby("prompt_id", observed=True)[["tokens", "cut"]]
    means = by_prompt.mean().to_numpy()
    errors = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    centre = means.mean(axis=0)
    return Figures(float(centre[0]), float(centre[1]), float(errors[0]), float(errors[1]))


def pooled(found: list[Recensored]) -> Recensored:
    """Return the mean over folds (of equal size, so of all prompts, each held out once)."""

    def mean(name: str) -> Figures:
        parts = [getattr(one, name) for one in found]
        # fits share two thirds of the prompts, so their errors do not average out; held-out
        # prompts are apart, so theirs do
        apart = np.sqrt(len(parts)) if name in ("observed", "naive") else 1.0
        return Figures(
            mean_tokens=float(np.mean([p.mean_tokens for p in parts])),
            truncated_share=float(np.mean([p.truncated_share for p in parts])),
            mean_se=float(np.mean([p.mean_se for p in parts]) / apart),
            truncated_se=float(np.mean([p.truncated_se for p in parts]) / apart),
        )

    return Recensored(
        cut_tokens=found[0].cut_tokens,
        fold=-1,
        observed=mean("observed"),
        none=mean("none"),
        every=mean("every"),
        point=mean("point"),
        naive=mean("naive"),
        loop_share=float(np.mean([one.loop_share for one in found])),
    )
