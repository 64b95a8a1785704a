"""Aggregation: the field cases, the frameworks' own results by name, exact small numbers."""

import pytest
import torch
from judge_objective import accumulated

from dapolab.objective import Batch, Structure, aggregate, policy_loss, row_scales
from dapolab.scenario import (
    ConfigError,
    GenerationWindow,
    GpgClip,
    Objective,
    PromptMean,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
    TokenSum,
)

F = torch.float64
ALL_MODES = [
    TokenMean(),
    TokenMeanMicro(),
    GenerationWindow(),
    SeqMeanTokenMean(),
    SeqMeanTokenMean(empty_rows="out"),
    SeqMeanTokenSum(),
    SeqMeanTokenSum(empty_rows="out"),
    SeqMeanTokenSumNorm(constant=7),
    SeqMeanTokenSumNorm(constant="padded-width", rows="sum"),
    PromptMean(),
    PromptMean(empty_groups="out"),
    TokenSum(),
]


def rows_of(lengths: list[int], width: int | None = None) -> torch.Tensor:
    return (torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]).to(F)


def loss_of(
    losses: list[list[float]] | torch.Tensor, mask: torch.Tensor, config, **inputs
) -> float:
    losses = torch.as_tensor(losses, dtype=F)
    return aggregate(losses, mask=mask, scales=row_scales(mask, config, **inputs)).item()


def test_token_mean_counts_the_tokens_of_all_micro_batches_first() -> None:
    """B01: [2] and [1, 1, 1] in two micro-batches; gradient of each token 1/4."""
    mask = rows_of([1, 3])
    losses = [[2.0, 0, 0], [1.0, 1, 1]]
    split = Structure.split(2, micro_rows=1)
    assert loss_of(losses, mask, TokenMean(), structure=split) == 5 / 4
    torch.testing.assert_close(row_scales(mask, TokenMean()), torch.full((2,), 0.25, dtype=F))
    assert loss_of(losses, mask, TokenMeanMicro(), structure=split) == (2 + 1) / 2


def test_skyrl_numbers_of_the_same_mistake() -> None:
    """B01: 100 tokens averaging .5 and 900 averaging .3 gave .40 where .32 is right."""
    mask = rows_of([100, 900])
    losses = torch.tensor([[0.5], [0.3]], dtype=F).expand(2, 900)
    split = Structure.split(2, micro_rows=1)
    assert loss_of(losses, mask, TokenMean(), structure=split) == pytest.approx(0.32, abs=1e-12)
    wrong = loss_of(losses, mask, TokenMeanMicro(), structure=split)
    assert wrong == pytest.approx(0.40, abs=1e-12)


@pytest.mark.parametrize("width", [4, 8, 100])
def test_sum_norm_does_not_depend_on_padding(width: int) -> None:
    """B03: lengths 2 and 4, constant 4: mean(2, 4)/4, however wide the batch is padded."""
    mask = rows_of([2, 4], width)
    ones = torch.ones_like(mask)
    assert loss_of(ones, mask, SeqMeanTokenSumNorm(constant=4)) == (2 + 4) / 2 / 4
    by_width = SeqMeanTokenSumNorm(constant="padded-width")
    assert loss_of(ones, mask, by_width) == (2 + 4) / 2 / width
    old_verl = SeqMeanTokenSumNorm(constant="padded-width", rows="sum")
    assert loss_of(ones, mask, old_verl) == (2 + 4) / width


def test_sum_norm_has_no_default_constant() -> None:
    with pytest.raises(ValueError, match="constant"):
        SeqMeanTokenSumNorm()


