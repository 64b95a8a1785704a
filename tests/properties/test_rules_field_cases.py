"""Field cases of filter, length and batch as whole kinds: B33, B39, B55, B56, B59 and D7."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.objective import advantages, shape_rewards
from dapolab.objective import overlong_penalty as tensor_penalty
from dapolab.rules import (
    batch_alignment,
    check_alignment,
    effective_updates,
    keep_group,
    overlong_penalty,
)
from dapolab.scenario import ConfigError, GrpoAdvantage, Length, OverlongPenalty

F = torch.float64
few = settings(deadline=None, max_examples=60)


# ---------------------------------------------------------------------------- filter


@few
@given(
    reward=st.floats(-1e3, 1e3),
    n=st.sampled_from([3, 16, 100, 1024]),
    spread=st.floats(1e-5, 1e3),
)
def test_b33_and_d7_many_copies_are_constant_and_one_other_is_not(reward, n, spread) -> None:
    """The group of 1024 copies that a float32 or float64 std keeps, and a spread of 1e-5."""

    def estimate(rewards: list[float], dtype: torch.dtype):
        return advantages(
            torch.tensor(rewards, dtype=dtype),
            GrpoAdvantage(eps=0.0),
            group=torch.zeros(len(rewards), dtype=torch.int64),
            mask=torch.ones(len(rewards), 1, dtype=dtype),
        )

    copies, other = [reward] * n, [reward] * (n - 1) + [reward + spread]
    for dtype in (torch.float32, F):
        found = estimate(copies, dtype)
        assert bool((found.value == 0).all())
        assert bool(found.constant.all())
    assert not keep_group(copies)
    assert keep_group(other)
    kept = estimate(other, F)
    assert not bool(kept.constant.any())
    # One of n apart: (1 − 1/n)·Δ over Δ/√n, whatever Δ is.
    assert kept.value[-1].item() == pytest.approx((n - 1) / math.sqrt(n), rel=1e-5)


# ---------------------------------------------------------------------------- batch


@few
@given(
    n=st.integers(0, 200),
    ranks=st.integers(1, 12),
    times=st.integers(1, 5),
    misfit=st.sampled_from(["pad", "trim", "stop"]),
)
def test_b39_every_update_divides_by_the_ranks_and_every_row_is_accounted_for(
    n, ranks, times, misfit
) -> None:
    mini = ranks * times
    if misfit == "stop" and n % ranks:
        with pytest.raises(ConfigError, match=f"{n} not divisible by {ranks}"):
            batch_alignment(n, n_ranks=ranks, mini_rows=mini, misfit=misfit)
        return
    found = batch_alignment(n, n_ranks=ranks, mini_rows=mini, misfit=misfit)
    assert found.n_rows + found.n_lost - found.n_padded == n
    assert max(found.n_lost, found.n_padded) < ranks
    assert min(found.n_lost, found.n_padded) == 0
    assert sum(found.mini_batches) == found.n_rows
    assert all(rows % ranks == 0 and 0 < rows <= mini for rows in found.mini_batches)
    assert len(found.mini_batches) == -(-found.n_rows // mini)
    assert bool(found.note) == bool(n % ranks)
    # Rows are lost by trimming alone, added by padding alone.
    assert not (misfit == "trim" and found.n_padded)
    assert not (misfit == "pad" and found.n_lost)


@few
@given(n_groups=st.integers(1, 20), group_size=st.integers(1, 20), ranks=st.integers(1, 20))
def test_b39_settings_that_never_fit_are_refused_at_launch(n_groups, group_size, ranks) -> None:
    fits = any(k * group_size % ranks == 0 for k in range(1, n_groups + 1))
    if fits:
        check_alignment(n_groups, group_size=group_size, n_ranks=ranks)
    else:
        with pytest.raises(ConfigError, match="no number of kept groups"):
            check_alignment(n_groups, group_size=group_size, n_ranks=ranks)


@few
@given(
    n=st.integers(1, 500),
    mini=st.integers(1, 500),
    epochs=st.integers(1, 4),
    rollouts=st.integers(0, 50),
)
def test_b55_updates_are_counted_one_by_one(n, mini, epochs, rollouts) -> None:
    per_rollout = 0
    for _ in range(epochs):
        left = n
        while left > 0:
            left -= mini
            per_rollout += 1
    found = effective_updates(n, mini_responses=mini, n_epochs=epochs, n_rollouts=rollouts)
    assert found.per_rollout == per_rollout
    assert found.off_policy == per_rollout - 1
    assert found.total == per_rollout * rollouts


# ---------------------------------------------------------------------------- length


@st.composite
def penalties(draw: st.DrawFn) -> tuple[int, int, int, float]:
    """Return cap, buffer, a length around them, and a factor."""
    cap = draw(st.integers(1, 400))
    buffer = draw(st.integers(0, cap))
    return cap, buffer, draw(st.integers(0, 2 * cap)), draw(st.floats(0, 3))


@few
@given(penalties())
def test_b56_and_b59_the_penalty_by_exact_fractions(drawn) -> None:
    """0 up to cap − buffer, −factor/buffer a token to the cap, then as the convention says."""
    cap, buffer, n, factor = drawn
    per_token = Fraction(factor) / buffer if buffer else None
    late = max(n - (cap - buffer), 0)
    if per_token is None:
        clamped = unclamped = -Fraction(factor) if late else Fraction(0)
    else:
        unclamped = -per_token * late
        clamped = -per_token * min(late, buffer)
    for beyond, right in (("clamped", clamped), ("unclamped", unclamped)):
        plain = overlong_penalty(
            n, cap_tokens=cap, buffer_tokens=buffer, factor=factor, clamp=beyond == "clamped"
        )
        config = OverlongPenalty(cap_tokens=cap, buffer_tokens=buffer, factor=factor, beyond=beyond)
        of_tensor = tensor_penalty(torch.tensor([n], dtype=F), config).item()
        assert plain == pytest.approx(float(right), rel=1e-12, abs=1e-15)
        assert of_tensor == pytest.approx(float(right), rel=1e-12, abs=1e-15)


@few
@given(drawn=penalties(), reward=st.sampled_from([-1.0, 0.0, 1.0]))
def test_b59_a_reward_of_zero_beyond_the_cap_is_by_name_alone(drawn, reward) -> None:
    cap, buffer, n, factor = drawn
    shaped = {}
    for beyond in ("clamped", "zero_reward"):
        penalty = OverlongPenalty(
            cap_tokens=cap, buffer_tokens=buffer, factor=factor, beyond=beyond
        )
        shaped[beyond] = shape_rewards(
            torch.tensor([reward], dtype=F),
            lengths=torch.tensor([n], dtype=F),
            truncated=None,
            config=Length(penalty=penalty),
        ).item()
    if n > cap:
        assert shaped["zero_reward"] == 0
        assert shaped["clamped"] == pytest.approx(reward - factor, abs=1e-12)
    else:
        assert shaped["zero_reward"] == shaped["clamped"]


@few
@given(cap=st.integers(1, 400), over=st.integers(1, 400))
def test_b56_a_buffer_beyond_the_cap_is_refused_wherever_it_is_set(cap, over) -> None:
    with pytest.raises(ConfigError, match="buffer"):
        overlong_penalty(1, cap_tokens=cap, buffer_tokens=cap + over)
    with pytest.raises(ValueError, match="buffer"):
        OverlongPenalty(cap_tokens=cap, buffer_tokens=cap + over)
