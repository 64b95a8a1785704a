"""What holds for every policy over any sequence of groups, durations and limits."""

import math
from dataclasses import replace
from itertools import chain, repeat

from collector_play import Candidate, Left, Played, play, play_steps
from hypothesis import given
from hypothesis import strategies as st

from dapolab.rules import judge_group, keep_group, overlong_penalty
from dapolab.scenario import (
    AdaptiveWave,
    Budget,
    Chunked,
    ExactRefill,
    FilterNoRefill,
    NoFilter,
    OverProvision,
    Replace,
    Replenish,
    Rollout,
    Rounds,
    Streaming,
    VerlV1,
)

G = 4
candidates = st.builds(
    Candidate,
    n_correct=st.integers(0, G),
    duration_s=st.integers(1, 5).map(float),
    n_samples=st.just(G),
    n_tokens=st.integers(1, 50),
)
streams = st.lists(candidates, max_size=60)
targets = st.integers(1, 6)
budgets = st.builds(
    Budget,
    candidate_tokens=st.none() | st.integers(1, 800),
    train_tokens=st.none() | st.integers(1, 300),
)
policies = st.one_of(
    st.builds(NoFilter, budget=budgets),
    st.builds(FilterNoRefill, budget=budgets),
    st.builds(
        ExactRefill,
        max_candidate_multiplier=st.none() | st.integers(1, 4),
        at_cap=st.sampled_from(["partial", "error"]),
        max_waves=st.integers(1, 30),
        budget=budgets,
    ),
    st.builds(
        Rounds,
        gen_groups=st.none() | st.integers(1, 12),
        max_num_gen_batches=st.integers(-1, 6),
        at_max=st.sampled_from(["error", "stop", "original"]),
        rounds_past_max=st.integers(0, 1),
        examine_last=st.booleans(),
        surplus=st.sampled_from(["drop", "carry"]),
        max_waves=st.integers(1, 30),
        budget=budgets,
    ),
    st.builds(
        Replace,
        min_replace_ratio=st.floats(0, 1),
        max_sample_batches=st.integers(-1, 4),
        max_waves=st.integers(1, 30),
        budget=budgets,
    ),
    st.builds(
        AdaptiveWave,
        gen_groups=st.none() | st.integers(1, 12),
        min_groups=st.integers(1, 8),
        max_num_gen_batches=st.integers(-1, 6),
        max_waves=st.integers(1, 30),
        budget=budgets,
    ),
    st.builds(
        Replenish,
        min_in_flight=st.integers(0, 8),
        at_data_end=st.sampled_from(["drop", "train"]),
        max_candidates=st.integers(1, 40),
        budget=budgets,
    ),
    st.builds(
        Streaming,
        slots=st.none() | st.integers(1, 9),
        filter=st.booleans(),
        leftovers=st.sampled_from(["abort", "resume", "resume_with_kv"]),
        surplus=st.sampled_from(["drop", "carry"]),
        max_candidates=st.integers(1, 40),
        budget=budgets,
    ),
    st.builds(
        Chunked,
        over_sampling_batch_size=st.none() | st.integers(1, 9),
        fallback=st.booleans(),
        leftovers=st.sampled_from(["abort", "resume"]),
        max_candidates=st.integers(1, 40),
        budget=budgets,
    ),
    st.builds(OverProvision, eta=st.floats(1, 3), filter=st.booleans(), budget=budgets),
    st.builds(
        VerlV1,
        max_inflight_gen_batches=st.integers(1, 3),
        max_candidates=st.integers(1, 40),
        budget=budgets,
    ),
)
deadlines = st.just(math.inf) | st.integers(1, 20).map(float)


def rollout_of(n_target: int) -> Rollout:
    return Rollout(groups_per_step=n_target, group_size=G)


def is_mixed(group: Candidate) -> bool:
    return 0 < group.n_correct < group.n_samples


@given(policies, streams, targets, deadlines)
def test_every_step_ends_with_clean_books(
    config: object, groups: list[Candidate], n_target: int, deadline_s: float
) -> None:
    # The driver checks after every action: submitted = kept + dropped + aborted + in flight.
    played = play(config, groups, rollout=rollout_of(n_target), deadline_s=deadline_s)
    assert (played.stop is None) == (played.failure is not None)
    assert len(set(played.kept)) == len(played.kept)
    assert all(is_mixed(played.candidates[i]) for i in played.kept) or not _filters(config)
    assert all(
        is_mixed(played.candidates[i]) == (reason == "surplus")
        for i, reason in played.dropped.items()
        if _filters(config)
    )
    assert played.candidates == groups[: len(played.candidates)]
    if played.stop is not None and played.stop.reason == "full":
        assert len(played.trained) == n_target


def _filters(config: object) -> bool:
    """Whether only mixed groups are kept, and only degenerate ones dropped as such."""
    falls_back = getattr(config, "fallback", False) or getattr(config, "at_max", "") == "original"
    if isinstance(config, NoFilter) or falls_back:
        return False
    return bool(getattr(config, "filter", True))


@given(policies, streams, targets, deadlines)
def test_the_same_sequence_gives_the_same_step(
    config: object, groups: list[Candidate], n_target: int, deadline_s: float
) -> None:
    first, second = (
        play(config, groups, rollout=rollout_of(n_target), deadline_s=deadline_s) for _ in range(2)
    )
    assert first == second


