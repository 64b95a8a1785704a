"""The bandit as an instrument: modes from words, exact first gradients as arrays."""

import numpy as np
import numpy.typing as npt

from dapolab.bandit import ArmBandit, Mode, Training, expected_gradient, parse_mode
from dapolab.scenario import MeanOnlyAdvantage, Objective, PpoClip, SeqMeanTokenMean

Floats = npt.NDArray[np.float64]

SHORT, LONG = 10.0, 100.0
"""Tokens of the two length classes (theory.md C4)."""
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
