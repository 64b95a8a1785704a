"""Which tokens the upper clip silences: their probability before the updates of a rollout."""

import numpy as np
import torch

from dapolab.errors import ConfigError
from dapolab.objective import learning_signal
from dapolab.scenario import PpoClip
from gpu_runs.batch import TrainBatch
from gpu_runs.collect import collect_step
from gpu_runs.preset import Preset
from gpu_runs.setup import World, build_world, choose_device

CLIPPED, REWARDED = "old probability, clipped above", "old probability, all of A > 0"
LARGEST = "largest old probability, clipped above"
COUNT = "tokens clipped above"

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


def clipped_tokens(work: tuple[str, Preset, int, str]) -> dict[str, object]:
    """Train a few steps of (arm, preset, steps, device) and describe what was clipped above.

    A token counts whose advantage is positive and whose ratio is above the bound at the end of a
    rollout's updates: from then on the clip would silence it. All steps together.

    Raises
    ------
    ConfigError
        The preset's clip has no bounds on the ratio.
    """
    arm, preset, n_steps, device = work
    if not isinstance(preset.objective.clip, PpoClip):
        raise ConfigError(f"objective.clip.kind {preset.objective.clip.kind}: ppo has the bounds")
    world = build_world(preset, choose_device(device))
    found = [_one_step(world, preset.objective.clip.high, step) for step in range(n_steps)]
    gone, every = (np.concatenate(part) for part in zip(*found, strict=True))
    return {
        "arm": arm,
        "seed": preset.run.seed,
        COUNT: len(gone),
        CLIPPED: float(gone.mean()) if len(gone) else np.nan,
        LARGEST: float(gone.max()) if len(gone) else np.nan,
        REWARDED: float(every.mean()),
    }


def _one_step(world: World, high: float, step: int) -> tuple[Floats, Floats]:
    """Return old probabilities of the tokens clipped above, and of all with A > 0."""
    preset = world.preset
    rollout = collect_step(
        world.generator,
        world.prompts,
        scores=world.scores,
        collector=preset.collector,
        rollout=preset.rollout,
        step=step,
    )
    batch = TrainBatch.of(rollout.trained, pad_token=world.task.pad_token, device=world.device)
    rows, most = torch.arange(batch.n_rows), preset.train.micro_tokens
    policy = world.learner.policy
    before = policy.of_rows(batch, rows, most_tokens=most)
    world.learner.learn(batch, step=step)
    world.generator.refresh()
    after = policy.of_rows(batch, rows, most_tokens=most)
    signal = learning_signal(
        batch.reward_N,
        preset.objective,
        group=batch.group_N,
        mask=batch.mask_NT,
        status=batch.status_N,
    )
    rewarded = (batch.mask_NT > 0) & (signal.advantages > 0)
    passed = rewarded & ((after - before).exp() > 1.0 + high)
    return before[passed].exp().cpu().numpy(), before[rewarded].exp().cpu().numpy()
