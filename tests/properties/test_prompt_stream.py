"""The prompt stream is a function of (seed, position, trained steps), whoever asks and when."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapolab.scenario import (
    BetaPassRate,
    Drift,
    GeometricLengths,
    IndependentWorkload,
    JointWorkload,
    LognormalLengths,
    Prompts,
    WeibullLengths,
)
from dapolab.workload import Groups, PromptStream

NAMES = (
    "position_P",
    "prompt_id_P",
    "epoch_P",
    "pass_rate_P",
    "prompt_tokens_P",
    "n_tokens_PG",
    "correct_PG",
    "truncated_PG",
)
POOL = Prompts(count=37, tokens_sigma=0.5)
WORKLOADS = (
    JointWorkload(
        prompts=POOL,
        correlation=-0.4,
        correct_effect=-0.2,
        loop_share=0.1,
        loop_sd_logit=1.0,
        loop_correlation=-0.5,
        p_correct_if_truncated=0.2,
        drift=Drift(logit_per_step=0.05, log_tokens_per_step=0.01),
    ),
    IndependentWorkload(prompts=POOL, lengths=LognormalLengths(prompt_share=0.6)),
    IndependentWorkload(prompts=POOL, lengths=WeibullLengths(), pass_rate=BetaPassRate(a=0.5)),
    IndependentWorkload(prompts=POOL, lengths=GeometricLengths(mean_tokens=200.0)),
)


def same(one: Groups, two: Groups) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in NAMES)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.kind)
@given(data=st.data(), seed=st.integers(0, 2**40))
def test_draws_do_not_depend_on_earlier_calls(workload, data, seed):
    kwargs = {"group_size": 4, "cap_tokens": 1500, "seed": seed}
    asked, fresh = PromptStream(workload, **kwargs), PromptStream(workload, **kwargs)
    for _ in range(data.draw(st.integers(0, 4))):
        asked.draw(data.draw(st.integers(0, 900)), data.draw(st.integers(0, 300)), trained_steps=3)
    start, n = data.draw(st.integers(0, 600)), data.draw(st.integers(1, 400))
    cut = data.draw(st.integers(0, n))
    whole = fresh.draw(start, n, trained_steps=1)
    left = asked.draw(start, cut, trained_steps=1)
    right = asked.draw(start + cut, n - cut, trained_steps=1)
    assert same(whole.slice(0, cut), left)
    assert same(whole.slice(cut, n), right)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.kind)
@given(seed=st.integers(0, 1000), cap=st.integers(1, 4000), steps=st.integers(0, 50))
def test_groups_are_well_formed(workload, seed, cap, steps):
    groups = PromptStream(workload, group_size=5, cap_tokens=cap, seed=seed).draw(
        20, 90, trained_steps=steps
    )
    assert groups.n_tokens_PG.shape == (90, 5)
    assert groups.n_tokens_PG.min() >= 1
    assert groups.n_tokens_PG.max() <= cap
    assert (groups.n_tokens_PG[groups.truncated_PG] == cap).all()
    assert np.array_equal(groups.position_P, np.arange(20, 110))
    assert np.array_equal(groups.epoch_P, groups.position_P // 37)
    assert ((groups.pass_rate_P >= 0) & (groups.pass_rate_P <= 1)).all()


@given(seed=st.integers(0, 1000), reshuffle=st.booleans())
def test_an_epoch_is_a_permutation_and_prompts_keep_their_attributes(seed, reshuffle):
    pool = Prompts(count=37, tokens_sigma=0.5, reshuffle=reshuffle)
    stream = PromptStream(JointWorkload(prompts=pool), group_size=2, cap_tokens=4000, seed=seed)
    groups = stream.draw(0, 111)
    orders = groups.prompt_id_P.reshape(3, 37)
    assert (np.sort(orders, axis=1) == np.arange(37)).all()
    assert reshuffle != np.array_equal(orders[0], orders[1])
    first = {int(i): (p, t) for i, p, t in _attributes(groups.slice(0, 37))}
    for prompt, p, tokens in _attributes(groups):
        assert first[int(prompt)] == (p, tokens)
    assert stream.n_left_in_epoch(36) == 1
    assert stream.n_left_in_epoch(37) == 37


def _attributes(groups):
    return zip(groups.prompt_id_P, groups.pass_rate_P, groups.prompt_tokens_P, strict=True)


@given(seed=st.integers(0, 1000), steps=st.integers(1, 60))
def test_drift_moves_the_same_random_numbers(seed, steps):
    base = JointWorkload(prompts=POOL, drift=Drift(logit_per_step=0.1, log_tokens_per_step=0.02))
    stream = PromptStream(base, group_size=8, cap_tokens=10**6, seed=seed)
    before, after = stream.draw(0, 60), stream.draw(0, 60, trained_steps=steps)
    # correct = u < p_i(t): a rising pass rate never loses a right answer.
    assert (after.correct_PG >= before.correct_PG).all()
    ratio = after.n_tokens_PG / np.exp(0.02 * steps)
    assert (np.abs(ratio - before.n_tokens_PG) <= 1.0 + 1e-9).all()


@given(seed=st.integers(0, 1000))
def test_a_small_group_is_the_beginning_of_a_large_one(seed):
    small = PromptStream(WORKLOADS[0], group_size=8, cap_tokens=3000, seed=seed).draw(300, 20)
    large = PromptStream(WORKLOADS[0], group_size=16, cap_tokens=3000, seed=seed).draw(300, 20)
    assert np.array_equal(small.n_tokens_PG, large.n_tokens_PG[:, :8])
    assert np.array_equal(small.correct_PG, large.correct_PG[:, :8])


@given(epochs=st.integers(1, 3), start=st.integers(0, 200), n=st.integers(0, 200))
def test_finite_epochs_bound_the_stream(epochs, start, n):
    workload = JointWorkload(prompts=Prompts(count=37, epochs=epochs))
    stream = PromptStream(workload, group_size=2, cap_tokens=100, seed=1)
    left = stream.n_available(start, n)
    assert left == len(range(start, min(start + n, 37 * epochs)))
    if left == n:
        assert len(stream.draw(start, n)) == n
    else:
        with pytest.raises(IndexError):
            stream.draw(start, n)


@given(
    seed=st.integers(0, 500),
    share=st.floats(0.01, 0.6),
    guess=st.floats(0.0, 0.6),
    steps=st.integers(0, 200),
)
def test_unsolvable_prompts_stay_so_and_leave_all_others_alone(seed, share, guess, steps):
    """Same numbers for all else; a larger share adds to the same prompts; drift teaches none."""
    base = WORKLOADS[0].model_copy(update={"p_correct_if_truncated": 0.0})
    kwargs = {"group_size": 4, "cap_tokens": 1500, "seed": seed}

    def drawn(unsolvable_share, guess_rate=0.0):
        law = {"unsolvable_share": unsolvable_share, "guess_rate": guess_rate}
        stream = PromptStream(base.model_copy(update=law), **kwargs)
        return stream.draw(0, 60, trained_steps=steps)

    plain, some, more, guessed = drawn(0.0), drawn(share), drawn(share + 0.3), drawn(share, guess)
    never = some.pass_rate_P == 0.0
    assert not some.correct_PG[never].any()
    assert (plain.pass_rate_P > 0).all()
    for name in NAMES:
        one, two, three = (getattr(x, name) for x in (plain, some, guessed))
        assert np.array_equal(one[~never], two[~never]), name
        assert np.array_equal(one[~never], three[~never]), name
    assert (more.pass_rate_P[never] == 0.0).all()
    assert np.array_equal(never, drawn(share).pass_rate_P == 0.0)
    assert (guessed.pass_rate_P[never] == guess).all()
    # right = u < g: a right guess is right at any higher rate, and changes no wrong answer
    assert (drawn(share, guess + 0.2).correct_PG >= guessed.correct_PG).all()
    wrong = ~guessed.correct_PG & ~some.correct_PG
    assert np.array_equal(guessed.n_tokens_PG[wrong], some.n_tokens_PG[wrong])


@pytest.mark.parametrize("guess", [0.0, 0.25])
def test_the_unsolvable_share_is_that_of_prompts_and_a_5_percent_error_would_show(guess):
    n, share, size = 100_000, 0.1, 8
    workload = JointWorkload(
        prompts=Prompts(count=n),
        unsolvable_share=share,
        guess_rate=guess,
        drift=Drift(logit_per_step=0.1),
    )
    stream = PromptStream(workload, group_size=size, cap_tokens=10**6, seed=3)
    groups = stream.draw(0, n, trained_steps=20)
    unsolvable = groups.pass_rate_P == guess
    found = float(unsolvable.mean())
    se = np.sqrt(share * (1 - share) / n)
    assert abs(found - share) < 4.5 * se
    assert abs(found - 1.05 * share) > 4.5 * se
    right = float(groups.correct_PG[unsolvable].mean())
    se = np.sqrt(guess * (1 - guess) / (size * unsolvable.sum()))
    assert abs(right - guess) <= 4.5 * se
    assert guess == 0.0 or abs(right - 1.05 * guess) > 4.5 * se
