"""verl's rollout correction: weights, rejection, metrics, and the losses that use them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import counterparts_verl as pairs
import judges_verl as verl
import pytest
import torch
from agreement import COUNT_EPS, EXACT, IN_EXPONENT, disagreement, sum_disagreement
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

NORMALISED = {"token": "tokens", "sequence": "responses"}
"""verl's mean at either level: a band's zeros count in it."""

_LEVELS: dict[str, dict[str, Any]] = {
    "token": {"level": "token", "scope": "token"},
    "seq_sum": {"level": "sequence"},
    "seq_mean": {"level": "geometric"},
    "seq_max": {"level": "token"},
}
_UPPER = {"token": 0.03, "seq_sum": 0.1, "seq_mean": 0.02, "seq_max": 0.05}
"""Bounds of k2 and k3 that some responses of a draw meet and some do not."""
# verl bounds the ratio sampler/old, dapolab old/sampler: the bounds turn over.
REJECTIONS: dict[str, tuple[str, Rejection]] = {
    "token_k1": ("0.8_1.3", Rejection(**_LEVELS["token"], lower=1 / 1.3, upper=1 / 0.8)),
    "seq_sum_k1": ("0.8_1.3", Rejection(**_LEVELS["seq_sum"], lower=1 / 1.3, upper=1 / 0.8)),
    "seq_mean_k1": ("0.95_1.05", Rejection(**_LEVELS["seq_mean"], lower=1 / 1.05, upper=1 / 0.95)),
} | {
    f"{level}_{kind}": (str(bound), Rejection(estimator=kind, upper=bound, **_LEVELS[level]))
    for level, bound in _UPPER.items()
    for kind in ("k2", "k3")
}  # fmt: skip
"""Each of verl's rules: its threshold and dapolab's counterpart."""
_PAIR = ("token_k1", "seq_mean_k3")
CRITERIA: dict[str, tuple[str, tuple[Rejection, ...]]] = {
    **{name: (threshold, (rule,)) for name, (threshold, rule) in REJECTIONS.items()},
    ",".join(_PAIR): (
        ",".join(REJECTIONS[name][0] for name in _PAIR),
        tuple(REJECTIONS[name][1] for name in _PAIR),
    ),
}
"""The same one by one, and two at once: a token stays if both let it."""


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


@pytest.mark.parametrize("name", WEIGHTS)
def test_normalised_weights(name: str, setting: Note) -> None:
    settings, config = WEIGHTS[name]
    over = NORMALISED[name.split()[0]]
    for seed in range(20):
        data = draw(seed)
        judge, _, _ = verl.rollout_correction(
            old=data.old,
            sampler=data.sampler,
            mask=data.mask,
            rollout_is_batch_normalize=True,
            **settings,
        )
        normal = corrected(data, config.model_copy(update={"normalise": over}))
        assert judge is not None
        assert disagreement(normal.weight * data.mask, judge) <= COUNT_EPS
    setting(f"verl:weights {name}, normalised", "local")


@pytest.mark.parametrize("name", ["token band", "sequence truncate", "sequence band"])
def test_another_mean_is_rejected(name: str) -> None:
    settings, config = WEIGHTS[name]
    errors = []
    for seed in range(20):
        data = draw(seed)
        judge, _, _ = verl.rollout_correction(
            old=data.old, sampler=data.sampler, mask=data.mask,
            rollout_is_batch_normalize=True, **settings,
        )  # fmt: skip
        twin = corrected(data, config.model_copy(update={"normalise": "kept"}))
        assert judge is not None
        errors.append(disagreement(twin.weight * data.mask, judge))
    assert max(errors) > 1e-3


@pytest.mark.parametrize("name", CRITERIA)
def test_rejection(name: str, setting: Note) -> None:
    threshold, rules = CRITERIA[name]
    seen = set()
    for seed in range(20):
        data = draw(seed, extreme=seed % 2 == 1)
        _, kept, _ = verl.rollout_correction(
            old=data.old,
            sampler=data.sampler,
            mask=data.mask,
            rollout_rs=name,
            rollout_rs_threshold=threshold,
        )
        keep = corrected(data, SamplerCorrection(rejection=rules, log_ratio_clamp=20)).keep
        assert bool((keep.expand(data.mask.shape) * data.mask == kept).all())
        seen |= {"some went"} if bool((kept != data.mask).any()) else set()
        seen |= {"some stayed"} if bool((kept != 0).any()) else set()
        whole = (kept == 0).all(dim=-1) | (kept == data.mask).all(dim=-1)
        seen |= {"response by response" if bool(whole.all()) else "token by token"}
    assert {"some went", "some stayed"} <= seen
    assert ("token by token" in seen) == name.startswith("token")
    setting(f"verl:rejection {name}", "local")


@pytest.mark.parametrize("name", ["token truncate", "sequence truncate", *CRITERIA])
def test_a_bound_that_is_set_wrong_is_rejected(name: str) -> None:
    errors = []
    for seed in range(20):
        data = draw(seed)
        if name in CRITERIA:
            threshold, rules = CRITERIA[name]
            _, judge, _ = verl.rollout_correction(
                old=data.old, sampler=data.sampler, mask=data.mask,
                rollout_rs=name, rollout_rs_threshold=threshold,
            )  # fmt: skip
            wrong = tuple(
                rule.model_copy(update={"lower": rule.lower * 1.05, "upper": rule.upper * 1.05})
                for rule in rules
            )
            found = corrected(data, SamplerCorrection(rejection=wrong)).keep
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
@pytest.mark.parametrize("loss", sorted(pairs.CLIPS))
def test_decoupled_losses(loss: str, name: str, split: Split, cell: Note) -> None:
    """The weight of old against sampler multiplies each token's loss."""
    settings, config = WEIGHTS[name]
    if loss == "geo_mean":  # its weight is one a response too
        config = config.model_copy(update={"pooling": "geometric"})
    for mode in ("token-mean",) if loss in pairs.OWN_AGGREGATION else verl.AGGREGATIONS:
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
        allowed = IN_EXPONENT if loss == "geo_mean" else allowed
        slopes_agree(ours, judge, logp, data, allowed=allowed)
        shown = pairs.OWN_AGGREGATION.get(loss, mode)
        cell(loss=f"verl:{loss} × {name}", aggregation=shown, advantage="given",
             structure=split.name)  # fmt: skip


