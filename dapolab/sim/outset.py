"""What every run starts from and what it ends in, whatever its schedule."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dapolab.collectors import draws_per_prompt
from dapolab.rng import seed_sequence
from dapolab.scenario import ConfigError, Hardware, Scenario
from dapolab.sim.cursor import AnyCursor, ChoosingCursor, PromptCursor, SelectingCursor
from dapolab.sim.dispatch_order import LongestFirst
from dapolab.sim.hardware import resolve
from dapolab.sim.replica import Engine
from dapolab.sim.score import ScoredStream, Scores
from dapolab.sim.selection import Mopps, new_selector
from dapolab.workload.model import PromptStream
from dapolab.workload.visits import Visits

COMPLETED = "completed"
DATA_EXHAUSTED = "data exhausted"


@dataclass(frozen=True)
class SimRun:
    """One replication of one policy.

    Attributes
    ----------
    steps : one row a step; columns are ``step, start_s, ended_by`` (the policy's stop reason, a
        budget among them) and metrics.STEP_METRICS; absent is NaN.
    groups : one row a group (metrics.GROUP_COLUMNS without policy and replication), those of a last
        step that an error or the end of the data left unlearned included; such a step has no row in
        ``steps``.
    waves : one row a barrier wave, likewise; empty without a barrier.
    responses : one row a response of the recorded steps (for Gantt and trace).
    ended : "completed", "data exhausted" or "failed: …"; the tables hold what came before.
    n_prompts_used : positions of the prompt stream consumed, dropped tails and skipped ones
        included.
    unlearned_s : seconds of that last, unlearned step; 0 where there is none.
    """

    steps: pd.DataFrame
    groups: pd.DataFrame
    waves: pd.DataFrame
    responses: pd.DataFrame
    ended: str
    n_prompts_used: int
    unlearned_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the policy itself ended the run with an error."""
        return self.ended.startswith("failed")


@dataclass(frozen=True)
class Outset:
    """Engine, prompts with their scores, and the walk through them, before the first submission.

    ``seed`` names the draws of this replication; ``longest_first`` is None where groups enter the
    engine in the order of their submission.
    """

    engine: Engine
    scores: Scores
    stream: ScoredStream
    cursor: AnyCursor
    seed: int
    longest_first: LongestFirst | None = None
    visits: Visits | None = None
    """To be told what is trained, where the workload drifts by visit."""


def set_out(scenario: Scenario, *, seed: int, replication: int) -> Outset:
    """Return the parts of a run; (seed, replication) name its draws.

    Raises
    ------
    ConfigError
        Semaphore and replicas that do not go together, a workload that cannot be drawn.
    """
    hardware = _with_semaphore(scenario)
    scores = Scores(scenario.rollout)
    state = seed_sequence(seed, "replication", replication).generate_state(1, np.uint64)
    draws = int(state[0]) >> 1
    prompts = prompt_stream(scenario, seed=draws)
    drift = getattr(scenario.workload, "drift", None)
    return Outset(
        engine=Engine(hardware, resolve(hardware)),
        scores=scores,
        stream=ScoredStream(
            prompts,
            scores,
            drifts=drift is not None and drift.moves,
        ),
        cursor=_cursor(scenario, prompts, seed=draws),
        visits=getattr(prompts, "visits", None),
        seed=draws,
        longest_first=(
            LongestFirst(sigma=scenario.rollout.predictor_sigma, seed=draws)
            if scenario.rollout.order == "longest_first"
            else None
        ),
    )


def _cursor(scenario: Scenario, prompts: PromptStream, *, seed: int) -> AnyCursor:
    count = prompts.n_prompts
    selector = new_selector(scenario.rollout.selection, n_prompts=count, seed=seed)
    if isinstance(selector, Mopps):
        return ChoosingCursor(prompts, selector)
    if selector is not None:
        return SelectingCursor(prompts, selector)
    return PromptCursor(
        n_available=prompts.n_available,
        count=count,
        drop_last=scenario.workload.prompts.drop_last,
    )


def gpus_held(scenario: Scenario) -> int:
    """Return the GPUs held for the whole run: the rollout's, and the learner's where it has own."""
    hardware = scenario.hardware
    return hardware.replicas * hardware.gpus_per_replica + (scenario.learner.gpus or 0)


def prompt_stream(scenario: Scenario, *, seed: int) -> PromptStream:
    """Return the scenario's stream of candidate groups under ``seed``."""
    return PromptStream(
        scenario.workload,
        group_size=draws_per_prompt(scenario.collector, group_size=scenario.rollout.group_size),
        cap_tokens=scenario.rollout.cap_tokens,
        seed=seed,
    )


def _with_semaphore(scenario: Scenario) -> Hardware:
    """Return the hardware with the policy's own limit on groups in flight, shared by replicas."""
    hardware = scenario.hardware
    n_groups = getattr(scenario.collector, "concurrent_groups", None)
    if n_groups is None:
        return hardware
    share, rest = divmod(n_groups, hardware.replicas)
    if rest or not share:
        raise ConfigError(
            f"collector.concurrent_groups {n_groups} must be a multiple of hardware.replicas "
            f"{hardware.replicas}: each replica admits an equal share"
        )
    limit = min(share, hardware.max_groups_in_flight or share)
    return hardware.model_copy(update={"max_groups_in_flight": limit})
