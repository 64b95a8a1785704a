"""The engine that speculates, against closed forms, hand arithmetic and drawn acceptances."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapolab.fidelity.steps import wave_pieces
from dapolab.scenario import ConfigError, Hardware, Rollout, build
from dapolab.scenario import Speculation as Table
from dapolab.sim.hardware import Law
from dapolab.sim.replica import Engine, Facts
from dapolab.sim.run import simulate
from dapolab.theory.speculation import Speculation, finish_times_s

A, B, C = 0.0123, 0.00047, 3.1e-6


def run(lengths, table, *, law=None, prompts=None, **settings) -> Facts:
    """Run groups of one to their ends, by default without prefill."""
    settings = {"prefill": False, "prefix_cache": False, **settings}
    engine = Engine(Hardware(speculation=table, **settings), law or Law(A, (0, 1), (0, B), C))
    engine.submit(
        at_s=0.0,
        group_P=np.arange(len(lengths)),
        prompt_tokens_P=np.zeros(len(lengths), int) if prompts is None else prompts,
        n_tokens_PG=np.asarray(lengths).reshape(-1, 1),
    )
    engine.drain()
    return engine.facts()


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=20),
    k=st.integers(1, 6),
    acceptance=st.floats(0, 1),
    seconds=st.tuples(st.floats(0, 0.01), st.floats(0, 0.01)),
    max_batch=st.integers(1, 20),
)
def test_every_finish_of_a_wave(lengths, k, acceptance, seconds, max_batch):
    parts = dict(zip(("draft_s", "verify_s"), seconds, strict=True))
    prompts = np.arange(len(lengths)) * 7
    facts = run(
        lengths,
        Table(draft_tokens=k, acceptance=acceptance, max_batch=max_batch, **parts),
        prompts=prompts,
    )
    expected = finish_times_s(
        lengths,
        Speculation(draft_tokens=k, acceptance=acceptance, **parts),
        max_batch=max_batch,
        step_s=A,
        per_response_s=B,
        per_context_token_s=C,
        prompt_tokens=prompts,
    )
    np.testing.assert_allclose(facts.end_s, expected, rtol=1e-9)


def test_verified_tokens_fill_a_concave_law():
    """3 responses verify 2 tokens each: b(6), on the second piece, and half of it a token."""
    law = Law(1.0, (0.0, 4.0, 8.0), (0.0, 0.4, 0.6), 0.0)
    table = Table(draft_tokens=1, acceptance=1.0, draft_s=0.0, max_batch=3)
    assert run([10] * 3, table, law=law).end_s.tolist() == pytest.approx([10 * (1 + 0.5) / 2] * 3)


def test_an_iteration_that_prefills_decodes_plainly():
    """10 prompt tokens: 2 s to the first token; the other two take 1.5 s for both."""
    law = Law(1.0, (0.0, 1.0), (0.0, 0.0), 0.0, prefill_s=0.1)
    table = Table(draft_tokens=1, acceptance=1.0, draft_s=0.5, max_batch=4)
    facts = run([3], table, law=law, prompts=[10], prefill=True)
    assert facts.first_token_s.tolist() == [2.0]
    assert facts.end_s.tolist() == [3.5]
    # four tokens a chunk, so that the budget holds what is verified: 1.4 + 1.4 + 1.2 s
    chunks = run(
        [3],
        table.model_copy(update={"max_batch": 2}),
        law=law,
        prompts=[10],
        prefill=True,
        token_budget=4,
    )
    assert chunks.first_token_s.tolist() == pytest.approx([4.0])
    assert chunks.end_s.tolist() == pytest.approx([5.5])


def test_replicas_in_lockstep_speculate_together():
    """A token takes a second while one replica has two responses left, then two take 1.5 s."""
    law = Law(1.0, (0.0, 1.0), (0.0, 0.0), 0.0)
    table = Table(draft_tokens=1, acceptance=1.0, draft_s=0.5, max_batch=1)
    lengths, placed = [2, 4, 9, 7], {"replicas": 2, "lockstep": True, "dispatch": "round_robin"}
    # 2 and 9 go to the first replica, 4 and 7 to the second, which has two of them until 4 s
    facts = run(lengths, table, law=law, **placed)
    assert facts.end_s.tolist() == [2.0, 4.0, 4 + 5 * 0.75, 4 + 3 * 0.75]
    apart = run(lengths, table, law=law, **placed | {"lockstep": False})
    assert apart.end_s.tolist() == [2.0, 4.0, 2 + 7 * 0.75, 4 + 3 * 0.75]


def test_a_binding_kv_limit_evicts_as_without_speculation():
    """After four iterations 8 tokens exceed 7: the younger leaves and comes back for its fifth."""
    lengths, limits = [5, 5], {"kv_capacity_tokens": 7}
    law = Law(1.0, (0.0, 1.0), (0.0, 0.0), 0.0)
    table = Table(draft_tokens=1, acceptance=1.0, draft_s=0.0, max_batch=1)
    plain, fast = run(lengths, None, law=law, **limits), run(lengths, table, law=law, **limits)
    assert plain.n_preemptions.tolist() == fast.n_preemptions.tolist() == [0, 1]
    # two at 4 iterations of a second, then one after the other at 1 or ½ s
    assert plain.end_s.tolist() == [5.0, 6.0]
    assert fast.end_s.tolist() == [4.5, 5.0]


def test_speculation_that_gains_and_costs_nothing_changes_no_bit():
    table = Table(draft_tokens=3, acceptance=0.0, draft_s=0.0, max_batch=99)
    law = Law(A, (0.0, 1.0), (0.0, 0.0), C, prefill_s=1e-5)
    lengths = np.random.default_rng(3).integers(1, 400, 60)
    settings = {"prefill": True, "slots": 20, "kv_capacity_tokens": 3000, "prompts": [50] * 60}
    one, two = (run(lengths, t, law=law, **settings) for t in (None, table))
    assert one.n_preemptions.sum() > 0
    for name in ("admit_s", "first_token_s", "end_s", "busy_s", "iterations"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()


def drawn_makespans(lengths, table, *, runs, rng):
    """Play a wave iteration by iteration with drawn acceptances; returns ``runs`` makespans."""
    left = np.tile(np.asarray(lengths), (runs, 1))
    now, k = np.zeros(runs), table.draft_tokens
    while (left > 0).any():
        n = (left > 0).sum(axis=1)
        speculates = (n > 0) & (n <= table.max_batch)
        now += np.where(n > 0, A + B * n, 0.0)
        now[speculates] += B * k * n[speculates] + k * table.draft_s + table.verify_s
        accepted = np.cumprod(rng.random((*left.shape, k)) < table.acceptance, axis=2).sum(axis=2)
        left -= np.where(speculates[:, None], 1 + accepted, 1)
    return now


def test_the_mean_field_is_close_to_drawn_acceptances():
    """Within 1.5 % for a tail of a thousand tokens; luck makes the later of the last two late."""
    lengths, runs = [300] * 12 + [900, 1200, 1500, 1500], 200
    table = Table(draft_tokens=4, acceptance=0.7, draft_s=0.001, verify_s=0.0005, max_batch=4)
    drawn = drawn_makespans(lengths, table, runs=runs, rng=np.random.default_rng(8))
    mean_field = run(lengths, table, law=Law(A, (0, 1), (0, B), 0.0)).end_s.max()
    error = 4.5 * drawn.std(ddof=1) / math.sqrt(runs)
    assert abs(drawn.mean() - mean_field) + error < 0.015 * mean_field
    assert abs(drawn.mean() - 1.05 * mean_field) - error > 0.015 * mean_field


# ------------------------------------------------------------------------------------ settings

TABLE = {"draft_tokens": 3, "acceptance": 0.7, "draft_s": 0.001, "max_batch": 8}


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        ({"speculation": TABLE, "token_budget": 31}, "token_budget 31 cannot hold the 32"),
        ({"speculation": {"draft_tokens": 3}}, "speculation.acceptance is missing"),
        ({"speculation": TABLE | {"acceptance": 1.5}}, "must be at most 1"),
        ({"speculation": TABLE | {"k": 1}}, "unknown key 'hardware.speculation.k'"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(hardware, message):
    with pytest.raises(ConfigError, match=message) as refused:
        build({"hardware": hardware})
    assert "\n" not in str(refused.value)


def test_no_law_is_fitted_to_steps_of_an_engine_that_speculates():
    hardware = Hardware.model_validate({"speculation": TABLE})
    with pytest.raises(ConfigError, match=r"--hardware\.speculation none"):
        wave_pieces(pd.DataFrame(), hardware=hardware, rollout=Rollout())


def test_a_scenario_whose_tail_speculates_ends_sooner():
    """The same tokens, groups and waves in less time."""
    base = {"run": {"steps": 2}, "hardware": {"speculation": TABLE, "token_budget": 32}}
    fast, plain = simulate(build(base), seed=0), simulate(build({"run": {"steps": 2}}), seed=0)
    same = ["rollout/completion_tokens", "rollout/candidate_groups", "rollout/waves"]
    assert fast.steps[same].equals(plain.steps[same])
    assert (fast.steps["time/rollout_seconds"] < plain.steps["time/rollout_seconds"]).all()
