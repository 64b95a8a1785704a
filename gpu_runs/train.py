"""The training loop: collect, learn, write down; a kill at any moment costs one step at most."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpu_runs import checkpoint, dump
from gpu_runs.batch import TrainBatch
from gpu_runs.board import Board
from gpu_runs.evaluate import evaluate, summary
from gpu_runs.preset import Preset
from gpu_runs.progress import Progress
from gpu_runs.rollout import Rollout, Wave
from gpu_runs.run_folder import RunFolder
from gpu_runs.setup import World, build_world, choose_device
from gpu_runs.step_row import rollout_metrics, update_metrics
from gpu_runs.update import Learned


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    status : ``failed`` where the collection policy ended the run, as its framework would.
    first_step : where this start took up the run; 0 for a new one.
    metrics, evaluation : of the last step, and of the held-out set after it.
    """

    folder: Path
    status: Literal["finished", "failed"]
    message: str
    first_step: int
    steps: int
    metrics: dict[str, float]
    evaluation: dict[str, float]


def train(
    preset: Preset,
    *,
    folder: Path | str,
    device: str = "auto",
    command: Sequence[str] = (),
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Train a preset in a folder; where it holds the same run, go on after its last checkpoint.

    Parameters
    ----------
    preset : the run.
    folder : for everything that is written; see ``gpu_runs.run_folder``.
    device : auto, cpu or cuda.
    command : for the manifest.
    progress : show how far it is.
    say : gets one-line remarks.

    Raises
    ------
    ConfigError
        Anything that the user can mend; what was trained so far stays in the folder.
    """
    chosen = choose_device(device)
    files = RunFolder(Path(folder), preset)
    world = build_world(preset, chosen)
    files.open()
    try:
        state = files.resume()
        run = _Run(world, files)
        if state is not None:
            run.restore(state)
            say(f"going on after step {run.step} of {preset.run.steps}")
        return run.go(command=command, progress=progress, say=say)
    finally:
        files.close()


class _Run:
    """One run between two checkpoints."""

    def __init__(self, world: World, files: RunFolder) -> None:
        self.world, self.files, self.preset = world, files, world.preset
        self.step = 0

    def go(self, *, command: Sequence[str], progress: bool, say: Callable[[str], None]) -> Outcome:
        first, total = self.step, self.preset.run.steps
        board = Board(self.files.folder / "tensorboard", first_step=first)
        if board.note:
            say(board.note)
        before = self.files.journal.records()
        record: dict[str, Any] = before[-1] if before else {"metrics": {}}
        with Progress(total, done=first, title=self.preset.name, shown=progress) as bar:
            while self.step < total:
                record = self.one_step()
                board.write(record["metrics"] | (record["evaluation"] or {}), step=record["step"])
                if record["failure"]:
                    break
                bar.step(_in_words(record["metrics"]))
        board.close()
        failure = record.get("failure") or ""
        final = {} if failure else self.evaluate()
        self.files.finish(
            command=command,
            device=self.world.device,
            status="failed" if failure else "finished",
            final_evaluation=final or None,
        )
        return Outcome(
            folder=self.files.folder,
            status="failed" if failure else "finished",
            message=f"step {record['step']}: {failure}" if failure else "",
            first_step=first,
            steps=self.step,
            metrics=record["metrics"],
            evaluation=final,
        )

    def one_step(self) -> dict[str, Any]:
        """Make one step and write it down, in an order that a kill cannot break."""
        world, preset, step = self.world, self.preset, self.step
        due = step % preset.evaluation.every == 0
        evaluation = self.evaluate() if due else None
        rollout = world.collect(step)
        learned = self.learn(rollout)
        record = self.record(rollout, learned, evaluation)
        if preset.run.dump:
            table = dump.rows(rollout, source=preset.name, version=step)
            self.files.rollouts.write(table, step=step)
        self.step += 1
        prepared = None
        last = self.step == preset.run.steps
        if not rollout.failure and (last or self.step % preset.run.checkpoint_every == 0):
            started = self.world.clock()
            prepared = checkpoint.prepare(self.files.checkpoint, self.state())
            record["metrics"]["time/checkpoint_seconds"] = self.world.clock() - started
        self.files.journal.append(record)
        if prepared is not None:
            prepared.commit()
        return record

    def learn(self, rollout: Rollout) -> Learned | None:
        """Update the policy on what was kept; None where nothing was."""
        if not rollout.kept or rollout.failure:
            return None
        pad, device = self.world.task.pad_token, self.world.device
        batch = TrainBatch.of(rollout.trained, pad_token=pad, device=device)
        learned = self.world.learner.learn(batch, step=self.step)
        started = self.world.clock()
        self.world.generator.refresh()
        learned.seconds["sync"] = self.world.clock() - started
        return learned

    def evaluate(self) -> dict[str, float]:
        """Answer the held-out set with the policy as it stands."""
        world, exam = self.world, self.preset.evaluation
        started = self.world.clock()
        world.examiner.refresh()
        found = evaluate(
            world.examiner,
            world.heldout,
            scores=world.scores,
            n_samples=exam.n_samples,
            step=self.step,
        )
        if self.preset.run.dump:
            table = dump.heldout_rows(found, step=self.step, source=self.preset.name)
            self.files.heldout.write(table, step=self.step)
        told = summary(found, pass_at=exam.pass_at)
        return told | {"time/validation_seconds": self.world.clock() - started}

    def record(
        self,
        rollout: Rollout,
        learned: Learned | None,
        evaluation: Mapping[str, float] | None,
    ) -> dict[str, Any]:
        """Return what the journal holds of the step."""
        metrics = rollout_metrics(rollout, self.preset.rollout)
        seconds = metrics["time/rollout_seconds"]
        updates: list[dict[str, float]] = []
        if learned is not None:
            updates = [{"update": i, **_finite(update)} for i, update in enumerate(learned.updates)]
            metrics |= update_metrics(learned.updates)
            metrics |= {f"time/{name}_seconds": s for name, s in learned.seconds.items()}
            metrics["train/parameter_step"] = learned.parameter_step
            seconds += sum(learned.seconds.values())
        if not updates:
            metrics["train/update_skipped"] = 1.0
        metrics["time/step_seconds"] = seconds
        metrics["train/data_cursor_consumed"] = self.world.prompts.position
        return {
            "step": self.step,
            "ended_by": rollout.stop.reason if rollout.stop is not None else "failure",
            "failure": rollout.failure,
            "position": self.world.prompts.position,
            "metrics": _finite(metrics),
            "evaluation": None if evaluation is None else _finite(evaluation),
            "updates": updates,
            "waves": _waves(rollout),
        }

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """Return all that the next step depends on; noise and order follow from the seed."""
        learner = self.world.learner
        return {
            "fingerprint": self.preset.fingerprint(),
            "step": self.step,
            "position": self.world.prompts.position,
            "n_updates": learner.n_updates,
            "model": self.world.model.state_dict(),
            "optimizer": learner.optimizer.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a state back."""
        self.step = int(state["step"])
        self.world.prompts.position = int(state["position"])
        self.world.model.load_state_dict(state["model"])
        self.world.learner.n_updates = int(state["n_updates"])
        self.world.learner.optimizer.load_state_dict(state["optimizer"])
        self.world.generator.refresh()


def _waves(rollout: Rollout) -> list[dict[str, float | None]]:
    """Return what each wave asked of the engine; the whole step in one row without a barrier."""
    barrier = bool(rollout.waves)
    n, end = len(rollout.candidates), len(rollout.iterations)
    whole = Wave(0, n, rollout.start_s, 0, end_s=rollout.end_s, last_iteration=end)
    found: list[dict[str, float | None]] = []
    for number, wave in enumerate(rollout.waves or [whole]):
        iterations = rollout.iterations[wave.first_iteration : wave.last_iteration]
        found.append(
            {
                "wave": number if barrier else None,
                "groups": wave.last - wave.first,
                "start_s": wave.start_s - rollout.start_s,
                "seconds": wave.end_s - wave.start_s,
                "iterations": len(iterations),
                "tokens": sum(i.n for i in iterations),
                "sum_context": sum(i.sum_context for i in iterations),
                "decode_seconds": sum(i.seconds - i.admit_seconds for i in iterations),
                "admit_seconds": sum(i.admit_seconds for i in iterations),
                "admitted": sum(i.admitted for i in iterations),
                "prefill_tokens": sum(i.prefill_tokens for i in iterations),
            }
        )
    return found


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """Leave out what does not exist: a missing metric is absent, never NaN."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _in_words(metrics: Mapping[str, float]) -> str:
    shown = {
        "acc": ("reward/accuracy", ".2f"),
        "tokens": ("rollout/mean_completion_tokens", ".1f"),
        "entropy": ("entropy/token_mean", ".2f"),
        "s/step": ("time/step_seconds", ".2f"),
    }
    parts = [
        f"{name} {metrics[key]:{form}}" for name, (key, form) in shown.items() if key in metrics
    ]
    return " · ".join(parts)
