"""Toy policies: slopes against automatic differentiation, sampling against enumeration."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dapolab.bandit import STUDIES, Answers, ArmBandit, HazardBandit, find_study
from dapolab.bandit.environments import (
    difficulty_ladder,
    length_classes,
    many_arms,
    mismatch,
    overlong,
    rare_token,
    shared_length,
    two_lengths,
)
from dapolab.errors import ConfigError

BANDITS = {
    "free logits": length_classes(),
    "shared features": shared_length(),
    "one feature": two_lengths(),
    "several prompts": difficulty_ladder(pass_rates=(0.3, 0.4, 0.8)),
    "sampler apart": mismatch(n_arms=5, noise=0.5),
    "truncated": overlong(),
    "thirty arms": many_arms(),
    "hazard": HazardBandit(p_right=0.3, hazard_right=0.2, hazard_wrong=0.1),
}


def draw(bandit, n_replicas, n_groups=3, group_size=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    theta = bandit.start + 0.3 * torch.randn(
        (n_replicas, bandit.start.shape[0]), generator=generator, dtype=torch.float64
    )
    prompt = torch.rand((n_replicas, n_groups), generator=generator, dtype=torch.float64)
    shape = (n_replicas, n_groups, group_size, 2)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return theta, bandit.sample(theta, prompt_RC=prompt, uniform_RCGk=uniform)


@pytest.mark.parametrize("name", BANDITS)
def test_slope_is_the_derivative_of_the_log_prob(name) -> None:
    bandit = BANDITS[name]
    theta, answers = draw(bandit, 5)
    leaf = theta.clone().requires_grad_()
    weights = torch.randn(bandit.mask(answers).shape, dtype=torch.float64) * bandit.mask(answers)
    (right,) = torch.autograd.grad((bandit.logp(leaf, answers) * weights).sum(), leaf)
    assert torch.allclose(bandit.pull_back(theta, answers, weights), right, atol=1e-12)


@pytest.mark.parametrize("name", BANDITS)
def test_tokens_of_an_answer_add_up_to_its_length(name) -> None:
    bandit = BANDITS[name]
    _, answers = draw(bandit, 5)
    assert torch.equal(bandit.mask(answers).sum(dim=-1), answers.length)
    assert (answers.length >= 1).all()


@pytest.mark.parametrize("name", BANDITS)
def test_expected_log_prob_slope_is_zero_and_its_spread_the_fisher_information(name) -> None:
    """Σ p·∇log p = 0, and natural(F·x) moves the policy as x does, F = Σ p·∇log p ∇log pᵀ."""
    bandit = BANDITS[name]
    theta = bandit.start
    mean, fisher = 0.0, 0.0
    for prompt in range(bandit.n_prompts):
        o = bandit.outcomes(theta, prompt=prompt)
        n = o.probability.shape[0]
        answers = Answers(*(part.unsqueeze(-1) for part in (o.choice, o.right, o.length)))
        logp = bandit.logp(theta.expand(n, -1), answers)
        mask = bandit.mask(answers)
        # The policy's own probability; the sampler's may be another.
        chance = (logp * mask).sum(dim=(-2, -1)).exp()
        if getattr(bandit, "success_PA", None) is not None:
            success = bandit.success_PA.flatten()[o.choice]
            chance = chance * torch.where(o.right, success, 1.0 - success)
        assert chance.sum().item() == pytest.approx(1.0, abs=1e-9)
        score = bandit.pull_back(theta.expand(n, -1), answers, mask)
        weighted = bandit.prompt_weight(prompt) * chance.unsqueeze(-1) * score
        mean = mean + weighted.sum(dim=0)
        fisher = fisher + weighted.T @ score
    assert mean.abs().max() < 1e-9
    step = torch.linspace(-1.0, 1.0, theta.shape[0], dtype=torch.float64)
    found = bandit.natural(theta.unsqueeze(0), (fisher @ step).unsqueeze(0))[0]
    assert torch.allclose(fisher @ found, fisher @ step, atol=1e-8)


@pytest.mark.parametrize("name", BANDITS)
def test_samples_follow_the_enumerated_law(name) -> None:
    bandit = BANDITS[name]
    n = 150_000
    generator = torch.Generator().manual_seed(3)
    prompt = torch.zeros((n, 1), dtype=torch.float64)
    uniform = torch.rand((n, 1, 1, 2), generator=generator, dtype=torch.float64)
    answers = bandit.sample(bandit.start.expand(n, -1), prompt_RC=prompt, uniform_RCGk=uniform)
    law = bandit.outcomes(bandit.start, prompt=0)
    for values, of in ((answers.length, law.length), (answers.right.double(), law.right.double())):
        mean = float(law.probability @ of)
        sd = math.sqrt(max(float(law.probability @ (of - mean) ** 2), 0.0))
        gap = abs(values.mean().item() - mean)
        assert gap <= 4.5 * sd / math.sqrt(n) + 1e-12
        if sd > 0:
            assert abs(values.mean().item() - 1.05 * mean) > 4.5 * sd / math.sqrt(n)


@pytest.mark.parametrize("name", BANDITS)
def test_expectations_are_those_of_the_enumerated_law(name) -> None:
    bandit = BANDITS[name]
    if name == "sampler apart":
        bandit = mismatch(n_arms=5, noise=0.0)
    found = {k: v.item() for k, v in bandit.expectations(bandit.start.unsqueeze(0)).items()}
    laws = [bandit.outcomes(bandit.start, prompt=k) for k in range(bandit.n_prompts)]
    chance = torch.cat([bandit.prompt_weight(k) * law.probability for k, law in enumerate(laws)])
    right = torch.cat([law.right for law in laws]).double()
    length = torch.cat([law.length for law in laws])
    p = float(chance @ right)
    assert found["reward/accuracy"] == pytest.approx(p, abs=1e-12)
    assert found["length/mean"] == pytest.approx(float(chance @ length), rel=1e-9)
    assert found["length/right"] == pytest.approx(float(chance @ (right * length)) / p, rel=1e-9)
    wrong = float(chance @ ((1 - right) * length)) / (1 - p)
    assert found["length/wrong"] == pytest.approx(wrong, rel=1e-9)


def test_entropy_of_an_answer_is_minus_the_mean_log_prob() -> None:
    bandit = BANDITS["hazard"]
    law = bandit.outcomes(bandit.start, prompt=0)
    entropy = -float(law.probability @ law.probability.log())
    found = bandit.expectations(bandit.start.unsqueeze(0))["entropy/answer"].item()
    assert found == pytest.approx(entropy, rel=1e-9)
    uniform = many_arms(p_likely=1 / 30)
    found = uniform.expectations(uniform.start.unsqueeze(0))["entropy/answer"].item()
    assert found == pytest.approx(math.log(30), abs=1e-12)


def test_token_entropy_of_uniform_arms_is_on_the_decision_alone() -> None:
    bandit = length_classes(p_right=0.5)
    theta, answers = bandit.start.expand(2, -1), draw(bandit, 2)[1]
    entropy = bandit.token_entropy(theta, answers)
    assert torch.allclose(entropy[..., 0], torch.full_like(entropy[..., 0], math.log(4)))
    assert (entropy[..., 1] == 0).all()


def test_the_sampler_is_the_tempered_and_shifted_policy() -> None:
    bandit = mismatch(n_arms=4, temperature=2.0, noise=0.3, noise_seed=5)
    logits = bandit.start / 2.0 + bandit.sampler_shift_PA[0]
    assert torch.allclose(bandit.outcomes(bandit.start, prompt=0).probability, logits.softmax(-1))


@given(p=st.floats(0.05, 0.95), h=st.floats(0.02, 0.9))
def test_hazard_law_is_geometric(p, h) -> None:
    bandit = HazardBandit(p_right=p, hazard_right=h, hazard_wrong=0.5)
    law = bandit.outcomes(bandit.start, prompt=0)
    right = law.right
    assert law.probability[right].sum().item() == pytest.approx(p, abs=1e-12)
    mean = (law.probability * law.length)[right].sum().item() / p
    assert mean == pytest.approx(1 / h, rel=1e-9)


# ---------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: length_classes(p_right=1.0), "p_right"),
        (lambda: many_arms(case="lucky"), "likely_right"),
        (lambda: rare_token(n_arms=1), "n_arms"),
        (lambda: mismatch(temperature=0.0), "temperature"),
        (lambda: overlong(right=(0.5, 0.5)), "add to 1"),
        (lambda: HazardBandit(p_right=0.5, hazard_right=0.0, hazard_wrong=0.5), "hazard_right"),
        (lambda: find_study("length_class"), "length_classes"),
        (lambda: STUDIES["many_arms"].bandit(n_arm=3), "n_arms"),
        (lambda: length_classes(short_tokens=0.5), "at least 1 token"),
        (lambda: two_lengths(accuracy_long=1.5), "success"),
        (
            lambda: ArmBandit(
                length_PA=torch.ones((1, 2)), success_PA=torch.ones((1, 2)), start=torch.zeros(3)
            ),
            "start",
        ),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(build, word) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_every_study_builds_and_reads() -> None:
    for name, study in STUDIES.items():
        assert study.name == name
        assert study.how_to_read
        assert np.isfinite(study.bandit().start.numpy()).all()
