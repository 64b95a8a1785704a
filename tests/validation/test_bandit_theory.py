"""The bandit, trained by the objective, against the closed forms of theory (C2-C7, D2, D7, E, P8).

Exact rows to 1e-9; sampled rows within 4.5 standard errors, with a twin that is 5 % off and must be
rejected. ``dapolab.theory`` shares no code with either.
"""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch

from dapolab.bandit import (
    Mode,
    Training,
    expected_gradient,
    expected_hazard_gradient,
    final_estimates,
    first_drift,
    parse_mode,
    population_flow,
    push_without_signal,
    sampled_gradients,
    train,
)
from dapolab.bandit.answers import Answers
from dapolab.bandit.environments import (
    difficulty_ladder,
    eos_hazard,
    length_classes,
    many_arms,
    mismatch,
    overlong,
    rare_token,
    shared_length,
    two_lengths,
)
from dapolab.bandit.gradients import _first_update
from dapolab.bandit.rollout import Draws, collect, score
from dapolab.errors import ConfigError
from dapolab.scenario import (
    GrpoAdvantage,
    MeanOnlyAdvantage,
    NoClip,
    Objective,
    PpoClip,
    SeqMeanTokenMean,
    TokenSum,
)
from dapolab.theory import (
    clipping,
    difficulty,
    entropy,
    hazard_bandit,
    length_bandit,
)
from dapolab.theory import overlong as overlong_theory

MODES = ("seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-mean")
CONSTANT = 55.0


def a_mode(text: str, **training) -> Mode:
    objective = Objective(
        advantage=MeanOnlyAdvantage(), clip=PpoClip(), aggregation=SeqMeanTokenMean()
    )
    base = Mode(name="base", objective=objective, training=Training(**training))
    penalty = {"cap_tokens": 100, "buffer_tokens": 40}
    return parse_mode(text, base=base, penalty=penalty)


def normed(mode: str) -> str:
    return f"{mode}+aggregation.constant={CONSTANT}" if mode.endswith("norm") else mode


def std_words(std_ddof: int | None) -> str:
    return "mean_only" if std_ddof is None else f"grpo+advantage.ddof={std_ddof}+advantage.eps=0"


def constant(mode: str) -> float | None:
    return CONSTANT if mode.endswith("norm") else None


# ---------------------------------------------------------------------------- enumeration


def test_compositions_are_the_sum_over_all_ordered_groups() -> None:
    """Enumerate every ordered group by hand, 4 arms, groups of 3."""
    bandit, mode = length_classes(p_right=0.4, p_long=0.3), a_mode("grpo+token-mean", group_size=3)
    pi = bandit.probabilities(bandit.start)[0]
    rows = torch.tensor(list(itertools.product(range(4), repeat=3)))
    answers = Answers(rows, rows < 2, bandit.length_PA[0][rows])
    gradient = -_first_update(bandit, mode, bandit.start, answers)
    chance = pi[rows].prod(dim=-1)
    law = expected_gradient(bandit, mode)
    assert torch.allclose(law.mean, chance @ gradient, atol=1e-12)
    spread = gradient - chance @ gradient
    assert torch.allclose(law.covariance, (spread * chance[:, None]).T @ spread, atol=1e-12)


def test_two_groups_of_a_batch_are_enumerated_together() -> None:
    """Per-group aggregations: the same mean, half the variance."""
    one = expected_gradient(length_classes(), a_mode("prompt-mean", group_size=3))
    two = expected_gradient(length_classes(), a_mode("prompt-mean", group_size=3, n_groups=2))
    assert torch.allclose(one.mean, two.mean, atol=1e-12)
    assert torch.allclose(one.covariance, 2 * two.covariance, atol=1e-12)
    assert two.n_batches == one.n_batches**2
    with pytest.raises(ConfigError, match="too many"):
        expected_gradient(many_arms(), a_mode("token-mean", group_size=4, n_groups=4))


# ---------------------------------------------------------------------------- C2, C3, C4


