"""Staleness controls as pure rules: how many groups may start, which are too old, which must train.

Each rule is that of the framework named in the control's table (dapolab/scenario/schedule.py).
"""

from dapolab.scenario import (
    Admission,
    AgeDrop,
    Collector,
    ConfigError,
    Control,
    FullyAsync,
    NoFilter,
    Pacing,
    Quota,
    Scenario,
    Streaming,
)
from dapolab.sim.pipe import Pipe


def room(schedule: FullyAsync, pipe: Pipe) -> int:
    """Return how many groups may be submitted now."""
    control, running = schedule.control, pipe.n_running
    match control:
        case Admission(staleness=eta) | Pacing(staleness=eta):
            most = (eta + pipe.version + 1) * pipe.groups_per_step
            left = most - (pipe.n_accepted + running)
        case AgeDrop(counts="running"):
            return max(ahead_groups(control, pipe.groups_per_step) - running, 0)
        case AgeDrop():
            on_the_way = running + pipe.n_ready
            return max(ahead_groups(control, pipe.groups_per_step) - on_the_way, 0)
        case Quota():
            fetches = schedule.fetches_per_step
            left = quota_groups(control, pipe.groups_per_step, fetches=fetches) - pipe.n_counted
    if control.max_running_groups is not None:
        left = min(left, control.max_running_groups - running)
    return max(left, 0)


def ahead_groups(control: AgeDrop, groups_per_step: int) -> int:
    """Return the groups that age-drop keeps on the way (TRL: max_staleness times the batch)."""
    return control.ahead_groups or groups_per_step * max(control.max_age, 1)


def quota_groups(control: Quota, groups_per_step: int, *, fetches: int) -> int:
    """Return verl's max_required_samples, int(required · (staleness + 1) · trigger).

    ``required`` are the groups of one fetch. The order matters: 10 · 1.15 · 10 is 115, 100 · 1.15 a
    hair less. (fully_async_rollouter.py. Fetches of unequal size, which verl has not, count whole.)
    """
    if groups_per_step % fetches:
        return int(groups_per_step * (control.staleness + 1.0))
    return int(groups_per_step // fetches * (control.staleness + 1.0) * fetches)


def oldest_trainable(control: Control, version: int) -> int:
    """Return the oldest version at submission that may still be trained by ``version``."""
    return version - control.max_age if isinstance(control, AgeDrop) else 0


def must_train_up_to(control: Control, version: int) -> int:
    """Return the version at submission up to which groups must train now; −1: none must."""
    return version - control.staleness if isinstance(control, Pacing) else -1


def runs_beside(collector: Collector) -> bool:
    """Say whether a collector makes sense without steps: no filter, or one judged group by group.

    What a streaming collector leaves to the next step has no meaning where no step ends.
    """
    if isinstance(collector, Streaming):
        ends = collector.leftovers == "abort" and collector.surplus == "drop"
        return ends and collector.max_age is None
    return isinstance(collector, NoFilter)


def filters(collector: Collector) -> bool:
    """Say whether degenerate groups are dropped."""
    return isinstance(collector, Streaming) and collector.filter


def check_pipeline(scenario: Scenario, schedule: FullyAsync) -> None:
    """Refuse settings under which the learner would wait for ever, or that nobody has.

    Raises
    ------
    ConfigError
        A collector other than ``none`` (no filter) and ``streaming`` (filter), a budget, a quota
        with a filter, more fetches than groups, or fewer groups on the way than one fetch takes.
    """
    collector, wanted = scenario.collector, scenario.rollout.groups_per_step
    if not runs_beside(collector):
        raise ConfigError(
            f'learner.schedule.kind "fully_async" collects without steps: collector.kind '
            f'"{collector.kind}" with these settings is not possible; use "none" (no filter) or '
            '"streaming" (filter) without leftovers, surplus and max_age'
        )
    if collector.budget != type(collector.budget)():
        raise ConfigError("collector.budget ends a step's collection; fully_async has no such end")
    if schedule.fetches_per_step > wanted:
        raise ConfigError(
            f"learner.schedule.fetches_per_step {schedule.fetches_per_step} exceeds "
            f"rollout.groups_per_step {wanted}"
        )
    control, largest = schedule.control, -(-wanted // schedule.fetches_per_step)
    if isinstance(control, Quota) and filters(collector):
        raise ConfigError(
            'learner.schedule.control.kind "quota" counts groups that a filter would drop: the '
            'learner would wait for ever (verl has no filter here); use collector.kind "none"'
        )
    if isinstance(control, AgeDrop) and control.counts == "running_and_ready":
        ahead = ahead_groups(control, wanted)
        if ahead < largest:
            raise ConfigError(
                f"learner.schedule.control.ahead_groups {ahead} is below the {largest} groups of "
                "one fetch: the learner would wait for ever"
            )
