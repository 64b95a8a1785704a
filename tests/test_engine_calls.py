"""KV held over a call, on times worked out by hand: an iteration takes a second without prefill.

Prompts are empty unless said, so a response of n tokens holds n.
"""

from collections.abc import Sequence

import pytest

from dapolab.scenario import Hardware
from dapolab.sim import decode
from dapolab.sim.hardware import Law
from dapolab.sim.replica import STATUS_NAMES, Engine

LAW = Law(1.0, (0.0, 1.0), (0.0, 0.0), 0.0, prefill_s=0.25)


def new_engine(lengths: Sequence[int], *, prompt: int = 0, **settings: object) -> Engine:
    """Return an engine with one group of one response for each length, submitted at 0."""
    engine = Engine(Hardware.model_validate({"prefill": False} | settings), LAW)
    submit(engine, lengths, prompt=prompt)
    return engine


def submit(engine: Engine, lengths: Sequence[int], *, prompt: int = 0) -> None:
    engine.submit(
        at_s=engine.now_s,
        group_P=list(range(len(lengths))),
        prompt_tokens_P=[prompt] * len(lengths),
        n_tokens_PG=[[length] for length in lengths],
        enough=1,
    )


def run_to(engine: Engine, at_s: float, *, hold: Sequence[int] = ()) -> None:
    """Run to ``at_s`` and hold the KV of the groups ``hold`` as they end."""
    while (found := engine.advance(at_s)) is not None:
        for group in set(found.groups.tolist()) & set(hold):
            engine.hold(group, 0)


def go_on(engine: Engine, group: int, *, n_context: int, n_tokens: int) -> None:
    engine.go_on(group, 0, n_context=n_context, n_tokens=n_tokens)
    engine.resume(at_s=engine.now_s, groups=[group])


@pytest.mark.parametrize(("held", "prefilled"), [(True, 6), (False, 10 + 4 + 6)])
def test_only_the_result_of_the_call_is_prefilled(held: bool, prefilled: int) -> None:
    """Prompt 10: 1 + 2.5 + 3 s to the call, 5 s of it, then the result's 6 tokens or all of it."""
    engine = new_engine([4], prompt=10, prefill=True)
    run_to(engine, 11.5, hold=[0] if held else [])
    go_on(engine, 0, n_context=10, n_tokens=14)
    engine.drain()
    assert engine.now_s == 11.5 + 1 + 0.25 * prefilled + 3
    assert engine.facts().peak_kv_tokens.tolist() == [10 + 13]


def test_without_a_result_decoding_goes_on_at_once() -> None:
    engine = new_engine([4], prompt=10, prefill=True)
    run_to(engine, 11.5, hold=[0])
    go_on(engine, 0, n_context=4, n_tokens=8)
    engine.drain()
    assert engine.now_s == 11.5 + 4


def test_held_kv_counts_and_a_queue_head_waits_or_takes_its_room() -> None:
    """7 held at 7 s beside 7 decoding, of 16: a prompt of 3 fits once the 7 have yielded.

    Iterations begin with 6 + 6 at 6 s, 7 + 3 at 7 s, 8 + 4 at 8 s, and with 11 at last.
    """
    engine = new_engine([7, 12], kv_capacity_tokens=16)
    run_to(engine, 7.0, hold=[0])
    submit(engine, [2], prompt=3)
    engine.drain()
    facts = engine.facts()
    assert facts.admit_s.tolist() == [0, 0, 7]
    assert facts.n_preemptions.tolist() == [0, 0, 0]
    assert facts.peak_kv_tokens.tolist() == [12]
    go_on(engine, 0, n_context=7, n_tokens=9)
    engine.drain()
    assert engine.now_s == 12 + 2


def test_room_that_would_not_suffice_is_not_taken() -> None:
    """4 held, 8 decoding, of 16: a prompt of 9 fits beside neither, so the 4 stay and go on."""
    engine = new_engine([4, 12], kv_capacity_tokens=16, prefill=True)
    run_to(engine, 8.0, hold=[0])
    submit(engine, [2], prompt=9)
    run_to(engine, 9.0)
    go_on(engine, 0, n_context=4, n_tokens=5)
    engine.drain()
    facts = engine.facts()
    assert facts.admit_s.tolist()[1:] == [0, 12]
    # behind the newcomer in the queue; one iteration and nothing to prefill
    assert facts.admit_s[0] == 12
    assert facts.end_s[0] == 12 + 1 + 0.25 * 9


