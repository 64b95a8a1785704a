"""verl's rollout correction: what of it acts in which trainer (0.9.1)."""

from dapolab.check.reading import Reading

CORRECTION = "algorithm.rollout_correction"
LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
LOSS_CORRECTION = "actor_rollout_ref.actor.policy_loss.rollout_correction"
LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs"


def weights(reading: Reading) -> list[str]:
    """Return the corrections that are switched on: ``rollout_is``, ``rollout_rs`` or both."""
    found = []
    for name in ("rollout_is", "rollout_rs"):
        value = reading.text(f"{CORRECTION}.{name}")
        if value not in (None, "", "null", "False"):
            found.append(name)
    return found


def ignored_by_bypass(reading: Reading) -> list[str]:
    """Return the settings beside bypass mode that nobody reads.

    V1 puts the sampler's log-probs in the place of the old ones and keeps the configured loss
    (v1/trainer_base.py:1641-1648, 1766-1769). The other trainers change the loss to bypass_mode in
    their own configuration, in the first step (rollout_corr_helper.py:1141-1144), when the workers
    have long built theirs from a copy (engine_workers.py:593-643). A loss_mode bypass_mode that the
    file itself sets reads the actor's own table.
    """
    if reading.flag(f"{CORRECTION}.bypass_mode") is not True:
        return []
    reinforce = reading.text(f"{CORRECTION}.loss_type") == "reinforce"
    return weights(reading) + ["loss_type"] * reinforce


def words(reading: Reading) -> str:
    """Return the sampler correction that acts, in words; empty without one."""
    if reading.flag(f"{CORRECTION}.bypass_mode") is True or reading.flag(LOG_PROBS) is False:
        return ""
    shown = []
    for name in weights(reading):
        bound = reading.text(f"{CORRECTION}.{name}_threshold")
        kind = reading.text(f"{CORRECTION}.{name}")
        shown.append(f"{name} {kind}" + (f" up to {bound}" if bound else ""))
    return "sampler correction " + ", ".join(shown) if shown else ""
