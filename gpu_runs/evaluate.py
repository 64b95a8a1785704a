"""A held-out set that training never touches: fixed prompts, a noise stream of its own.

Answers are judged as they are: no filter, no shaping, no overlong rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from gpu_runs.generate import Generator, generate
from gpu_runs.score import Score, Scores
from gpu_runs.slots import Completion, Request
from gpu_runs.task import Problem

CONFIDENCE = 0.99

Float = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluated:
    """Answers to the held-out set; lists in the order of prompts and samples."""

    problems: tuple[Problem, ...]
    completions: tuple[tuple[Completion, ...], ...]
    scores: tuple[tuple[Score, ...], ...]

    @property
    def n_right(self) -> NDArray[np.int64]:
        """Right answers of each prompt, (P,)."""
        return np.array([sum(s.right for s in of_one) for of_one in self.scores], dtype=np.int64)


def evaluate(
    generator: Generator,
    problems: Sequence[Problem],
    *,
    scores: Scores,
    n_samples: int,
    step: int,
) -> Evaluated:
    """Answer every problem ``n_samples`` times; the noise is keyed by (step, problem, sample)."""
    requests = [
        Request((step, index, sample), problem.prompt)
        for index, problem in enumerate(problems)
        for sample in range(n_samples)
    ]
    flat = generate(generator, requests)
    generator.iterations.clear()
    rows = [tuple(flat[i : i + n_samples]) for i in range(0, len(flat), n_samples)]
    judged = [
        tuple(scores.judge(problem, completion) for completion in row)
        for problem, row in zip(problems, rows, strict=True)
    ]
    return Evaluated(tuple(problems), tuple(rows), tuple(judged))


def summary(found: Evaluated, *, pass_at: Sequence[int]) -> dict[str, float]:
    """Return the metrics of ``dapolab.metrics.EVALUATION_METRICS`` and ``eval/pass_at_K``.

    What does not exist (the length of wrong answers where all are right) is absent.
    """
    completions = [completion for row in found.completions for completion in row]
    scores = [score for row in found.scores for score in row]
    n_samples = len(found.scores[0])
    lengths = np.array([len(completion.tokens) for completion in completions], dtype=np.float64)
    right = np.array([score.right for score in scores])
    low, high = clustered_interval(found.n_right / n_samples)
    values = {
        "eval/accuracy": float(right.mean()),
        "eval/accuracy_low": low,
        "eval/accuracy_high": high,
        "eval/format_rate": float(np.mean([score.answer is not None for score in scores])),
        "eval/completion_tokens": float(lengths.mean()),
        "eval/filler_tokens": float(np.mean([score.filler for score in scores])),
        "eval/truncated_share": float(np.mean([c.finish == "length" for c in completions])),
        "eval/distinct_answers": float(np.mean([_distinct(row) for row in found.scores])),
        "eval/surprisal": -sum(sum(c.logprobs) for c in completions) / float(lengths.sum()),
    }
    for name, chosen in (("right", right), ("wrong", ~right)):
        if chosen.any():
            values[f"eval/{name}_completion_tokens"] = float(lengths[chosen].mean())
    for k in pass_at:
        values[f"eval/pass_at_{k}"] = float(
            np.mean([pass_at_k(n_samples, int(c), k) for c in found.n_right])
        )
    return values


def _distinct(row: Sequence[Score]) -> int:
    """Count different readable answers."""
    return len({repr(score.answer) for score in row if score.answer is not None})


def pass_at_k(n: int, n_right: int, k: int) -> float:
    """Return the unbiased chance that one of k samples is right, 1 − C(n−c, k)/C(n, k).

    Source: Chen et al. 2021 (Codex), Eq. 1.
    """
    return 1.0 - math.comb(n - n_right, k) / math.comb(n, k)


def clustered_interval(
    means_P: NDArray[np.floating], *, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the interval of the mean over prompts, within [0, 1].

    The unit is the prompt: samples of one prompt are no independent evidence of another prompt's
    accuracy. Student's t on the prompts' means.
    """
    n = len(means_P)
    half = _student(confidence, n - 1) * float(means_P.std(ddof=1)) / math.sqrt(n)
    centre = float(means_P.mean())
    return max(0.0, centre - half), min(1.0, centre + half)


def _student(confidence: float, df: int) -> float:
    """Return the two-sided t quantile from the normal one (Abramowitz & Stegun 26.7.5).

    Without scipy, which training does without; the error is below 1 % from 8 degrees of freedom.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(df) ** power for power, term in enumerate(terms, start=1))
