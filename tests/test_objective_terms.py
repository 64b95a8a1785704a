"""Length rules, KL estimators, entropy, metrics, shapes: everything beside the surrogate."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab import rules
from dapolab.metrics import UPDATE_METRICS
from dapolab.objective import (
    Batch,
    EntropyControl,
    Status,
    Structure,
    gradient_weights,
    kl_estimate,
    learning_signal,
    lengths_of,
    overlong_penalty,
    policy_loss,
    present_mean,
    sampled_quantiles,
    shape_rewards,
)
from dapolab.objective.bench import objective_benchmarks
from dapolab.objective.quantiles import weighted_quantile
from dapolab.scenario import (
    ConfigError,
    GdpoAdvantage,
    GpgClip,
    Kl,
    KlCov,
    Length,
    Objective,
    OverlongPenalty,
    PpoClip,
    SamplerCorrection,
    SeqMeanTokenMean,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
    TokenSum,
)

F = torch.float64


# ---------------------------------------------------------------------------- length


@pytest.mark.parametrize(
    ("length", "right"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0), (150, -1.0)],
)
def test_soft_overlong_punishment(length: int, right: float) -> None:
    """B56, B59: cap 100, buffer 20; half the factor, half the penalty."""
    lengths = torch.tensor([length], dtype=F)
    config = OverlongPenalty(cap_tokens=100, buffer_tokens=20)
    assert overlong_penalty(lengths, config).item() == pytest.approx(right, abs=1e-15)
    half = OverlongPenalty(cap_tokens=100, buffer_tokens=20, factor=0.5)
    assert overlong_penalty(lengths, half).item() == pytest.approx(right / 2, abs=1e-15)


def test_beyond_the_cap_by_name() -> None:
    """B59: verl's expression goes on to −3.5 at 150; SkyRL's example sets the reward to 0."""
    lengths = torch.tensor([150.0, 90.0], dtype=F)
    unclamped = OverlongPenalty(cap_tokens=100, buffer_tokens=20, beyond="unclamped")
    assert overlong_penalty(lengths, unclamped).tolist() == [-3.5, -0.5]
    zero = Length(penalty=OverlongPenalty(cap_tokens=100, buffer_tokens=20, beyond="zero_reward"))
    rewards = torch.tensor([-1.0, -1.0], dtype=F)
    shaped = shape_rewards(rewards, lengths=lengths, truncated=None, config=zero)
    assert shaped.tolist() == [0.0, -1.5]


def test_final_rewards_at_the_cap() -> None:
    """B59: right at 100 tokens 0, wrong −2."""
    config = Length(penalty=OverlongPenalty(cap_tokens=100, buffer_tokens=20))
    lengths = torch.tensor([100.0, 100.0], dtype=F)
    shaped = shape_rewards(
        torch.tensor([1.0, -1.0], dtype=F), lengths=lengths, truncated=None, config=config
    )
    assert shaped.tolist() == [0.0, -2.0]


def test_a_buffer_of_zero_is_a_step_and_one_beyond_the_cap_an_error() -> None:
    step = OverlongPenalty(cap_tokens=100, buffer_tokens=0)
    assert overlong_penalty(torch.tensor([99.0, 100, 101]), step).tolist() == [0.0, 0.0, -1.0]
    with pytest.raises(ValueError, match="buffer"):
        OverlongPenalty(cap_tokens=100, buffer_tokens=120)


@settings(deadline=None, max_examples=60)
@given(
    cap=st.integers(1, 300),
    share=st.floats(0, 1),
    factor=st.floats(0, 3),
    clamp=st.booleans(),
    length=st.integers(0, 600),
)
def test_tensors_and_plain_numbers_follow_one_rule(cap, share, factor, clamp, length) -> None:
    buffer = int(share * cap)
    config = OverlongPenalty(
        cap_tokens=cap,
        buffer_tokens=buffer,
        factor=factor,
        beyond="clamped" if clamp else "unclamped",
    )
    got = overlong_penalty(torch.tensor([float(length)], dtype=F), config).item()
    right = rules.overlong_penalty(
        length, cap_tokens=cap, buffer_tokens=buffer, factor=factor, clamp=clamp
    )
    assert got == pytest.approx(right, rel=1e-12, abs=1e-12)


def test_lengths_come_from_the_mask() -> None:
    mask = torch.zeros(2, 300, dtype=F)
    mask[0, :90], mask[1, 0] = 1.0, 99.0
    assert lengths_of(mask).tolist() == [90.0, 99.0]


def test_truncated_rewards_are_scaled_or_replaced() -> None:
    rewards = torch.tensor([1.0, 1.0], dtype=F)
    truncated = torch.tensor([False, True])
    lengths = torch.tensor([5.0, 10.0], dtype=F)
    for config, right in ((Length(truncated_scale=0.3), 0.3), (Length(truncated_reward=-2.0), -2)):
        got = shape_rewards(rewards, lengths=lengths, truncated=truncated, config=config)
        assert got.tolist() == [1.0, right]
    with pytest.raises(ValueError, match="exclude"):
        Length(truncated_scale=0.3, truncated_reward=0.0)


def test_truncation_comes_from_the_finish_reason() -> None:
    """A response of cap length that stopped is not truncated; a shorter one may be."""
    status = torch.tensor([int(Status.COMPLETED), int(Status.TRUNCATED)])
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]], dtype=F)
    config = Objective(length=Length(mask_truncated=True))
    rewards = torch.tensor([1.0, 0.0], dtype=F)
    signal = learning_signal(rewards, config, group=torch.tensor([0, 0]), mask=mask, status=status)
    assert signal.mask.tolist() == [[1.0, 1, 1], [0, 0, 0]]


def test_length_rules_and_several_rewards_are_refused() -> None:
    config = Objective(
        advantage=GdpoAdvantage(),
        length=Length(penalty=OverlongPenalty(cap_tokens=4, buffer_tokens=2)),
    )
    with pytest.raises(ConfigError, match="gdpo"):
        learning_signal(
            torch.zeros(2, 2, dtype=F),
            config,
            group=torch.tensor([0, 0]),
            mask=torch.ones(2, 2, dtype=F),
        )


# ---------------------------------------------------------------------------- KL


@pytest.mark.parametrize("d", [-30.0, -2.0, -0.1, 0.0, 1e-4, 0.7, 25.0])
def test_kl_estimators(d: float) -> None:
    x = torch.tensor([d], dtype=F)
    right = {"k1": d, "abs": abs(d), "k2": d * d / 2, "k3": math.expm1(-d) + d}
    for estimator, value in right.items():
        got = kl_estimate(x, Kl(estimator=estimator)).item()
        assert got == pytest.approx(value, rel=1e-12, abs=1e-18)
    verl = Kl(estimator="k3", log_ratio_clamp=20.0, value_clamp=10.0)
    inner = min(max(d, -20.0), 20.0)
    right_verl = min(max(math.expm1(-inner) + inner, -10.0), 10.0)
    assert kl_estimate(x, verl).item() == pytest.approx(right_verl, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
def test_straight_through_has_the_gradient_of_k2(estimator: str) -> None:
    """verl's "+": value of the estimator, gradient d."""
    d = torch.tensor([-0.3, 0.2, 1.5], dtype=F, requires_grad=True)
    config = Kl(estimator=estimator, straight_through=True)
    value = kl_estimate(d, config)
    torch.testing.assert_close(value, kl_estimate(d, Kl(estimator=estimator)))
    (gradient,) = torch.autograd.grad(value.sum(), d)
    torch.testing.assert_close(gradient, d.detach())


