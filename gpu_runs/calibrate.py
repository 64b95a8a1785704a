"""``python -m gpu_runs calibrate PRESET``: time the engine, write the trace."""

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dapolab import __version__
from dapolab.store import manifest, write_run
from gpu_runs.measure import COLUMNS, default_plan, measure, medians, n_visits
from gpu_runs.preset import FreshModel, Preset
from gpu_runs.progress import Progress
from gpu_runs.setup import choose_device, make_task_and_model


def run(preset: Preset, options: argparse.Namespace, *, command: Sequence[str]) -> int:
    """Measure the preset's model and slots, write ``trace`` and ``medians``, print a table.

    On a CPU ``cpu_medians`` has CPU seconds for ``seconds``: what an idle core would take, and what
    a law should be fitted to where other programs ran beside.

    A fresh model is not warm-started: its weights are random, its times are not.
    """
    device = choose_device(options.device)
    if isinstance(preset.model, FreshModel):
        untrained = preset.model.model_copy(update={"warm_steps": 0})
        preset = preset.model_copy(update={"model": untrained})
    task, model = make_task_and_model(preset, device)
    cap = preset.rollout.cap_tokens
    plan = default_plan(
        slots=preset.engine.slots,
        max_context=model.config.max_positions,
        smoke=bool(getattr(options, "smoke", False)),
    )
    half = torch.bfloat16 if device.type == "cuda" else None
    with Progress(n_visits(plan), title="calibrate", shown=not options.json) as progress:
        trace = measure(
            model,
            task,
            plan,
            cap_tokens=cap,
            seed=preset.run.seed,
            dtype=half,
            on_done=lambda: progress.step("visits in random order"),
        )
    table = medians(trace)
    folder = Path(options.output or f"runs/calibrate-{preset.name}")
    described = _manifest(preset, device, command)
    tables = {"trace": trace, "medians": table}
    if device.type == "cpu":
        tables["cpu_medians"] = table.assign(seconds=table["cpu_seconds"])
    write_run(folder, manifest=described, tables=tables, overwrite=True)
    _say(table, folder, seed=preset.run.seed, as_json=options.json)
    return 0


def _manifest(preset: Preset, device: torch.device, command: Sequence[str]) -> dict[str, Any]:
    config = preset.model_dump(mode="json")
    text = json.dumps(config, sort_keys=True)
    on_cuda = device.type == "cuda"
    return manifest(
        command=command,
        seed=preset.run.seed,
        fingerprint=hashlib.sha256(text.encode()).hexdigest()[:16],
        config=config,
        kind="calibration",
        device=torch.cuda.get_device_name(device) if on_cuda else "cpu",
        dtype="bfloat16" if on_cuda else "float32",
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        columns=COLUMNS,
    )


def _say(table: pd.DataFrame, folder: Path, *, seed: int, as_json: bool) -> None:
    decodes = table[(table["part"] == "cell") & (table["index"] > 0)]
    by_n = decodes.groupby("n")[["sum_context_tokens", "seconds", "seconds_iqr"]].median()
    if as_json:
        body = {"folder": folder.name, "decode": by_n.reset_index().to_dict("records")}
        head = {"schema": "gpu_runs/calibrate/1", "command": "calibrate", "version": __version__}
        sys.stdout.write(json.dumps(head | {"seed": seed} | body, indent=1) + "\n")
        return
    sys.stdout.write("responses  ms an iteration  tokens/s  (decode, medians)\n")
    for n, seconds in zip(by_n.index.to_numpy(), by_n["seconds"].to_numpy(), strict=True):
        sys.stdout.write(f"{n:9d}  {seconds * 1e3:15.3f}  {n / seconds:8,.0f}\n")
    sys.stdout.write(
        f"wrote {folder}/trace.parquet and medians.parquet\n"
        f"a law from them: dapolab calibrate {folder}/medians.parquet "
        "(cpu_medians.parquet where other programs ran beside)\n"
    )