@pytest.mark.parametrize("std_ddof", [None, 0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("p_right", [0.1, 0.3, 0.7])
def test_class_bandit(mode, std_ddof, p_right) -> None:
    """C4: all four aggregations, with and without std, 8 answers of 10 or 100 tokens."""
    bandit = length_classes(p_right=p_right, p_long=0.4)
    arms = length_bandit.class_bandit([1, 1, 0, 0], n_tokens_A=[10, 100, 10, 100])
    policy = bandit.probabilities(bandit.start)[0].numpy()
    right = length_bandit.expected_gradient(
        policy,
        bandit=arms,
        mode=mode,
        group_size=8,
        std_ddof=std_ddof,
        constant_tokens=constant(mode),
    )
    text = f"{normed(mode)}+{std_words(std_ddof)}"
    found = expected_gradient(bandit, a_mode(text, group_size=8)).mean.numpy()
    assert np.abs(found - right).max() < 1e-9 * np.abs(right).max() + 1e-12
    assert np.abs(found - 1.05 * right).max() > 1e-3 * np.abs(right).max()


def test_token_sum_is_unbiased_up_to_the_group_and_rloo_fully() -> None:
    """C2: (1 − 1/G)·∇J, and ∇J; ∇J = π(r − r̄), summed over the group's G answers."""
    bandit = length_classes(p_right=0.3)
    pi = bandit.probabilities(bandit.start)[0].numpy()
    gradient_J = pi * (np.array([1, 1, 0, 0]) - 0.3)
    for advantage, factor in (("mean_only", 7 / 8), ("rloo", 1.0)):
        found = expected_gradient(bandit, a_mode(f"token-sum+{advantage}", group_size=8)).mean
        assert np.abs(found.numpy() - 8 * factor * gradient_J).max() < 1e-12


@pytest.mark.parametrize("std", [None, 1])
@pytest.mark.parametrize("mode", [*MODES, "prompt-mean", "token-mean-micro+micro_rows=1"])
def test_shared_length_has_no_drift_in_any_mode(mode, std) -> None:
    """C3: the expected gradient of the length parameter is exactly 0."""
    text = f"{normed(mode)}+{std_words(std)}"
    found = expected_gradient(shared_length(), a_mode(text, group_size=6)).mean
    assert abs(found[1]) < 1e-15
    assert found[0] > 1e-4
    apart = expected_gradient(
        two_lengths(accuracy_short=0.5, accuracy_long=0.5), a_mode(text, group_size=4)
    ).mean
    assert abs(apart[0]) < 1e-15


@pytest.mark.parametrize("std_ddof", [None, 0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_length_follows_accuracy_where_lengths_differ_in_it(mode, std_ddof) -> None:
    """C3, second row."""
    bandit = two_lengths(accuracy_short=0.4, accuracy_long=0.7, p_long=0.1)
    right = length_bandit.shared_length_drift(
        0.1,
        accuracy_short=0.4,
        accuracy_long=0.7,
        short_tokens=10,
        long_tokens=100,
        mode=mode,
        group_size=6,
        std_ddof=std_ddof,
        constant_tokens=constant(mode),
    )
    text = f"{normed(mode)}+{std_words(std_ddof)}"
    found = expected_gradient(bandit, a_mode(text, group_size=6)).mean.item()
    assert found == pytest.approx(right, rel=1e-9)


def test_training_follows_the_ode() -> None:
    """C4's figures: S=10, ℓ=100; many answers a step, natural gradient, time 48 in steps of .25.

    Right 55 → 23.5, wrong 55 → 93.7, all → 36.7, pass rate → .812 in the theory's own path; the
    tolerance is the noise of 4,096 answers and the step.
    """
    mode = a_mode("natural", group_size=4096, n_steps=192, learning_rate=0.25 / (1 - 1 / 4096))
    run = train(length_classes(), mode, seeds=range(6), n_records=2)
    arms = length_bandit.class_bandit([1, 1, 0, 0], n_tokens_A=[10, 100, 10, 100])
    path = length_bandit.length_path(
        [0.15, 0.15, 0.35, 0.35],
        bandit=arms,
        mode="seq-mean-token-mean",
        geometry="natural",
        until=48,
        step=0.25,
    )
    ends = {
        "length/right": path.length_right_T[-1],
        "length/wrong": path.length_wrong_T[-1],
        "length/mean": path.length_T[-1],
        "reward/accuracy": path.accuracy_T[-1],
    }
    assert ends["length/wrong"] == pytest.approx(93.7, abs=0.1)
    for metric, end in ends.items():
        values = run.values[metric][-1]
        # The mean of 6 seeds, and a curvature of the path of the order of the noise's square.
        room = 4.5 * values.std(ddof=1) / math.sqrt(6) + 0.005 * abs(end)
        assert abs(values.mean() - end) < room
        assert abs(values.mean() - 1.05 * end) > room


def test_length_bias_has_the_signs_of_theory_over_seeds() -> None:
    """B67: 10 or 100 tokens; the 1/length weight lengthens wrong and shortens right answers.

    99 % intervals over seeds; of token sums the interval is within a quarter of that effect.
    """
    runs = {
        text: final_estimates(
            train(length_classes(), a_mode(text, n_steps=60, learning_rate=4.0), seeds=range(100))
        )
        for text in ("seq-mean-token-mean", normed("seq-mean-token-sum-norm"), "token-mean")
    }
    biased, summed, token = runs.values()
    assert biased["change/length/wrong"].low > 0 > biased["change/length/right"].high
    assert token["change/length/wrong"].low > 0 > token["change/length/right"].high
    for metric in ("change/length/wrong", "change/length/right"):
        quarter = abs(biased[metric].mean) / 4
        assert -quarter < summed[metric].low
        assert summed[metric].high < quarter
        assert abs(token[metric].mean) < abs(biased[metric].mean)


@pytest.mark.parametrize(("p_right", "sign"), [(0.3, 1), (0.5, 0), (0.7, -1)])
def test_mean_length_follows_the_pass_rate_under_plain_gradient(p_right, sign) -> None:
    """P7: d E[L] ∝ 1 − 2p for a plain gradient and equal classes, 0 for a natural one's Cov = 0."""
    bandit = length_classes(p_right=p_right, p_long=0.5)
    g = expected_gradient(bandit, a_mode("seq-mean-token-mean", group_size=8)).mean.numpy()
    pi = bandit.probabilities(bandit.start)[0].numpy()
    length = bandit.length_PA[0].numpy()
    drift = (pi * (length - pi @ length)) @ g
    wanted = (
        7
        / 8
        * length_bandit.plain_drift_equal_classes_tokens(p_right, short_tokens=10, long_tokens=100)
    )
    assert drift == pytest.approx(wanted, abs=1e-12)
    assert np.sign(round(drift, 12)) == sign
    natural = bandit.natural(bandit.start[None], torch.tensor(g)[None])[0].numpy()
    assert (pi * (length - pi @ length)) @ natural == pytest.approx(0.0, abs=1e-12)


def test_first_drift_is_that_of_theory() -> None:
    """C4, C5, P7 as metrics: tokens per unit of learning rate, exact without an interval."""
    bandit, arms = (
        length_classes(),
        length_bandit.class_bandit([1, 1, 0, 0], n_tokens_A=[10, 100] * 2),
    )
    start = bandit.probabilities(bandit.start)[0].numpy()
    for geometry in ("plain", "natural"):
        for aggregation in ("seq-mean-token-mean", "seq-mean-token-sum"):
            found = first_drift(bandit, a_mode(f"{aggregation}+{geometry}", group_size=8))
            wanted = length_bandit.length_drift_tokens(
                start, bandit=arms, mode=aggregation, geometry=geometry
            )
            assert found["first/length/mean"].low is None
            assert found["first/length/mean"].mean == pytest.approx(7 / 8 * wanted, abs=1e-9)
    p, h = 0.3, 0.02
    law = hazard_bandit.hazard_gradient(
        p, hazard_right=h, hazard_wrong=h, mode="seq-mean-token-mean", group_size=8
    )
    found = first_drift(eos_hazard(), a_mode("seq-mean-token-mean", group_size=8))
    # d(1/h)/du = −(1 − h)/h, d p/dv = p(1 − p)
    assert found["first/length/wrong"].mean == pytest.approx(-law.hazard_wrong * (1 - h) / h)
    assert found["first/reward/accuracy"].mean == pytest.approx(law.decision * p * (1 - p))


def test_first_drift_of_samples_has_the_exact_mean() -> None:
    """20 groups are too many to enumerate; per-group means expect what one group expects."""
    exact = first_drift(length_classes(), a_mode("seq-mean-token-mean", group_size=4))
    mode = a_mode("seq-mean-token-mean", group_size=4, n_groups=20)
    found = first_drift(length_classes(), mode, n_samples=8000)
    for name in ("first/length/wrong", "first/length/right", "first/reward/accuracy"):
        e, right = found[name], exact[name].mean
        error = (e.high - e.low) / 2 / 2.576
        assert abs(e.mean - right) < 4.5 * error
        assert abs(e.mean - 1.05 * right) > 4.5 * error


def test_first_step_of_adam_knows_no_scale() -> None:
    short, long = (
        first_drift(
            length_classes(),
            a_mode(f"seq-mean-token-sum-norm+adam+aggregation.constant={c}", group_size=8),
        )
        for c in (1, 10)
    )
    for name, e in short.items():
        assert e.mean == pytest.approx(long[name].mean, rel=1e-4, abs=1e-6)
    assert short["first/reward/accuracy"].low > 0


# ---------------------------------------------------------------------------- C5


HAZARDS = ((0.3, 0.05, 0.05), (0.5, 0.4, 0.2), (0.7, 0.1, 0.3))


@pytest.mark.parametrize("std_ddof", [None, 0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("start", HAZARDS)
def test_hazard_bandit(mode, std_ddof, start) -> None:
    """C5: all three parameters; the token mean's residue comes from its own convolution."""
    p, h_right, h_wrong = start
    bandit = eos_hazard(p_right=p, hazard_right=h_right, hazard_wrong=h_wrong)
    text = f"{normed(mode)}+{std_words(std_ddof)}"
    found = expected_hazard_gradient(bandit, a_mode(text, group_size=8)).numpy()
    right = hazard_bandit.hazard_gradient(
        p,
        hazard_right=h_right,
        hazard_wrong=h_wrong,
        mode=mode,
        group_size=8,
        std_ddof=std_ddof,
        constant_tokens=constant(mode),
    )
    wanted = np.array([right.decision, right.hazard_right, right.hazard_wrong])
    assert np.abs(found - wanted).max() < 1e-9 * np.abs(wanted).max()


def test_hazard_signs_and_the_size_of_the_token_means_residue() -> None:
    """Wrong answers grow, right ones shrink; token mean: same sign, 1/n of the size (P7, P8)."""
    bandit = eos_hazard(p_right=0.3, hazard_right=0.02, hazard_wrong=0.02)
    sequence, token, summed = (
        expected_hazard_gradient(bandit, a_mode(text, group_size=8))
        for text in ("seq-mean-token-mean", "token-mean", "token-sum")
    )
    assert sequence[1] > 0 > sequence[2]
    assert token[1] > 0 > token[2]
    assert 0.02 < (token[2] / sequence[2]).item() < 0.12
    assert summed[1:].abs().max() < 1e-12


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "token-mean"])
def test_hazard_convolution_equals_brute_enumeration(mode) -> None:
    """Pairs of answers, every length up to the tail, through the code that trains."""
    bandit = eos_hazard(p_right=0.4, hazard_right=0.6, hazard_wrong=0.5)
    chosen = a_mode(f"{mode}+grpo", group_size=2)
    brute = expected_gradient(bandit, chosen).mean
    assert torch.allclose(expected_hazard_gradient(bandit, chosen), brute, atol=1e-12)


def test_hazard_refuses_what_it_cannot_expect() -> None:
    for text in ("token-mean-micro+micro_rows=1", "opo", "filter-raw", "gmpo"):
        with pytest.raises(ConfigError, match="no exact expectation"):
            expected_hazard_gradient(eos_hazard(), a_mode(text))


# ---------------------------------------------------------------------------- C6, C7


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("group_size", [4, 8, 16])
def test_std_normalisation_weighs_prompts_by_c_g(ddof, group_size) -> None:
    """C6: E[g_k] = w·c_G(p_k)·p_k(1 − p_k), at most 1.43 times tilted at 8 answers (P9)."""
    rates = (0.01, 0.1, 0.5, 0.8)
    bandit = difficulty_ladder(pass_rates=rates)
    found = expected_gradient(bandit, a_mode(std_words(ddof), group_size=group_size)).mean
    p = np.array(rates)
    right = difficulty.std_weight(p, group_size=group_size, ddof=ddof) * p * (1 - p) / len(rates)
    assert np.abs(found.numpy() - right).max() < 1e-12
    if group_size == 8:
        weight = found.numpy() / (p * (1 - p))
        assert weight[0] / weight[2] == pytest.approx(1.41, abs=0.005)


@pytest.mark.parametrize("std_ddof", [None, 1])
@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "token-mean", "token-sum", "prompt-mean"])
def test_dynamic_sampling_scales_the_expected_gradient(mode, std_ddof) -> None:
    """C7: E[g | filter] = E[g]/E[q], the same direction to the last digit."""
    rates = (0.02, 0.2, 0.6, 0.95)
    bandit = difficulty_ladder(pass_rates=rates)
    text = f"{mode}+{std_words(std_ddof)}"
    plain = expected_gradient(bandit, a_mode(text, group_size=8))
    kept = expected_gradient(bandit, a_mode(f"{text}+filter-raw", group_size=8))
    gain = difficulty.dynamic_sampling_gradient(rates, group_size=8).gain
    assert kept.p_trained == pytest.approx(1 / gain, rel=1e-12)
    assert torch.allclose(kept.mean, gain * plain.mean, rtol=1e-9, atol=0)


def test_dynamic_sampling_with_refill_samples_the_scaled_gradient() -> None:
    """C7 through the sampler: refill up to 16 candidates a slot, 4 slots."""
    rates = (0.1, 0.5, 0.9)
    bandit = difficulty_ladder(pass_rates=rates)
    mode = a_mode("filter-raw", group_size=4, n_groups=4, max_candidates=16)
    n = 20_000
    found = sampled_gradients(bandit, mode, n_samples=n).numpy()
    plain = expected_gradient(bandit, a_mode("mean_only", group_size=4)).mean.numpy()
    right = difficulty.dynamic_sampling_gradient(rates, group_size=4).gain * plain
    error = found.std(axis=0, ddof=1) / math.sqrt(n)
    assert (np.abs(found.mean(axis=0) - right) < 4.5 * error).all()
    assert (np.abs(found.mean(axis=0) - 1.05 * right) > 4.5 * error).any()


# ---------------------------------------------------------------------------- samples


@pytest.mark.parametrize(
    ("bandit", "text"),
    [
        (length_classes(), "seq-mean-token-mean"),
        (length_classes(), "token-mean+grpo"),
        (overlong(), "overlong+grpo"),
        (overlong(), "exclude-truncated+grpo"),
        (mismatch(), "tis+no-clip"),
        (mismatch(noise=1.0), "icepop+no-clip"),
        (many_arms(n_arms=3, case="random"), "rloo"),
    ],
)
def test_sampled_gradients_have_the_enumerated_mean_and_variance(bandit, text) -> None:
    mode, n = a_mode(text, group_size=5), 80_000
    law = expected_gradient(bandit, mode)
    found = sampled_gradients(bandit, mode, n_samples=n).numpy()
    along = found @ (law.mean / law.mean.norm()).numpy()
    error = along.std(ddof=1) / math.sqrt(n)
    if law.mean.norm() > 1e-6:
        assert abs(along.mean() - law.mean.norm().item()) < 4.5 * error
        assert abs(along.mean() - 1.05 * law.mean.norm().item()) > 4.5 * error
    squares = (found - law.mean.numpy()) ** 2
    total = squares.sum(axis=1)
    error = total.std(ddof=1) / math.sqrt(n)
    assert abs(total.mean() - law.variance) < 4.5 * error
    assert abs(total.mean() - 1.05 * law.variance) > 4.5 * error


# ---------------------------------------------------------------------------- mismatch


def test_importance_weights_undo_the_sampler_where_no_baseline_is_sampled() -> None:
    """Single answers, advantage fixed (remax): Σ μ·(π/μ)·A·∇log π is the on-policy gradient."""
    bandit = mismatch(noise=0.8, temperature=1.3)
    exact = mismatch(noise=0.0)
    on_policy, weighted, plain = (
        expected_gradient(b, a_mode(f"remax+no-clip+{word}", group_size=1)).mean
        for b, word in ((exact, "no-correction"), (bandit, "importance"), (bandit, "no-correction"))
    )
    assert torch.allclose(weighted, on_policy, atol=1e-12)
    assert (plain - on_policy).norm() > 0.05 * on_policy.norm()


def test_truncation_and_band_by_hand() -> None:
    """TIS: Σ μ·min(w, 2)·A·(e − π); IcePop: w inside [.5, 5], else nothing."""
    bandit = mismatch(noise=1.2)
    pi = bandit.probabilities(bandit.start)[0].numpy()
    mu = bandit.outcomes(bandit.start, prompt=0).probability
    order = bandit.outcomes(bandit.start, prompt=0).choice
    mu = mu[order.argsort()].numpy()
    w = pi / mu
    right = bandit.success_PA[0].numpy()
    A = right - right[np.argmax(pi)]
    for word, weight in (
        ("tis", np.minimum(w, 2.0)),
        ("icepop", np.where((w >= 0.5) & (w <= 5.0), w, 0.0)),
        ("bypass", np.where(A > 0, w, w)),
    ):
        g = mu * weight * A
        wanted = g - pi * g.sum()
        found = expected_gradient(bandit, a_mode(f"remax+no-clip+{word}", group_size=1)).mean
        assert np.abs(found.numpy() - wanted).max() < 1e-12
    assert (w > 2).any()
    assert (w < 0.5).any()


# ---------------------------------------------------------------------------- D2, D3


def _flow_objective(high: float) -> Objective:
    return Objective(
        advantage=GrpoAdvantage(eps=0), clip=PpoClip(low=0.2, high=high), aggregation=TokenSum()
    )


@pytest.mark.parametrize(("high", "n_wanted"), [(0.2, 22), (0.28, 16)])
def test_positive_samples_alone_need_many_refreshes(high, n_wanted) -> None:
    """D2: .01 to .5 in 22 (ε = .2) and 16 (.28) old-policy refreshes."""
    flow = population_flow(
        rare_token(),
        _flow_objective(high),
        n_refreshes=n_wanted,
        n_inner=400,
        learning_rate=1e-3,
        geometry="natural",
        positive_only=True,
    )
    p = flow.probability[:, 0]
    assert n_wanted == clipping.refreshes_to_reach(0.01, p_target=0.5, high=high)
    assert p[-1] >= 0.5 * 0.999
    assert p[-2] < 0.5
    np.testing.assert_allclose(p[1:] / p[:-1], 1 + high, rtol=0.01)


@pytest.mark.parametrize("high", [0.2, 0.28])
def test_negatives_lift_a_rare_answer_beyond_the_clip(high) -> None:
    """D2: .01 to .208 in one rollout, to .5 in 4, whatever ε_high."""
    flow = population_flow(
        rare_token(),
        _flow_objective(high),
        n_refreshes=4,
        n_inner=1700,
        learning_rate=0.02,
        geometry="natural",
    )
    p = flow.probability[:, 0]
    for before, after in itertools.pairwise(p):
        fixed = clipping.rollout_fixed_point(before, low=0.2, high=high)
        assert after == pytest.approx(fixed, rel=0.02)  # the last step's overshoot
        assert abs(after - 1.05 * fixed) > 0.02 * fixed
    assert p[1] == pytest.approx(0.208, abs=0.001)
    assert (p >= 0.5).argmax() == 4


@pytest.mark.parametrize("geometry", ["natural", "plain"])
def test_inner_steps_to_the_clip(geometry) -> None:
    """D3: the step at which the right arm's ratio passes 1 + ε, from p = .1."""
    p, eta = 0.1, 1e-3
    bandit = rare_token(p_rare=p)
    steps = getattr(clipping.inner_steps_to_clip(p, high=0.28, learning_rate=eta), geometry)

    def end(n_inner: int) -> float:
        flow = population_flow(
            bandit,
            _flow_objective(0.28),
            n_refreshes=1,
            n_inner=n_inner,
            learning_rate=eta,
            geometry=geometry,
        )
        return float(flow.probability[-1, 0])

    assert end(math.floor(0.99 * steps)) < 1.28 * p < end(math.ceil(1.01 * steps) + 1)


# ---------------------------------------------------------------------------- D4, D7


def test_entropy_change_of_a_small_step() -> None:
    """D4: dH = −Cov(log π, Δz) + O(η²) for the expected plain gradient of thirty arms."""
    bandit = many_arms(p_likely=0.5)
    pi = bandit.probabilities(bandit.start)[0].numpy()
    A = np.eye(30)[0] - pi[0]
    eta = 1e-4
    flow = population_flow(
        bandit,
        Objective(advantage=MeanOnlyAdvantage(), clip=NoClip(), aggregation=TokenSum()),
        n_refreshes=1,
        n_inner=1,
        learning_rate=eta,
    )
    found = (flow.entropy[1] - flow.entropy[0]) / eta
    assert found == pytest.approx(entropy.entropy_change_plain(pi, advantage_A=A), rel=1e-3)


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ((0.6, 0.4), (0.75, 0.25)),  # the counter-example: the upper clip raises H
        ((0.25, 0.25, 0.25, 0.25), (0.4, 0.3, 0.19, 0.11)),
        ((0.9, 0.05, 0.03, 0.02), (0.85, 0.08, 0.06, 0.01)),
    ],
)
@pytest.mark.parametrize("high", [0.2, 0.28])
def test_push_of_the_clip_alone(old, now, high) -> None:
    """D5: rewards that say nothing; the rest is a force back to the old policy."""
    n = len(old)
    old_theta, theta = (torch.tensor(p, dtype=torch.float64).log() for p in (old, now))
    bandit = many_arms(case="random", n_arms=n, p_likely=0.5)
    objective = Objective(clip=PpoClip(low=0.2, high=high))
    found = push_without_signal(bandit, objective, theta=theta, old_theta=old_theta).numpy()
    right = entropy.clip_bias(now, old_policy_A=old, low=0.2, high=high, mean_abs_advantage=1.0)
    assert np.abs(found - right.logit_step_A).max() < 1e-12
    pi = np.array(now)
    change = -(pi * (np.log(pi) - pi @ np.log(pi))) @ found  # −Cov(log π, Δz)
    assert change == pytest.approx(right.entropy_change, rel=1e-9)
    without = push_without_signal(
        bandit, Objective(clip=NoClip()), theta=theta, old_theta=old_theta
    )
    assert without.abs().max() < 1e-15
    if n == 2:
        assert change > 0


