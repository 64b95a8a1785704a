"""What verl's bypass switch reaches: the checker says nothing beside the log-probs, and why."""

import inspect
import warnings
from typing import Any

import judges_verl as verl
import pytest
import torch
from agreement import disagreement
from draws import draw
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from test_check_keys import GENERATE
from verl import DataProto
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode
from verl.utils.config import omega_conf_to_dataclass
from verl.workers import engine_workers

from dapolab.check import check_text


def actor_settings(*overrides: str) -> Any:
    """Compose verl's defaults and return the actor's table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = str(GENERATE.package_folder("verl") / "trainer/config")
        with initialize_config_dir(folder, version_base=None):
            config = compose("ppo_trainer", overrides=list(overrides))
    actor = config.actor_rollout_ref.actor
    actor.ppo_micro_batch_size_per_gpu = 1
    return actor


def test_the_loss_of_the_workers_stays_as_it_was_configured() -> None:
    """The trainer rewrites its own table; the workers' loss was built from it beforehand."""
    actor = actor_settings("actor_rollout_ref.rollout.n=8")
    built = omega_conf_to_dataclass(actor)  # as the worker's init_model does
    batch = DataProto(batch=TensorDict({"rollout_log_probs": torch.zeros(2, 3)}, batch_size=[2]))
    correction = verl.RolloutCorrectionConfig(bypass_mode=True, loss_type="reinforce")
    apply_bypass_mode(batch, correction, actor.policy_loss)
    assert actor.policy_loss.loss_mode == "bypass_mode"
    assert built.policy_loss.loss_mode == "vanilla"
    assert bool((batch.batch["old_log_probs"] == batch.batch["rollout_log_probs"]).all())


@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
def test_what_the_checker_suggests_reaches_the_loss(loss_type: str) -> None:
    table = "actor_rollout_ref.actor.policy_loss"
    actor = actor_settings(
        f"{table}.loss_mode=bypass_mode",
        f"+{table}.rollout_correction.loss_type={loss_type}",
        f"+{table}.rollout_correction.rollout_is=token",
    )
    built = omega_conf_to_dataclass(actor)
    data = draw(0)
    logp = data.logp.clone().requires_grad_()
    value, _ = verl.policy_loss(
        built.policy_loss.loss_mode,
        logp=logp,
        old=data.sampler,
        advantages=data.advantages.unsqueeze(-1) * data.mask,
        mask=data.mask,
        aggregation="token-mean",
        config=built,
    )
    (slope,) = torch.autograd.grad(value, logp)
    weight = (data.logp - data.sampler).exp().clamp(max=2.0)
    plain = -weight * data.advantages.unsqueeze(-1) * data.mask / data.mask.sum()
    assert (disagreement(slope, plain) <= 1e-12) == (loss_type == "reinforce")


def test_the_workers_build_their_loss_once_and_before_the_first_step() -> None:
    worker = inspect.getsource(engine_workers)
    assert "actor_config: ActorConfig = omega_conf_to_dataclass(self.config.actor)" in worker
    assert "partial(ppo_loss, config=actor_config)" in worker
    assert "rollout_correction" not in worker
    fit = inspect.getsource(ray_trainer.RayPPOTrainer.fit)
    assert "apply_bypass_mode(" in fit
    assert "init_workers" not in fit


@pytest.mark.parametrize("launch", ["trainer.use_v1=True", "trainer.use_v1=False"])
def test_the_checker_says_so(launch: str) -> None:
    switch = "algorithm.rollout_correction"
    text = (
        f"python -m verl.trainer.main_ppo {launch} {switch}.bypass_mode=True "
        f"{switch}.loss_type=reinforce"
    )
    report = check_text(text, name="run.sh")
    assert "loss PPO" in report.summary
    (finding,) = (f for f in report.findings if f.id == "sampling-correction-ignored")
    assert finding.certain
