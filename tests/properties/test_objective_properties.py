"""Invariants of the objective: splits, order, labels, multiplicities, replicas, what is masked."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from objective_grid import CLIPS, GLOBAL_MODES, MICRO_MODES, MODES, PLAIN_CLIPS

from dapolab.objective import (
    Batch,
    Status,
    Structure,
    TokenEnergy,
    advantages,
    gradient_weights,
    policy_loss,
    row_scales,
    select_tokens,
)
from dapolab.scenario import (
    BatchStdAdvantage,
    GaeAdvantage,
    GdpoAdvantage,
    GpgAdvantage,
    GrpoAdvantage,
    Kl,
    KlCov,
    LeaveOneOutAdvantage,
    MaxRlAdvantage,
    MeanOnlyAdvantage,
    Objective,
    OpoAdvantage,
    OptimalTokenBaselineAdvantage,
    PassAtKAdvantage,
    ReinforcePpAdvantage,
    ReinforcePpBaselineAdvantage,
    Rejection,
    RemaxAdvantage,
    RlooAdvantage,
    SamplerCorrection,
    VespoClip,
)

F = torch.float64
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
# All but those with a squared log ratio beside the advantage.
PROPORTIONAL = [
    c for c in PLAIN_CLIPS if c.kind != "dro" and not getattr(c, "log_ratio_penalty", 0)
]
CENTRED = [GrpoAdvantage(), GrpoAdvantage(ddof=0), MeanOnlyAdvantage(), RlooAdvantage()]
BY_GROUP = [
    GrpoAdvantage(),
    GrpoAdvantage(ddof=0, eps=1e-8, singletons="raw"),
    MeanOnlyAdvantage(),
    LeaveOneOutAdvantage(),
    RlooAdvantage(),
    BatchStdAdvantage(),
    MaxRlAdvantage(),
    OpoAdvantage(),
    ReinforcePpBaselineAdvantage(),
    PassAtKAdvantage(singletons="zero"),
    GdpoAdvantage(),
    GdpoAdvantage(whiten="rows"),
    ReinforcePpAdvantage(gamma=0.9),
    ReinforcePpAdvantage(),
    RemaxAdvantage(),
    GaeAdvantage(gamma=0.95, length_alpha=0.5, critic_lam=1.0),
    GpgAdvantage(singletons="raw"),
    OptimalTokenBaselineAdvantage(singletons="raw"),
    OptimalTokenBaselineAdvantage(align="token", eps=0.0),
]

REJECTIONS = (
    Rejection(estimator="k3", level="geometric", upper=0.05),
    Rejection(estimator="k2", level="sequence", upper=0.3),
    Rejection(level="token", scope="token", lower=0.7, upper=1.4),
    Rejection(estimator="tv", level="token", scope="token", upper=0.2),
    Rejection(estimator="binary_kl", level="geometric", upper=0.05),
)

seeds = st.integers(0, 2**31 - 1)


def draw_batch(seed: int, *, replicas: tuple[int, ...] = ()) -> Batch:
    """Ragged responses, holes, multiplicities, maybe empty ones, groups of any size."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = 6, 5
    shape = (*replicas, rows, width)

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=F)

    old = -0.05 - normal().abs()
    mask = torch.randint(0, 4, shape, generator=generator).to(F)
    mask = mask * (torch.rand((*replicas, rows, 1), generator=generator) < 0.85)
    return Batch(
        logp=(old + 0.3 * normal()).clamp(max=-1e-3),
        old_logp=old,
        sampler_logp=old + 0.2 * normal(),
        ref_logp=old + 0.3 * normal(),
        entropy=normal().abs(),
        mask=mask,
        advantages=normal() if seed % 2 else normal()[..., :1],
        group=torch.randint(0, 3, (rows,), generator=generator),
    )


