"""Surrogates against the formulas as printed, bounds from both sides, and their metrics (B18)."""

import math

import pytest
import torch
from judge_objective import token_losses

from dapolab.objective import Batch, Structure, gradient_weights, policy_loss
from dapolab.scenario import (
    CispoClip,
    ClipCov,
    ConfigError,
    DppoKlClip,
    DppoTvClip,
    DroClip,
    GmpoClip,
    GpgClip,
    GspoClip,
    KlCov,
    LuspoClip,
    NoClip,
    Objective,
    PpoClip,
    SapoClip,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    TokenSum,
    VespoClip,
)

F = torch.float64
CLIPS = [
    NoClip(),
    NoClip(log_ratio_clamp=0.5),
    PpoClip(),
    PpoClip(low=0.2, high=0.28),
    PpoClip(dual_c=1.5),
    PpoClip(dual_c=3.0, log_ratio_clamp=20.0),
    PpoClip(delta=1.1),
    PpoClip(delta=1.6),
    PpoClip(delta=0.7),
    PpoClip(delta=2.0, dual_c=1.4),
    GspoClip(),
    GspoClip(low=0.1, high=0.2),
    GspoClip(low=0.1, high=0.2, level="sequence_token"),
    GspoClip(low=0.1, high=0.2, level="sequence_token", log_ratio_cap=0.05),
    GspoClip(low=0.1, high=0.2, dual_c=1.5),
    LuspoClip(low=0.1, high=0.2),
    LuspoClip(low=0.1, high=0.2, level="token"),
    CispoClip(),
    CispoClip(low=0.2, high=0.28),
    CispoClip(bounds="absolute", high=1.2),
    CispoClip(bounds="absolute", low=0.0, high=4.0),
    SapoClip(),
    SapoClip(tau_positive=0.7, tau_negative=2.0),
    GmpoClip(),
    GmpoClip(low=0.1, high=0.2),
    VespoClip(),
    DppoTvClip(),
    DppoTvClip(low=0.05, high=0.05, cap=1.1, surrogate="ratio", log_ratio_penalty=1e-3),
    DppoKlClip(low=0.05, high=0.02, cap=None),
    DppoKlClip(low=0.01, high=0.01, surrogate="ratio"),
    GpgClip(),
    DroClip(beta=0.3),
]


def random_batch(seed: int, *, per_token: bool = False, spread: float = 0.6) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (6, 7)
    old = -0.05 - 2 * torch.rand(shape, generator=generator, dtype=F)
    logp = (old + spread * torch.randn(shape, generator=generator, dtype=F)).clamp(max=-1e-3)
    lengths = torch.tensor([7, 1, 0, 4, 5, 2])[:, None]
    mask = (torch.arange(7) < lengths).to(F)
    mask[0, 3], mask[3, 1] = 4.0, 0.0
    A = torch.randn(6, 7 if per_token else 1, generator=generator, dtype=F)
    A[4] = 0.0
    return Batch(logp=logp, old_logp=old, mask=mask, advantages=A)


@pytest.mark.parametrize("per_token", [False, True], ids=["one A a response", "one A a token"])
@pytest.mark.parametrize("clip", CLIPS, ids=repr)
def test_the_loss_is_the_formula(clip, per_token: bool) -> None:
    for seed in range(5):
        batch = random_batch(seed, per_token=per_token)
        got = policy_loss(batch, Objective(clip=clip, aggregation=TokenSum())).value.item()
        A = batch.advantages.expand(6, 7).tolist()
        mask = batch.mask.tolist()
        losses = token_losses(
            clip.model_dump(), batch.logp.tolist(), batch.old_logp.tolist(), A, mask
        )
        places = [(i, t) for i in range(6) for t in range(7) if mask[i][t]]
        right = sum(mask[i][t] * losses[i][t] for i, t in places)
        assert got == pytest.approx(right, rel=1e-12, abs=1e-12)


def one_token(ratio: float, A: float, clip, **more) -> tuple[float, float, dict[str, float]]:
    """Loss, gradient and metrics of a single token."""
    logp = torch.tensor([[math.log(0.01)]], dtype=F)
    batch = Batch(
        logp=logp,
        old_logp=logp - math.log(ratio),
        mask=torch.ones(1, 1, dtype=F),
        advantages=torch.tensor([A], dtype=F),
        **more,
    )
    loss = policy_loss(batch, Objective(clip=clip))
    gradient = gradient_weights(batch, Objective(clip=clip)).item()
    return loss.value.item(), gradient, {k: v.item() for k, v in loss.metrics.items()}