@given(policies, streams, targets)
def test_steps_hand_over_what_they_do_not_settle(
    config: object, groups: list[Candidate], n_target: int
) -> None:
    # Every group that was submitted has one fate in one step, or is still there at the end.
    played = play_steps(config, iter(groups), rollout=rollout_of(n_target), n_steps=5)
    settled = sum(len(s.kept) + len(s.dropped) + len(s.aborted) for s in played)
    taken, before = 0, Left()
    for step in played:
        taken += len(step.candidates) - len(before.held) - len(before.cut)
        before = step.left
    if played[-1].failure is None:
        assert taken == settled + len(before.held) + len(before.cut)
    assert taken <= len(groups)
    trained = [one for step in played for one in step.trained]
    assert len(trained) <= len(groups)


def exact(groups: list[Candidate], n_target: int, multiplier: int) -> Played:
    endless = chain(groups, repeat(Candidate(n_correct=0, n_samples=G)))
    config = ExactRefill(max_candidate_multiplier=multiplier)
    return play(config, endless, rollout=rollout_of(n_target))


@given(streams, targets, st.integers(1, 5))
def test_exact_refill_is_one_at_a_time_sampling_in_waves(
    groups: list[Candidate], n_target: int, multiplier: int
) -> None:
    played = exact(groups, n_target, multiplier)
    hits = [i for i, group in enumerate(groups) if is_mixed(group)]
    cap = multiplier * n_target
    index_of_last = hits[n_target - 1] + 1 if len(hits) >= n_target else cap
    assert len(played.candidates) == min(index_of_last, cap)
    assert played.kept == [i for i in hits if i < cap][:n_target]
    assert len(played.submits) <= 1 + (multiplier - 1) * n_target
    assert played.submits == sorted(played.submits, reverse=True)
    assert played.n_dropped("surplus") == 0


@given(streams, targets, st.integers(1, 12))
def test_rounds_train_the_first_mixed_in_loader_order(
    groups: list[Candidate], n_target: int, gen_groups: int
) -> None:
    config = Rounds(gen_groups=gen_groups, max_num_gen_batches=0)
    played = play(config, groups, rollout=rollout_of(n_target))
    hits = [i for i, group in enumerate(groups) if is_mixed(group)]
    assert played.kept == hits[:n_target]
    if len(hits) >= n_target:
        n_waves = math.ceil((hits[n_target - 1] + 1) / gen_groups)
        assert len(played.submits) == n_waves
        assert played.n_dropped("surplus") == sum(i < n_waves * gen_groups for i in hits) - n_target


@given(streams, targets, st.data())
def test_durations_change_nothing_behind_a_barrier(
    groups: list[Candidate], n_target: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations([group.duration_s for group in groups]))
    others = [replace(g, duration_s=t) for g, t in zip(groups, shuffled, strict=True)]
    for config in (NoFilter(), FilterNoRefill(), ExactRefill(), Rounds()):
        first, second = (
            play(config, sequence, rollout=rollout_of(n_target)) for sequence in (groups, others)
        )
        assert (first.kept, first.dropped) == (second.kept, second.dropped)
        assert (first.submits, first.stop) == (second.submits, second.stop)


@given(streams, targets)
def test_replenish_pays_exactly_one_for_each_drop(groups: list[Candidate], n_target: int) -> None:
    endless = chain(groups, repeat(Candidate(n_correct=1, n_samples=G)))
    played = play(Replenish(), endless, rollout=rollout_of(n_target))
    assert len(played.kept) == n_target
    assert len(played.candidates) == n_target + played.n_dropped("degenerate")
    assert (played.aborted, played.n_dropped("surplus")) == ([], 0)


@given(streams, targets, st.integers(1, 9))
def test_streaming_keeps_every_slot_busy(
    groups: list[Candidate], n_target: int, slots: int
) -> None:
    endless = chain(groups, repeat(Candidate(n_correct=1, n_samples=G)))
    played = play(Streaming(slots=slots), endless, rollout=rollout_of(n_target))
    n_returned = n_target + len(played.dropped)
    # Each return was answered by one more group, but for those of the last instant.
    assert len(played.candidates) == slots + played.n_before_last
    assert len(played.aborted) == slots - (n_returned - played.n_before_last)


@given(st.lists(candidates, min_size=1, max_size=20), targets)
def test_over_provision_takes_the_first_to_finish(groups: list[Candidate], n_target: int) -> None:
    launched = math.ceil(1.5 * n_target)
    played = play(OverProvision(eta=1.5), groups, rollout=rollout_of(n_target))
    field = [(g.duration_s, i) for i, g in enumerate(groups[:launched]) if is_mixed(g)]
    assert played.kept == [i for _, i in sorted(field)][:n_target]


# ---------------------------------------------------------------------------- rules

finite = st.floats(-1e6, 1e6)


@given(finite, st.integers(2, 1100))
def test_copies_of_any_value_are_never_kept(value: float, n: int) -> None:
    assert judge_group([value] * n) == "constant"


@given(finite.filter(lambda v: abs(v) < 1e3), st.floats(1e-5, 10), st.integers(1, 40))
def test_a_real_spread_is_always_kept_in_any_place(value: float, spread: float, n: int) -> None:
    assert keep_group([value] * n + [value + spread])
    assert keep_group([value + spread] + [value] * n)


@given(st.integers(1, 500), st.data(), st.floats(0, 3), st.booleans())
def test_overlong_penalty_falls_from_zero_to_minus_factor(
    cap: int, data: st.DataObject, factor: float, clamp: bool
) -> None:
    buffer = data.draw(st.integers(0, cap))
    penalties = [
        overlong_penalty(n, cap_tokens=cap, buffer_tokens=buffer, factor=factor, clamp=clamp)
        for n in range(cap + 1)
    ]
    assert penalties[: cap - buffer + 1] == [0.0] * (cap - buffer + 1)
    assert penalties == sorted(penalties, reverse=True)
    if buffer:
        assert penalties[-1] == -factor