@pytest.mark.parametrize(("estimator", "learns"), [("k1", False), ("k2", True), ("k3", False)])
def test_expected_gradient_of_kl_losses_on_policy(estimator: str, learns: bool) -> None:
    """Sum over all tokens of a small vocabulary: k1's is 0, k2's that of the reverse KL.

    k3's is that of the forward KL (reference first), which is another gradient.
    """
    logits = torch.tensor([0.3, -0.2, 0.9, -1.0], dtype=F, requires_grad=True)
    reference = torch.tensor([0.1, 0.5, -0.4, 0.2], dtype=F).log_softmax(0)
    logp = logits.log_softmax(0)
    p = logp.detach().exp()
    estimate = kl_estimate(logp - reference, Kl(estimator=estimator))
    (expected,) = torch.autograd.grad((p * estimate).sum(), logits, retain_graph=True)
    reverse = (logp.exp() * (logp - reference)).sum()
    (true,) = torch.autograd.grad(reverse, logits)
    if estimator == "k1":
        assert expected.abs().max() < 1e-15
        assert true.abs().max() > 0.05
    else:
        assert torch.allclose(expected, true, atol=1e-12) == learns
    if estimator == "k3":
        torch.testing.assert_close(expected, p - reference.exp(), rtol=1e-12, atol=1e-14)


