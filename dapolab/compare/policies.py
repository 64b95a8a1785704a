"""Which policies to compare, and their runs on common random numbers."""

import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from joblib import delayed

from dapolab.collectors import draws_per_prompt
from dapolab.processes import in_processes
from dapolab.scenario import (
    COLLECTOR_KINDS,
    COLLECTOR_PRESETS,
    Budget,
    Collector,
    ConfigError,
    JointWorkload,
    ReplayWorkload,
    Scenario,
    check,
)
from dapolab.sim.control import runs_beside
from dapolab.sim.run import SimRun, simulate
from dapolab.workload.fit import read_draws, with_draw
from dapolab.workload.model import n_prompts_of


def select_collectors(scenario: Scenario, names: str | None) -> dict[str, Collector]:
    """Return the policies to compare, the scenario's own first.

    Parameters
    ----------
    names : comma-separated kinds, presets (policies named after the framework that runs them) or
        names of ``[alternatives]``; "all" for every kind, every alternative and every preset that
        is no kind's default; absent: the scenario's own, its alternatives, else every kind. A kind
        has its default settings, and like a preset the budget of the scenario's own policy. What
        the recorded groups of a replay are too few for, or an asynchronous learner has no steps
        for, is left out where it was not asked for.

    Raises
    ------
    ConfigError
        A name that is neither a kind nor an alternative; an alternative that is named like the
        scenario's own policy, so that one of the two would have to go.
    """
    own: dict[str, Collector] = {scenario.collector.kind: scenario.collector}
    if scenario.alternatives.get(scenario.collector.kind, scenario.collector) != scenario.collector:
        raise ConfigError(
            f"[alternatives.{scenario.collector.kind}] has the name of the scenario's own policy "
            "(its collector.kind); give it another name"
        )
    budget = scenario.collector.budget
    kinds: dict[str, Collector] = {kind: _default(kind, budget) for kind in COLLECTOR_KINDS}
    presets = {name: _default(name, budget) for name in COLLECTOR_PRESETS}
    named = scenario.alternatives | own
    if names is None:
        return own | (dict(scenario.alternatives) or _playable(scenario, kinds) | own)
    if names == "all":
        new = {name: one for name, one in presets.items() if one not in kinds.values()}
        return own | _playable(scenario, kinds | new) | named
    known = presets | kinds | named
    chosen = dict(own)
    for name in (part.strip() for part in names.split(",")):
        if name not in known:
            near = difflib.get_close_matches(name, [*known, "all"], n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"--collectors: {name!r} is not one of {', '.join(known)}, all; nearest: {near!r}"
            )
        chosen[name] = known[name]
    return chosen


def _default(kind: str, budget: Budget) -> Collector:
    scenario = check(Scenario, {"collector": {"kind": kind}}, where=kind)
    return scenario.collector.model_copy(update={"budget": budget})


def _playable(scenario: Scenario, collectors: dict[str, Collector]) -> dict[str, Collector]:
    """Leave out policies that the schedule cannot run, or a replay has too few responses for."""
    workload, rollout = scenario.workload, scenario.rollout
    if scenario.learner.schedule.kind == "fully_async":
        collectors = {n: one for n, one in collectors.items() if runs_beside(one)}
    if not isinstance(workload, ReplayWorkload):
        return collectors

    def has_enough(collector: Collector) -> bool:
        n = draws_per_prompt(collector, group_size=rollout.group_size)
        if n == rollout.group_size:
            return True
        try:
            n_prompts_of(workload, group_size=n, cap_tokens=rollout.cap_tokens)
        except ConfigError:
            return False
        return True

    return {name: one for name, one in collectors.items() if has_enough(one)}


def run_policies(
    scenario: Scenario,
    collectors: Mapping[str, Collector],
    *,
    seed: int,
    n_jobs: int | None = None,
    record_steps: int = 1,
    on_done: Callable[[], None] | None = None,
    scenario_of: Callable[[int], Scenario] | None = None,
) -> dict[tuple[str, int], SimRun]:
    """Simulate every policy in every replication; the same replication has the same draws.

    ``scenario_of(replication)`` supplies the scenario of a replication where the workload itself is
    uncertain (a fit's draws); every policy gets the same one.
    """
    tasks = []
    for replication in range(scenario.run.replications):
        base = scenario_of(replication) if scenario_of else scenario
        for name, collector in collectors.items():
            one = base.model_copy(update={"collector": collector})
            first = replication == 0
            tasks.append((name, replication, one, record_steps if first else 0, first))
    runs = _in_parallel(tasks, seed=seed, n_jobs=n_jobs)
    done = {}
    for name, replication, run in runs:
        done[name, replication] = run
        if on_done:
            on_done()
    return done


def _one(
    name: str, replication: int, scenario: Scenario, record: int, groups: bool, seed: int
) -> tuple[str, int, SimRun]:
    run = simulate(
        scenario, seed=seed, replication=replication, record_steps=record, keep_groups=groups
    )
    return name, replication, run


def _in_parallel(
    tasks: Sequence[tuple[str, int, Scenario, int, bool]], *, seed: int, n_jobs: int | None
) -> Iterator[tuple[str, int, SimRun]]:
    """Run the tasks; the first one here, so that workers find the compiled kernel in its cache."""
    first, *rest = tasks
    yield _one(*first, seed)
    jobs = n_jobs or min(os.cpu_count() or 1, 8)
    if jobs == 1 or len(rest) < 8:
        for task in rest:
            yield _one(*task, seed)
        return
    work = (delayed(_one)(*task, seed) for task in rest)
    yield from in_processes(work, n_jobs=jobs, ordered=False, batch_size=1)


def scenarios_with_draws(scenario: Scenario) -> Callable[[int], Scenario] | None:
    """Return replication -> scenario with its own draw of the fitted parameters; None without.

    Raises
    ------
    ConfigError
        ``workload.draws`` names a file that is missing or no table of draws.
    """
    workload = scenario.workload
    if not isinstance(workload, JointWorkload) or workload.draws is None:
        return None
    draws = read_draws(workload.draws)

    def drawn(replication: int) -> Scenario:
        one = with_draw(workload, draws, number=replication)
        return scenario.model_copy(update={"workload": one})

    return drawn