def full_config(clip, mode, *, seed: int, whole: bool = True) -> Objective:
    """An objective with every term, so that an invariant is one of all of them.

    The rule on entropy looks at the batch as a whole, so it cannot be split.
    """
    rules = (
        SamplerCorrection(),
        SamplerCorrection(level="token", upper=1.1),
        SamplerCorrection(level="geometric", action="band", lower=0.9, upper=1.1),
        SamplerCorrection(level="token", upper=1.1, pooling="geometric", rejection=REJECTIONS),
    )
    rule = rules[seed % 4]
    if clip.kind == "vespo" and rule.level != "none":
        rule = rule.model_copy(update={"applies": "enters"})
    return Objective(
        clip=clip,
        aggregation=mode,
        sampler=rule,
        kl=Kl(ratio_weight="attached", ratio_level="sequence") if seed % 7 == 0 else Kl(),
        entropy_coef=0.01,
        off_policy_kl=0.1 if seed % 2 else None,
        top_entropy_share=0.7 if whole and seed % 5 else 1.0,
    )


def value_and_gradient(batch: Batch, config: Objective, **inputs) -> tuple[torch.Tensor, ...]:
    logp = batch.logp.detach().requires_grad_()
    generator = torch.Generator().manual_seed(5)
    loss = policy_loss(
        replace(batch, logp=logp), config, generator=generator, metrics=False, **inputs
    )
    (gradient,) = torch.autograd.grad(loss.value.sum(), logp)
    return loss.value.detach(), gradient


def random_split(seed: int, rows: int) -> Structure:
    generator = torch.Generator().manual_seed(seed)
    rank = torch.randint(0, 3, (rows,), generator=generator)
    return Structure(rank_N=rank, micro_N=torch.randint(0, 3, (rows,), generator=generator))


def cells_of(split: Structure) -> dict[int, dict[int, torch.Tensor]]:
    """Rows by rank and micro-batch."""
    out: dict[int, dict[int, torch.Tensor]] = {}
    for rank in split.rank_N.unique().tolist():
        mine = split.rank_N == rank
        micros = split.micro_N[mine].unique().tolist()
        out[rank] = {m: (mine & (split.micro_N == m)).nonzero().flatten() for m in micros}
    return out


@settings(deadline=None, max_examples=150)
@given(seed=seeds, clip=st.sampled_from(CLIPS), mode=st.sampled_from(GLOBAL_MODES))
def test_any_split_adds_up_to_the_global_loss(seed, clip, mode) -> None:
    """Micro-batches of any ranks, computed one by one with the update's scales (B01)."""
    batch = draw_batch(seed)
    config = full_config(clip, mode, seed=seed, whole=False)
    whole, gradient = value_and_gradient(batch, config)
    split = random_split(seed, 6)
    scales = row_scales(batch.mask, mode, group=batch.group, structure=split)
    chosen = select_tokens(batch, config, generator=torch.Generator().manual_seed(5))
    total = torch.zeros_like(whole)
    for micros in cells_of(split).values():
        for rows in micros.values():
            value, part = value_and_gradient(
                batch.rows(rows),
                config,
                scales=scales[rows],
                selection=None if chosen is None else chosen[rows],
            )
            total = total + value
            torch.testing.assert_close(part, gradient[rows], **TIGHT)
    torch.testing.assert_close(total, whole, **TIGHT)


@settings(deadline=None, max_examples=100)
@given(seed=seeds, clip=st.sampled_from(PLAIN_CLIPS), mode=st.sampled_from(MICRO_MODES))
def test_named_quirks_are_what_a_training_loop_computes(seed, clip, mode) -> None:
    """Each micro-batch alone with its own denominators, weighed, added; ranks averaged.

    Alone it is the only micro-batch of the only rank, and its weight 1 under every rule.
    """
    batch = draw_batch(seed)
    split = random_split(seed + 1, 6)
    combine = mode.combine if mode.kind == "token-mean-micro" else mode.micro
    config = Objective(clip=clip, aggregation=mode)
    value, gradient = value_and_gradient(batch, config, structure=split)
    total, by_loop = torch.zeros_like(value), torch.zeros_like(gradient)
    cells = cells_of(split)
    for micros in cells.values():
        n_rows = sum(len(rows) for rows in micros.values())
        for rows in micros.values():
            weight = {"mean": 1 / len(micros), "rows": len(rows) / n_rows, "sum": 1.0}[combine]
            local, part = value_and_gradient(batch.rows(rows), config)
            total = total + weight * local / len(cells)
            by_loop[rows] += weight * part / len(cells)
    torch.testing.assert_close(total, value, **TIGHT)
    torch.testing.assert_close(by_loop, gradient, **TIGHT)


