"""verl V1's credits: hand-made sequences, a transcription of its rule, and what follows from it."""

import math
from itertools import chain, repeat

import pytest
from collector_play import MIXED, WRONG, Candidate, Played, play, stream
from hypothesis import given
from hypothesis import strategies as st

from dapolab.scenario import Budget, Rollout, Rounds, VerlV1

FOUR = Rollout(groups_per_step=4, group_size=8)


def end(played: Played) -> tuple[str, bool]:
    assert played.failure is None, played.failure
    assert played.stop is not None
    return played.stop.reason, played.stop.train


def test_a_full_first_batch_needs_nothing_more() -> None:
    played = play(VerlV1(), repeat(MIXED), rollout=FOUR)
    assert (played.submits, played.kept, end(played)) == ([4], [0, 1, 2, 3], ("full", True))


def test_an_evicted_group_buys_two_as_places_fall_free() -> None:
    groups = [WRONG, Candidate(4, 5.0), Candidate(4, 6.0), Candidate(4, 7.0)]
    played = play(VerlV1(), chain(groups, repeat(Candidate(4, 1.0))), rollout=FOUR)
    # t=1: #0 evicted, two credits, one free place: #4. t=2: #4 held, its place takes the second
    # credit: #5. t=3: #5 held; no credit is left. #1 at t=5 and #2 at t=6 make four and more.
    assert played.submits == [4, 1, 1]
    assert played.kept == [1, 2, 3, 4]
    assert played.dropped == {0: "degenerate", 5: "surplus"}
    assert (played.aborted, played.end_s) == ([], 7.0)  # nothing is cut off


def test_the_first_in_submission_order_are_trained_whoever_finished_first() -> None:
    groups = [Candidate(4, 9.0), WRONG, MIXED, MIXED, MIXED, MIXED]
    played = play(VerlV1(max_inflight_gen_batches=2), groups, rollout=FOUR)
    assert played.submits == [4, 2]
    assert played.kept == [0, 2, 3, 4]
    assert played.dropped == {1: "degenerate", 5: "surplus"}


def test_credits_lapse_once_the_batch_is_full() -> None:
    # #2 and #3 are bought by #1; #2 fills the batch, so #3, evicted later, buys nothing.
    two = Rollout(groups_per_step=2, group_size=8)
    groups = [Candidate(4, 1.0), Candidate(0, 2.0), Candidate(4, 1.0), Candidate(0, 4.0)]
    played = play(VerlV1(max_inflight_gen_batches=3), chain(groups, repeat(MIXED)), rollout=two)
    assert played.submits == [2, 2]
    assert played.kept == [0, 2]
    assert (played.dropped, played.end_s) == ({1: "degenerate", 3: "degenerate"}, 6.0)


@pytest.mark.parametrize(("n_batches", "second"), [(1, 4), (2, 8), (3, 8)])
def test_places_limit_what_credits_may_send(n_batches: int, second: int) -> None:
    config = VerlV1(max_inflight_gen_batches=n_batches)
    played = play(config, chain([WRONG] * 4, repeat(MIXED)), rollout=FOUR)
    assert played.submits == [4, second]


def test_groups_found_together_are_decided_on_together() -> None:
    # Told apart, the evicted #3 would have bought two more before #4 was seen.
    three = Rollout(groups_per_step=3, group_size=8)
    slow = Candidate(4, 2.0)
    groups = chain([slow, slow, WRONG, WRONG], repeat(MIXED))
    played = play(VerlV1(max_inflight_gen_batches=2), groups, rollout=three)
    assert (played.submits, played.end_s, played.kept) == ([3, 2], 2.0, [0, 1, 4])


def test_a_missing_number_keeps_the_group_as_its_std_is_not_zero() -> None:
    unscored = Candidate(4, spread=math.nan)
    played = play(VerlV1(), chain([unscored], repeat(MIXED)), rollout=FOUR)
    assert played.kept == [0, 1, 2, 3]


def test_a_guard_ends_what_verl_would_do_for_ever() -> None:
    config = VerlV1(max_candidates=40)
    failure = play(config, chain([MIXED], repeat(WRONG)), rollout=FOUR).failure
    assert failure is not None
    assert "max_candidates=40" in failure
    assert "kept 1 of 4 groups" in failure