@pytest.mark.parametrize("clip", ["gspo", "cispo", "sapo", "dppo_tv", "luspo", "no-clip", "gpg"])
def test_at_ratio_one_every_surrogate_is_reinforce(clip) -> None:
    """D1: the same first gradient; GSPO's under seq-mean-token-mean carries GRPO's 1/L, and
    LUSPO's, which multiplies by L, is the token sum's."""
    bandit = length_classes()
    aggregation = "seq-mean-token-sum" if clip == "luspo" else "seq-mean-token-mean"
    wanted = expected_gradient(bandit, a_mode(f"ppo+{aggregation}", group_size=6)).mean
    found = expected_gradient(bandit, a_mode(f"{clip}+seq-mean-token-mean", group_size=6)).mean
    assert torch.allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("word", "multiplier"),
    [
        ("clip.high=0.28", partial(clipping.ppo_multiplier, low=0.2, high=0.28)),
        (
            "clip.high=0.5+clip.dual_c=1.1",
            partial(clipping.ppo_multiplier, low=0.2, high=0.5, dual_c=1.1),
        ),
        (
            "cispo+clip.high=0.2",
            lambda r, advantage: clipping.cispo_multiplier(r, low=None, high=0.2),
        ),
        ("sapo", clipping.sapo_multiplier),
    ],
)
def test_inner_steps_follow_the_multiplier(word, multiplier) -> None:
    """D1: 24 steps on one rollout of 30 arms, each Δz = η·mean m(r, A)·A·(e_a − π), in numpy."""
    bandit = many_arms(case="random", p_likely=0.3)
    mode = a_mode(f"grpo+{word}", group_size=32, n_epochs=24, n_steps=1)
    seeds = range(3)
    run = train(bandit, mode, seeds=seeds)
    start = bandit.start.expand(len(seeds), -1)
    draws = Draws(0, seeds, n_groups=1, group_size=32).step()
    rollout = collect(bandit, mode, theta=start, sampler_theta=start, draws=draws)
    arm, right = rollout.answers.choice.numpy(), rollout.answers.right.numpy().astype(float)
    A = (right - right.mean(1, keepdims=True)) / (right.std(1, ddof=1, keepdims=True) + 1e-6)
    rises, falls = 0.0, 0.0
    for row in seeds:
        z = bandit.start.numpy().copy()
        old = np.exp(z) / np.exp(z).sum()
        for _ in range(24):
            pi = np.exp(z) / np.exp(z).sum()
            ratio = pi[arm[row]] / old[arm[row]]
            weight = multiplier(ratio, advantage=A[row]) * A[row] / 32
            z += weight @ (np.eye(30)[arm[row]] - pi)
            rises = max(rises, ratio[A[row] > 0].max())
            falls = max(falls, ratio[A[row] < 0].max())
        assert np.abs(run.theta[row] - z).max() < 1e-10
    # Bounds on both sides were met: upwards with A > 0, and by ratios that rise against A < 0.
    assert rises > 1.28
    assert falls > 1.1


