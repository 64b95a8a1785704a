"""Sampler correction: every level and action, rejection, bypass, denominators, its metrics."""

import math

import pytest
import torch

from dapolab.objective import Batch, correct, gradient_weights, policy_loss
from dapolab.scenario import (
    ConfigError,
    GpgClip,
    NoClip,
    Objective,
    PpoClip,
    Rejection,
    SamplerCorrection,
    SeqMeanTokenMean,
    TokenMean,
    TokenSum,
    VespoClip,
)

F = torch.float64
# Ratios old/sampler of three responses; the last token of the first is padding.
RATIOS = [[0.5, 3.0, None], [1.0, 1.0, 1.2], [4.0, 0.25, 1.5]]
MASK = torch.tensor([[1.0, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=F)
PRODUCT = [1.5, 1.2, 1.5]
GEOMETRIC = [1.5 ** (1 / 2), 1.2 ** (1 / 3), 1.5 ** (1 / 3)]


def log_probs() -> tuple[torch.Tensor, torch.Tensor]:
    sampler = torch.full((3, 3), -1.0, dtype=F)
    sampler[0, 2] = torch.nan
    ratio = torch.tensor([[x or math.nan for x in row] for row in RATIOS], dtype=F)
    return sampler + ratio.log(), sampler


def weights_of(config: SamplerCorrection) -> list[list[float]]:
    old, sampler = log_probs()
    found = correct(old, sampler_logp=sampler, mask=MASK, config=config)
    return (found.weight.expand(3, 3) * MASK).tolist()


def per_token(of_ratio) -> list[list[float]]:
    return [[0.0 if x is None else of_ratio(x) for x in row] for row in RATIOS]


def per_row(values: list[float]) -> list[list[float]]:
    return [[v * m for m in row] for v, row in zip(values, MASK.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("settings", "right"),
    [
        (("token", "truncate", None, 2.0), per_token(lambda x: min(x, 2.0))),
        (("token", "truncate", 0.5, None), per_token(lambda x: max(x, 0.5))),
        (("token", "truncate", None, None), per_token(lambda x: x)),
        (("token", "band", 0.4, 2.0), per_token(lambda x: x if 0.4 <= x <= 2 else 0.0)),
        (("token", "band", None, 2.0), per_token(lambda x: x if x <= 2 else 0.0)),
        (("token", "mask", 0.4, 2.0), per_token(lambda x: float(0.4 <= x <= 2))),
        (("token", "reject", 0.4, 2.0), per_row([0.0, 1.0, 0.0])),
        (("sequence", "truncate", None, 1.3), per_row([1.3, 1.2, 1.3])),
        (("sequence", "band", None, 1.3), per_row([0.0, 1.2, 0.0])),
        (("sequence", "mask", 1.3, None), per_row([1.0, 0.0, 1.0])),
        (("sequence", "reject", None, 1.3), per_row([0.0, 1.0, 0.0])),
        (("geometric", "truncate", None, None), per_row(GEOMETRIC)),
        (("geometric", "band", None, 1.2), per_row([0.0, GEOMETRIC[1], GEOMETRIC[2]])),
    ],
)
def test_levels_and_actions(settings, right) -> None:
    level, action, lower, upper = settings
    config = SamplerCorrection(level=level, action=action, lower=lower, upper=upper)
    got = weights_of(config)
    for got_row, right_row in zip(got, right, strict=True):
        assert got_row == pytest.approx(right_row, rel=1e-12)


def test_a_sequence_mask_beside_token_weights() -> None:
    """seq-mask-tis (OpenRLHF, NeMo RL): token weights, responses out by geometric mean."""
    config = SamplerCorrection(
        level="token", upper=2.0, rejection=(Rejection(level="geometric", lower=0.9, upper=1.2),)
    )
    right = per_token(lambda x: min(x, 2.0))
    right[0] = [0.0] * 3
    for got_row, right_row in zip(weights_of(config), right, strict=True):
        assert got_row == pytest.approx(right_row, rel=1e-12)


def test_normalised_weights_have_mean_one_over_what_is_kept() -> None:
    for action in ("truncate", "band"):
        config = SamplerCorrection(level="token", action=action, upper=2.0, normalise="kept")
        old, sampler = log_probs()
        found = correct(old, sampler_logp=sampler, mask=MASK, config=config)
        kept = MASK * found.keep
        assert ((found.weight * MASK).sum() / kept.sum()).item() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("over", "mean"),
    [
        ("tokens", (0.5 + 1 + 1 + 1.2 + 1.5) / 8),  # 3, 4 and 0.25 are out and count as 0
        ("kept", (0.5 + 1 + 1 + 1.2 + 1.5) / 5),
        ("responses", (0.5 / 2 + 3.2 / 3 + 1.5 / 3) / 3),
    ],
)
def test_which_mean_becomes_one(over: str, mean: float) -> None:
    config = SamplerCorrection(level="token", action="band", lower=0.4, upper=2.0, normalise=over)
    right = per_token(lambda x: x / mean if 0.4 <= x <= 2 else 0.0)
    for got_row, right_row in zip(weights_of(config), right, strict=True):
        assert got_row == pytest.approx(right_row, rel=1e-12)


def test_pooled_weights_are_the_geometric_mean_of_the_truncated_ones() -> None:
    config = SamplerCorrection(level="token", upper=2.0, pooling="geometric")
    cut = [[min(x, 2.0) for x in row if x is not None] for row in RATIOS]
    right = per_row([math.prod(row) ** (1 / len(row)) for row in cut])
    for got_row, right_row in zip(weights_of(config), right, strict=True):
        assert got_row == pytest.approx(right_row, rel=1e-9)  # 1e-10 is added to each weight


def _estimates(kind: str) -> list[list[float]]:
    def one(x: float) -> float:
        return 0.5 * math.log(x) ** 2 if kind == "k2" else x - 1 - math.log(x)

    return [[one(x) for x in row if x is not None] for row in RATIOS]


@pytest.mark.parametrize("kind", ["k2", "k3"])
@pytest.mark.parametrize(
    ("level", "statistic"),
    [("token", max), ("sequence", sum), ("geometric", lambda row: sum(row) / len(row))],
)
def test_rejection_by_an_estimate_of_the_divergence(kind: str, level: str, statistic) -> None:
    """Bounds between the responses' statistics: the ones above go whole."""
    values = [statistic(row) for row in _estimates(kind)]
    for bound in (min(values) * 1.01, sorted(values)[1] * 1.01):
        rule = Rejection(estimator=kind, level=level, upper=bound)
        right = per_row([float(v <= bound) for v in values])
        assert weights_of(SamplerCorrection(rejection=(rule,))) == right
        twin = Rejection(estimator=kind, level=level, upper=bound / 1.05)
        assert weights_of(SamplerCorrection(rejection=(twin,))) != right


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_rejection_of_single_tokens(kind: str) -> None:
    bound = 0.3
    rule = Rejection(estimator=kind, level="token", scope="token", upper=bound)
    right = [[float(v <= bound) for v in row] + [0.0] * (3 - len(row)) for row in _estimates(kind)]
    assert weights_of(SamplerCorrection(rejection=(rule,))) == right


def test_every_rule_of_several_must_let_it_stay() -> None:
    rules = (
        Rejection(level="geometric", upper=1.2),
        Rejection(level="token", scope="token", lower=0.4, upper=2.0),
    )
    right = [[0, 0, 0], [1, 1, 1], [0, 0, 1]]
    assert weights_of(SamplerCorrection(rejection=rules)) == right


def batch_of(*, logp: torch.Tensor | None = None) -> Batch:
    old, sampler = log_probs()
    current = old + 0.05 if logp is None else logp
    return Batch(
        logp=current,
        old_logp=old,
        sampler_logp=sampler,
        mask=MASK,
        advantages=torch.tensor([1.0, -0.5, 2.0], dtype=F),
    )


def test_it_multiplies_the_clipped_loss() -> None:
    """Decoupled PPO: clip on current/old, weight old/sampler, neither touches the other."""
    batch = batch_of()
    rule = SamplerCorrection(level="token", upper=2.0)
    got = policy_loss(batch, Objective(clip=PpoClip(), sampler=rule)).value.item()
    A = [1.0, -0.5, 2.0]
    terms = [
        -A[i] * math.exp(0.05) * min(x, 2.0)
        for i, row in enumerate(RATIOS)
        for x in row
        if x is not None
    ]
    assert got == pytest.approx(sum(terms) / 8, rel=1e-12)


def test_bypass_clips_current_over_sampler() -> None:
    """verl's bypass mode and 06-dapo: the clip acts on the mismatch of the two engines."""
    batch = batch_of()
    rule = SamplerCorrection(bypass=True)
    loss = policy_loss(batch, Objective(clip=PpoClip(low=0.2, high=0.28), sampler=rule))
    A = [1.0, -0.5, 2.0]
    total, upper = 0.0, 0
    for i, row in enumerate(RATIOS):
        for x in row:
            if x is not None:
                r = x * math.exp(0.05)
                clamped = min(max(r, 0.8), 1.28)
                total += max(-A[i] * r, -A[i] * clamped)
                upper += A[i] > 0 and r > 1.28
    assert loss.value.item() == pytest.approx(total / 8, rel=1e-12)
    assert loss.metrics["clip/upper_share"].item() == pytest.approx(upper / 8)


def test_bypass_rejects_by_current_over_sampler() -> None:
    """verl's bypass mode has no old policy: the statistic is that of the current one."""
    _, sampler = log_probs()
    moved = torch.tensor([[0.1], [0.5], [0.1]], dtype=F)
    whole = batch_of(logp=sampler + moved)
    rule = SamplerCorrection(bypass=True, rejection=(Rejection(level="geometric", upper=1.3),))
    batch = Batch(**{**whole.__dict__, "old_logp": None})
    got = policy_loss(batch, Objective(clip=NoClip(), sampler=rule)).value.item()
    right = (-1.0 * math.exp(0.1) * 2 - 2.0 * math.exp(0.1) * 3) / 8
    assert got == pytest.approx(right, rel=1e-12)


def test_it_replaces_the_ratio() -> None:
    """verl bypass "reinforce", torchforge: −A·w·log π with w of current/sampler, no gradient."""
    batch = batch_of()
    rule = SamplerCorrection(level="token", upper=2.0, applies="replaces", bypass=True)
    config = Objective(clip=GpgClip(), sampler=rule)
    gradient = gradient_weights(batch, config)
    A = [1.0, -0.5, 2.0]
    right = [
        [0.0 if x is None else -A[i] * min(x * math.exp(0.05), 2.0) / 8 for x in row]
        for i, row in enumerate(RATIOS)
    ]
    torch.testing.assert_close(gradient, torch.tensor(right, dtype=F), rtol=1e-12, atol=0)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("config", [TokenMean(), SeqMeanTokenMean(empty_rows="out")])
def test_rejected_responses_in_or_out_of_the_denominator(config, counted: bool) -> None:
    batch = batch_of()
    rule = SamplerCorrection(
        rejection=(Rejection(level="geometric", upper=1.2),), rejected_in_denominator=counted
    )
    got = policy_loss(batch, Objective(clip=NoClip(), aggregation=config, sampler=rule))
    A, r = [1.0, -0.5, 2.0], math.exp(0.05)
    if config.kind == "token-mean":
        right = sum(-A[i] * r * 3 for i in (1, 2)) / (8 if counted else 6)
    else:
        right = sum(-A[i] * r for i in (1, 2)) / (3 if counted else 2)
    assert got.value.item() == pytest.approx(right, rel=1e-12)
    assert got.metrics["update/tokens"].item() == (8 if counted else 6)


def test_metrics_of_the_mismatch() -> None:
    batch = batch_of()
    rule = SamplerCorrection(level="token", upper=2.0)
    metrics = policy_loss(batch, Objective(sampler=rule)).metrics
    ratios = [x for row in RATIOS for x in row if x is not None]
    weights = [min(x, 2.0) for x in ratios]
    right = {
        "k1": -sum(math.log(x) for x in ratios) / 8,
        "k3": sum(x - 1 - math.log(x) for x in ratios) / 8,
        "max_abs_log_ratio": math.log(4.0),
        "ess_share": sum(weights) ** 2 / 8 / sum(w * w for w in weights),
        "truncated_share": 2 / 8,
        "rejected_share": 0.0,
    }
    for name, value in right.items():
        assert metrics[f"sampler/{name}"].item() == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_it_enters_the_sequence_weight_of_vespo(level: str) -> None:
    """w = Π current/old · Π (cut old/sampler): φ(w) = e^λ·w^k·e^(−λw); a 0 counts as 1e-8 (TRL)."""
    rule = SamplerCorrection(level=level, action="band", upper=1.3, applies="enters")
    batch = batch_of()
    config = Objective(clip=VespoClip(), aggregation=TokenSum(), sampler=rule)
    gradient = gradient_weights(batch, config)
    A = [1.0, -0.5, 2.0]
    right = torch.zeros(3, 3, dtype=F)
    for i, row in enumerate(RATIOS):
        ratios = [x for x in row if x is not None]
        w = math.exp(0.05 * len(ratios))
        for x in ratios if level == "token" else [math.prod(ratios)]:
            w *= x if x <= 1.3 else 1e-8
        k, lam = (2.0, 3.0) if A[i] >= 0 else (3.0, 2.0)
        right[i, : len(ratios)] = -math.exp(lam) * w**k * math.exp(-lam * w) * A[i]
    torch.testing.assert_close(gradient, right, rtol=1e-10, atol=1e-30)
    logp = batch.logp.detach().requires_grad_()
    value = policy_loss(batch_of(logp=logp), config).value
    torch.testing.assert_close(torch.autograd.grad(value, logp)[0], right, rtol=1e-10, atol=1e-30)
    with pytest.raises(ValueError, match="vespo"):
        Objective(sampler=rule)


def test_missing_policies_are_named() -> None:
    """Four policies, none stands in for another."""
    whole = batch_of()
    without = {
        "sampler_logp": SamplerCorrection(level="token"),
        "old_logp": SamplerCorrection(level="token"),
    }
    for name, rule in without.items():
        batch = Batch(**{**whole.__dict__, name: None})
        with pytest.raises(ConfigError, match=name):
            policy_loss(batch, Objective(sampler=rule))
    batch = Batch(**{**whole.__dict__, "old_logp": None})
    policy_loss(batch, Objective(sampler=SamplerCorrection(bypass=True)))


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="twice"):
        Objective(sampler=SamplerCorrection(level="token", bypass=True))
    with pytest.raises(ValueError, match="replaces"):
        Objective(sampler=SamplerCorrection(level="token", applies="replaces"))
    with pytest.raises(ValueError, match="exceeds"):
        SamplerCorrection(level="token", lower=3.0, upper=2.0)
    with pytest.raises(ValueError, match="exceeds"):
        Rejection(lower=3.0, upper=2.0)
    with pytest.raises(ValueError, match="no ratio"):
        Rejection(estimator="k3", lower=0.5)
    with pytest.raises(ValueError, match="one a response"):
        Rejection(level="sequence", scope="token")