def small_batch(**more) -> Batch:
    generator = torch.Generator().manual_seed(8)
    shape = (3, 5)
    logp = -torch.rand(shape, generator=generator, dtype=F)
    return Batch(
        logp=logp,
        old_logp=logp - 0.6 * torch.randn(shape, generator=generator, dtype=F),
        ref_logp=logp - torch.rand(shape, generator=generator, dtype=F),
        entropy=torch.rand(shape, generator=generator, dtype=F),
        mask=(torch.arange(5) < torch.tensor([[5], [2], [3]])).to(F),
        advantages=torch.tensor([1.0, -0.7, -0.4], dtype=F),
        **more,
    )


@pytest.mark.parametrize("weight", ["none", "detached", "attached"])
def test_kl_and_entropy_share_the_aggregation(weight: str) -> None:
    batch = small_batch()
    plain = Objective(aggregation=SeqMeanTokenMean())
    kl = Kl(estimator="k2", coefficient=0.3, ratio_weight=weight)
    config = Objective(aggregation=SeqMeanTokenMean(), kl=kl, entropy_coef=0.01)
    got = policy_loss(batch, config).value - policy_loss(batch, plain).value
    kl_term = 0.15 * (batch.logp - batch.ref_logp).square()
    if weight != "none":
        kl_term = kl_term * (batch.logp - batch.old_logp).exp()
    terms = (kl_term - 0.01 * batch.entropy) * batch.mask
    right = (terms.sum(dim=-1) / batch.mask.sum(dim=-1)).mean()
    assert got.item() == pytest.approx(right.item(), rel=1e-12)


@pytest.mark.parametrize("entropy_mode", [None, TokenMean(), TokenMeanMicro()])
def test_entropy_may_have_an_aggregation_of_its_own(entropy_mode) -> None:
    """TRL averages it over the tokens of each micro-batch, whatever the loss does."""
    batch, split = small_batch(), Structure.split(3, micro_rows=1)
    plain = Objective(aggregation=SeqMeanTokenSumNorm(constant=7))
    config = Objective(
        aggregation=SeqMeanTokenSumNorm(constant=7),
        entropy_coef=0.5,
        entropy_aggregation=entropy_mode,
    )
    got = policy_loss(batch, plain, structure=split).value
    got = got - policy_loss(batch, config, structure=split).value
    sums, n = (batch.entropy * batch.mask).sum(dim=-1), batch.mask.sum(dim=-1)
    right = {
        "None": sums.sum() / 3 / 7,
        "token-mean": sums.sum() / n.sum(),
        "token-mean-micro": (sums / n).mean(),
    }[entropy_mode.kind if entropy_mode else "None"]
    assert got.item() == pytest.approx(0.5 * right.item(), rel=1e-12)


# ---------------------------------------------------------------------------- gates