@settings(deadline=None, max_examples=100)
@given(seed=seeds, clip=st.sampled_from(PLAIN_CLIPS), mode=st.sampled_from(MODES))
def test_order_of_rows_and_names_of_groups_are_of_no_account(seed, clip, mode) -> None:
    batch = draw_batch(seed)
    config = full_config(clip, mode, seed=seed)
    split = random_split(seed, 6)
    value, gradient = value_and_gradient(batch, config, structure=split)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    moved = replace(batch.rows(order), group=1000 - 7 * batch.group[order])
    split = Structure(rank_N=50 - split.rank_N[order], micro_N=3 * split.micro_N[order] - 4)
    again, moved_gradient = value_and_gradient(moved, config, structure=split)
    torch.testing.assert_close(again, value, **TIGHT)
    torch.testing.assert_close(moved_gradient, gradient[order], **TIGHT)


@settings(deadline=None, max_examples=100)
@given(
    seed=seeds,
    clip=st.sampled_from(PLAIN_CLIPS),
    mode=st.sampled_from([m for m in MODES if getattr(m, "constant", 0) != "padded-width"]),
)
def test_a_multiplicity_is_that_many_copies(seed, clip, mode) -> None:
    """A token that counts m times is m tokens: toy policies need no fillers."""
    batch = draw_batch(seed)
    config = full_config(clip, mode, seed=seed)
    value, gradient = value_and_gradient(batch, config)
    copies = replace(
        batch,
        **{
            name: getattr(batch, name).repeat_interleave(3, dim=-1)
            for name in ("logp", "old_logp", "sampler_logp", "ref_logp", "entropy")
        },
        advantages=batch.advantages.expand(6, 5).repeat_interleave(3, dim=-1),
        mask=(torch.arange(3) < batch.mask.unsqueeze(-1)).to(F).flatten(-2),
    )
    again, by_copy = value_and_gradient(copies, config)
    torch.testing.assert_close(again, value, **TIGHT)
    torch.testing.assert_close(by_copy.unflatten(-1, (5, 3)).sum(dim=-1), gradient, **TIGHT)


@settings(deadline=None, max_examples=50)
@given(seed=seeds, clip=st.sampled_from(CLIPS), mode=st.sampled_from(MODES))
def test_replicas_are_a_loop_over_replicas(seed, clip, mode) -> None:
    batch = draw_batch(seed, replicas=(2, 2))
    config = full_config(clip, mode, seed=seed)
    split = random_split(seed, 6)
    chosen = select_tokens(batch, config, generator=torch.Generator().manual_seed(5))
    value, gradient = value_and_gradient(batch, config, structure=split, selection=chosen)
    metrics = policy_loss(batch, config, structure=split, selection=chosen).metrics
    for place in ((i, j) for i in range(2) for j in range(2)):
        parts = {
            name: x if name == "group" or x is None else x[place]
            for name, x in batch.__dict__.items()
        }
        one, own = Batch(**parts), None if chosen is None else chosen[place]
        alone, own_gradient = value_and_gradient(one, config, structure=split, selection=own)
        torch.testing.assert_close(alone, value[place], **TIGHT)
        torch.testing.assert_close(own_gradient, gradient[place], **TIGHT)
        told = policy_loss(one, config, structure=split, selection=own).metrics
        for name, metric in metrics.items():
            assert metric.shape == (2, 2)
            torch.testing.assert_close(told[name], metric[place], **TIGHT)


