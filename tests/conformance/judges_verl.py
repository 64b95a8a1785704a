"""The real functions of verl 0.9.1 behind one face each. Nothing here computes a loss.

An import that fails fails the session: a judge that cannot be asked is no reason to pass.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager as LoopManager
from verl.trainer.config import AlgoConfig
from verl.trainer.config.algorithm import RolloutCorrectionConfig as RolloutCorrectionConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.trainer.ppo.v1 import replay_buffer
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.reward_manager.dapo import DAPORewardManager as LegacyManager

POLICY_LOSSES: Mapping[str, Any] = core_algos.POLICY_LOSS_REGISTRY
ADVANTAGES: Mapping[str, Any] = core_algos.ADV_ESTIMATOR_REGISTRY
AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
)
KL_ESTIMATORS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")


def actor_config(
    *,
    policy_loss: Mapping[str, Any] | None = None,
    global_batch_info: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ActorConfig:
    """Return verl's own ActorConfig, with its defaults."""
    return ActorConfig(
        strategy="fsdp",
        rollout_n=4,
        use_dynamic_bsz=True,
        policy_loss=PolicyLossConfig(**(policy_loss or {})),
        global_batch_info=dict(global_batch_info or {}),
        **settings,
    )


def policy_loss(
    name: str,
    *,
    logp: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    aggregation: str,
    config: ActorConfig,
    weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Call a registered policy loss on one micro-batch."""
    loss, metrics = POLICY_LOSSES[name](
        old_log_prob=old,
        log_prob=logp,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=aggregation,
        config=config,
        rollout_is_weights=weights,
    )
    return loss, metrics


def agg_loss(losses: Tensor, mask: Tensor, aggregation: str, **info: Any) -> Tensor:
    """Call verl's aggregation."""
    return core_algos.agg_loss(losses, mask, aggregation, **info)


def kl_penalty(logp: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Call verl's KL estimator."""
    return core_algos.kl_penalty(logp, reference, estimator)


def kl_in_reward(
    *, old: Tensor, reference: Tensor, mask: Tensor, coefficient: float, estimator: str
) -> Tensor:
    """Call the trainer's penalty on rewards of 0: what it adds to each token's reward."""
    batch = TensorDict(
        {
            "response_mask": mask,
            "token_level_scores": torch.zeros_like(mask),
            "old_log_probs": old,
            "ref_log_prob": reference,
        },
        batch_size=[mask.shape[0]],
    )
    control = core_algos.FixedKLController(kl_coef=coefficient)
    data, _ = apply_kl_penalty(DataProto(batch=batch), control, kl_penalty=estimator)
    return data.batch["token_level_rewards"]


def rollout_correction(
    *, old: Tensor, sampler: Tensor, mask: Tensor, **settings: Any
) -> tuple[Tensor | None, Tensor, dict[str, float]]:
    """Call the rollout-correction helper: weights, modified mask, metrics."""
    weights, kept, metrics = compute_rollout_correction_and_rejection_mask(
        old_log_prob=old, rollout_log_prob=sampler, response_mask=mask, **settings
    )
    return None if weights is None else weights.batch["rollout_is_weights"], kept, metrics


def algo_config(**settings: Any) -> AlgoConfig:
    """Return verl's own AlgoConfig."""
    return AlgoConfig(**settings)


# ---------------------------------------------------------------------------- reward managers


class _Tokenizer:
    eos_token = "<eos>"

    def decode(self, ids: Tensor, skip_special_tokens: bool = True) -> str:
        return "text"


def _overlong(buffer: int, factor: float, enable: bool) -> Any:
    return OmegaConf.create(
        {"enable": enable, "len": buffer, "penalty_factor": factor, "log": True}
    )


def _response(length: int, width: int, prompt: int = 3) -> DataProto:
    attention = torch.zeros(1, prompt + width, dtype=torch.int64)
    attention[:, : prompt + length] = 1
    return DataProto(
        batch=TensorDict(
            {
                "prompts": torch.ones(1, prompt, dtype=torch.int64),
                "responses": torch.ones(1, width, dtype=torch.int64),
                "attention_mask": attention,
            },
            batch_size=[1],
        ),
        non_tensor_batch={
            "reward_model": np.array([{"ground_truth": "0"}], dtype=object),
            "data_source": np.array(["any"], dtype=object),
            "extra_info": np.array([{}], dtype=object),
        },
    )


def dapo_reward_legacy(
    length: int, *, cap: int, buffer: int, factor: float, score: float, enable: bool = True
) -> float:
    """Return the shaped reward of one response of ``length`` tokens, legacy manager."""
    manager = LegacyManager(
        tokenizer=_Tokenizer(),
        num_examine=0,
        compute_score=lambda **_: score,
        max_resp_len=cap,
        overlong_buffer_cfg=_overlong(buffer, factor, enable),
    )
    reward = manager(_response(length, width=max(length, cap) + 2))
    return float(reward.sum())


def dapo_reward_loop(
    length: int, *, cap: int, buffer: int, factor: float, score: float, enable: bool = True
) -> float:
    """Return the same from the reward-loop manager, the default since the agent loop."""
    config = OmegaConf.create(
        {
            "reward": {
                "reward_kwargs": {
                    "max_resp_len": cap,
                    "overlong_buffer_cfg": _overlong(buffer, factor, enable),
                }
            }
        }
    )

    async def run() -> float:
        manager = LoopManager(config, _Tokenizer(), lambda **_: score)
        manager.loop = asyncio.get_running_loop()
        found = await manager.run_single(_response(length, width=max(length, cap) + 2))
        return float(found["reward_score"])

    return asyncio.run(run())


# ---------------------------------------------------------------------------- replay buffer


@dataclass(frozen=True)
class Group:
    """One prompt of the stream: when it finishes after its dispatch, and its metric values."""

    duration: int
    metric: tuple[float, ...]


@dataclass
class Sampled:
    """What one call of ``ReplayBuffer.sample`` did; groups by dispatch order."""

    n_dispatched: int
    trained: list[int]
    evicted: list[int]
    surplus: list[int]
    polls: int
    metrics: dict[str, Any]


class _Queue:
    """A dict in place of TransferQueue, and a clock that ticks once a poll."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups, self.tick, self.n_sent = groups, 0, 0
        self.ends: dict[int, int] = {}
        self.trained: list[int] = []
        self.gone: list[list[int]] = []
        self.here: dict[int, None] = {}

    def dispatch(self, n: int) -> None:
        for i in range(self.n_sent, self.n_sent + n):
            self.ends[i] = self.tick + self.groups[i].duration
            self.here[i] = None
        self.n_sent += n

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        items: dict[str, dict[str, Any]] = {}
        for i in self.here:
            done = self.ends[i] <= self.tick
            status = "finished" if done else "running"
            items[f"{i:06d}"] = {"is_prompt": True, "global_steps": 1, "status": status}
            if done:
                for session in range(len(self.groups[i].metric)):
                    items[f"{i:06d}_{session}_0"] = {"seq_len": 1}
        return {"train": items}

    def kv_batch_get(self, keys: Iterable[str], partition_id: str, select_fields: list[str]) -> Any:
        def metric(key: str) -> float:
            uid, session, _ = key.split("_")
            return self.groups[int(uid)].metric[int(session)]

        if select_fields == ["rm_scores"]:
            return {"rm_scores": [torch.tensor([0.0, metric(key)]) for key in keys]}
        return {"extra_fields": [{"reward_extra_info": {"acc": metric(key)}} for key in keys]}

    def kv_clear(self, partition_id: str, keys: Iterable[str]) -> None:
        gone = sorted({int(key.split("_")[0]) for key in keys} & self.here.keys())
        for i in gone:
            del self.here[i]
        self.gone.append(gone)

    def wait(self, seconds: float) -> None:
        self.tick += 1
        if self.tick > 100_000:
            raise AssertionError("sample() never returns")


@contextmanager
def _plugged(queue: _Queue) -> Any:
    clock = SimpleNamespace(sleep=queue.wait, time=lambda: 0.0)
    with (
        mock.patch.object(replay_buffer, "tq", queue),
        mock.patch.object(replay_buffer, "time", clock),
    ):
        yield


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "__wrapped__", function)


def sample_sync(
    groups: Sequence[Group], *, batch_size: int, max_inflight_gen_batches: int, metric: str
) -> Sampled:
    """Run one step of the synchronous V1 trainer's sampling on a stream of groups.

    The trainer submits ``batch_size`` prompts and calls ``sample``; every poll is one tick.
    """
    queue = _Queue(groups)
    with _plugged(queue):
        buffer = replay_buffer.ReplayBuffer(
            trainer_mode="sync",
            trainer_config=OmegaConf.create({}),
            max_off_policy_threshold=8,
            max_off_policy_strategy="drop",
            sampler_kwargs=OmegaConf.create({}),
            poll_interval=1.0,
            refill_fn=queue.dispatch,
            filter_groups_metric=metric,
            train_batch_size=batch_size,
            gen_batch_size=1,
            max_inflight_gen_batches=max_inflight_gen_batches,
        )
        queue.dispatch(batch_size)
        sample = _unwrapped(replay_buffer.ReplayBuffer.sample)
        batch, metrics = sample(buffer, 1, "train", batch_size)
    trained = sorted({int(key.split("_")[0]) for key in batch.keys})
    # sample() clears evicted groups poll by poll, then the surplus, then what it selected.
    counts = metrics.get("training/filter_groups/discarded_surplus_samples", 0)
    surplus = queue.gone[-2] if counts else []
    evicted = sorted(set(range(queue.n_sent)) - set(trained) - set(surplus))
    return Sampled(queue.n_sent, trained, evicted, surplus, queue.tick, metrics)
