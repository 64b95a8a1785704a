"""Does the law describe prompts that it has not seen? Five folds, and a verdict per quantity.

Every prompt is predicted by the fit of the other folds. Five quantities matter to a collection:
the maximum of a small wave, the truncated share, the mixed share, the accuracy of mixed groups
(what a filter trains on, theory A9) and the within-prompt spread.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dapolab.scenario import JointWorkload, Prompts
from dapolab.workload.fit.estimate import Optimum, bootstrap, maximise, natural
from dapolab.workload.fit.likelihood import Likelihood
from dapolab.workload.fit.result import Goodness
from dapolab.workload.fit.rows import Rows
from dapolab.workload.model import PromptStream

Floats = NDArray[np.float64]
N_FOLDS = 5
_N_DRAWS = 100
_PROMPTS_PER_FOLD = 400
# A wave small enough that its maximum is not simply the cap: 4 prompts × up to 8 responses.
_WAVE_PROMPTS, _WAVE_RESPONSES = 4, 8
_Z99 = 2.5758
# The bootstrap of a mean over fewer groups says too little of its spread.
_FEWEST_MIXED = 10
_SHARES = ("truncated share", "mixed share", "accuracy of mixed groups")
_OF_MIXED = "accuracy of mixed groups"


@dataclass(frozen=True, eq=False)
class PromptSummary:
    """Per prompt: what the quantities are made of; nan where the data do not have it."""

    longest: Floats
    truncated: Floats
    mixed: Floats
    right: Floats
    spread_sum: Floats
    spread_degrees: Floats

    def statistics(self, weight: Floats) -> dict[str, float]:
        """Return the quantities under prompt weights (whole numbers: a bootstrap sample)."""
        pick = np.repeat(np.arange(len(weight)), weight.astype(np.int64))
        degrees = self.spread_degrees[pick].sum()
        return {
            "wave maximum": _wave_maximum(self.longest[pick]),
            "truncated share": float(self.truncated[pick].mean()),
            "mixed share": float(self.mixed[pick].mean()),
            _OF_MIXED: self._accuracy_of_mixed(pick),
            "within-prompt spread": float(
                np.sqrt(self.spread_sum[pick].sum() / degrees) if degrees else np.nan
            ),
        }

    def _accuracy_of_mixed(self, pick: NDArray[np.intp]) -> float:
        """E[K/n | mixed] of a sample of prompts; nan where none is mixed or a verdict lacks."""
        mixed = self.mixed[pick]
        n = float(mixed.sum())
        return float(self.right[pick] @ mixed) / n if n > 0 else float("nan")


def _wave_maximum(longest: Floats) -> float:
    """Return the expected maximum of a wave of distinct prompts (theory B1)."""
    n, k = len(longest), min(_WAVE_PROMPTS, len(longest))
    i = np.arange(k, n + 1)
    weight = np.exp(
        special.gammaln(i) - special.gammaln(i - k + 1) - special.gammaln(k) - _log_choose(n, k)
    )
    return float(np.sort(longest)[k - 1 :] @ weight)


def _log_choose(n: int, k: int) -> float:
    return float(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))


def summarise(
    tokens_UG: Floats, correct_UG: Floats, truncated_UG: Floats, present_UG: NDArray[np.bool_]
) -> PromptSummary:
    """Summarise prompts given as padded arrays (U, G); ``present_UG`` marks real responses."""
    first = present_UG & (np.cumsum(present_UG, axis=1) <= _WAVE_RESPONSES)
    longest = np.where(first, tokens_UG, 0.0).max(axis=1)
    n = present_UG.sum(axis=1)
    right = np.where(present_UG, correct_UG, 0.0).sum(axis=1)
    stopped = present_UG & (truncated_UG == 0.0)
    log_length = np.where(stopped, np.log(np.maximum(tokens_UG, 1.0)), 0.0)
    count = stopped.sum(axis=1)
    centre = log_length.sum(axis=1) / np.maximum(count, 1)
    squares = np.where(stopped, (log_length - centre[:, None]) ** 2, 0.0).sum(axis=1)
    return PromptSummary(
        longest=longest,
        truncated=np.where(present_UG, truncated_UG, 0.0).sum(axis=1) / n,
        mixed=np.where(np.isnan(right), np.nan, ((right > 0) & (right < n)).astype(np.float64)),
        right=right / n,
        spread_sum=squares,
        spread_degrees=np.maximum(count - 1, 0).astype(np.float64),
    )


def padded(rows: Rows) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Return tokens, correct, truncated and presence as arrays (U, G), G the largest group."""
    n = rows.count().astype(np.int64)
    place = np.arange(len(rows.unit)) - np.repeat(np.cumsum(n) - n, n)
    shape = (rows.n_units, int(n.max()))
    out = []
    for values in (rows.tokens, rows.correct, rows.truncated.astype(np.float64)):
        array = np.full(shape, np.nan)
        array[rows.unit, place] = values
        out.append(array)
    present = np.zeros(shape, dtype=bool)
    present[rows.unit, place] = True
    return out[0], out[1], out[2], present


