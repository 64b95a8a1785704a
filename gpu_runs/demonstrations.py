"""How the warm start writes digit sums: in many styles, some hasty, some wordy, some wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu_runs.task import (
    ANSWER,
    DIGIT,
    FILLER,
    LABEL,
    MASKED,
    MODULUS,
    PAIR,
    STOP,
    SUM,
    DigitSum,
)


@dataclass(frozen=True)
class Demonstration:
    """A prompt and a response to imitate; one cut at the cap has no stop token."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Style:
    """How demonstrations write; each draws one share and one rate of those listed.

    Attributes
    ----------
    n_max : longest prompts shown; the task's longer ones stay unseen.
    single_shares : of steps that add one digit; the others add 2 to 4.
    filler_rates : a step is preceded by a geometric number of fillers, mean rate / (1 − rate).
    base_slip, slip : chance per step, and more per digit beyond the first of it, that the running
        sum is a random one: hasty steps are less reliable.
    cap_tokens : longer responses are cut.
    """

    n_max: int = 9
    single_shares: tuple[float, ...] = (0.25, 0.6, 0.95)
    filler_rates: tuple[float, ...] = (0.0, 0.2, 0.5, 0.85)
    base_slip: float = 0.02
    slip: float = 0.08
    cap_tokens: int = 64


def demonstrations(
    task: DigitSum, n: int, *, rng: np.random.Generator, style: Style
) -> list[Demonstration]:
    """Return ``n`` demonstrations on prompts of the training split, drawn with replacement."""
    shown = replace(task, n_max=min(task.n_max, style.n_max))
    prompts = [shown.draw("train", rng=rng).prompt for _ in range(n)]
    return [Demonstration(prompt, _written(prompt[1:-1], rng, style)) for prompt in prompts]


def _written(pairs: Sequence[int], rng: np.random.Generator, style: Style) -> tuple[int, ...]:
    """Write a scratchpad for (label, digit) tokens; a masked digit is guessed."""
    single = style.single_shares[rng.integers(len(style.single_shares))]
    filler = style.filler_rates[rng.integers(len(style.filler_rates))]
    out: list[int] = []
    done = total = 0
    while done < len(pairs):
        out += [FILLER] * (int(rng.geometric(1 - filler)) - 1)
        size = 1 if rng.random() < single else int(rng.integers(2, 5))
        step = pairs[done : done + size]
        for pair in step:
            label, digit = divmod(pair - PAIR, MODULUS + 1)
            digit = int(rng.integers(MODULUS)) if digit == MASKED else digit
            total += digit
            out += [LABEL + label, DIGIT + digit]
        if rng.random() < style.base_slip + style.slip * (len(step) - 1):
            total = int(rng.integers(MODULUS))
        out.append(SUM + total % MODULUS)
        done += size
    out += [ANSWER, SUM + total % MODULUS, STOP]
    return tuple(out[: style.cap_tokens])
