"""Field cases of loss, clip and advantages as whole kinds: B03 to B34, on drawn updates.

Each right value is a sum in plain Python over the drawn numbers.
"""

import math
import sys
from pathlib import Path
from statistics import fmean, pstdev

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from objective_grid import MODES, PLAIN_CLIPS

from dapolab.objective import Batch, Structure, advantages, policy_loss, present_mean, row_scales
from dapolab.rules import keep_group, kept_only_by_shaping, overlong_penalty
from dapolab.scenario import (
    BatchStdAdvantage,
    GenerationWindow,
    GpgAdvantage,
    GrpoAdvantage,
    LeaveOneOutAdvantage,
    MaxRlAdvantage,
    MeanOnlyAdvantage,
    Objective,
    OpoAdvantage,
    PpoClip,
    PromptMean,
    RlooAdvantage,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
)

F = torch.float64
ESTIMATORS = [
    GrpoAdvantage(),
    GrpoAdvantage(ddof=0, eps=0.0),
    MeanOnlyAdvantage(),
    GpgAdvantage(),
    LeaveOneOutAdvantage(),
    RlooAdvantage(),
    BatchStdAdvantage(),
    MaxRlAdvantage(),
    OpoAdvantage(),
]
few = settings(deadline=None, max_examples=60)
lengths = st.lists(st.integers(1, 9), min_size=1, max_size=6)
numbers = st.floats(-3, 3).map(lambda x: round(x, 3))


def mask_of(n_tokens: list[int], width: int | None = None) -> torch.Tensor:
    places = torch.arange(width or max(n_tokens))
    return (places < torch.tensor(n_tokens)[:, None]).to(F)


def on_policy(n_tokens: list[int], A: list[float], *, width: int | None = None, **more) -> Batch:
    """An update at ratio 1, so that a token's loss under −r·A is −A."""
    mask = mask_of(n_tokens, width)
    logp = torch.full_like(mask, -0.7).requires_grad_()
    return Batch(
        logp=logp,
        old_logp=logp.detach().clone(),
        mask=mask,
        advantages=torch.tensor(A, dtype=F),
        **more,
    )


def value(batch: Batch, mode, **inputs) -> float:
    return policy_loss(batch, Objective(aggregation=mode), metrics=False, **inputs).value.item()


# ---------------------------------------------------------------------------- loss


@few
@given(n=lengths, constant=st.integers(1, 40), pad=st.integers(0, 20))
def test_b03_a_constant_is_blind_to_padding_and_the_width_is_not(n, constant, pad) -> None:
    A = [1.0] * len(n)
    width = max(n) + pad
    right = -fmean(n) / constant
    padded = on_policy(n, A, width=width)
    mode = SeqMeanTokenSumNorm(constant=constant)
    assert value(padded, mode) == pytest.approx(right, rel=1e-12)
    by_width = SeqMeanTokenSumNorm(constant="padded-width")
    assert value(padded, by_width) == pytest.approx(-fmean(n) / width, rel=1e-12)


@few
@given(rows=st.lists(st.tuples(st.integers(1, 9), numbers), min_size=1, max_size=6))
def test_b04_four_modes_four_values(rows) -> None:
    n, A = [row[0] for row in rows], [row[1] for row in rows]
    batch = on_policy(n, A)
    sums = [k * a for k, a in rows]
    right = {
        TokenMean(): sum(sums) / sum(n),
        SeqMeanTokenSum(): fmean(sums),
        SeqMeanTokenMean(): fmean(A),
        SeqMeanTokenSumNorm(constant=7): fmean(sums) / 7,
        SeqMeanTokenSum(variant="verl-3a27a98"): fmean(A),
        TokenSum(): sum(sums),
    }
    for mode, expected in right.items():
        assert value(batch, mode) == pytest.approx(-expected, rel=1e-12, abs=1e-12), mode


