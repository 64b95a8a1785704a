"""Seconds of a step behind the rollout, every part from its own rate.

All parts are proportional to tokens, fixed, or both; with a packing table the tokens are those that
the slowest rank carries. The rates are for ``measured_on_gpus`` GPUs and scale with those that the
learner has; what is fixed does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dapolab.rng import stream
from dapolab.scenario import ConfigError, Learner, Scenario
from dapolab.sim.packing import packed_seconds

PARTS = (
    "reward",
    "old_logprob",
    "reference",
    "update",
    "sync",
    "validation",
    "checkpoint",
    "other",
)
"""Names of the parts of a step behind the rollout, in order; fields of LearnerTime with ``_s``."""


@dataclass(frozen=True)
class LearnerTime:
    """Parts of one step behind the rollout, seconds; their sum is ``total_s``."""

    reward_s: float
    old_logprob_s: float
    reference_s: float
    update_s: float
    sync_s: float
    validation_s: float
    checkpoint_s: float
    other_s: float

    @property
    def total_s(self) -> float:
        """Seconds of all parts."""
        return float(sum(getattr(self, f"{name}_s") for name in PARTS))


NO_LEARNING = LearnerTime(*(0.0 for _ in PARTS))


def summed(times: Sequence[LearnerTime]) -> LearnerTime:
    """Return the parts added up over ``times``."""
    return LearnerTime(*(float(sum(getattr(t, f"{name}_s") for t in times)) for name in PARTS))


def learner_gpus(scenario: Scenario) -> int:
    """Return the GPUs that the learner computes on: its own, or the rollout's (colocated)."""
    hardware = scenario.hardware
    return scenario.learner.gpus or hardware.replicas * hardware.gpus_per_replica


def at_gpus(learner: Learner, n_gpus: int) -> Learner:
    """Return the learner as it runs on ``n_gpus``: seconds a token scale, fixed ones do not.

    Raises
    ------
    ConfigError
        Ranks of several GPUs that do not divide ``n_gpus``.
    """
    if learner.packing and n_gpus % learner.packing.gpus_per_rank:
        raise ConfigError(
            f"learner.packing.gpus_per_rank {learner.packing.gpus_per_rank} does not divide the "
            f"learner's {n_gpus} GPUs"
        )
    factor = (learner.measured_on_gpus or n_gpus) / n_gpus
    rates = ("old_logprob_s_per_token", "reference_s_per_token", "update_s_per_token")
    return learner.model_copy(update={rate: getattr(learner, rate) * factor for rate in rates})


def learner_time(
    learner: Learner,
    *,
    step: int,
    n_responses: int,
    n_train_tokens: int,
    skipped: bool,
    lengths: NDArray[np.int64] | None = None,
    n_gpus: int = 1,
    seed: int = 0,
    part: int = 0,
    n_parts: int = 1,
) -> LearnerTime:
    """Return the parts of step ``step`` (from 0); the rates are taken as they are (``at_gpus``).

    Parameters
    ----------
    n_responses : responses that were scored, those of groups that returned.
    n_train_tokens : prompt and response tokens of the trained batch.
    skipped : nothing was left to train: no pass, no update, no new weights (06-dapo).
    lengths : tokens of each trained response, prompt included; needed with a packing table.
    n_gpus : what the learner has; with a packing table its ranks follow from it.
    seed : names the noise of the step's seconds, where there is any.
    part, n_parts : of a batch that is fetched in parts: the updates are shared equally, what is
        paid once a step is paid with the last part.
    """
    last = part == n_parts - 1
    n_updates = learner.updates_per_step / n_parts
    factor = _noise(learner.noise_cv, seed, step, part)

    def passes(s_per_token: float) -> float:
        if skipped or s_per_token == 0.0:
            return 0.0
        if learner.packing is None:
            return factor * s_per_token * n_train_tokens
        if lengths is None:
            raise ValueError("a packing table needs the lengths of the trained responses")
        seconds = packed_seconds(
            lengths,
            packing=learner.packing,
            ranks=n_gpus // learner.packing.gpus_per_rank,
            n_updates=max(round(n_updates), 1),
            s_per_token=s_per_token,
        )
        return factor * seconds

    def due(every: int | None) -> bool:
        return last and every is not None and (step + 1) % every == 0

    fixed_s = 0.0 if skipped else factor * learner.update_fixed_s * n_updates
    return LearnerTime(
        reward_s=learner.reward_s_per_response * n_responses,
        old_logprob_s=passes(learner.old_logprob_s_per_token),
        reference_s=passes(learner.reference_s_per_token),
        update_s=passes(learner.update_s_per_token) + fixed_s,
        sync_s=learner.sync_s if last and not skipped else 0.0,
        validation_s=learner.validation_s if due(learner.validation_every) else 0.0,
        checkpoint_s=learner.checkpoint_s if due(learner.checkpoint_every) else 0.0,
        other_s=learner.fixed_s if last else 0.0,
    )


def _noise(cv: float, seed: int, step: int, part: int) -> float:
    """Return a Gamma factor of mean 1 and coefficient of variation ``cv``; exponential at 1."""
    if cv == 0.0:
        return 1.0
    shape = 1.0 / cv**2
    return float(stream(seed, "learner noise", step, part).gamma(shape, 1.0 / shape))
