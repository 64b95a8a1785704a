"""A policy that stands still: weights at some training stages, and what they answer.

With frozen weights every step of a run has the same law, so runs are independent repetitions of
what the simulator simulates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import torch

from gpu_runs import checkpoint, dump
from gpu_runs.evaluate import evaluate
from gpu_runs.preset import Preset
from gpu_runs.setup import World, build_world, choose_device
from gpu_runs.step_row import rollout_metrics
from gpu_runs.validate.context import Context, vary
from gpu_runs.weights import load_model, save_model

STAGE_RATE = 1e-4
"""Learning rate of the training that makes the stages: three times the toy's, so that 40 steps go
from a fresh warm start to nearly solved (prompts without an answer apart)."""
_BARE = {"run.dump": False, "evaluation.every": 10_000, "evaluation.n_prompts": 2}


def stages(context: Context, steps: Sequence[int]) -> dict[int, Path]:
    """Return a file of weights for each number of training steps; trained once, then kept."""
    (seed,) = context.seeds(1, purpose=90)
    changes = {"train.learning_rate": STAGE_RATE, "run.seed": seed, **_BARE}
    preset = vary(context.preset, changes)
    folder = context.cache / f"{preset.fingerprint()}-stages"
    found = {step: folder / f"weights-{step:03d}.pt" for step in sorted(steps)}
    missing = [step for step, path in found.items() if not path.is_file()]
    for step in missing:
        found[step].parent.mkdir(parents=True, exist_ok=True)
        _reach(preset, step, folder / "run", found[step], device=context.device)
    return found


def _reach(preset: Preset, step: int, folder: Path, target: Path, *, device: str) -> None:
    """Train on to a step and write the weights; a step below the run's own starts a new run."""
    from gpu_runs.train import train

    chosen = choose_device(device)
    world = build_world(preset, chosen)
    if step > 0:
        state = folder / "checkpoint.pt"
        done = int(checkpoint.read(state)["step"]) if state.is_file() else 0
        own = folder if done <= step else folder.with_name(f"run-{step:03d}")
        train(vary(preset, {"run.steps": step}), folder=own, device=device, progress=False)
        world.model.load_state_dict(checkpoint.read(own / "checkpoint.pt")["model"])
    save_model(world.model, target)


@dataclass(frozen=True)
class Job:
    """Something to ask of frozen weights, in a process of its own.

    Attributes
    ----------
    n_steps : of :func:`play`.
    n_samples : answers a prompt, of :func:`answers`.
    """

    preset: Preset
    weights: Path
    device: str
    n_steps: int = 1
    n_samples: int = 8

    def world(self) -> World:
        """Build the run's things around the weights."""
        world = build_world(self.preset, choose_device(self.device))
        world.model.load_state_dict(load_model(self.weights, device=world.device).state_dict())
        world.generator.refresh()
        world.examiner.refresh()
        return world


def play(job: Job) -> pd.DataFrame:
    """Collect steps with the job's policy; return one row a step (``dapolab.metrics``' names).

    The sampler's clock is warmed up by a step whose groups are forgotten.
    """
    with torch.no_grad():
        return _play(job)[0]


def record(job: Job) -> tuple[pd.DataFrame, pa.Table]:
    """Collect as :func:`play`; also return every candidate as ``dapolab fit`` reads it."""
    with torch.no_grad():
        return _play(job)


def _play(job: Job) -> tuple[pd.DataFrame, pa.Table]:
    world, preset = job.world(), job.preset
    rows, tables = [], []
    for step in range(-1, job.n_steps):
        rollout = world.collect(step)
        if step < 0:
            world.prompts.position = 0
            continue
        found = rollout_metrics(rollout, preset.rollout)
        rows.append({"seed": preset.run.seed, "step": step, **found})
        tables.append(dump.rows(rollout, source=preset.name, version=0))
    return pd.DataFrame(rows), pa.concat_tables(tables)


def answers(job: Job) -> pd.DataFrame:
    """Answer every prompt of the pool ``n_samples`` times; rows as ``dapolab.records``.

    The noise is the held-out stream's: no rollout of any run uses it.
    """
    world = job.world()
    pool = world.task.problems("train", job.preset.data.n_prompts, seed=job.preset.data.seed)
    found = evaluate(world.examiner, pool, scores=world.scores, n_samples=job.n_samples, step=0)
    table: pd.DataFrame = dump.heldout_rows(found, step=0, source="answers").to_pandas()
    return table
