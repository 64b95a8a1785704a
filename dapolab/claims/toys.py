"""The bandit as an instrument: modes from words, exact first gradients as arrays."""

import numpy as np
import numpy.typing as npt

from dapolab.bandit import (
    ArmBandit,
    Mode,
    Training,
    expected_gradient,
    expected_hazard_gradient,
    parse_mode,
)
from dapolab.bandit.environments import difficulty_ladder, eos_hazard
from dapolab.scenario import MeanOnlyAdvantage, Objective, PpoClip, SeqMeanTokenMean
from dapolab.theory.hazard_bandit import HazardGradient, hazard_gradient
from dapolab.theory.length_bandit import class_bandit

Floats = npt.NDArray[np.float64]

SHORT, LONG = 10.0, 100.0
"""Tokens of the two length classes (theory.md C4)."""
START = (0.15, 0.15, 0.35, 0.35)
"""Right short, right long, wrong short, wrong long, as ``length_classes(p_right=0.3)``."""
THEORY_BANDIT = class_bandit([1, 1, 0, 0], n_tokens_A=[SHORT, LONG, SHORT, LONG])
DRIFT, WHY_DRIFT = (
    0.055,
    "a thousandth of the mean length of 55 tokens: a thousand updates would double it",
)
"""Smallest drift worth acting on, tokens per unit of learning rate, and why."""
LADDER = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
STD = "grpo+advantage.ddof=0+advantage.eps=0"
GROUP_SIZE = 8
P_RIGHT, HAZARD = 0.3, 0.02
"""Pass rate and hazards of the end-of-sequence toy."""
PENALTY = {"cap_tokens": 100, "buffer_tokens": 40}


def mode(text: str, **training: object) -> Mode:
    """Return the mode of these words; the base is a mean-only seq-mean-token-mean update."""
    objective = Objective(
        advantage=MeanOnlyAdvantage(), clip=PpoClip(), aggregation=SeqMeanTokenMean()
    )
    base = Mode(name="base", objective=objective, training=Training.model_validate(training))
    return parse_mode(text, base=base, penalty=PENALTY)


def gradient(bandit: ArmBandit, text: str, **training: object) -> Floats:
    """Return E[−∂loss/∂θ] of the first update, exact, (D,)."""
    found = expected_gradient(bandit, mode(text, **training)).mean
    return np.asarray(found.numpy(), dtype=np.float64)


def policy(bandit: ArmBandit) -> Floats:
    """Return the arms' probabilities at the start, (A,)."""
    return np.asarray(bandit.probabilities(bandit.start)[0].numpy(), dtype=np.float64)


def length_drift(bandit: ArmBandit, step_A: Floats) -> float:
    """Return dE[L] along a step of free logits, tokens."""
    pi, length = policy(bandit), np.asarray(bandit.length_PA[0].numpy())
    return float((pi * (length - pi @ length)) @ step_A)


def conditional_drift(bandit: ArmBandit, step_A: Floats, *, right: bool) -> float:
    """Return dE[L | right or wrong] along a step of free logits, tokens."""
    pi, length = policy(bandit), np.asarray(bandit.length_PA[0].numpy())
    chosen = np.asarray(bandit.success_PA[0].numpy()) == (1.0 if right else 0.0)
    share = np.where(chosen, pi, 0.0) / pi[chosen].sum()
    return float((share * (length - share @ length)) @ step_A)


def natural_step(bandit: ArmBandit, gradient_A: Floats) -> Floats:
    """Return F⁺·gradient for free logits of one prompt: gradient/π, centred."""
    step = gradient_A / policy(bandit)
    return np.asarray(step - step.mean())


def hazard_theory(aggregation: str) -> HazardGradient:
    """Return theory's E[gradient] of the end-of-sequence toy, one group (theory.md C5)."""
    return hazard_gradient(
        P_RIGHT,
        hazard_right=HAZARD,
        hazard_wrong=HAZARD,
        mode=aggregation,  # type: ignore[arg-type]
        group_size=GROUP_SIZE,
    )


def hazard_gradient_exact(aggregation: str) -> Floats:
    """Return the objective's E[gradient] by (decision, stop if right, stop if wrong)."""
    bandit = eos_hazard(p_right=P_RIGHT, hazard_right=HAZARD, hazard_wrong=HAZARD)
    found = expected_hazard_gradient(bandit, mode(aggregation, group_size=GROUP_SIZE))
    return np.asarray(found.numpy(), dtype=np.float64)


def ladder_gradient(
    text: str, rates: tuple[float, ...] = LADDER, *, group_size: int = GROUP_SIZE
) -> Floats:
    """Return each prompt's part of the expected gradient, one logit a prompt, (P,)."""
    return gradient(difficulty_ladder(pass_rates=rates), text, group_size=group_size)