@settings(deadline=None, max_examples=60)
@given(seed=seeds)
def test_the_highest_covariances_are_chosen_in_each_replica_alone(seed) -> None:
    batch = draw_batch(seed, replicas=(3,))
    config = Objective(clip=KlCov(share=0.1, coef=0.5))
    chosen = select_tokens(batch, config)
    assert chosen is not None
    for i in range(3):
        parts = {n: x if n == "group" or x is None else x[i] for n, x in batch.__dict__.items()}
        assert torch.equal(select_tokens(Batch(**parts), config), chosen[i])


@settings(deadline=None, max_examples=150)
@given(
    seed=seeds,
    clip=st.sampled_from(CLIPS),
    mode=st.sampled_from(MODES),
    garbage=st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e300]),
)
def test_nothing_outside_the_mask_is_read(seed, clip, mode, garbage) -> None:
    """Value, gradient and metrics are bit-equal with NaN or infinity in the padding."""
    batch = draw_batch(seed)
    batch = replace(batch, advantages=batch.advantages.expand(6, 5))
    config = full_config(clip, mode, seed=seed)
    outside = batch.mask == 0
    dirty = replace(
        batch,
        **{
            name: getattr(batch, name).masked_fill(outside, garbage)
            for name in ("logp", "old_logp", "sampler_logp", "ref_logp", "entropy", "advantages")
        },
    )
    clean = replace(
        batch,
        **{
            name: getattr(batch, name).masked_fill(outside, -1.0)
            for name in ("logp", "old_logp", "sampler_logp", "ref_logp", "entropy", "advantages")
        },
    )
    for a, b in zip(
        value_and_gradient(clean, config), value_and_gradient(dirty, config), strict=True
    ):
        assert torch.equal(a, b)
    told, wanted = (
        policy_loss(x, config, generator=torch.Generator().manual_seed(1)).metrics
        for x in (dirty, clean)
    )
    for name, value in wanted.items():
        assert torch.equal(told[name], value), name
    weights = gradient_weights(dirty, config, generator=torch.Generator().manual_seed(5))
    assert bool(torch.isfinite(weights).all())


@settings(deadline=None, max_examples=80)
@given(seed=seeds, mode=st.sampled_from(MODES), clip=st.sampled_from(PROPORTIONAL))
def test_twice_the_advantages_is_twice_the_loss(seed, mode, clip) -> None:
    """No term hides in the surrogate."""
    batch = draw_batch(seed)
    config = Objective(clip=clip, aggregation=mode)
    once, _ = value_and_gradient(batch, config)
    twice, _ = value_and_gradient(replace(batch, advantages=2 * batch.advantages), config)
    torch.testing.assert_close(twice, 2 * once, **TIGHT)


@settings(deadline=None, max_examples=150)
@given(
    seed=seeds,
    clip=st.sampled_from(CLIPS),
    sampler=st.sampled_from(
        [
            SamplerCorrection(),
            SamplerCorrection(level="token", action="band", lower=0.8, upper=1.2),
            SamplerCorrection(level="geometric", action="reject", lower=0.9, upper=1.1),
        ]
    ),
)
def test_active_tokens_are_those_with_a_gradient(seed, clip, sampler) -> None:
    """The metric counts what the exact derivative says (B18: metrics that were always 0)."""
    batch = draw_batch(seed)
    advantage = batch.advantages.clone()
    advantage[seed % 6] = 0.0
    batch = replace(batch, advantages=advantage)
    config = Objective(clip=clip, sampler=sampler)
    drawn = [torch.Generator().manual_seed(5) for _ in range(2)]
    metrics = policy_loss(batch, config, generator=drawn[0]).metrics
    gradient = gradient_weights(batch, config, generator=drawn[1])
    # Shared gradients of a response cancel by chance only; φ of VESPO may underflow.
    with_gradient = (batch.mask * (gradient != 0)).sum()
    assert metrics["clip/active_tokens"].item() == with_gradient.item()


# ---------------------------------------------------------------------------- advantages


