"""What a study may ask for: settings, processes, and training runs that a rerun does not repeat."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from dapolab.processes import end_with
from dapolab.scenario import check
from dapolab.scenario.load import lay_over
from gpu_runs.preset import Preset

In = TypeVar("In")
Out = TypeVar("Out")


def vary(preset: Preset, changes: Mapping[str, Any]) -> Preset:
    """Return the preset with dotted keys laid over it; its recipe stays resolved.

    Raises
    ------
    ConfigError
        An unknown key or a value out of range.
    """
    data = preset.model_dump(mode="json")
    lay_over(data, changes)
    return check(Preset, data, where=preset.name)


@dataclass(frozen=True)
class Context:
    """Settings of one validation and where things lie.

    Attributes
    ----------
    preset : what the studies vary.
    quick : fewer seeds and smaller samples, for a check that all works.
    seed : block of seeds; a larger study is a fresh block.
    device : auto, cpu or cuda.
    n_jobs : processes; on a CPU one torch thread each.
    folder : of pages and tables.
    cache : of training runs, by fingerprint.
    n_runs : runs of each arm where a study's own number is not wanted.
    """

    preset: Preset
    quick: bool
    seed: int
    device: str
    n_jobs: int
    folder: Path
    cache: Path
    say: Callable[[str], None] = lambda line: None
    n_runs: int | None = None

    def seeds(self, n: int, *, purpose: int = 0) -> list[int]:
        """Return ``n`` run seeds of this block; purposes and quick and full share none."""
        first = 100_000 * (2 * self.seed + (0 if self.quick else 1)) + 1000 * purpose
        return list(range(first + 1, first + 1 + n))

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> list[Out]:
        """Return ``function`` of each item in order, in processes; a module's own function."""
        work = list(items)
        n = min(self.n_jobs, len(work))
        if n <= 1:
            return [function(item) for item in work]
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        spawn, parent = get_context("spawn"), os.getpid()
        with ProcessPoolExecutor(n, spawn, initializer=end_with, initargs=(parent,)) as pool:
            return list(pool.map(function, work))

    def run_folder(self, preset: Preset) -> Path:
        """Return where the run of a preset is kept."""
        return self.cache / f"{preset.fingerprint()}-{preset.run.steps}"

    def train_all(self, presets: Sequence[Preset]) -> list[Path]:
        """Train what is not there yet, go on where a run was cut; return the folders in order."""
        device = self.device
        missing = {
            self.run_folder(preset): preset
            for preset in presets
            if not (self.run_folder(preset) / "manifest.json").is_file()
        }
        self.map(_train, [(preset, folder, device) for folder, preset in missing.items()])
        return [self.run_folder(preset) for preset in presets]

    def train_runs(
        self,
        arms: Mapping[str, Preset],
        seeds: Sequence[int],
        *,
        tables: Sequence[str] = ("steps", "updates", "waves", "evaluations"),
    ) -> dict[str, pd.DataFrame]:
        """Train every arm with every seed and return their tables, arm and seed in front.

        Parameters
        ----------
        arms : name -> preset; its ``run.seed`` is replaced. Arms of one seed share prompts and
            noise.
        tables : of the run folder; also ``rollouts`` and ``heldout``, where the preset dumps.
        """
        runs = {
            (arm, seed): vary(preset, {"run.seed": seed})
            for seed in seeds
            for arm, preset in arms.items()
        }
        folders = self.train_all(list(runs.values()))
        found: dict[str, pd.DataFrame] = {}
        for table in tables:
            parts = []
            for (arm, seed), folder in zip(runs, folders, strict=True):
                part = pd.read_parquet(folder / f"{table}.parquet")
                part.insert(0, "arm", arm)
                part.insert(1, "seed", seed)
                parts.append(part)
            found[table] = pd.concat(parts, ignore_index=True)
        return found


def _train(work: tuple[Preset, Path, str]) -> None:
    from gpu_runs.train import train

    preset, folder, device = work
    train(preset, folder=folder, device=device, command=("validate",), progress=False)