@pytest.mark.parametrize(
    ("config", "right"),
    [
        (TokenMean(), (6 + 1 + 2 + 3) / 4),
        (SeqMeanTokenSum(), (6 + 6) / 2),
        (SeqMeanTokenMean(), (6 + 2) / 2),
        (SeqMeanTokenSumNorm(constant=3), (6 + 6) / 2 / 3),
        (SeqMeanTokenSum(variant="verl-3a27a98"), (6 + 2) / 2),
    ],
)
def test_one_matrix_tells_the_modes_apart(config, right: float) -> None:
    """B04: 3, 6, 4, 2; verl's first version of the token sum gave 4."""
    assert loss_of([[6, 0, 0], [1, 2, 3]], rows_of([1, 3]), config) == right


def test_truncated_tokens_leave_the_denominator_unless_asked_for() -> None:
    """B07: five rows of 5 tokens and a masked sixth: 1.0; counted all the same: 25/30."""
    full = rows_of([5] * 6)
    mask = full.clone()
    mask[5] = 0
    ones = torch.ones_like(mask)
    assert loss_of(ones, mask, TokenMean(), full_mask=full) == 1.0
    counted = TokenMean(filtered_tokens="in")
    assert loss_of(ones, mask, counted, full_mask=full) == pytest.approx(25 / 30)
    window = GenerationWindow(filtered_tokens="in")
    assert loss_of(ones, mask, window, full_mask=full) == pytest.approx(25 / 30)


def test_an_empty_row_counts_as_one_token_only_by_name() -> None:
    """B07, miles#2796: 4 tokens and one masked row gave 4/5."""
    mask = rows_of([4, 0])
    assert loss_of(torch.ones_like(mask), mask, TokenMean()) == 1.0
    assert loss_of(torch.ones_like(mask), mask, TokenMean(empty_row_tokens=1)) == 4 / 5


@pytest.mark.parametrize("config", ALL_MODES, ids=lambda c: c.kind)
def test_an_empty_update_is_zero_and_flagged(config) -> None:
    """B08: all masks 0: loss 0, gradient exactly 0, every metric finite, and a flag."""
    logp = torch.full((4, 5), torch.nan, dtype=F, requires_grad=True)
    batch = Batch(
        logp=logp,
        mask=torch.zeros(4, 5, dtype=F),
        advantages=torch.full((4,), torch.nan, dtype=F),
        old_logp=torch.full((4, 5), torch.inf, dtype=F),
        sampler_logp=torch.full((4, 5), torch.nan, dtype=F),
        ref_logp=torch.full((4, 5), torch.nan, dtype=F),
        entropy=torch.full((4, 5), torch.nan, dtype=F),
        group=torch.tensor([3, 3, 1, 1]),
    )
    loss = policy_loss(batch, Objective(aggregation=config))
    (gradient,) = torch.autograd.grad(loss.value, logp)
    assert loss.value.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))
    assert bool(loss.is_empty)
    assert bool(loss.metrics["update/is_empty"])
    for name, value in loss.metrics.items():
        assert bool(torch.isfinite(value).all()), name
    for name in ("clip/upper_share", "clip/lower_share", "kl/old_k3", "entropy/token_mean"):
        assert loss.metrics[name].item() == 0.0


