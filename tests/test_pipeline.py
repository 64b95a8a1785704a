"""The asynchronous learner: cases worked by hand, refusals, and whom a control leaves behind."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dapolab.compare import select_collectors
from dapolab.errors import ConfigError
from dapolab.scenario import Scenario, build
from dapolab.sim.control import room
from dapolab.sim.pipe import Pipe, Place
from dapolab.sim.residency import merged, peak_resident, resident_s
from dapolab.sim.run import SimRun, simulate
from dapolab.sim.trace import perfetto
from tests.listed_stream import ListedStream

A_S = 0.125


def scenario(
    schedule: dict[str, Any],
    *,
    groups: int = 4,
    size: int = 1,
    steps: int = 3,
    collector: str = "none",
    learner: dict[str, Any] | None = None,
    workload: dict[str, Any] | None = None,
    **hardware: Any,
) -> Scenario:
    return build(
        {
            "workload": workload or {"kind": "independent", "prompts": {"count": 10_000}},
            "rollout": {"groups_per_step": groups, "group_size": size, "cap_tokens": 100_000},
            "collector": {"kind": collector},
            "hardware": {
                "law": {"kind": "affine", "a_s": A_S, "b_s": 0.0, "c_s": 0.0},
                "prefill": False,
            }
            | hardware,
            "learner": {"schedule": schedule, "gpus": 2} | (learner or {}),
            "run": {"steps": steps},
        }
    )


def quota(staleness: float, **more: Any) -> dict[str, Any]:
    return {"kind": "fully_async", "control": {"kind": "quota", "staleness": staleness}} | more


class Listed:
    """Simulate with written-down lengths (in seconds), one answer a group."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(self, config: Scenario, seconds: list[float]) -> SimRun:
        size = config.rollout.group_size
        tokens = np.array([[round(s / A_S)] * size for s in seconds])
        stream = ListedStream(tokens, np.ones(len(seconds), dtype=int))
        self._patch.setattr("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream)
        return simulate(config, seed=0, record_steps=10)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Listed:
    return Listed(monkeypatch)


def update_s(done: SimRun) -> list[float]:
    return (done.steps["start_s"] + done.steps["time/step_seconds"]).tolist()


# ------------------------------------------------------------------ verl's modes a to d


def test_mode_a_takes_turns_on_own_gpus(listed: Listed) -> None:
    """Rollout 4 s, training 2 s, copy 0.5 s: nothing overlaps, nothing is old."""
    done = listed(scenario(quota(0.0), learner={"fixed_s": 2.0, "sync_s": 0.5}), [1, 2, 3, 4])
    assert update_s(done) == [6.5, 13.0, 19.5]
    assert (done.steps["staleness/mean_versions"] == 0).all()
    assert (done.steps["pipeline/learner_wait_seconds"] == 4.0).all()
    assert (done.steps["pipeline/learner_busy_share"] == 2.5 / 6.5).all()
    # (1 + 2 + 3 + 4) answer seconds in 6.5 s; the engine decodes for 4 of them
    assert done.steps["engine/mean_concurrency"].to_numpy() == pytest.approx(10 / 6.5)
    assert done.steps["pipeline/rollout_busy_share"].to_numpy() == pytest.approx(4 / 6.5)


def test_mode_b_trains_each_part_as_it_comes(listed: Listed) -> None:
    """Four parts of 0.5 s: the last begins with the longest answer."""
    learner = {"update_fixed_s": 0.5, "updates_per_step": 4, "sync_s": 0.5}
    done = listed(scenario(quota(0.0, fetches_per_step=4), learner=learner), [1, 2, 3, 4])
    assert update_s(done) == [5.0, 10.0, 15.0]
    assert (done.steps["staleness/max_versions"] == 0).all()
    assert (done.steps["time/update_seconds"] == 2.0).all()


def test_mode_c_waits_for_what_is_under_way(listed: Listed) -> None:
    """Quota 1: eight groups at once; the update waits for the long one until 10 s."""
    lengths = [1, 1, 1, 1, 1, 1, 1, 10, *[1] * 40]
    config = scenario(quota(1.0, weights="drained"), learner={"fixed_s": 2.0})
    done = listed(config, lengths)
    # batch 0 from 1 to 3 s; then the engine drains; batch 1 was there, one version old
    assert update_s(done) == [10.0, 12.0, 14.0]
    assert done.steps["staleness/mean_versions"].tolist() == [0.0, 1.0, 1.0]
    assert done.groups["version_submitted"].tolist()[:8] == [0] * 8


def test_mode_d_interrupts_what_is_under_way(listed: Listed) -> None:
    lengths = [1, 1, 1, 1, 1, 1, 1, 10, *[1] * 40]
    config = scenario(quota(1.0, kv="recomputed"), learner={"fixed_s": 2.0, "sync_s": 0.5})
    done = listed(config, lengths)
    # 1 + 2 + 0.5 s; four more start, so the second batch is three old ones and a fresh one
    assert update_s(done)[:2] == [3.5, 7.0]
    second = done.groups[done.groups["step"] == 1]
    assert sorted(second["version_submitted"]) == [0, 0, 0, 1]
    # the long one has stood still for every copy
    long = done.responses[done.responses["generated_tokens"] == round(10 / A_S)]
    assert long.empty or long["end_s"].iloc[0] == 10 + 0.5 * 3


def test_tokens_have_the_version_that_made_them(listed: Listed) -> None:
    """One answer of 4 s through updates at 1.5 and 3 s: 12 tokens of version 0, 12 of 1, 8 of 2."""
    control = {"kind": "admission", "staleness": 3}
    config = scenario(
        {"kind": "fully_async", "control": control}, groups=1, steps=3, learner={"fixed_s": 1.0}
    )
    done = listed(config, [4.0, 0.5, 0.5, 9.0, 9.0, 9.0, 9.0])
    assert update_s(done) == [1.5, 2.5, 5.0]
    old = done.groups.set_index("position").loc[0]
    assert (old["version_submitted"], old["version_trained"]) == (0, 2)
    # 12 tokens by 1.5 s, 20 by 2.5 s, 32 at the end: ages 2, 1, 0
    assert old["staleness_mean"] == (2 * 12 + 1 * 8) / 32
    step = done.steps.iloc[2]
    assert step["staleness/mean_versions"] == old["staleness_mean"]
    assert step["staleness/mean_versions_by_response"] == 2
    assert step["staleness/max_versions"] == 2
    assert step["staleness/off_policy_token_share"] == 20 / 32


# ------------------------------------------------------------------ one step off


def test_one_step_off_meets_at_the_boundary(listed: Listed) -> None:
    """Rollouts of 2, 3, 1, 4 s, training 2 s, copy 0.5 s, one batch of one."""
    config = scenario(
        {"kind": "one_step_off"}, groups=1, steps=4, learner={"fixed_s": 2.0, "sync_s": 0.5}
    )
    steps = listed(config, [2.0, 3.0, 1.0, 4.0]).steps
    # 2 s alone; then max(3, 2), max(1, 2), max(4, 2), each with a copy; the last trains alone
    assert steps["time/step_seconds"].tolist() == [2 + 3 + 0.5, 2.5, 4.5, 2.5]
    assert steps["time/rollout_seconds"].tolist() == [2, 3, 1, 4]
    assert steps["pipeline/learner_wait_seconds"].tolist() == [3.0, 0.0, 2.0, 0.0]
    assert steps["staleness/mean_versions"].tolist() == [0, 1, 1, 1]


def test_one_step_off_takes_any_collector() -> None:
    workload = {"kind": "independent", "pass_rate": {"kind": "p_mixed", "p_mixed": 0.5}}
    for kind in ("exact_refill", "rounds", "over_provision"):
        config = scenario(
            {"kind": "one_step_off"}, size=4, steps=20, collector=kind, workload=workload
        )
        beside = simulate(config, seed=1).steps
        apart = build(config.model_dump() | {"learner": {}})
        turns = simulate(apart, seed=1).steps
        same = ["rollout/candidate_groups", "rollout/completion_tokens", "time/rollout_seconds"]
        assert np.allclose(beside[same], turns[same])
        assert beside["time/gpu_seconds"].sum() > turns["time/gpu_seconds"].sum()


# ------------------------------------------------------------------ controls


def pipe_with(n_running: int, n_ready: int, *, version: int, groups_per_step: int) -> Pipe:
    pipe = Pipe(groups_per_step=groups_per_step)
    for _ in range(version):
        pipe.submit(groups_per_step)
        batch = range(pipe.n_submitted - groups_per_step, pipe.n_submitted)
        for group in batch:
            pipe.move(group, Place.READY)
        pipe.take(list(batch))
        for group in batch:
            pipe.move(group, Place.TRAINED)
        pipe.update()
    pipe.submit(n_running + n_ready)
    for group in range(pipe.n_submitted - n_ready, pipe.n_submitted):
        pipe.move(group, Place.READY)
    pipe.check()
    return pipe


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        # AReaL at η = 2, version 3, B = 8: (2 + 3 + 1)·8 − (3·8 + 5 + 4)
        ({"kind": "admission", "staleness": 2}, 48 - 33),
        ({"kind": "pacing", "staleness": 2, "max_running_groups": 6}, 2),
        ({"kind": "admission", "staleness": 0}, 0),
        # TRL: max_staleness 4 times the batch, less what is on the way
        ({"kind": "age_drop", "max_age": 4}, 32 - 9),
        ({"kind": "age_drop", "max_age": 4, "counts": "running"}, 32 - 4),
        # verl: int(8·1.3) − 9 counted since the update
        ({"kind": "quota", "staleness": 0.3}, 1),
    ],
)
def test_room_of_the_frameworks(control: dict[str, Any], expected: int) -> None:
    pipe = pipe_with(4, 5, version=3, groups_per_step=8)
    config = scenario({"kind": "fully_async", "control": control})
    schedule: Any = config.learner.schedule
    assert room(schedule, pipe) == expected


