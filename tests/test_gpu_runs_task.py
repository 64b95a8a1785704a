"""The digit-sum task: splits, the judge, demonstrations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapolab.errors import ConfigError
from gpu_runs.demonstrations import Style, demonstrations
from gpu_runs.task import (
    ANSWER,
    BOS,
    DIGIT,
    EQUALS,
    FILLER,
    LABEL,
    MASKED,
    MODULUS,
    N_LABELS,
    PAIR,
    STOP,
    SUM,
    VOCAB_SIZE,
    DigitSum,
)

TASK = DigitSum()


def read_prompt(prompt):
    """Return (labels, digits) of a prompt, None for a masked digit."""
    assert prompt[0] == BOS
    assert prompt[-1] == EQUALS
    pairs = [divmod(token - PAIR, MODULUS + 1) for token in prompt[1:-1]]
    return [label for label, _ in pairs], [None if d == MASKED else d for _, d in pairs]


def test_recorded_answers_are_the_sums_and_labels_follow_each_other():
    problems = TASK.problems("train", 500, seed=0)
    assert {p.difficulty for p in problems} == set(range(2, 13))
    for problem in problems:
        labels, digits = read_prompt(problem.prompt)
        assert labels == [(labels[0] + i) % N_LABELS for i in range(len(labels))]
        assert problem.difficulty == len(digits)
        if None in digits:
            assert problem.stratum == "masked"
            assert digits.count(None) == 1
        else:
            assert problem.stratum == f"n={len(digits)}"
            assert problem.answer == sum(digits) % 5


def test_splits_share_no_problem_whatever_the_seeds():
    train = [p for seed in (0, 1) for p in TASK.problems("train", 800, seed=seed)]
    held_out = [p for seed in (0, 7) for p in TASK.problems("heldout", 400, seed=seed)]
    assert not {p.prompt for p in train} & {p.prompt for p in held_out}
    assert not {p.id for p in train} & {p.id for p in held_out}


def test_a_split_is_distinct_and_a_longer_one_starts_with_the_shorter():
    short, long = (TASK.problems("train", n, seed=3) for n in (50, 700))
    assert long[:50] == short
    assert len({p.id for p in long}) == len({p.prompt for p in long}) == 700
    assert TASK.problems("train", 50, seed=4) != short


def test_masked_share_and_unwritable_answers():
    # 10 % of prompts are masked; of their 25 recorded answers 5 can be written
    problems = TASK.problems("train", 12000, seed=1)
    masked = [p for p in problems if p.stratum == "masked"]
    share = len(masked) / len(problems)
    # n = 2 has only 300 unmasked prompts a share of which is used up, so masked ones gain a little
    assert 0.1 - 4.5 * (0.09 / 12000) ** 0.5 < share < 0.1 + 4.5 * (0.09 / 12000) ** 0.5 + 0.02
    writable = np.mean([p.answer < MODULUS for p in masked])
    assert abs(writable - 0.2) < 4.5 * (0.16 / len(masked)) ** 0.5
    assert abs(writable - 0.2 * 1.5) > 4.5 * (0.16 / len(masked)) ** 0.5


@given(st.integers(2, 12), st.integers(0, 2**31))
def test_right_only_with_the_sum_at_the_end_of_a_finished_response(n, seed):
    problem = DigitSum(n_min=n, n_max=n, masked_share=0).draw(
        "train", rng=np.random.default_rng(seed)
    )
    answer = int(problem.answer)
    end = [ANSWER, SUM + answer, STOP]
    assert TASK.is_right(problem, [FILLER, *end], finished=True)
    assert not TASK.is_right(problem, [FILLER, *end], finished=False)
    assert not TASK.is_right(problem, [*end, FILLER], finished=True)
    assert not TASK.is_right(problem, end[:-1], finished=True)
    wrong = [ANSWER, SUM + (answer + 1) % MODULUS, STOP]
    assert not TASK.is_right(problem, wrong, finished=True)
    assert TASK.answer_of(wrong) == (answer + 1) % MODULUS
    for no_answer in ([], [STOP], [ANSWER, DIGIT, STOP], [FILLER, SUM, STOP]):
        assert TASK.answer_of(no_answer) is None
        assert not TASK.is_right(problem, no_answer, finished=True)


def test_an_unwritable_answer_is_never_right():
    masked = DigitSum(masked_share=1.0).problems("train", 60, seed=0)
    unwritable = [p for p in masked if p.answer >= MODULUS]
    assert unwritable
    every = [[ANSWER, token, STOP] for token in range(VOCAB_SIZE)]
    assert not any(TASK.is_right(p, r, finished=True) for p in unwritable for r in every)


def test_demonstrations_add_up_and_come_from_the_training_split():
    style = Style(base_slip=0.0, slip=0.0, cap_tokens=10_000)
    task = DigitSum(masked_share=0.0)
    held_out = {p.prompt for p in task.problems("heldout", 300, seed=0)}
    for shown in demonstrations(task, 300, rng=np.random.default_rng(0), style=style):
        assert shown.prompt not in held_out
        labels, digits = read_prompt(shown.prompt)
        assert 2 <= len(digits) <= style.n_max
        tokens = [t for t in shown.response if t != FILLER]
        assert len(shown.response) - len(tokens) == TASK.filler_count(shown.response)
        total, echoed, i = 0, [], 0
        while tokens[i] != ANSWER:
            if LABEL <= tokens[i] < DIGIT:
                echoed.append((tokens[i] - LABEL, tokens[i + 1] - DIGIT))
                total, i = total + echoed[-1][1], i + 2
            else:
                assert tokens[i] == SUM + total % MODULUS
                i += 1
        assert echoed == list(zip(labels, digits, strict=True))
        assert tokens[i:] == [ANSWER, SUM + sum(digits) % MODULUS, STOP]


def test_slips_make_hasty_steps_wrong():
    # one step of k digits slips with 0.02 + 0.08 (k − 1), and 4 of 5 random sums are wrong
    task = DigitSum(n_min=4, n_max=4, masked_share=0.0)
    style = Style(single_shares=(0.0,), filler_rates=(0.0,))
    wrong = []
    for shown in demonstrations(task, 4000, rng=np.random.default_rng(1), style=style):
        _, digits = read_prompt(shown.prompt)
        sums = [t for t in shown.response if SUM <= t < PAIR]
        if len(sums) == 2:  # one step of 4, and the answer
            wrong.append(TASK.answer_of(shown.response) != sum(digits) % MODULUS)
    expected, n = 0.8 * (0.02 + 0.08 * 3), len(wrong)
    assert abs(np.mean(wrong) - expected) < 4.5 * (expected * (1 - expected) / n) ** 0.5


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="n must lie in"):
        DigitSum(n_min=3, n_max=13)
    with pytest.raises(ConfigError, match="raise n_max"):
        DigitSum(n_max=2).problems("heldout", 100, seed=0)