def inputs_of(seed: int, config, *, replicas: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, width = 9, 4
    keyed = (2,) if config.kind == "gdpo" else ()
    shape = (*replicas, rows)
    rewards = torch.randint(-1, 3, (*shape, *keyed), generator=generator).to(F)
    return {
        "rewards": rewards + (seed % 3 == 0) * torch.randn(rewards.shape, generator=generator),
        "group": torch.randint(0, 4, (rows,), generator=generator),
        "mask": torch.randint(0, 2, (*shape, width), generator=generator).to(F),
        "status": torch.randint(0, 4, shape, generator=generator),
        "token_penalty": -torch.rand((*shape, width), generator=generator, dtype=F),
        "greedy": torch.randn(shape, generator=generator, dtype=F),
        "values": torch.randn((*shape, width), generator=generator, dtype=F),
        "old_logp": -torch.rand((*shape, width), generator=generator, dtype=F),
        "sum_pi_squared": torch.rand((*shape, width), generator=generator, dtype=F),
    }


def estimate(inputs: dict[str, torch.Tensor], config) -> torch.Tensor:
    given_inputs = dict(inputs)
    energy = TokenEnergy(
        old_logp=given_inputs.pop("old_logp"), sum_pi_squared=given_inputs.pop("sum_pi_squared")
    )
    given_inputs["energy"] = energy
    return advantages(given_inputs.pop("rewards"), config, **given_inputs).value


@settings(deadline=None, max_examples=150)
@given(seed=seeds, config=st.sampled_from(BY_GROUP))
def test_advantages_do_not_depend_on_order_or_labels(seed, config) -> None:
    inputs = inputs_of(seed, config)
    value = estimate(inputs, config)
    assert bool(torch.isfinite(value).all())
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    moved = {name: x[order] for name, x in inputs.items()}
    moved["group"] = -5 * moved["group"] + 2
    torch.testing.assert_close(estimate(moved, config), value[order], rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=150)
@given(seed=seeds, config=st.sampled_from(BY_GROUP))
def test_advantages_of_replicas_are_those_of_each(seed, config) -> None:
    inputs = inputs_of(seed, config, replicas=(3,))
    value = estimate(inputs, config)
    for i in range(3):
        one = {name: x if name == "group" else x[i] for name, x in inputs.items()}
        torch.testing.assert_close(estimate(one, config), value[i], rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=150)
@given(seed=seeds, config=st.sampled_from(BY_GROUP))
def test_excluded_members_and_masked_tokens_are_never_read(seed, config) -> None:
    inputs = inputs_of(seed, config)
    gone = inputs["status"] >= Status.ABORTED
    nan = float("nan")
    outside = (inputs["mask"] == 0) | gone.unsqueeze(-1)
    dirty = dict(inputs)
    rewards = inputs["rewards"]
    dirty["rewards"] = rewards.masked_fill(gone.unsqueeze(-1) if rewards.dim() > 1 else gone, nan)
    for name in ("token_penalty", "values", "old_logp", "sum_pi_squared"):
        dirty[name] = inputs[name].masked_fill(outside, nan)
    assert torch.equal(estimate(dirty, config), estimate(inputs, config))


@settings(deadline=None, max_examples=100)
@given(
    seed=seeds,
    config=st.sampled_from(CENTRED),
    shift=st.sampled_from([0.5, -2.0, 8.0]),
)
def test_centred_estimators_ignore_a_shift_and_add_up_to_zero(seed, config, shift) -> None:
    inputs = inputs_of(seed, config) | {"status": torch.zeros(9, dtype=torch.int64)}
    value = estimate(inputs, config)
    shifted = estimate(inputs | {"rewards": inputs["rewards"] + shift}, config)
    torch.testing.assert_close(shifted, value, rtol=1e-6, atol=1e-9)
    for label in inputs["group"].unique():
        assert value[inputs["group"] == label].sum().abs() < 1e-8


def test_vespo_is_finite_for_far_moved_sequences() -> None:
    """The gate falls to 0 before anything overflows."""
    batch = draw_batch(1)
    moved = replace(batch, logp=batch.logp + 500.0)
    value, gradient = value_and_gradient(moved, Objective(clip=VespoClip()))
    assert bool(torch.isfinite(value))
    assert bool(torch.isfinite(gradient).all())