@pytest.mark.parametrize(
    ("groups", "fetches", "staleness", "expected"),
    [
        (512, 4, 0.5, 768),  # ppo_mini_batch_size 32, require_batches 4, trigger 4 (README)
        (512, 16, 0.1, 563),  # 32·1·1.1·16 = 563.2
        (100, 10, 0.15, 115),  # verl: int(10·1.15·10); int(100·1.15) would be 114
    ],
)
def test_quota_is_counted_as_verl_multiplies(
    groups: int, fetches: int, staleness: float, expected: int
) -> None:
    schedule: Any = scenario(
        quota(staleness, fetches_per_step=fetches), groups=groups
    ).learner.schedule
    assert room(schedule, Pipe(groups_per_step=groups)) == expected


def test_a_fetch_is_require_batches_mini_batches(listed: Listed) -> None:
    """Trigger 2, require_batches 3, mini-batches of one group: three updates of .5 s a fetch."""
    learner = {"update_fixed_s": 0.5, "updates_per_step": 6, "sync_s": 0.25}
    config = scenario(quota(0.0, fetches_per_step=2), groups=6, steps=2, learner=learner, slots=100)
    done = listed(config, [1, 2, 3, 4, 5, 6])
    # 3 groups at 3 s, 3 updates until 4.5 s; the others at 6 s, until 7.5 s; then one copy
    assert update_s(done) == [7.75, 15.5]
    assert (done.steps["time/update_seconds"] == 3.0).all()
    assert (done.steps["pipeline/learner_wait_seconds"] == 3.0 + 1.5).all()


