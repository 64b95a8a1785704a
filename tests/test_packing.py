"""Learner seconds from packed micro-batches: worked by hand, against a plain loop, and limits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.errors import ConfigError
from dapolab.scenario import Learner, Packing
from dapolab.sim.learner import at_gpus, learner_time
from dapolab.sim.packing import packed_seconds


def seconds(lengths: list[int], packing: Packing, *, ranks: int = 1, updates: int = 1) -> float:
    return packed_seconds(
        np.array(lengths, dtype=np.int64),
        packing=packing,
        ranks=ranks,
        n_updates=updates,
        s_per_token=1.0,
    )


def test_worked_by_hand() -> None:
    lengths = [5, 1, 4, 2]
    plain = Packing(micro_batch_tokens=6)
    assert seconds(lengths, plain) == 12
    # in order: {5, 1}, {4, 2}: two micro-batches of 6
    assert seconds(lengths, plain.model_copy(update={"micro_batch_s": 10.0})) == 32
    # padded: 5 alone (5 + 5 > 6), 1 alone (4 + 4 > 6), 4 alone, 2: no padding, four micro-batches
    padded = plain.model_copy(update={"padding": "longest", "micro_batch_s": 10.0})
    assert seconds(lengths, padded) == 52
    # room for 8: {5}, {1, 4} padded by 3, {2}; a padded token at a quarter
    roomy = padded.model_copy(update={"micro_batch_tokens": 8, "padded_token_share": 0.25})
    assert seconds(lengths, roomy) == 12 + 0.25 * 3 + 30
    # sorted {5}, {4, 2} padded by 2, {1}
    assert seconds(lengths, roomy.model_copy(update={"sort": True})) == 12 + 0.25 * 2 + 30
    # two ranks in order {5, 1}, {4, 2}: the slowest has 6, twice the seconds a token
    in_order = plain.model_copy(update={"balance": "order"})
    assert seconds(lengths, in_order, ranks=2) == 12
    assert seconds([5, 4, 1, 2], in_order, ranks=2) == 2 * 9
    assert seconds([5, 4, 1, 2], plain, ranks=2) == 2 * 6  # by tokens {5, 1}, {4, 2}
    # two updates {5, 4}, {1, 2}, each waits for its slowest rank
    assert seconds([5, 4, 1, 2], plain, ranks=2, updates=2) == 2 * 5 + 2 * 2


def slow_pass(lengths: list[int], packing: Packing, *, ranks: int, updates: int) -> float:
    """The same in plain loops: updates, ranks, micro-batches, tokens."""
    total, at = 0.0, 0
    for update in range(updates):
        size = len(lengths) // updates + (update < len(lengths) % updates)
        batch, at = lengths[at : at + size], at + size
        of_rank: list[list[int]] = [[] for _ in range(ranks)]
        if packing.balance == "order":
            place = 0
            for rank in range(ranks):
                n = size // ranks + (rank < size % ranks)
                of_rank[rank], place = batch[place : place + n], place + n
        else:
            given: list[list[int]] = [[] for _ in range(ranks)]
            for index in sorted(range(size), key=lambda i: (-batch[i], i)):
                room = [r for r in range(ranks) if len(given[r]) < math.ceil(size / ranks)]
                least = min(room, key=lambda r: (sum(batch[i] for i in given[r]), r))
                given[least].append(index)
            of_rank = [[batch[i] for i in sorted(mine)] for mine in given]
        slowest = 0.0
        for mine in of_rank:
            rest = sorted(mine, reverse=True) if packing.sort else list(mine)
            elapsed = 0.0
            while rest:
                micro = [rest.pop(0)]
                while rest:
                    wide = max([*micro, rest[0]])
                    tokens = sum(micro) + rest[0]
                    if packing.padding == "longest":
                        tokens = wide * (len(micro) + 1)
                    if tokens > packing.micro_batch_tokens:
                        break
                    micro.append(rest.pop(0))
                for length in micro:
                    elapsed += ranks * length
                    if packing.padding == "longest":
                        elapsed += ranks * packing.padded_token_share * (max(micro) - length)
                elapsed += packing.micro_batch_s
            slowest = max(slowest, elapsed)
        total += slowest
    return total


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    packing=st.builds(
        Packing,
        micro_batch_tokens=st.integers(20, 200),
        micro_batch_s=st.sampled_from([0.0, 7.0]),
        padding=st.sampled_from(["none", "longest"]),
        padded_token_share=st.sampled_from([0.0, 0.5, 1.0]),
        balance=st.sampled_from(["tokens", "order"]),
        sort=st.booleans(),
    ),
    ranks=st.integers(1, 5),
    updates=st.integers(1, 4),
)
def test_against_a_plain_loop(
    lengths: list[int], packing: Packing, ranks: int, updates: int
) -> None:
    found = seconds(lengths, packing, ranks=ranks, updates=updates)
    assert found == pytest.approx(slow_pass(lengths, packing, ranks=ranks, updates=updates))
    # whoever waits, the work is done: never below perfectly shared tokens
    assert found >= sum(lengths) - 1e-9


def learner(**settings_: object) -> Learner:
    return Learner.model_validate({"update_s_per_token": 0.01, "sync_s": 2.0} | settings_)


def total_s(one: Learner, lengths: list[int], **more: int) -> float:
    array = np.array(lengths, dtype=np.int64)
    return learner_time(
        one,
        step=0,
        n_responses=0,
        n_train_tokens=sum(lengths),
        skipped=False,
        lengths=array,
        **more,
    ).total_s


def test_neutral_packing_changes_nothing() -> None:
    equal = [100] * 8
    packed = learner(packing={"micro_batch_tokens": 200})
    assert total_s(packed, equal, n_gpus=4) == pytest.approx(total_s(learner(), equal))
    # unequal answers: the longest makes its rank the slowest
    tailed = [100] * 7 + [900]
    assert total_s(packed, tailed, n_gpus=8) == pytest.approx(2.0 + 8 * 0.01 * 900)


def test_seconds_a_token_scale_with_the_gpus() -> None:
    one = learner(measured_on_gpus=8, update_fixed_s=1.0)
    assert at_gpus(one, 4).update_s_per_token == pytest.approx(0.02)
    assert at_gpus(one, 16).update_s_per_token == pytest.approx(0.005)
    assert at_gpus(one, 16).update_fixed_s == 1.0
    assert at_gpus(learner(), 16).update_s_per_token == 0.01


def test_ranks_must_divide_the_gpus() -> None:
    with pytest.raises(ConfigError, match="gpus_per_rank 3 does not divide the learner's 8 GPUs"):
        at_gpus(learner(packing={"gpus_per_rank": 3}), 8)


def test_parts_of_a_step_add_up_to_it() -> None:
    one = learner(update_fixed_s=0.5, updates_per_step=4, fixed_s=1.0, validation_s=9.0)
    one = one.model_copy(update={"validation_every": 1})
    lengths = [10, 20, 30, 40]
    whole = total_s(one, lengths)
    parts = sum(total_s(one, lengths[i : i + 2], part=i // 2, n_parts=2) for i in (0, 2))
    assert parts == pytest.approx(whole)


def test_noise_has_the_mean_and_spread_it_says() -> None:
    """Gamma of mean 1: over 4000 steps the mean lies within 4.5 standard errors."""
    for cv in (0.3, 1.0):
        noisy = learner(noise_cv=cv, sync_s=0.0)
        drawn = [
            learner_time(
                noisy, step=k, n_responses=0, n_train_tokens=100, skipped=False, seed=3
            ).total_s
            for k in range(4000)
        ]
        allowed = 4.5 * cv / math.sqrt(len(drawn))
        assert abs(np.mean(drawn) - 1.0) < allowed
        assert abs(np.mean(drawn) - 1.0 - 1.5 * allowed) > allowed / 2
        assert np.std(drawn) == pytest.approx(cv, rel=0.1)
    assert min(drawn) < 0.002  # exponential at 1: 8 in 4000 are below
