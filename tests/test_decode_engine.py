"""The engine's face on cases small enough to work out by hand: iterations of one second."""

import numpy as np
import pytest

from dapolab.scenario import ConfigError, Hardware
from dapolab.sim.hardware import Law
from dapolab.sim.replica import STATUS_NAMES, Engine

SECOND = Law(1.0, (0.0, 1.0), (0.0, 0.0), 0.0)
PREFILL = Law(1.0, (0.0, 1.0), (0.0, 0.0), 0.0, prefill_s=0.125)


def engine_of(law=SECOND, **settings):
    return Engine(Hardware(**{"prefill": False, "prefix_cache": False, **settings}), law)


def submit(engine, lengths, *, prompt=0, labels=None):
    n = len(lengths)
    return engine.submit(
        at_s=engine.now_s,
        group_P=range(n) if labels is None else labels,
        prompt_tokens_P=np.full(n, prompt),
        n_tokens_PG=lengths,
    )


def status(engine):
    return [STATUS_NAMES[k] for k in engine.facts().status]


def test_groups_are_returned_as_they_finish_and_together_at_one_instant():
    engine = engine_of()
    assert submit(engine, [[1, 3], [2, 2], [3, 1]]) == 0
    assert (engine.n_groups_in_flight, engine.n_responses_in_flight) == (3, 6)
    at, groups = engine.advance()
    assert (at, groups.tolist()) == (2.0, [1])
    assert engine.advance(2.5) is None
    assert engine.now_s == 2.5
    at, groups = engine.advance()
    assert (at, groups.tolist()) == (3.0, [0, 2])
    assert engine.advance() is None
    assert engine.now_s == 3.0
    assert engine.group_end_s().tolist() == [3.0, 2.0, 3.0]


def test_what_is_submitted_at_a_finish_starts_at_that_boundary():
    engine = engine_of(slots=1)
    submit(engine, [[2], [5]])
    assert engine.advance().at_s == 2.0
    submit(engine, [[1]])
    engine.drain()
    facts = engine.facts()
    assert facts.admit_s.tolist() == [0.0, 2.0, 7.0]
    assert facts.first_token_s.tolist() == [1.0, 3.0, 8.0]
    assert facts.end_s.tolist() == [2.0, 7.0, 8.0]
    assert facts.concurrency_s.tolist() == [8.0]
    assert facts.peak_running.tolist() == [1]


def test_a_submission_ahead_waits_for_its_time_and_starts_an_idle_replica_at_once():
    engine = engine_of()
    engine.submit(
        at_s=np.array([0.5, 4.25]), group_P=[0, 1], prompt_tokens_P=[0, 0], n_tokens_PG=[[2], [1]]
    )
    engine.drain()
    assert engine.facts().end_s.tolist() == [2.5, 5.25]
    assert engine.facts().busy_s.tolist() == [3.0]


def test_the_first_member_pays_the_prompt_and_the_others_wait_for_it():
    # 16 prompt tokens in chunks of 8: two iterations of 1 + 8/8 s; then one token a second.
    engine = engine_of(PREFILL, prefill=True, prefix_cache=True, token_budget=8)
    submit(engine, [[1, 3]], prompt=16)
    engine.drain()
    facts = engine.facts()
    assert facts.first_token_s.tolist() == [4.0, 4.0]
    assert facts.end_s.tolist() == [4.0, 6.0]
    assert facts.prefill_s.tolist() == [2.0]
    assert facts.peak_kv_tokens.tolist() == [18]  # the prompt once, and two tokens of the last