@few
@given(
    rows=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8),
)
def test_b07_what_is_filtered_leaves_the_count_unless_asked_for(rows) -> None:
    """Losses of 1: the mean is 1, or what is kept over all, or over all with one token a row."""
    n, kept = [row[0] for row in rows], [row[1] for row in rows]
    assume(any(kept))
    full = mask_of(n)
    mask = full * torch.tensor(kept, dtype=F)[:, None]
    ones = [-1.0] * len(n)
    batch = on_policy(n, ones, full_mask=full)
    batch = Batch(**{**batch.__dict__, "mask": mask})
    stay = sum(k for k, keep in rows if keep)
    n_gone = sum(not keep for _, keep in rows)
    for mode, right in (
        (TokenMean(), 1.0),
        (GenerationWindow(), 1.0),
        (TokenMean(filtered_tokens="in"), stay / sum(n)),
        (GenerationWindow(filtered_tokens="in"), stay / sum(n)),
        (TokenMean(empty_row_tokens=1), stay / (stay + n_gone)),
    ):
        assert value(batch, mode) == pytest.approx(right, rel=1e-12), mode


@few
@given(
    clip=st.sampled_from(PLAIN_CLIPS),
    mode=st.sampled_from(MODES),
    n=st.integers(1, 4),
    width=st.integers(1, 5),
    junk=st.sampled_from([math.nan, math.inf, -math.inf, 3.0]),
)
def test_b08_an_update_without_tokens_is_zero_finite_and_flagged(
    clip, mode, n, width, junk
) -> None:
    logp = torch.full((n, width), junk, dtype=F, requires_grad=True)
    batch = Batch(
        logp=logp,
        old_logp=torch.full((n, width), -junk, dtype=F),
        mask=torch.zeros(n, width, dtype=F),
        advantages=torch.full((n,), junk, dtype=F),
        entropy=torch.full((n, width), junk, dtype=F),
        group=torch.arange(n),
    )
    split = Structure.split(n, micro_rows=1)
    loss = policy_loss(batch, Objective(clip=clip, aggregation=mode), structure=split)
    (gradient,) = torch.autograd.grad(loss.value, logp)
    assert loss.value.item() == 0
    assert bool(loss.is_empty)
    assert bool((gradient == 0).all())
    assert all(bool(torch.isfinite(m.to(F)).all()) for m in loss.metrics.values())


@few
@given(
    n=st.lists(st.integers(1, 9), min_size=8, max_size=8),
    steps=st.sampled_from([1, 2, 4, 8]),
)
def test_b10_the_number_of_micro_steps_is_of_no_account(n, steps) -> None:
    """Every gradient weight is 1/Σn; ms-swift divides it once more by the steps."""
    mask = mask_of(n)
    split = Structure.split(8, micro_rows=8 // steps)
    right = torch.full((8,), 1 / sum(n), dtype=F)
    plain = row_scales(mask, TokenMean(), structure=split)
    torch.testing.assert_close(plain, right, rtol=1e-12, atol=0)
    window = {"gradient_accumulation_steps": steps, "steps_per_generation": steps}
    new = row_scales(mask, GenerationWindow(**window), structure=split)
    torch.testing.assert_close(new, right, rtol=1e-12, atol=0)
    swift = row_scales(mask, GenerationWindow(variant="ms-swift", **window), structure=split)
    torch.testing.assert_close(swift, right / steps, rtol=1e-12, atol=0)


@few
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), numbers), min_size=1, max_size=8)
)
def test_b11_means_inside_prompts_and_over_the_batch(rows) -> None:
    group = [row[0] for row in rows]
    batch = on_policy([row[1] for row in rows], [row[2] for row in rows], group=torch.tensor(group))
    by_prompt = []
    for label in set(group):
        own = [(n, a) for g, n, a in rows if g == label]
        by_prompt.append(sum(n * a for n, a in own) / sum(n for n, _ in own))
    assert value(batch, PromptMean()) == pytest.approx(-fmean(by_prompt), rel=1e-12, abs=1e-12)
    whole = sum(n * a for _, n, a in rows) / sum(n for _, n, _ in rows)
    assert value(batch, TokenMean()) == pytest.approx(-whole, rel=1e-12, abs=1e-12)


