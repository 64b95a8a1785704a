"""verl's rollout correction: weights, rejection, metrics, and the losses that use them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import counterparts_verl as pairs
import judges_verl as verl
import pytest
import torch
from agreement import COUNT_EPS, EXACT, disagreement, sum_disagreement
from draws import LOCAL, RANKS, WHOLE, Draw, Split, draw

from dapolab.objective import Correction, correct, policy_loss
from dapolab.scenario import GpgClip, Objective, Rejection, SamplerCorrection

Note = Callable[..., None]

WEIGHTS: dict[str, tuple[dict[str, Any], SamplerCorrection]] = {
    f"{level} {action}": (
        {"rollout_is": level, "rollout_is_threshold": threshold},
        SamplerCorrection(
            level=level,  # type: ignore[arg-type]
            action=action,  # type: ignore[arg-type]
            lower=lower,
            upper=1.5,
            log_ratio_clamp=20,
        ),
    )
    for level in ("token", "sequence")
    for action, threshold, lower in (("truncate", 1.5, None), ("band", "0.7_1.5", 0.7))
}
"""verl's TIS (a number) and IcePop (a pair)."""

NORMALISED_LEFT_OUT = {
    "token band": "verl's mean counts the tokens that the band set to 0",
    "sequence truncate": "verl's mean is one of sequences, dapolab's one of tokens",
    "sequence band": "both",
}
"""``rollout_is_batch_normalize`` is judged with token-level truncation alone."""

REJECTIONS = {
    "token_k1": SamplerCorrection(level="token", action="mask", lower=1 / 1.3, upper=1 / 0.8),
    "seq_sum_k1": SamplerCorrection(
        rejection=Rejection(level="sequence", lower=1 / 1.3, upper=1 / 0.8)
    ),
    "seq_mean_k1": SamplerCorrection(
        rejection=Rejection(level="geometric", lower=1 / 1.05, upper=1 / 0.95)
    ),
}
"""verl bounds the ratio sampler/old, dapolab old/sampler: the bounds turn over."""
THRESHOLDS = {"token_k1": "0.8_1.3", "seq_sum_k1": "0.8_1.3", "seq_mean_k1": "0.95_1.05"}
_OTHER = "a bound on an estimator of a divergence; dapolab bounds ratios"
REJECTIONS_LEFT_OUT = dict.fromkeys(
    [
        *(f"{level}_{kind}" for level in ("token", "seq_sum", "seq_mean") for kind in ("k2", "k3")),
        "seq_max_k2",
        "seq_max_k3",
    ],
    _OTHER,
)


def corrected(data: Draw, config: SamplerCorrection) -> Correction:
    return correct(data.old, sampler_logp=data.sampler, mask=data.mask, config=config)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str, setting: Note) -> None:
    settings, config = WEIGHTS[name]
    for seed in range(20):
        data = draw(seed, extreme=seed % 2 == 1)
        judge, _, _ = verl.rollout_correction(
            old=data.old, sampler=data.sampler, mask=data.mask, **settings
        )
        ours = corrected(data, config).weight.expand(data.mask.shape) * data.mask
        assert judge is not None
        assert disagreement(ours, judge) <= EXACT
    setting(f"verl:weights {name}", "local")


def test_normalised_weights(setting: Note) -> None:
    settings, config = WEIGHTS["token truncate"]
    for seed in range(20):
        data = draw(seed)
        judge, _, _ = verl.rollout_correction(
            old=data.old,
            sampler=data.sampler,
            mask=data.mask,
            rollout_is_batch_normalize=True,
            **settings,
        )
        normal = corrected(data, config.model_copy(update={"normalise": True}))
        assert judge is not None
        assert disagreement(normal.weight * data.mask, judge) <= COUNT_EPS
    setting("verl:weights token truncate, normalised", "local")


@pytest.mark.parametrize("name", REJECTIONS)
def test_rejection(name: str, setting: Note) -> None:
    seen = set()
    for seed in range(20):
        data = draw(seed, extreme=seed % 2 == 1)
        _, kept, _ = verl.rollout_correction(
            old=data.old,
            sampler=data.sampler,
            mask=data.mask,
            rollout_rs=name,
            rollout_rs_threshold=THRESHOLDS[name],
        )
        ours = corrected(data, REJECTIONS[name]).keep.expand(data.mask.shape) * data.mask
        assert bool((ours == kept).all())
        seen |= {bool((kept == 0).all(dim=-1).any()), bool((kept != data.mask).any())}
    assert True in seen  # something was rejected
    setting(f"verl:rejection {name}", "local")


