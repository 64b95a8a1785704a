"""Where the tables of ``rollout.reward``, ``.failures`` and ``.tools`` can be played."""

from dapolab.scenario import ConfigError, Rollout, Scenario


def needs_service(rollout: Rollout) -> bool:
    """Whether anything befalls responses beside their tokens."""
    return any((rollout.reward, rollout.failures, rollout.tools))


def check_service(scenario: Scenario) -> None:
    """Refuse what is not modelled together, and where no response can come back.

    Raises
    ------
    ConfigError
        Groups that are cut in one step and resumed in the next; a fully asynchronous schedule in
        which every group fails, so that the learner would wait for ever.
    """
    if not needs_service(scenario.rollout):
        return
    collector = scenario.collector
    if collector.kind == "segments" or getattr(collector, "leftovers", "abort") != "abort":
        raise ConfigError(
            "rollout.reward, rollout.failures and rollout.tools are not modelled where unfinished "
            f'groups go on in the next step (collector.kind "{collector.kind}"); use '
            'leftovers = "abort", or another policy'
        )
    if scenario.learner.schedule.kind == "fully_async" and (why := _all_fail(scenario.rollout)):
        raise ConfigError(
            f"{why}: every group fails, and a fully asynchronous learner would wait for ever"
        )


def _all_fail(rollout: Rollout) -> str | None:
    """Return the setting under which no response ever comes back, None without one."""
    failures = rollout.failures
    if failures is not None and failures.probability == 1 and failures.on_failure != "fail_run":
        return "rollout.failures.probability 1"
    for name, law in (("reward", rollout.reward), ("tools", rollout.tools)):
        if law is None or law.timeout_s is None or law.on_timeout != "fail" or law.sigma > 0:
            continue
        if law.median_s > law.timeout_s and (failures is None or failures.on_failure != "fail_run"):
            return f"rollout.{name}.timeout_s {law.timeout_s:g} below its constant {law.median_s:g}"
    return None