# ---------------------------------------------------------------------------- clip


@few
@given(
    low=st.floats(0.0, 0.9),
    high=st.floats(0.0, 5.0),
    dual=st.one_of(st.none(), st.floats(1.1, 10.0)),
    rows=st.lists(st.tuples(st.integers(1, 5), numbers), min_size=1, max_size=5),
)
def test_b15_on_policy_no_clip_setting_does_anything(low, high, dual, rows) -> None:
    batch = on_policy([row[0] for row in rows], [row[1] for row in rows])
    free = policy_loss(batch, Objective(clip=PpoClip(low=9.0, high=9.0)))
    loss = policy_loss(batch, Objective(clip=PpoClip(low=low, high=high, dual_c=dual)))
    assert torch.equal(loss.value, free.value)
    gradients = [torch.autograd.grad(x.value, batch.logp)[0] for x in (loss, free)]
    assert torch.equal(*gradients)
    for side in ("upper", "lower", "dual"):
        assert loss.metrics[f"clip/{side}_share"].item() == 0


@few
@given(
    log_ratio=st.floats(-3, 3),
    A=st.sampled_from([-2.0, -1.0, 1.0, 2.0]),
    c=st.one_of(st.none(), st.floats(1.5, 12.0)),
)
def test_b18_the_dual_clip_and_what_shows_it(log_ratio, A, c) -> None:
    """max of the two products, and −c·A at most where A < 0; the metric counts r > c alone."""
    assume(abs(math.exp(log_ratio) - (c or 99)) > 1e-6)
    batch = Batch(
        logp=torch.full((1, 1), log_ratio - 4.0, dtype=F),
        old_logp=torch.full((1, 1), -4.0, dtype=F),
        mask=torch.ones(1, 1, dtype=F),
        advantages=torch.tensor([A], dtype=F),
    )
    loss = policy_loss(batch, Objective(clip=PpoClip(low=0.2, high=0.28, dual_c=c)))
    r = math.exp(log_ratio)
    right = max(-A * r, -A * min(max(r, 0.8), 1.28))
    if c is not None and A < 0:
        right = min(right, -c * A)
    assert loss.value.item() == pytest.approx(right, rel=1e-12)
    acts = c is not None and A < 0 and r > c
    assert loss.metrics["clip/dual_share"].item() == float(acts)


# ---------------------------------------------------------------------------- advantages


def estimate(rewards: list[float], group: list[int], config, dtype=F):
    return advantages(
        torch.tensor(rewards, dtype=dtype),
        config,
        group=torch.tensor(group),
        mask=torch.ones(len(group), 1, dtype=dtype),
    )


@few
@given(rows=st.lists(st.tuples(st.integers(0, 3), numbers), min_size=1, max_size=10))
def test_b20_each_group_has_its_own_mean(rows) -> None:
    found = estimate([r for _, r in rows], [g for g, _ in rows], MeanOnlyAdvantage())
    for i, (g, r) in enumerate(rows):
        own = [other for label, other in rows if label == g]
        assert found.value[i].item() == pytest.approx(r - fmean(own), abs=1e-12)


@few
@given(
    config=st.sampled_from(ESTIMATORS),
    rewards=st.lists(numbers, min_size=2, max_size=5),
    times=st.integers(2, 4),
)
def test_b26_tiled_prompts_have_nothing_to_learn(config, rewards, times) -> None:
    """P1 P2 … P1 P2 …, one reward a prompt: groups told apart by id are all constant."""
    group = list(range(len(rewards))) * times
    found = estimate(rewards * times, group, config)
    assert bool((found.value == 0).all())
    assert bool(found.constant.all())


@few
@given(config=st.sampled_from(ESTIMATORS), alone=numbers, pair=st.tuples(numbers, numbers))
def test_b24_a_group_of_one_is_never_nan(config, alone, pair) -> None:
    found = estimate([alone, *pair], [5, 7, 7], config)
    assert bool(torch.isfinite(found.value).all())
    assert found.value[0].item() == 0
    assert found.n_singletons.item() == 1


