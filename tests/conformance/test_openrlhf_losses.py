"""OpenRLHF's policy losses with every gate of its correction for the sampler."""

from collections.abc import Callable

import counterparts_verl as pairs
import judges_openrlhf as openrlhf
import pytest
import torch
from agreement import COUNT_EPS, EXACT, disagreement, sum_disagreement
from counterparts_openrlhf import CORRECTIONS, HIGH, LOSSES, LOW
from draws import MICROS, RANKS, SHUFFLED, WHOLE, Draw, Split, draw
from torch import Tensor

from dapolab.objective import correct
from dapolab.scenario import Objective, SamplerCorrection, SeqMeanTokenMean, TokenMean

Note = Callable[..., None]
GATES = [name for name in CORRECTIONS if "mask" in name]


def judged(
    loss: str, correction: str, data: Draw, A: Tensor, split: Split, logp: Tensor, *, sample: bool
) -> Tensor:
    return openrlhf.policy_loss(
        logp=logp,
        old=data.old,
        sampler=data.sampler,
        advantages=A,
        mask=data.mask,
        micros=split.rows,
        by_sample=sample,
        clip_eps_low=LOW,
        clip_eps_high=HIGH,
        **LOSSES[loss][0],
        **CORRECTIONS[correction][0],
    )


def objective(loss: str, correction: str, *, sample: bool) -> Objective:
    rule = CORRECTIONS[correction][1]
    if loss == "gspo":  # the correction only puts the sampler under the ratio
        rule = SamplerCorrection(bypass=correction != "off")
    by_row = sample or loss == "gspo"
    return Objective(
        clip=LOSSES[loss][1],
        aggregation=SeqMeanTokenMean(empty_rows="out") if by_row else TokenMean(),
        sampler=rule,
    )


@pytest.mark.parametrize("split", [WHOLE, MICROS, RANKS, SHUFFLED], ids=str)
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_policy_loss(loss: str, correction: str, split: Split, cell: Note) -> None:
    for sample in (False, True) if loss != "gspo" else (True,):
        for seed in range(6):
            data = draw(seed, extreme=seed % 2 == 0)
            logp = data.logp.clone().requires_grad_()
            A = data.advantages.unsqueeze(-1) * data.mask
            judge = judged(loss, correction, data, A, split, logp, sample=sample)
            config = objective(loss, correction, sample=sample)
            ours = pairs.our_loss(config, data, A, split, logp=logp, by_micro=False)
            slope, judge_slope = (torch.autograd.grad(f, logp)[0] for f in (ours, judge))
            inside = data.mask != 0
            allowed = COUNT_EPS if config.aggregation.kind != "token-mean" else 4 * EXACT
            terms = torch.cat([judge_slope.flatten(), judge.detach().flatten()])
            assert disagreement(slope[inside], judge_slope[inside]) <= allowed
            assert sum_disagreement(ours.detach(), judge.detach(), terms=terms) <= allowed
        shown = "seq-mean-token-mean" if sample else "token-mean"
        cell(loss=f"openrlhf:{loss} × {correction}", aggregation=shown, advantage="given",
             structure=split.name)  # fmt: skip


def dropped(name: str, seed: int, *, judge_bound: float = 1.0) -> tuple[float, float]:
    """Return the share of tokens, or of responses, that the judge drops, and that dapolab does."""
    settings, config = CORRECTIONS[name]
    threshold = [bound * judge_bound for bound in settings["is_correction_threshold"]]
    data = draw(seed, extreme=seed % 2 == 0, lengths=(5, 9, 1, 3, 1, 7, 9, 2, 4, 2, 6, 8))
    share = openrlhf.filtered_share(
        old=data.old,
        sampler=data.sampler,
        mask=data.mask,
        **(settings | {"is_correction_threshold": threshold}),
    )
    found = correct(data.old, sampler_logp=data.sampler, mask=data.mask, config=config)
    keep = found.keep.expand(data.mask.shape).double()
    seq = settings["is_correction_level"] == "seq"
    return share, 1.0 - float((keep[:, 0] if seq else keep[data.mask != 0]).mean())


@pytest.mark.parametrize("name", GATES)
def test_what_a_gate_drops(name: str, setting: Note) -> None:
    pairs_of_shares = [dropped(name, seed) for seed in range(20)]
    for judge, ours in pairs_of_shares:
        assert judge == pytest.approx(ours, abs=1e-6)  # the judge counts in float32
    assert any(0 < judge < 1 for judge, _ in pairs_of_shares)
    setting(f"openrlhf:gate {name}", "local")


@pytest.mark.parametrize("name", GATES)
def test_a_bound_that_is_set_wrong_is_rejected(name: str) -> None:
    errors = [abs(a - b) for a, b in (dropped(name, i, judge_bound=1.05) for i in range(40))]
    assert max(errors) > 1e-3


def test_rounding_closes_openrlhfs_gate_on_tokens_that_hardly_moved() -> None:
    """A deliberate difference: in float32 a small KL is rounded below 0, the gate's lower bound."""
    rng = torch.Generator().manual_seed(1)
    old = -3.0 * torch.rand(64, 512, generator=rng)
    sampler = old + 1e-4 * torch.randn(64, 512, generator=rng)
    settings = CORRECTIONS["token mask binary_kl"][0]
    given = {"sampler": sampler, "mask": torch.ones_like(old)}
    assert 0.05 < openrlhf.filtered_share(old=old, **given, **settings) < 0.5
    wide = settings | {"is_correction_threshold": [-0.001, 0.01]}
    assert openrlhf.filtered_share(old=old, **given, **wide) == 0.0
    ours = correct(
        old,
        sampler_logp=sampler,
        mask=given["mask"],
        config=CORRECTIONS["token mask binary_kl"][1],
    )
    assert bool(ours.keep.all())