def test_the_newest_is_evicted_and_prefills_prompt_and_generated_again():
    engine = engine_of(PREFILL, prefill=True, kv_capacity_tokens=16)
    submit(engine, [[8], [8]], prompt=4)
    engine.drain()
    facts = engine.facts()
    # Iteration 1 (8 prompt tokens: 2 s) gives the first tokens; each then grows by one a second.
    # At the boundary where 2·(4 + g) > 16, that is g = 5, the second is evicted: t = 2 + 4 = 6.
    # The first ends 3 s later; the second then prefills 4 + 5 tokens: 1 + 9/8 s, and 2 more.
    assert facts.n_preemptions.tolist() == [0, 1]
    assert facts.end_s.tolist() == [9.0, 9.0 + 2.125 + 2.0]


def test_an_abort_acts_at_the_boundary_and_what_ends_there_has_finished():
    engine = engine_of(slots=2)
    submit(engine, [[3], [9], [9]])
    assert engine.advance(2.5) is None
    engine.abort(at_s=2.5)
    assert engine.advance().groups.tolist() == [0]
    assert engine.advance() is None
    facts = engine.facts()
    assert status(engine) == ["finished", "aborted", "aborted"]
    assert facts.end_s.tolist() == [3.0, 3.0, 2.5]
    assert facts.generated_tokens.tolist() == [3, 3, 0]
    assert engine.n_responses_in_flight == 0


@pytest.mark.parametrize(("keep_kv", "end"), [(True, 11.0 + 5.0), (False, 11.0 + 2.75 + 4.0)])
def test_resumed_responses_decode_on_or_prefill_again(keep_kv, end):
    law = Law(1.0, (0.0, 1.0), (0.0, 0.0), 0.0, prefill_s=0.25)
    engine = Engine(Hardware(prefix_cache=False), law)
    submit(engine, [[8]], prompt=4)
    assert engine.advance(3.5) is None  # prefill ends at 2 with one token, 3: two, 4: three
    engine.abort(at_s=3.5, keep_kv=keep_kv)
    with pytest.raises(ValueError, match="still pending"):
        engine.resume(at_s=3.5, groups=[0])
    assert engine.advance(11.0) is None
    assert engine.facts().end_s.tolist() == [4.0]
    assert engine.resumable().tolist() == [0]
    assert engine.resume(at_s=11.0, groups=[0]) == 1
    assert engine.n_groups_in_flight == 1
    # Kept: five more tokens from 11. Dropped: 4 + 3 tokens prefilled, 1 + 7/4 s, then four more.
    assert engine.advance().at_s == end


def test_resumed_groups_take_their_place_in_the_queue():
    for front, expected in ((True, [2, 0, 1]), (False, [2, 1, 0])):
        engine = engine_of(slots=1)
        submit(engine, [[2], [2], [4]])
        engine.abort(at_s=0.0, groups=[0])
        assert engine.resumable().tolist() == []  # the submission itself is still ahead
        assert engine.advance(0.5) is None
        engine.abort(at_s=0.5, groups=[0, 1])
        assert engine.advance(2.5) is None
        engine.resume(at_s=2.5, groups=[0] if front else [1])
        engine.resume(at_s=2.5, groups=[1] if front else [0])
        engine.drain()
        ends = engine.group_end_s()
        assert np.argsort(ends).tolist() == expected


def replicas_of(dispatch, calls, *, by="group", **settings):
    engine = engine_of(replicas=3, dispatch=dispatch, dispatch_by=by, **settings)
    for lengths in calls:
        submit(engine, lengths)
    engine.drain()
    return engine.facts().replica.tolist()


def test_chunks_are_contiguous_and_the_remainder_rotates():
    assert replicas_of("chunks", [[[1]] * 7]) == [0, 0, 0, 1, 1, 2, 2]
    assert replicas_of("chunks", [[[1]] * 2, [[1]], [[1]] * 4]) == [0, 1, 2, 0, 0, 1, 2]
    assert replicas_of("chunks", [[[1, 1, 1]] * 2], by="response") == [0, 0, 1, 1, 2, 2]


def test_round_robin_goes_on_from_call_to_call():
    assert replicas_of("round_robin", [[[1, 1]] * 2, [[1, 1]] * 2]) == [0, 0, 1, 1, 2, 2, 0, 0]


