"""Quadrature summaries against the stream they summarise, and against closed forms."""

import numpy as np
import pytest
from scipy import special

from dapolab.scenario import (
    BetaPassRate,
    ConfigError,
    ConstantLengths,
    Drift,
    ExponentialLengths,
    FixedPassRate,
    IndependentWorkload,
    JointWorkload,
    LognormalLengths,
    Prompts,
    ReplayWorkload,
)
from dapolab.theory import groups
from dapolab.workload import PromptStream, marginals, mixed_probability, survival

POOL = Prompts(count=120_000)
N, G, CAP = 100_000, 8, 3000
JOINT = JointWorkload(
    prompts=POOL,
    correlation=-0.5,
    correct_effect=-0.3,
    loop_share=0.05,
    loop_sd_logit=1.5,
    loop_correlation=-0.5,
    p_correct_if_truncated=0.2,
    drift=Drift(logit_per_step=0.1, log_tokens_per_step=-0.05),
)
UNSOLVABLE = JOINT.model_copy(update={"unsolvable_share": 0.25})
GUESSED = UNSOLVABLE.model_copy(update={"guess_rate": 0.15})
SHARED = IndependentWorkload(
    prompts=POOL,
    lengths=LognormalLengths(prompt_share=0.6, median_tokens=900.0),
    pass_rate=BetaPassRate(a=0.5, b=0.7),
    p_correct_if_truncated=0.0,
)


def _measured(workload):
    """Per-prompt values of each summary in the stream, (name, values)."""
    groups = PromptStream(workload, group_size=G, cap_tokens=CAP, seed=5).draw(
        0, N, trained_steps=4
    )
    right = groups.correct_PG.sum(axis=1)
    mixed = (right > 0) & (right < G)
    longest = groups.n_tokens_PG.max(axis=1)
    return {
        "q": mixed * 1.0,
        "accuracy": right / G,
        "accuracy of mixed": right[mixed] / G,
        "truncated": groups.truncated_PG.mean(axis=1),
        "tokens": groups.n_tokens_PG.mean(axis=1),
        "tokens of mixed": groups.n_tokens_PG[mixed].mean(axis=1),
        "survival": (groups.n_tokens_PG > 1000).mean(axis=1),
        "group survival": (longest > 1500) * 1.0,
        "mixed group survival": (longest[mixed] > 1500) * 1.0,
    }


def _predicted(workload):
    law = marginals(workload, group_size=G, cap_tokens=CAP, trained_steps=4)
    return {
        "q": law.mixed_probability,
        "accuracy": law.accuracy,
        "accuracy of mixed": law.accuracy_mixed,
        "truncated": law.truncated_share,
        "tokens": law.mean_tokens,
        "tokens of mixed": law.mean_tokens_mixed,
        "survival": float(law.survival(1000)),
        "group survival": float(law.group_survival(1500)),
        "mixed group survival": float(law.mixed_group_survival(1500)),
    }


@pytest.mark.parametrize(
    "workload",
    [JOINT, UNSOLVABLE, GUESSED, SHARED],
    ids=["joint", "unsolvable", "guessed", "independent"],
)
def test_summaries_agree_with_the_stream_and_a_5_percent_error_would_not(workload):
    predicted = _predicted(workload)
    for name, values in _measured(workload).items():
        se = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - predicted[name]) < 4.5 * se, name
        assert abs(values.mean() - 1.05 * predicted[name]) > 4.5 * se, name