@pytest.mark.parametrize("accumulate", [1, 2, 4, 8])
def test_accumulation_does_not_scale_the_update(accumulate: int) -> None:
    """B10: 8 rows of 5 tokens, losses 1, whatever the number of micro-steps."""
    mask = rows_of([5] * 8)
    ones = torch.ones_like(mask)
    split = Structure.split(8, micro_rows=8 // accumulate)
    for config in (
        TokenMean(),
        GenerationWindow(gradient_accumulation_steps=accumulate, steps_per_generation=accumulate),
    ):
        assert loss_of(ones, mask, config, structure=split) == pytest.approx(1.0, abs=1e-12)
    swift = GenerationWindow(variant="ms-swift", gradient_accumulation_steps=accumulate)
    wrong = loss_of(ones, mask, swift, structure=split)
    assert wrong == pytest.approx(1 / accumulate, abs=1e-12)


@pytest.mark.parametrize(("accumulate", "steps"), [(2, 8), (4, 8), (8, 8), (1, 8)])
def test_trl_generation_window(accumulate: int, steps: int) -> None:
    """trl#5619: up to 1.10 the update shrinks by accumulation/steps; 1.16 puts it right."""
    generation = rows_of([3, 7, 2, 9, 4, 4, 1, 6])
    mask = generation[:accumulate]
    tokens = generation.sum()
    split = Structure.split(accumulate, micro_rows=1)
    split = Structure(rank_N=split.rank_N, micro_N=split.micro_N, generation_tokens=tokens)
    ones = torch.ones_like(mask)
    settings = {"gradient_accumulation_steps": accumulate, "steps_per_generation": steps}
    old = loss_of(ones, mask, GenerationWindow(variant="trl-1.10", **settings), structure=split)
    new = loss_of(ones, mask, GenerationWindow(variant="trl-1.16", **settings), structure=split)
    assert old == pytest.approx((mask.sum() / tokens).item(), rel=1e-12)
    assert new == pytest.approx((mask.sum() / (tokens * accumulate / steps)).item(), rel=1e-12)


def test_generation_window_says_what_it_lacks() -> None:
    config = GenerationWindow(gradient_accumulation_steps=2, steps_per_generation=4)
    with pytest.raises(ConfigError, match="generation_tokens"):
        row_scales(rows_of([1, 2]), config)


def test_prompt_mean_against_batch_token_mean() -> None:
    """B11: two rows of 1 token with loss 4, two of 3 with loss 1: 14/8 and (4 + 1)/2."""
    mask = rows_of([1, 3, 1, 3])
    losses = [[4.0, 0, 0], [1.0] * 3, [4.0, 0, 0], [1.0] * 3]
    group = torch.tensor([70, 5, 70, 5])
    assert loss_of(losses, mask, TokenMean()) == 14 / 8
    assert loss_of(losses, mask, PromptMean(), group=group) == (4 + 1) / 2
    with pytest.raises(ConfigError, match="group"):
        row_scales(mask, PromptMean())


def test_per_token_weight_of_a_short_and_a_long_answer() -> None:
    """B67: 10 and 100 tokens, B = 2, both A = +1."""
    mask = rows_of([10, 100])
    weights = {
        SeqMeanTokenMean(): (1 / 20, 1 / 200),
        TokenMean(): (1 / 110, 1 / 110),
        SeqMeanTokenSumNorm(constant=100): (1 / 200, 1 / 200),
        SeqMeanTokenSum(): (1 / 2, 1 / 2),
        TokenSum(): (1.0, 1.0),
    }
    for config, right in weights.items():
        scales = row_scales(mask, config)
        torch.testing.assert_close(scales, torch.tensor(right, dtype=F), rtol=1e-14, atol=0)


def test_loss_zero_is_not_gradient_zero() -> None:
    """B32: lengths 10 (A = 1) and 20 (A = −1) on policy: token mean 1/3, sequence mean 0."""
    logp = torch.full((2, 20), -1.0, dtype=F, requires_grad=True)
    batch = Batch(
        logp=logp,
        old_logp=logp.detach(),
        mask=rows_of([10, 20]),
        advantages=torch.tensor([1.0, -1.0], dtype=F),
    )
    by_token = policy_loss(batch, Objective()).value
    by_row = policy_loss(batch, Objective(aggregation=SeqMeanTokenMean())).value
    assert by_token.item() == pytest.approx((-10 + 20) / 30, abs=1e-15)
    assert by_row.item() == pytest.approx(0.0, abs=1e-15)
    (gradient,) = torch.autograd.grad(by_row, logp)
    assert gradient.norm() > 0.1


def test_verl_legacy_actor_weighs_micro_batches_by_rows() -> None:
    """theory.md C8: weight n_m/n, so that a token of micro-batch m weighs 1/(n·mean length)."""
    lengths = [1, 2, 30, 40, 50]
    mask = rows_of(lengths)
    micro = torch.tensor([0, 0, 1, 2, 2])
    split = Structure(rank_N=torch.zeros(5, dtype=torch.int64), micro_N=micro)
    scales = row_scales(mask, TokenMeanMicro(combine="rows"), structure=split)
    means = {0: 1.5, 1: 30.0, 2: 45.0}
    right = torch.tensor([1 / (5 * means[int(m)]) for m in micro], dtype=F)
    torch.testing.assert_close(scales, right, rtol=1e-13, atol=0)


def test_covariance_law_of_naive_micro_averaging() -> None:
    """theory.md C8: naive − global = −Cov_m(T_m/T̄, g_m), population covariance."""
    lengths = [1, 2, 30, 40, 50, 6]
    mask = rows_of(lengths)
    losses = torch.randn(6, 50, generator=torch.Generator().manual_seed(3), dtype=F)
    split = Structure.split(6, micro_rows=2)
    naive = loss_of(losses, mask, TokenMeanMicro(), structure=split)
    whole = loss_of(losses, mask, TokenMean())
    tokens = [sum(lengths[i : i + 2]) for i in (0, 2, 4)]
    sums = [(losses * mask)[i : i + 2].sum().item() for i in (0, 2, 4)]
    share = [t / (sum(tokens) / 3) for t in tokens]
    mean = [s / t for s, t in zip(sums, tokens, strict=True)]
    covariance = sum((a - 1) * b for a, b in zip(share, mean, strict=True)) / 3
    assert naive - whole == pytest.approx(-covariance, rel=1e-12)


def test_micro_batches_of_one_row_are_the_sequence_mean() -> None:
    mask = rows_of([1, 2, 30, 4])
    split = Structure.split(4, micro_rows=1)
    by_micro = row_scales(mask, TokenMeanMicro(), structure=split)
    torch.testing.assert_close(by_micro, row_scales(mask, SeqMeanTokenMean()), rtol=1e-14, atol=0)


def test_probe_of_verl_fully_masked_row() -> None:
    """verl.md §8: 4 rows, one empty: local over global denominators is 4/3."""
    mask = rows_of([2, 3, 1, 0])
    losses = torch.rand(4, 3, generator=torch.Generator().manual_seed(1), dtype=F)
    for mode in (SeqMeanTokenMean, SeqMeanTokenSum):
        local = loss_of(losses, mask, mode(empty_rows="out"))
        assert local / loss_of(losses, mask, mode()) == pytest.approx(4 / 3, rel=1e-14)


@pytest.mark.parametrize("combine", ["mean", "rows", "sum"])
def test_old_sum_norm_scales_with_the_micro_batches(combine: str) -> None:
    """verl#3741: sums over responses, so the loss depends on how they are cut."""
    mask = rows_of([2, 4, 1, 3])
    config = SeqMeanTokenSumNorm(constant=4, rows="sum", micro=combine)
    split = Structure.split(4, micro_rows=2)
    got = loss_of(torch.ones_like(mask), mask, config, structure=split)
    counts = [2, 4, 1, 3]
    right = accumulated(
        combine, lambda rows: sum(counts[i] for i in rows) / 4, [0] * 4, [0, 0, 1, 1]
    )
    assert got == pytest.approx(right, rel=1e-14)


def test_ranks_must_divide() -> None:
    with pytest.raises(ConfigError, match="ranks"):
        Structure.split(5, n_ranks=2)


def test_gpg_needs_no_old_policy_and_ppo_says_that_it_does() -> None:
    batch = Batch(
        logp=torch.zeros(1, 2, dtype=F),
        mask=torch.ones(1, 2, dtype=F),
        advantages=torch.ones(1, dtype=F),
    )
    assert policy_loss(batch, Objective(clip=GpgClip())).value.item() == 0.0
    with pytest.raises(ConfigError, match="old_logp"):
        policy_loss(batch, Objective())
