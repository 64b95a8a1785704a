"""Groups that outlive a step: cut, kept over a reset, resumed; against runs that were never cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.scenario import Hardware
from dapolab.sim.hardware import Law
from dapolab.sim.replica import STATUS_NAMES, Engine

FLAT = Law(1.0, (0.0, 1.0), (0.0, 0.0), 0.0)
FULL = Law(0.01, (0.0, 1.0), (0.0, 1e-4), 1e-6, 1e-3)
FINISHED, ABORTED = STATUS_NAMES.index("finished"), STATUS_NAMES.index("aborted")
PROMPT = 5


def engine(law: Law, **settings_: object) -> Engine:
    return Engine(Hardware.model_validate({"slots": 64} | settings_), law)


def submit(one: Engine, lengths: list[list[int]]) -> None:
    n = len(lengths)
    one.submit(
        at_s=one.now_s,
        group_P=np.arange(n),
        prompt_tokens_P=np.full(n, PROMPT),
        n_tokens_PG=np.array(lengths),
    )


def cut(one: Engine, at_s: float, *, keep_kv: bool) -> list[int]:
    """Run to ``at_s``, cut everything and start anew with the groups that are not complete."""
    while one.advance(at_s) is not None:
        pass
    one.abort(at_s=one.now_s, keep_kv=keep_kv)
    one.drain()
    kept = one.resumable().tolist()
    one.reset(at_s=one.now_s, keep=kept)
    return kept


def test_kept_kv_goes_on_as_if_nothing_had_happened() -> None:
    lengths = [[3, 9, 14], [6, 6, 20], [2, 2, 2]]
    whole = engine(FULL)
    submit(whole, lengths)
    whole.drain()
    parts = engine(FULL)
    submit(parts, lengths)
    kept = cut(parts, 0.04, keep_kv=True)
    assert kept == [0, 1]
    assert parts.facts().generated_tokens.tolist() == [3] * 6
    assert parts.resume(at_s=parts.now_s, groups=[0, 1]) == 5
    parts.drain()
    ends = whole.facts().group_end_s[:2]
    np.testing.assert_allclose(parts.facts().group_end_s, ends, rtol=1e-12)
    assert parts.facts().generated_tokens.tolist() == [3, 9, 14, 6, 6, 20]


@pytest.mark.parametrize("cut_after", [1, 4, 9])
def test_without_kv_prompt_and_answer_are_prefilled_again(cut_after: int) -> None:
    law = Law(1.0, (0.0, 1.0), (0.0, 0.0), 0.0, 0.25)
    one = engine(law)
    submit(one, [[10]])
    # the first iteration prefills the prompt: 1 + PROMPT / 4 seconds, then one second a token
    begun_s = 1 + 0.25 * PROMPT
    assert cut(one, begun_s + cut_after - 1, keep_kv=False) == [0]
    one.resume(at_s=one.now_s, groups=[0])
    resumed_s = one.now_s
    one.drain()
    expected = (10 - cut_after) + 0.25 * (PROMPT + cut_after)
    assert one.now_s - resumed_s == pytest.approx(expected)
    assert one.facts().generated_tokens.tolist() == [10]


def test_a_resumed_group_speaks_of_its_new_step_alone() -> None:
    one = engine(FLAT, prefill=False)
    submit(one, [[4, 9]])
    cut(one, 6.0, keep_kv=False)
    facts = one.facts()
    assert np.isnan(facts.end_s).all()
    assert np.isnan(facts.admit_s).all()
    assert facts.iterations.tolist() == [0]
    one.resume(at_s=one.now_s, groups=[0])
    one.drain()
    facts = one.facts()
    assert np.isnan(facts.end_s[0])  # ended in the step before
    assert (facts.admit_s[1], facts.end_s[1]) == (6.0, 9.0)
    assert facts.iterations.tolist() == [3]


def test_what_holds_kv_must_stay_or_let_it_go() -> None:
    one = engine(FLAT, prefill=False, kv_capacity_tokens=100)
    submit(one, [[9], [9]])
    one.advance(3.0)
    one.abort(at_s=one.now_s, keep_kv=True)
    one.drain()
    with pytest.raises(ValueError, match="still holds KV"):
        one.reset(at_s=one.now_s, keep=[1])
    one.abort(at_s=one.now_s, groups=[0])
    one.drain()
    one.reset(at_s=one.now_s, keep=[1])
    assert one.resume(at_s=one.now_s, groups=[0]) == 1
    one.drain()
    assert one.now_s == 9.0


def test_kept_kv_stays_in_the_store_and_takes_its_room() -> None:
    one = engine(FLAT, prefill=False, kv_capacity_tokens=26)
    submit(one, [[20]])
    cut(one, 15.0, keep_kv=True)
    one.resume(at_s=one.now_s, groups=[0])
    one.submit(at_s=one.now_s, group_P=[1], prompt_tokens_P=[PROMPT], n_tokens_PG=[[2]])
    one.drain()
    facts = one.facts()
    # 5 + 15 tokens are held at 15 s, and 5 more with the new prompt; both grow, so after one
    # iteration 27 would be held: the newcomer is evicted and comes back when the other has ended
    assert facts.n_preemptions.tolist() == [0, 1]
    assert facts.peak_kv_tokens.tolist() == [25]
    assert facts.end_s.tolist() == [20.0, 21.0]


def test_a_longer_length_goes_on_where_the_shorter_one_ended() -> None:
    one = engine(FLAT, prefill=False)
    submit(one, [[3, 3], [2, 3]])
    one.drain()
    one.reset(at_s=one.now_s, keep=[0, 1])
    one.extend([0, 1], [[3, 7], [2, 5]])
    assert one.resumable().tolist() == [0, 1]
    assert one.resume(at_s=one.now_s, groups=[0, 1]) == 2
    done = one.drain()
    assert done.groups.tolist() == [1, 0]
    assert one.facts().group_end_s.tolist() == [7.0, 5.0]
    assert one.facts().generated_tokens.tolist() == [3, 7, 2, 5]


def test_enough_responses_end_a_group() -> None:
    one = engine(FLAT, prefill=False)
    one.submit(
        at_s=0.0, group_P=[0], prompt_tokens_P=[PROMPT], n_tokens_PG=[[9, 4, 6, 4]], enough=3
    )
    found = one.advance()
    assert found is not None
    assert (found.at_s, found.groups.tolist()) == (6.0, [0])
    one.abort(at_s=one.now_s, groups=[0])
    one.drain()
    ends_s, statuses = one.spans([0])
    assert ends_s.tolist() == [6.0, 4.0, 6.0, 4.0]
    assert statuses.tolist() == [ABORTED, FINISHED, FINISHED, FINISHED]
    assert one.n_groups_in_flight == 0


engines = st.fixed_dictionaries(
    {
        "replicas": st.sampled_from([1, 2]),
        "slots": st.sampled_from([1, 2, 8]),
        "kv_capacity_tokens": st.sampled_from([None, 40, 70]),
        "prefill": st.booleans(),
        "prefix_cache": st.booleans(),
        "dispatch": st.sampled_from(["chunks", "least_loaded", "shared"]),
        "lockstep": st.booleans(),
    }
)


@settings(max_examples=40)
@given(
    engines,
    st.lists(st.lists(st.integers(1, 30), min_size=2, max_size=2), min_size=1, max_size=5),
    st.lists(st.tuples(st.floats(0.01, 0.4), st.booleans()), max_size=4),
)
def test_however_often_it_is_cut_every_token_is_generated_once(
    hardware: dict[str, object], lengths: list[list[int]], cuts: list[tuple[float, bool]]
) -> None:
    one = engine(FULL, **hardware)
    submit(one, lengths)
    going, made, n_tokens = list(range(len(lengths))), 0, {}
    for after_s, keep_kv in cuts:
        while one.advance(one.now_s + after_s) is not None:
            pass
        one.abort(at_s=one.now_s, keep_kv=keep_kv)
        one.drain()
        facts = one.facts()
        n_tokens |= dict(zip(going, facts.generated_tokens.reshape(-1, 2).tolist(), strict=True))
        capacity = hardware["kv_capacity_tokens"]
        assert capacity is None or facts.peak_kv_tokens.max() <= capacity  # type: ignore[operator]
        kept = one.resumable().tolist()
        one.reset(at_s=one.now_s, keep=kept)
        going = [going[g] for g in kept]
        one.resume(at_s=one.now_s, groups=list(range(len(kept))))
        total = sum(map(sum, n_tokens.values()))
        assert total >= made
        made = total
    one.drain()
    facts = one.facts()
    n_tokens |= dict(zip(going, facts.generated_tokens.reshape(-1, 2).tolist(), strict=True))
    assert [n_tokens[g] for g in range(len(lengths))] == lengths
    assert one.n_responses_in_flight == 0
    one.reset(at_s=one.now_s)
    submit(one, [[1, 1]])  # nothing of the past is left: no KV, no clock, no queue
    one.drain()
    assert one.facts().generated_tokens.tolist() == [1, 1]


def test_kept_kv_that_yields_in_the_queue_leaves_an_admission() -> None:
    """20 kept of 26 yield at 17 s, when the newcomer holds 7; they are admitted again at 24 s."""
    one = engine(FLAT, prefill=False, slots=1, kv_capacity_tokens=26)
    submit(one, [[20]])
    cut(one, 15.0, keep_kv=True)
    one.submit(at_s=15.0, group_P=[1], prompt_tokens_P=[PROMPT], n_tokens_PG=[[9]])
    one.advance(15.0)
    one.resume(at_s=15.0, groups=[0])
    one.drain()
    facts = one.facts()
    assert facts.n_preemptions.tolist() == [1, 1]
    assert facts.admit_s.tolist() == [24.0, 15.0]
    assert facts.end_s.tolist() == [29.0, 24.0]
