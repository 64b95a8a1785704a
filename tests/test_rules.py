"""The recipe's rules against formulas, published probes and field cases."""

import math
from itertools import repeat

import numpy as np
import pytest

from dapolab.rules import (
    batch_alignment,
    check_alignment,
    effective_updates,
    judge_group,
    keep_group,
    kept_only_by_shaping,
    overlong_penalty,
    plan_epochs,
    shaped_reward,
    shaping_warning,
)
from dapolab.scenario import ConfigError

# ---------------------------------------------------------------------------- the group filter


@pytest.mark.parametrize(
    ("value", "n"),
    [(0.1, 3), (0.1, 7), (0.7, 6), (0.3, 10), (0.1, 1024), (-1.0, 16), (math.inf, 4)],
)
def test_b33_copies_of_one_value_are_dropped(value: float, n: int) -> None:
    assert judge_group([value] * n) == "constant"
    assert not keep_group([value] * n)


def test_b33_a_standard_deviation_would_have_kept_some_of_them() -> None:
    # The trap is real on this machine: numpy's std of equal floats is not 0.
    assert all(np.std([v] * n) > 0 for v, n in [(0.1, 3), (0.1, 7), (0.7, 6), (0.3, 10)])
    tenths = [k / 10 for k in range(41)]
    for n in (4, 6, 8, 16):
        assert not any(keep_group([v] * n) for v in tenths)


def test_d7_a_real_spread_is_kept_whatever_its_size() -> None:
    assert keep_group([0.5, 0.5 + 1e-5])
    assert keep_group([1.0, *[0.0] * 15])
    assert not keep_group([0.5, 0.5 + 1e-9])
    assert keep_group([0.5, 0.5 + 1e-9], tolerance=0.0)


def test_a_missing_metric_drops_the_group_under_its_own_name() -> None:
    assert judge_group([1.0, math.nan, 0.0]) == "missing"
    assert judge_group([math.nan]) == "missing"
    assert not keep_group([1.0, math.nan, 0.0])


def test_a_group_of_one_follows_its_setting() -> None:
    assert judge_group([0.7]) == "singleton"
    assert keep_group([0.7])
    assert not keep_group([0.7], singletons="drop")


def test_an_empty_group_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty group"):
        keep_group([])


@pytest.mark.parametrize(
    ("n", "share", "multiplier"),
    [(2, 0.298, 3.36), (4, 0.551, 1.815), (8, 0.799, 1.251), (16, 0.960, 1.042)],
)
def test_b40_informative_share(n: int, share: float, multiplier: float) -> None:
    p = 0.1819
    kept = sum(
        math.comb(n, k) * p**k * (1 - p) ** (n - k)
        for k in range(n + 1)
        if keep_group([1.0] * k + [0.0] * (n - k))
    )
    assert kept == pytest.approx(1 - p**n - (1 - p) ** n, abs=1e-12)
    assert kept == pytest.approx(share, abs=5e-4)
    assert 1 / kept == pytest.approx(multiplier, abs=5e-3)


def informative_z(*, p: float, claimed_p: float, n: int, n_groups: int) -> float:
    rng = np.random.default_rng(40)
    answers = rng.random((n_groups, n)) < p
    kept = np.mean([keep_group(row) for row in answers.astype(float).tolist()])
    q = 1 - claimed_p**n - (1 - claimed_p) ** n
    return float((kept - q) / math.sqrt(q * (1 - q) / n_groups))


def test_b40_bernoulli_groups_match_and_a_rate_five_percent_off_does_not() -> None:
    assert abs(informative_z(p=0.1819, claimed_p=0.1819, n=8, n_groups=20_000)) < 3
    assert abs(informative_z(p=0.1819 * 1.05, claimed_p=0.1819, n=8, n_groups=20_000)) > 4.5


# ---------------------------------------------------------------------------- shaping

LENGTHS = (50, 90, 95, 100)


def shaped(correct: bool) -> list[float]:
    return [shaped_reward(correct, n_tokens=n, cap_tokens=100, buffer_tokens=20) for n in LENGTHS]


