"""Seconds of a step after the rollout: colocated and synchronous, every part from its own rate."""

from dataclasses import dataclass

from dapolab.scenario import Learner

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


def learner_time(
    learner: Learner, *, step: int, n_responses: int, n_train_tokens: int, skipped: bool
) -> LearnerTime:
    """Return the parts of step ``step`` (from 0).

    Parameters
    ----------
    n_responses : responses that were scored, those of groups that returned.
    n_train_tokens : prompt and response tokens of the trained batch.
    skipped : nothing was left to train: no pass, no update, no new weights (06-dapo).
    """
    passes = 0 if skipped else n_train_tokens

    def due(every: int | None) -> bool:
        return every is not None and (step + 1) % every == 0

    return LearnerTime(
        reward_s=learner.reward_s_per_response * n_responses,
        old_logprob_s=learner.old_logprob_s_per_token * passes,
        reference_s=learner.reference_s_per_token * passes,
        update_s=learner.update_s_per_token * passes
        + (0.0 if skipped else learner.update_fixed_s * learner.updates_per_step),
        sync_s=0.0 if skipped else learner.sync_s,
        validation_s=learner.validation_s if due(learner.validation_every) else 0.0,
        checkpoint_s=learner.checkpoint_s if due(learner.checkpoint_every) else 0.0,
        other_s=learner.fixed_s,
    )