def test_least_loaded_counts_unfinished_responses_and_prefers_the_lowest_index():
    assert replicas_of("least_loaded", [[[9, 9], [9, 9], [9, 9], [9, 9]]]) == [
        0,
        0,
        1,
        1,
        2,
        2,
        0,
        0,
    ]
    engine = engine_of(replicas=2, dispatch="least_loaded")
    submit(engine, [[5], [2], [5]])
    assert engine.advance().at_s == 2.0
    submit(engine, [[5]])
    engine.drain()
    assert engine.facts().replica.tolist() == [0, 1, 0, 1]


def test_sticky_sends_a_label_to_the_same_replica_every_time():
    engine = engine_of(replicas=3, dispatch="sticky")
    for _ in range(2):
        submit(engine, [[1]] * 30, labels=range(30))
        engine.drain()
    replica = engine.facts().replica.reshape(2, 30)
    assert replica[0].tolist() == replica[1].tolist()
    assert set(replica[0].tolist()) == {0, 1, 2}


def test_a_shared_queue_fills_the_emptiest_replica_first():
    assert replicas_of("shared", [[[4]] * 6], slots=1) == [0, 1, 2, 0, 1, 2]
    assert replicas_of("shared", [[[4]] * 4], slots=9) == [0, 1, 2, 0]


def test_lockstep_makes_the_slow_replica_set_the_pace():
    law = Law(1.0, (0.0, 1.0), (0.0, 0.5), 0.0)
    ends = []
    for lockstep in (False, True):
        engine = engine_of(law, replicas=2, lockstep=lockstep)
        submit(engine, [[4], [4], [4]])
        engine.drain()
        ends.append(engine.facts().end_s.tolist())
    assert ends == [[8.0, 8.0, 6.0], [8.0, 8.0, 8.0]]


def test_a_group_limit_blocks_the_queue():
    engine = engine_of(slots=4, max_groups_in_flight=1)
    submit(engine, [[2, 3], [1, 1]])
    engine.drain()
    assert engine.facts().admit_s.tolist() == [0.0, 0.0, 3.0, 3.0]


def test_reset_forgets_and_goes_on_from_the_given_time():
    engine = engine_of()
    submit(engine, [[3]])
    with pytest.raises(ValueError, match="in flight"):
        engine.reset(at_s=9.0)
    engine.drain()
    engine.reset(at_s=9.0)
    assert submit(engine, [[2]]) == 0
    engine.drain()
    assert engine.facts().end_s.tolist() == [11.0]
    assert engine.facts().busy_s.tolist() == [2.0]


def test_bad_submissions_are_refused():
    engine = engine_of(kv_capacity_tokens=10)
    with pytest.raises(ConfigError, match="0 tokens: needs at least 1"):
        submit(engine, [[1], [0]])
    with pytest.raises(ConfigError, match="a prompt of -1 tokens"):
        submit(engine, [[1]], prompt=-1)
    with pytest.raises(ConfigError, match=r"prompt 4 \+ 7 tokens"):
        submit(engine, [[6], [7]], prompt=4)
    with pytest.raises(ValueError, match="shape"):
        engine.submit(at_s=0.0, group_P=[1], prompt_tokens_P=[1], n_tokens_PG=[1, 2])
    with pytest.raises(ValueError, match="every group needs a response"):
        engine.submit(at_s=0.0, group_P=[1], prompt_tokens_P=[1], n_tokens_PG=[1, 2], members_P=[1])
    engine.advance(5.0)
    with pytest.raises(ValueError, match="ascend"):
        engine.submit(at_s=4.0, group_P=[1], prompt_tokens_P=[1], n_tokens_PG=[[1]])
    with pytest.raises(ValueError, match="cannot go back"):
        engine.advance(4.0)
    with pytest.raises(ValueError, match="stands at"):
        engine.abort(at_s=6.0)
    assert engine.n_responses_in_flight == 0