def test_geo_mean_without_pooled_weights_is_rejected() -> None:
    settings, config = WEIGHTS["token truncate"]
    data = draw(17, extreme=True)
    weights, _, _ = verl.rollout_correction(
        old=data.old, sampler=data.sampler, mask=data.mask, **settings
    )
    logp = data.logp.clone().requires_grad_()
    A = data.advantages.unsqueeze(-1) * data.mask
    judge, _ = pairs.judged_loss("geo_mean", "token-mean", data, A, LOCAL, logp=logp,
                                 weights=weights)  # fmt: skip
    objective = pairs.objective("geo_mean", "token-mean", local=True, sampler=config)
    ours = pairs.our_loss(objective, data, A, LOCAL, logp=logp, by_micro=False)
    with pytest.raises(AssertionError):
        slopes_agree(ours, judge, logp, data, allowed=1e-3)


_TOKEN, _SEQUENCE = WEIGHTS["token truncate"], WEIGHTS["sequence truncate"]
_NEAR = CRITERIA["seq_mean_k1"]


def _clipped(name: str) -> tuple[dict[str, Any], Objective]:
    """PPO's clip on current/sampler, with verl's rejection of that name."""
    threshold, rules = CRITERIA[name]
    settings = {
        "loss_type": "ppo_clip", "rollout_is": None, "rollout_rs": name,
        "rollout_rs_threshold": threshold,
    }  # fmt: skip
    return settings, Objective(
        clip=pairs.CLIPS["vanilla"], sampler=SamplerCorrection(bypass=True, rejection=rules)
    )


def _reinforced(
    weights: tuple[dict[str, Any], SamplerCorrection], *, rejects: bool = False
) -> tuple[dict[str, Any], Objective]:
    """−A·w·log π, with seq_mean_k1 where it rejects."""
    settings, config = weights
    update: dict[str, Any] = {"applies": "replaces"}
    if rejects:
        settings = settings | {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": _NEAR[0]}
        update["rejection"] = _NEAR[1]
    sampler = config.model_copy(update=update)
    return {"loss_type": "reinforce", **settings}, Objective(clip=GpgClip(), sampler=sampler)


BYPASS: dict[str, tuple[dict[str, Any], Objective]] = {
    "ppo_clip": (
        {"loss_type": "ppo_clip", "rollout_is": None},
        Objective(clip=pairs.CLIPS["vanilla"], sampler=SamplerCorrection(bypass=True)),
    ),
    **{f"ppo_clip, {name}": _clipped(name) for name in CRITERIA},
    "reinforce": ({"loss_type": "reinforce", "rollout_is": None}, Objective(clip=GpgClip())),
    "reinforce, token": _reinforced(_TOKEN),
    "reinforce, sequence": _reinforced(_SEQUENCE),
    "reinforce, token, seq_mean_k1": _reinforced(_TOKEN, rejects=True),
}
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
            # The tokens of a response and local counts are those of the rejected mask; only the
            # global count of tokens was taken before.
            sampler = objective.sampler.model_copy(
                update={"rejected_in_denominator": split is not LOCAL and mode == "token-mean"}
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