@pytest.mark.parametrize("name", ["token truncate", "sequence truncate", "seq_sum_k1"])
def test_a_bound_that_is_set_wrong_is_rejected(name: str) -> None:
    errors = []
    for seed in range(20):
        data = draw(seed)
        if name in REJECTIONS:
            _, judge, _ = verl.rollout_correction(
                old=data.old, sampler=data.sampler, mask=data.mask,
                rollout_rs=name, rollout_rs_threshold=THRESHOLDS[name],
            )  # fmt: skip
            rule = Rejection(level="sequence", lower=1 / 1.3 * 1.05, upper=1 / 0.8 * 1.05)
            found = corrected(data, SamplerCorrection(rejection=rule)).keep
            ours = found.expand(data.mask.shape) * data.mask
        else:
            settings, config = WEIGHTS[name]
            weight, _, _ = verl.rollout_correction(
                old=data.old, sampler=data.sampler, mask=data.mask, **settings
            )
            assert weight is not None
            judge = weight
            twin = config.model_copy(update={"upper": 1.5 * 1.05})
            ours = corrected(data, twin).weight.expand(data.mask.shape) * data.mask
        errors.append(disagreement(ours, judge))
    assert max(errors) > 1e-3


def test_metrics() -> None:
    settings, config = WEIGHTS["token truncate"]
    for seed in range(20):
        data = draw(seed)
        _, _, told = verl.rollout_correction(
            old=data.old, sampler=data.sampler, mask=data.mask, **settings
        )
        objective = Objective(clip=pairs.CLIPS["vanilla"], sampler=config)
        ours = policy_loss(data.batch(data.logp), objective).metrics
        for theirs, name in (
            ("kl", "sampler/k1"),
            ("k3_kl", "sampler/k3"),
            ("rollout_is_eff_sample_size", "sampler/ess_share"),
            ("rollout_is_ratio_fraction_high", "sampler/truncated_share"),
        ):
            expected = told[f"rollout_corr/{theirs}"]
            assert ours[name].item() == pytest.approx(expected, rel=1e-6, abs=1e-9), name


# ---------------------------------------------------------------------------- inside the losses


def slopes_agree(
    ours: torch.Tensor, judge: torch.Tensor, logp: torch.Tensor, data: Draw, *, allowed: float
) -> None:
    slope, judge_slope = (torch.autograd.grad(found, logp)[0] for found in (ours, judge))
    inside = data.mask != 0
    terms = torch.cat([judge_slope.flatten(), judge.detach().flatten()])
    assert disagreement(slope[inside], judge_slope[inside]) <= allowed
    assert sum_disagreement(ours.detach(), judge.detach(), terms=terms) <= allowed


@pytest.mark.parametrize("split", [LOCAL, WHOLE, RANKS], ids=["local", "whole", "ranks"])
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("loss", sorted(set(pairs.CLIPS) - {"geo_mean"}))
def test_decoupled_losses(loss: str, name: str, split: Split, cell: Note) -> None:
    """The weight of old against sampler multiplies each token's loss."""
    settings, config = WEIGHTS[name]
    for mode in verl.AGGREGATIONS if loss != "sapo" else ("token-mean",):
        data = draw(17, extreme=True)
        weights, _, _ = verl.rollout_correction(
            old=data.old, sampler=data.sampler, mask=data.mask, **settings
        )
        logp = data.logp.clone().requires_grad_()
        A = data.advantages.unsqueeze(-1) * data.mask
        judge, _ = pairs.judged_loss(loss, mode, data, A, split, logp=logp, weights=weights)
        objective = pairs.objective(loss, mode, local=split is LOCAL, sampler=config)
        by_micro = loss in pairs.BY_MICRO_BATCH
        ours = pairs.our_loss(objective, data, A, split, logp=logp, by_micro=by_micro)
        allowed = COUNT_EPS if loss == "sapo" or mode == "seq-mean-token-mean" else 4 * EXACT
        slopes_agree(ours, judge, logp, data, allowed=allowed)
        shown = pairs.OWN_AGGREGATION.get(loss, mode)
        cell(loss=f"verl:{loss} × {name}", aggregation=shown, advantage="given",
             structure=split.name)  # fmt: skip