def test_dual_clip_and_the_metric_that_shows_it() -> None:
    """B18: ratio 10, A = −1: 10 without, 3 with c = 3, 10 with c = 10 (not counted); ratio 2: 2."""
    loss, gradient, metrics = one_token(10.0, -1.0, PpoClip())
    assert (loss, gradient) == (pytest.approx(10.0), pytest.approx(10.0))
    assert metrics["clip/dual_share"] == 0.0
    loss, gradient, metrics = one_token(10.0, -1.0, PpoClip(dual_c=3.0))
    assert (loss, gradient) == (3.0, 0.0)
    assert metrics["clip/dual_share"] == 1.0
    assert metrics["clip/active_tokens"] == 0.0
    loss, _, metrics = one_token(10.0 * (1 - 1e-12), -1.0, PpoClip(dual_c=10.0))
    assert loss == pytest.approx(10.0)
    assert metrics["clip/dual_share"] == 0.0
    loss, _, metrics = one_token(2.0, -1.0, PpoClip(dual_c=3.0))
    assert loss == pytest.approx(2.0)
    assert metrics["clip/dual_share"] == 0.0


def test_dual_clip_leaves_positive_advantages_alone() -> None:
    """A > 0 has the upper bound 1 + high, be it above c: at ratio 3.5 the gradient is −A·r."""
    loss, gradient, metrics = one_token(3.5, 1.0, PpoClip(high=4.0, dual_c=3.0))
    assert (loss, gradient) == (pytest.approx(-3.5), pytest.approx(-3.5))
    assert metrics["clip/dual_share"] == 0.0


