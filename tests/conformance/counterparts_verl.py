"""Which of dapolab's settings compute what verl computes, entry by entry of its registries."""

from dataclasses import dataclass
from typing import Any

import judges_verl as verl
import numpy as np
import torch
from agreement import COUNT_EPS, EXACT, FACTOR_IN_SINGLE, SINGLE
from draws import Draw, Split
from torch import Tensor

from dapolab.objective import Advantages, TokenEnergy, advantages, policy_loss, row_scales
from dapolab.scenario import (
    Advantage,
    Aggregation,
    CispoClip,
    Clip,
    ClipCov,
    DppoKlClip,
    DppoTvClip,
    DroClip,
    GaeAdvantage,
    GdpoAdvantage,
    GmpoClip,
    GpgAdvantage,
    GpgClip,
    GrpoAdvantage,
    GspoClip,
    KlCov,
    MeanOnlyAdvantage,
    Objective,
    OpoAdvantage,
    OptimalTokenBaselineAdvantage,
    PassAtKAdvantage,
    PpoClip,
    ReinforcePpAdvantage,
    ReinforcePpBaselineAdvantage,
    RemaxAdvantage,
    RlooAdvantage,
    SapoClip,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
)

LOW, HIGH, DUAL_C = 0.2, 0.28, 3.0
SETTINGS: dict[str, Any] = {
    "clip_ratio_low": LOW,
    "clip_ratio_high": HIGH,
    "clip_ratio_c": DUAL_C,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
}
# Shares and bounds that choose several tokens of a small batch. Clip-Cov draws at random; with a
# share of 1 it takes all that are eligible, so the two choices can be compared.
POLICY_SETTINGS: dict[str, Any] = {
    "clip_cov_ratio": 1.0,
    "clip_cov_lb": 0.2,
    "clip_cov_ub": 1.5,
    "kl_cov_ratio": 0.15,
    "ppo_kl_coef": 0.1,
    "dro_beta": 0.5,
}

CLIPS: dict[str, Clip] = {
    "vanilla": PpoClip(low=LOW, high=HIGH, dual_c=DUAL_C, log_ratio_clamp=20),
    "dppo_tv": DppoTvClip(low=LOW, high=HIGH, cap=DUAL_C, log_ratio_clamp=20),
    "dppo_kl": DppoKlClip(low=LOW, high=HIGH, cap=DUAL_C, log_ratio_clamp=20),
    "gspo": GspoClip(low=LOW, high=HIGH, level="sequence_token", log_ratio_cap=10),
    "sapo": SapoClip(tau_positive=1.0, tau_negative=1.05, log_ratio_clamp=20),
    "gpg": GpgClip(),
    "clip_cov": ClipCov(low=LOW, high=HIGH, share=1.0, cov_low=0.2, cov_high=1.5),
    "kl_cov": KlCov(share=0.15, coef=0.1),
    "geo_mean": GmpoClip(low=LOW, high=HIGH),
    "dro": DroClip(beta=0.5),
    "cispo": CispoClip(bounds="band", low=LOW, high=HIGH, log_ratio_clamp=20),
}
"""One for each policy loss; ``bypass_mode`` dispatches and is judged with the sampler."""
OWN_AGGREGATION = {"sapo": "seq-mean-token-mean", "geo_mean": "mean of the rows of a micro-batch"}
"""Losses that ignore ``loss_agg_mode``."""
BY_MICRO_BATCH = {"clip_cov", "kl_cov"}
"""Losses that choose tokens inside each micro-batch; dapolab does so when it is given one."""


def aggregation(loss: str, mode: str, *, local: bool) -> Aggregation:
    """Return dapolab's aggregation for a verl mode; ``local``: without global counts."""
    rows = "out" if local else "in"
    if loss == "geo_mean":
        return SeqMeanTokenMean(empty_rows="in", micro="sum")
    if loss == "sapo":
        mode = "seq-mean-token-mean"
    match mode:
        case "token-mean":
            return TokenMean()
        case "token-sum":
            return TokenSum()
        case "seq-mean-token-sum":
            return SeqMeanTokenSum(empty_rows=rows)
        case "seq-mean-token-sum-norm":
            return SeqMeanTokenSumNorm(constant="padded-width", empty_rows=rows)
        case "seq-mean-token-mean":
            return SeqMeanTokenMean(empty_rows=rows)
        case _:
            raise KeyError(f"verl has a new aggregation {mode!r}: add its counterpart")


