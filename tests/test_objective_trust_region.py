"""Gates by the divergence of "this token or another" between sampler and old policy (OpenRLHF)."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.objective import Batch, correct, gradient_weights, policy_loss
from dapolab.recipes import find
from dapolab.scenario import (
    Objective,
    PpoClip,
    Rejection,
    SamplerCorrection,
    SeqMeanTokenMean,
    TokenMean,
)

F = torch.float64
# Sampler's and old policy's probability of each token; the last of the first response is padding.
P = [[0.5, 0.8, None], [0.5, 0.2, 0.1], [0.4, 0.6, 0.9]]
Q = [[0.25, 0.8, None], [0.6, 0.3, 0.1], [0.7, 0.5, 0.99]]
MASK = torch.tensor([[1.0, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=F)
A = [1.0, -0.5, 2.0]
# By hand. Binary KL of 1/2 from 1/4: ln 2 / 2 + ln(2/3) / 2 = ln(4/3) / 2 = 0.1438.
TV = [[0.25, 0.0], [0.1, 0.1, 0.0], [0.3, 0.1, 0.09]]
KL = [
    [0.5 * math.log(4 / 3), 0.0],
    [0.5 * math.log(25 / 24), 0.2 * math.log(2 / 3) + 0.8 * math.log(8 / 7), 0.0],
    [
        0.4 * math.log(4 / 7) + 0.6 * math.log(2.0),
        0.6 * math.log(1.2) + 0.4 * math.log(0.8),
        0.9 * math.log(10 / 11) + 0.1 * math.log(10.0),
    ],
]
STATISTICS = {"tv": TV, "binary_kl": KL}
LEVELS = {"token": max, "sequence": sum, "geometric": lambda row: sum(row) / len(row)}


def batch_of() -> Batch:
    old = torch.tensor([[math.log(x or 0.5) for x in row] for row in Q], dtype=F)
    return Batch(
        logp=old + 0.05,
        old_logp=old,
        sampler_logp=torch.tensor(
            [[math.nan if x is None else math.log(x) for x in row] for row in P], dtype=F
        ),
        mask=MASK,
        advantages=torch.tensor(A, dtype=F)[:, None],
    )


def kept(rule: Rejection, batch: Batch | None = None) -> list[list[float]]:
    batch = batch or batch_of()
    config = SamplerCorrection(rejection=(rule,))
    found = correct(batch.old_logp, sampler_logp=batch.sampler_logp, mask=batch.mask, config=config)
    return (found.keep.to(F) * batch.mask).tolist()


@pytest.mark.parametrize("estimator", STATISTICS)
def test_single_tokens_go(estimator: str) -> None:
    values = STATISTICS[estimator]
    for bound in {v for row in values for v in row if v > 0}:
        found = []
        for upper in (bound * 1.01, bound / 1.01):
            rule = Rejection(estimator=estimator, level="token", scope="token", upper=upper)
            right = [[float(v <= upper) for v in row] + [0.0] * (3 - len(row)) for row in values]
            found.append(kept(rule))
            assert found[-1] == right
        assert found[0] != found[1]


@pytest.mark.parametrize("estimator", STATISTICS)
@pytest.mark.parametrize("level", LEVELS)
def test_responses_go_by_their_statistic(estimator: str, level: str) -> None:
    statistics = [LEVELS[level](row) for row in STATISTICS[estimator]]
    for bound in statistics:
        rule = Rejection(estimator=estimator, level=level, upper=bound * 1.01)
        right = [[float(s <= bound * 1.01)] * 3 for s in statistics]
        right[0][2] = 0.0
        assert kept(rule) == right
        twin = Rejection(estimator=estimator, level=level, upper=bound / 1.05)
        assert kept(twin) != right


@pytest.mark.parametrize("estimator", STATISTICS)
@pytest.mark.parametrize("aggregation", [TokenMean(), SeqMeanTokenMean(empty_rows="out")])
def test_what_stays_keeps_its_weight_and_what_goes_still_counts(estimator, aggregation) -> None:
    """OpenRLHF: loss = [stat ≤ δ]·(old/sampler)·clipped surrogate; the denominators are all's."""
    # TV: 0.25 and 0.3 go; KL: 0.144, 0.192 and 0.144.
    delta, n_out = {"tv": (0.2, 2), "binary_kl": (0.1, 3)}[estimator]
    rule = Rejection(estimator=estimator, level="token", scope="token", upper=delta)
    config = Objective(
        clip=PpoClip(),
        aggregation=aggregation,
        sampler=SamplerCorrection(level="token", upper=None, rejection=(rule,)),
    )
    gradient = torch.zeros(3, 3, dtype=F)
    for i, row in enumerate(STATISTICS[estimator]):
        share = 1 / 8 if aggregation.kind == "token-mean" else 1 / (3 * len(row))
        for t, statistic in enumerate(row):
            if statistic <= delta:
                gradient[i, t] = -A[i] * math.exp(0.05) * Q[i][t] / P[i][t] * share
    assert (gradient[MASK != 0] == 0).sum() == n_out
    batch = batch_of()
    logp = batch.logp.clone().requires_grad_()
    loss = policy_loss(replace(batch, logp=logp), config)
    (by_autograd,) = torch.autograd.grad(loss.value, logp)
    torch.testing.assert_close(gradient_weights(batch, config), gradient, rtol=1e-12, atol=0)
    torch.testing.assert_close(by_autograd, gradient, rtol=1e-12, atol=0)
    # At these ratios nothing is clipped, so that each loss is its own derivative.
    assert loss.value.item() == pytest.approx(gradient.sum().item(), rel=1e-12)
    assert loss.metrics["sampler/rejected_share"].item() == pytest.approx(n_out / 8)