def test_unsolvable_prompts_by_hand():
    """p = 3/4 for half of the prompts, 0 for the others; groups of 4, nothing cut."""
    workload = JointWorkload(
        sigma=0.0, mean_logit=float(np.log(3)), sd_logit=0.0, unsolvable_share=0.5
    )
    law = marginals(workload, group_size=4, cap_tokens=10**6)
    right, wrong = (3 / 4) ** 4, (1 / 4) ** 4
    assert law.all_right_probability == pytest.approx(right / 2)
    assert law.all_wrong_probability == pytest.approx(1 / 2 + wrong / 2)
    assert law.accuracy == pytest.approx(3 / 8)
    # E[K/4; 0 < K < 4] = 3/4 − P(K = 4) for a solvable prompt: what the filter keeps is theirs
    assert law.accuracy_mixed == pytest.approx((3 / 4 - right) / (1 - right - wrong))
    assert law.conditional_survival(1.0).shape == (len(law.weight_N), 1)
    nothing = workload.model_copy(update={"unsolvable_share": 1.0})
    assert np.isnan(marginals(nothing, group_size=4, cap_tokens=10**6).accuracy_mixed)


def test_guessed_prompts_by_hand():
    """Pass rate 3/4 for half of the prompts, guesses at 1/4 for the others; right twice as long."""
    workload = JointWorkload(
        median_tokens=1000.0,
        sigma=0.0,
        mean_logit=float(np.log(3)),
        sd_logit=0.0,
        correct_effect=float(np.log(2)),
        unsolvable_share=0.5,
        guess_rate=0.25,
        p_correct_if_truncated=0.2,
    )
    law = marginals(workload, group_size=4, cap_tokens=10**6)
    # the two are each other's mirror: 3/4 right of the one, 3/4 wrong of the other
    assert law.all_right_probability == pytest.approx((81 + 1) / 512)
    assert law.all_wrong_probability == pytest.approx((81 + 1) / 512)
    assert law.accuracy == pytest.approx(1 / 2)
    assert law.accuracy_mixed == pytest.approx(1 / 2)
    assert law.mean_tokens == pytest.approx(1500, rel=1e-3)
    # a cap that cuts every right answer leaves r = 1/4 · .2 of the guessed, 3/4 · .2 of the others
    cut = marginals(workload, group_size=4, cap_tokens=1500)
    assert cut.truncated_share == pytest.approx(1 / 2)
    assert cut.all_wrong_probability == pytest.approx((0.95**4 + 0.85**4) / 2)
    assert cut.accuracy_mixed == pytest.approx(
        (0.05 + 0.15 - 0.05**4 - 0.15**4) / (2 - 0.95**4 - 0.85**4 - 0.05**4 - 0.15**4)
    )
    # training teaches the solvable ones alone
    taught = workload.model_copy(update={"drift": Drift(logit_per_step=1.0, logit_per_visit=2.0)})
    later = marginals(taught, group_size=4, cap_tokens=10**6, trained_steps=300, visits=50)
    assert later.accuracy == pytest.approx((1 + 1 / 4) / 2)


@pytest.mark.parametrize(
    ("mean", "sd", "share", "guess"),
    [(3.3, 1.3, 0.09, 0.0), (-1.0, 2.5, 0.4, 0.0), (3.3, 1.3, 0.09, 0.04), (-1.0, 2.5, 0.4, 0.25)],
)
def test_unsolvable_prompts_agree_with_theory(mean, sd, share, guess):
    workload = JointWorkload(mean_logit=mean, sd_logit=sd, unsolvable_share=share, guess_rate=guess)
    law = marginals(workload, group_size=G, cap_tokens=10**9)
    judge = groups.mixed_groups_logit_normal(
        mean, sd, group_size=G, unsolvable_share=share, guess_rate=guess
    )
    assert law.mixed_probability == pytest.approx(judge.p_mixed, abs=2e-5)
    assert law.all_wrong_probability == pytest.approx(judge.p_all_wrong, abs=2e-5)
    assert law.accuracy == pytest.approx(judge.mean_pass_rate, abs=2e-5)
    assert law.accuracy_mixed == pytest.approx(judge.kept_accuracy, abs=2e-5)