SIGNS = (
    ("likely_right", 0.5, 0.28, -1),
    ("likely_right", 0.9, 0.28, 0),
    ("likely_wrong", 0.9, 0.5, +1),
    ("random", 0.9, 0.28, +1),
    ("random", 0.5, 0.28, +1),
    ("random", 1 / 30, 0.28, -1),
)


@pytest.mark.parametrize(("case", "p_likely", "high", "sign"), SIGNS)
def test_sign_map_of_clip_higher(case, p_likely, high, sign) -> None:
    """D7: 30 arms, 32 answers, 16 inner steps; H with ε_high less H with .2, one rollout."""
    bandit = many_arms(case=case, p_likely=p_likely)
    change = {}
    for bound in (0.2, high):
        text = f"grpo+clip.high={bound}"
        mode = a_mode(text, group_size=32, n_epochs=16, n_steps=1)
        change[bound] = train(bandit, mode, seeds=range(400), n_records=2).change("entropy/answer")
    effect = change[high] - change[0.2]
    error = effect.std(ddof=1) / math.sqrt(effect.size)
    if sign == 0:
        # p·(1 + ε) > 1: the upper clip cannot bind on the likely arm, and no rare one is right.
        assert (effect == 0.0).all()
        return
    assert sign * effect.mean() > 4.5 * error