def test_prime_rl_s_ipo_masks_what_moved_from_the_sampler_either_way() -> None:
    """ipo_loss_fn: −A·π/μ where |π − μ| ≤ eps, over all tokens; no old policy at all."""
    config = find("prime-rl-ipo").objective
    current = torch.tensor([[math.log(x or 0.5) for x in row] for row in Q], dtype=F)
    gradient = torch.zeros(3, 3, dtype=F)
    for i, row in enumerate(TV):
        for t, moved in enumerate(row):
            if moved <= 0.25:
                gradient[i, t] = -A[i] * Q[i][t] / P[i][t] / 8
    batch = replace(batch_of(), logp=current, old_logp=None)
    narrow = config.sampler.rejection[0].model_copy(update={"upper": 0.26})
    rule = config.sampler.model_copy(update={"rejection": (narrow,)})
    config = config.model_copy(update={"sampler": rule})
    logp = current.clone().requires_grad_()
    loss = policy_loss(replace(batch, logp=logp), config)
    (by_autograd,) = torch.autograd.grad(loss.value, logp)
    torch.testing.assert_close(gradient_weights(batch, config), gradient, rtol=1e-12, atol=0)
    torch.testing.assert_close(by_autograd, gradient, rtol=1e-12, atol=0)
    assert (gradient[MASK != 0] == 0).sum() == 1  # 0.4 against 0.7
    assert loss.value.item() == pytest.approx(gradient.sum().item(), rel=1e-12)


def test_a_token_that_has_not_moved_is_never_out() -> None:
    """OpenRLHF asks for stat ≥ 0 as well; in float32 a KL of 1e-9 can be rounded below 0."""
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(16, 256, generator=generator) * 3
    batch = Batch(
        logp=old,
        old_logp=old,
        sampler_logp=old + 1e-4 * torch.randn(16, 256, generator=generator),
        mask=torch.ones(16, 256),
        advantages=torch.ones(16, 1),
    )
    for estimator in STATISTICS:
        rule = Rejection(estimator=estimator, level="token", scope="token", upper=1e-3)
        assert torch.tensor(kept(rule, batch)).all()


probabilities = st.floats(0.001, 0.999)


@settings(deadline=None, max_examples=60)
@given(p=probabilities, q=probabilities)
def test_the_divergences_are_those_of_a_coin(p: float, q: float) -> None:
    """Pinsker: KL ≥ 2·TV². TV is symmetric, KL the sum over the two sides, both 0 at p = q."""
    one = torch.ones(1, 1, dtype=F)

    def out(estimator: str, first: float, second: float, upper: float) -> bool:
        rule = Rejection(estimator=estimator, level="token", scope="token", upper=upper)
        found = correct(
            math.log(second) * one,
            sampler_logp=math.log(first) * one,
            mask=one,
            config=SamplerCorrection(rejection=(rule,)),
        )
        return not bool(found.keep)

    tv = sum(abs(a - b) for a, b in ((p, q), (1 - p, 1 - q))) / 2
    kl = sum(a * (math.log(a) - math.log(b)) for a, b in ((p, q), (1 - p, 1 - q)))
    for estimator, value in (("tv", tv), ("binary_kl", kl)):
        assert not out(estimator, p, q, value * 1.001 + 1e-12)
        if value > 1e-9:
            assert out(estimator, p, q, value * 0.999)
    if tv > 1e-6:
        assert out("tv", q, p, tv * 0.999)
        assert out("binary_kl", p, q, 2 * tv**2 * 0.999)


def test_a_probability_of_one_is_no_infinity() -> None:
    """Held 1e-6 away from 0 and 1: a coin of 1 − 1e-6 from one of 1e-6 has KL 13.8155."""
    one = torch.ones(1, 1, dtype=F)
    for upper, stays in ((13.8, False), (13.9, True)):
        rule = Rejection(estimator="binary_kl", level="token", scope="token", upper=upper)
        found = correct(
            -60.0 * one,
            sampler_logp=0.0 * one,
            mask=one,
            config=SamplerCorrection(rejection=(rule,)),
        )
        assert bool(found.keep) == stays


def test_a_divergence_has_no_lower_bound() -> None:
    for estimator in STATISTICS:
        with pytest.raises(ValueError, match="no ratio"):
            Rejection(estimator=estimator, lower=0.1)