def test_survival_at_the_cap_is_zero_and_just_below_is_the_truncated_share():
    law = marginals(JOINT, group_size=G, cap_tokens=CAP)
    assert law.survival(CAP) == 0.0
    assert law.survival(CAP - 1e-9) >= law.truncated_share
    assert float(law.survival(0)) == pytest.approx(1.0, abs=1e-12)
    assert survival(JOINT, cap_tokens=CAP)(np.array([500.0, CAP])).shape == (2,)
    conditional = law.conditional_survival([500, CAP])
    assert conditional.shape == (len(law.weight_N), 2)
    assert law.weight_N @ conditional[:, 0] == pytest.approx(float(law.survival(500)), rel=1e-9)


def test_independent_lengths_have_closed_forms():
    workload = IndependentWorkload(
        lengths=ExponentialLengths(mean_tokens=500.0), pass_rate=FixedPassRate(p=0.3)
    )
    law = marginals(workload, group_size=4, cap_tokens=10**5)
    assert law.mixed_probability == pytest.approx(1 - 0.3**4 - 0.7**4, abs=1e-12)
    x = np.array([100.0, 800.0])
    assert np.allclose(law.survival(x), np.exp(-x / 500))
    assert np.allclose(law.group_survival(x), 1 - (1 - np.exp(-x / 500)) ** 4)
    # Lengths independent of correctness: mixed groups are as long as all.
    assert law.mean_tokens_mixed == pytest.approx(law.mean_tokens, rel=1e-9)
    assert np.allclose(law.mixed_group_survival(x), law.group_survival(x))


def test_constant_length_equal_to_the_cap_is_complete():
    workload = IndependentWorkload(
        lengths=ConstantLengths(tokens=100), pass_rate=FixedPassRate(p=1.0)
    )
    stream = PromptStream(workload, group_size=3, cap_tokens=100, seed=0)
    groups = stream.draw(0, 5)
    assert not groups.truncated_PG.any()
    assert groups.correct_PG.all()
    assert marginals(workload, group_size=3, cap_tokens=100).truncated_share == 0.0


def _write(tmp_path, rows):
    file = tmp_path / "rows.csv"
    file.write_text("prompt_id,n_tokens,correct,truncated\n" + "\n".join(rows) + "\n")
    return file


def test_replay_draws_recorded_rows_without_replacement(tmp_path):
    rows = [f"a,{10 + i},{int(i < 2)},0" for i in range(5)]
    rows += [f"b,{20 + i},1,0" for i in range(4)]
    workload = ReplayWorkload(file=str(_write(tmp_path, rows)))
    groups = PromptStream(workload, group_size=4, cap_tokens=100, seed=1).draw(0, 4000)
    for tokens, prompt in zip(groups.n_tokens_PG, groups.prompt_id_P, strict=True):
        assert len(set(tokens)) == 4
        assert set(tokens) <= set(range(10, 15) if prompt == 0 else range(20, 24))
    a = groups.prompt_id_P == 0
    assert np.allclose(groups.pass_rate_P[a], 0.4)
    # K of 5 right, 2 right rows, 4 drawn: q = 1 − [C(2,4) + C(3,4)]/C(5,4) = 1 exactly.
    assert (groups.correct_PG[a].sum(axis=1) % 4 != 0).all()
    assert mixed_probability(workload, group_size=4, cap_tokens=100) == pytest.approx(0.5)
    # q at G = 2 is hypergeometric, not 1 − p² − (1 − p)² = .48: 1 − (C(2,2) + C(3,2))/C(5,2) = .6
    assert mixed_probability(workload, group_size=2, cap_tokens=100) == pytest.approx(0.3)
    right = groups.correct_PG[a].mean()
    # Drawing 4 of 5 leaves (5 − 4)/(5 − 1) of the binomial variance.
    se = np.sqrt(0.4 * 0.6 / (4 * a.sum()) / 4)
    assert abs(right - 0.4) < 4.5 * se
    assert abs(right - 0.42) > 4.5 * se