@pytest.mark.parametrize(
    ("ratio", "A", "upper", "lower", "active"),
    [
        (1.3, 1.0, 1.0, 0.0, 0.0),
        (1.3, -1.0, 0.0, 0.0, 1.0),
        (0.7, 1.0, 0.0, 0.0, 1.0),
        (0.7, -1.0, 0.0, 1.0, 0.0),
        (1.27, 1.0, 0.0, 0.0, 1.0),
        (1.3, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_clip_fractions_have_the_right_sign(ratio, A, upper, lower, active) -> None:
    _, gradient, metrics = one_token(ratio, A, PpoClip(low=0.2, high=0.28))
    assert metrics["clip/upper_share"] == upper
    assert metrics["clip/lower_share"] == lower
    assert metrics["clip/active_tokens"] == active
    assert (gradient != 0) == bool(active)


@pytest.mark.parametrize("dtype", [torch.float32, F])
@pytest.mark.parametrize(
    "clip",
    [
        PpoClip(),
        PpoClip(dual_c=3.0),
        PpoClip(delta=1.6),
        GspoClip(),
        GspoClip(level="sequence_token"),
        LuspoClip(),
        CispoClip(),
        SapoClip(),
        GmpoClip(),
        VespoClip(),
        DppoTvClip(),
        DppoKlClip(),
    ],
    ids=repr,
)
def test_ratios_beyond_exp_leave_no_nan(clip, dtype: torch.dtype) -> None:
    """0 · ∞ is no gradient: a clipped token has gradient 0, however far it went."""
    logp = torch.tensor([[-1.0, -2.0], [-1.0, -900.0], [-1.0, -1.0]], dtype=dtype)
    logp.requires_grad_()
    old = torch.tensor([[-900.0, -2.0], [-1.0, -1.0], [-1.0, -2000.0]], dtype=dtype)
    batch = Batch(
        logp=logp,
        old_logp=old,
        mask=torch.ones(3, 2, dtype=dtype),
        advantages=torch.tensor([1.0, -1.0, 0.5], dtype=dtype),
    )
    value = policy_loss(batch, Objective(clip=clip)).value
    (gradient,) = torch.autograd.grad(value, logp)
    assert bool(torch.isfinite(value))
    assert bool(torch.isfinite(gradient).all())
    closed = gradient_weights(batch, Objective(clip=clip))
    torch.testing.assert_close(closed, gradient, rtol=1e-4, atol=1e-7)


def test_clip_settings_do_nothing_on_policy() -> None:
    """B15: one update a rollout has ratio 1 everywhere: bit-equal for any ε, clip fraction 0."""
    batch = random_batch(0, spread=0.0)
    values = []
    for high in (0.2, 0.28, 0.5):
        config = Objective(clip=PpoClip(high=high))
        loss = policy_loss(batch, config)
        assert loss.metrics["clip/upper_share"] == loss.metrics["clip/lower_share"] == 0.0
        values.append(gradient_weights(batch, config))
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])


def test_every_surrogate_agrees_on_policy() -> None:
    """theory.md D1: at r = 1 each has the gradient −A; GSPO's is that of GRPO's sequence mean."""
    batch = random_batch(1, spread=0.0)
    plain = gradient_weights(batch, Objective(clip=NoClip(), aggregation=SeqMeanTokenMean()))
    for clip in CLIPS:
        if isinstance(clip, (LuspoClip, VespoClip)) or getattr(clip, "delta", None) == 0.7:
            continue  # a length or φ(1) for a factor; δ < 1 clips what has not moved
        got = gradient_weights(batch, Objective(clip=clip, aggregation=SeqMeanTokenMean()))
        torch.testing.assert_close(got, plain, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("tau", "peak_ratio", "peak", "crossing"), [(1.0, 2.06, 1.575, 3.47), (1.05, 1.99, 1.536, None)]
)
def test_sapo_gate_against_theory(tau, peak_ratio, peak, crossing) -> None:
    """theory.md D1: m = r·sech²(τ(r − 1)/2), its peak, and where it falls below 1 again."""
    clip = SapoClip(tau_positive=tau)
    weight = {r: -one_token(r, 1.0, clip)[1] for r in (peak_ratio, peak_ratio * 0.9, 0.5)}
    for r, got in weight.items():
        assert got == pytest.approx(r / math.cosh(tau * (r - 1) / 2) ** 2, rel=1e-12)
    assert weight[peak_ratio] == pytest.approx(peak, abs=1e-3)
    assert weight[peak_ratio * 0.9] < weight[peak_ratio]
    if crossing:
        before, after = (-one_token(crossing + x, 1.0, clip)[1] for x in (-0.01, 0.01))
        assert before > 1 > after


def test_luspo_is_gspo_with_token_sums() -> None:
    batch = random_batch(2)
    luspo = Objective(clip=LuspoClip(low=0.1, high=0.2), aggregation=SeqMeanTokenMean())
    gspo = Objective(clip=GspoClip(low=0.1, high=0.2), aggregation=SeqMeanTokenSum())
    assert policy_loss(batch, luspo).value.item() == pytest.approx(
        policy_loss(batch, gspo).value.item(), rel=1e-13
    )
    torch.testing.assert_close(
        gradient_weights(batch, luspo), gradient_weights(batch, gspo), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("n_micro", [1, 2, 4])
def test_gmpo_of_verl_grows_with_the_micro_batches(n_micro: int) -> None:
    """verl.md §2.2: plain means over rows are added up, so n micro-batches give n times as much."""
    generator = torch.Generator().manual_seed(5)
    logp = -torch.rand(4, 3, generator=generator, dtype=F)
    batch = Batch(
        logp=logp,
        old_logp=logp - 0.1,
        mask=torch.ones(4, 3, dtype=F),
        advantages=torch.randn(4, generator=generator, dtype=F),
    )
    split = Structure.split(4, micro_rows=4 // n_micro)
    right = Objective(clip=GmpoClip(), aggregation=SeqMeanTokenMean())
    verl = Objective(clip=GmpoClip(), aggregation=SeqMeanTokenMean(micro="sum"))
    once = policy_loss(batch, right, structure=split).value.item()
    assert once == pytest.approx(-batch.advantages.mean().item() * math.exp(0.1), rel=1e-12)
    added = policy_loss(batch, verl, structure=split).value.item()
    assert added == pytest.approx(n_micro * once, rel=1e-12)


def test_gmpo_token_without_advantage_neither_counts_nor_moves() -> None:
    """sgn(0) = 0 in verl's geo_mean, on policy too, where a clamp to [0, 0] has gradient 1."""
    logp = torch.tensor([[-1.0, -2.0, -0.5]], dtype=F, requires_grad=True)
    batch = Batch(
        logp=logp,
        old_logp=torch.tensor([[-1.0, -2.3, -0.5]], dtype=F),
        mask=torch.ones(1, 3, dtype=F),
        advantages=torch.tensor([[0.0, 2.0, 1.0]], dtype=F),
    )
    config = Objective(clip=GmpoClip(low=0.4, high=0.4), aggregation=SeqMeanTokenMean())
    value = policy_loss(batch, config).value
    ratio = math.exp((0.3 + 0.0) / 3)
    assert value.item() == pytest.approx(-1.0 * ratio, rel=1e-12)
    (gradient,) = torch.autograd.grad(value, logp)
    right = torch.tensor([[0.0, -ratio / 3, -ratio / 3]], dtype=F)
    torch.testing.assert_close(gradient, right, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient_weights(batch, config), right, rtol=1e-12, atol=0)


# ---------------------------------------------------------------------------- covariance rules


def covariances(batch: Batch) -> torch.Tensor:
    """The covariance terms of single tokens, from plain sums over the valid ones."""
    A = batch.advantages.expand(6, 7)
    n = batch.mask.sum()
    centred = [x - (x * batch.mask).sum() / n for x in (A, batch.logp)]
    return centred[0] * centred[1]


def test_kl_cov_takes_the_highest_over_the_whole_update() -> None:
    batch = random_batch(4)
    clip = KlCov(share=0.2, coef=0.5)
    config = Objective(clip=clip, aggregation=TokenSum())
    loss = policy_loss(batch, config)
    n_tokens = batch.mask.sum().item()
    n_chosen = max(1, math.floor(n_tokens * clip.share))
    order = covariances(batch).masked_fill(batch.mask == 0, -math.inf).flatten().argsort()
    chosen = torch.zeros(42, dtype=torch.bool)
    chosen[order[-n_chosen:]] = True
    chosen = chosen.view(6, 7)
    d = batch.logp - batch.old_logp
    right = (batch.mask * (-batch.advantages * d.exp() + clip.coef * d.abs() * chosen)).sum()
    assert loss.value.item() == pytest.approx(right.item(), rel=1e-12)
    share = (chosen * batch.mask).sum().item() / n_tokens
    assert loss.metrics["clip/covariance_share"].item() == pytest.approx(share)


def test_clip_cov_draws_from_the_band_alone_and_repeats() -> None:
    batch = random_batch(4, spread=0.1)
    batch.advantages[4] = 0.3  # a dropped token shows where it had a gradient
    clip = ClipCov(share=0.05, cov_low=0.05, cov_high=0.5)
    config = Objective(clip=clip, aggregation=TokenSum())
    n_chosen = max(1, math.floor(batch.mask.sum().item() * clip.share))
    cov = covariances(batch)
    ratio = (batch.logp - batch.old_logp).exp()
    moved = torch.where(batch.advantages > 0, ratio > 1.2, ratio < 0.8) & (batch.advantages != 0)
    band = (cov > clip.cov_low) & (cov < clip.cov_high) & (batch.mask != 0) & ~moved
    assert n_chosen < band.sum()
    assert bool(((cov >= clip.cov_high) & (batch.mask != 0) & ~moved).any())
    plain = gradient_weights(batch, Objective(clip=PpoClip(), aggregation=TokenSum()))
    seen = torch.zeros(6, 7, dtype=torch.bool)
    for seed in range(60):
        first, again = (
            gradient_weights(batch, config, generator=torch.Generator().manual_seed(seed))
            for _ in range(2)
        )
        assert torch.equal(first, again)
        dropped = (first == 0) & (plain != 0)
        assert dropped.sum() == n_chosen
        assert bool((band | ~dropped).all())
        torch.testing.assert_close(first[~dropped], plain[~dropped])
        seen |= dropped
    assert torch.equal(seen, band & (plain != 0))


def test_clip_cov_with_a_generator_a_replica() -> None:
    """Each replica is what its generator alone gives; as many generators as replicas."""
    batch = random_batch(4, spread=0.1)
    pair = Batch(
        logp=torch.stack((batch.logp, batch.logp)),
        old_logp=batch.old_logp,
        mask=batch.mask,
        advantages=batch.advantages.expand(2, 6, 7),
        group=batch.group,
    )
    config = Objective(clip=ClipCov(share=0.05, cov_low=0.05, cov_high=0.5), aggregation=TokenSum())

    def generators(*seeds: int) -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in seeds]

    together = gradient_weights(pair, config, generator=generators(3, 5))
    for row, seed in enumerate((3, 5)):
        alone = gradient_weights(batch, config, generator=generators(seed)[0])
        torch.testing.assert_close(together[row], alone)
    assert not torch.equal(together[0], together[1])
    for wrong in (generators(3), generators(3, 4, 5)):
        with pytest.raises(ConfigError, match="generators do not fit"):
            gradient_weights(pair, config, generator=wrong)
    with pytest.raises(ConfigError, match="generators do not fit"):
        gradient_weights(batch, config, generator=generators(3))


def test_clip_cov_without_generator_is_refused() -> None:
    with pytest.raises(ConfigError, match="generator"):
        policy_loss(random_batch(0), Objective(clip=ClipCov()))