def test_punished_responses_far_from_the_policy_lose_their_surrogate() -> None:
    """DeepSeek-V3.2: A < 0 and mean log(sampler/current) > δ; KL and denominators stay."""
    batch = small_batch()
    batch = replace(batch, sampler_logp=batch.logp + torch.tensor([[0.5], [0.5], [0.1]], dtype=F))
    kl = Kl(estimator="k2", coefficient=0.3)
    config = Objective(off_policy_kl=0.2, kl=kl, clip=PpoClip(high=0.28))
    open_rows = torch.tensor([[1.0], [0.0], [1.0]], dtype=F)
    surrogates = -batch.advantages[:, None] * torch.where(
        batch.advantages[:, None] > 0,
        (batch.logp - batch.old_logp).exp().clamp(max=1.28),
        (batch.logp - batch.old_logp).exp().clamp(min=0.8),
    )
    terms = surrogates * open_rows + 0.15 * (batch.logp - batch.ref_logp).square()
    loss = policy_loss(batch, config)
    assert loss.value.item() == pytest.approx((terms * batch.mask).sum().item() / 10, rel=1e-12)
    gradient = gradient_weights(batch, config)
    only_kl = 0.3 * (batch.logp - batch.ref_logp)[1] * batch.mask[1] / 10
    torch.testing.assert_close(gradient[1], only_kl, rtol=1e-12, atol=0)
    everything = policy_loss(batch, Objective(clip=PpoClip(high=0.28))).metrics
    before, now = everything["clip/active_tokens"], loss.metrics["clip/active_tokens"]
    stopped = ((batch.logp - batch.old_logp).exp() < 0.8)[1] & (batch.mask[1] != 0)
    assert (before - now).item() == batch.mask[1].sum().item() - stopped.sum().item()
    with pytest.raises(ConfigError, match="sampler_logp"):
        policy_loss(small_batch(), config)


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.9])
def test_only_tokens_of_high_entropy_learn(share: float) -> None:
    batch = small_batch()
    valid = batch.mask != 0
    threshold = torch.quantile(batch.entropy[valid], 1 - share)
    wanted = valid & (batch.entropy >= threshold)
    config = Objective(clip=GpgClip(), top_entropy_share=share)
    gradient = gradient_weights(batch, config)
    assert torch.equal(gradient != 0, wanted)
    plain = gradient_weights(batch, Objective(clip=GpgClip()))
    torch.testing.assert_close(gradient[wanted], plain[wanted])


@pytest.mark.parametrize("level", [0.0, 0.3, 0.5, 0.77, 1.0])
def test_weighted_quantile_is_that_of_the_copies(level: float) -> None:
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(2, 3, 4, generator=generator, dtype=F)
    mask = torch.randint(0, 4, (2, 3, 4), generator=generator).to(F)
    got = weighted_quantile(values, mask=mask, level=level)
    for replica in range(2):
        copies = values[replica].flatten().repeat_interleave(mask[replica].flatten().long())
        right = torch.quantile(copies, level).item()
        assert got[replica].item() == pytest.approx(right, rel=1e-12)
    assert weighted_quantile(values, mask=torch.zeros_like(mask), level=level).tolist() == [0, 0]


def test_the_entropy_coefficient_follows_the_entropy() -> None:
    """Up by a step at or below the target, down above it, bounded; applied one update late."""
    control = EntropyControl(coef=0.1, target=0.5, delta=0.2, low=0.0, high=0.4)
    seen = []
    for entropy in (0.9, 0.5, 0.2, 0.2, 0.8, 0.1):
        seen.append((control.applied, control.coef))
        control = control.after(entropy)
    right = [(0.0, 0.1), (0.0, 0.0), (0.2, 0.2), (0.4, 0.4), (0.4, 0.4), (0.0, 0.2)]
    assert [x for pair in seen for x in pair] == pytest.approx([x for p in right for x in p])
    assert control.coef == pytest.approx(0.4)
    with pytest.raises(ConfigError, match="exceeds high"):
        EntropyControl(low=1.0, high=0.5)
    with pytest.raises(ConfigError, match="negative"):
        EntropyControl(delta=-0.1)


