"""Rollout beside training against the closed forms of theory F, and the races A12 to A14.

Exact rows at 1e-9; the others within 4.5 standard errors of batch means, with a twin 5 % off that
must be rejected. Times are seconds; one iteration takes ``A_S``, so a mean answer takes about 1 s.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dapolab.scenario import Scenario, build
from dapolab.sim.run import SimRun, simulate
from dapolab.theory.collection import expected_rounds_time, first_finished, over_provision
from dapolab.theory.decode import expected_affine_time_s
from dapolab.theory.pipeline import (
    best_split,
    exponential_step_rate,
    fixed_cycle_s,
    fixed_staleness,
    gated_step_rate_bound,
    in_flight_mean,
    one_step_off_exponential_s,
    one_step_off_fixed_training_s,
    residual_mean,
    staleness_balance,
    streaming_staleness,
    sync_cycle_s,
)
from dapolab.theory.queueing import sojourn_identity
from dapolab.theory.sampling import rounds
from tests.listed_stream import ListedStream

ALLOWED = 4.5
TOKENS = 2000
A_S = 1.0 / TOKENS


def scenario(
    schedule: dict[str, Any],
    *,
    lengths: dict[str, Any] | None = None,
    groups: int = 1,
    size: int = 1,
    steps: int = 3000,
    collector: str | dict[str, Any] = "none",
    learner: dict[str, Any] | None = None,
    **hardware: Any,
) -> Scenario:
    return build(
        {
            "workload": {
                "kind": "independent",
                "lengths": lengths or {"kind": "exponential", "mean_tokens": float(TOKENS)},
                "pass_rate": {"kind": "p_mixed", "p_mixed": 0.5} if size > 1 else {"kind": "fixed"},
                "prompts": {"count": 500_000},
            },
            "rollout": {"groups_per_step": groups, "group_size": size, "cap_tokens": 10**6},
            "collector": {"kind": collector} if isinstance(collector, str) else collector,
            "hardware": {
                "law": {"kind": "affine", "a_s": A_S, "b_s": 0.0, "c_s": 0.0},
                "prefill": False,
                "slots": 4096,
            }
            | hardware,
            "learner": {"schedule": schedule, "gpus": 1} | (learner or {}),
            "run": {"steps": steps},
        }
    )


def run(config: Scenario, seed: int = 5) -> SimRun:
    done = simulate(config, seed=seed)
    assert done.ended == "completed"
    return done


def agrees(
    values: Any,
    expected: float,
    *,
    batches: int = 50,
    rounding: float = 0.0,
    known: Sequence[tuple[Any, float]] = (),
) -> bool:
    """Compare the mean of dependent steps with ``expected`` by batch means.

    ``known`` are columns whose mean is known: what their sample is off by is taken out by
    regression (control variates).
    """

    def batched(column: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        x = np.asarray(column, dtype=float)
        return np.asarray(x[len(x) % batches :].reshape(batches, -1).mean(axis=1))

    design = np.stack([np.ones(batches), *(batched(x) - mean for x, mean in known)], axis=1)
    found, *_ = np.linalg.lstsq(design, batched(values), rcond=None)
    residual = batched(values) - design @ found
    variance = residual @ residual / (batches - design.shape[1])
    se = math.sqrt(variance * np.linalg.inv(design.T @ design)[0, 0])
    return bool(abs(found[0] - expected) <= ALLOWED * se + rounding)


def stage_times(steps: pd.DataFrame, *, train_s: float) -> list[tuple[Any, float]]:
    """Both stages' own times, whose means are 1 s (half a token more) and ``train_s``."""
    rollout = steps["rollout/completion_tokens"] * A_S
    return [(rollout, 1.0 + A_S / 2), (steps["time/update_seconds"], train_s)]


def admission(staleness: int, **more: Any) -> dict[str, Any]:
    control = {"kind": "admission", "staleness": staleness}
    return {"kind": "fully_async", "control": control} | more


