"""Every recipe that claims to be judged, against the framework with its own defaults."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import counterparts_verl as verl_pairs
import judges_openrlhf as openrlhf
import judges_trl as trl
import judges_verl as verl
import pytest
import torch
from agreement import COUNT_EPS, disagreement, sum_disagreement
from draws import EQUAL_GROUPS, RANKS, Draw, draw
from torch import Tensor

from dapolab import recipes
from dapolab.objective import advantages, policy_loss, row_scales

Note = Callable[..., None]
JUDGED = {recipe.id: recipe for recipe in recipes.ALL.values() if recipe.evidence.how == "judged"}

VERL: dict[str, tuple[str, str]] = {
    "verl-0.9.1": ("vanilla", "token-mean"),
    "verl-0.9.1-filter": ("vanilla", "token-mean"),  # its collector: test_verl_replay_buffer
    "verl-0.9.1-seq-mean": ("vanilla", "seq-mean-token-mean"),
    "verl-0.9.1-seq-sum": ("vanilla", "seq-mean-token-sum"),
    "verl-0.9.1-sum-norm": ("vanilla", "seq-mean-token-sum-norm"),
    "verl-0.9.1-token-sum": ("vanilla", "token-sum"),
    "verl-0.9.1-gspo": ("gspo", "token-mean"),
    "verl-0.9.1-sapo": ("sapo", "token-mean"),
    "verl-0.9.1-gpg": ("gpg", "token-mean"),
    "verl-0.9.1-cispo": ("cispo", "token-mean"),
    "verl-0.9.1-dppo-tv": ("dppo_tv", "token-mean"),
    "verl-0.9.1-dppo-kl": ("dppo_kl", "token-mean"),
    "verl-0.9.1-clip-cov": ("clip_cov", "token-mean"),
    "verl-0.9.1-kl-cov": ("kl_cov", "token-mean"),
    "verl-0.9.1-geo-mean": ("geo_mean", "token-mean"),
    "verl-0.9.1-bypass": ("bypass_mode", "token-mean"),
    "verl-0.9.1-bypass-geo-rs": ("bypass_mode", "token-mean"),
    "verl-0.9.1-bypass-k3-rs": ("bypass_mode", "token-mean"),
}
"""Policy loss and aggregation; every other setting is the default of verl's ActorConfig."""
PRESETS = {
    "verl-0.9.1-bypass-geo-rs": verl.RolloutCorrectionConfig.bypass_ppo_clip_geo_rs,
    "verl-0.9.1-bypass-k3-rs": verl.RolloutCorrectionConfig.bypass_ppo_clip_k3_rs,
}
"""verl's own presets of the correction, with their thresholds."""
OPENRLHF: dict[str, dict[str, Any]] = {
    "openrlhf": {},
    "openrlhf-gspo": {"policy_loss_type": "gspo"},
    "openrlhf-binary-kl": {
        "by_sample": True,
        "is_correction_level": "seq",
        "is_correction_gating": "binary_kl",
        "is_correction_threshold": [0.0, 5e-3],
    },
}
"""What differs from ``PolicyLoss``'s own defaults."""
TRL = {recipe_id: recipe_id.removeprefix("trl-1.16-") for recipe_id in JUDGED if "trl" in recipe_id}


def test_every_judged_recipe_has_its_judge() -> None:
    assert set(JUDGED) == set(VERL) | set(TRL) | set(OPENRLHF)
    assert set(TRL.values()) == set(trl.LOSS_TYPES)


def given(seed: int) -> tuple[Draw, Tensor]:
    """Return a batch in which Clip-Cov's default bounds (1 to 5) leave nothing to draw."""
    data = draw(seed, groups=EQUAL_GROUPS)
    return data, data.logp.clone().requires_grad_()


def check(ours: Tensor, judge: Tensor, logp: Tensor, data: Draw) -> None:
    slope, judge_slope = (
        torch.autograd.grad(found, logp, retain_graph=True)[0] for found in (ours, judge)
    )
    inside = data.mask != 0
    terms = torch.cat([judge_slope.flatten(), judge.detach().flatten()])
    assert disagreement(slope[inside], judge_slope[inside]) <= 20 * COUNT_EPS
    assert sum_disagreement(ours.detach(), judge.detach(), terms=terms) <= 20 * COUNT_EPS


def our_advantage(recipe: recipes.Recipe, data: Draw) -> Tensor:
    config = recipe.objective.advantage
    return advantages(data.rewards, config, group=data.group, mask=data.mask).value


def eligible(data: Draw, A: Tensor) -> Tensor:
    """Return the tokens whose covariance lies in Clip-Cov's default bounds, by its definition."""
    inside = data.mask != 0
    above = A.expand(data.mask.shape) - A.expand(data.mask.shape)[inside].mean()
    cov = above * (data.logp - data.logp[inside].mean())
    return inside & (cov > 1) & (cov < 5)