@pytest.mark.parametrize("correct", [False, True])
def test_b34_shaping_alone_keeps_a_group(correct: bool) -> None:
    base = 1.0 if correct else -1.0
    raw = [base] * 4
    rewards = shaped(correct)
    assert rewards == pytest.approx([base, base - 0.5, base - 0.75, base - 1.0])
    assert not keep_group(raw)
    assert keep_group(rewards)
    advantages = (np.array(rewards) - np.mean(rewards)) / np.std(rewards, ddof=1)
    assert advantages == pytest.approx([1.3175, 0.1464, -0.4392, -1.0247], abs=5e-5)
    assert kept_only_by_shaping(raw, shaped=rewards)


def test_b34_the_warning_names_the_cause() -> None:
    warning = shaping_warning(3, n_kept=12)
    assert warning is not None
    assert "3 of 12 kept groups were kept only because of shaping" in warning
    assert shaping_warning(0, n_kept=12) is None


def test_a_mixed_group_or_a_constant_one_is_not_kept_by_shaping() -> None:
    assert not kept_only_by_shaping([1.0, -1.0], shaped=[1.0, -2.0])
    assert not kept_only_by_shaping([-1.0, -1.0], shaped=[-1.0, -1.0])
    with pytest.raises(ValueError, match="2 raw rewards but 1"):
        kept_only_by_shaping([1.0, 1.0], shaped=[1.0])


def test_overlong_penalty_as_probed_in_verl() -> None:
    # verl 0.9.1: cap 8, buffer 3; then a buffer as long as the cap.
    penalties = [overlong_penalty(n, cap_tokens=8, buffer_tokens=3) for n in (0, 1, 4, 5, 6, 7, 8)]
    assert penalties == pytest.approx([0, 0, 0, 0, -1 / 3, -2 / 3, -1], abs=1e-15)
    whole = [overlong_penalty(n, cap_tokens=8, buffer_tokens=8) for n in (1, 4, 8)]
    assert whole == pytest.approx([-0.125, -0.5, -1.0], abs=1e-15)
    assert overlong_penalty(8, cap_tokens=6, buffer_tokens=2, clamp=False) == -2.0
    assert overlong_penalty(8, cap_tokens=6, buffer_tokens=2) == -1.0


@pytest.mark.parametrize(
    ("n", "penalty"), [(0, 0), (80, 0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1), (150, -1)]
)
def test_b56_b59_overlong_values(n: int, penalty: float) -> None:
    assert overlong_penalty(n, cap_tokens=100, buffer_tokens=20) == pytest.approx(penalty)


def test_b56_factor_and_b59_without_a_clamp() -> None:
    assert overlong_penalty(90, cap_tokens=100, buffer_tokens=20, factor=0.5) == -0.25
    assert overlong_penalty(150, cap_tokens=100, buffer_tokens=20, clamp=False) == -3.5
    assert overlong_penalty(150, cap_tokens=100, buffer_tokens=20, factor=0.5) == -0.5


@pytest.mark.parametrize(("n", "penalty"), [(99, 0), (100, 0), (101, -1)])
def test_b56_no_buffer_is_a_step_at_the_cap(n: int, penalty: float) -> None:
    assert overlong_penalty(n, cap_tokens=100, buffer_tokens=0) == penalty
    assert overlong_penalty(n, cap_tokens=100, buffer_tokens=0, clamp=False) == penalty


@pytest.mark.parametrize("buffer_tokens", [120, -1])
def test_b56_a_buffer_outside_the_cap_is_refused(buffer_tokens: int) -> None:
    with pytest.raises(ConfigError, match="between 0 and the cap of 100"):
        overlong_penalty(50, cap_tokens=100, buffer_tokens=buffer_tokens)
    with pytest.raises(ConfigError, match="-5 tokens"):
        overlong_penalty(-5, cap_tokens=100, buffer_tokens=20)


def test_b59_final_rewards() -> None:
    def reward(correct: bool) -> float:
        return shaped_reward(correct, n_tokens=100, cap_tokens=100, buffer_tokens=20)

    assert (reward(True), reward(False)) == (0.0, -2.0)