HEAVY = {
    "kind": "independent",
    "lengths": {"kind": "lognormal", "median_tokens": 200.0, "sigma": 1.2},
    "prompts": {"count": 100_000},
}


def heavy(control: dict[str, Any], *, steps: int = 250) -> SimRun:
    schedule = {"kind": "fully_async", "control": control}
    config = scenario(schedule, groups=16, steps=steps, workload=HEAVY, learner={"fixed_s": 40.0})
    return simulate(config, seed=8)


def test_age_drop_starves_the_long_and_pacing_waits_for_them() -> None:
    """E[L] = 200·exp(.72) = 411 tokens; answers above 3 versions of 40 s are never trained."""
    mean = 200 * math.exp(1.2**2 / 2)
    dropping = heavy({"kind": "age_drop", "max_age": 2})
    groups = dropping.groups[dropping.groups["step"] < 250]
    stale, trained = (groups[groups["status"] == s]["n_tokens_mean"] for s in ("stale", "trained"))
    assert len(stale) > 100
    # who needs more than three versions, however slow they come, is too late
    assert trained.max() <= 3 * dropping.steps["time/step_seconds"].max() / A_S
    se = trained.std() / math.sqrt(len(trained))
    assert trained.mean() < mean - 4.5 * se
    assert dropping.steps["bias/length_ratio_total"].mean() < 0.95
    assert dropping.steps["bias/length_dropped"].mean() > 2 * mean
    pacing = heavy({"kind": "pacing", "staleness": 2})
    kept = pacing.groups[pacing.groups["status"] == "trained"]["n_tokens_mean"]
    assert abs(kept.mean() - mean) < 4.5 * kept.std() / math.sqrt(len(kept))
    assert not abs(kept.mean() - 1.4 * mean) < 4.5 * kept.std() / math.sqrt(len(kept))
    # … and pays for it in the learner's time
    wait = "pipeline/learner_wait_seconds"
    assert pacing.steps[wait].mean() > 2 * dropping.steps[wait].mean()


@pytest.mark.parametrize(
    ("queue", "positions", "ages"),
    [
        # two old ones come due when two young ones have been trained: the last is 2·2 − 1 old
        *[(queue, [0, 3, 1, 2], [0, 0, 2, 3]) for queue in ("fifo", "ready_first")],
        ("freshest_first", [0, 3, 1, 2], [0, 0, 2, 3]),
        # nothing young is trained before them
        *[(queue, [0, 1, 2, 3], [0, 1, 2, 2]) for queue in ("in_order", "weight_fifo")],
    ],
)
def test_worst_age_under_pacing(
    listed: Listed, queue: str, positions: list[int], ages: list[int]
) -> None:
    """η 2, B 1: of three groups at once two take 5 s, all others 1 s; training takes 0.5 s."""
    control = {"kind": "pacing", "staleness": 2}
    schedule = {"kind": "fully_async", "control": control, "queue": queue}
    config = scenario(schedule, groups=1, steps=4, learner={"fixed_s": 0.5})
    done = listed(config, [1.0, 5.0, 5.0, *[1.0] * 10])
    trained = done.groups[done.groups["status"] == "trained"]
    assert trained["position"].tolist() == positions
    assert (trained["version_trained"] - trained["version_submitted"]).tolist() == ages


