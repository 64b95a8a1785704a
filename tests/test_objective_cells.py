"""Every surrogate × aggregation × split against plain Python loops, value and gradient."""

import pytest
import torch
from judge_objective import accumulated, global_loss, token_losses
from objective_grid import CLIPS, MODES, PLAIN_CLIPS, SPLITS

from dapolab.objective import Batch, gradient_weights, policy_loss
from dapolab.scenario import Kl, Objective, SamplerCorrection

F = torch.float64
N, T = 6, 5


def batch_of(seed: int) -> Batch:
    """Ragged, an empty response, an empty group, a multiplicity, a hole, unequal groups."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> torch.Tensor:
        return torch.randn(N, T, generator=generator, dtype=F)

    old = -0.05 - draw().abs()
    mask = (torch.arange(T) < torch.tensor([5, 1, 0, 4, 3, 2])[:, None]).to(F)
    mask[0, 3], mask[3, 1] = 4.0, 0.0
    per_token = seed % 2 == 1
    return Batch(
        logp=(old + 0.4 * draw()).clamp(max=-1e-3).requires_grad_(),
        old_logp=old,
        sampler_logp=old + 0.2 * draw(),
        ref_logp=old + 0.5 * draw(),
        entropy=draw().abs(),
        mask=mask,
        advantages=draw() if per_token else draw()[:, :1],
        group=torch.tensor([7, 2, 9, 7, 2, 7]),
    )


def judged(batch: Batch, clip, mode, split) -> float:
    """Value by loops over tokens, and over ranks and micro-batches where the mode has them."""
    mask, group = batch.mask.tolist(), batch.group.tolist()
    losses = token_losses(
        clip.model_dump(),
        batch.logp.tolist(),
        batch.old_logp.tolist(),
        batch.advantages.expand(N, T).tolist(),
        mask,
    )
    settings = mode.model_dump()
    if mode.kind == "generation-window":  # the update is the whole generation here
        settings = {"kind": "token-mean"}

    def local(rows: list[int]) -> float:
        chosen = [[x[i] for i in rows] for x in (losses, mask, group)]
        return global_loss(settings, *chosen)

    combine = settings.get("combine") or settings.get("micro", "global")
    if combine == "global":
        return local(list(range(N)))
    return accumulated(combine, local, split.rank_N.tolist(), split.micro_N.tolist())


@pytest.mark.parametrize("clip", PLAIN_CLIPS, ids=repr)
def test_value_of_every_cell(clip) -> None:
    n_cells = 0
    for number, mode in enumerate(MODES):
        for place, split in enumerate(SPLITS):
            batch = batch_of(number + place)
            got = policy_loss(
                batch, Objective(clip=clip, aggregation=mode), structure=split, metrics=False
            )
            right = judged(batch, clip, mode, split)
            assert got.value.item() == pytest.approx(right, rel=1e-11, abs=1e-12), (mode, place)
            n_cells += 1
    assert n_cells == len(MODES) * len(SPLITS) == 34 * 4


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
def test_gradient_weights_of_every_cell_equal_autograd(clip) -> None:
    rules = (SamplerCorrection(), SamplerCorrection(level="token", upper=1.1))
    for number, mode in enumerate(MODES):
        batch, split = batch_of(number), SPLITS[number % len(SPLITS)]
        config = Objective(
            clip=clip,
            aggregation=mode,
            sampler=rules[number % 3 > 0],
            kl=Kl(estimator=("k1", "abs", "k2", "k3")[number % 4]) if number % 2 else None,
            entropy_coef=0.01,
        )
        agree(batch, config, structure=split)


@pytest.mark.parametrize("level", ["none", "token", "sequence", "geometric"])
@pytest.mark.parametrize("action", ["truncate", "band", "mask", "reject"])
@pytest.mark.parametrize("in_denominator", [True, False])
def test_gradient_weights_under_sampler_corrections(level, action, in_denominator) -> None:
    for normalise in ("none", "kept", "tokens", "responses"):
        rule = SamplerCorrection(
            level=level,
            action=action,
            lower=0.8,
            upper=1.2,
            normalise=normalise,
            rejected_in_denominator=in_denominator,
        )
        agree(batch_of(3), Objective(sampler=rule))


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
@pytest.mark.parametrize("weight", ["none", "detached", "attached"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("straight", [True, False])
def test_gradient_weights_of_kl_losses(estimator, weight, straight, level) -> None:
    for clamps in ({}, {"log_ratio_clamp": 0.3, "value_clamp": 0.1}):
        kl = Kl(
            estimator=estimator,
            ratio_weight=weight,
            ratio_level=level,
            straight_through=straight,
            coefficient=0.7,
            **clamps,
        )
        agree(batch_of(4), Objective(kl=kl))


def agree(batch: Batch, config: Objective, **inputs) -> None:
    def drawn() -> torch.Generator:
        return torch.Generator().manual_seed(11)

    value = policy_loss(batch, config, generator=drawn(), metrics=False, **inputs).value
    (by_autograd,) = torch.autograd.grad(value, batch.logp)
    closed = gradient_weights(batch, config, generator=drawn(), **inputs)
    torch.testing.assert_close(closed, by_autograd, rtol=1e-11, atol=1e-14)
    assert bool((closed[batch.mask == 0] == 0).all())