# ---------------------------------------------------------------------------- updates and batches


def test_b55_paper_steps_are_gradient_updates() -> None:
    run = effective_updates(512 * 16, mini_responses=512, n_rollouts=230)
    assert (run.per_rollout, run.off_policy, run.total) == (16, 15, 3680)
    assert effective_updates(8192, mini_responses=512, n_rollouts=375).total == 6000


def test_b15_one_update_per_rollout_leaves_nothing_to_clip() -> None:
    assert effective_updates(512, mini_responses=512).off_policy == 0
    assert effective_updates(512, mini_responses=512, n_epochs=2).off_policy == 1
    assert effective_updates(513, mini_responses=512).per_rollout == 2
    with pytest.raises(ConfigError):
        effective_updates(0, mini_responses=512)


def test_b39_twenty_rows_on_eight_ranks() -> None:
    trim = batch_alignment(20, n_ranks=8, mini_rows=16, misfit="trim")
    assert (trim.n_rows, trim.n_lost, trim.mini_batches) == (16, 4, (16,))
    assert trim.note == "20 not divisible by 8: 4 rows lost"
    pad = batch_alignment(20, n_ranks=8, mini_rows=16, misfit="pad")
    assert (pad.n_rows, pad.n_padded, pad.n_lost, pad.mini_batches) == (24, 4, 0, (16, 8))
    with pytest.raises(ConfigError, match="20 not divisible by 8"):
        batch_alignment(20, n_ranks=8, mini_rows=16, misfit="stop")


def test_b39_a_batch_that_fits_is_left_alone() -> None:
    for misfit in ("pad", "trim", "stop"):
        fit = batch_alignment(32, n_ranks=8, mini_rows=16, misfit=misfit)  # type: ignore[arg-type]
        assert (fit.n_rows, fit.n_lost, fit.n_padded, fit.note) == (32, 0, 0, "")


def test_b39_settings_that_never_fit_fail_at_launch() -> None:
    with pytest.raises(ConfigError, match="12 rows never divides by 8"):
        batch_alignment(24, n_ranks=8, mini_rows=12, misfit="trim")
    check_alignment(8, group_size=4, n_ranks=8)
    with pytest.raises(ConfigError, match="no number of kept groups up to 4"):
        check_alignment(4, group_size=3, n_ranks=8)


# ---------------------------------------------------------------------------- the run as planned


def test_b42_the_bar_counts_generation_batches() -> None:
    plan = plan_epochs(960, gen_groups=96, groups_per_step=32, kept_by_wave=repeat(12))
    assert (plan.n_waves, plan.n_planned_steps, plan.n_steps) == (10, 10, 3)
    parts = (plan.n_filtered, plan.n_trained, plan.n_surplus, plan.n_unused)
    assert parts == (840, 96, 12, 12)
    assert sum(parts) == 960
    assert plan.schedule_share == pytest.approx(0.3)


def test_b42_a_partial_batch_crosses_the_epoch() -> None:
    plan = plan_epochs(960, gen_groups=96, groups_per_step=32, kept_by_wave=repeat(12), n_epochs=2)
    assert (plan.n_waves, plan.n_steps) == (20, 6)


def test_the_tail_of_an_epoch_is_not_sampled() -> None:
    plan = plan_epochs(100, gen_groups=30, groups_per_step=30, kept_by_wave=[30] * 6, n_epochs=2)
    assert (plan.n_waves, plan.n_steps, plan.n_not_sampled) == (6, 6, 20)
    assert plan.schedule_share == 1.0
    assert plan_epochs(5, gen_groups=30, groups_per_step=30, kept_by_wave=[]).schedule_share == 0.0


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot keep 97"):
        plan_epochs(96, gen_groups=96, groups_per_step=32, kept_by_wave=[97])
    with pytest.raises(ConfigError, match="1 waves given, the run has 2"):
        plan_epochs(192, gen_groups=96, groups_per_step=32, kept_by_wave=[12])
    with pytest.raises(ConfigError, match="must be positive"):
        plan_epochs(0, gen_groups=96, groups_per_step=32, kept_by_wave=[])