def test_growth_takes_what_ended_first_before_anybody_is_evicted() -> None:
    """3 and 5 held, the third grows: 17 at 9 s exceed 16, so the 3 go; at 12 s 17 again, the 5."""
    engine = new_engine([3, 5, 14], kv_capacity_tokens=16)
    run_to(engine, 10.0, hold=[0, 1])
    assert (engine._state.response[:2, decode.STORED] > 0).tolist() == [False, True]
    engine.drain()
    facts = engine.facts()
    assert facts.n_preemptions.sum() == 0
    assert facts.end_s.tolist() == [3, 5, 14]
    assert facts.peak_kv_tokens.tolist() == [16]


def test_who_comes_back_does_not_take_its_own_kv_for_room() -> None:
    """8 held and 6 new beside 8 of 20: it waits until the other has ended at 12 s."""
    engine = new_engine([8, 12], kv_capacity_tokens=20)
    run_to(engine, 8.0, hold=[0])
    go_on(engine, 0, n_context=14, n_tokens=16)
    engine.drain()
    assert engine.facts().admit_s[0] == 12
    assert engine.facts().end_s.tolist() == [14, 12]


def test_room_for_a_head_on_an_empty_replica_is_no_preemption_of_what_waits() -> None:
    """6 waiting and 10 kept by an abort, of 20: a prompt of 15 has both go, one is a preemption."""
    engine = new_engine([6, 15], kv_capacity_tokens=20)
    run_to(engine, 10.0, hold=[0])
    engine.abort(at_s=10.0, groups=[1], keep_kv=True)
    engine.drain()
    submit(engine, [2], prompt=15)
    engine.drain()
    facts = engine.facts()
    assert facts.n_preemptions.tolist() == [0, 1, 0]
    assert facts.end_s[2] == 12


def test_released_kv_is_room_for_the_next_iteration() -> None:
    """5 held and 8 decoding, of 16: 5 new tokens come in at 9 s, as the 5 are given up at 8.5 s."""
    engine = new_engine([5, 14], kv_capacity_tokens=16)
    run_to(engine, 8.0, hold=[0])
    submit(engine, [1], prompt=14)
    run_to(engine, 8.5)
    assert engine.facts().admit_s.tolist()[:2] == [0, 0]
    engine.release(0, 0)
    engine.release(0, 0)  # nothing is left to give up
    engine.drain()
    facts = engine.facts()
    assert facts.admit_s[2] == 14
    assert facts.peak_kv_tokens.tolist() == [14]  # at 8 s 5 + 8, at 13 s 13, then a prompt of 14


def test_an_abort_gives_up_what_is_held() -> None:
    engine = new_engine([5, 14], kv_capacity_tokens=16)
    run_to(engine, 8.0, hold=[0])
    engine.abort(at_s=8.0)
    engine.drain()
    assert [STATUS_NAMES[k] for k in engine.facts().status] == ["finished", "aborted"]
    assert (engine._state.response[:2, decode.STORED] == 0).all()
    submit(engine, [1], prompt=15)
    engine.drain()
    assert engine.now_s == 9
    engine.reset(at_s=engine.now_s)


def test_what_cannot_be_held_is_refused() -> None:
    engine = new_engine([3, 9])
    with pytest.raises(ValueError, match="has not just ended"):
        engine.hold(0, 0)
    run_to(engine, 3.0, hold=[0])
    with pytest.raises(ValueError, match="held already"):
        engine.hold(0, 0)
    with pytest.raises(ValueError, match="release it first"):
        engine.go_on(0, 0, n_context=2, n_tokens=5)
    run_to(engine, 4.0)
    engine.release(0, 0)
    with pytest.raises(ValueError, match="has not just ended"):
        engine.hold(0, 0)