@pytest.mark.parametrize("recipe_id", VERL)
def test_verl(recipe_id: str, cell: Note) -> None:
    loss, mode = VERL[recipe_id]
    recipe = JUDGED[recipe_id]
    for seed in range(8):
        data, logp = given(seed)
        A = our_advantage(recipe, data)
        if loss in verl_pairs.BY_MICRO_BATCH:
            # One group a micro-batch: its advantages may be equal and every choice a tie.
            A = 0.1 * data.advantages.unsqueeze(-1)
        if loss == "clip_cov":
            assert not bool(eligible(data, A).any())  # else verl's draw and ours differ
        A_judge = A.expand(data.mask.shape) * data.mask
        if recipe_id in PRESETS:  # every other response is close enough to stay
            far = 0.3 * (torch.arange(12) % 2)[:, None]
            data = replace(data, sampler=data.logp + far + 1e-4 * data.values)
        seen = data if loss != "bypass_mode" else replace(data, old=data.sampler)
        correction = PRESETS.get(recipe_id, verl.RolloutCorrectionConfig.bypass_ppo_clip)()
        judge = _verl_defaults(loss, mode, seen, A_judge, logp, correction)
        by_micro = loss in verl_pairs.BY_MICRO_BATCH
        ours = verl_pairs.our_loss(recipe.objective, data, A, RANKS, logp=logp, by_micro=by_micro)
        check(ours, judge, logp, data)
        if recipe_id in PRESETS:
            (slope,) = torch.autograd.grad(ours, logp)
            learns = (slope != 0).any(dim=-1) & (A.squeeze(-1) != 0)
            assert not bool(learns[1::2].any())
            assert bool(learns[0::2].any())
    cell(loss=f"verl:recipe {recipe_id}", aggregation=mode, advantage="grpo",
         structure=RANKS.name)  # fmt: skip


def _verl_defaults(
    loss: str, mode: str, data: Draw, A: Tensor, logp: Tensor, correction: Any = None
) -> Tensor:
    policy: dict[str, Any] = {}
    if loss == "bypass_mode":
        policy["rollout_correction"] = correction
    config = verl.actor_config(
        policy_loss=policy, global_batch_info=verl_pairs.global_info(data.mask, RANKS)
    )
    total = torch.zeros((), dtype=logp.dtype)
    for rank in RANKS.rows:
        for micro in rank:
            rows = list(micro)
            value, _ = verl.policy_loss(
                loss,
                logp=logp[rows],
                old=data.old[rows],
                advantages=A[rows],
                mask=data.mask[rows],
                aggregation=mode,
                config=config,
            )
            total = total + value / RANKS.n_ranks
    return total


@pytest.mark.parametrize("recipe_id", TRL)
def test_trl(recipe_id: str, cell: Note) -> None:
    """TRL with its defaults; accumulation and steps as the recipe has them (1 and 1)."""
    recipe = JUDGED[recipe_id]
    for seed in range(8):
        data, logp = given(seed)
        tokens = float(data.mask.sum())
        A = trl.advantages(
            data.rewards[:, None], group_size=4, scale_rewards="group", weights=(1.0,), gdpo=False
        )
        judge, _ = trl.compute_loss(
            logp=logp,
            old=data.old,
            advantages=A,
            mask=data.mask,
            loss_type=TRL[recipe_id],
            generation_tokens=tokens,
            epsilon=trl.default("epsilon"),
            epsilon_high=trl.default("epsilon_high") or trl.default("epsilon"),
            delta=trl.default("delta"),
            beta=trl.default("beta"),
            max_completion_length=trl.default("max_completion_length"),
            level=trl.default("importance_sampling_level"),
        )
        found = policy_loss(data.batch(logp, our_advantage(recipe, data)), recipe.objective)
        check(found.value, judge, logp, data)
    cell(loss=f"trl:recipe {recipe_id}", aggregation=TRL[recipe_id], advantage="group",
         structure="whole")  # fmt: skip


@pytest.mark.parametrize("recipe_id", OPENRLHF)
def test_openrlhf(recipe_id: str, cell: Note) -> None:
    recipe = JUDGED[recipe_id]
    for seed in range(8):
        data, logp = given(seed)
        far = 1.0 * (torch.arange(12) % 2)[:, None]  # every other response is close enough to stay
        data = replace(data, sampler=data.old - far - 1e-3 * data.values.abs())
        A = our_advantage(recipe, data)
        judge = openrlhf.policy_loss(
            logp=logp,
            old=data.old,
            sampler=data.sampler,
            advantages=A.expand(data.mask.shape) * data.mask,
            mask=data.mask,
            micros=RANKS.rows,
            **OPENRLHF[recipe_id],
        )
        ours = verl_pairs.our_loss(recipe.objective, data, A, RANKS, logp=logp, by_micro=False)
        check(ours, judge, logp, data)
        if recipe.objective.sampler.rejection:
            (slope,) = torch.autograd.grad(ours, logp)
            learns = (slope != 0).any(dim=-1) & (A.squeeze(-1) != 0)
            assert not bool(learns[1::2].any())
            assert bool(learns[0::2].any())
    cell(loss=f"openrlhf:recipe {recipe_id}", aggregation=recipe.objective.aggregation.kind,
         advantage="grpo", structure=RANKS.name)  # fmt: skip


def test_a_recipe_with_another_clip_is_rejected() -> None:
    data, logp = given(1)
    recipe = JUDGED["verl-0.9.1"]
    A = our_advantage(recipe, data)
    judge = _verl_defaults("vanilla", "token-mean", data, A.expand(data.mask.shape), logp)
    other = recipe.objective.model_copy(
        update={"clip": recipe.objective.clip.model_copy(update={"high": 0.2 * 1.05})}
    )
    scales = row_scales(data.mask, other.aggregation)
    ours = policy_loss(data.batch(logp, A), other, scales=scales).value
    with pytest.raises(AssertionError):
        check(ours, judge, logp, data)
