"""What an update, and a clip, do to the entropy of a tabular softmax policy (D4, D5).

First order in the step; entropies in nats. With H the entropy and phi_a = pi_a (log pi_a + H),
raising arm a alone changes H by -phi_a per unit of logit.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dapolab.theory.arguments import require_not_negative
from dapolab.theory.clipping import ppo_multiplier
from dapolab.theory.quadrature import FloatArray


def _policy(policy_A: ArrayLike, *, name: str = "policy_A") -> FloatArray:
    pi = np.asarray(policy_A, dtype=np.float64)
    if pi.ndim != 1 or not np.all(pi > 0.0) or abs(pi.sum() - 1.0) > 1e-9:
        raise ValueError(f"{name} must be a row of probabilities above 0 that sum to 1")
    return pi


def _row(values_A: ArrayLike, *, name: str, n: int) -> FloatArray:
    values = np.asarray(values_A, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"{name} must hold one value for each of the {n} arms")
    return values


def entropy(policy_A: ArrayLike) -> float:
    """Return H = -sum pi log pi, nats."""
    pi = _policy(policy_A)
    return float(-(pi @ np.log(pi)))


def _phi(pi: FloatArray) -> FloatArray:
    return pi * (np.log(pi) - pi @ np.log(pi))


def entropy_change(policy_A: ArrayLike, *, logit_step_A: ArrayLike) -> float:
    """Return dH = -Cov_pi(log pi, dz) of a small step of the logits, nats (D4)."""
    pi = _policy(policy_A)
    return float(-(_phi(pi) @ _row(logit_step_A, name="logit_step_A", n=pi.size)))


def entropy_change_plain(policy_A: ArrayLike, *, advantage_A: ArrayLike) -> float:
    """Return dH per unit of learning rate of the expected plain gradient step (D4).

    -Cov(log pi, pi (A - E A)). For centred advantages it is -E_pi[phi A]; what is not centred is
    centred here, since the expected gradient is.
    """
    pi = _policy(policy_A)
    A = _row(advantage_A, name="advantage_A", n=pi.size)
    return entropy_change(pi, logit_step_A=pi * (A - pi @ A))


def entropy_change_natural(policy_A: ArrayLike, *, advantage_A: ArrayLike) -> float:
    """Return dH = -Cov_pi(log pi, A) per unit of learning rate of a natural-gradient step (D4).

    The covariance rule of the Entropy Mechanism (arXiv 2505.22617).
    """
    return entropy_change(policy_A, logit_step_A=advantage_A)


def entropy_change_sample(policy_A: ArrayLike, *, arm: int, advantage: float) -> float:
    """Return dH = -A (phi_a - phibar) of one REINFORCE sample of arm a, unit learning rate (D4).

    phibar = Cov(pi, log pi), never negative: a sample with A > 0 can raise H even where its arm
    has more than e^{-H}, and one of low probability always does.
    """
    pi = _policy(policy_A)
    if not 0 <= arm < pi.size:
        raise ValueError(f"arm must lie in 0..{pi.size - 1}, got {arm}")
    phi = _phi(pi)
    return float(-advantage * (phi[arm] - pi @ phi))


def entropy_raising_threshold(policy_A: ArrayLike) -> float:
    """Return e^{-H}: raising one arm's logit raises the entropy iff its probability is below (D4).

    One over the policy's perplexity.
    """
    return math.exp(-entropy(policy_A))


@dataclass(frozen=True)
class ClipBias:
    """Expected clipped step under rewards that say nothing, and its effect on H (D5).

    ``logit_step_A`` points back to the old policy; ``from_high`` and ``from_low`` are the parts of
    dH of the arms beyond either bound, per unit of learning rate, nats.
    """

    logit_step_A: FloatArray
    from_high: float
    from_low: float

    @property
    def entropy_change(self) -> float:
        """Effect of both bounds together, nats per unit of learning rate."""
        return self.from_high + self.from_low


def clip_bias(
    policy_A: ArrayLike,
    *,
    old_policy_A: ArrayLike,
    low: float,
    high: float,
    mean_abs_advantage: float,
) -> ClipBias:
    """Return the push of PPO's clip alone: symmetric advantages, independent of the arm (D5).

    Arms are drawn from the old policy, r = pi/pi_old, one inner step. Unclipped arms average to
    nothing; beyond 1 + high the negative half alone acts, below 1 - low the positive half:
    dH = E|A|/2 [sum over r > 1+high of pi (phi - phibar) - sum over r < 1-low of the same]. If all
    clipped arms have pi < e^{-H}, the upper clip lowers H and the lower one raises it (claim of
    arXiv 2509.26114); near-uniform policies break the condition and the sign.
    """
    pi, old = _policy(policy_A), _policy(old_policy_A, name="old_policy_A")
    if pi.shape != old.shape:
        raise ValueError(f"old_policy_A has {old.size} arms, policy_A {pi.size}")
    size = require_not_negative(mean_abs_advantage, name="mean_abs_advantage")
    ratio = pi / old
    signed = [ppo_multiplier(ratio, advantage=sign, low=low, high=high) for sign in (1.0, -1.0)]
    # E[m A | arm] from the two halves of A; 0 wherever neither is clipped.
    push = old * (signed[0] - signed[1]) * size / 2.0
    phi = _phi(pi)
    effect = -push * (phi - pi @ phi)
    return ClipBias(
        logit_step_A=push - push.sum() * pi,
        from_high=float(effect[ratio > 1.0 + high].sum()),
        from_low=float(effect[ratio < 1.0 - low].sum()),
    )