def test_no_sign_where_the_mechanism_is_off() -> None:
    """The twin of D7: one update, or equal ε, and clip-higher does nothing at all."""
    bandit = many_arms(case="random")
    once = [
        train(bandit, a_mode(f"grpo+clip.high={h}", group_size=32, n_steps=1), seeds=range(20))
        for h in (0.2, 0.28)
    ]
    assert (once[0].theta == once[1].theta).all()


# ---------------------------------------------------------------------------- E


def test_a_right_answer_in_the_buffer_is_pushed_down() -> None:
    """E1: seven of eight right, one of them penalised by u = .625 > .286."""
    bandit = overlong()
    mode = a_mode("overlong+grpo", group_size=8)
    # Six right short answers, one right answer in the buffer, one wrong short one.
    choice = torch.tensor([[0] * 6 + [1] + [2]])
    answers = Answers(choice, choice < 2, bandit.length_PA[0][choice])
    signal = score(bandit, mode, bandit.start.unsqueeze(0), answers)
    flips = overlong_theory.sign_flips(
        answers.right[0].numpy(), penalty_share_G=[0.0] * 6 + [25 / 40] + [0.0]
    )
    A = signal.advantages[0, :, 0].numpy()
    assert ((A < 0) & answers.right[0].numpy()).tolist() == flips.right_punished_G.tolist()
    assert A[6] < 0 < A[0]