@few
@given(values=st.lists(st.one_of(st.none(), numbers), min_size=1, max_size=8))
def test_b28_a_missing_reward_is_in_no_mean(values) -> None:
    tensor = torch.tensor([math.nan if v is None else v for v in values], dtype=F)
    mean, n = present_mean(tensor)
    there = [v for v in values if v is not None]
    assert n.item() == len(there)
    if there:
        assert mean.item() == pytest.approx(fmean(there), abs=1e-12)
    else:
        assert math.isnan(mean.item())


@few
@given(levels=st.lists(numbers, min_size=2, max_size=4, unique=True), size=st.integers(2, 6))
def test_b30_spread_between_groups_is_no_spread_inside(levels, size) -> None:
    rewards = [r for r in levels for _ in range(size)]
    group = [g for g in range(len(levels)) for _ in range(size)]
    assert pstdev(rewards) > 0
    for config in ESTIMATORS:
        found = estimate(rewards, group, config)
        assert bool(found.constant.all())
        batch = on_policy([3] * len(rewards), [0.0] * len(rewards))
        batch = Batch(**{**batch.__dict__, "advantages": found.value})
        loss = policy_loss(batch, Objective(), metrics=False).value
        assert bool((torch.autograd.grad(loss, batch.logp)[0] == 0).all())


@few
@given(rows=st.lists(st.tuples(st.integers(1, 9), numbers), min_size=2, max_size=6))
def test_b32_a_loss_of_zero_still_has_a_gradient(rows) -> None:
    """On policy the value is −Σ n·A/Σ n, and each token's gradient −A/Σ n."""
    rewards = [r for _, r in rows]
    assume(max(rewards) - min(rewards) > 1e-3)
    found = estimate(rewards, [0] * len(rows), MeanOnlyAdvantage()).value
    n = [k for k, _ in rows]
    batch = on_policy(n, [0.0] * len(n))
    batch = Batch(**{**batch.__dict__, "advantages": found})
    loss = policy_loss(batch, Objective(), metrics=False).value
    A = found.squeeze(-1).tolist()
    weighed = -sum(k * a for k, a in zip(n, A, strict=True)) / sum(n)
    assert loss.item() == pytest.approx(weighed, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, batch.logp)
    right = -found * batch.mask / sum(n)
    torch.testing.assert_close(gradient, right, rtol=1e-12, atol=1e-15)
    assert gradient.abs().sum() > 0
    if len(set(n)) == 1:
        assert abs(loss.item()) < 1e-12


@few
@given(
    reward=st.floats(-1e3, 1e3, allow_nan=False),
    n=st.integers(2, 40),
    config=st.sampled_from(ESTIMATORS),
    single=st.booleans(),
)
def test_b33_copies_of_one_reward_are_degenerate_in_every_precision(
    reward, n, config, single
) -> None:
    dtype = torch.float32 if single else F
    found = estimate([reward] * n, [0] * n, config, dtype)
    assert bool((found.value == 0).all())
    assert bool(found.constant.all())
    assert not keep_group([reward] * n)


@few
@given(
    right=st.booleans(),
    n_tokens=st.lists(st.integers(50, 100), min_size=2, max_size=6),
)
def test_b34_a_group_that_only_its_lengths_tell_apart(right, n_tokens) -> None:
    """Raw correctness drops it; the shaped reward keeps it, and that is said."""
    raw = [1.0 if right else -1.0] * len(n_tokens)
    shaped = [
        r + overlong_penalty(n, cap_tokens=100, buffer_tokens=20)
        for r, n in zip(raw, n_tokens, strict=True)
    ]
    differ = len({max(n, 80) for n in n_tokens}) > 1
    assert not keep_group(raw)
    assert keep_group(shaped) == differ
    assert kept_only_by_shaping(raw, shaped=shaped) == differ
    found = estimate(shaped, [0] * len(raw), GrpoAdvantage(eps=0.0))
    assert bool((found.value != 0).any()) == differ