def test_a_kl_weighed_by_the_responses_ratio() -> None:
    """TRL's bias correction at the sequence level: k3 of each token times exp(mean log r)."""
    old = torch.tensor([[-1.0, -2.0], [-0.5, -1.5]], dtype=F)
    logp = old + torch.tensor([[0.2, -0.4], [0.3, 0.9]], dtype=F)
    batch = Batch(
        logp=logp,
        old_logp=old,
        ref_logp=old - 0.3,
        mask=torch.tensor([[1.0, 1], [1, 0]], dtype=F),
        advantages=torch.zeros(2, dtype=F),
    )
    kl = Kl(coefficient=2.0, ratio_weight="attached", ratio_level="sequence")
    got = policy_loss(batch, Objective(kl=kl)).value.item()

    def k3(d: float) -> float:
        return math.exp(-d) - 1 + d

    right = 2.0 / 3 * ((k3(0.5) + k3(-0.1)) * math.exp(-0.1) + k3(0.6) * math.exp(0.3))
    assert got == pytest.approx(right, rel=1e-12)


def test_kl_in_the_reward_adds_nothing_to_the_loss() -> None:
    batch = small_batch()
    config = Objective(kl=Kl(place="reward"))
    assert torch.equal(policy_loss(batch, config).value, policy_loss(batch, Objective()).value)


def test_each_term_names_what_it_needs() -> None:
    batch = small_batch()
    for name, config in {
        "ref_logp": Objective(kl=Kl()),
        "entropy": Objective(entropy_coef=0.1),
        "old_logp": Objective(),
    }.items():
        with pytest.raises(ConfigError, match=name):
            policy_loss(Batch(**{**batch.__dict__, name: None}), config)


# ---------------------------------------------------------------------------- metrics


@pytest.mark.parametrize(
    "mode", [TokenMean(), SeqMeanTokenMean(), SeqMeanTokenSumNorm(constant=9), TokenSum()]
)
def test_metrics_are_token_means_whatever_the_mode(mode) -> None:
    batch = small_batch()
    metrics = policy_loss(batch, Objective(aggregation=mode, clip=PpoClip(high=0.28))).metrics
    valid = batch.mask != 0
    d = (batch.logp - batch.old_logp)[valid].tolist()
    A = batch.advantages[:, None].expand(3, 5)[valid].tolist()
    to_reference = (batch.logp - batch.ref_logp)[valid].tolist()
    upper = [a > 0 and math.exp(x) > 1.28 for x, a in zip(d, A, strict=True)]
    lower = [a < 0 and math.exp(x) < 0.8 for x, a in zip(d, A, strict=True)]
    assert sum(upper) > 0
    assert sum(lower) > 0
    right = {
        "update/tokens": 10,
        "update/responses": 3,
        "update/zero_advantage_share": 0.0,
        "clip/upper_share": sum(upper) / 10,
        "clip/lower_share": sum(lower) / 10,
        "clip/active_tokens": 10 - sum(upper) - sum(lower),
        "ratio/mean": sum(map(math.exp, d)) / 10,
        "ratio/min": math.exp(min(d)),
        "ratio/max": math.exp(max(d)),
        "ratio/p50": math.exp(sorted(d)[4]),
        "ratio/p99": math.exp(max(d)),
        "ratio/p01": math.exp(min(d)),
        "kl/old_k1": -sum(d) / 10,
        "kl/old_k3": sum(math.exp(x) - 1 - x for x in d) / 10,
        "kl/ref_k1": sum(to_reference) / 10,
        "kl/ref_k3": sum(math.exp(-x) - 1 + x for x in to_reference) / 10,
        "entropy/token_mean": batch.entropy[valid].mean().item(),
    }
    for name, value in right.items():
        assert metrics[name].item() == pytest.approx(value, rel=1e-12), name


