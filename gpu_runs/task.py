"""Tasks whose answers a program can judge, behind one interface, and the toy one of them.

The toy, :class:`DigitSum`: add up labelled digits modulo 5 on a scratchpad. The policy chooses how
long it writes in two ways: how many digits it sums up per step (useful length) and how many filler
tokens it emits (useless length). Prompts longer than the warm start ever showed and prompts that
nobody can solve keep all-right, mixed and all-wrong groups alive throughout a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from dapolab.errors import ConfigError
from dapolab.rng import stream
from gpu_runs.noise import mix

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Problem:
    """One prompt and what judges its answers.

    Attributes
    ----------
    id : the same number for the same prompt, in whatever split or run; below 2**53.
    prompt : token ids.
    answer : the recorded answer, compared by the task's verifier.
    difficulty : an ordinal within the task.
    stratum : name of the class of problems that are alike in difficulty.
    """

    id: int
    prompt: tuple[int, ...]
    answer: object
    difficulty: int
    stratum: str


class Vocabulary(Protocol):
    """What the generator asks of a task."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def stop_token(self) -> int:
        """The token that ends a response; part of the response."""
        ...

    @property
    def pad_token(self) -> int:
        """A token for the unused places of rectangular batches."""
        ...


class Task(Vocabulary, Protocol):
    """What the trainer and the evaluation ask of a task."""

    def problems(self, split: Split, n: int, *, seed: int) -> list[Problem]:
        """Return ``n`` distinct problems of a split; the splits share none, whatever the seed."""
        ...

    def is_right(self, problem: Problem, response: Sequence[int], *, finished: bool) -> bool:
        """Judge a response; an unfinished one (cut at the cap) is judged as it stands."""
        ...

    def answer_of(self, response: Sequence[int]) -> object | None:
        """Return the final answer that a response gives, None where it gives none."""
        ...

    def filler_count(self, response: Sequence[int]) -> int:
        """Count the tokens known to be useless; 0 where the task cannot tell."""
        ...


MODULUS = 5
N_LABELS = 12
PAD, BOS, EQUALS, FILLER, ANSWER, STOP = range(6)
LABEL = 6
"""First of the 12 label tokens; then 5 digits, 5 sums, and one token per (label, digit)."""
DIGIT = LABEL + N_LABELS
SUM = DIGIT + MODULUS
PAIR = SUM + MODULUS
MASKED = MODULUS
"""The sixth "digit" of a (label, digit) token: masked."""
VOCAB_SIZE = PAIR + N_LABELS * (MODULUS + 1)
N_RECORDED = 25
"""An unsolvable prompt's recorded answer is one of 25 values; only 5 can be written."""
_HELDOUT_ONE_IN = 5


@dataclass(frozen=True, kw_only=True)
class DigitSum:
    """Sum of n labelled digits modulo 5.

    A prompt is ``^ (c,2) (d,3) … =``: labels follow each other in a ring of 12 from a random start,
    (label, digit) is one token. A response repeats filler ``~``*, then k ≥ 1 echoes ``label digit``
    and the running sum; it ends with ``# sum $``.

    Attributes
    ----------
    n_min, n_max : digits per prompt, uniform.
    masked_share : share of prompts with one digit masked. Their recorded answer is drawn by the
        prompt's id, and four in five of them cannot be written: always wrong, as mislabelled
        problems of real sets are.
    """

    n_min: int = 2
    n_max: int = N_LABELS
    masked_share: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.n_min <= self.n_max <= N_LABELS or not 0 <= self.masked_share <= 1:
            raise ConfigError(
                f"digit sum of n {self.n_min} to {self.n_max}, masked share {self.masked_share}: "
                f"n must lie in 1..{N_LABELS} and the share in [0, 1]"
            )

    @property
    def vocab_size(self) -> int:
        """100 token ids."""
        return VOCAB_SIZE

    @property
    def stop_token(self) -> int:
        """``$``."""
        return STOP

    @property
    def pad_token(self) -> int:
        """Never part of a text."""
        return PAD

    def problems(self, split: Split, n: int, *, seed: int) -> list[Problem]:
        """Return ``n`` distinct problems; a longer list of the same seed starts with the shorter.

        Raises
        ------
        ConfigError
            If the split does not have twice as many (n_max is too small).
        """
        share = 1 / _HELDOUT_ONE_IN if split == "heldout" else 1 - 1 / _HELDOUT_ONE_IN
        available = share * sum(N_LABELS * MODULUS**k for k in range(self.n_min, self.n_max + 1))
        if 2 * n > available:
            raise ConfigError(
                f"{n} problems asked of a {split} split of about {available:.0f}: raise n_max"
            )
        rng = stream(seed, "digit-sum", split)
        found: dict[int, Problem] = {}
        while len(found) < n:
            problem = self.draw(split, rng=rng)
            found.setdefault(problem.id, problem)
        return list(found.values())

    def draw(self, split: Split, *, rng: np.random.Generator) -> Problem:
        """Return a random problem of a split."""
        while True:
            n_digits = int(rng.integers(self.n_min, self.n_max + 1))
            digits = rng.integers(0, MODULUS, size=n_digits).tolist()
            start = int(rng.integers(N_LABELS))
            if rng.random() < self.masked_share:
                digits[int(rng.integers(n_digits))] = MASKED
            code = _code(start, digits)
            if (mix(code) % _HELDOUT_ONE_IN == 0) == (split == "heldout"):
                return _problem(code, start, digits)

    def is_right(self, problem: Problem, response: Sequence[int], *, finished: bool) -> bool:
        """Say whether a finished response ends in ``# sum $`` with the recorded sum."""
        return finished and self.answer_of(response) == problem.answer

    def answer_of(self, response: Sequence[int]) -> int | None:
        """Return the sum of the final ``# sum $``, None where the response ends otherwise."""
        if len(response) < 3 or response[-1] != STOP or response[-3] != ANSWER:
            return None
        value = response[-2] - SUM
        return value if 0 <= value < MODULUS else None

    def filler_count(self, response: Sequence[int]) -> int:
        """Count the ``~``."""
        return sum(token == FILLER for token in response)


def _code(start: int, digits: Sequence[int]) -> int:
    """Return a number of its own for each prompt: length, start and digits in mixed radix."""
    code = len(digits) * N_LABELS + start
    for digit in digits:
        code = code * (MODULUS + 1) + digit
    return code


def _problem(code: int, start: int, digits: Sequence[int]) -> Problem:
    pairs = [
        PAIR + ((start + i) % N_LABELS) * (MODULUS + 1) + digit for i, digit in enumerate(digits)
    ]
    masked = MASKED in digits
    answer = (mix(code) >> 8) % N_RECORDED if masked else sum(digits) % MODULUS
    return Problem(
        id=code,
        prompt=(BOS, *pairs, EQUALS),
        answer=answer,
        difficulty=len(digits),
        stratum="masked" if masked else f"n={len(digits)}",
    )