EXPONENTIAL_LEARNER = {"update_fixed_s": 1.0, "noise_cv": 1.0}

# ------------------------------------------------------------------------------- F1 to F3


def test_taking_turns_costs_the_sum() -> None:
    two = {"kind": "empirical", "tokens": [TOKENS // 2, 3 * TOKENS // 2]}
    config = scenario({"kind": "sync"}, lengths=two, learner={"update_fixed_s": 0.5}, steps=1500)
    cycle, expected = run(config).steps["time/step_seconds"], sync_cycle_s(1.0, train_s=0.5)
    assert agrees(cycle, expected)
    assert not agrees(cycle, 1.05 * expected)


@pytest.mark.parametrize(
    ("learner", "expected"),
    [
        ({"update_fixed_s": 1.5}, one_step_off_fixed_training_s(1.0, train_s=1.5)),
        (EXPONENTIAL_LEARNER, one_step_off_exponential_s(1.0, mean_train_s=1.0)),
    ],
)
def test_one_step_off_costs_the_longer(learner: dict[str, Any], expected: float) -> None:
    steps = run(scenario({"kind": "one_step_off"}, learner=learner, steps=2500)).steps
    inner = steps.iloc[1:-1]
    known = stage_times(inner, train_s=learner["update_fixed_s"])[: 1 + len(learner) // 2]
    cycle = inner["time/step_seconds"]
    assert agrees(cycle, expected, rounding=A_S, known=known)
    assert not agrees(cycle, 1.05 * expected, rounding=A_S, known=known)
    assert steps["staleness/mean_versions"].iloc[1:].eq(1.0).all()
    assert steps["staleness/mean_versions"].iloc[0] == 0.0


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
@pytest.mark.parametrize("train_s", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("slots", [1, 64])
def test_fixed_times_are_max_plus(staleness: int, train_s: float, slots: int) -> None:
    """F2 exactly: serial rollout (one slot) and unlimited (64), from an empty start."""
    constant = {"kind": "constant", "tokens": TOKENS}
    config = scenario(
        admission(staleness, queue="in_order"),
        lengths=constant,
        steps=49,
        slots=slots,
        learner={"fixed_s": train_s},
    )
    steps = run(config).steps
    first, last = 12, 48  # whole periods of η + 1 = 1, 2, 3 or 4 steps
    cycle = (steps["start_s"][last] - steps["start_s"][first]) / (last - first)
    serial = slots == 1
    expected = fixed_cycle_s(1.0, train_s=train_s, staleness=staleness, serial_rollout=serial)
    assert cycle == pytest.approx(expected, rel=1e-9)
    assert cycle != pytest.approx(1.05 * expected, rel=1e-9)
    if serial:  # from its first token on: a group that waits for the slot has not started
        oldest = fixed_staleness(1.0, train_s=train_s, staleness=staleness)
        assert steps["staleness/max_versions"].iloc[12:].eq(oldest).all()


@pytest.mark.parametrize(("staleness", "train_s"), [(0, 0.5), (1, 1.0), (3, 1.0)])
def test_exponential_times_are_a_closed_network(staleness: int, train_s: float) -> None:
    config = scenario(
        admission(staleness),
        steps=3000,
        slots=1,
        learner=EXPONENTIAL_LEARNER | {"update_fixed_s": train_s},
    )
    steps = run(config).steps
    cycle, known = steps["time/step_seconds"], stage_times(steps, train_s=train_s)
    expected = 1.0 / exponential_step_rate(1.0, train_per_s=1.0 / train_s, staleness=staleness)
    assert agrees(cycle, expected, rounding=A_S, known=known)
    assert not agrees(cycle, 1.05 * expected, rounding=A_S, known=known)


# ------------------------------------------------------------------------------- F4, F5

K, B = 64, 32
BUSY = {"kind": "age_drop", "max_age": 10_000, "ahead_groups": K, "counts": "running"}


@pytest.fixture(scope="module")
def stream() -> SimRun:
    """K answers always in flight; a batch of B comes every 0.5 s, the learner takes 0.45 s."""
    schedule = {"kind": "fully_async", "control": BUSY}
    return run(scenario(schedule, groups=B, learner={"fixed_s": 0.45}, steps=900, slots=K))


def test_mean_staleness_is_what_is_under_way(stream: SimRun) -> None:
    """F4's identity, per bump: K in flight plus the queue as the batch leaves it, over B."""
    steps, groups = stream.steps, stream.groups
    bumps = (steps["start_s"] + steps["time/step_seconds"]).to_numpy()
    end, trained = groups["end_s"].to_numpy(), groups["version_trained"].to_numpy()
    in_version = np.where(np.isnan(trained), np.inf, trained)
    ends, leaves = np.sort(end), np.sort(in_version)
    finished = np.searchsorted(ends, bumps, side="right")
    gone = np.searchsorted(leaves, np.arange(len(bumps)), side="right")
    queue = finished - gone  # had finished by the update, trains later
    mean = steps["staleness/mean_versions_by_response"].mean()
    expected = streaming_staleness(
        n_slots=K, batch_responses=B, mean_duration_s=1.0, queue_at_bumps=float(queue.mean())
    ).mean_versions
    assert mean == pytest.approx(expected, rel=0.005)  # the two ends of the run
    assert mean != pytest.approx(1.05 * expected, rel=0.005)


def test_staleness_balances_without_its_pairing(stream: SimRun) -> None:
    """F4 from event times alone, exactly."""
    steps, groups = stream.steps, stream.groups
    bumps = (steps["start_s"] + steps["time/step_seconds"]).to_numpy()
    version = groups["version_trained"].to_numpy()
    start = groups["submit_s"].to_numpy()
    opened = np.concatenate([[0.0], bumps])[np.nan_to_num(version).astype(int)]
    trained_s = np.where(np.isnan(version), np.inf, np.maximum(opened, start))
    done = np.isfinite(trained_s)
    balance = staleness_balance(start[done], trained_s=trained_s[done], bump_s=bumps)
    ours = (groups["version_trained"] - groups["version_submitted"]).sum()
    assert balance.total_staleness == balance.aged_at_bumps == ours


def test_long_answers_are_the_stale_ones(stream: SimRun) -> None:
    """F4's slope (K − 1)/(B·E[L]) where rollout is the bottleneck."""
    groups = stream.groups[stream.groups["step"].between(50, 850)]
    groups = groups[groups["status"] == "trained"]
    age = (groups["version_trained"] - groups["version_submitted"]).to_numpy()
    seconds = groups["n_tokens_mean"].to_numpy() * A_S
    block = np.arange(len(age)) * 40 // len(age)
    slopes = [np.polyfit(seconds[block == b], age[block == b], 1)[0] for b in range(40)]
    expected = streaming_staleness(n_slots=K, batch_responses=B, mean_duration_s=1.0)
    assert agrees(slopes, expected.slope_versions_per_s, batches=40)
    assert not agrees(slopes, 1.05 * expected.slope_versions_per_s, batches=40)
    rate = 1.0 / stream.steps["time/step_seconds"].iloc[50:].mean()
    assert rate == pytest.approx(expected.rollout_bound_step_rate, rel=0.02)


def test_what_is_in_flight_is_size_biased(stream: SimRun) -> None:
    """F5: an observer meets answers of 2·E[L], E[L] of them left, for exponential lengths."""
    groups = stream.groups
    start, end = groups["submit_s"].to_numpy(), groups["end_s"].to_numpy()
    tokens = groups["n_tokens_mean"].to_numpy()
    moments = {"mean": 1.0, "second_moment": 2.0}
    whole, left = [], []
    for at in np.random.default_rng(3).uniform(20.0, 0.9 * end.max(), size=1000):
        here = (start <= at) & (end > at)
        whole.append(tokens[here].mean() * A_S)
        left.append((end[here] - at).mean())
    rounding = A_S  # whole tokens leave half a token more
    for found, expected in ((whole, in_flight_mean), (left, residual_mean)):
        assert agrees(found, expected(**moments), rounding=rounding)
        assert not agrees(found, 1.05 * expected(**moments), rounding=rounding)


def test_carrying_work_over_trains_every_length(stream: SimRun) -> None:
    """A10's short bias (.595 with as many slots) is gone: what is trained is what is generated."""
    ratio = stream.steps["bias/length_ratio_total"]
    assert stream.steps["bias/length_trained"].mean() == pytest.approx(TOKENS, rel=0.02)
    assert ratio.eq(1.0).all()


def test_seconds_in_flight_are_conserved(stream: SimRun) -> None:
    """F7: ∫N dt of the steps is the sum of sojourns within them."""
    steps, groups = stream.steps, stream.groups
    stop = float(steps["start_s"].iloc[-1] + steps["time/step_seconds"].iloc[-1])
    start, end = (np.minimum(groups[name].to_numpy(), stop) for name in ("submit_s", "end_s"))
    identity = sojourn_identity(start, end_s=end)
    ours = (steps["engine/mean_concurrency"] * steps["time/step_seconds"]).sum()
    assert ours == pytest.approx(identity.integral_in_system, rel=1e-9)
    assert identity.relative_error < 1e-9


# ------------------------------------------------------------------------------- F6, the gate


@pytest.mark.parametrize(
    ("latency_s", "total", "best"), [(0.0, 8, 6), (0.5, 22, 17), (2.0, 17, 14)]
)
def test_a_split_gains_from_latency_alone(latency_s: float, total: int, best: int) -> None:
    """F6, one step off, fixed lengths: R = 3 s and T = 1 s on all GPUs, l that no GPU shortens."""
    tokens, groups = 1000, 20 * best
    law = {
        "kind": "affine",
        "a_s": latency_s / tokens,
        "b_s": 3.0 * total / (tokens * groups),
        "c_s": 0.0,
    }
    cycles = {}
    for n in (best - 1, best, best + 1):
        learner = {
            "gpus": total - n,
            "measured_on_gpus": total,
            "update_s_per_token": 1.0 / (groups * (tokens + 150)),
        }
        config = scenario(
            {"kind": "one_step_off"},
            lengths={"kind": "constant", "tokens": tokens},
            groups=groups,
            steps=4,
            learner=learner,
            law=law,
            replicas=n,
        )
        cycles[n] = run(config).steps["time/step_seconds"][1]
    theory = best_split(3.0, train_s=1.0, latency_s=latency_s)
    assert min(cycles, key=lambda n: cycles[n]) == best == round(theory.rollout_share * total)
    x = best / total
    assert cycles[best] == pytest.approx(max(latency_s + 3.0 / x, 1.0 / (1.0 - x)), rel=1e-9)
    if latency_s == 0.0:  # x = 6/8 exists: exactly what taking turns costs, nothing gained
        assert cycles[best] == pytest.approx(theory.colocated_cycle_s, rel=1e-9)
    else:
        assert theory.cycle_s <= cycles[best] < theory.colocated_cycle_s


@pytest.mark.parametrize("train_s", [0.2, 0.6])
@pytest.mark.parametrize("staleness", [0, 4])
def test_no_gate_is_faster_than_its_parts_allow(staleness: int, train_s: float) -> None:
    """min(1/T, K/(B·E[L]), (η+1)/(D+T)) bounds the step rate, with D the shortest a batch takes."""
    config = scenario(
        admission(staleness, queue="in_order"),
        groups=16,
        steps=300,
        slots=32,
        learner={"fixed_s": train_s},
    )
    done = run(config)
    # a batch lasts as long as its longest answer at least, and some of the slots are taken
    longest = done.steps["rollout/max_completion_tokens"].mean() * A_S
    bound = gated_step_rate_bound(
        rollout_s=longest,
        train_s=train_s,
        staleness=staleness,
        n_slots=32,
        mean_duration_s=done.steps["bias/length_trained"].mean() * A_S,
        batch_responses=16,
    )
    rate = 1.0 / done.steps["time/step_seconds"].mean()
    assert rate <= bound * 1.001
    assert rate >= 0.5 * bound


# ------------------------------------------------------------------------------- A12 to A14


def exponential_stream(monkeypatch: pytest.MonkeyPatch, *, q: float) -> None:
    rng = np.random.default_rng(11)
    tokens = np.ceil(rng.exponential(TOKENS, size=120_000)).astype(np.int64)
    mixed = (rng.random(len(tokens)) < q).astype(int)
    stream = ListedStream(np.stack([tokens, tokens], axis=1), mixed)
    monkeypatch.setattr("dapolab.sim.outset.prompt_stream", lambda *_, **__: stream)


def test_the_first_finished_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """A12's time of 8 candidates for 4, A13's kept durations given how many were mixed."""
    q, groups, launched = 0.5, 4, 8
    exponential_stream(monkeypatch, q=q)
    collector = {"kind": "over_provision", "eta": launched / groups}
    config = scenario({"kind": "sync"}, groups=groups, size=2, steps=3600, collector=collector)
    done = run(config)
    seconds = done.steps["time/rollout_seconds"]
    law = over_provision(
        lambda x: np.exp(-x), n_groups=groups, n_candidates=launched, p_mixed=q, cap=200.0
    )
    full = done.steps["rollout/effective_groups"] == groups
    assert agrees(seconds, law.expected_time, rounding=A_S)
    assert not agrees(seconds, 1.05 * law.expected_time, rounding=A_S)
    assert agrees(full, law.p_full)
    assert law.expected_time_if_full is not None
    assert agrees(seconds[full], law.expected_time_if_full, rounding=A_S)
    n_mixed = done.steps["rollout/mixed_candidate_groups"]
    for mixed in (5, 6):
        kept = done.steps["bias/length_trained"][n_mixed == mixed] * A_S
        expected = first_finished(mixed, n_kept=groups, mean_duration=1.0)
        assert agrees(kept, expected.expected_kept_duration, batches=25, rounding=A_S)
        assert not agrees(kept, 1.15 * expected.expected_kept_duration, batches=25, rounding=A_S)
        stop = seconds[n_mixed == mixed]
        assert agrees(stop, expected.expected_stop_time, batches=25, rounding=A_S)


def test_whole_rounds_cost_rounds_times_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A14 for 8 groups a round, 4 wanted, q = .4: E[R]·H_8 for exponential group durations."""
    exponential_stream(monkeypatch, q=0.4)
    collector = {"kind": "rounds", "gen_groups": 8, "max_num_gen_batches": 0}
    config = scenario({"kind": "sync"}, groups=4, size=2, steps=2600, collector=collector)
    steps = run(config).steps
    seconds = steps["time/rollout_seconds"]
    expected_rounds = rounds(0.4, n_groups=4, gen_groups=8, max_rounds=None).expected_rounds
    barrier = expected_affine_time_s(
        latency_tokens=sum(1 / j for j in range(1, 9)) * TOKENS,
        load_tokens=0.0,
        step_s=A_S,
        per_response_s=0.0,
    )
    expected = expected_rounds_time(expected_rounds, expected_round_max=barrier)
    known = [(steps["rollout/waves"], expected_rounds)]
    assert agrees(seconds, expected, rounding=2 * A_S, known=known)
    assert not agrees(seconds, 1.05 * expected, rounding=2 * A_S, known=known)