def objective(loss: str, mode: str, *, local: bool, **settings: Any) -> Objective:
    """Return dapolab's objective for a verl loss and aggregation."""
    return Objective(clip=CLIPS[loss], aggregation=aggregation(loss, mode, local=local), **settings)


def global_info(mask: Tensor, split: Split) -> dict[str, Any]:
    """Return what verl's engine passes with each micro-batch of an update (losses.py:57-144)."""
    if split.name == "local":
        return {}
    return {
        "dp_size": split.n_ranks,
        "batch_num_tokens": int(mask.sum()),
        "global_batch_size": mask.shape[0],
    }


def judged_loss(
    loss: str, mode: str, data: Draw, A: Tensor, split: Split, *, logp: Tensor, **extra: Any
) -> tuple[Tensor, list[dict[str, float]]]:
    """Let verl compute each micro-batch; micro-batches are added, ranks averaged as FSDP does."""
    total, told = torch.zeros((), dtype=logp.dtype), []
    weights = extra.pop("weights", None)
    policy = POLICY_SETTINGS | extra.pop("policy_loss", {})
    config = verl.actor_config(
        policy_loss=policy, global_batch_info=global_info(data.mask, split), **(SETTINGS | extra)
    )
    for rank in split.rows:
        for micro in rank:
            rows = list(micro)
            value, metrics = verl.policy_loss(
                loss,
                logp=logp[rows],
                old=data.old[rows],
                advantages=A[rows],
                mask=data.mask[rows],
                aggregation=mode,
                config=config,
                weights=None if weights is None else weights[rows],
            )
            total = total + value / split.n_ranks
            told.append(metrics)
    return total, told


def our_loss(
    config: Objective, data: Draw, A: Tensor, split: Split, *, logp: Tensor, by_micro: bool
) -> Tensor:
    """Let dapolab compute the update at once, or micro-batch by micro-batch."""
    batch = data.batch(logp, A)
    rng = torch.Generator().manual_seed(0)
    if not by_micro:
        return policy_loss(batch, config, structure=split.structure, generator=rng).value
    scales = row_scales(data.mask, config.aggregation, group=data.group, structure=split.structure)
    parts = [torch.tensor(micro) for rank in split.rows for micro in rank]
    values = [
        policy_loss(batch.rows(part), config, scales=scales[part], generator=rng).value
        for part in parts
    ]
    return torch.stack(values).sum()


# ---------------------------------------------------------------------------- advantages


@dataclass(frozen=True)
class Estimator:
    """dapolab's counterpart of a registered advantage estimator."""

    config: Advantage
    tolerance: float = EXACT
    needs_pairs: bool = False
    """verl raises for a group of one."""
    settings: tuple[tuple[str, Any], ...] = ()
    """What verl's estimator is told."""


def _algorithm(**settings: Any) -> tuple[tuple[str, Any], ...]:
    return (("config", verl.algo_config(**settings)),)


ESTIMATORS: dict[str, Estimator] = {
    # A response alone is divided by 1 + 1e-6 in float32.
    "grpo": Estimator(GrpoAdvantage(ddof=1, eps=1e-6, singletons="raw"), FACTOR_IN_SINGLE),
    "grpo/mean_only": Estimator(
        MeanOnlyAdvantage(singletons="raw"), settings=(("norm_adv_by_std_in_grpo", False),)
    ),
    "grpo_vectorized": Estimator(GrpoAdvantage(ddof=1, eps=1e-6, singletons="raw"), SINGLE),
    "gdpo": Estimator(
        GdpoAdvantage(weights=(1.0, 0.5), ddof=1, eps=1e-6, singletons="raw"), SINGLE
    ),
    "grpo_passk": Estimator(
        PassAtKAdvantage(divide_by_std=True, eps=1e-6),
        needs_pairs=True,
        settings=_algorithm(norm_adv_by_std_in_grpo=True),
    ),
    "grpo_passk/lead": Estimator(
        PassAtKAdvantage(divide_by_std=False),
        needs_pairs=True,
        settings=_algorithm(norm_adv_by_std_in_grpo=False),
    ),
    "reinforce_plus_plus_baseline": Estimator(
        ReinforcePpBaselineAdvantage(singletons="raw"), COUNT_EPS
    ),
    "rloo": Estimator(RlooAdvantage(singletons="raw")),
    "rloo_vectorized": Estimator(RlooAdvantage(singletons="zero")),
    "opo": Estimator(OpoAdvantage(singletons="raw")),
    "reinforce_plus_plus": Estimator(
        ReinforcePpAdvantage(gamma=0.9), COUNT_EPS, settings=_algorithm(gamma=0.9)
    ),
    "remax": Estimator(RemaxAdvantage()),
    "gpg": Estimator(GpgAdvantage(singletons="raw"), FACTOR_IN_SINGLE),  # α is a float32 quotient
    "gae": Estimator(
        GaeAdvantage(gamma=0.95, lam=0.9), COUNT_EPS, settings=(("gamma", 0.95), ("lam", 0.9))
    ),
    "optimal_token_baseline": Estimator(OptimalTokenBaselineAdvantage(singletons="raw")),
    "tir_optimal_token_baseline": Estimator(
        OptimalTokenBaselineAdvantage(align="token", singletons="raw")
    ),
}