def simulate(
    workload: JointWorkload, *, n_P: NDArray[np.int64], cap_tokens: int, seed: int
) -> PromptSummary:
    """Draw prompts with ``n_P`` responses each from the law and summarise them."""
    pool = workload.model_copy(update={"prompts": Prompts(count=len(n_P))})
    stream = PromptStream(pool, group_size=int(n_P.max()), cap_tokens=cap_tokens, seed=seed)
    groups = stream.draw(0, len(n_P))
    present = np.arange(int(n_P.max()))[None, :] < n_P[:, None]
    return summarise(
        groups.n_tokens_PG.astype(np.float64),
        groups.correct_PG.astype(np.float64),
        groups.truncated_PG.astype(np.float64),
        present,
    )


def judge(
    rows: Rows,
    likelihood: Likelihood,
    optimum: Optimum,
    *,
    to_workload: Callable[[dict[str, float]], JointWorkload],
    cap_tokens: int,
    seed: int,
    on_fold: Callable[[], None] = lambda: None,
) -> tuple[tuple[Goodness, ...], tuple[tuple[str, str], ...]]:
    """Compare held-out prompts with the predictions of the other folds.

    Returns the checks, and (quantity, reason) of those of pass rates that could not be made.

    The interval of observed − predicted joins the bootstrap over prompts of the observed value and
    the parameter draws of the fold fits. Tolerances: 10 % of a length or spread, .05 of a share.
    """
    rng = np.random.default_rng(seed)
    fold = rng.permutation(rows.n_units) % N_FOLDS
    problem = likelihood.problem
    predicted: list[PromptSummary] = []
    by_draw: list[list[PromptSummary]] = [[] for _ in range(_N_DRAWS)]
    counts = rows.count().astype(np.int64)
    for number in range(N_FOLDS):
        train = np.flatnonzero(fold != number)
        part = Likelihood(rows.take(train), problem)
        centre = maximise(part, optimum.theta_K, tolerance=1e-7)
        draws = bootstrap(
            optimum, bounds=problem.bounds, n_draws=_N_DRAWS, rng=rng, centre_K=centre, units=train
        )
        held = counts[fold == number]
        n_P = np.resize(held, _PROMPTS_PER_FOLD)
        # One seed for all draws: simulation noise is common to them and leaves their spread.
        sample_seed = int(rng.integers(2**31))
        for b, theta in enumerate([centre, *draws]):
            law = to_workload(natural(part, theta))
            size = np.resize(held, 10 * _PROMPTS_PER_FOLD) if b == 0 else n_P
            summary = simulate(law, n_P=size, cap_tokens=cap_tokens, seed=sample_seed)
            (predicted if b == 0 else by_draw[b - 1]).append(summary)
        on_fold()
    seen = summarise(*padded(rows))
    skipped = not_comparable(seen, predicted) if problem.difficulty else {}
    found = _verdicts(seen, predicted, by_draw, likelihood, rng, skipped)
    return found, tuple(skipped.items())


def not_comparable(seen: PromptSummary, predicted: list[PromptSummary]) -> dict[str, str]:
    """Say which checks of pass rates cannot be made, and why."""
    if np.isnan(seen.mixed).any():
        why = "answers without a verdict leave groups that may be mixed or not"
        return {"mixed share": why, _OF_MIXED: why}
    n = int(seen.mixed.sum())
    if n == 0:
        return {_OF_MIXED: "no group of these data is mixed"}
    if n < _FEWEST_MIXED:
        return {_OF_MIXED: f"only {n} of these groups are mixed; {_FEWEST_MIXED} are needed"}
    if not sum(part.mixed.sum() for part in predicted):
        return {_OF_MIXED: "the fitted law predicts no mixed group"}
    return {}


def _pooled(parts: list[PromptSummary]) -> dict[str, float]:
    joined = PromptSummary(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in PromptSummary.__dataclass_fields__
        )
    )
    return joined.statistics(np.ones(len(joined.longest)))


def _verdicts(
    seen: PromptSummary,
    predicted: list[PromptSummary],
    by_draw: list[list[PromptSummary]],
    likelihood: Likelihood,
    rng: np.random.Generator,
    skipped: Collection[str],
) -> tuple[Goodness, ...]:
    n = len(seen.longest)
    observed, centre = seen.statistics(np.ones(n)), _pooled(predicted)
    draws = [_pooled(parts) for parts in by_draw]
    resampled = [
        seen.statistics(rng.multinomial(n, np.full(n, 1 / n)).astype(np.float64)) for _ in by_draw
    ]
    out = []
    for name, value in observed.items():
        about_lengths = name in ("wave maximum", "within-prompt spread", "truncated share")
        known = likelihood.problem.lengths if about_lengths else likelihood.problem.difficulty
        if not known or np.isnan(value) or name in skipped:
            continue
        # A draw or a resample without a mixed group has no accuracy of them.
        spread = np.nanstd([d[name] for d in draws]), np.nanstd([one[name] for one in resampled])
        half = _Z99 * float(np.hypot(*spread))
        gap = value - centre[name]
        out.append(
            Goodness(
                quantity=name,
                unit={"wave maximum": "tokens", "within-prompt spread": "sd of log"}.get(name, ""),
                observed=value,
                predicted=centre[name],
                low=gap - half,
                high=gap + half,
                tolerance=0.05 if name in _SHARES else 0.1 * abs(value),
            )
        )
    return tuple(out)
