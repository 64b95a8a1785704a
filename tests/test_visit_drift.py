"""Drift by a prompt's own visits: what is trained moves, from the next version on, and no more."""

from typing import Any

import numpy as np
import pytest
from scipy import special

from dapolab.scenario import Scenario, build
from dapolab.sim.run import SimRun, simulate
from dapolab.workload import marginals
from dapolab.workload.visits import Visits

N, B = 12, 4
BY_VISIT = {"logit_per_visit": 0.5, "log_tokens_per_visit": 0.25}
SCHEDULES: dict[str, dict[str, Any]] = {
    "sync": {},
    "one_step_off": {"schedule": {"kind": "one_step_off"}, "gpus": 1},
    "fully_async": {
        "schedule": {"kind": "fully_async", "control": {"kind": "admission", "staleness": 2}},
        "gpus": 1,
        "fixed_s": 40.0,
    },
}


def scenario(
    drift: dict[str, float],
    *,
    collector: dict[str, Any] | None = None,
    schedule: str = "sync",
    steps: int = 9,
    kind: str = "joint",
) -> Scenario:
    return build(
        {
            "workload": {"kind": kind, "prompts": {"count": N}, "drift": drift},
            "rollout": {"groups_per_step": B, "group_size": 4, "cap_tokens": 4000},
            "collector": collector or {"kind": "none"},
            "learner": SCHEDULES[schedule],
            "run": {"steps": steps},
        }
    )


def logits(run: SimRun) -> np.ndarray:
    """Return the logit pass rate of every group, by position."""
    return special.logit(run.groups.sort_values("position")["pass_rate"].to_numpy())


@pytest.mark.parametrize("kind", ["joint", "independent"])
def test_a_prompt_has_moved_once_for_each_epoch_before(kind: str) -> None:
    """N = 3·B and nothing is filtered: in epoch e every prompt was trained e times."""
    drift = BY_VISIT if kind == "joint" else {"logit_per_visit": 0.5}
    still, moving = (simulate(scenario(d, kind=kind), seed=3) for d in ({}, drift))
    epoch = np.arange(9 * B) // N
    assert logits(moving) - logits(still) == pytest.approx(0.5 * epoch)


def test_at_each_epochs_start_it_is_drift_by_step() -> None:
    """B/N of a visit a step; the first step of an epoch has the very same groups."""
    by_step = {"logit_per_step": 0.5 * B / N, "log_tokens_per_step": 0.25 * B / N}
    columns = ["pass_rate", "n_correct", "n_tokens_mean", "n_tokens_max", "n_truncated"]
    visit, step = (
        simulate(scenario(d), seed=3).groups.set_index("position").sort_index()[columns]
        for d in (BY_VISIT, by_step)
    )
    starts = [p for p in range(9 * B) if p % N < B]
    np.testing.assert_allclose(visit.loc[starts], step.loc[starts], rtol=1e-12)
    assert not np.allclose(visit["pass_rate"], step["pass_rate"])


def test_theory_after_whole_epochs() -> None:
    config = scenario(BY_VISIT | {"logit_per_step": 0.0})
    by_step = scenario({"logit_per_step": 0.5, "log_tokens_per_step": 0.25})
    size = {"group_size": 4, "cap_tokens": 4000}
    one, other = (
        marginals(config.workload, visits=3, **size),
        marginals(by_step.workload, trained_steps=3, **size),
    )
    assert one.mixed_probability == pytest.approx(other.mixed_probability, rel=1e-12)
    assert one.mean_tokens == pytest.approx(other.mean_tokens, rel=1e-12)
    still = marginals(config.workload, **size)
    assert abs(one.mixed_probability - still.mixed_probability) > 0.01


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["none", "streaming"])
def test_only_what_was_trained_before_its_version_has_moved(schedule: str, kind: str) -> None:
    """Every group's logit, counted from the groups that the run itself says it trained."""
    config = scenario({"logit_per_visit": 0.5}, collector={"kind": kind}, schedule=schedule)
    run = simulate(config, seed=5)
    still = scenario({}, collector={"kind": "none"}, steps=60)
    base = dict(zip(still_ids(still), logits(simulate(still, seed=5)), strict=True))
    groups = run.groups.sort_values("position")
    trained = groups[groups["status"] == "trained"]
    at = trained["step"].to_numpy()  # the update of step s makes version s + 1
    versions = versions_of(run, schedule)
    n_moved = 0
    for prompt, version, logit in zip(
        groups["prompt_id"].astype(int), versions, logits(run), strict=True
    ):
        visits = int(((trained["prompt_id"] == prompt) & (at < version)).sum())
        n_moved += visits > 0
        assert logit == pytest.approx(base[prompt] + 0.5 * visits)
    assert n_moved > 10


def still_ids(config: Scenario) -> list[int]:
    groups = simulate(config, seed=5).groups.sort_values("position")
    return groups["prompt_id"].astype(int).tolist()


def versions_of(run: SimRun, schedule: str) -> np.ndarray:
    """Return the updates behind the weights that each group began with, by position."""
    groups = run.groups.sort_values("position")
    if schedule == "fully_async":
        return groups["version_submitted"].to_numpy(dtype=int)
    steps = groups["step"].to_numpy(dtype=int)
    return np.asarray(np.maximum(steps - (schedule == "one_step_off"), 0))


def test_counts_by_version() -> None:
    visits = Visits(3)
    visits.add(np.array([0, 2, 2]), version=1)
    visits.add(np.array([2]), version=3)  # the second update trained nothing
    assert visits.before(0).tolist() == [0, 0, 0]
    assert visits.before(2).tolist() == [1, 0, 2]
    assert visits.before(3).tolist() == [1, 0, 3]
    assert visits.before(1).tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="version 3 is known already"):
        visits.add(np.array([1]), version=3)