def test_replay_cuts_again_at_a_lower_cap_and_judges_by_the_parameter(tmp_path):
    rows = [f"a,{n},1,0" for n in (10, 20, 30, 40)]
    workload = ReplayWorkload(file=str(_write(tmp_path, rows)), p_correct_if_truncated=0.0)
    groups = PromptStream(workload, group_size=4, cap_tokens=25, seed=1).draw(0, 10)
    assert (np.sort(groups.n_tokens_PG, axis=1) == [10, 20, 25, 25]).all()
    assert (groups.correct_PG.sum(axis=1) == 2).all()
    assert (groups.truncated_PG.sum(axis=1) == 2).all()
    law = marginals(workload, group_size=4, cap_tokens=25)
    assert law.mean_tokens == pytest.approx(20.0)
    assert law.mixed_probability == pytest.approx(1.0)


def test_missing_verdicts_of_truncated_rows_follow_the_parameter(tmp_path):
    rows = [f"{i},{end}" for i in range(200) for end in ("50,,1", "50,,1", "10,0,0")]
    workload = ReplayWorkload(file=str(_write(tmp_path, rows)), p_correct_if_truncated=0.3)
    groups = PromptStream(workload, group_size=3, cap_tokens=50, seed=2).draw(0, 20_000)
    rate = groups.correct_PG[groups.truncated_PG].mean()
    se = np.sqrt(0.3 * 0.7 / 40_000)
    assert abs(rate - 0.3) < 4.5 * se
    assert abs(rate - 0.315) > 4.5 * se


@pytest.mark.parametrize(
    ("rows", "group_size", "cap", "line"),
    [
        (["a,10,1,0", "a,12,0,0"], 4, 100, "dapolab fit"),
        (["a,10,1,0", "a,12,,0"], 2, 100, "correct is missing"),
        (["a,10,1,0", "a,50,0,1"], 2, 100, "cap_tokens <= 50"),
        (["a,,1,0", "a,12,0,0"], 2, 100, "n_tokens >= 1"),
    ],
)
def test_unusable_replays_say_what_to_do(tmp_path, rows, group_size, cap, line):
    workload = ReplayWorkload(file=str(_write(tmp_path, rows)))
    with pytest.raises(ConfigError, match=line):
        PromptStream(workload, group_size=group_size, cap_tokens=cap, seed=0)


def test_replay_of_a_missing_or_foreign_file_is_a_config_error(tmp_path):
    foreign = tmp_path / "foreign.csv"
    foreign.write_text("colour,taste\nred,sweet\n")
    for file in (tmp_path / "none.csv", foreign):
        with pytest.raises(ConfigError, match=file.name):
            PromptStream(ReplayWorkload(file=str(file)), group_size=2, cap_tokens=9, seed=0)


def test_replay_reads_the_public_sets_as_they_are(shared_data):
    workload = ReplayWorkload(
        file=str(shared_data / "cot_loop_qwen3_1p7b" / "gpqa_n10_lengths.csv")
    )
    law = marginals(workload, group_size=8, cap_tokens=30000)
    groups = PromptStream(workload, group_size=8, cap_tokens=30000, seed=0).draw(0, 48 * 100)
    q = (groups.correct_PG.any(axis=1) & ~groups.correct_PG.all(axis=1)).mean()
    assert abs(q - law.mixed_probability) < 4.5 * np.sqrt(0.25 / 4800)
    assert law.truncated_share == pytest.approx(34 / 480)


def test_level_and_logit_are_correlated_as_told():
    workload = JOINT.model_copy(update={"loop_share": 0.0, "correct_effect": 0.0})
    groups = PromptStream(workload, group_size=2, cap_tokens=10**6, seed=9).draw(0, 50_000)
    level = np.log(groups.n_tokens_PG - 0.5).mean(axis=1)
    z = special.logit(groups.pass_rate_P)
    # Two responses a prompt: var(mean) = between + within/2.
    between, within = 0.75 * 0.64, 0.25 * 0.64
    expected = -0.5 * np.sqrt(between / (between + within / 2))
    se = (1 - expected**2) / np.sqrt(50_000)
    found = np.corrcoef(level, z)[0, 1]
    assert abs(found - expected) < 4.5 * se
    assert abs(found - 1.05 * expected) > 4.5 * se