def test_cancelling_saves_the_tokens_of_what_comes_too_late() -> None:
    late = {"kind": "age_drop", "max_age": 1, "ahead_groups": 64}
    let, cut = (heavy(late | {"cancel": cancel}, steps=80).steps for cancel in (False, True))
    assert cut["staleness/dropped_tokens"].sum() < let["staleness/dropped_tokens"].sum()
    wasted = cut["rollout/aborted_tokens"] + cut["staleness/dropped_tokens"]
    assert wasted.sum() < let["staleness/dropped_tokens"].sum()
    assert cut["rollout/aborted_groups"].sum() > 0


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("schedule", "collector", "says"),
    [
        ({}, "rounds", 'collector.kind "rounds" with these settings is not possible'),
        ({"control": {"kind": "quota"}}, "streaming", "verl has no filter here"),
        ({"fetches_per_step": 5}, "none", "exceeds rollout.groups_per_step 4"),
        (
            {"control": {"kind": "age_drop", "ahead_groups": 3}},
            "none",
            "ahead_groups 3 is below the 4 groups of one fetch",
        ),
    ],
)
def test_settings_that_would_wait_for_ever_are_refused(
    schedule: dict[str, Any], collector: str, says: str
) -> None:
    config = scenario({"kind": "fully_async"} | schedule, size=2, collector=collector)
    with pytest.raises(ConfigError, match=says):
        simulate(config, seed=0)


def test_a_budget_has_no_step_to_end() -> None:
    config = scenario({"kind": "fully_async"})
    budget = {"kind": "none", "budget": {"seconds": 10.0}}
    with pytest.raises(ConfigError, match=r"collector\.budget ends a step"):
        simulate(build(config.model_dump() | {"collector": budget}), seed=0)


@pytest.mark.parametrize("kind", ["one_step_off", "fully_async"])
def test_a_learner_beside_the_rollout_needs_gpus(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"learner\.gpus, how many are its own"):
        scenario({"kind": kind}, learner={"gpus": None})


def test_what_a_step_leaves_has_no_meaning_without_steps() -> None:
    config = scenario({"kind": "fully_async"}, size=2)
    carry = {"kind": "streaming", "leftovers": "resume"}
    with pytest.raises(ConfigError, match="without leftovers, surplus and max_age"):
        simulate(build(config.model_dump() | {"collector": carry}), seed=0)


def test_compare_takes_what_runs_without_steps() -> None:
    config = scenario({"kind": "fully_async"}, size=2)
    assert list(select_collectors(config, "all")) == ["none", "streaming"]
    unfiltered = {"kind": "streaming", "filter": False}
    done = simulate(build(config.model_dump() | {"collector": unfiltered}), seed=0)
    assert not done.steps["rollout/degenerate_groups"].any()


def test_an_unknown_control_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="age_drop"):
        scenario({"kind": "fully_async", "control": {"kind": "agedrop"}})


# ------------------------------------------------------------------ tables and time


def test_a_trace_of_a_pipeline_can_be_written() -> None:
    done = simulate(scenario({"kind": "fully_async"}), seed=0, record_steps=3)
    events = perfetto(done, name="async")["traceEvents"]
    assert all(math.isfinite(e.get("ts", 0.0)) and e.get("dur", 0.0) >= 0 for e in events)
    assert sum(e["ph"] == "X" and e["pid"] > 0 for e in events) == len(done.responses)


def test_residency_against_a_plain_count() -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        begin = rng.integers(0, 40, size=12).astype(float)
        end = begin + rng.integers(0, 15, size=12)
        edges = np.unique(rng.integers(0, 60, size=6)).astype(float)
        ticks = np.arange(60)
        n_at = ((begin[:, None] <= ticks) & (end[:, None] > ticks)).sum(axis=0)
        inside = [(ticks >= a) & (ticks < b) for a, b in pairwise(edges)]
        expected = [n_at[which].sum() for which in inside]
        assert resident_s(begin, end, edges) == pytest.approx(expected)
        assert peak_resident(begin, end, edges).tolist() == [n_at[which].max() for which in inside]
        lo, hi = merged(begin, end)
        assert resident_s(lo, hi, edges) == pytest.approx([(n_at[w] > 0).sum() for w in inside])