_TOKEN, _SEQUENCE = WEIGHTS["token truncate"], WEIGHTS["sequence truncate"]
BYPASS: dict[str, tuple[dict[str, Any], Objective]] = {
    "ppo_clip": (
        {"loss_type": "ppo_clip", "rollout_is": None},
        Objective(clip=pairs.CLIPS["vanilla"], sampler=SamplerCorrection(bypass=True)),
    ),
    "ppo_clip, seq_mean_k1": (
        {"loss_type": "ppo_clip", "rollout_is": None, "rollout_rs": "seq_mean_k1",
         "rollout_rs_threshold": "0.8_1.25"},
        Objective(
            clip=pairs.CLIPS["vanilla"],
            sampler=SamplerCorrection(
                bypass=True, rejection=Rejection(level="geometric", lower=0.8, upper=1.25)
            ),
        ),
    ),
    "ppo_clip, seq_sum_k1": (
        {"loss_type": "ppo_clip", "rollout_is": None, "rollout_rs": "seq_sum_k1",
         "rollout_rs_threshold": "0.5_2.0"},
        Objective(
            clip=pairs.CLIPS["vanilla"],
            sampler=SamplerCorrection(
                bypass=True, rejection=Rejection(level="sequence", lower=0.5, upper=2.0)
            ),
        ),
    ),
    "reinforce": (
        {"loss_type": "reinforce", "rollout_is": None},
        Objective(clip=GpgClip()),
    ),
    "reinforce, token": (
        {"loss_type": "reinforce", **_TOKEN[0]},
        Objective(clip=GpgClip(), sampler=_TOKEN[1].model_copy(update={"applies": "replaces"})),
    ),
    "reinforce, sequence": (
        {"loss_type": "reinforce", **_SEQUENCE[0]},
        Objective(
            clip=GpgClip(), sampler=_SEQUENCE[1].model_copy(update={"applies": "replaces"})
        ),
    ),
    "reinforce, token, seq_mean_k1": (
        {"loss_type": "reinforce", **_TOKEN[0], "rollout_rs": "seq_mean_k1",
         "rollout_rs_threshold": "0.8_1.25"},
        Objective(
            clip=GpgClip(),
            sampler=_TOKEN[1].model_copy(
                update={
                    "applies": "replaces",
                    "rejection": Rejection(level="geometric", lower=0.8, upper=1.25),
                }
            ),
        ),
    ),
}  # fmt: skip
"""``bypass_mode``: the sampler's log-probs stand in for old (they arrive as old_log_prob)."""


@pytest.mark.parametrize("split", [LOCAL, WHOLE, RANKS], ids=["local", "whole", "ranks"])
@pytest.mark.parametrize("case", BYPASS)
def test_bypass_mode(case: str, split: Split, cell: Note) -> None:
    settings, objective = BYPASS[case]
    policy = {"rollout_correction": verl.RolloutCorrectionConfig(bypass_mode=True, **settings)}
    for mode in verl.AGGREGATIONS:
        for seed in range(4):
            data = draw(seed)
            logp = data.logp.clone().requires_grad_()
            A = data.advantages.unsqueeze(-1) * data.mask
            judge, _ = pairs.judged_loss(
                "bypass_mode",
                mode,
                replace(data, old=data.sampler),
                A,
                split,
                logp=logp,
                policy_loss=policy,
            )
            # Local counts are those of the rejected mask, global ones were taken before.
            sampler = objective.sampler.model_copy(
                update={"rejected_in_denominator": split is not LOCAL}
            )
            config = objective.model_copy(
                update={
                    "sampler": sampler,
                    "aggregation": pairs.aggregation("any", mode, local=split is LOCAL),
                }
            )
            ours = pairs.our_loss(config, data, A, split, logp=logp, by_micro=False)
            slopes_agree(ours, judge, logp, data, allowed=COUNT_EPS)
        cell(loss=f"verl:bypass_mode {case}", aggregation=mode, advantage="given",
             structure=split.name)  # fmt: skip