def test_filter_on_shaped_rewards_keeps_the_theory_s_share() -> None:
    """E3: an all-right group is kept unless all its penalties are equal."""
    bandit = overlong(right=(0.6, 0.399), wrong=(0.0003, 0.0003, 0.0004))
    shaped = expected_gradient(bandit, a_mode("overlong+grpo+filter-shaped", group_size=6))
    raw = expected_gradient(bandit, a_mode("overlong+grpo+filter-raw", group_size=6))
    uniform = [0.6, 0.399]
    all_right = sum(uniform) ** 6
    kept_all_right = all_right - sum(x**6 for x in uniform)
    mixed = 1 - all_right - 0.001**6
    assert raw.p_trained == pytest.approx(mixed, rel=1e-9)
    assert shaped.p_trained == pytest.approx(mixed + kept_all_right, rel=1e-6)
    # What was a signal about correctness is now, for the most part, one about length.
    assert shaped.mean[0] > 0 > shaped.mean[1]


def _by_hand(aggregation: str, rule: str, arms: tuple[int, ...]) -> np.ndarray:
    """Return Σ_i scale·A_i·(e_a − π) of one ordered group, from the rules alone (DAPO §3.3, §3.4).

    Raw ±1, the soft penalty over the last 40 of 100 tokens, std with ddof 1; a truncated answer's
    tokens leave numerator and denominator alike where it is masked or excluded.
    """
    pi = np.array([0.40, 0.15, 0.15, 0.10, 0.20])
    arm = np.array(arms)
    length = np.array([40, 85, 40, 85, 100])[arm]
    reward = np.where(arm < 2, 1.0, -1.0)
    if rule == "overlong":
        reward -= np.clip((length - 60) / 40, 0.0, 1.0)
    whole = arm != 4
    known = reward[whole] if rule == "exclude-truncated" else reward
    learns = whole if rule.endswith("truncated") else np.ones_like(whole)
    if known.size < 2 or np.ptp(known) == 0:
        return np.zeros(5)
    A = (reward - known.mean()) / known.std(ddof=1)
    n_tokens = (length * learns).sum()
    scale = 1 / n_tokens if aggregation == "token-mean" else 1 / (arm.size * length)
    return (learns * scale * A) @ (np.eye(5)[arm] - pi)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize(
    "rule", ["no-length-rule", "overlong", "mask-truncated", "exclude-truncated"]
)
def test_length_rules_by_hand(aggregation, rule) -> None:
    """E: shaped rewards; masking with the truncated answer in or out of the baseline."""
    pi = np.array([0.40, 0.15, 0.15, 0.10, 0.20])
    words = f"{aggregation}+grpo+advantage.eps=0+{rule}"
    wanted = sum(
        np.prod(pi[list(arms)]) * _by_hand(aggregation, rule, arms)
        for arms in itertools.product(range(5), repeat=4)
    )
    found = expected_gradient(overlong(), a_mode(words, group_size=4)).mean.numpy()
    assert np.abs(found - wanted).max() < 1e-12


def test_the_same_in_four_arms() -> None:
    """D2: .01 to .209 in one rollout with three wrong arms beside the rare right one."""
    flow = population_flow(
        rare_token(n_arms=4),
        _flow_objective(0.28),
        n_refreshes=1,
        n_inner=1700,
        learning_rate=0.02,
        geometry="natural",
    )
    assert flow.probability[-1, 0] == pytest.approx(0.209, abs=0.002)
