"""Where the tables of ``rollout.reward``, ``.failures`` and ``.tools`` can be played."""

from dapolab.scenario import ConfigError, Rollout, Scenario


def needs_service(rollout: Rollout) -> bool:
    """Whether anything befalls responses beside their tokens."""
    return any((rollout.reward, rollout.failures, rollout.tools))


def check_service(scenario: Scenario) -> None:
    """Refuse what is not modelled together.

    Raises
    ------
    ConfigError
        Groups that are cut in one step and resumed in the next; a fully asynchronous schedule.
    """
    if not needs_service(scenario.rollout):
        return
    what = "rollout.reward, rollout.failures and rollout.tools"
    collector = scenario.collector
    if scenario.learner.schedule.kind == "fully_async":
        raise ConfigError(
            f'{what} are not modelled with learner.schedule.kind "fully_async"; '
            "learner.reward_s_per_response is scored beside its rollout"
        )
    if collector.kind == "segments" or getattr(collector, "leftovers", "abort") != "abort":
        raise ConfigError(
            f"{what} are not modelled where unfinished groups go on in the next step "
            f'(collector.kind "{collector.kind}"); use leftovers = "abort", or another policy'
        )