def test_every_metric_is_defined_once_with_its_unit() -> None:
    batch = small_batch(sampler_logp=small_batch().logp + 0.1)
    names: set[str] = set()
    for clip, sampler in ((PpoClip(), SamplerCorrection(level="token")), (KlCov(), {})):
        names |= set(policy_loss(batch, Objective(clip=clip, sampler=sampler)).metrics)
    assert names == {metric.name for metric in UPDATE_METRICS}


def test_metrics_can_be_switched_off() -> None:
    assert policy_loss(small_batch(), Objective(), metrics=False).metrics == {}


def test_metrics_of_what_is_absent_are_absent() -> None:
    batch = Batch(**{**small_batch().__dict__, "ref_logp": None, "entropy": None})
    names = policy_loss(batch, Objective()).metrics
    assert not [n for n in names if n.startswith(("kl/ref", "entropy", "sampler"))]


def test_quantiles_count_multiplicities() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0, 99.0]], dtype=F)
    mask = torch.tensor([[97.0, 2.0, 1.0, 0.0]], dtype=F)
    got = sampled_quantiles(values, mask=mask, levels=(0.5, 0.97, 0.98, 0.99, 0.995))
    assert got.tolist() == [1.0, 1.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("scale", [1.0, 1.05])
def test_sampled_quantiles_of_large_updates(scale: float) -> None:
    """24 updates of 64 × 4096 normal log-ratios within 4.5 SE; 5 % wider ones are found out."""
    generator = torch.Generator().manual_seed(0)
    values = scale * torch.randn(24, 64, 4096, generator=generator)
    levels = (0.99, 0.999)
    got = sampled_quantiles(values, mask=torch.ones(64, 4096), levels=levels).mean(dim=0)
    n = 24 * (64 * 4096 // 33)
    for level, quantile, x in zip(levels, (2.3263, 3.0902), got, strict=True):
        density = math.exp(-(quantile**2) / 2) / math.sqrt(2 * math.pi)
        error = math.sqrt(level * (1 - level) / n) / density
        assert (abs(x.item() - quantile) < 4.5 * error) == (scale == 1.0)


def test_the_sample_visits_all_columns() -> None:
    """A stride of 32 over a width of 4096 would only ever see every 32nd token."""
    values = (torch.arange(4096) % 2).to(F).expand(64, 4096)
    got = sampled_quantiles(values, mask=torch.ones(64, 4096, dtype=F), levels=(0.45, 0.55))
    assert got.tolist() == [0.0, 1.0]


def test_missing_rewards_do_not_make_the_mean_missing() -> None:
    """B28: [.5, –, –, .8, .6, .7] has mean .65 of 4; all missing stays missing."""
    nan = math.nan
    mean, n = present_mean(torch.tensor([[0.5, nan, nan, 0.8, 0.6, 0.7], [nan] * 6], dtype=F))
    assert mean[0].item() == pytest.approx(0.65)
    assert n.tolist() == [4, 0]
    assert math.isnan(mean[1].item())


# ---------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(3, 4, dtype=F)}, "mask"),
        ({"old_logp": torch.ones(2, 5, dtype=F)}, "old_logp"),
        ({"advantages": torch.ones(4, dtype=F)}, "advantages"),
        ({"group": torch.zeros(4, dtype=torch.int64)}, "group"),
        ({"logp": torch.ones(5, dtype=F)}, "logp"),
    ],
)
def test_wrong_shapes_are_one_clear_line(change, message: str) -> None:
    batch = Batch(**{**small_batch().__dict__, **change})
    with pytest.raises(ConfigError, match=message) as error:
        policy_loss(batch, Objective())
    assert "\n" not in str(error.value)


def test_benchmark_rows_have_the_agreed_columns() -> None:
    rows = objective_benchmarks(n_rounds=1)
    assert [set(row) for row in rows] == [{"name", "value", "unit", "against", "ratio"}] * 2


def test_without_torch_the_import_says_which_extra_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import dapolab.objective\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dapolab[train]" in run.stdout


def test_configs_need_no_torch() -> None:
    code = "import sys, dapolab.scenario; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