def judged_advantage(
    name: str, data: Draw, *, penalty: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Let verl's estimator make advantages of the batch's rewards; (N, T), 0 outside the mask.

    ``penalty`` (N, T) is added to the rewards token by token; ``weights`` are those of the sampler,
    for the token baselines.
    """
    estimator, base = ESTIMATORS[name], name.split("/")[0]
    per_token = torch.zeros_like(data.mask)
    place = torch.arange(1, data.mask.shape[-1] + 1)
    last = (data.mask * place).amax(dim=-1).long() - 1  # −1, the padded end, where empty: as verl
    per_token[torch.arange(len(last)), last] = data.rewards
    if penalty is not None:
        per_token = per_token + penalty
    given: dict[str, Any] = dict(estimator.settings)
    if base == "gdpo":
        given |= _gdpo_inputs(data)
    if base == "remax":
        given["reward_baselines"] = greedy(data)
    if base == "gae":
        given["values"] = data.values
    if base.endswith("token_baseline"):
        given |= {"old_log_probs": data.old, "sum_pi_squared": data.sum_pi_squared}
        given["rollout_is_weights"] = weights
    if base not in ("gae", "remax", "reinforce_plus_plus"):
        given["index"] = np.array([f"prompt-{i}" for i in data.group.tolist()], dtype=object)
    value, _ = verl.ADVANTAGES[base](
        token_level_rewards=per_token, response_mask=data.mask, **given
    )
    return value * data.mask


def our_advantage(
    name: str, data: Draw, *, penalty: Tensor | None = None, weights: Tensor | None = None
) -> Advantages:
    """Let dapolab make advantages of the same rewards."""
    config = ESTIMATORS[name].config
    rewards = data.rewards
    if isinstance(config, GdpoAdvantage):
        rewards = torch.stack([data.rewards, second_reward(data)], dim=-1)
    return advantages(
        rewards,
        config,
        group=data.group,
        mask=data.mask,
        greedy=greedy(data),
        values=data.values,
        token_penalty=penalty,
        energy=TokenEnergy(
            old_logp=data.old, sum_pi_squared=data.sum_pi_squared, sampler_weight=weights
        ),
    )


def greedy(data: Draw) -> Tensor:
    """Return a made-up reward of each prompt's greedy response."""
    return 0.1 * data.group.double()


def second_reward(data: Draw) -> Tensor:
    """Return a second reward, other than the first."""
    return (data.rewards * 3.0 + data.mask.sum(dim=-1)) % 2.0


def _gdpo_inputs(data: Draw) -> dict[str, Any]:
    lengths = data.mask.sum(dim=-1).long()
    attention = torch.cat([torch.ones(len(lengths), 2), data.mask], dim=1).long()
    return {
        "config": verl.algo_config(
            gdpo_reward_keys=["first", "second"], gdpo_reward_weights=[1.0, 0.5]
        ),
        "non_tensor_batch": {
            "first": data.rewards.numpy(),
            "second": second_reward(data).numpy(),
        },
        "batch": {
            "prompts": torch.ones(len(lengths), 2, dtype=torch.int64),
            "attention_mask": attention,
        },
    }