def test_limits() -> None:
    slow = chain([MIXED, Candidate(4, 2.0)], repeat(Candidate(4, 50.0)))
    played = play(VerlV1(), slow, rollout=FOUR, deadline_s=10.0)
    assert (played.kept, played.aborted, end(played)) == ([0, 1], [2, 3], ("seconds", True))
    assert end(play(VerlV1(), stream("mmwm"), rollout=FOUR)) == ("data", True)
    assert end(play(VerlV1(), stream("mmmwm"), rollout=FOUR)) == ("full", True)
    assert end(play(VerlV1(), stream(""), rollout=FOUR)) == ("data", False)
    tokens = VerlV1(budget=Budget(candidate_tokens=300))
    assert end(play(tokens, stream("mwmm"), rollout=FOUR)) == ("candidate_tokens", True)
    trained = VerlV1(budget=Budget(train_tokens=200))
    assert end(play(trained, stream("mwmm"), rollout=FOUR)) == ("train_tokens", True)
    full = VerlV1(budget=Budget(train_tokens=400))
    assert end(play(full, stream("mmmm"), rollout=FOUR)) == ("full", True)


# ---------------------------------------------------------------------------- any sequence

groups_of_any_kind = st.lists(
    st.builds(
        Candidate,
        n_correct=st.sampled_from([0, 4, 8]),
        duration_s=st.floats(0.1, 9.0) | st.integers(1, 4).map(float),
    ),
    max_size=60,
)


def transcribed(groups: list[Candidate], *, n_target: int, places: int) -> tuple[list[int], float]:
    """Return the groups ever sent and the end of the step, by the rule in verl.md §5.2.

    One poll per instant at which groups finish.
    """
    running = [(groups[i].duration_s, i) for i in range(n_target)]
    n_sent, owed, n_good = n_target, 0, 0
    now_s = 0.0
    while running:
        now_s = min(running)[0]
        found = [i for end_s, i in running if end_s == now_s]
        running = [(end_s, i) for end_s, i in running if end_s > now_s]
        n_mixed = sum(0 < groups[i].n_correct < 8 for i in found)
        n_good += n_mixed
        owed += 2 * (len(found) - n_mixed)
        if n_good >= n_target:
            owed = 0
        for _ in range(min(owed, places - len(running))):
            running.append((now_s + groups[n_sent].duration_s, n_sent))
            n_sent += 1
            owed -= 1
    return list(range(n_sent)), now_s


@given(groups_of_any_kind, st.integers(1, 6), st.integers(1, 3))
def test_it_is_the_transcribed_rule(groups: list[Candidate], n_target: int, n_batches: int) -> None:
    endless = [*groups, *[Candidate(4, 1.0)] * 200]
    rollout = Rollout(groups_per_step=n_target, group_size=8)
    played = play(VerlV1(max_inflight_gen_batches=n_batches), endless, rollout=rollout)
    sent, end_s = transcribed(endless, n_target=n_target, places=n_batches * n_target)
    assert len(played.candidates) == len(sent)
    assert played.end_s == pytest.approx(end_s, abs=1e-9)
    assert played.aborted == []
    # Prompts of a step = batch + evicted + surplus (verl.md §5.2).
    n_lost = played.n_dropped("degenerate") + played.n_dropped("surplus")
    assert len(played.candidates) == n_target + n_lost


@given(groups_of_any_kind, st.integers(1, 6), st.integers(1, 3))
def test_it_trains_what_whole_rounds_train(
    groups: list[Candidate], n_target: int, n_batches: int
) -> None:
    """Lengths decide how many groups are sent, never which are trained."""
    endless = [*groups, *[MIXED] * 200]
    rollout = Rollout(groups_per_step=n_target, group_size=8)
    played = play(VerlV1(max_inflight_gen_batches=n_batches), endless, rollout=rollout)
    rounds = play(Rounds(max_num_gen_batches=0), endless, rollout=rollout)
    assert played.kept == rounds.kept
    # No more is sent than two for each evicted one.
    assert len(played.candidates) <= n_target + 2 * played.n_dropped("degenerate")
